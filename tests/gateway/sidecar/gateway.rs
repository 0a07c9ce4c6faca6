//! A real gateway in front of a real sidecar: what it signs is what is admitted.

use serde_json::{Value, json};

use crate::harness::sidecar::{GUARDED, Sidecar};
use crate::harness::{
    Agent, Answer, CALL, Gateway, LAST_CHUNK, Pair, Request, SSE_HEAD, Seat, Step, chunk, ok_json,
};
use crate::tokens::token;

const REPLY: &str = r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#;

/// A caller, and a target behind its sidecar.
pub(super) struct Stage {
    pub(super) gateway: Gateway,
    pub(super) caller: Seat,
    pub(super) agent: Agent,
    sidecar: Sidecar,
}

impl Stage {
    async fn start(agent: Agent, more: Value, arguments: &[&str]) -> Self {
        let gateway = Gateway::start(Pair::Embedded).await;
        let caller = gateway.seat("caller", "", Agent::json("{}").await).await;
        let at = format!("http://{}", gateway.public);
        let sidecar = Sidecar::spawn(&agent, &[&["--gateway", &at], arguments].concat());
        sidecar.await_ready().await;
        let url = format!("http://{}/", sidecar.address);
        register(&gateway, &url, more).await;
        Self {
            gateway,
            caller,
            agent,
            sidecar,
        }
    }

    /// What the target answers to whoever has this token.
    async fn asked(&self, token: &str, body: &str) -> Answer {
        let request = Request::post(format!("/workspaces/{GUARDED}/a2a"), body);
        self.gateway.call(&request.bearer(token)).await
    }

    async fn call(&self, body: &str) -> Answer {
        let answer = self.asked(&self.caller.token, body).await;
        let log = self.sidecar.log();
        assert_eq!(answer.status, 200, "{}\n{log}", answer.text());
        answer
    }

    /// Past the gateway.
    async fn direct(&self, token: &str) -> Answer {
        let request = Request::post("/", CALL).bearer(token);
        self.sidecar.call(&request).await
    }
}

/// An operator adds the target at `url`.
pub(crate) async fn register(gateway: &Gateway, url: &str, more: Value) {
    let mut new = json!({"id": GUARDED, "name": GUARDED, "url": url, "liveness": "assumed"});
    let more = more.as_object().unwrap().clone();
    new.as_object_mut().unwrap().extend(more);
    gateway.create(new).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_gateway_forwards_is_admitted() {
    let request = (json!({"proof": "request"}), &["--require-bound"][..]);
    for (proof, arguments) in [(json!({}), &[][..]), request] {
        forwarded_is_admitted(proof, arguments).await;
    }
}

async fn forwarded_is_admitted(proof: Value, arguments: &[&str]) {
    let agent = Agent::scripted(|request| {
        if request.text().contains("message/stream") {
            let event = Step::Write(chunk("data: {\"n\":1}\n\n"));
            return vec![Step::write(SSE_HEAD), event, Step::write(LAST_CHUNK)];
        }
        vec![Step::Write(ok_json(REPLY))]
    });
    let stage = Stage::start(agent.await, proof, arguments).await;
    for body in [
        CALL.to_owned(),
        // A token of a request is bound to what leaves the gateway, not to what came.
        r#"{"message":{"text":"héllo"}}"#.to_owned(),
        CALL.replace("message/send", "tasks/list"),
        CALL.replace("message/send", "message\\/send"),
        CALL.replace("hi", &"x".repeat(200_000)),
        r#"{"jsonrpc":"2.0","id":1,"result":{}}"#.to_owned(),
    ] {
        stage.call(&body).await;
        let seen = stage.agent.take();
        assert_eq!(seen.fields("x-workspace-id"), ["caller"], "{}", seen.head);
        assert_eq!(seen.fields("x-a2a-caller"), ["caller"]);
        assert!(seen.field("authorization").is_none(), "{}", seen.head);
    }
    let stream = CALL.replace("message/send", "message/stream");
    let stream = stage.call(&stream).await.unnumbered();
    assert_eq!(stream.text(), "data: {\"n\":1}\n\n");
    stage.agent.take();
    // The same call twice is two requests: a token that is bound is not the same.
    stage.call(CALL).await;
    stage.call(CALL).await;
    assert_eq!(stage.agent.calls(), 2, "and each call before was one");

    let canvas = token(&stage.gateway, "/canvas/tokens", r#"{"user":"mia"}"#).await;
    assert_eq!(stage.asked(&canvas, CALL).await.status, 200);
    let seen = stage.agent.take();
    assert_eq!(seen.fields("x-a2a-caller"), ["canvas:mia"]);
    assert!(seen.field("x-workspace-id").is_none());

    // Past the gateway nobody gets in.
    let refused = stage.direct(&stage.caller.token).await;
    assert_eq!(refused.reason(), "unauthenticated");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_credential_of_an_agent_and_the_token_of_its_caller_stand_side_by_side() {
    let agent = Agent::json(REPLY).await;
    let own = json!({"upstream_auth": {"type": "bearer", "token": "s3cret"}});
    let stage = Stage::start(agent, own, &[]).await;
    stage.call(CALL).await;
    let seen = stage.agent.take();
    assert_eq!(seen.fields("authorization"), ["Bearer s3cret"]);
    assert_eq!(seen.fields("x-workspace-id"), ["caller"]);
    assert!(seen.field("x-a2a-caller-token").is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_from_discovery_calls_the_target_directly() {
    let agent = Agent::json(REPLY).await;
    let stage = Stage::start(agent, json!({}), &[]).await;
    let found = Request::get(format!("/registry/discover/{GUARDED}")).bearer(&stage.caller.token);
    let found = stage.gateway.call(&found).await.json();
    let answer = stage.direct(found["token"].as_str().unwrap()).await;
    assert_eq!(answer.status, 200);
    let requests = stage.agent.requests();
    let call = requests.iter().find(|one| one.head.starts_with("POST "));
    assert_eq!(call.unwrap().fields("x-workspace-id"), ["caller"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_strict_sidecar_says_what_to_set_until_it_is_set() {
    let agent = Agent::json(REPLY).await;
    let stage = Stage::start(agent, json!({}), &["--require-bound"]).await;
    let refused = stage.asked(&stage.caller.token, CALL).await;
    let said = refused.json().to_string();
    assert_eq!(refused.status, 401, "{said}");
    assert!(said.contains(r#"proof: \"request\""#), "{said}");
    assert_eq!(stage.agent.calls(), 0);
    let request = json!({"proof": "request"});
    let changed = stage.gateway.patch(GUARDED, request).await;
    assert_eq!(changed.status, 200, "{}", changed.text());
    for _ in 0..2 {
        stage.call(CALL).await;
    }
    assert_eq!(stage.agent.calls(), 2);
}
