//! Every reason that admission can refuse for: a real message with a real credential and an explanation of the
//! same pair, in the same situation, say the same.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use a2a_gateway::rejection::Reason;
use serde_json::{Value, json};

use super::stores::away;
use super::{Met, agree, call, explain, hanging, last, send_on, step};
use crate::harness::dns::Dns;
use crate::harness::{
    ADMIN, Agent, Builder, Connection, Gateway, Pair, Request, Step, card, ok_json, until_holds,
};
use crate::on_both_pairs;
use crate::polling::poller;

/// What is decided of the pair before anything is sent, and so explained.
const EXPLAINED: [Reason; 15] = [
    Reason::InvalidWorkspaceId,
    Reason::Unauthenticated,
    Reason::NotPermitted,
    Reason::WorkspaceNotFound,
    Reason::WorkspaceRemoved,
    Reason::RateLimited,
    Reason::AgentUnreachable,
    Reason::AgentProtocolError,
    Reason::AddressForbidden,
    Reason::WorkspaceOffline,
    Reason::WorkspaceRestarting,
    Reason::AgentBusy,
    Reason::StoreUnavailable,
    Reason::Overloaded,
    Reason::ShuttingDown,
];

/// What is not, and why.
const NOT_APPLICABLE: [(Reason, &str); 29] = [
    (
        Reason::RoleRequired,
        "an operator's role: `matrix::roles` compares the two",
    ),
    (
        Reason::Stopped,
        "an operator's: `stops::scopes` compares the two",
    ),
    (Reason::GuardRejected, "what the body says"),
    (Reason::GuardUnavailable, "a guard, which is not asked"),
    (Reason::ParseError, "the body"),
    (Reason::InvalidRequest, "the head and the body"),
    (Reason::InvalidParams, "the body"),
    (Reason::OriginForbidden, "the request's Origin"),
    (Reason::Misdirected, "the request's Host"),
    (Reason::CallerMismatch, "the request's X-Workspace-ID"),
    (Reason::NotFound, "the request's path"),
    (Reason::TaskNotFound, "a task that the body names"),
    (Reason::PushNotSupported, "what the body asks for"),
    (
        Reason::VersionNotSupported,
        "the method that the body names",
    ),
    (Reason::MethodNotAllowed, "the request's method"),
    (Reason::RequestTimeout, "how fast the body comes"),
    (Reason::Conflict, "the control plane's"),
    (Reason::IdempotencyConflict, "the request's key and body"),
    (Reason::CursorGone, "a reader's"),
    (Reason::BodyTooLarge, "the body"),
    (Reason::UnsupportedMediaType, "the request's Content-Type"),
    (Reason::UpgradeRequired, "the control plane's"),
    (Reason::CapReached, "time: `caps::shown` compares the two"),
    (Reason::Internal, "a bug"),
    (Reason::AgentRedirected, "the agent's answer"),
    (Reason::ResponseTooLarge, "the agent's answer"),
    (Reason::AgentTimeout, "the agent's pace"),
    (Reason::AgentSilent, "the agent's pace"),
    (Reason::LoopDetected, "the request's X-A2A-Hops"),
];

#[test]
fn every_reason_is_explained_or_is_not_the_pairs() {
    let explained = EXPLAINED.iter().copied();
    let others = NOT_APPLICABLE.iter().map(|(reason, _)| *reason);
    let mut all: Vec<_> = explained.chain(others).collect();
    all.sort();
    let mut expected = Reason::ALL.to_vec();
    expected.sort();
    assert_eq!(
        all, expected,
        "a new reason is explained, or stands here with a word why not"
    );
}

/// The reasons that came up.
#[derive(Default)]
struct Seen(BTreeSet<String>);

impl Seen {
    /// The situation refuses for `reason`, at the step `at`; an explanation agrees with a message.
    async fn refuses(
        &mut self,
        gateway: &Gateway,
        who: (&str, &str),
        target: &str,
        expected: (&str, &str),
    ) -> Value {
        let (reason, at) = expected;
        let what = format!("{} to {target}: {reason}", who.0);
        let (met, explained) = agree(gateway, who, target, &what).await;
        assert_eq!(met, reason, "{what}: {explained:#}");
        assert_eq!(last(&explained), at, "{what}: {explained:#}");
        self.0.insert(met);
        explained
    }
}

async fn operator(gateway: &Gateway, method: &str, path: &str, body: Value) -> Value {
    let mut request = Request::post(path, body.to_string());
    request.method = method.into();
    let answer = gateway.as_operator(request).await;
    assert!(answer.status < 300, "{method} {path}: {}", answer.text());
    serde_json::from_slice(&answer.body).unwrap_or_default()
}

async fn token(gateway: &Gateway, path: &str, body: Value) -> String {
    let made = operator(gateway, "POST", path, body).await;
    made["token"].as_str().unwrap().to_owned()
}

/// What the places, the scopes and the grants say.
async fn who_may(pair: Pair, seen: &mut Seen) {
    let gateway = Gateway::start(pair).await;
    let (caller, target) = gateway.pair(Agent::json("{}").await).await;
    let child = gateway
        .seat("child", "target", Agent::json("{}").await)
        .await;
    for body in [
        json!({"id": "foreign", "name": "f", "org": "acme", "url": target.agent.url(), "liveness": "assumed"}),
        json!({"id": "gone", "name": "g", "url": target.agent.url(), "liveness": "assumed"}),
        json!({"id": "mute", "name": "m", "parent_id": "caller"}),
        json!({"id": "grand", "name": "g", "parent_id": "mute", "url": target.agent.url(), "liveness": "assumed"}),
        json!({"id": "leaving", "name": "l"}),
    ] {
        gateway.create(body).await;
    }
    let gone = token(&gateway, "/workspaces/gone/tokens", json!({})).await;
    operator(&gateway, "DELETE", "/workspaces/gone", Value::Null).await;
    let (me, op) = (("caller", caller.token.as_str()), ("operator", ADMIN));
    let refusals = [
        (me, "a:b", "invalid_workspace_id", "target"),
        (op, "%20", "invalid_workspace_id", "target"),
        (
            ("gone", gone.as_str()),
            "target",
            "unauthenticated",
            "caller",
        ),
        (me, "child", "not_permitted", "rule"),
        (
            ("child", child.token.as_str()),
            "caller",
            "not_permitted",
            "rule",
        ),
        (me, "foreign", "not_permitted", "rule"),
        (me, "gone", "not_permitted", "rule"),
        (me, "nobody", "not_permitted", "rule"),
        (op, "nobody", "workspace_not_found", "rule"),
        (op, "gone", "workspace_removed", "rule"),
    ];
    for (who, target, reason, at) in refusals {
        seen.refuses(&gateway, who, target, (reason, at)).await;
    }
    // Why stands beside it, for operators alone.
    for (target, because) in [
        ("child", "not related"),
        ("grand", "access.lineage"),
        ("foreign", "different orgs"),
        ("gone", "removed"),
    ] {
        let explained = explain(&gateway, "caller", target).await;
        let why = step(&explained, "rule")["fact"]["because"]
            .as_str()
            .unwrap();
        assert!(why.contains(because), "{target}: {why}");
    }
    let org = token(&gateway, "/orgs/acme/tokens", json!({})).await;
    let integration = ("org:acme", org.as_str());
    seen.refuses(&gateway, integration, "target", ("not_permitted", "rule"))
        .await;
    seen.refuses(&gateway, integration, "nobody", ("not_permitted", "rule"))
        .await;
    let ada = token(
        &gateway,
        "/canvas/tokens",
        json!({"user": "ada", "org": "acme"}),
    )
    .await;
    let listed = token(
        &gateway,
        "/canvas/tokens",
        json!({"user": "bob", "workspaces": ["caller", "leaving"]}),
    )
    .await;
    let (ada, bob) = (
        ("canvas:ada&org=acme", ada.as_str()),
        ("canvas:bob&workspaces=caller,leaving", listed.as_str()),
    );
    seen.refuses(&gateway, ada, "target", ("not_permitted", "rule"))
        .await;
    seen.refuses(&gateway, ada, "nobody", ("not_permitted", "rule"))
        .await;
    seen.refuses(&gateway, bob, "target", ("not_permitted", "rule"))
        .await;
    operator(&gateway, "DELETE", "/workspaces/leaving", Value::Null).await;
    seen.refuses(&gateway, bob, "leaving", ("workspace_removed", "rule"))
        .await;
    let grant = operator(
        &gateway,
        "POST",
        "/grants",
        json!({"caller_id": "caller", "target_id": "child"}),
    )
    .await;
    let rules = [
        (me, "caller", "self"),
        (me, "target", "root_sibling"),
        (("target", target.token.as_str()), "child", "parent"),
        (("child", child.token.as_str()), "target", "child"),
        (me, "child", "grant"),
        (op, "foreign", "operator"),
        (integration, "foreign", "org"),
        (ada, "foreign", "canvas"),
        (bob, "caller", "canvas"),
    ];
    for (who, target, rule) in rules {
        let (met, explained) = agree(&gateway, who, target, rule).await;
        assert_eq!(met, "sent", "{rule}: {explained:#}");
        assert_eq!(step(&explained, "rule")["fact"]["rule"], rule);
        assert_eq!(last(&explained), "limits");
    }
    // A canvas user's claims are known once a token of theirs was used here.
    let explained = explain(&gateway, "canvas:ada", "foreign").await;
    assert_eq!(explained["admitted"], true, "{explained:#}");
    assert_eq!(
        step(&explained, "caller")["fact"]["principal"]["org"],
        "acme"
    );
    let explained = explain(&gateway, "caller", "child").await;
    assert_eq!(step(&explained, "grant")["fact"]["grant"], grant["id"]);
    // One that never had a token, and one whose last was revoked.
    seen.refuses(
        &gateway,
        ("mute", "a2aw_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG"),
        "mute",
        ("unauthenticated", "caller"),
    )
    .await;
}

/// What the target's state says.
async fn states(pair: Pair, seen: &mut Seen) {
    let gateway = Gateway::start(pair).await;
    let agent = Agent::json("{}").await;
    let new = |id: &str, more: Value| {
        let mut body = json!({"id": id, "name": id, "liveness": "assumed"});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        body
    };
    for body in [
        new("there", json!({"url": agent.url()})),
        json!({"id": "new", "name": "new"}),
        json!({"id": "placed", "name": "placed", "url": agent.url()}),
    ] {
        gateway.create(body).await;
    }
    let op = ("operator", ADMIN);
    seen.refuses(&gateway, op, "new", ("workspace_restarting", "state"))
        .await;
    seen.refuses(&gateway, op, "placed", ("workspace_restarting", "state"))
        .await;
    for (status, reason) in [
        ("provisioning", "workspace_restarting"),
        ("restarting", "workspace_restarting"),
        ("hibernated", "workspace_restarting"),
        ("failed", "workspace_offline"),
        ("offline", "workspace_offline"),
    ] {
        gateway.patch("there", json!({"status": status})).await;
        let explained = seen.refuses(&gateway, op, "there", (reason, "state")).await;
        assert_eq!(step(&explained, "state")["fact"]["status"], status);
    }
    let here = gateway.seat("here", "", Agent::json("{}").await).await;
    operator(&gateway, "POST", "/workspaces/here/pause", json!({})).await;
    seen.refuses(&gateway, op, "here", ("workspace_offline", "state"))
        .await;
    operator(&gateway, "POST", "/workspaces/here/resume", json!({})).await;
    assert_eq!(agree(&gateway, op, "here", "resumed").await.0, "sent");
    let body = json!({"workspace_id": "here"}).to_string();
    let gone = Request::post("/registry/deregister", body).bearer(&here.token);
    assert_eq!(gateway.call(&gone).await.status, 200);
    seen.refuses(&gateway, op, "here", ("workspace_offline", "state"))
        .await;
}

/// Where the agent is, and how it is called.
async fn addresses(pair: Pair, seen: &mut Seen) {
    let loopback = || vec!["127.0.0.1".parse().unwrap()];
    // Two of them mean something else than when they were registered.
    let dns = Dns::start(move |name, number| match (name, number) {
        ("agent.test", _) | ("moved.test" | "lost.test", 0) => loopback(),
        ("moved.test", _) => vec![
            "127.0.0.1".parse().unwrap(),
            "169.254.169.254".parse().unwrap(),
        ],
        _ => Vec::new(),
    })
    .await;
    let card = json!({"name": "c", "description": "c", "version": "1", "capabilities": {}, "skills": [],
        "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],
        "url": "http://127.0.0.1/rest", "preferredTransport": "HTTP+JSON", "protocolVersion": "0.3.0"});
    let card = ok_json(&card.to_string());
    let cards = Agent::scripted(move |_| vec![Step::Write(card.clone())]).await;
    let builder = Builder::new(pair).set("address.nameservers", &dns.address.to_string());
    let agent = Agent::json("{}").await;
    let named = |name: &str| format!("http://{name}:{}/", agent.port);
    let op = ("operator", ADMIN);
    let gateway = builder.start().await;
    for (id, member, url) in [
        ("named", "url", named("agent.test")),
        ("moved", "url", named("moved.test")),
        ("lost", "url", named("lost.test")),
        ("restful", "card_url", format!("{}card.json", cards.url())),
    ] {
        gateway
            .create(json!({"id": id, "name": id, "liveness": "assumed", member: url}))
            .await;
    }
    let (met, explained) = agree(&gateway, op, "named", "a name").await;
    assert_eq!(met, "sent", "{explained:#}");
    let address = &step(&explained, "address")["fact"];
    assert_eq!(
        (&address["addresses"], &address["dialled"]),
        (&json!(["127.0.0.1"]), &json!("127.0.0.1"))
    );
    // Answers are used for 5 s.
    for (id, reason) in [
        ("moved", "address_forbidden"),
        ("lost", "agent_unreachable"),
    ] {
        let is_refused = async || explain(&gateway, "operator", id).await["admitted"] == false;
        until_holds("its name is asked again", is_refused).await;
        let explained = seen.refuses(&gateway, op, id, (reason, "address")).await;
        let name = format!("{id}.test");
        assert_eq!(step(&explained, "url")["fact"]["url"], named(&name));
    }
    // An agent with HTTP+JSON alone, and no translation.
    operator(
        &gateway,
        "PATCH",
        "/workspaces/restful",
        json!({"bridge": "off"}),
    )
    .await;
    // Where its card is not known nothing is fetched for an explanation.
    let explained = explain(&gateway, "operator", "restful").await;
    assert_eq!(explained["admitted"], true, "{explained:#}");
    assert_eq!(step(&explained, "call")["fact"]["path"], Value::Null);
    assert_eq!(cards.count(), 0);
    let met = Met::of_message(&gateway.call(&call("restful", ADMIN)).await);
    let explained = explain(&gateway, "operator", "restful").await;
    assert_eq!(Met::of_explanation(&explained), met, "{explained:#}");
    assert_eq!(
        (met.reason.as_str(), last(&explained)),
        ("agent_protocol_error", "call")
    );
    seen.0.insert(met.reason);
}

/// How much there is to do already.
async fn crowds(pair: Pair, seen: &mut Seen) {
    let hangs = || Agent::scripted(|_| vec![Step::Hang]);
    let gateway = Builder::new(pair)
        .set("server.max_exchanges", "3")
        .set("inbox.max_messages", "4")
        .start()
        .await;
    let (caller, target) = gateway.pair(hangs().await).await;
    let me = ("caller", caller.token.as_str());
    poller(&gateway, "polls", card("polls")).await;
    let (met, explained) = agree(&gateway, me, "polls", "an inbox").await;
    assert_eq!((met.as_str(), last(&explained)), ("sent", "limits"));
    assert_eq!(step(&explained, "inbox")["fact"]["held"], 1);
    gateway.call(&call("polls", &caller.token)).await;
    seen.refuses(&gateway, me, "polls", ("agent_busy", "inbox"))
        .await;
    gateway.patch("target", json!({"max_concurrent": 1})).await;
    let first = hanging(&gateway, &caller, &target).await;
    let explained = seen
        .refuses(&gateway, me, "target", ("agent_busy", "slots"))
        .await;
    assert_eq!(step(&explained, "slots")["fact"]["taken"], 1);
    gateway.patch("target", json!({"max_concurrent": 6})).await;
    let second = hanging(&gateway, &caller, &target).await;
    let third = hanging(&gateway, &caller, &target).await;
    seen.refuses(&gateway, me, "target", ("overloaded", "places"))
        .await;
    drop((first, second, third));
}

async fn rates(pair: Pair, seen: &mut Seen) {
    let builder = Builder::new(pair)
        .set("rate.caller_per_second", "1")
        .set("rate.caller_burst", "60");
    let gateway = builder.start().await;
    let (caller, _target) = gateway.pair(Agent::json("{}").await).await;
    let explained = explain(&gateway, "caller", "target").await;
    let left = step(&explained, "rate")["fact"]["credentials"][0]["remaining"]
        .as_u64()
        .unwrap();
    assert!(left > 20, "{explained:#}");
    let mut connection = Connection::open(gateway.public).await;
    // It fills by one a second, which may pass between any two questions.
    let deadline = Instant::now() + Duration::from_secs(60);
    let (mut met, mut explained) = loop {
        let met = send_on(&mut connection, "target", &caller.token).await;
        if met.reason != "sent" {
            let explained = explain(&gateway, "caller", "target").await;
            let explained = Met::of_explanation(&explained);
            if explained.reason != "sent" {
                break (met, explained);
            }
        }
        assert!(Instant::now() < deadline, "the limit is not met");
    };
    // Both say when.
    assert!(explained.retry_after <= met.retry_after && met.retry_after.is_some());
    (met.retry_after, explained.retry_after) = (None, None);
    assert_eq!(explained, met);
    assert_eq!(met.reason, "rate_limited");
    seen.0.insert(met.reason);
}

async fn the_end(pair: Pair, seen: &mut Seen) {
    let gateway = Gateway::start(pair).await;
    let (caller, target) = gateway
        .pair(Agent::scripted(|_| vec![Step::Hang]).await)
        .await;
    let hanging = hanging(&gateway, &caller, &target).await;
    gateway.terminate();
    while gateway.admin_get("/readyz").await.unwrap().status != 503 {}
    // Whatever else is wrong: this comes first.
    for target in ["nobody", "a:b", "target"] {
        let me = ("caller", caller.token.as_str());
        seen.refuses(&gateway, me, target, ("shutting_down", "process"))
            .await;
    }
    drop(hanging);
}

on_both_pairs! {
    async fn an_explanation_and_a_message_agree_on_every_refusal_of_admission(pair: Pair) {
        let mut seen = Seen::default();
        who_may(pair, &mut seen).await;
        states(pair, &mut seen).await;
        addresses(pair, &mut seen).await;
        crowds(pair, &mut seen).await;
        rates(pair, &mut seen).await;
        the_end(pair, &mut seen).await;
        let mut expected: BTreeSet<_> = EXPLAINED.iter().map(|reason| reason.as_str()).collect();
        match pair {
            // Neither of these goes away alone.
            Pair::Embedded => _ = expected.remove("store_unavailable"),
            Pair::External => away(&mut seen.0).await,
        }
        assert_eq!(seen.0.iter().map(String::as_str).collect::<BTreeSet<_>>(), expected);
    }
}
