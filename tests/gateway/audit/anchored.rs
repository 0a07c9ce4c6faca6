//! An older signed end is put back, and the records behind it are removed: found by what was kept elsewhere.

use std::path::Path;

use serde_json::Value;

use super::{calls, end, execute, of_chain, says};
use crate::harness::{Agent, Builder, Pair, Recorded, Step, ok_json, until_found};
use crate::operators::staged;
use crate::stores::open_db;
use crate::{on_both_pairs, on_embedded};

/// The ends that stand in a file, once it names a record of `least` or more.
async fn kept(path: &Path, least: i64) -> Vec<Value> {
    until_found("an end", async || {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let read = text.lines().map(|line| serde_json::from_str(line).unwrap());
        let ends: Vec<Value> = read.collect();
        let mut all = ends.iter();
        all.any(|end| end["seq"].as_i64().unwrap() >= least)
            .then_some(ends)
    })
    .await
}

on_both_pairs! {
    async fn an_older_end_that_was_put_back_is_found_by_the_anchor(pair: Pair) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("anchor.jsonl");
        let builder = Builder::new(pair).set("audit.anchor", &format!("file:{}", path.display()));
        let (mut gateway, caller, _target) = staged(builder, Agent::json("{}").await).await;
        calls(&gateway, &caller.token, "early").await;
        let db = open_db(&gateway.sql_url());
        let old: (String, i64, String, i64) = sqlx::query_as(
            "SELECT replica, last_seq, statement, signed_at FROM audit_chains ORDER BY signed_at DESC LIMIT 1",
        )
        .fetch_one(db.pool())
        .await
        .unwrap();
        calls(&gateway, &caller.token, "late").await;
        end(&mut gateway);
        let ends = kept(&path, old.1 + 4).await;
        assert_eq!(ends.len(), 1);
        let path = path.to_str().unwrap();
        let config = gateway.dir.join("gateway.toml");
        std::fs::write(&config, format!("[audit]\nanchor = \"file:{path}\"\n")).unwrap();
        let config = config.to_str().unwrap();
        let anchors = [["verify", "--anchor", path], ["verify", "--config", config]];
        for anchor in &anchors {
            let said = says(&gateway, anchor, 0);
            assert!(said.contains(&format!("1 signed end of the anchor {path} checked\n")), "{said}");
        }

        let (replica, last, statement, signed_at) = old;
        let of_chain = of_chain(pair, &replica);
        execute(&db, &format!("DELETE FROM structure_events WHERE {of_chain} AND seq > {last}")).await;
        execute(&db, &format!(
            "UPDATE audit_chains SET last_seq = {last}, statement = '{statement}', signed_at = {signed_at} WHERE replica = '{replica}'"
        )).await;
        let said = says(&gateway, &["verify"], 0);
        assert!(!said.contains("anchor"), "by itself the database looks whole: {said}");
        for anchor in &anchors {
            let said = says(&gateway, anchor, 1);
            assert!(said.contains("is missing"), "{said}");
        }
        std::fs::write(config, "[audit]\nanchor = \"file:missing.jsonl\"\n").unwrap();
        let said = says(&gateway, &["verify", "--config", config], 1);
        assert!(said.contains("cannot read the anchor missing.jsonl (--anchor, or audit.anchor"), "{said}");
        // What is no end at all is said.
        let said = says(&gateway, &["verify", "--anchor", "/dev/null"], 1);
        assert!(said.contains("names no signed end"), "{said}");
    }
}

on_embedded! {
    async fn an_end_is_sent_to_a_url_and_what_fails_is_counted() {
        let receiver = Agent::scripted(|request: &Recorded| {
            assert!(!request.text().is_empty());
            vec![Step::Write(ok_json("{}"))]
        })
        .await;
        let builder = Builder::new(Pair::Embedded).set("audit.anchor", &receiver.url());
        let (mut gateway, caller, _target) = staged(builder, Agent::json("{}").await).await;
        calls(&gateway, &caller.token, "sent").await;
        receiver.until_count(1).await;
        end(&mut gateway);
        let requests = receiver.requests();
        let last = requests.last().expect("the end was sent");
        let path = gateway.dir.join("received");
        std::fs::write(&path, last.text()).unwrap();
        says(&gateway, &["verify", "--anchor", path.to_str().unwrap()], 0);

        let nobody = crate::harness::ports::free_address("127.0.0.1");
        let builder = Builder::new(Pair::Embedded).set("audit.anchor", &format!("http://{nobody}/"));
        let gateway = builder.start().await;
        gateway.until_counted("a2a_gateway_audit_anchor_failures_total", &[], 1.0).await;
    }

    async fn the_log_names_ends_as_well() {
        let (mut gateway, caller, _target) = staged(Builder::new(Pair::Embedded).set("audit.anchor", "log"), Agent::json("{}").await).await;
        calls(&gateway, &caller.token, "logged").await;
        end(&mut gateway);
        gateway.until_told("Audit anchor", 1).await;
        let log = gateway.dir.join("log");
        let verify = ["verify", "--anchor", log.to_str().unwrap()];
        says(&gateway, &verify, 0);
        let db = open_db(&gateway.sql_url());
        for table in ["structure_events", "audit_chains"] {
            execute(&db, &format!("DELETE FROM {table}")).await;
        }
        let said = says(&gateway, &verify, 1);
        assert!(said.contains("the whole chain is missing"), "{said}");
    }
}
