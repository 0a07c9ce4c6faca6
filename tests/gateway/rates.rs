//! Rates: what an answer says of them, whose failures count together, and that replicas keep one
//! allowance between them.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::servers::{self, Redis};
use crate::harness::{
    ADMIN, Agent, Answer, Builder, CALL, Connection, Gateway, LAST_CHUNK, Pair, Request, SSE_HEAD,
    Seat, Step, card, chunk, until_holds,
};
use crate::on_both_pairs;
use crate::steady::asked;

/// The four fields of an answer.
fn told(answer: &Answer) -> [Option<&str>; 4] {
    let names = [
        "ratelimit-limit",
        "ratelimit-remaining",
        "ratelimit-reset",
        "ratelimit-policy",
    ];
    names.map(|name| {
        let all = answer.fields.iter();
        let count = all.filter(|(n, _)| n.eq_ignore_ascii_case(name)).count();
        assert!(count <= 1, "{name} stands {count} times: {answer:?}");
        answer.field(name)
    })
}

/// An agent that has rates of its own.
async fn boasting(stream: bool) -> Agent {
    let own = "RateLimit-Limit: 7\r\nRateLimit: \"x\";r=1\r\nRateLimit-Policy: 7;w=1\r\n";
    let head = if stream {
        SSE_HEAD.replacen("\r\n", &format!("\r\n{own}"), 1)
    } else {
        format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n{own}\r\n{{}}"
        )
    };
    Agent::scripted(move |_| {
        let mut steps = vec![Step::write(&head)];
        if stream {
            let event = "data: {\"jsonrpc\":\"2.0\",\"id\":\"c-1\",\"result\":{}}\n\n";
            steps.extend([Step::Write(chunk(event)), Step::write(LAST_CHUNK)]);
        }
        steps
    })
    .await
}

on_both_pairs! {
    async fn a_rate_asks_no_store_on_the_way_of_a_request(pair: Pair) {
        let builder = Builder::new(pair)
            .set("rate.caller_per_second", "1000000")
            .set("rate.caller_burst", "1000000");
        let gateway = builder.start().await;
        let agent = Agent::json(r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#).await;
        let (caller, target) = gateway.pair(agent).await;
        let request = Request::post(target.path(), CALL).bearer(&caller.token);
        let mut connection = Connection::open(gateway.public).await;
        let mut one = async || assert_eq!(connection.call(&request).await.status, 200);
        gateway.until_warm(&mut one).await;
        // What replicas tell each other of rates is beside the requests, and does not grow with them.
        let published = |(labels, _): &(&String, &u64)| labels.contains("operation=\"publish\"");
        let count = |asked: &std::collections::BTreeMap<String, u64>| {
            asked.iter().filter(published).map(|(_, count)| count).sum::<u64>()
        };
        let rest = |asked: &std::collections::BTreeMap<String, u64>| {
            asked.iter().filter(|entry| !published(entry)).map(|(_, count)| count).sum::<u64>()
        };
        let (before, began) = (asked(&gateway).await, Instant::now());
        for _ in 0..100 {
            one().await;
        }
        let (after, took) = (asked(&gateway).await, began.elapsed());
        let ticks = u64::try_from(took.as_millis() / 50).unwrap() + 2;
        assert!(count(&after) - count(&before) <= ticks, "{before:?} {after:?} in {took:?}");
        assert_eq!(rest(&after), rest(&before), "{before:?} {after:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_to_a_limited_credential_says_what_is_left() {
    let builder = Builder::new(Pair::Embedded)
        .set("rate.caller_per_second", "10")
        .set("rate.caller_burst", "1000");
    let gateway = builder.start().await;
    let (caller, target) = gateway.pair(boasting(false).await).await;
    let stream = gateway.seat("stream", "", boasting(true).await).await;
    let call = |seat: &Seat| Request::post(seat.path(), CALL).bearer(&caller.token);
    let requests = [
        (call(&target), 200),
        (call(&stream), 200),
        (
            Request::get("/workspaces/caller").bearer(&caller.token),
            200,
        ),
        (
            Request::get("/workspaces/nobody").bearer(&caller.token),
            403,
        ),
        (
            Request::post("/workspaces/nobody/a2a", CALL).bearer(&caller.token),
            403,
        ),
        (Request::post(target.path(), "{").bearer(&caller.token), 400),
    ];
    let began = Instant::now();
    for (asked, (request, status)) in (1..).zip(requests) {
        let answer = gateway.call(&request).await;
        assert_eq!(answer.status, status, "{}", answer.text());
        let [limit, remaining, reset, policy] = told(&answer);
        assert_eq!(
            (limit, policy),
            (Some("1000"), Some("1000;w=100")),
            "{request:?}"
        );
        let remaining: u64 = remaining.unwrap().parse().unwrap();
        let most = 1000 - asked + 10 * (began.elapsed().as_secs() + 1);
        assert!(
            (900..1000).contains(&remaining) && remaining <= most,
            "{remaining}"
        );
        let reset: u64 = reset.unwrap().parse().unwrap();
        assert!((1..=10).contains(&reset), "{reset}");
        assert_eq!(answer.field("ratelimit"), None, "the agent's own");
    }
    // Who proves nothing has no allowance, and nothing is told of it.
    let answer = gateway.call(&Request::get("/workspaces/caller")).await;
    assert_eq!((answer.status, told(&answer)), (401, [None; 4]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_limit_nothing_is_told_nor_what_an_agent_says_of_limits() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let (caller, target) = gateway.pair(boasting(false).await).await;
    let own = Request::get("/workspaces/caller").bearer(&caller.token);
    assert_eq!(told(&gateway.call(&own).await), [None; 4]);
    let answer = gateway
        .call(&Request::post(target.path(), CALL).bearer(&caller.token))
        .await;
    assert_eq!(told(&answer), [None; 4]);
    assert_eq!(answer.field("ratelimit"), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_credentials_of_one_principal_have_one_rate() {
    let builder = Builder::new(Pair::Embedded)
        .set("rate.caller_per_second", "1")
        .set("rate.caller_burst", "60");
    let gateway = builder.start().await;
    let (caller, _target) = gateway.pair(Agent::json("{}").await).await;
    let made = async |path: &str, body: &str, by: &str| {
        let answer = gateway.call(&Request::post(path, body).bearer(by)).await;
        assert!(answer.status < 300, "{}", answer.text());
        answer.json()["token"].as_str().unwrap().to_owned()
    };
    let mut tokens = vec![caller.token.clone()];
    for _ in 0..3 {
        tokens.push(made("/workspaces/caller/tokens", "{}", &caller.token).await);
    }
    let began = Instant::now();
    let discovered = Request::get("/registry/discover/target").bearer(&caller.token);
    let pair_token = gateway.call(&discovered).await.json()["token"].clone();
    let orgs = [
        made("/orgs/acme/tokens", "{}", ADMIN).await,
        made("/orgs/acme/tokens", "{}", ADMIN).await,
    ];
    let mut users = Vec::new();
    for _ in 0..3 {
        users.push(made("/canvas/tokens", r#"{"user":"ada","org":"acme"}"#, ADMIN).await);
    }
    for (principal, tokens) in [
        ("workspace", &tokens[..]),
        ("org", &orgs[..]),
        ("canvas", &users[..]),
    ] {
        let mut passed = 0;
        let mut connection = Connection::open(gateway.public).await;
        for token in tokens.iter().cycle() {
            let request = Request::get("/workspaces/caller").bearer(token);
            let answer = connection.call(&request).await;
            if answer.status == 429 {
                break;
            }
            passed += 1;
            let most = 60 + began.elapsed().as_secs() + 1;
            assert!(
                passed <= most,
                "{principal}: {passed} requests in {:?}",
                began.elapsed()
            );
        }
    }
    let call = Request::post("/workspaces/target/a2a", CALL).bearer(pair_token.as_str().unwrap());
    // One a second came back meanwhile; an account of its own would have 60 more.
    let mut passed = 0;
    while gateway.call(&call).await.status != 429 {
        passed += 1;
        assert!(
            passed <= began.elapsed().as_secs() + 1,
            "a pair token is one more credential"
        );
    }
    // Others have their own.
    let other = made("/canvas/tokens", r#"{"user":"bob","org":"acme"}"#, ADMIN).await;
    let list = Request::get("/workspaces").bearer(&other);
    assert_eq!(gateway.call(&list).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_request_passes_when_a_429_says_so() {
    let builder = Builder::new(Pair::Embedded)
        .set("rate.caller_per_second", "1")
        .set("rate.caller_burst", "3");
    let gateway = builder.start().await;
    let (caller, _target) = gateway.pair(Agent::json("{}").await).await;
    let request = Request::get("/workspaces/caller").bearer(&caller.token);
    let mut connection = Connection::open(gateway.public).await;
    let refused = loop {
        let answer = connection.call(&request).await;
        if answer.status == 429 {
            break answer;
        }
    };
    let refused_at = Instant::now();
    // At one a second the next one is never more than a second away.
    assert_eq!(refused.field("retry-after"), Some("1"));
    assert_eq!(
        told(&refused),
        [Some("3"), Some("0"), Some("1"), Some("3;w=3")]
    );
    while refused_at.elapsed() < Duration::from_secs(1) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(connection.call(&request).await.status, 200);
    // A 429 for something else has the fields of the rate, too.
    let builder = Builder::new(Pair::Embedded)
        .set("rate.caller_per_second", "1")
        .set("rate.caller_burst", "300")
        .set("events.connections_per_caller", "1");
    let gateway = builder.start().await;
    let events = Request::get("/events").bearer(ADMIN);
    let mut open = Connection::open(gateway.public).await;
    open.send(&events.wire("localhost")).await;
    assert_eq!(open.read_head().await.unwrap().status, 200);
    let answer = gateway.call(&events).await;
    assert_eq!(
        (answer.status, told(&answer)[0]),
        (429, Some("300")),
        "{}",
        answer.text()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_count_by_the_address_that_is_believed() {
    let trusting = [("", false), ("127.0.0.0/8", true)];
    for (proxies, trusted) in trusting {
        let builder = Builder::new(Pair::Embedded)
            .set("rate.failures_per_second", "3")
            .set("server.trusted_proxies", proxies);
        let gateway = builder.start().await;
        let (caller, target) = {
            let agent = Agent::json(r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#).await;
            gateway.pair(agent).await
        };
        let guess = |n: usize| {
            Request::post(target.path(), CALL)
                .bearer("a2aw_wrong")
                .field("X-Forwarded-For", format!("198.51.100.{n}"))
        };
        let mut connection = Connection::open(gateway.public).await;
        if trusted {
            for n in 0..30 {
                let answer = connection.call(&guess(n)).await;
                assert_eq!(answer.status, 401, "each has its own allowance");
            }
        }
        // One that goes on, or one that says it were many, is limited.
        let limited = async || {
            for n in 0..30 {
                let n = if trusted { 100 } else { n };
                let answer = gateway.call(&guess(n)).await;
                if answer.status == 429 {
                    assert_eq!(told(&answer)[0], Some("3"), "{answer:?}");
                    return true;
                }
            }
            false
        };
        until_holds("who guesses is limited", limited).await;
        if trusted {
            let neighbour = connection.call(&guess(101)).await;
            assert_eq!(neighbour.status, 401, "behind the same balancer");
        }
        let good = Request::post(target.path(), CALL)
            .bearer(&caller.token)
            .field("X-Forwarded-For", "198.51.100.100");
        let answer = connection.call(&good).await;
        assert_eq!(answer.status, 200, "who proves who they are does not wait");
    }
}

/// Three gateways on one Redis and one PostgreSQL, and the token of a workspace.
struct Replicas {
    all: Vec<Gateway>,
    token: String,
    redis: Redis,
}

impl Replicas {
    async fn new(per_second: &str, burst: &str) -> Self {
        let redis = Redis::start();
        let sql = servers::postgres().database();
        let mut all: Vec<Gateway> = Vec::new();
        for _ in 0..3 {
            let builder = Builder::new(Pair::Embedded)
                .stores(&sql, &redis.url())
                .set("rate.caller_per_second", per_second)
                .set("rate.caller_burst", burst);
            all.push(builder.start().await);
        }
        for gateway in &all {
            gateway.until_coherent().await;
        }
        let enrolment = all[0]
            .create(json!({"id": "caller", "name": "caller"}))
            .await;
        let url = Agent::json("{}").await.url();
        let token = all[0]
            .register("caller", &enrolment, &url, card("caller"))
            .await;
        Self { all, token, redis }
    }

    fn request(&self) -> Request {
        Request::get("/workspaces/caller").bearer(&self.token)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_used_up_at_one_replica_is_used_up_at_all() {
    let replicas = Replicas::new("1", "40").await;
    // Asks until it is refused; answers how often it was not.
    let passed = async |gateway: &Gateway, request: &Request| {
        let mut connection = Connection::open(gateway.public).await;
        let mut passed = 0_u32;
        while connection.call(request).await.status == 200 {
            passed += 1;
        }
        passed
    };
    let (request, began) = (replicas.request(), Instant::now());
    let used = passed(&replicas.all[0], &request).await;
    for other in &replicas.all[1..] {
        let name = "a2a_gateway_rate_shares_total";
        other.until_counted(name, &["heard"], f64::from(used)).await;
        // One a second comes back.
        let more = passed(other, &request).await;
        assert!(
            u64::from(more) <= began.elapsed().as_secs() + 1,
            "{more} more"
        );
    }
    // Another credential is not concerned. Without the link each replica keeps to its own count.
    replicas.redis.kill();
    let operator = Request::get("/workspaces/caller").bearer(ADMIN);
    assert!(passed(&replicas.all[1], &operator).await >= 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_the_long_run_three_replicas_let_pass_what_one_would() {
    let replicas = Replicas::new("10", "10").await;
    let lost = lost_shares(&replicas).await;
    let hammers = replicas
        .all
        .iter()
        .map(|gateway| hammered(gateway, &replicas));
    let (mut passed, mut refused, mut longest) = (0.0, 0.0, 0.0_f64);
    for (its, others, span) in futures_util::future::join_all(hammers).await {
        passed += its;
        refused += others;
        longest = longest.max(span);
    }
    let told = format!("{passed} passed, {refused} refused in {longest} s");
    // A replica that hears too late of the others' shares lets them be, and counts that.
    let heard = lost_shares(&replicas).await == lost;
    assert!(passed <= 15.0 * longest + 10.0 || !heard, "{told}");
    // What comes back while the machine stalls is lost, beyond the burst. Where it is too slow, nothing is refused.
    assert!(passed >= 2.5 * longest || refused < passed, "{told}");
}

async fn lost_shares(replicas: &Replicas) -> f64 {
    let mut lost = 0.0;
    for gateway in &replicas.all {
        lost += gateway
            .metric("a2a_gateway_rate_shares_total", &["lost"])
            .await;
    }
    lost
}

/// How many calls a replica lets pass and refuses in 4 s and longer, once its burst is gone, and that time.
async fn hammered(gateway: &Gateway, replicas: &Replicas) -> (f64, f64, f64) {
    let request = replicas.request();
    let mut connection = Connection::open(gateway.public).await;
    while connection.call(&request).await.status == 200 {}
    let begin = Instant::now();
    let (mut passed, mut refused) = (0.0, 0.0);
    while begin.elapsed() < Duration::from_secs(4) {
        match connection.call(&request).await.status {
            200 => passed += 1.0,
            _ => refused += 1.0,
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    (passed, refused, begin.elapsed().as_secs_f64())
}
