//! Views of caps for operators: `GET /caps`, metrics, `explain`, the console's data, the audit; and that a reload
//! changes them.

use serde_json::{Value, json};

use super::{assert_reached, cap, capped, hello, in_run, per_run, send, used};
use crate::explain::{explain, last, step};
use crate::harness::{ADMIN, Agent, Builder, Pair, Request, until_holds};
use crate::reload::Written;
use crate::{on_both_pairs, on_embedded};

on_both_pairs! {
    async fn the_use_of_caps_is_listed(pair: Pair) {
        let caps = json!([{"name": "run", "per": "run", "count": "messages", "limit": 500},
            {"name": "pair", "per": "pair", "count": "messages", "limit": 4, "window": "1h", "scope": ["target"]}]);
        let gateway = capped(pair, &caps).start().await;
        gateway.create(json!({"id": "team", "name": "team", "org": "acme"})).await;
        let caller = gateway.seat("caller", "team", Agent::json("{}").await).await;
        let target = gateway.seat("target", "team", Agent::scripted(hello).await).await;
        for (run, times) in [("a", 1), ("b", 3)] {
            for _ in 0..times {
                assert_eq!(gateway.call(&send(&target, &caller, &in_run(run))).await.status, 200);
            }
        }
        assert_reached(&gateway.call(&send(&target, &caller, &in_run("c"))).await, "pair");
        let shown = cap(&gateway, "run").await;
        let subjects: Vec<_> = shown["subjects"].as_array().unwrap().iter()
            .map(|one| (one["subject"].as_str().unwrap(), one["used"].as_u64().unwrap(), one["org"].as_str()))
            .collect();
        // The refused call counts nothing, so its run is not listed, or with 0.
        assert_eq!(subjects[..2], [("b", 3, Some("acme")), ("a", 1, Some("acme"))]);
        assert!(subjects[2..].iter().all(|(_, used, _)| *used == 0), "{shown}");
        assert_eq!((&shown["per"], &shown["count"], &shown["limit"]), (&json!("run"), &json!("messages"), &json!(500)));
        let pair = cap(&gateway, "pair").await;
        assert_eq!(pair["subjects"][0]["subject"], "caller>target");
        assert_eq!((&pair["subjects"][0]["reached"], &pair["window_seconds"]), (&json!(true), &json!(3600)));
        assert!(humantime::parse_rfc3339(pair["subjects"][0]["resets_at"].as_str().unwrap()).is_ok());
        let one = gateway.as_operator(Request::get("/caps?cap=run&subject=a&limit=1")).await.json();
        assert_eq!(one["caps"][0]["subjects"][0]["used"], 1);
        // An integration sees its org, others nothing.
        for (org, count) in [("acme", 1), ("else", 0)] {
            let token = gateway.token(&format!("/orgs/{org}/tokens"), "{}").await;
            let listed = gateway.call(&Request::get("/caps?cap=pair").bearer(&token)).await;
            assert_eq!(listed.json()["caps"][0]["subjects"].as_array().unwrap().len(), count, "{}", listed.text());
        }
        for (path, token, reason) in [
            ("/caps", &*caller.token, "not_permitted"),
            ("/caps?cap=no", ADMIN, "not_found"),
            ("/caps?limit=0", ADMIN, "invalid_params"),
        ] {
            assert_eq!(gateway.call(&Request::get(path).bearer(token)).await.reason(), reason, "{path}");
        }
        assert!(gateway.metric("a2a_gateway_cap_refusals_total", &["cap=\"pair\""]).await >= 1.0);
        assert!(gateway.metric("a2a_gateway_cap_subjects", &[]).await >= 3.0);
        let explained = explain(&gateway, "caller", "target").await;
        assert_eq!(last(&explained), "caps", "{explained:#}");
        let facts = step(&explained, "caps").to_string();
        assert!(facts.contains("4 messages for each pair"), "{facts}");
        assert!(explained.to_string().contains("cap_reached"), "{explained:#}");
    }

    async fn a_restart_keeps_what_the_shared_state_keeps(pair: Pair) {
        let mut gateway = capped(pair, &per_run(2)).start().await;
        let (caller, target) = gateway.pair(Agent::scripted(hello).await).await;
        let request = send(&target, &caller, &in_run("r"));
        assert_eq!(gateway.call(&request).await.status, 200);
        gateway.restart().await;
        until_holds("it serves", async || gateway.call(&request).await.status == 200).await;
        let third = gateway.call(&request).await.status;
        assert_eq!(third, if pair == Pair::Embedded { 200 } else { 429 });
    }
}

on_embedded! {
    async fn a_reload_changes_limits_and_keeps_counts() {
        let rates = "[stores]\ntimeout = \"20s\"\n[rate]\ncaller_per_second = 0\nfailures_per_second = 0\n";
        let text = |limit: u64| format!("{rates}[[cap]]\nname = \"run\"\nper = \"run\"\ncount = \"messages\"\nlimit = {limit}\n");
        let written = Written::new(&text(2));
        let gateway = Builder::new(Pair::Embedded).file(written.path()).start().await;
        let (caller, target) = gateway.pair(Agent::scripted(hello).await).await;
        let request = send(&target, &caller, &in_run("r"));
        for _ in 0..2 {
            assert_eq!(gateway.call(&request).await.status, 200);
        }
        assert_reached(&gateway.call(&request).await, "run");
        written.save(&text(3));
        until_holds("the limit is raised", async || gateway.call(&request).await.status == 200).await;
        assert_reached(&gateway.call(&request).await, "run");
        assert_eq!(used(&gateway, "run").await, 3);
        // A wrong file changes nothing.
        written.save(&text(0));
        until_holds("it is refused", async || gateway.log().contains("must be from 1 to")).await;
        assert_reached(&gateway.call(&request).await, "run");
        written.save(rates);
        until_holds("the cap is gone", async || gateway.call(&request).await.status == 200).await;
        let listed: Value = gateway.as_operator(Request::get("/caps")).await.json();
        assert_eq!(listed, json!({"caps": []}));
    }
}
