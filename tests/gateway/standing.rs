//! What a credential opened ends with it: streams under way, when a token is revoked, when one of the two ends is
//! removed, paused or moved out of reach, and what an org token made when that one ends.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::servers::{self, Redis};
use crate::harness::{
    ADMIN, Agent, Builder, CALL, Connection, Gateway, Pair, Request, SSE_HEAD, Step, Stores, card,
    chunk, until_found,
};
use crate::on_embedded;
use crate::steady::asked;

/// An agent that sends an event each 50 ms for a minute, which ends a stream with another reason than any change.
pub(crate) async fn ticking() -> Agent {
    Agent::scripted(|_| {
        let mut steps = vec![Step::write(SSE_HEAD)];
        for n in 0..1200 {
            let result = json!({"kind": "message", "n": n});
            let event = json!({"jsonrpc": "2.0", "id": "c-1", "result": result});
            steps.push(Step::Write(chunk(format!("data: {event}\n\n"))));
            steps.push(Step::Wait(Duration::from_millis(50)));
        }
        steps
    })
    .await
}

/// A stream that has begun.
pub(crate) struct Open(Connection);

impl Open {
    pub(crate) async fn new(gateway: &Gateway, target: &str, token: &str) -> Self {
        Self::by(gateway, &stream_of(target).bearer(token)).await.0
    }

    /// A stream that a request opens, and its name.
    async fn by(gateway: &Gateway, request: &Request) -> (Self, String) {
        let mut connection = Connection::open(gateway.public).await;
        connection.ask(request).await;
        let head = connection.read_head().await.unwrap();
        assert_eq!(head.status, 200);
        connection.next_chunk().await.unwrap();
        let name = head.field("x-a2a-stream").unwrap_or_default().to_owned();
        (Self(connection), name)
    }

    /// The reason in its last event.
    pub(crate) async fn last(mut self) -> String {
        let mut last = Vec::new();
        while let Some(piece) = self.0.next_chunk().await {
            last = piece;
        }
        let text = String::from_utf8(last).unwrap();
        let mut lines = text.lines().rev();
        let data = lines.find_map(|line| line.strip_prefix("data:"));
        let data: Value = serde_json::from_str(data.unwrap_or("null")).unwrap();
        let reason = &data["error"]["data"][0]["reason"];
        reason.as_str().unwrap_or(&text).to_lowercase()
    }

    /// It goes on for so many events.
    pub(crate) async fn goes_on(&mut self, events: usize) {
        for _ in 0..events {
            self.0.next_chunk().await.expect("it goes on");
        }
    }
}

fn stream_of(target: &str) -> Request {
    let call = CALL.replace("message/send", "message/stream");
    Request::post(format!("/workspaces/{target}/a2a"), call)
}

async fn tell(gateway: &Gateway, method: &str, path: &str, body: Value) -> Value {
    let mut request = Request::post(path, body.to_string());
    request.method = method.into();
    let answer = gateway.as_operator(request).await;
    assert!(answer.status < 300, "{method} {path}: {}", answer.text());
    answer.json()
}

/// A root of acme with an agent; answers its token.
async fn root(gateway: &Gateway, id: &str, org: &str, agent: &Agent) -> String {
    let new = json!({"id": id, "name": id, "org": org});
    let enrolment = gateway.create(new).await;
    let url = agent.url();
    gateway.register(id, &enrolment, &url, card(id)).await
}

/// Opens streams at `at`, makes each change at `by`, and asserts how they end.
async fn changes(at: &Gateway, by: &Gateway) {
    let agent = ticking().await;
    let mut tokens = std::collections::HashMap::new();
    for id in "c1 c2 c3 c4 c5 c6 c7 t4 t5 t6 t7 calm".split(' ') {
        tokens.insert(id, root(by, id, "acme", &agent).await);
    }
    let second = tell(by, "POST", "/workspaces/c1/tokens", json!({})).await;
    let first = Open::new(at, "calm", second["token"].as_str().unwrap()).await;
    let mut streams = vec![("c1", first, "unauthenticated")];
    for (caller, target, reason) in [
        ("c2", "calm", "unauthenticated"),
        ("c3", "calm", "not_permitted"),
        ("c4", "t4", "workspace_removed"),
        ("c5", "t5", "not_permitted"),
        ("c6", "t6", "not_permitted"),
        ("c7", "t7", "not_permitted"),
    ] {
        streams.push((caller, Open::new(at, target, &tokens[caller]).await, reason));
    }
    let mut calm = Open::new(at, "calm", &tokens["c1"]).await;
    let revoked = format!("/workspaces/c1/tokens/{}", second["id"].as_str().unwrap());
    for (method, path, body) in [
        ("DELETE", &*revoked, Value::Null),
        ("DELETE", "/workspaces/c2", Value::Null),
        ("POST", "/workspaces/c3/pause", json!({})),
        ("DELETE", "/workspaces/t4", Value::Null),
        ("POST", "/workspaces/t5/pause", json!({})),
        ("PATCH", "/workspaces/t6", json!({"org": "globex"})),
        ("PATCH", "/workspaces/c7", json!({"org": "globex"})),
    ] {
        tell(by, method, path, body).await;
    }
    for (caller, stream, reason) in streams {
        assert_eq!(stream.last().await, reason, "{caller}");
    }
    calm.goes_on(5).await;
}

on_embedded! {
    async fn a_stream_ends_at_the_end_of_its_token() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let agent = ticking().await;
        let own = root(&gateway, "caller", "acme", &agent).await;
        root(&gateway, "target", "acme", &agent).await;
        let mut calm = Open::new(&gateway, "target", &own).await;
        let began = Instant::now();
        let brief = tell(&gateway, "POST", "/workspaces/caller/tokens", json!({"expires_in": 12})).await;
        let stream = Open::new(&gateway, "target", brief["token"].as_str().unwrap()).await;
        assert_eq!(stream.last().await, "unauthenticated");
        assert!(began.elapsed() > Duration::from_millis(11_900), "it ended too early");
        calm.goes_on(5).await;
    }

    async fn a_stream_ends_at_the_end_of_its_grant_however_it_is_read() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let agent = ticking().await;
        let brief = root(&gateway, "brief", "here", &agent).await;
        let lasting = root(&gateway, "lasting", "here", &agent).await;
        root(&gateway, "target", "there", &agent).await;
        let grant = async |caller: &str, span: Duration| {
            let end = humantime::format_rfc3339_millis(std::time::SystemTime::now() + span).to_string();
            let grant = json!({"caller_id": caller, "target_id": "target", "expires_at": end});
            tell(&gateway, "POST", "/grants", grant).await;
        };
        grant("brief", Duration::from_secs(600)).await;
        grant("lasting", Duration::from_secs(600)).await;
        let (plain, name) = Open::by(&gateway, &stream_of("target").bearer(&brief)).await;
        let keyed = stream_of("target").bearer(&brief).field("Idempotency-Key", "k");
        let (keyed, _) = Open::by(&gateway, &keyed).await;
        let resumed = Request::get(format!("/workspaces/target/streams/{name}")).bearer(&brief);
        let (resumed, _) = Open::by(&gateway, &resumed).await;
        let mut calm = Open::new(&gateway, "target", &lasting).await;
        // From here on nothing is announced.
        grant("brief", Duration::from_secs(12)).await;
        for (stream, what) in [(plain, "plain"), (keyed, "keyed"), (resumed, "resumed")] {
            assert_eq!(stream.last().await, "not_permitted", "{what}");
        }
        calm.goes_on(5).await;
    }

    async fn a_running_stream_ends_with_what_let_it_in() {
        let gateway = Gateway::start(Pair::Embedded).await;
        changes(&gateway, &gateway).await;
    }

    async fn what_an_org_token_made_ends_with_it_and_stays_in_its_org() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let agent = ticking().await;
        for id in ["one", "two", "loose"] {
            root(&gateway, id, "acme", &agent).await;
        }
        let made = tell(&gateway, "POST", "/orgs/acme/tokens", json!({})).await;
        let org = made["token"].as_str().unwrap();
        let canvas = async |body: Value, by: &str| {
            let request = Request::post("/canvas/tokens", body.to_string()).bearer(by);
            let answer = gateway.call(&request).await.has(201);
            answer.json()["token"].as_str().unwrap().to_owned()
        };
        let listed = canvas(json!({"user": "ada", "workspaces": ["one", "two"]}), org).await;
        let scoped = canvas(json!({"user": "bob"}), org).await;
        let operators = canvas(json!({"user": "eve", "workspaces": ["one"]}), ADMIN).await;
        let read = async |id: &str, token: &str| {
            let request = Request::get(format!("/workspaces/{id}")).bearer(token);
            gateway.call(&request).await.status
        };
        for token in [&listed, &scoped, &operators] {
            assert_eq!(read("one", token).await, 200);
        }
        // It moved away: the list names it still.
        let streams = [
            (Open::new(&gateway, "two", &listed).await, "unauthenticated"),
            (Open::new(&gateway, "loose", &scoped).await, "unauthenticated"),
        ];
        let moved = Open::new(&gateway, "one", &listed).await;
        let ticket = gateway.call(&Request::post("/ws/tickets", "").bearer(&listed)).await;
        let ticket = ticket.json()["ticket"].as_str().unwrap().to_owned();
        tell(&gateway, "PATCH", "/workspaces/one", json!({"org": "globex"})).await;
        assert_eq!(read("one", &listed).await, 403);
        assert_eq!(moved.last().await, "not_permitted");
        assert_eq!(read("one", &operators).await, 200, "an operator's list crosses orgs");
        let list = gateway.call(&Request::get("/workspaces").bearer(&listed)).await.json();
        let ids: Vec<_> = list.as_array().unwrap().iter().map(|one| &one["id"]).collect();
        assert_eq!(ids, ["two"]);
        let path = format!("/orgs/acme/tokens/{}", made["id"].as_str().unwrap());
        tell(&gateway, "DELETE", &path, Value::Null).await;
        for token in [&listed, &scoped] {
            assert_eq!(read("two", token).await, 401);
        }
        let watch = gateway.call(&Request::get(format!("/events?ticket={ticket}"))).await;
        assert_eq!(watch.status, 401, "its tickets end, too");
        for (stream, reason) in streams {
            assert_eq!(stream.last().await, reason);
        }
        assert_eq!(read("one", &operators).await, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_on_one_replica_ends_streams_on_another() {
    let stores = Stores::start();
    let [one, other] = stores.replicas("").await;
    changes(&one, &other).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_could_not_be_checked_is_checked_again() {
    let (redis, postgres) = (Redis::start(), servers::postgres());
    let (relay, through) = postgres.relayed();
    let direct = format!("127.0.0.1:{}", postgres.port());
    let direct = through.replace(&relay.address().to_string(), &direct);
    let mut replicas = Vec::new();
    for (sql, timeout) in [(&through, "5s"), (&direct, "20s")] {
        let builder = Builder::new(Pair::Embedded).stores(sql, &redis.url());
        replicas.push(builder.set("stores.timeout", timeout).start().await);
        replicas.last().unwrap().until_coherent().await;
    }
    let (at, by) = (&replicas[0], &replicas[1]);
    let agent = ticking().await;
    let own = root(by, "caller", "acme", &agent).await;
    root(by, "target", "acme", &agent).await;
    let second = tell(by, "POST", "/workspaces/caller/tokens", json!({})).await;
    let stream = Open::new(at, "target", second["token"].as_str().unwrap()).await;
    let mut calm = Open::new(at, "target", &own).await;
    let read = Request::get("/workspaces/target").bearer(&own);
    let reads = async || assert_eq!(at.call(&read).await.status, 200);
    at.until_warm(reads).await;
    relay.cut();
    let second = second["id"].as_str().unwrap();
    let revoked = format!("/workspaces/caller/tokens/{second}");
    tell(by, "DELETE", &revoked, Value::Null).await;
    let (failed, of) = (
        "a2a_gateway_store_errors_total",
        ["operation=\"find_token\""],
    );
    at.until_counted(failed, &of, 1.0).await;
    relay.resume();
    assert_eq!(stream.last().await, "unauthenticated");
    calm.goes_on(5).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_goes_on_asks_no_store() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let agent = ticking().await;
    let token = root(&gateway, "caller", "acme", &agent).await;
    root(&gateway, "target", "acme", &agent).await;
    let mut open = Open::new(&gateway, "target", &token).await;
    // What its beginning leaves to be written is written in the end.
    until_found("no store is asked", async || {
        let before = asked(&gateway).await;
        open.goes_on(20).await;
        (asked(&gateway).await == before).then_some(())
    })
    .await;
}
