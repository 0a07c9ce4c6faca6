//! Usage: sums that agree with the audit's records, to the byte, whatever ended in between.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sqlx::AssertSqlSafe;

use crate::audit::{all_written, end, exported, message, recorded};
use crate::harness::servers::{Postgres, Redis};
use crate::harness::{
    ADMIN, Agent, Builder, CALL, Connection, Gateway, LAST_CHUNK, Pair, Request, SSE_HEAD, Seat,
    Step, chunk, ok_json, until_holds,
};
use crate::hierarchy::seat_in;
use crate::stores::open_db;
use crate::tokens::token;
use crate::{on_both_pairs, on_embedded};

/// Calls, streams, refused, failed, bytes in, bytes out, milliseconds, failed by the agent.
type Sums = [i64; 8];

/// By day, org and workspace.
type Lines = BTreeMap<[String; 3], Sums>;

fn sums(line: &Value) -> Sums {
    let number = |name: &str| line[name].as_i64().unwrap_or_else(|| panic!("{line}"));
    let [calls, streams, refused, failed] = ["calls", "streams", "refused", "failed"].map(number);
    let [bytes_in, bytes_out] = ["bytes_in", "bytes_out"].map(number);
    #[expect(clippy::cast_possible_truncation, reason = "whole milliseconds")]
    let ms = (line["seconds"].as_f64().unwrap() * 1000.0).round() as i64;
    [
        calls,
        streams,
        refused,
        failed,
        bytes_in,
        bytes_out,
        ms,
        number("agent_failed"),
    ]
}

fn add(sums: &mut Sums, more: &Sums) {
    for (sum, more) in sums.iter_mut().zip(more) {
        *sum += more;
    }
}

async fn usage(gateway: &Gateway, token: &str, query: &str) -> Value {
    let request = Request::get(format!("/usage?{query}")).bearer(token);
    let answer = gateway.call(&request).await;
    assert_eq!(answer.status, 200, "{query}: {}", answer.text());
    answer.json()
}

/// The lines of all pages, by day, org and workspace.
async fn lines(gateway: &Gateway, query: &str, limit: usize) -> Lines {
    let (mut found, mut cursor) = (BTreeMap::new(), String::new());
    loop {
        let page = usage(gateway, ADMIN, &format!("{query}&limit={limit}{cursor}")).await;
        let listed = page["usage"].as_array().unwrap();
        assert!(listed.len() <= limit, "{page}");
        for line in listed {
            let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
            let key = ["day", "org", "workspace"].map(text);
            assert_eq!(found.insert(key, sums(line)), None, "{line} comes twice");
        }
        let Some(next) = page["next_cursor"].as_str() else {
            return found;
        };
        cursor = format!("&cursor={next}");
    }
}

/// What the records say, added up here: by day, org and workspace of one side.
fn expected(records: &[Value], side: &str, orgs: &BTreeMap<&str, &str>) -> Lines {
    let mut expected = Lines::new();
    for record in records {
        let caller = record["caller"].as_str().unwrap_or("unknown:");
        let outcome = record["outcome"].as_str().unwrap();
        let passed = ["answered", "caller_left"].contains(&outcome);
        let refused = ["not_permitted", "unauthenticated", "rate_limited"].contains(&outcome);
        let subject = match side {
            "caller" => caller,
            _ if caller == "unknown:" => continue,
            _ => record["target"].as_str().unwrap_or_default(),
        };
        let name = match subject.split_once(':') {
            Some((kind, _)) => format!("{kind}:"),
            None => subject.to_owned(),
        };
        let org = match (side, record["org"].as_str()) {
            ("caller", Some(org)) => org,
            _ => orgs.get(subject).copied().unwrap_or_default(),
        };
        let org = subject.strip_prefix("org:").unwrap_or(org);
        // Of no workspace: named by its caller alone.
        if side == "target" && !orgs.contains_key(subject) {
            continue;
        }
        let count = record["detail"]["count"].as_i64().unwrap_or(1);
        let number = |name: &str| (!refused).then(|| record[name].as_i64().unwrap());
        let streams = passed && record["method"] == "send_streaming_message";
        let one = [
            if passed { count } else { 0 },
            i64::from(streams),
            if refused { count } else { 0 },
            if passed || refused { 0 } else { count },
            number("request_bytes").unwrap_or_default(),
            number("response_bytes").unwrap_or_default(),
            number("duration_ms").unwrap_or_default(),
            if !refused && (!passed || record["status"].as_i64() >= Some(500)) {
                count
            } else {
                0
            },
        ];
        let day = record["time"].as_str().unwrap()[..10].to_owned();
        add(
            expected.entry([day, org.to_owned(), name]).or_default(),
            &one,
        );
    }
    expected
}

/// Every call in the audit. Those that are about to be written are, first.
async fn calls(gateway: &Gateway) -> Vec<Value> {
    gateway.assert_idle().await;
    all_written(gateway).await;
    exported(gateway, &["--event-type", "A2A_CALL"])
}

/// Compares the sums with the records.
async fn assert_agrees(gateway: &Gateway, orgs: &BTreeMap<&str, &str>) {
    let records = calls(gateway).await;
    assert!(!records.is_empty());
    let year = &records[0]["time"].as_str().unwrap()[..4];
    let days = format!("from={year}-01-01&to={year}-12-31");
    for side in ["caller", "target"] {
        let expected = expected(&records, side, orgs);
        let query = format!("{days}&side={side}");
        for limit in [1, 500] {
            assert_eq!(lines(gateway, &query, limit).await, expected, "{side}");
        }
        // Summed up by org, over all days, and in the total.
        let (mut by_org, mut over_days, mut total) = (Lines::new(), Lines::new(), [0; 8]);
        for ([day, org, workspace], sums) in &expected {
            let of_org = [day.clone(), org.clone(), String::new()];
            add(by_org.entry(of_org).or_default(), sums);
            let of_all = [String::new(), org.clone(), workspace.clone()];
            add(over_days.entry(of_all).or_default(), sums);
            add(&mut total, sums);
        }
        for (more, expected) in [("by=org", by_org), ("per=total", over_days)] {
            let query = format!("{query}&{more}");
            assert_eq!(lines(gateway, &query, 1).await, expected, "{query}");
        }
        let page = usage(gateway, ADMIN, &format!("{query}&limit=1")).await;
        assert_eq!(sums(&page["total"]), total, "{side}: {page}");
        assert_eq!(page["recording"], true);
    }
}

async fn seat(gateway: &Gateway, id: &str, org: &str) -> Seat {
    seat_in(gateway, id, org, Agent::json("{}").await).await
}

async fn call(gateway: &Gateway, token: &str, target: &str, body: &str) -> u16 {
    let request = Request::post(format!("/workspaces/{target}/a2a"), body).bearer(token);
    gateway.call(&request).await.status
}

/// Calls of every kind between two orgs: answered, streamed, refused, failed.
async fn make_calls(gateway: &Gateway) -> BTreeMap<&'static str, &'static str> {
    let event = "data: {\"jsonrpc\":\"2.0\",\"id\":\"c-1\",\"result\":{}}\n\n";
    let agent = Agent::scripted(move |request| {
        if request.text().contains("message/stream") {
            let event = Step::Write(chunk(event));
            return vec![Step::write(SSE_HEAD), event, Step::write(LAST_CHUNK)];
        }
        vec![Step::Write(ok_json(
            r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#,
        ))]
    });
    let broken = Agent::scripted(|_| {
        let half = "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{";
        vec![Step::write(half), Step::Close]
    });
    let (acme, globex) = ("acme", "=globex, \"inc\"");
    let caller = seat(gateway, "caller", acme).await;
    let target = seat_in(gateway, "target", acme, agent.await).await;
    let _broken = seat_in(gateway, "broken", acme, broken.await).await;
    let other = seat(gateway, "other", globex).await;
    let stream = CALL.replace("message/send", "message/stream");
    for _ in 0..3 {
        assert_eq!(call(gateway, &caller.token, "target", CALL).await, 200);
        assert_eq!(call(gateway, &caller.token, "target", &stream).await, 200);
        assert_eq!(call(gateway, &other.token, "target", CALL).await, 403);
    }
    assert_eq!(call(gateway, &other.token, "nowhere", CALL).await, 403);
    assert_eq!(call(gateway, &caller.token, "broken", CALL).await, 502);
    assert_eq!(call(gateway, ADMIN, "other", CALL).await, 200);
    assert_eq!(call(gateway, &target.token, "target", CALL).await, 200);
    let stranger = "a2aw_0000000000abcdefghijklmnopqrstuvwxyzABCDEFG";
    for _ in 0..5 {
        assert_eq!(call(gateway, stranger, "target", CALL).await, 401);
    }
    let org = token(gateway, "/orgs/acme/tokens", "{}").await;
    assert_eq!(call(gateway, &org, "target", CALL).await, 200);
    assert_eq!(call(gateway, &org, "other", CALL).await, 403);
    // Refusals of strangers are written down once a second.
    until_holds("all are counted", async || {
        let strangers = recorded(gateway, "outcome=unauthenticated", 1).await;
        let counts = strangers.iter().map(|one| one["detail"]["count"].as_i64());
        counts.map(|count| count.unwrap_or(1)).sum::<i64>() == 5
    })
    .await;
    [
        ("caller", acme),
        ("target", acme),
        ("broken", acme),
        ("other", globex),
    ]
    .into()
}

on_both_pairs! {
    async fn the_sums_are_those_of_the_records(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        let orgs = make_calls(&gateway).await;
        assert_agrees(&gateway, &orgs).await;
        // By hand, for one: three calls, three streams, and the one that failed.
        let page = usage(&gateway, ADMIN, "workspace=caller&per=total").await;
        let [line] = page["usage"].as_array().unwrap().as_slice() else {
            panic!("{page}");
        };
        let counts = ["calls", "streams", "refused", "failed"].map(|name| line[name].as_i64().unwrap());
        assert_eq!(counts, [6, 3, 0, 1], "{page}");
        assert_eq!([&line["org"], &line["workspace"], &line["day"]], [&json!("acme"), &json!("caller"), &Value::Null]);
        assert_eq!(line["bytes_in"].as_u64().unwrap() as usize, 4 * CALL.len() + 3 * (CALL.len() + 2));
    }

    async fn a_kill_between_two_batches_loses_records_and_sums_alike(pair: Pair) {
        let mut gateway = Gateway::start(pair).await;
        let orgs = make_calls(&gateway).await;
        calls(&gateway).await;
        for _ in 0..20 {
            call(&gateway, ADMIN, "other", CALL).await;
        }
        gateway.kill();
        gateway.restart().await;
        assert_agrees(&gateway, &orgs).await;
    }

    async fn sums_that_are_too_old_go(pair: Pair) {
        let mut gateway = Builder::new(pair).set("audit.usage_retention", "48h").start().await;
        make_calls(&gateway).await;
        calls(&gateway).await;
        let today = usage(&gateway, ADMIN, "").await["total"].clone();
        end(&mut gateway);
        let db = open_db(&gateway.sql_url());
        db.accept_schema();
        let age = "UPDATE usage_days SET day = day - 3 WHERE kind IN ('target', 'target_org')";
        sqlx::raw_sql(AssertSqlSafe(age)).execute(db.pool()).await.unwrap();
        gateway.restart().await;
        until_holds("the old ones go", async || {
            let rows = sqlx::query_scalar("SELECT COUNT(*) FROM usage_days WHERE kind = 'target'");
            let rows: i64 = rows.fetch_one(db.pool()).await.unwrap();
            rows == 0
        }).await;
        assert_eq!(usage(&gateway, ADMIN, "").await["total"], today);
    }
}

on_embedded! {
    async fn an_org_sees_its_own_and_no_more() {
        let gateway = Gateway::start(Pair::Embedded).await;
        make_calls(&gateway).await;
        calls(&gateway).await;
        let org = token(&gateway, "/orgs/acme/tokens", "{}").await;
        for side in ["caller", "target"] {
            let page = usage(&gateway, &org, &format!("side={side}")).await;
            let seen = page["usage"].as_array().unwrap();
            assert!(seen.len() >= 2, "{page}");
            assert!(seen.iter().all(|line| line["org"] == "acme"), "{page}");
            let theirs = usage(&gateway, ADMIN, &format!("side={side}&org=acme")).await;
            assert_eq!([&page["usage"], &page["total"]], [&theirs["usage"], &theirs["total"]]);
        }
        let foreign = Request::get("/usage?org=globex").bearer(&org);
        let answer = gateway.call(&foreign).await;
        assert_eq!((answer.status, answer.reason().as_str()), (403, "not_permitted"));
        // Callers of no org: the operator, and those that proved nothing.
        let none = usage(&gateway, ADMIN, "org=&per=total").await;
        let names: Vec<_> = none["usage"].as_array().unwrap().iter().map(|line| line["workspace"].as_str().unwrap()).collect();
        assert_eq!(names, ["operator:", "unknown:"], "{none}");
    }

    async fn a_file_has_all_of_it_and_runs_nothing() {
        let gateway = Gateway::start(Pair::Embedded).await;
        make_calls(&gateway).await;
        calls(&gateway).await;
        let request = Request::get("/usage").bearer(ADMIN).field("Accept", "text/csv");
        let answer = gateway.call(&request).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.field("content-type"), Some("text/csv; charset=utf-8; header=present"));
        assert!(answer.field("content-disposition").unwrap().starts_with("attachment; filename=\"usage-"));
        let text = answer.text();
        let page = usage(&gateway, ADMIN, "limit=500").await;
        let rows: Vec<&str> = text.split("\r\n").collect();
        assert_eq!(rows.len(), page["usage"].as_array().unwrap().len() + 2, "{text}");
        assert_eq!(rows[0], "from,to,side,org,workspace,calls,streams,refused,failed,bytes_in,bytes_out,seconds,agent_failed");
        let other = rows.iter().find(|row| row.contains(",other,")).unwrap();
        let line = page["usage"].as_array().unwrap().iter().find(|line| line["workspace"] == "other").unwrap();
        let day = line["day"].as_str().unwrap();
        assert_eq!(*other, format!("{day},{day},caller,\"'=globex, \"\"inc\"\"\",other,0,0,4,0,0,0,0.000,0"));
        let asked = Request::get("/usage?format=csv&per=total&by=org&side=target").bearer(ADMIN);
        let answer = gateway.call(&asked).await;
        assert!(answer.text().contains(",target,acme,,"), "{}", answer.text());
        for bad in ["format=csv&limit=5", "from=yesterday", "by=day", "cursor=x", "from=2020-01-01", "no=1", "limit=501"] {
            let answer = gateway.call(&Request::get(format!("/usage?{bad}")).bearer(ADMIN)).await;
            assert_eq!((answer.status, answer.reason().as_str()), (400, "invalid_params"), "{bad}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spool_that_a_killed_gateway_leaves_is_counted_once() {
    let postgres = Postgres::start();
    let redis = Redis::start();
    let builder = Builder::new(Pair::External).process();
    let builder = builder.stores(&postgres.database(), &redis.url());
    let mut gateway = builder.start().await;
    let caller = seat(&gateway, "caller", "acme").await;
    let _target = seat(&gateway, "target", "acme").await;
    let orgs = BTreeMap::from([("caller", "acme"), ("target", "acme")]);
    let ask = async || assert_eq!(call(&gateway, &caller.token, "target", CALL).await, 200);
    gateway.until_warm(ask).await;
    let request = |id: &str| message(&caller.token, id);
    gateway.call(&request("before")).await;
    recorded(&gateway, "request_id=before", 1).await;
    postgres.kill();
    let mut connection = Connection::open(gateway.public).await;
    for n in 0..30 {
        let answer = connection.call(&request(&format!("away-{n}"))).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let spooled = gateway.until_counted("a2a_gateway_audit_spool_bytes", &[], 12_000.0);
    spooled.await;
    gateway.kill();
    postgres.restart();
    gateway.restart().await;
    recorded(&gateway, "request_id=away-29", 1).await;
    assert_agrees(&gateway, &orgs).await;
    let page = usage(&gateway, ADMIN, "workspace=caller&per=total").await;
    let counted = page["total"]["calls"].as_i64().unwrap();
    assert!(counted >= 31, "{page}");
}
