//! What the command says of a refusal is true of both ends, and each refusal by a rule says why.

use serde_json::{Value, json};

use super::command::run;
use super::{call, explain, step};
use crate::harness::{ADMIN, Agent, Builder, Pair, until_holds};
use crate::on_embedded;
use crate::operators::{call as ask, staged};

on_embedded! {
    async fn advice_fits_whatever_is_wrong_with_either_end() {
        let (gateway, caller, target) = staged(Builder::new(Pair::Embedded).set("telemetry.log", "info,a2a_gateway=debug"), Agent::json("{}").await).await;
        for body in [
            json!({"id": "gone", "name": "g", "parent_id": "caller"}),
            json!({"id": "foreign", "name": "f", "org": "acme", "url": target.agent.url(), "liveness": "assumed"}),
            json!({"id": "mute", "name": "m"}),
        ] {
            gateway.create(body).await;
        }
        assert_eq!(ask(&gateway, "DELETE", "/workspaces/gone", ADMIN, Value::Null).await.status, 200);
        assert_eq!(ask(&gateway, "POST", "/orgs/other/tokens", ADMIN, json!({})).await.status, 201);
        for (arguments, advice) in [
            (&["caller", "nobody"][..], "no workspace nobody"),
            (&["caller", "gone"], "gone was removed"),
            (&["nobody", "target"], "no workspace nobody"),
            (&["gone", "target"], "gone was removed"),
            (&["mute", "target"], "token create mute"),
            (&["canvas:ada", "foreign"], "--org"),
            (&["canvas:ada", "foreign", "--org", "other"], "of the org acme"),
            (&["canvas:ada", "foreign", "--workspace", "target"], "lists foreign"),
            (&["org:none", "foreign"], "token create --org none"),
            (&["org:other", "foreign"], "token create --org acme"),
            (&["org:other", "nobody"], "no workspace nobody"),
            (&["caller", "foreign"], "grant create caller foreign"),
        ] {
            let (code, out, err) = run(&gateway, arguments, None);
            assert_eq!((code, err.as_str()), (Some(1), ""), "{arguments:?}: {out}");
            let told = out.lines().find(|line| line.starts_with("What to do: "));
            assert!(told.unwrap().contains(advice), "{arguments:?}: {out}");
        }
        let (code, out, _) = run(&gateway, &["operator", "foreign"], None);
        assert_eq!(code, Some(0), "{out}");
        assert!(out.contains("was not tried"), "{out}");
        let (_, out, _) = run(&gateway, &["operator", "target"], None);
        assert!(!out.contains("was not tried"), "{out}");
        // What a workspace's token cannot say.
        let (code, _, err) = run(&gateway, &["caller", "target", "--org", "acme"], None);
        assert_eq!(code, Some(64), "{err}");
        assert!(err.contains("canvas:<user>"), "{err}");
        // Why stands beside the rule, and in the log of those who want to read it.
        let because = |explained: &Value| step(explained, "rule")["fact"]["because"].as_str().unwrap().to_owned();
        let explained = explain(&gateway, "caller", "nobody").await;
        assert!(because(&explained).contains("the target's id"), "{explained:#}");
        let explained = explain(&gateway, "org:other", "foreign").await;
        assert!(because(&explained).contains("another org"), "{explained:#}");
        let request = call("nobody", &caller.token).field("X-Request-Id", "unknown");
        assert_eq!(gateway.call(&request).await.status, 403);
        gateway.access_lines("unknown").await;
        let log = gateway.log();
        let line = log.lines().find(|line| line.contains("An exchange was refused") && line.contains("\"unknown\""));
        assert!(line.unwrap().contains("no workspace of the target's id"), "{log}");
    }

    async fn a_lapse_that_was_noticed_is_told_with_its_time() {
        let gateway = Builder::new(Pair::Embedded).set("registry.heartbeat_ttl", "2s").start().await;
        let _lapsing = gateway.seat("lapsing", "", Agent::json("{}").await).await;
        until_holds("the lapse is noticed", async || {
            let explained = explain(&gateway, "operator", "lapsing").await;
            let state = &step(&explained, "state")["fact"];
            let is_noticed = state["status"] == "offline";
            assert!(!is_noticed || state["heartbeat_age_ms"].as_u64().unwrap() >= 1_000, "{state}");
            assert!(!is_noticed || state["last_seen"] == explained["facts"]["last_seen"], "{explained:#}");
            is_noticed
        }).await;
        let (code, out, _) = run(&gateway, &["operator", "lapsing", "--verbose"], Some(ADMIN));
        assert_eq!(code, Some(1), "{out}");
        for part in ["heartbeat_age_ms=", "told besides: last_seen=", "start its agent"] {
            assert!(out.contains(part), "{part}: {out}");
        }
    }
}
