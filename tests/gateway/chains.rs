//! Chains of delegation (contract §19), from the person to the last agent.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::audit::execute;
use crate::harness::issuer::Key;
use crate::harness::{
    ADMIN, Agent, Answer, Builder, CALL, Gateway, Pair, Request, Seat, until_found,
    until_holds as until,
};
use crate::on_embedded;
use crate::stores::open_db;

const FIELD: &str = "X-A2A-On-Behalf-Of";

/// Siblings `a`, `b` and `c` of the org acme, and `far` of another org, which `c` may call.
struct House {
    gateway: Gateway,
    seats: Vec<Seat>,
}

fn claims(token: &str) -> Value {
    let claims = token.split('.').nth(1).unwrap();
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap()
}

fn hash(token: &str) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(token))
}

/// Returns the status, and the reason of a refusal.
fn judge(answer: &Answer) -> (u16, String) {
    match answer.status {
        200 => (200, String::new()),
        status => (status, answer.reason()),
    }
}

impl House {
    async fn new() -> Self {
        Self::with(&[]).await
    }

    async fn with(settings: &[(&str, &str)]) -> Self {
        let mut builder = Builder::new(Pair::Embedded);
        for (key, value) in settings {
            builder = builder.set(key, value);
        }
        let gateway = builder.start().await;
        let mut seats = Vec::new();
        for (id, org) in [
            ("a", "acme"),
            ("b", "acme"),
            ("c", "acme"),
            ("far", "other"),
        ] {
            let agent = Agent::json(r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#).await;
            let workspace = json!({"id": id, "name": id, "org": org});
            let card = json!({"name": id, "url": agent.url()});
            seats.push(gateway.settle(workspace, card, agent).await);
        }
        let grant = json!({"caller_id": "c", "target_id": "far"}).to_string();
        gateway
            .as_operator(Request::post("/grants", grant))
            .await
            .has(201);
        Self { gateway, seats }
    }

    fn seat(&self, id: &str) -> &Seat {
        let at = ["a", "b", "c", "far"].iter().position(|one| *one == id);
        &self.seats[at.unwrap()]
    }

    /// Makes a canvas token.
    async fn person(&self, more: Value) -> String {
        let mut body = json!({"user": "ada", "org": "acme"});
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        let made = self
            .gateway
            .as_operator(Request::post("/canvas/tokens", body.to_string()))
            .await;
        made.has(201).json()["token"].as_str().unwrap().to_owned()
    }

    async fn call(&self, token: &str, target: &str, chain: Option<&str>) -> Answer {
        self.send(token, target, chain, |request| request).await
    }

    async fn send(
        &self,
        token: &str,
        target: &str,
        chain: Option<&str>,
        change: impl FnOnce(Request) -> Request,
    ) -> Answer {
        let mut request = Request::post(format!("/workspaces/{target}/a2a"), CALL).bearer(token);
        if let Some(chain) = chain {
            request = request.field(FIELD, chain);
        }
        self.gateway.call(&change(request)).await
    }

    /// Returns the chain token of the last call that an agent got.
    fn received(&self, id: &str) -> Option<String> {
        let requests = self.seat(id).agent.requests();
        requests.last().unwrap().field(FIELD).map(str::to_owned)
    }

    /// Calls as a workspace on a chain, and returns the chain token that the target gets.
    async fn hop(&self, from: &str, to: &str, chain: &str) -> String {
        let answer = self.call(&self.seat(from).token, to, Some(chain)).await;
        assert_eq!(answer.status, 200, "{from} to {to}: {}", answer.text());
        self.received(to).unwrap()
    }

    async fn refused(&self, from: &str, to: &str, chain: &str) -> (u16, String) {
        let answer = self.call(&self.seat(from).token, to, Some(chain)).await;
        judge(&answer)
    }

    fn key(&self, kid: &Value) -> Key {
        Key::stolen(&self.gateway.dir.join("keys").join("active.pem"), kid)
    }
}

on_embedded! {
    async fn the_last_agent_learns_for_whom_it_acts_and_by_whom_it_was_asked() {
        let house = House::new().await;
        let person = house.person(json!({})).await;
        assert_eq!(house.call(&person, "a", None).await.status, 200);
        let to_a = house.received("a").unwrap();
        let first = claims(&to_a);
        assert_eq!((&first["aud"], &first["sub"]), (&json!("a"), &json!("canvas:ada")));
        assert_eq!((&first["sub_id"]["sub"], &first["org"]), (&json!("ada"), &json!("acme")));
        assert_eq!((&first["sub_id"]["format"], &first["sub_id"]["iss"]), (&json!("iss_sub"), &first["iss"]));
        assert_eq!((&first["scope"], &first["token_use"]), (&json!("a2a:chain"), &json!("context")));
        assert!(first.get("act").is_none());
        let (began, exp) = (first["began"].as_i64().unwrap(), first["exp"].as_i64().unwrap());
        assert_eq!(exp - began, 8 * 3600);
        let requests = house.seat("a").agent.requests();
        let caller = requests.last().unwrap().field("Authorization").unwrap();
        let caller = claims(caller.strip_prefix("Bearer ").unwrap());
        assert_eq!((&caller["sub"], &caller["tth"]), (&json!("canvas:ada"), &json!(hash(&to_a))));

        let to_b = house.hop("a", "b", &to_a).await;
        let third = claims(&house.hop("b", "c", &to_b).await);
        let second = claims(&to_b);
        assert_eq!(second["act"], json!({"sub": "a"}));
        assert_eq!(third["act"], json!({"sub": "b", "act": {"sub": "a"}}));
        for name in ["sub", "sub_id", "org", "txn", "began", "exp"] {
            assert_eq!((&second[name], &third[name]), (&first[name], &first[name]), "{name}");
        }
        let keys = |one: &Value| one["rk"].as_array().unwrap().len();
        assert_eq!((keys(&first), keys(&second), keys(&third)), (2, 3, 4));
        assert!(third.get("link").is_none() && third.get("shown").is_none());
        // The records join: what one handed in is what the one before was sent.
        let read = async || {
            let page = house.gateway.admin_get("/audit?method=send_message&limit=100").await.unwrap().json();
            let records = page["records"].as_array().cloned().unwrap_or_default();
            let of = |target: &str| records.iter().find(|one| one["target"] == target).cloned();
            Some((of("a")?, of("b")?, of("c")?))
        };
        let txn = format!("/audit?txn={}", first["txn"].as_str().unwrap());
        let (one, two, three) = until_found("the records are there", read).await;
        for (detail, depth) in [(&one, 0), (&two, 1), (&three, 2)] {
            assert_eq!((&detail["root"], &detail["txn"]), (&json!("canvas:ada"), &first["txn"]), "{detail}");
            assert_eq!(detail["depth"], depth);
        }
        assert_eq!((one.get("link"), &one["chain"]), (None, &two["link"]));
        assert_eq!(two["chain"], three["link"]);
        let found = house.gateway.admin_get(&txn).await.unwrap().json();
        assert_eq!(found["records"].as_array().unwrap().len(), 3, "{found}");
        let path = format!("/audit/chain?request_id={}", two["request_id"].as_str().unwrap());
        let tree = house.gateway.admin_get(&path).await.unwrap().json();
        let (of_a, of_b) = (&tree["calls"][0], &tree["calls"][0]["calls"][0]);
        let targets = [of_a, of_b, &of_b["calls"][0]].map(|one| one["target"].as_str().unwrap());
        assert_eq!((targets, &tree["root"]), (["a", "b", "c"], &json!("canvas:ada")), "{tree}");
        assert_eq!((&of_b["tampered"], &tree["txn"]), (&json!(false), &first["txn"]));
        // A refused hop stands where it was tried, and a changed record is named.
        assert_eq!(house.refused("b", "far", &to_b).await.0, 403);
        let db = open_db(&house.gateway.sql_url());
        assert_eq!(execute(&db, "UPDATE structure_events SET status = 201 WHERE target = 'c' AND txn IS NOT NULL").await, 1);
        let read = async || {
            let tree = house.gateway.admin_get(&path).await.unwrap().json();
            let calls = tree["calls"][0]["calls"][0]["calls"].as_array()?.clone();
            (calls.len() == 2).then_some(calls)
        };
        let calls = until_found("the refused hop", read).await;
        let seen = |one: &Value| (one["target"].clone(), one["outcome"].clone(), one["tampered"].clone());
        assert_eq!(seen(&calls[0]), (json!("c"), json!("answered"), json!(true)));
        assert_eq!(seen(&calls[1]), (json!("far"), json!("not_permitted"), json!(false)));
        for (query, status) in [("request_id=none", 404), ("", 400), ("request_id=r&caller=a", 400)] {
            let answer = house.gateway.admin_get(&format!("/audit/chain?{query}")).await.unwrap();
            assert_eq!(answer.status, status, "{query}");
        }
        // One signature for a chain and a target.
        assert_eq!(house.hop("a", "b", &to_a).await, house.hop("a", "b", &to_a).await);
    }

    async fn a_call_without_a_chain_has_none_unless_its_target_asks() {
        let house = House::new().await;
        let (a, person) = (house.seat("a").token.clone(), house.person(json!({})).await);
        let ask = async |token: &str| {
            assert_eq!(house.call(token, "b", None).await.status, 200);
            house.received("b").map(|token| claims(&token))
        };
        assert_eq!(ask(&a).await, None);
        assert_eq!(ask(ADMIN).await, None);
        for (mode, of_agent, of_person) in [("always", true, true), ("never", false, false), ("person", false, true)] {
            house.gateway.patch("b", json!({"chain": mode})).await.has(200);
            assert_eq!(ask(&a).await.is_some(), of_agent, "{mode}");
            assert_eq!(ask(&person).await.is_some(), of_person, "{mode}");
        }
        house.gateway.patch("b", json!({"chain": "always"})).await.has(200);
        let own = ask(&a).await.unwrap();
        assert_eq!((&own["sub"], own.get("sub_id")), (&json!("a"), None));
        assert_eq!(house.gateway.view("b").await["chain"], "always");
        let wrong = house.gateway.patch("b", json!({"chain": "maybe"})).await;
        assert_eq!(wrong.status, 400, "{}", wrong.text());
    }

    async fn a_run_has_one_txn_on_every_way() {
        let house = House::new().await;
        let person = house.person(json!({})).await;
        let named = CALL.replace("\"params\":{", r#""params":{"metadata":{"run_id":"r-1"},"#);
        let txn = async |token: &str, target: &str, body: &str| {
            let request = Request::post(format!("/workspaces/{target}/a2a"), body).bearer(token);
            house.gateway.call(&request).await.has(200);
            claims(&house.received(target).unwrap())["txn"].clone()
        };
        let first = txn(&person, "a", &named).await;
        assert_eq!(first.as_str().unwrap().len(), 22, "128 bits");
        assert_eq!(txn(&person, "b", &named).await, first);
        let again = house.person(json!({})).await;
        assert_eq!(txn(&again, "a", &named).await, first, "of the person, not of the token");
        let other = house.person(json!({"user": "bob"})).await;
        assert_ne!(txn(&other, "a", &named).await, first);
        assert_ne!(txn(&person, "a", CALL).await, txn(&person, "a", CALL).await);
    }

    async fn what_is_handed_in_is_a_chain_token_for_its_caller() {
        let house = House::new().await;
        let person = house.person(json!({})).await;
        house.call(&person, "a", None).await.has(200);
        let chain = house.received("a").unwrap();
        let published = house.gateway.call(&Request::get("/.well-known/jwks.json")).await.json();
        let key = house.key(&published["keys"][0]["kid"]);
        let sign = |change: Value| {
            let mut all = claims(&chain);
            for (name, value) in change.as_object().unwrap() {
                match value {
                    Value::Null => all.as_object_mut().unwrap().remove(name),
                    value => all.as_object_mut().unwrap().insert(name.clone(), value.clone()),
                };
            }
            key.sign_as("a2a-chain+jwt", &key.kid, &all)
        };
        assert_eq!(house.refused("a", "b", &sign(json!({}))).await.0, 200);
        let requests = house.seat("a").agent.requests();
        let caller_token = requests.last().unwrap().field("Authorization").unwrap()[7..].to_owned();
        let pair = house.gateway.call(&Request::get("/registry/discover/b").bearer(&house.seat("a").token)).await;
        let pair = pair.json()["token"].as_str().unwrap().to_owned();
        let now = jsonwebtoken::get_current_timestamp();
        let other = Key::new("k-other").sign_as("a2a-chain+jwt", &key.kid, &claims(&chain));
        let (head, rest) = chain.split_once('.').unwrap();
        let (body, signature) = rest.split_once('.').unwrap();
        let deep = (0..40).fold(json!({"sub": "a"}), |act, _| json!({"sub": "a", "act": act}));
        let long = "x".repeat(4097);
        let swapped = format!("{head}.{}.{signature}", URL_SAFE_NO_PAD.encode(
            claims(&chain).to_string().replace("canvas:ada", "canvas:eve")));
        for (name, token, why) in [
            ("nothing", "", "type"),
            ("text", "ada", "type"),
            ("a caller token", &*caller_token, "type"),
            ("a pair token", &*pair, "type"),
            ("a canvas token", &*person, "type"),
            ("too long", &*long, "form"),
            ("a changed root", &*swapped, "signature"),
            ("without a signature", &*format!("{head}.{body}."), "signature"),
            ("another key", &*other, "signature"),
            ("another gateway", &*sign(json!({"iss": "https://other.test"})), "signature"),
            ("another agent's", &*sign(json!({"aud": "b"})), "audience"),
            ("two audiences", &*sign(json!({"aud": ["a", "b"]})), "audience"),
            ("another use", &*sign(json!({"token_use": "call"})), "use"),
            ("no use", &*sign(json!({"token_use": null})), "use"),
            ("another scope", &*sign(json!({"scope": "a2a"})), "use"),
            ("no run", &*sign(json!({"txn": null})), "use"),
            ("no begin", &*sign(json!({"began": null})), "use"),
            ("a foreign seal", &*sign(json!({"sealed": "v1.x.y"})), "use"),
        ] {
            let answer = house.call(&house.seat("a").token, "b", Some(token)).await;
            assert_eq!((answer.status, answer.reason()), (403, "chain_invalid".into()), "{name}: {}", answer.text());
            assert_eq!(answer.fact("why").as_deref(), Some(why), "{name}: {}", answer.text());
        }
        let expired = sign(json!({"exp": now - 60, "iat": now - 120, "nbf": now - 120}));
        assert_eq!(house.refused("a", "b", &expired).await, (403, "chain_expired".into()));
        assert_eq!(house.refused("a", "b", &sign(json!({"act": deep}))).await, (508, "loop_detected".into()));
        // Handed to another, or to no workspace.
        assert_eq!(house.refused("c", "b", &chain).await, (403, "chain_invalid".into()));
        for token in [&*person, ADMIN] {
            let answer = house.call(token, "b", Some(&chain)).await;
            assert_eq!((answer.status, answer.reason()), (403, "chain_invalid".into()));
        }
        let twice = |request: Request| request.field(FIELD, &*chain);
        let answer = house.send(&house.seat("a").token, "b", Some(&chain), twice).await;
        assert_eq!((answer.status, answer.reason()), (403, "chain_invalid".into()));
        // A link that may not call the next: `far` is of another org.
        let moved = sign(json!({"act": {"sub": "far"}}));
        assert_eq!(house.refused("a", "b", &moved).await, (403, "chain_revoked".into()));
        let unknown = sign(json!({"act": {"sub": "pairwise:x"}}));
        assert_eq!(house.refused("a", "b", &unknown).await, (403, "chain_invalid".into()));
        // It is no credential, and never passed on as it came.
        assert_eq!(house.call(&chain, "b", None).await.status, 401);
        house.hop("a", "b", &chain).await;
        let requests = house.seat("b").agent.requests();
        assert_ne!(requests.last().unwrap().field(FIELD), Some(&*chain));
        assert!(!house.gateway.log().contains(&chain[..40]));
    }

    async fn what_revokes_a_root_a_run_or_a_link_ends_the_chain() {
        let house = House::new().await;
        let begin = async |user: &str| {
            let person = house.person(json!({"user": user})).await;
            house.call(&person, "a", None).await.has(200);
            let chain = house.received("a").unwrap();
            (claims(&chain), house.hop("a", "b", &chain).await)
        };
        let revoked = async |chain: &str| {
            let is_revoked = async || house.refused("b", "c", chain).await == (403, "chain_revoked".into());
            until("the chain is revoked", is_revoked).await;
        };
        let revoke = async |body: Value| {
            house.gateway.as_operator(Request::post("/revocations", body.to_string())).await.has(201);
        };
        let (_, other) = begin("bob").await;
        let (first, chain) = begin("ada").await;
        revoke(json!({"root": {"iss": first["iss"], "sub": "ada"}})).await;
        revoked(&chain).await;
        let (first, chain) = begin("eve").await;
        revoke(json!({"run": first["txn"]})).await;
        revoked(&chain).await;
        // The token of a link.
        let (_, chain) = begin("kim").await;
        let tokens = house.gateway.as_operator(Request::get("/workspaces/a/tokens")).await.json();
        let id = tokens["tokens"][0]["id"].as_str().unwrap_or_else(|| panic!("{tokens}"));
        house.hop("b", "c", &chain).await;
        house.gateway.as_operator(Request::new("DELETE", format!("/workspaces/a/tokens/{id}"))).await.has(200);
        revoked(&chain).await;
        revoked(&other).await;
    }

    async fn a_link_that_may_call_no_more_ends_the_chain() {
        let house = House::new().await;
        let person = house.person(json!({})).await;
        house.call(&person, "a", None).await.has(200);
        let chain = house.received("a").unwrap();
        let chain = house.hop("a", "b", &chain).await;
        let state = async |path: &str| {
            house.gateway.as_operator(Request::post(path, "")).await.has(200);
        };
        for (stop, resume) in [("/workspaces/a/pause", "/workspaces/a/resume")] {
            state(stop).await;
            let is_revoked = async || house.refused("b", "c", &chain).await == (403, "chain_revoked".into());
            until("the chain is revoked", is_revoked).await;
            state(resume).await;
            until("the link is back", async || house.refused("b", "c", &chain).await.0 == 200).await;
        }
        let stop = json!({"scope": {"workspace": "a"}, "mode": "new", "reason": "test"}).to_string();
        let made = house.gateway.as_operator(Request::post("/stops", stop)).await;
        assert_eq!(made.status, 201, "{}", made.text());
        let is_revoked = async || house.refused("b", "c", &chain).await == (403, "chain_revoked".into());
        until("the chain is revoked", is_revoked).await;
    }

    async fn what_is_kept_for_one_person_never_reaches_another() {
        let house = House::new().await;
        let mut chains = Vec::new();
        for user in ["ada", "bob"] {
            let person = house.person(json!({"user": user})).await;
            house.call(&person, "a", None).await.has(200);
            chains.push(house.received("a").unwrap());
        }
        let a = &house.seat("a").token;
        let keyed = async |chain: Option<&str>| {
            let answer = house.send(a, "b", chain, |request| request.field("Idempotency-Key", "k-1")).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            answer.field("idempotent-replay").is_some()
        };
        assert!(!keyed(Some(&chains[0])).await);
        assert!(keyed(Some(&chains[0])).await);
        assert!(!keyed(Some(&chains[1])).await, "another root");
        assert!(!keyed(None).await, "the agent itself");
        assert_eq!(house.seat("b").agent.requests().len(), 3);
    }

    async fn a_target_may_require_a_root() {
        let rules = json!([{"targets": ["b"], "root": "person"}, {"targets": ["c"], "root": "group:payers"},
            {"targets": ["org:other"], "root": "org:acme"}]);
        let house = House::with(&[("access.require", &rules.to_string())]).await;
        let refused = (403, "root_required".to_owned());
        let ask = async |from: &str, to: &str, chain: Option<&str>| {
            let answer = house.call(from, to, chain).await;
            judge(&answer)
        };
        let a = house.seat("a").token.clone();
        assert_eq!(ask(&a, "b", None).await, refused);
        assert_eq!(ask(ADMIN, "b", None).await, refused);
        let ada = house.person(json!({"groups": ["payers", "others"]})).await;
        let bob = house.person(json!({"user": "bob"})).await;
        assert_eq!(ask(&bob, "b", None).await.0, 200);
        assert_eq!(ask(&bob, "c", None).await, refused);
        assert_eq!(ask(&ada, "c", None).await.0, 200);
        for (person, status) in [(&ada, 200), (&bob, 403)] {
            house.call(person, "a", None).await.has(200);
            let chain = house.received("a").unwrap();
            assert_eq!(ask(&a, "b", Some(&chain)).await.0, 200);
            assert_eq!(ask(&a, "c", Some(&chain)).await.0, status);
        }
        house.call(&ada, "a", None).await.has(200);
        assert_eq!(claims(&house.received("a").unwrap())["groups"], json!(["payers"]), "those that a rule names");
        // The card may be read.
        let card = Request::get("/workspaces/b/a2a").bearer(&a);
        assert_eq!(house.gateway.call(&card).await.status, 200);
        let explained = house.gateway.admin_get("/explain?caller=a&target=b").await.unwrap();
        assert!(explained.text().contains("root_required"), "{}", explained.text());
    }

    async fn the_root_may_have_to_reach_the_target_itself() {
        let house = House::with(&[("access.chain", "ends")]).await;
        let narrow = house.person(json!({"workspaces": ["a", "b"]})).await;
        house.call(&narrow, "a", None).await.has(200);
        let chain = house.received("a").unwrap();
        assert_eq!(house.refused("a", "b", &chain).await.0, 200);
        assert_eq!(house.refused("a", "c", &chain).await, (403, "not_permitted".into()));
    }

    async fn another_org_learns_neither_the_person_nor_the_agents_inside() {
        let house = House::new().await;
        let person = house.person(json!({})).await;
        house.call(&person, "b", None).await.has(200);
        let chain = house.received("b").unwrap();
        let inside = house.hop("b", "c", &chain).await;
        let outside = house.hop("c", "far", &inside).await;
        let seen = claims(&outside);
        assert!(seen["sub"].as_str().unwrap().starts_with("pairwise:"), "{seen}");
        assert_eq!(seen["act"], json!({"sub": "c", "act": {"sub": "org:acme"}}));
        for hidden in ["sub_id", "rk", "workspaces"] {
            assert!(seen.get(hidden).is_none(), "{hidden}: {seen}");
        }
        assert!(!seen.to_string().contains("ada"));
        assert_eq!(seen["txn"], claims(&inside)["txn"]);
        // It is checked, owned and revoked by what it hides.
        let again = house.hop("far", "far", &outside).await;
        assert!(!claims(&again).to_string().contains("ada"));
        let root = json!({"root": {"iss": claims(&inside)["iss"], "sub": "ada"}}).to_string();
        house.gateway.as_operator(Request::post("/revocations", root)).await.has(201);
        let is_revoked = async || house.refused("far", "far", &outside).await == (403, "chain_revoked".into());
        until("the chain is revoked", is_revoked).await;
    }

    async fn an_agent_that_polls_finds_the_chain_in_its_inbox() {
        let house = House::with(&[("chain.ttl", "4s")]).await;
        let poller = json!({"id": "p", "name": "p", "org": "acme", "delivery_mode": "poll"});
        let enrolment = house.gateway.create(poller).await;
        let card = json!({"name": "p"});
        let body = json!({"id": "p", "delivery_mode": "poll", "agent_card": card}).to_string();
        let registered = house.gateway.call(&Request::post("/registry/register", body).bearer(&enrolment)).await.has(200);
        let token = registered.json()["token"].as_str().unwrap().to_owned();
        let person = house.person(json!({})).await;
        house.call(&person, "p", None).await.has(200);
        house.call(&person, "a", None).await.has(200);
        let chain = house.received("a").unwrap();
        house.call(&house.seat("a").token, "p", Some(&chain)).await.has(200);
        house.call(&house.seat("a").token, "p", None).await.has(200);
        let read = async |token: &str| {
            let read = Request::get("/workspaces/p/activity").bearer(token);
            let mut entries = house.gateway.call(&read).await.has(200).json().as_array().unwrap().clone();
            entries.sort_by_key(|entry| entry["seq"].as_u64());
            entries
        };
        let chains = async || -> Vec<Value> {
            read(&token).await.iter().map(|one| one["on_behalf_of"].as_str().map_or(Value::Null, claims)).collect()
        };
        let [of_person, of_agent, of_none] = <[Value; 3]>::try_from(chains().await).unwrap();
        assert_eq!((&of_person["sub"], &of_person["aud"], of_person.get("act")), (&json!("canvas:ada"), &json!("p"), None));
        assert_eq!((&of_agent["sub"], &of_agent["act"]), (&json!("canvas:ada"), &json!({"sub": "a"})));
        assert_eq!((of_none, &of_agent["txn"]), (Value::Null, &claims(&chain)["txn"]));
        // It is the poller's to hand in.
        let own = read(&token).await[1]["on_behalf_of"].as_str().unwrap().to_owned();
        house.call(&token, "b", Some(&own)).await.has(200);
        assert_eq!(claims(&house.received("b").unwrap())["act"], json!({"sub": "p", "act": {"sub": "a"}}));
        // Others who read the inbox have none, and what is dead says so.
        assert!(read(ADMIN).await.iter().all(|one| one.get("on_behalf_of").is_none() && one.get("chain").is_none()));
        let is_over = async || read(&token).await[1]["on_behalf_of_refused"] == "chain_expired";
        until("the chain has ended", is_over).await;
    }

    async fn deferred_work_is_for_its_person_or_is_not_sent() {
        let house = House::with(&[("chain.ttl", "3s")]).await;
        let person = house.person(json!({})).await;
        house.call(&person, "a", None).await.has(200);
        let chain = house.received("a").unwrap();
        let task = json!({"target_id": "b", "task": "later"}).to_string();
        let delegate = async || {
            let request = Request::post("/workspaces/a/delegate", &task).bearer(&house.seat("a").token);
            let made = house.gateway.call(&request.field(FIELD, &*chain)).await;
            assert_eq!(made.status, 202, "{}", made.text());
            made.json()["delegation_id"].as_str().unwrap().to_owned()
        };
        delegate().await;
        until("the delegation is sent", async || !house.seat("b").agent.requests().is_empty()).await;
        let sent = claims(&house.received("b").unwrap());
        assert_eq!((&sent["sub"], &sent["act"]), (&json!("canvas:ada"), &json!({"sub": "a"})));
        assert_eq!(sent["txn"], claims(&chain)["txn"]);
        // It waits until the chain has ended.
        house.gateway.as_operator(Request::post("/workspaces/b/pause", "")).await.has(200);
        let waits = delegate().await;
        let is_over = async || house.refused("a", "c", &chain).await == (403, "chain_expired".into());
        until("the chain has ended", is_over).await;
        house.gateway.as_operator(Request::post("/workspaces/b/resume", "")).await.has(200);
        let path = format!("/workspaces/a/delegations/{waits}");
        let is_over = async || {
            let request = Request::get(&path).bearer(&house.seat("a").token);
            house.gateway.call(&request).await.text().contains("chain_expired")
        };
        until("the delegation is over", is_over).await;
        assert_eq!(house.seat("b").agent.requests().len(), 1);
    }
}
