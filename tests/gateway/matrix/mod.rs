//! Every credential kind × every route × (none, wrong, malformed, twice, another's, revoked, expired,
//! right). One table says who may; everything else is refused, in JSON, and changes nothing.

mod broken;
mod dry_runs;
mod roles;
mod table;

use std::collections::BTreeSet;

use a2a_gateway::control::ROUTES;
use serde_json::{Value, json};

use self::Who::*;
use self::broken::{bearer, broken};
use self::table::*;
pub(crate) use self::table::{TABLE, Who};
use crate::harness::watcher::handshake;
use crate::harness::{
    ADMIN, Agent, Answer, Builder, CALL, Connection, Gateway, Pair, Request, assert_refusal, card,
    until_holds,
};
use crate::on_embedded;

#[test]
fn the_table_has_every_route_once() {
    let table: BTreeSet<_> = TABLE.iter().map(|row| (row.0, row.1)).collect();
    let mut routes: BTreeSet<_> = ROUTES.iter().copied().collect();
    routes.insert(A2A);
    // What verifiers need is for everybody (`trust/`), and so are the files of a page (`tests/pages.rs`).
    let pages = ["/canvas", "/canvas/", "/canvas/{file}"];
    // These take a request without a credential, too (`catalogue`), or have callers of their own (`oauth`,
    // `revocations`).
    let apart = ["/search", "/agents", "/agents/{urn}", "/explore"];
    let is_apart = |path: &str| {
        path.starts_with("/.well-known/") || path.starts_with("/oauth/") || apart.contains(&path)
    };
    routes.retain(|(_, path)| !is_apart(path) && !pages.contains(path));
    assert_eq!(table.len(), TABLE.len(), "a route stands twice");
    assert_eq!(table, routes);
}

pub(crate) struct Case {
    pub(crate) gateway: Gateway,
    agent: Agent,
    /// In the order of [`ALL_CALLERS`], without the last.
    tokens: Vec<String>,
    revoked: Vec<(Who, String)>,
    expired: Vec<(Who, String)>,
    /// Tokens to delete, which outlive every refused deletion.
    doomed: [String; 3],
    /// A grant to take back, likewise.
    grant: String,
    /// A stop to release, likewise.
    stop: String,
    /// A delegation of the target's own.
    delegation: String,
    /// A workspace likewise.
    doomed_workspace: String,
    /// An entry of the target's inbox.
    entry: String,
    /// The workspace of the unused enrolment token.
    enrolling: String,
}

type Row = (&'static str, &'static str, u16, &'static [Who]);

impl Case {
    async fn new(pair: Pair) -> Self {
        // The whole table takes longer than a lease of 90 s where much else goes on.
        let builder = Builder::new(pair)
            .set("registry.heartbeat_ttl", "10m")
            .set("tokens.pair_ttl", "1h");
        Self::on(builder.start().await).await
    }

    pub(crate) async fn on(gateway: Gateway) -> Self {
        let agent = Agent::json(r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#).await;
        let mut case = Self {
            gateway,
            agent,
            tokens: vec![String::new(); ALL_CALLERS.len()],
            revoked: Vec::new(),
            expired: Vec::new(),
            doomed: Default::default(),
            grant: String::new(),
            stop: String::new(),
            delegation: String::new(),
            doomed_workspace: String::new(),
            entry: String::new(),
            enrolling: String::new(),
        };
        for (who, id, org) in [
            (Own, "target", "acme"),
            (Sibling, "sibling", "acme"),
            (Stranger, "stranger", "other"),
        ] {
            let enrolment = case.create(id, org).await;
            let url = case.agent.url();
            let token = case.gateway.register(id, &enrolment, &url, card(id)).await;
            case.set(who, token);
        }
        let user = |more: Value| {
            let mut body = json!({"user": "ada"});
            body.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            body
        };
        for (who, scope) in [
            (CanvasOrg, json!({"org": "acme"})),
            (CanvasOtherOrg, json!({"org": "other"})),
            (CanvasListed, json!({"workspaces": ["target"]})),
            (CanvasUnlisted, json!({"workspaces": ["sibling"]})),
            (CanvasNoOrg, json!({})),
        ] {
            let token = case.made("/canvas/tokens", user(scope.clone())).await;
            case.set(who, token["token"].as_str().unwrap().into());
            let mut brief = user(scope);
            brief["ttl_seconds"] = 1.into();
            let brief = case.made("/canvas/tokens", brief).await;
            case.expired
                .push((who, brief["token"].as_str().unwrap().into()));
        }
        for (who, path) in [
            (Own, "/workspaces/target/tokens"),
            (Org, "/orgs/acme/tokens"),
            (OtherOrg, "/orgs/other/tokens"),
        ] {
            let revoked = case.made(path, json!({})).await;
            let token = revoked["token"].as_str().unwrap().to_owned();
            let path = format!("{path}/{}", revoked["id"].as_str().unwrap());
            let request = Request::new("DELETE", path);
            assert_eq!(case.gateway.as_operator(request).await.status, 200);
            case.revoked.push((who, token));
        }
        for (who, org) in [(Org, "acme"), (OtherOrg, "other")] {
            let token = case.made(&format!("/orgs/{org}/tokens"), json!({})).await;
            case.set(who, token["token"].as_str().unwrap().into());
        }
        let subtree = json!({"subtree": "sibling"});
        let token = case.made("/orgs/acme/tokens", subtree).await;
        case.set(OtherSubtree, token["token"].as_str().unwrap().into());
        case.set(Operator, ADMIN.into());
        for (who, target) in [(PairHere, "target"), (PairElsewhere, "sibling")] {
            let path = format!("/registry/discover/{target}");
            let request = Request::get(path).bearer(case.token(Sibling));
            let found = case.gateway.call(&request).await.json();
            case.set(who, found["token"].as_str().unwrap().into());
        }
        let used = case.create("enrolled", "acme").await;
        let url = case.agent.url();
        let card = card("enrolled");
        case.gateway.register("enrolled", &used, &url, card).await;
        case.expired.push((Enrolment, used));
        case.renew_doomed().await;
        case.renew_enrolment().await;
        let told = case.request("POST", "/workspaces/{id}/notify", Own);
        let told = case.gateway.call(&told.bearer(case.token(Own))).await;
        assert_eq!(told.status, 200, "{}", told.text());
        let inbox = Request::get("/workspaces/target/activity");
        let inbox = case.gateway.as_operator(inbox).await.json();
        case.entry = inbox[0]["id"].as_str().unwrap().into();
        let path = "/workspaces/target/delegate";
        let request = Request::post(path, case.delegated()).bearer(case.token(Own));
        let delegated = case.gateway.call(&request).await.has(202);
        let id = delegated.json()["delegation_id"].as_str().unwrap().into();
        case.delegation = id;
        case
    }

    fn set(&mut self, who: Who, token: String) {
        self.tokens[who as usize] = token;
    }

    fn token(&self, who: Who) -> &str {
        &self.tokens[who as usize]
    }

    async fn create(&self, id: &str, org: &str) -> String {
        let workspace = json!({"id": id, "name": id, "org": org});
        self.gateway.create(workspace).await
    }

    async fn made(&self, path: &str, body: Value) -> Value {
        let request = Request::post(path, body.to_string());
        let answer = self.gateway.as_operator(request).await;
        assert_eq!(answer.status, 201, "{path}: {}", answer.text());
        answer.json()
    }

    async fn renew_doomed(&mut self) {
        for (n, (path, body)) in [
            ("/workspaces/target/tokens", json!({})),
            ("/orgs/acme/tokens", json!({})),
            ("/operators/tokens", json!({"role": "read"})),
        ]
        .into_iter()
        .enumerate()
        {
            let token = self.made(path, body).await;
            self.doomed[n] = token["id"].as_str().unwrap().into();
        }
        let pair = json!({"caller_id": "stranger", "target_id": "enrolled"});
        let grant = self.made("/grants", pair).await;
        self.grant = grant["id"].as_str().unwrap().into();
        let workspace = json!({"name": "doomed", "org": "acme"});
        let made = self.made("/workspaces", workspace).await;
        self.doomed_workspace = made["id"].as_str().unwrap().into();
        let request = Request::post("/stops", self.stopped());
        let made = self.gateway.call(&request.bearer(self.token(Org))).await;
        assert_eq!(made.status, 201, "{}", made.text());
        self.stop = made.json()["id"].as_str().unwrap().into();
    }

    /// To one that never comes up, so that no agent hears of it.
    fn delegated(&self) -> String {
        json!({"target_id": self.doomed_workspace, "task": "x"}).to_string()
    }

    /// Of calls that no case makes.
    fn stopped(&self) -> String {
        let scope = json!({"caller": "sibling", "target": self.doomed_workspace});
        json!({"scope": scope, "mode": "new", "reason": "a case"}).to_string()
    }

    async fn renew_enrolment(&mut self) {
        static NUMBER: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.enrolling = format!("enrolling-{number}");
        let token = self.create(&self.enrolling, "acme").await;
        // An operator lets it share the agent of the others.
        let url = json!({"url": self.agent.url()});
        assert_eq!(self.gateway.patch(&self.enrolling, url).await.status, 200);
        self.set(Enrolment, token);
    }

    /// A request that would succeed with the right credential.
    pub(crate) fn request(&self, method: &str, pattern: &str, who: Who) -> Request {
        let id = if who == Enrolment {
            &self.enrolling
        } else {
            "target"
        };
        let token_id = match pattern.split('/').nth(1) {
            Some("orgs") => &self.doomed[1],
            Some("operators") => &self.doomed[2],
            _ => &self.doomed[0],
        };
        let target = match (method, pattern) {
            ("DELETE", "/workspaces/{id}") => &self.doomed_workspace,
            _ => "target",
        };
        let path = pattern
            .replace("{id}", target)
            .replace("{org}", "acme")
            .replace("{token_id}", token_id)
            .replace("{activity_id}", &self.entry)
            .replace("{stream}", &"0".repeat(32))
            .replace("{grant_id}", &self.grant)
            .replace("{stop_id}", &self.stop)
            .replace("{delegation_id}", &self.delegation);
        let body = match (method, pattern) {
            A2A => CALL.to_owned(),
            ("POST", "/workspaces") => json!({"name": "made", "org": "acme"}).to_string(),
            ("POST", "/registry/register") => {
                json!({"id": id, "url": self.agent.url(), "agent_card": card(id)}).to_string()
            }
            ("POST", "/registry/heartbeat" | "/registry/deregister") => {
                json!({"workspace_id": id}).to_string()
            }
            ("POST", "/registry/drain") => {
                json!({"workspace_id": id, "instance_id": "one"}).to_string()
            }
            ("POST", "/registry/update-card") => {
                json!({"workspace_id": id, "agent_card": card(id)}).to_string()
            }
            ("PATCH", _) => json!({"role": "patched"}).to_string(),
            ("POST", "/registry/check-access") => {
                json!({"caller_id": "target", "target_id": "sibling"}).to_string()
            }
            ("POST", "/grants") => {
                json!({"caller_id": "enrolled", "target_id": "stranger"}).to_string()
            }
            ("POST", "/stops") => self.stopped(),
            ("POST", "/revocations") => json!({"credential": "none"}).to_string(),
            ("POST", "/policy/prove") => json!({"version": 1, "statements": []}).to_string(),
            ("POST", "/policy") => json!({"version": 1, "grants": []}).to_string(),
            ("POST", "/workspaces/{id}/activity/ack") => json!({"up_to": self.entry}).to_string(),
            ("POST", "/workspaces/{id}/activity/{activity_id}/reply") => {
                json!({"status": {"state": "working"}}).to_string()
            }
            ("POST", "/workspaces/{id}/notify") => json!({"message": "told"}).to_string(),
            ("POST", "/workspaces/{id}/delegate") => self.delegated(),
            ("POST", "/operators/tokens") => json!({"role": "read"}).to_string(),
            ("POST", "/canvas/tokens") => json!({"user": "ada", "org": "acme"}).to_string(),
            ("GET", "/ws") => return handshake("/ws"),
            ("POST", _) => "{}".to_owned(),
            _ => return Request::new(method, path),
        };
        let mut request = Request::post(path, body);
        request.method = method.into();
        request
    }

    /// The answer; of one that never ends, its head.
    pub(crate) async fn answer(&self, request: &Request) -> Answer {
        if !["/ws", "/events"].contains(&request.path.as_str()) {
            return self.gateway.call(request).await;
        }
        let mut connection = Connection::open(self.gateway.public).await;
        let wire = request.wire(&self.gateway.public.to_string());
        connection.send(&wire).await;
        connection.read_head().await.expect("a head")
    }

    async fn refused(&self, row: Row, who: Who, fields: &[String], status: u16, reason: &str) {
        let mut request = self
            .request(row.0, row.1, who)
            .field("X-Request-Id", "seen");
        for field in fields {
            request = request.field("Authorization", field);
        }
        let shown: Vec<_> = fields.iter().map(|f| &f[..f.len().min(20)]).collect();
        let what = format!("{} {} as {who:?} with {shown:?}", row.0, row.1);
        let answer = self.gateway.call(&request).await;
        assert_eq!(answer.status, status, "{what}: {}", answer.text());
        assert_refusal(&answer, &request.path, "seen", reason, &what);
        self.keeps_secrets(&answer, &what);
    }

    fn keeps_secrets(&self, answer: &Answer, what: &str) {
        let text = answer.text();
        for token in self.tokens.iter().filter(|token| !token.is_empty()) {
            assert!(!text.contains(token), "{what} repeats a credential");
        }
    }

    /// What a refused request could have changed.
    async fn state(&self) -> Value {
        let mut state = Vec::new();
        for path in [
            "/workspaces/target/tokens",
            "/orgs/acme/tokens",
            "/operators/tokens",
        ] {
            let answer = self.gateway.as_operator(Request::get(path)).await;
            let tokens = answer.json()["tokens"].as_array().unwrap().clone();
            state.extend(tokens.iter().map(|token| token["id"].clone()));
        }
        for path in [
            "/grants",
            "/stops",
            "/revocations",
            "/workspaces/target/activity",
        ] {
            state.push(self.gateway.as_operator(Request::get(path)).await.json());
        }
        let doomed = &self.doomed_workspace;
        for id in [
            "target",
            "sibling",
            "stranger",
            "enrolled",
            &self.enrolling,
            doomed,
        ] {
            let path = format!("/workspaces/{id}");
            state.push(self.gateway.as_operator(Request::get(path)).await.json());
        }
        state.into()
    }
}

on_embedded! {
    async fn whoever_may_not_is_refused_and_changes_nothing() {
        let case = Case::new(Pair::Embedded).await;
        // Five seconds of difference between clocks are forgiven.
        let last = bearer(&case.expired[4].1);
        let request = Request::get("/workspaces/target").field("Authorization", &last[0]);
        until_holds("it expires", async || case.gateway.call(&request).await.status == 401).await;
        let before = case.state().await;
        for (n, row) in TABLE.iter().enumerate() {
            case.refused(*row, Nobody, &[], 401, "unauthenticated").await;
            let spent = case.revoked.iter().chain(&case.expired);
            for (who, token) in spent {
                case.refused(*row, *who, &bearer(token), 401, "unauthenticated").await;
            }
            for (m, who) in ALL_CALLERS[..15].iter().enumerate() {
                let token = case.token(*who);
                // Over the callers each form meets each route, and over the routes each caller's token.
                for fields in broken(token).iter().skip((n + m) % 6).step_by(6) {
                    case.refused(*row, *who, fields, 401, "unauthenticated").await;
                }
                if row.3.contains(who) {
                    continue;
                }
                let (status, reason) = match who {
                    Enrolment => (401, "unauthenticated"),
                    _ => (403, "not_permitted"),
                };
                case.refused(*row, *who, &bearer(token), status, reason).await;
            }
        }
        assert_eq!(case.state().await, before, "a refused request changed something");
        assert_eq!(case.agent.count(), 0, "a refused request reached the agent");
        let log = case.gateway.log();
        let spent = case.revoked.iter().chain(&case.expired).map(|(_, token)| token);
        for token in case.tokens.iter().chain(spent).filter(|t| !t.is_empty()) {
            assert!(!log.contains(token.as_str()), "a credential is in the log");
        }
        case.gateway.assert_idle().await;
    }

    async fn whoever_may_succeeds_with_the_scheme_in_any_case() {
        let mut case = Case::new(Pair::Embedded).await;
        let mut calls = 0;
        for row in TABLE {
            for who in row.3 {
                for scheme in ["Bearer", "bearer", "BEARER "] {
                    let request = case.request(row.0, row.1, *who);
                    let credential = format!("{scheme} {}", case.token(*who));
                    let request = request.field("Authorization", credential);
                    let answer = case.answer(&request).await;
                    let what = format!("{} {} as {who:?}: {}", row.0, row.1, answer.text());
                    assert_eq!(answer.status, row.2, "{what}");
                    assert!(answer.field("x-request-id").is_some(), "{what}");
                    let media_type = match row.1 {
                        "/ws" => None,
                        "/events" => Some("text/event-stream"),
                        _ => Some("application/json"),
                    };
                    assert_eq!(answer.field("content-type"), media_type, "{what}");
                    calls += usize::from((row.0, row.1) == A2A);
                    assert_eq!(case.agent.count(), calls, "{what}");
                    if row.0 == "DELETE" {
                        case.renew_doomed().await;
                    }
                    if *who == Enrolment {
                        case.renew_enrolment().await;
                    }
                }
            }
        }
        assert_eq!(calls, 3 * WHO_CALLS.len());
    }

    async fn a_claim_other_than_the_proof_is_a_mismatch_on_every_route() {
        let case = Case::new(Pair::Embedded).await;
        for row in TABLE {
            for who in &ALL_CALLERS[..15] {
                if *who == Enrolment && row.1 != "/registry/register" {
                    continue;
                }
                // Refused before anyone looks at the claim.
                let pair = matches!(who, PairHere | PairElsewhere);
                if pair && !row.3.contains(who) {
                    continue;
                }
                let own = match who {
                    Own => "target",
                    Sibling | PairHere => "sibling",
                    Stranger => "stranger",
                    Enrolment => &case.enrolling,
                    _ => "",
                };
                let mut claims: Vec<Vec<&str>> = vec![vec!["nobody"], vec!["system:x"], vec!["TARGET"]];
                if own.is_empty() {
                    claims.push(vec!["target"]);
                } else {
                    claims.extend([vec![own, "nobody"], vec!["nobody", own]]);
                }
                for claim in claims {
                    let mut request = case.request(row.0, row.1, *who).bearer(case.token(*who));
                    request = request.field("X-Request-Id", "seen");
                    for id in &claim {
                        request = request.field("X-Workspace-ID", *id);
                    }
                    let answer = case.gateway.call(&request).await;
                    let what = format!("{} {} as {who:?} claiming {claim:?}", row.0, row.1);
                    assert_eq!(answer.status, 403, "{what}: {}", answer.text());
                    assert_refusal(&answer, &request.path, "seen", "caller_mismatch", &what);
                }
                // Deleting is shown elsewhere; here it would need a new token each time.
                if !own.is_empty() && row.3.contains(who) && row.0 != "DELETE" {
                    let request = case.request(row.0, row.1, *who).bearer(case.token(*who));
                    let request = request.field("X-Workspace-ID", own);
                    let answer = case.answer(&request).await;
                    assert_eq!(answer.status, row.2, "{} {}: {}", row.0, row.1, answer.text());
                }
            }
        }
        // Own and its sibling, with the claim that is true; the sibling by a pair token, too.
        assert_eq!(case.agent.count(), 3);
        let seen = case.agent.requests();
        let callers: Vec<_> = seen.iter().map(|r| r.field("x-workspace-id")).collect();
        assert_eq!(callers, [Some("target"), Some("sibling"), Some("sibling")]);
        for arrived in seen {
            let shown = arrived.fields("authorization");
            let caller = "Bearer ".len() + case.token(Own).len();
            assert!(shown.len() == 1 && shown[0].len() > caller, "{shown:?}: the gateway's own");
            assert!(!ALL_CALLERS.iter().take(ALL_CALLERS.len() - 1).any(|who| shown[0].contains(case.token(*who))));
        }
    }
}
