//! CanCommunicate through real calls (contract §2.1): who may, by which rule, and that who may not
//! learns nothing of whom they may not reach.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::harness::{
    ADMIN, Agent, Answer, Builder, CALL, Gateway, Pair, Request, Seat, assert_refusal, card,
};
use crate::on_embedded;
use crate::tokens::token;

/// Id, parent, org. Two lines below one root, a second root, and the same names in another org.
const TREE: &[(&str, &str, &str)] = &[
    ("root", "", "acme"),
    ("root2", "", "acme"),
    ("lead", "root", "acme"),
    ("ops", "root", "acme"),
    ("dev", "lead", "acme"),
    ("qa", "lead", "acme"),
    ("sre", "ops", "acme"),
    ("intern", "dev", "acme"),
    ("o-root", "", "other"),
    ("o-lead", "o-root", "other"),
    ("free", "", ""),
    ("free2", "", ""),
];

/// Caller, target, the rule in `direct`, the rule in `any`. Empty: denied.
const PAIRS: &[(&str, &str, &str, &str)] = &[
    ("dev", "dev", "self", "self"),
    ("root", "root", "self", "self"),
    ("root", "lead", "parent", "parent"),
    ("lead", "dev", "parent", "parent"),
    ("lead", "root", "child", "child"),
    ("intern", "dev", "child", "child"),
    ("dev", "qa", "sibling", "sibling"),
    ("lead", "ops", "sibling", "sibling"),
    ("root", "root2", "root_sibling", "root_sibling"),
    ("root2", "root", "root_sibling", "root_sibling"),
    ("free", "free2", "root_sibling", "root_sibling"),
    ("root", "dev", "", "ancestor"),
    ("root", "intern", "", "ancestor"),
    ("lead", "intern", "", "ancestor"),
    ("dev", "root", "", "descendant"),
    ("intern", "root", "", "descendant"),
    ("intern", "lead", "", "descendant"),
    // Cousins, uncle and nephew, and a root that is not one's own.
    ("dev", "sre", "", ""),
    ("sre", "intern", "", ""),
    ("ops", "dev", "", ""),
    ("dev", "ops", "", ""),
    ("intern", "qa", "", ""),
    ("qa", "intern", "", ""),
    ("root2", "lead", "", ""),
    ("lead", "root2", "", ""),
    // No relation crosses orgs, and no org is one, too.
    ("root", "o-root", "", ""),
    ("o-root", "root", "", ""),
    ("lead", "o-lead", "", ""),
    ("o-lead", "root", "", ""),
    ("root", "free", "", ""),
    ("free", "root", "", ""),
];

/// A root of an org with its agent.
pub(crate) async fn seat_in(gateway: &Gateway, id: &str, org: &str, agent: Agent) -> Seat {
    let workspace = json!({"id": id, "name": id, "org": org});
    let enrolment = gateway.create(workspace).await;
    let url = agent.url();
    let token = gateway.register(id, &enrolment, &url, card(id)).await;
    let id = id.to_owned();
    Seat { id, token, agent }
}

struct Tree {
    gateway: Gateway,
    agent: Agent,
    tokens: HashMap<&'static str, String>,
}

impl Tree {
    async fn new(pair: Pair, lineage: &str) -> Self {
        let builder = Builder::new(pair).set("access.lineage", lineage);
        let gateway = builder.start().await;
        let agent = Agent::json(r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#).await;
        let mut tokens = HashMap::new();
        for (id, parent, org) in TREE {
            let mut workspace = json!({"id": id, "name": id});
            for (name, value) in [("parent_id", parent), ("org", org)] {
                if !value.is_empty() {
                    workspace[name] = (*value).into();
                }
            }
            let enrolment = gateway.create(workspace).await;
            let url = agent.url();
            let token = gateway.register(id, &enrolment, &url, card(id)).await;
            tokens.insert(*id, token);
        }
        Self {
            gateway,
            agent,
            tokens,
        }
    }

    async fn send(&self, caller: &str, target: &str) -> Answer {
        let id = format!("{caller}.to.{target}.");
        self.send_as(&self.tokens[caller], target, &id).await
    }

    async fn send_as(&self, token: &str, target: &str, id: &str) -> Answer {
        let request = Request::post(format!("/workspaces/{target}/a2a"), CALL);
        let request = request.bearer(token).field("X-Request-Id", id);
        self.gateway.call(&request).await
    }

    async fn line(&self, id: &str) -> Value {
        let mut lines = self.gateway.access_lines(id).await;
        assert_eq!(lines.len(), 1, "one record: {lines:?}");
        lines.remove(0)
    }

    /// Every pair, twice: the second time from memory.
    async fn check(
        &self,
        rule_of: impl Fn(&(&str, &str, &'static str, &'static str)) -> &'static str,
    ) {
        for pair in PAIRS {
            let (caller, target, rule) = (pair.0, pair.1, rule_of(pair));
            let before = self.agent.count();
            let answer = self.send(caller, target).await;
            let what = format!("{caller} to {target}");
            let id = format!("{caller}.to.{target}.");
            let line = self.line(&id).await;
            assert_eq!([&line["caller"], &line["callee"]], [caller, target]);
            if rule.is_empty() {
                assert_refusal(&answer, "/a2a", &id, "not_permitted", &what);
                assert_eq!(self.agent.count(), before, "{what} reached the agent");
                assert_eq!(line["outcome"], "not_permitted", "{what}: {line}");
                let named = line.get("rule").filter(|rule| !rule.is_null());
                assert_eq!(named, None, "{what}: {line}");
            } else {
                assert_eq!(answer.status, 200, "{what}: {}", answer.text());
                let seen = self.agent.take();
                assert_eq!(seen.field("x-workspace-id"), Some(caller), "{what}");
                assert_eq!(line["rule"], rule, "{what}: {line}");
                assert_eq!(line["outcome"], "answered", "{what}: {line}");
            }
        }
        for pair in PAIRS {
            let status = if rule_of(pair).is_empty() { 403 } else { 200 };
            let answer = self.send_as(&self.tokens[pair.0], pair.1, "again").await;
            assert_eq!(answer.status, status, "{} to {} again", pair.0, pair.1);
        }
    }

    async fn move_below(&self, id: &str, parent: &str) -> Answer {
        let body =
            json!({"id": id, "url": self.agent.url(), "agent_card": card(id), "parent_id": parent});
        let request = Request::post("/registry/register", body.to_string());
        self.gateway.as_operator(request).await
    }
}

/// The answer with the names of this one exchange taken out.
fn anonymous(answer: &Answer, names: &[&str]) -> (u16, Vec<String>, String) {
    let mut body = answer.text();
    for name in names {
        body = body.replace(name, "<name>");
    }
    let own = ["x-request-id", "content-length", "date"];
    let fields = answer.fields.iter();
    let fields = fields.filter(|(name, _)| !own.contains(&&*name.to_lowercase()));
    let fields = fields.map(|(name, value)| format!("{name}: {value}"));
    (answer.status, fields.collect(), body)
}

on_embedded! {
    async fn a_direct_relation_is_needed_by_default() {
        Tree::new(Pair::Embedded, "direct").await.check(|pair| pair.2).await;
    }

    async fn with_any_lineage_ancestors_and_descendants_talk_and_nobody_else() {
        Tree::new(Pair::Embedded, "any").await.check(|pair| pair.3).await;
    }

    async fn a_denied_target_looks_like_one_that_does_not_exist() {
        let tree = Tree::new(Pair::Embedded, "direct").await;
        tree.gateway.create(json!({"id": "asleep", "name": "a", "org": "other"})).await;
        let unknown = tree.send("dev", "no-such-workspace").await;
        let unknown = anonymous(&unknown, &["dev.to.no-such-workspace."]);
        for target in ["sre", "o-root", "o-lead", "free", "root2", "asleep", "another-unknown"] {
            let answer = tree.send("dev", target).await;
            let id = format!("dev.to.{target}.");
            assert_eq!(anonymous(&answer, &[&id]), unknown, "{target}");
            assert!(!answer.text().replace(&id, "").contains(target), "{target} is repeated");
        }
        for path in ["/workspaces/", "/registry/discover/"] {
            let mut seen = Vec::new();
            for target in ["sre", "o-root", "asleep", "no-such-workspace"] {
                let request = Request::get(format!("{path}{target}")).bearer(&tree.tokens["dev"]);
                let answer = tree.gateway.call(&request.field("X-Request-Id", "seen")).await;
                seen.push(anonymous(&answer, &[]));
            }
            assert!(seen.iter().all(|one| *one == seen[0] && one.0 == 403), "{seen:?}");
        }
        // Whoever may know is told.
        let request = Request::post("/workspaces/no-such-workspace/a2a", CALL);
        let answer = tree.gateway.as_operator(request.field("X-Request-Id", "seen")).await;
        assert_refusal(&answer, "/a2a", "seen", "workspace_not_found", "an operator");
        assert_eq!(tree.agent.count(), 0);
    }

    async fn a_moved_workspace_is_cut_off_and_connected_at_once() {
        let tree = Tree::new(Pair::Embedded, "direct").await;
        for (caller, target, status) in [("dev", "qa", 200), ("dev", "sre", 403), ("intern", "dev", 200)] {
            assert_eq!(tree.send(caller, target).await.status, status);
        }
        let answer = tree.move_below("dev", "ops").await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        for (caller, target, status) in [
            ("dev", "qa", 403), ("qa", "dev", 403), ("lead", "dev", 403),
            ("dev", "sre", 200), ("ops", "dev", 200), ("intern", "dev", 200), ("dev", "intern", 200),
        ] {
            let answer = tree.send(caller, target).await;
            assert_eq!(answer.status, status, "{caller} to {target}: {}", answer.text());
        }
        for below in ["dev", "intern"] {
            let answer = tree.move_below("dev", below).await;
            assert_eq!((answer.status, answer.reason().as_str()), (409, "conflict"), "below {below}");
        }
        let answer = tree.move_below("dev", "o-root").await;
        assert_eq!((answer.status, answer.reason().as_str()), (409, "conflict"), "another org");
    }

    async fn those_who_are_no_workspace_are_named_by_their_kind() {
        let tree = Tree::new(Pair::Embedded, "direct").await;
        let gateway = &tree.gateway;
        let org = token(gateway, "/orgs/acme/tokens", "{}").await;
        let canvas = token(gateway, "/canvas/tokens", r#"{"user":"ada","org":"acme"}"#).await;
        let listed = token(gateway, "/canvas/tokens", r#"{"user":"bob","workspaces":["o-lead"]}"#).await;
        // No org is one org, for a canvas as for workspaces.
        let loose = token(gateway, "/canvas/tokens", r#"{"user":"eve"}"#).await;
        for (token, target, rule, caller, kind) in [
            (loose.as_str(), "free", "canvas", "canvas:eve", "canvas"),
            (&org, "dev", "org", "org:acme", "org"),
            (&canvas, "dev", "canvas", "canvas:ada", "canvas"),
            (&listed, "o-lead", "canvas", "canvas:bob", "canvas"),
            (ADMIN, "o-lead", "operator", "operator:", "admin"),
        ] {
            let id = format!("{kind}.to.{target}.{}", &token[token.len() - 6..]);
            let answer = tree.send_as(token, target, &id).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_eq!(tree.agent.take().field("x-workspace-id"), None, "no workspace calls");
            let line = tree.line(&id).await;
            assert_eq!((&line["rule"], &line["caller"]), (&json!(rule), &json!(caller)));
            assert_eq!(line["credential.kind"], kind);
            assert_eq!(line["credential.prefix"], token[..8], "8 characters, never more");
        }
        for (token, target) in [
            (&org, "o-root"), (&org, "nobody"), (&canvas, "o-root"), (&canvas, "nobody"),
            (&listed, "dev"), (&loose, "dev"), (&listed, "nobody"),
        ] {
            let answer = tree.send_as(token, target, "seen").await;
            assert_refusal(&answer, "/a2a", "seen", "not_permitted", target);
        }
        assert_eq!(tree.agent.count(), 0);
    }
}
