//! A credential stays at the server that it was set for: each way on which an agent comes to another address, and those
//! on which it gets its credential there.

use serde_json::json;

use super::SECRET;
use crate::audit::recorded;
use crate::events::Replicas;
use crate::harness::watcher::Feed;
use crate::harness::{
    ADMIN, Agent, Answer, CALL, Gateway, Pair, Recorded, Request, Step, card, ok_json, until_holds,
};

/// Where the credential arrives after a way.
#[derive(PartialEq, Eq)]
enum Outcome {
    /// Calls go to the other server, without it.
    Withheld,
    /// Calls stay at the first server, with it; the other one is not called, and gets its card asked for at most.
    Stays,
    /// Calls go to the other server, which has no credential.
    Gone,
}
use Outcome::{Gone, Stays, Withheld};

/// The ways: where each leads, its name, the workspace as an operator creates it, and what happens then: whose
/// credential, a method or path, and a body.
const WAYS: &str = r#"
Withheld | url, by an org token | AT_GOOD | org PATCH {"url":"EVIL"}
Withheld | url, by a subtree token | AT_GOOD | subtree PATCH {"url":"EVIL"}
Withheld | url, by an operator | AT_GOOD | operator PATCH {"url":"EVIL"}
Withheld | url of a probed agent | AT_GOOD,"probe":{"path":"/healthz","every_seconds":5} | org PATCH {"url":"EVIL"}
Withheld | card_url instead of url | AT_GOOD | org TO_CARD
Withheld | card_url alone | ASSUMED,AUTH,"card_url":"GOOD/card" | org PATCH {"card_url":"EVIL/card"}
Withheld | card_url instead of urls | ASSUMED,AUTH,"urls":["GOOD"] | org TO_CARD
Stays | card_url beside url | AT_GOOD | org PATCH {"card_url":"EVIL/card"}
Stays | internal_url | AT_GOOD | org PATCH {"internal_url":"EVIL"}
Withheld | an inbox | "delivery_mode":"poll",AUTH | subtree PATCH {"card_url":"EVIL/card",ASSUMED,"delivery_mode":"push"}
Withheld | a policy | AT_GOOD | operator /policy {"version":1,"workspaces":[{NAMED,"org":"acme",AT_EVIL}]}
Stays | an interface | AT_GOOD | own JOIN_GOOD > own /registry/update-card {"workspace_id":"ID","agent_card":OTHER_CARD}
Withheld | a registration | | own JOIN_GOOD > SET > own JOIN_EVIL
Withheld | a registration by an org token | AT_GOOD | org JOIN_EVIL
Withheld | a registration by an operator | AT_GOOD | operator JOIN_EVIL
Withheld | an instance | | own ONE_GOOD > SET > own TWO_EVIL > own /registry/drain {"workspace_id":"ID","instance_id":"one"}
Withheld | a rotation while it is away | | own JOIN_GOOD > SET > LEAVE > SET > own JOIN_EVIL
Withheld | a rotation while it is away, and url | | own JOIN_GOOD > SET > LEAVE > SET > org PATCH {AT_EVIL}
Withheld | the place of an org's credential | | own JOIN_EVIL > org PATCH {"upstream_auth":"of-the-org"} > LEAVE > SET > own JOIN_EVIL
Withheld | a place without a credential | | own JOIN_EVIL > LEAVE > SET > own JOIN_EVIL
Withheld | set before its agent registers | AUTH | own JOIN_EVIL
Withheld | set before url | AUTH | subtree PATCH {AT_EVIL}
Withheld | its agent registers, then an operator names another card_url | AUTH | own JOIN_EVIL > operator PATCH {"card_url":"GOOD/card"}
Withheld | card_url by an org token, then an operator clears url | AUTH | org PATCH {"card_url":"EVIL/card",ASSUMED} > operator PATCH {"url":null}
Withheld | an operator names url, then an org token | AUTH | operator PATCH {"url":"GOOD"} > org PATCH {AT_EVIL}
Gone | recreated | AT_GOOD | operator DELETE null > operator /workspaces {NAMED,"recreate":true,AT_EVIL}
Stays | an operator names url | AUTH | own JOIN_GOOD > operator PATCH {"url":"GOOD"}
Stays | an operator registers it | AUTH | operator JOIN_GOOD
Stays | to and fro | AT_GOOD | org JOIN_EVIL > org JOIN_GOOD
Stays | back after a rotation | | own JOIN_GOOD > SET > LEAVE > SET > own JOIN_GOOD"#;

/// What the words of [`WAYS`] stand for, each in words behind it at most. `GOOD` and `EVIL` are the two servers.
const WORDS: [(&str, &str); 15] = [
    (
        "TO_CARD",
        r#"PATCH {"card_url":"EVIL/card",ASSUMED,"url":null}"#,
    ),
    ("JOIN_GOOD", r#"/registry/register {"url":"GOOD",CARD}"#),
    ("JOIN_EVIL", r#"/registry/register {"url":"EVIL",CARD}"#),
    (
        "ONE_GOOD",
        r#"/registry/register {"url":"GOOD","instance_id":"one",CARD}"#,
    ),
    (
        "TWO_EVIL",
        r#"/registry/register {"url":"EVIL","instance_id":"two",CARD}"#,
    ),
    (
        "OTHER_CARD",
        r#"{"name":"ID","url":"EVIL/a2a","supportedInterfaces":[OTHER_INTERFACE]}"#,
    ),
    (
        "OTHER_INTERFACE",
        r#"{"url":"EVIL/a2a","protocolBinding":"JSONRPC","protocolVersion":"1.0"}"#,
    ),
    ("CARD", r#""id":"ID","agent_card":ITS_CARD"#),
    ("SET", "operator PATCH {AUTH}"),
    ("LEAVE", r#"own /registry/deregister {"workspace_id":"ID"}"#),
    ("AT_GOOD", r#""url":"GOOD",ASSUMED,AUTH"#),
    ("AT_EVIL", r#""url":"EVIL",ASSUMED"#),
    ("ASSUMED", r#""liveness":"assumed""#),
    ("AUTH", r#""upstream_auth":"s3cret-of-the-agent""#),
    ("NAMED", r#""id":"ID","name":"ID","parent_id":"team""#),
];

/// A text with its words replaced.
fn filled(text: &str, id: &str, good: &Agent, evil: &Agent) -> String {
    let (good, evil, card) = (good.url(), evil.url(), card("ID").to_string());
    let ours = [
        ("GOOD/", &*good),
        ("EVIL/", &evil),
        ("GOOD", &good),
        ("EVIL", &evil),
        ("ITS_CARD", &card),
        ("ID", id),
    ];
    let words = WORDS.iter().copied().chain(ours);
    words.fold(text.to_owned(), |text, (word, meaning)| {
        text.replace(word, meaning)
    })
}

/// Serves a card, and answers calls.
async fn serving() -> Agent {
    let card = card("served").to_string();
    Agent::scripted(move |request| {
        let is_call = request.head.starts_with("POST ");
        let result = r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#;
        vec![Step::Write(ok_json(if is_call { result } else { &card }))]
    })
    .await
}

fn has_secret(request: &Recorded) -> bool {
    request.head.contains(SECRET)
}

/// Tokens of acme, and of the subtree of `team`.
struct Tokens {
    org: String,
    subtree: String,
}

impl Tokens {
    async fn new(gateway: &Gateway) -> Self {
        let team = json!({"id": "team", "name": "team", "org": "acme"});
        gateway.create(team).await;
        let path = "/orgs/acme/tokens";
        Self {
            org: gateway.token(path, "{}").await,
            subtree: gateway.token(path, r#"{"subtree":"team"}"#).await,
        }
    }
}

async fn call(gateway: &Gateway, id: &str) -> Answer {
    let request = Request::post(format!("/workspaces/{id}/a2a"), CALL);
    gateway.as_operator(request).await
}

async fn explained(gateway: &Gateway, id: &str) -> String {
    let path = format!("/explain?caller={id}&target={id}");
    gateway.admin_get(&path).await.unwrap().text()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_way_to_another_server_takes_the_credential_along() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let tokens = Tokens::new(&gateway).await;
    for (at, row) in WAYS.trim().lines().enumerate() {
        let (id, good, evil) = (format!("w{at}"), serving().await, serving().await);
        let columns: Vec<_> = row.split('|').map(str::trim).collect();
        let [outcome, name, new, asks] = columns[..] else {
            panic!("{row}")
        };
        let outcome = match outcome {
            "Withheld" => Withheld,
            "Stays" => Stays,
            _ => Gone,
        };
        let comma = if new.is_empty() { "" } else { "," };
        let new = filled(&format!("{{NAMED{comma}{new}}}"), &id, &good, &evil);
        gateway.create(serde_json::from_str(&new).unwrap()).await;
        let path = format!("/workspaces/{id}");
        let own = gateway.token(&format!("{path}/tokens"), "{}").await;
        for ask in asks.split(" > ") {
            let ask = filled(ask, &id, &good, &evil);
            let [who, what, body] = ask.splitn(3, ' ').collect::<Vec<_>>()[..] else {
                panic!("{ask}")
            };
            let request = match what {
                "PATCH" => Request::patch(&path, body),
                "DELETE" => Request::new("DELETE", &path),
                path => Request::post(path, body),
            };
            let token = match who {
                "own" => &own,
                "org" => &tokens.org,
                "subtree" => &tokens.subtree,
                _ => ADMIN,
            };
            let answer = gateway.call(&request.bearer(token)).await;
            let is_done = (200..300).contains(&answer.status);
            assert!(is_done, "{name}, {body}: {}", answer.text());
        }
        let (good_before, evil_before) = (good.count(), evil.count());
        let card = Request::get(format!("{path}/.well-known/agent-card.json"));
        gateway.as_operator(card).await;
        let answer = call(&gateway, &id).await;
        assert_eq!(answer.status, 200, "{name}: {}", answer.text());
        let calls = |agent: &Agent, before: usize| {
            let all = agent.requests().into_iter().skip(before);
            all.filter(|request| request.head.starts_with("POST "))
                .collect::<Vec<_>>()
        };
        let (to_good, to_evil) = (calls(&good, good_before), calls(&evil, evil_before));
        let expected = if outcome == Stays { (1, 0) } else { (0, 1) };
        assert_eq!((to_good.len(), to_evil.len()), expected, "{name}");
        assert!(to_good.iter().all(has_secret), "{name}");
        if new.contains("probe") {
            let probed = async || {
                let requests = evil.requests();
                let mut heads = requests.iter().map(|one| &one.head);
                heads.any(|head| head.starts_with("GET /healthz "))
            };
            until_holds(name, probed).await;
        }
        let leaked: Vec<_> = evil.requests().into_iter().filter(has_secret).collect();
        assert!(leaked.is_empty(), "{name}: {leaked:?}");
        let explains = explained(&gateway, &id).await;
        let says = explains.contains("credential_withheld");
        assert_eq!(says, outcome == Withheld, "{name}");
        if outcome != Stays {
            // There once an operator says so, and not in an explanation any more.
            let auth = json!({"upstream_auth": SECRET});
            gateway.patch(&id, auth).await.has(200);
            let before = evil.count();
            assert_eq!(call(&gateway, &id).await.status, 200, "{name}");
            assert!(calls(&evil, before).iter().any(has_secret), "{name}");
            let explains = explained(&gateway, &id).await;
            assert!(!explains.contains("credential_withheld"), "{name}");
        }
    }
}

/// An agent's own change may reach Redis before or after its row, so it is no sign of a move by another program.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_in_redis_gets_a_credential_only_where_the_operator_wants_it() {
    for goes_along in [false, true] {
        let key = "registry.shared_addresses_move_credentials";
        let replicas = Replicas::start(1, &[(key, &goes_along.to_string())]).await;
        let gateway = &replicas.all[0];
        let (good, evil) = (serving().await, serving().await);
        let new = json!({"id": "w", "name": "w", "url": good.url(), "liveness": "assumed",
            "upstream_auth": SECRET});
        gateway.create(new).await;
        assert_eq!(call(gateway, "w").await.status, 200);
        assert!(good.requests().iter().all(has_secret));
        let mut feed = Feed::open(gateway.public, &Request::get("/events").bearer(ADMIN)).await;
        replicas.redis.command(&["set", "ws:w:url", &evil.url()]);
        let at_other = async || {
            assert_eq!(call(gateway, "w").await.status, 200);
            evil.count() >= 3
        };
        until_holds("it is called at the other address", at_other).await;
        let along = |one: &Recorded| has_secret(one) == goes_along;
        assert!(evil.requests().iter().all(along));
        // Only a caller with a credential is explained.
        gateway.token("/workspaces/w/tokens", "{}").await;
        let says = explained(gateway, "w").await;
        assert_eq!(says.contains("credential_withheld"), !goes_along, "{says}");
        // What ends the wait in either case.
        let place = json!({"parent_id": null, "org": "acme"});
        gateway.patch("w", place).await.has(200);
        assert_eq!(call(gateway, "w").await.status, 200);
        let mut told = Vec::new();
        while told.last() != Some(&json!("WORKSPACE_MOVED")) {
            told.push(feed.event().await.data["event"].clone());
        }
        let moves = told.iter().filter(|event| **event == "CREDENTIAL_MOVED");
        assert_eq!(moves.count(), usize::from(goes_along), "{told:?}");
        let query = "event_type=CREDENTIAL_MOVED&workspace=w";
        let records = recorded(gateway, query, usize::from(goes_along)).await;
        assert_eq!(records.len(), usize::from(goes_along), "{records:?}");
        if goes_along {
            let origin = |agent: &Agent| agent.url().trim_end_matches('/').to_owned();
            let detail = json!({"from": origin(&good), "to": origin(&evil)});
            assert_eq!(records[0]["detail"], detail);
        }
    }
}
