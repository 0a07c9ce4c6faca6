//! Registered cards where the registry shows them: to its workspace and operators as they were
//! registered, to everyone else without a word on where the agent is.

use serde_json::{Value, json};

use super::{PUBLIC, generations, urls};
use crate::events::until_heard;
use crate::harness::watcher::Feed;
use crate::harness::{ADMIN, Agent, Answer, Gateway, Request, card};

/// A gateway with `target` and its agent, and those who look on.
struct Stage {
    gateway: Gateway,
    agent: Agent,
    target: String,
    caller: String,
    canvas: String,
    org: String,
}

impl Stage {
    async fn new() -> Self {
        let gateway = Gateway::with(&format!("server.public_url={PUBLIC}")).await;
        let agent = Agent::json("{}").await;
        let seat = async |id: &str| {
            let new = json!({"id": id, "name": id, "org": "acme"});
            let enrolment = gateway.create(new).await;
            let url = agent.url();
            gateway.register(id, &enrolment, &url, card(id)).await
        };
        let (target, caller) = (seat("target").await, seat("caller").await);
        let ada = r#"{"user":"ada","org":"acme"}"#;
        let canvas = gateway.token("/canvas/tokens", ada).await;
        let org = gateway.token("/orgs/acme/tokens", "{}").await;
        until_heard(&gateway, "AGENT_CARD_UPDATED", "caller").await;
        Self {
            gateway,
            agent,
            target,
            caller,
            canvas,
            org,
        }
    }

    async fn ask(&self, token: &str, request: Request) -> Answer {
        self.gateway.call(&request.bearer(token)).await.has(200)
    }

    /// The card of `target` wherever `token` finds one, as the text of it. `own`: it is the target's.
    async fn cards(&self, token: &str, own: bool) -> Vec<(&'static str, String)> {
        let mut paths = vec!["/workspaces/target", "/workspaces"];
        if token != self.org {
            paths.push("/registry/discover/target");
        }
        if token == self.caller || token == ADMIN {
            paths.push("/registry/caller/peers");
        }
        if token == self.org || token == ADMIN {
            paths.extend("PATCH /workspaces/target/pause /workspaces/target/resume".split(' '));
        }
        let mut found = Vec::new();
        for path in paths {
            let is_post = path.ends_with("pause") || path.ends_with("resume");
            let request = match path {
                "PATCH" => Request::patch("/workspaces/target", r#"{"role":"r"}"#),
                post if is_post => Request::post(post, "{}"),
                get => Request::get(get),
            };
            let text = self.ask(token, request).await.text();
            assert!(own || text.contains("target"), "{path}");
            found.push((path, agent_card(&text)));
        }
        found
    }

    async fn register(&self, card: &str) {
        let body = format!(
            r#"{{"id":"target","url":"{}","internal_url":"http://127.0.0.2:7007/inside","agent_card":{card}}}"#,
            self.agent.url()
        );
        let request = Request::post("/registry/register", body);
        self.ask(&self.target, request).await;
    }
}

/// The text of the member `agent_card` of the workspace `target` in an answer.
fn agent_card(text: &str) -> String {
    #[derive(serde::Deserialize)]
    struct One<'a> {
        id: String,
        #[serde(borrow)]
        agent_card: &'a serde_json::value::RawValue,
    }
    let all: Vec<One<'_>> = match text.starts_with('[') {
        true => serde_json::from_str(text).unwrap(),
        false => vec![serde_json::from_str(text).unwrap()],
    };
    let target = all.iter().find(|one| one.id == "target").unwrap();
    target.agent_card.get().to_owned()
}

/// The next event that a card was updated, of `target`.
async fn told(feed: &mut Feed) -> Value {
    loop {
        let data = feed.event().await.data;
        if data["event"] == "AGENT_CARD_UPDATED" && data["workspace_id"] == "target" {
            return data["payload"]["agent_card"].clone();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_view_of_a_registered_card_names_the_agent() {
    let stage = Stage::new().await;
    let base = format!("{PUBLIC}/workspaces/target/a2a");
    let address = format!("127.0.0.1:{}", stage.agent.port);
    let mut feeds = Vec::new();
    for token in [&*stage.caller, &stage.canvas, ADMIN] {
        let events = Request::get("/events").bearer(token);
        feeds.push(Feed::open(stage.gateway.public, &events).await);
    }
    for (generation, mut card) in generations() {
        card["x"] = "also at http://127.0.0.2:7007/inside".into();
        let registered = card.to_string().replace("{agent}", &address);
        let card: Value = serde_json::from_str(&registered).unwrap();
        stage.register(&registered).await;
        for (token, own) in [(&*stage.target, true), (ADMIN, false)] {
            for (place, seen) in stage.cards(token, own).await {
                // As it was registered.
                assert_eq!(seen, registered, "{generation} at {place}");
            }
        }
        let mut shown = Vec::new();
        for token in [&stage.caller, &stage.canvas, &stage.org] {
            shown.extend(stage.cards(token, false).await);
        }
        for feed in &mut feeds {
            shown.push(("/events", told(feed).await.to_string()));
        }
        let hidden = format!("127.0.0.1 127.0.0.2 7007 GRPC 50051 {}", stage.agent.port);
        for (place, text) in shown {
            for hidden in hidden.split(' ') {
                assert!(!text.contains(hidden), "{generation} at {place}: {text}");
            }
            let seen: Value = serde_json::from_str(&text).unwrap();
            let urls = urls(&seen);
            assert!(!urls.is_empty(), "{place}: {text}");
            assert!(urls.iter().all(|url| *url == base), "{place}: {text}");
            assert_eq!(seen["x"], format!("also at {base}/inside"));
            // Nothing is filled in, and no security declared.
            for gone in "signatures securitySchemes security securityRequirements".split(' ') {
                assert_eq!(seen.get(gone), None, "{generation} at {place}: {text}");
            }
            for same in
                "name capabilities default_input_modes iconUrl defaultInputModes version".split(' ')
            {
                let expected = card.get(same).map(ToString::to_string);
                let expected = expected.map(|value| value.replace(&address, &base));
                let value = seen.get(same).map(ToString::to_string);
                if same == "capabilities" {
                    assert_eq!(seen[same]["streaming"], true);
                } else {
                    assert_eq!(value, expected, "{same} of {generation} at {place}");
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_card_that_tells_of_no_place_is_shown_as_it_was_registered() {
    let stage = Stage::new().await;
    let events = Request::get("/events").bearer(&stage.caller);
    let mut feed = Feed::open(stage.gateway.public, &events).await;
    let plain = r#"{"zeta": 1.0, "name":"plain","protocol_version":"0.2.5" ,"signatures":[{"protected":"e30"}],"skills":["\u0061"], "e":1e2}"#;
    stage.register(plain).await;
    let Stage {
        target,
        caller,
        canvas,
        org,
        ..
    } = &stage;
    for token in [&**target, caller, canvas, org, ADMIN] {
        for (place, seen) in stage.cards(token, false).await {
            assert_eq!(seen, plain, "{place}");
        }
    }
    assert_eq!(told(&mut feed).await["skills"], json!(["a"]));
    // Which of two members is meant nobody knows, so nobody else sees either.
    let url = stage.agent.url();
    let twice = format!(r#"{{"name":"twice","url":"{url}","url":"{url}"}}"#);
    let update = format!(r#"{{"workspace_id":"target","agent_card":{twice}}}"#);
    let update = Request::post("/registry/update-card", update);
    stage.ask(target, update).await;
    for (token, expected) in [
        (&**target, &*twice),
        (ADMIN, &twice),
        (caller, "null"),
        (org, "null"),
    ] {
        for (place, seen) in stage.cards(token, false).await {
            assert_eq!(seen, expected, "{place}");
        }
    }
    assert_eq!(told(&mut feed).await, Value::Null);
}
