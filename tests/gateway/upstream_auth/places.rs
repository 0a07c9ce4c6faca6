//! A credential stays at the server that it was set for: each way on which an agent comes to another address, and those
//! on which it gets its credential there.

use serde_json::{Value, json};

use super::SECRET;
use crate::audit::recorded;
use crate::events::Replicas;
use crate::harness::watcher::Feed;
use crate::harness::{
    ADMIN, Agent, Answer, CALL, Gateway, Pair, Recorded, Request, Step, card, ok_json, until_holds,
};

/// Where the credential arrives after a way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    /// Calls go to the other server, without it.
    Withheld,
    /// Calls stay at the first server, with it; the other one is not called, and gets its card asked for at most.
    Stays,
    /// Calls go to the other server, which has no credential.
    Gone,
}
use Outcome::{Gone, Stays, Withheld};

/// A request: its credential, its method or path, and its body. `GOOD` and `EVIL` are the URLs of the two servers.
type Ask = (&'static str, &'static str, Value);

fn set() -> Ask {
    ("operator", "PATCH", json!({"upstream_auth": SECRET}))
}

fn register(who: &'static str, at: &str) -> Ask {
    let body = json!({"id": "ID", "url": at, "agent_card": card("ID")});
    (who, "/registry/register", body)
}

fn instance(who: &'static str, id: &str, at: &str) -> Ask {
    let (_, path, mut body) = register(who, at);
    body["instance_id"] = id.into();
    (who, path, body)
}

fn deregister() -> Ask {
    let body = json!({"workspace_id": "ID"});
    ("own", "/registry/deregister", body)
}

/// The ways: their names, the workspaces as an operator creates them, what happens then, and where it leads.
fn ways() -> Vec<(&'static str, Value, Vec<Ask>, Outcome)> {
    let assumed = || json!({"url": "GOOD", "liveness": "assumed", "upstream_auth": SECRET});
    let nowhere = || json!({"upstream_auth": SECRET});
    let by_card = json!({"card_url": "EVIL/card", "liveness": "assumed"});
    let probed = json!({"url": "GOOD", "liveness": "assumed", "upstream_auth": SECRET,
        "probe": {"path": "/healthz", "every_seconds": 5}});
    let card_only =
        json!({"card_url": "GOOD/card", "liveness": "assumed", "upstream_auth": SECRET});
    let listed = json!({"urls": ["GOOD"], "liveness": "assumed", "upstream_auth": SECRET});
    let of_evil = json!({"name": "ID", "url": "EVIL/a2a", "supportedInterfaces":
        [{"url": "EVIL/a2a", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}]});
    let policy = json!({"version": 1, "workspaces": [{"id": "ID", "name": "ID", "org": "acme", "parent_id": "team",
        "url": "EVIL", "liveness": "assumed"}]});
    let change = |who, body| (who, "PATCH", body);
    let to_push = json!({"card_url": "EVIL/card", "liveness": "assumed", "delivery_mode": "push"});
    let to_card = json!({"card_url": "EVIL/card", "liveness": "assumed", "url": null});
    let at_evil = json!({"url": "EVIL", "liveness": "assumed"});
    let orgs = json!({"upstream_auth": "of-the-org"});
    vec![
        (
            "url, by an org token",
            assumed(),
            vec![change("org", json!({"url": "EVIL"}))],
            Withheld,
        ),
        (
            "url, by a subtree token",
            assumed(),
            vec![change("subtree", json!({"url": "EVIL"}))],
            Withheld,
        ),
        (
            "url, by an operator",
            assumed(),
            vec![change("operator", json!({"url": "EVIL"}))],
            Withheld,
        ),
        (
            "url of a probed agent",
            probed,
            vec![change("org", json!({"url": "EVIL"}))],
            Withheld,
        ),
        (
            "card_url instead of url",
            assumed(),
            vec![change("org", to_card.clone())],
            Withheld,
        ),
        (
            "card_url alone",
            card_only,
            vec![change("org", json!({"card_url": "EVIL/card"}))],
            Withheld,
        ),
        (
            "card_url instead of urls",
            listed,
            vec![change("org", to_card)],
            Withheld,
        ),
        (
            "card_url beside url",
            assumed(),
            vec![change("org", json!({"card_url": "EVIL/card"}))],
            Stays,
        ),
        (
            "internal_url",
            assumed(),
            vec![change("org", json!({"internal_url": "EVIL"}))],
            Stays,
        ),
        (
            "an inbox",
            json!({"delivery_mode": "poll", "upstream_auth": SECRET}),
            vec![change("subtree", to_push)],
            Withheld,
        ),
        (
            "a policy",
            assumed(),
            vec![("operator", "/policy", policy)],
            Withheld,
        ),
        (
            "an interface",
            assumed(),
            vec![
                register("own", "GOOD"),
                (
                    "own",
                    "/registry/update-card",
                    json!({"workspace_id": "ID", "agent_card": of_evil}),
                ),
            ],
            Stays,
        ),
        (
            "a registration",
            json!({}),
            vec![register("own", "GOOD"), set(), register("own", "EVIL")],
            Withheld,
        ),
        (
            "a registration by an org token",
            assumed(),
            vec![register("org", "EVIL")],
            Withheld,
        ),
        (
            "a registration by an operator",
            assumed(),
            vec![register("operator", "EVIL")],
            Withheld,
        ),
        (
            "an instance",
            json!({}),
            vec![
                instance("own", "one", "GOOD"),
                set(),
                instance("own", "two", "EVIL"),
                (
                    "own",
                    "/registry/drain",
                    json!({"workspace_id": "ID", "instance_id": "one"}),
                ),
            ],
            Withheld,
        ),
        (
            "a rotation while it is away",
            json!({}),
            vec![
                register("own", "GOOD"),
                set(),
                deregister(),
                set(),
                register("own", "EVIL"),
            ],
            Withheld,
        ),
        (
            "a rotation while it is away, and url",
            json!({}),
            vec![
                register("own", "GOOD"),
                set(),
                deregister(),
                set(),
                change("org", at_evil.clone()),
            ],
            Withheld,
        ),
        (
            "the place of an org's credential",
            json!({}),
            vec![
                register("own", "EVIL"),
                change("org", orgs),
                deregister(),
                set(),
                register("own", "EVIL"),
            ],
            Withheld,
        ),
        (
            "a place without a credential",
            json!({}),
            vec![
                register("own", "EVIL"),
                deregister(),
                set(),
                register("own", "EVIL"),
            ],
            Withheld,
        ),
        (
            "set before its agent registers",
            nowhere(),
            vec![register("own", "EVIL")],
            Withheld,
        ),
        (
            "set before url",
            nowhere(),
            vec![change("subtree", at_evil.clone())],
            Withheld,
        ),
        (
            "its agent registers, then an operator names another card_url",
            nowhere(),
            vec![
                register("own", "EVIL"),
                change("operator", json!({"card_url": "GOOD/card"})),
            ],
            Withheld,
        ),
        (
            "card_url by an org token, then an operator clears url",
            nowhere(),
            vec![
                change("org", by_card.clone()),
                change("operator", json!({"url": null})),
            ],
            Withheld,
        ),
        (
            "an operator names url, then an org token",
            nowhere(),
            vec![
                change("operator", json!({"url": "GOOD"})),
                change("org", at_evil.clone()),
            ],
            Withheld,
        ),
        (
            "recreated",
            assumed(),
            vec![
                ("operator", "DELETE", Value::Null),
                (
                    "operator",
                    "/workspaces",
                    json!({"id": "ID", "name": "ID", "recreate": true, "parent_id": "team", "url": "EVIL", "liveness": "assumed"}),
                ),
            ],
            Gone,
        ),
        (
            "an operator names url",
            nowhere(),
            vec![
                register("own", "GOOD"),
                change("operator", json!({"url": "GOOD"})),
            ],
            Stays,
        ),
        (
            "an operator registers it",
            nowhere(),
            vec![register("operator", "GOOD")],
            Stays,
        ),
        (
            "to and fro",
            assumed(),
            vec![register("org", "EVIL"), register("org", "GOOD")],
            Stays,
        ),
        (
            "back after a rotation",
            json!({}),
            vec![
                register("own", "GOOD"),
                set(),
                deregister(),
                set(),
                register("own", "GOOD"),
            ],
            Stays,
        ),
    ]
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
        gateway
            .create(json!({"id": "team", "name": "team", "org": "acme"}))
            .await;
        let made = async |path: &str, body: Value| {
            let made = gateway
                .as_operator(Request::post(path, body.to_string()))
                .await;
            assert_eq!(made.status, 201, "{}", made.text());
            made.json()["token"].as_str().unwrap().to_owned()
        };
        Self {
            org: made("/orgs/acme/tokens", json!({})).await,
            subtree: made("/orgs/acme/tokens", json!({"subtree": "team"})).await,
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
    for (at, (name, mut new, asks, outcome)) in ways().into_iter().enumerate() {
        let (id, good, evil) = (format!("w{at}"), serving().await, serving().await);
        let filled = |body: &Value| {
            let (good, evil) = (good.url(), evil.url());
            let text = body
                .to_string()
                .replace("GOOD/", &good)
                .replace("EVIL/", &evil);
            text.replace("GOOD", &good)
                .replace("EVIL", &evil)
                .replace("ID", &id)
        };
        for (member, value) in [("id", id.as_str()), ("name", &id), ("parent_id", "team")] {
            new[member] = value.into();
        }
        let is_probed = !new["probe"].is_null();
        let made = serde_json::from_str(&filled(&new)).unwrap();
        gateway.create(made).await;
        let path = format!("/workspaces/{id}");
        let own = Request::post(format!("{path}/tokens"), "{}");
        let own = gateway.as_operator(own).await;
        let own = own.json()["token"].as_str().unwrap().to_owned();
        for (who, what, body) in asks {
            let request = match what {
                "PATCH" => Request::patch(&path, filled(&body)),
                "DELETE" => Request::new("DELETE", &path),
                path => Request::post(path, filled(&body)),
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
        if is_probed {
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
            let set = gateway.patch(&id, json!({"upstream_auth": SECRET})).await;
            assert_eq!(set.status, 200, "{}", set.text());
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
        let token = Request::post("/workspaces/w/tokens", "{}");
        assert_eq!(gateway.as_operator(token).await.status, 201);
        let says = explained(gateway, "w").await;
        assert_eq!(says.contains("credential_withheld"), !goes_along, "{says}");
        // What ends the wait in either case.
        assert_eq!(
            gateway
                .patch("w", json!({"parent_id": null, "org": "acme"}))
                .await
                .status,
            200
        );
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
