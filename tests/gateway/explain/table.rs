//! Every reason that admission can refuse for: a real message with a real credential and an explanation of the
//! same pair, in the same situation, say the same.

use std::collections::BTreeSet;

use a2a_gateway::rejection::Reason::{self, *};
use serde_json::{Value, json};

use super::stores::away;
use super::{Met, agree, call, explain, hanging, last, send_on, step};
use crate::harness::dns::Dns;
use crate::harness::{
    ADMIN, Agent, Builder, Connection, Gateway, Pair, Request, Step, card, ok_json, until_found,
    until_holds,
};
use crate::on_both_pairs;
use crate::operators::{self, paired, staged};
use crate::polling::poller;
use crate::tokens::token;

/// The reasons that came up.
#[derive(Default)]
struct Seen(BTreeSet<String>);

/// A caller as an explanation names it, and its token.
type Who<'a> = (&'a str, &'a str);

impl Seen {
    /// The situation refuses for `reason`, at the step `at`; an explanation agrees with a message.
    async fn refuses(
        &mut self,
        gateway: &Gateway,
        who: Who<'_>,
        target: &str,
        (reason, at): (&str, &str),
    ) -> Value {
        let what = format!("{} to {target}: {reason}", who.0);
        let (met, explained) = agree(gateway, who, target, &what).await;
        assert_eq!(met, reason, "{what}: {explained:#}");
        assert_eq!(last(&explained), at, "{what}: {explained:#}");
        self.0.insert(met);
        explained
    }

    /// The same for each of these callers, targets, reasons and steps.
    async fn refuses_all(&mut self, gateway: &Gateway, all: &[(Who<'_>, &str, &str, &str)]) {
        for (who, target, reason, at) in all {
            self.refuses(gateway, *who, target, (reason, at)).await;
        }
    }
}

async fn operator(gateway: &Gateway, method: &str, path: &str, body: Value) -> Value {
    let answer = operators::call(gateway, method, path, ADMIN, body).await;
    assert!(answer.status < 300, "{method} {path}: {}", answer.text());
    serde_json::from_slice(&answer.body).unwrap_or_default()
}

/// What the places, the scopes and the grants say.
async fn who_may(pair: Pair, seen: &mut Seen) {
    let (gateway, caller, target) = paired(pair, Agent::json("{}").await).await;
    let idle = Agent::json("{}").await;
    let child = gateway.seat("child", "target", idle).await;
    for body in [
        json!({"id": "foreign", "name": "f", "org": "acme", "url": target.agent.url(), "liveness": "assumed"}),
        json!({"id": "gone", "name": "g", "url": target.agent.url(), "liveness": "assumed"}),
        json!({"id": "mute", "name": "m", "parent_id": "caller"}),
        json!({"id": "grand", "name": "g", "parent_id": "mute", "url": target.agent.url(), "liveness": "assumed"}),
        json!({"id": "leaving", "name": "l"}),
    ] {
        gateway.create(body).await;
    }
    let gone = token(&gateway, "/workspaces/gone/tokens", "{}").await;
    operator(&gateway, "DELETE", "/workspaces/gone", Value::Null).await;
    let (me, op) = (("caller", caller.token.as_str()), ("operator", ADMIN));
    let (gone, child_own) = (("gone", &*gone), ("child", &*child.token));
    let refusals = [
        (me, "a:b", "invalid_workspace_id", "target"),
        (op, "%20", "invalid_workspace_id", "target"),
        (gone, "target", "unauthenticated", "caller"),
        (me, "child", "not_permitted", "rule"),
        (child_own, "caller", "not_permitted", "rule"),
        (me, "foreign", "not_permitted", "rule"),
        (me, "gone", "not_permitted", "rule"),
        (me, "nobody", "not_permitted", "rule"),
        (op, "nobody", "workspace_not_found", "rule"),
        (op, "gone", "workspace_removed", "rule"),
    ];
    seen.refuses_all(&gateway, &refusals).await;
    // Why stands beside it, for operators alone.
    for (target, because) in [
        ("child", "not related"),
        ("grand", "access.lineage"),
        ("foreign", "different orgs"),
        ("gone", "removed"),
    ] {
        let explained = explain(&gateway, "caller", target).await;
        let why = &step(&explained, "rule")["fact"]["because"];
        let why = why.as_str().unwrap();
        assert!(why.contains(because), "{target}: {why}");
    }
    let org = token(&gateway, "/orgs/acme/tokens", "{}").await;
    let ada = r#"{"user": "ada", "org": "acme"}"#;
    let ada = token(&gateway, "/canvas/tokens", ada).await;
    let listed = r#"{"user": "bob", "workspaces": ["caller", "leaving"]}"#;
    let listed = token(&gateway, "/canvas/tokens", listed).await;
    let integration = ("org:acme", &*org);
    let ada = ("canvas:ada&org=acme", &*ada);
    let bob = ("canvas:bob&workspaces=caller,leaving", &*listed);
    let refusals = [
        (integration, "target", "not_permitted", "rule"),
        (integration, "nobody", "not_permitted", "rule"),
        (ada, "target", "not_permitted", "rule"),
        (ada, "nobody", "not_permitted", "rule"),
        (bob, "target", "not_permitted", "rule"),
    ];
    seen.refuses_all(&gateway, &refusals).await;
    operator(&gateway, "DELETE", "/workspaces/leaving", Value::Null).await;
    let refusals = [(bob, "leaving", "workspace_removed", "rule")];
    seen.refuses_all(&gateway, &refusals).await;
    let grant = json!({"caller_id": "caller", "target_id": "child"});
    let grant = operator(&gateway, "POST", "/grants", grant).await;
    let rules = [
        (me, "caller", "self"),
        (me, "target", "root_sibling"),
        (("target", target.token.as_str()), "child", "parent"),
        (child_own, "target", "child"),
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
    let principal = &step(&explained, "caller")["fact"]["principal"];
    assert_eq!(principal["org"], "acme");
    let explained = explain(&gateway, "caller", "child").await;
    assert_eq!(step(&explained, "grant")["fact"]["grant"], grant["id"]);
    // One that never had a token, and one whose last was revoked.
    let mute = ("mute", "a2aw_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG");
    let refusals = [(mute, "mute", "unauthenticated", "caller")];
    seen.refuses_all(&gateway, &refusals).await;
}

/// What the target's state says.
async fn states(pair: Pair, seen: &mut Seen) {
    let gateway = Gateway::start(pair).await;
    let agent = Agent::json("{}").await;
    let url = agent.url();
    for body in [
        json!({"id": "there", "name": "there", "liveness": "assumed", "url": url}),
        json!({"id": "new", "name": "new"}),
        json!({"id": "placed", "name": "placed", "url": url}),
    ] {
        gateway.create(body).await;
    }
    let op = ("operator", ADMIN);
    let refusals = ["new", "placed"].map(|id| (op, id, "workspace_restarting", "state"));
    seen.refuses_all(&gateway, &refusals).await;
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
    let offline = [(op, "here", "workspace_offline", "state")];
    seen.refuses_all(&gateway, &offline).await;
    operator(&gateway, "POST", "/workspaces/here/resume", json!({})).await;
    assert_eq!(agree(&gateway, op, "here", "resumed").await.0, "sent");
    let body = json!({"workspace_id": "here"}).to_string();
    let gone = Request::post("/registry/deregister", body).bearer(&here.token);
    assert_eq!(gateway.call(&gone).await.status, 200);
    seen.refuses_all(&gateway, &offline).await;
}

/// Where the agent is, and how it is called.
async fn addresses(pair: Pair, seen: &mut Seen) {
    let loopback = || vec!["127.0.0.1".parse().unwrap()];
    let metadata = "169.254.169.254".parse().unwrap();
    // Two of them mean something else than when they were registered.
    let dns = Dns::start(move |name, number| match (name, number) {
        ("agent.test", _) | ("moved.test" | "lost.test", 0) => loopback(),
        ("moved.test", _) => [loopback(), vec![metadata]].concat(),
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
        let new = json!({"id": id, "name": id, "liveness": "assumed", member: url});
        gateway.create(new).await;
    }
    let (met, explained) = agree(&gateway, op, "named", "a name").await;
    assert_eq!(met, "sent", "{explained:#}");
    let address = &step(&explained, "address")["fact"];
    assert_eq!(address["addresses"], json!(["127.0.0.1"]));
    assert_eq!(address["dialled"], "127.0.0.1");
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
    let off = json!({"bridge": "off"});
    operator(&gateway, "PATCH", "/workspaces/restful", off).await;
    // Its card was read when it was added, and nothing is fetched for an explanation.
    let is_refused = async || explain(&gateway, "operator", "restful").await["admitted"] == false;
    until_holds("its card is read", is_refused).await;
    let read = cards.count();
    let explained = explain(&gateway, "operator", "restful").await;
    assert_eq!(step(&explained, "call")["fact"]["path"], Value::Null);
    assert_eq!(cards.count(), read);
    let met = Met::of_message(&gateway.call(&call("restful", ADMIN)).await);
    assert_eq!(Met::of_explanation(&explained), met, "{explained:#}");
    assert_eq!(last(&explained), "call");
    assert_eq!(met.reason, "agent_protocol_error");
    seen.0.insert(met.reason);
}

/// How much there is to do already.
async fn crowds(pair: Pair, seen: &mut Seen) {
    let hangs = || Agent::scripted(|_| vec![Step::Hang]);
    let builder = Builder::new(pair).set("server.max_exchanges", "3");
    let (gateway, caller, target) =
        staged(builder.set("inbox.max_messages", "4"), hangs().await).await;
    let me = ("caller", caller.token.as_str());
    poller(&gateway, "polls", card("polls")).await;
    let (met, explained) = agree(&gateway, me, "polls", "an inbox").await;
    assert_eq!((met.as_str(), last(&explained)), ("sent", "limits"));
    assert_eq!(step(&explained, "inbox")["fact"]["held"], 1);
    gateway.call(&call("polls", &caller.token)).await;
    let full = [(me, "polls", "agent_busy", "inbox")];
    seen.refuses_all(&gateway, &full).await;
    gateway.patch("target", json!({"max_concurrent": 1})).await;
    // A request that is over gives its place back a moment after its answer.
    let are_taken = async |count: u64| {
        until_holds("no other place is taken", async || {
            let explained = explain(&gateway, "caller", "target").await;
            step(&explained, "places")["fact"]["taken"] == count
        })
        .await;
    };
    are_taken(0).await;
    let first = hanging(&gateway, &caller, &target).await;
    let busy = ("agent_busy", "slots");
    let explained = seen.refuses(&gateway, me, "target", busy).await;
    assert_eq!(step(&explained, "slots")["fact"]["taken"], 1);
    gateway.patch("target", json!({"max_concurrent": 6})).await;
    are_taken(1).await;
    let second = hanging(&gateway, &caller, &target).await;
    let third = hanging(&gateway, &caller, &target).await;
    let full = [(me, "target", "overloaded", "places")];
    seen.refuses_all(&gateway, &full).await;
    drop((first, second, third));
}

/// A target that is called for persons only.
async fn roots(pair: Pair, seen: &mut Seen) {
    let rules = json!([{"targets": ["target"], "root": "person"}]).to_string();
    let builder = Builder::new(pair).set("access.require", &rules);
    let (gateway, caller, _target) = staged(builder, Agent::json("{}").await).await;
    let refused = [(
        ("caller", &*caller.token),
        "target",
        "root_required",
        "chain",
    )];
    seen.refuses_all(&gateway, &refused).await;
}

async fn rates(pair: Pair, seen: &mut Seen) {
    let builder = Builder::new(pair).set("rate.caller_per_second", "1");
    let (gateway, caller, _target) = staged(
        builder.set("rate.caller_burst", "60"),
        Agent::json("{}").await,
    )
    .await;
    let explained = explain(&gateway, "caller", "target").await;
    let left = &step(&explained, "rate")["fact"]["credentials"][0]["remaining"];
    assert!(left.as_u64().unwrap() > 20, "{explained:#}");
    let mut connection = Connection::open(gateway.public).await;
    // It fills by one a second, which may pass between any two questions.
    let (mut met, mut explained) = until_found("the limit is met", async || {
        let mut met = send_on(&mut connection, "target", &caller.token).await;
        while met.reason == "sent" {
            met = send_on(&mut connection, "target", &caller.token).await;
        }
        let explained = explain(&gateway, "caller", "target").await;
        let explained = Met::of_explanation(&explained);
        (explained.reason != "sent").then_some((met, explained))
    })
    .await;
    // Both say when.
    assert!(explained.retry_after <= met.retry_after && met.retry_after.is_some());
    (met.retry_after, explained.retry_after) = (None, None);
    assert_eq!(explained, met);
    assert_eq!(met.reason, "rate_limited");
    seen.0.insert(met.reason);
}

async fn the_end(pair: Pair, seen: &mut Seen) {
    let gateway = Gateway::start(pair).await;
    let hangs = Agent::scripted(|_| vec![Step::Hang]).await;
    let (caller, target) = gateway.pair(hangs).await;
    let hanging = hanging(&gateway, &caller, &target).await;
    gateway.terminate();
    while gateway.admin_get("/readyz").await.unwrap().status != 503 {}
    let me = ("caller", &*caller.token);
    let ends = ["nobody", "a:b", "target"].map(|id| (me, id, "shutting_down", "process"));
    // Whatever else is wrong: this comes first.
    seen.refuses_all(&gateway, &ends).await;
    drop(hanging);
}

on_both_pairs! {
    async fn an_explanation_and_a_message_agree_on_every_refusal_of_admission(pair: Pair) {
        let mut seen = Seen::default();
        who_may(pair, &mut seen).await;
        states(pair, &mut seen).await;
        addresses(pair, &mut seen).await;
        crowds(pair, &mut seen).await;
        roots(pair, &mut seen).await;
    rates(pair, &mut seen).await;
        the_end(pair, &mut seen).await;
        let explained = Reason::ALL.iter().copied();
        let explained = explained.filter(|reason| reason.depends_on().is_none());
        let mut expected: BTreeSet<_> = explained.collect();
        match pair {
            // Neither of these goes away alone.
            Pair::Embedded => _ = expected.remove(&StoreUnavailable),
            Pair::External => away(&mut seen.0).await,
        }
        let expected: BTreeSet<_> = expected.iter().map(|reason| reason.as_str()).collect();
        assert_eq!(seen.0.iter().map(String::as_str).collect::<BTreeSet<_>>(), expected);
    }
}
