//! Rates: what an answer says of them, whose failures count together, and that replicas keep one
//! allowance between them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::harness::{
    ADMIN, Agent, Answer, Builder, CALL, Connection, Gateway, LAST_CHUNK, Pair, Request, SSE_HEAD,
    Step, Stores, answering, chunk, ok_json, until_holds,
};
use crate::on_both_pairs;
use crate::steady::asked;

/// The four fields of an answer.
fn told(answer: &Answer) -> [Option<&str>; 4] {
    ["limit", "remaining", "reset", "policy"].map(|name| {
        let name = &format!("ratelimit-{name}");
        let all = answer.fields.iter();
        let count = all.filter(|(n, _)| n.eq_ignore_ascii_case(name)).count();
        assert!(count <= 1, "{name} stands {count} times: {answer:?}");
        answer.field(name)
    })
}

/// An agent that has rates of its own.
async fn boasting(stream: bool) -> Agent {
    let own = "RateLimit-Limit: 7\r\nRateLimit: \"x\";r=1\r\nRateLimit-Policy: 7;w=1\r\n";
    let plain = || String::from_utf8(ok_json("{}")).unwrap();
    let event = || chunk("data: {\"jsonrpc\":\"2.0\",\"id\":\"c-1\",\"result\":{}}\n\n");
    let streamed = || {
        format!(
            "{SSE_HEAD}{}{LAST_CHUNK}",
            String::from_utf8_lossy(&event())
        )
    };
    let answer = if stream { streamed() } else { plain() };
    let answer = answer.replacen("\r\n", &format!("\r\n{own}"), 1);
    Agent::scripted(move |_| vec![Step::write(&answer)]).await
}

on_both_pairs! {
    async fn a_rate_asks_no_store_on_the_way_of_a_request(pair: Pair) {
        let rates = "rate.caller_per_second=1000000 rate.caller_burst=1000000";
        let gateway = Builder::new(pair).sets(rates).start().await;
        let (caller, target) = gateway.pair(answering().await).await;
        let request = caller.calls(&target);
        let mut connection = Connection::open(gateway.public).await;
        let mut one = async || assert_eq!(connection.call(&request).await.status, 200);
        gateway.until_warm(&mut one).await;
        // What replicas tell each other of rates is beside the requests, and does not grow with them.
        let sum = |asked: &BTreeMap<String, u64>, published: bool| {
            let is_so = |(labels, _): &(&String, &u64)| labels.contains("operation=\"publish\"") == published;
            asked.iter().filter(is_so).map(|(_, count)| count).sum::<u64>()
        };
        let (began, before) = (Instant::now(), asked(&gateway).await);
        for _ in 0..100 {
            one().await;
        }
        let (after, took) = (asked(&gateway).await, began.elapsed());
        let ticks = u64::try_from(took.as_millis() / 50).unwrap() + 2;
        assert!(sum(&after, true) - sum(&before, true) <= ticks, "{before:?} {after:?} in {took:?}");
        assert_eq!(sum(&after, false), sum(&before, false), "{before:?} {after:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_to_a_limited_credential_says_what_is_left() {
    let gateway = Gateway::with("rate.caller_per_second=10 rate.caller_burst=1000").await;
    let (caller, target) = gateway.pair(boasting(false).await).await;
    let stream = gateway.seat("stream", "", boasting(true).await).await;
    let requests = [
        (caller.calls(&target), 200),
        (caller.calls(&stream), 200),
        (read_by(&caller.token), 200),
        (
            Request::get("/workspaces/nobody").bearer(&caller.token),
            403,
        ),
        (
            Request::post("/workspaces/nobody/a2a", CALL).bearer(&caller.token),
            403,
        ),
        (caller.sends(&target, "{"), 400),
    ];
    let began = Instant::now();
    for (asked, (request, status)) in (1..).zip(requests) {
        let answer = gateway.call(&request).await.has(status);
        let [limit, remaining, reset, policy] = told(&answer);
        let of_all = (limit, policy);
        assert_eq!(of_all, (Some("1000"), Some("1000;w=100")), "{request:?}");
        let remaining: u64 = remaining.unwrap().parse().unwrap();
        let most = 1000 - asked + 10 * (began.elapsed().as_secs() + 1);
        let is_right = (900..1000).contains(&remaining) && remaining <= most;
        assert!(is_right, "{remaining}");
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
    let own = read_by(&caller.token);
    assert_eq!(told(&gateway.call(&own).await), [None; 4]);
    let answer = gateway.call(&caller.calls(&target)).await;
    assert_eq!(told(&answer), [None; 4]);
    assert_eq!(answer.field("ratelimit"), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_credentials_of_one_principal_have_one_rate() {
    let gateway = Gateway::with("rate.caller_per_second=1 rate.caller_burst=60").await;
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
    let (mut orgs, mut users) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        orgs.push(made("/orgs/acme/tokens", "{}", ADMIN).await);
    }
    for _ in 0..3 {
        users.push(made("/canvas/tokens", r#"{"user":"ada","org":"acme"}"#, ADMIN).await);
    }
    for (principal, tokens) in [("workspace", tokens), ("org", orgs), ("canvas", users)] {
        let mut passed = 0;
        let mut connection = Connection::open(gateway.public).await;
        for token in tokens.iter().cycle() {
            if connection.call(&read_by(token)).await.status == 429 {
                break;
            }
            passed += 1;
            let took = began.elapsed();
            let told = format!("{principal}: {passed} requests in {took:?}");
            assert!(passed <= 60 + took.as_secs() + 1, "{told}");
        }
    }
    let call = Request::post("/workspaces/target/a2a", CALL).bearer(pair_token.as_str().unwrap());
    // One a second came back meanwhile; an account of its own would have 60 more.
    let mut passed = 0;
    while gateway.call(&call).await.status != 429 {
        passed += 1;
        let most = began.elapsed().as_secs() + 1;
        assert!(passed <= most, "a pair token is one more credential");
    }
    // Others have their own.
    let other = made("/canvas/tokens", r#"{"user":"bob","org":"acme"}"#, ADMIN).await;
    let list = Request::get("/workspaces").bearer(&other);
    assert_eq!(gateway.call(&list).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_request_passes_when_a_429_says_so() {
    let gateway = Gateway::with("rate.caller_per_second=1 rate.caller_burst=3").await;
    let (caller, _target) = gateway.pair(Agent::json("{}").await).await;
    let request = read_by(&caller.token);
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
    let fields = ["3", "0", "1", "3;w=3"];
    assert_eq!(told(&refused), fields.map(Some));
    while refused_at.elapsed() < Duration::from_secs(1) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(connection.call(&request).await.status, 200);
    // A 429 for something else has the fields of the rate, too.
    let rates = "rate.caller_per_second=1 rate.caller_burst=300 events.connections_per_caller=1";
    let gateway = Gateway::with(rates).await;
    let events = Request::get("/events").bearer(ADMIN);
    let mut open = Connection::open(gateway.public).await;
    open.ask(&events).await;
    assert_eq!(open.read_head().await.unwrap().status, 200);
    let answer = gateway.call(&events).await.has(429);
    assert_eq!(told(&answer)[0], Some("300"), "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_count_by_the_address_that_is_believed() {
    let trusting = [("", false), ("127.0.0.0/8", true)];
    for (proxies, trusted) in trusting {
        let settings = format!("rate.failures_per_second=3 server.trusted_proxies={proxies}");
        let gateway = Gateway::with(&settings).await;
        let (caller, target) = gateway.pair(answering().await).await;
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
        let good = caller.calls(&target);
        let good = good.field("X-Forwarded-For", "198.51.100.100");
        let answer = connection.call(&good).await;
        assert_eq!(answer.status, 200, "who proves who they are does not wait");
    }
}

/// Three gateways on one Redis and one PostgreSQL, and the token of a workspace.
struct Replicas {
    all: [Gateway; 3],
    token: String,
    stores: Stores,
}

impl Replicas {
    async fn new(rates: &str) -> Self {
        let stores = Stores::start();
        let all: [Gateway; 3] = stores.replicas(rates).await;
        let token = all[0].seat("caller", "", answering().await).await.token;
        Self { all, token, stores }
    }
}

/// Reads the caller's workspace.
fn read_by(token: &str) -> Request {
    Request::get("/workspaces/caller").bearer(token)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_used_up_at_one_replica_is_used_up_at_all() {
    let replicas = Replicas::new("rate.caller_per_second=1 rate.caller_burst=40").await;
    // Asks until it is refused; answers how often it was not.
    let passed = async |gateway: &Gateway, request: &Request| {
        let mut connection = Connection::open(gateway.public).await;
        let mut passed = 0_u32;
        while connection.call(request).await.status == 200 {
            passed += 1;
        }
        passed
    };
    let (request, began) = (read_by(&replicas.token), Instant::now());
    // The requests that created and registered the workspace are heard, too.
    let mut told = passed(&replicas.all[0], &request).await + 2;
    for other in &replicas.all[1..] {
        // What a replica misses while the machine stalls is forgiven: the first goes on until it is made up for.
        let is_heard = async || {
            replicas.all[0].call(&request).await;
            heard(other).await >= f64::from(told)
        };
        until_holds("all is heard", is_heard).await;
        // One a second comes back.
        let more = passed(other, &request).await;
        assert!(
            u64::from(more) <= began.elapsed().as_secs() + 1,
            "{more} more"
        );
        told += more;
    }
    // Another credential is not concerned. Without the link each replica keeps to its own count.
    replicas.stores.redis.kill();
    assert!(passed(&replicas.all[1], &read_by(ADMIN)).await >= 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_the_long_run_three_replicas_let_pass_what_one_would() {
    let replicas = Replicas::new("rate.caller_per_second=10 rate.caller_burst=10").await;
    let before = all_heard(&replicas).await;
    let all = replicas.all.iter();
    let hammers = all.map(|gateway| hammered(gateway, read_by(&replicas.token)));
    let (mut burst, mut passed, mut refused, mut longest) = (0.0, 0.0, 0.0, 0.0_f64);
    for (first, its, others, span) in futures_util::future::join_all(hammers).await {
        burst += first;
        passed += its;
        refused += others;
        longest = longest.max(span);
    }
    // Two others hear of each. What one misses in a stall is forgiven, and passes once more at most.
    let missed: f64 = 2.0 * (burst + passed) - (all_heard(&replicas).await - before);
    let told = format!("{passed} passed, {refused} refused, {missed} missed in {longest} s");
    assert!(passed <= 15.0 * longest + 10.0 + missed.max(0.0), "{told}");
    // What comes back while the machine stalls is lost, beyond the burst. Where it is too slow, nothing is refused.
    assert!(passed >= 2.5 * longest || refused < passed, "{told}");
}

/// Of how many requests at others a replica has heard.
async fn heard(gateway: &Gateway) -> f64 {
    let name = "a2a_gateway_rate_shares_total";
    gateway.metric(name, &["heard"]).await
}

async fn all_heard(replicas: &Replicas) -> f64 {
    let mut all = 0.0;
    for gateway in &replicas.all {
        all += heard(gateway).await;
    }
    all
}

/// A replica's burst, how many calls it lets pass and refuses in 4 s and longer after it, and that time.
async fn hammered(gateway: &Gateway, request: Request) -> (f64, f64, f64, f64) {
    let mut connection = Connection::open(gateway.public).await;
    let mut burst = 0.0;
    while connection.call(&request).await.status == 200 {
        burst += 1.0;
    }
    let begin = Instant::now();
    let (mut passed, mut refused) = (0.0, 0.0);
    while begin.elapsed() < Duration::from_secs(4) {
        match connection.call(&request).await.status {
            200 => passed += 1.0,
            _ => refused += 1.0,
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    (burst, passed, refused, begin.elapsed().as_secs_f64())
}
