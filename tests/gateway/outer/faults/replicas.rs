//! Three gateways on one Redis and one PostgreSQL are one gateway: what is changed on one, the other
//! two obey, with the publish/subscribe link and without. How soon, they print; `scripts/soak` measures it.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::servers::Redis;
use crate::harness::{Agent, Answer, CALL, Gateway, Request, Seat, Stores, until_holds};

/// The time after which a change counts as not obeyed: what is in memory stays for a quarter of an hour.
const NEVER: Duration = Duration::from_secs(60);

/// Rounds of each case with the link; `A2A_GATEWAY_ROUNDS` sets both numbers. 200 take three minutes.
const ROUNDS: u32 = 20;

/// Rounds with the link cut: each waits for the link to come back. 200 take over half an hour.
const ROUNDS_CUT: u32 = 3;

#[expect(
    clippy::disallowed_methods,
    reason = "for measurements: the gateway itself reads no such variable"
)]
fn rounds(default: u32) -> u32 {
    let set = std::env::var("A2A_GATEWAY_ROUNDS").ok();
    set.and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Which of the five changes a number belongs to.
const CHANGES: [&str; 5] = ["revoke", "move", "url key", "pause", "grant"];

struct Replicas {
    redis: Redis,
    /// Changes are made at the first, and must be obeyed by the others.
    all: [Gateway; 3],
    caller: Seat,
    /// In another org: reaches `granted` by a grant only.
    stranger: Seat,
    moved: Seat,
    paused: Seat,
    granted: Seat,
    /// Listens at `first` or at `second`, as another program says in Redis.
    redirected: Seat,
    second: Agent,
}

impl Replicas {
    async fn new() -> Self {
        let stores = Stores::start();
        // Nobody beats here, and 200 rounds are long.
        let all: [Gateway; 3] = stores.replicas("registry.heartbeat_ttl=1h").await;
        let one = &all[0];
        let ok = async || Agent::json(r#"{"jsonrpc":"2.0","id":"c-1","result":"first"}"#).await;
        for (id, org) in [("team", "a"), ("elsewhere", "a"), ("foreign", "b")] {
            one.create(json!({"id": id, "name": id, "org": org})).await;
        }
        let seat = async |id: &str, parent: &str| one.seat(id, parent, ok().await).await;
        Self {
            redis: stores.redis,
            caller: seat("caller", "team").await,
            stranger: seat("stranger", "foreign").await,
            moved: seat("moved", "team").await,
            paused: seat("paused", "team").await,
            granted: seat("granted", "team").await,
            redirected: seat("redirected", "team").await,
            second: Agent::json(r#"{"jsonrpc":"2.0","id":"c-1","result":"second"}"#).await,
            all,
        }
    }

    /// A change on the first replica by the operator.
    async fn change(&self, method: &str, path: &str, body: Option<serde_json::Value>) -> Answer {
        let mut request = match body {
            Some(body) => Request::post(path, body.to_string()),
            None => Request::new(method, path),
        };
        request.method = method.into();
        let answer = self.all[0].as_operator(request).await;
        let done = matches!(answer.status, 200 | 201);
        assert!(done, "{method} {path}: {}", answer.text());
        answer
    }

    /// How long after now the last of the others obeyed: the beginning of the last call that was
    /// still decided by the old fact counts.
    async fn obeyed(&self, request: &Request, new: impl Fn(&Answer) -> bool) -> Duration {
        let changed = Instant::now();
        let own = self.all[0].call(request).await;
        let said = own.text();
        assert!(new(&own), "who made the change obeys at once: {said}");
        let mut worst = Duration::ZERO;
        for other in &self.all[1..] {
            loop {
                let began = changed.elapsed();
                let answer = other.call(request).await;
                if new(&answer) {
                    break;
                }
                worst = worst.max(began);
                let said = answer.text();
                assert!(began < NEVER, "the old fact after {began:?}: {said}");
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
        worst
    }

    /// As [`Replicas::obeyed`], of a state that was known before: two calls make it so everywhere.
    async fn known(&self, request: &Request, old: impl Fn(&Answer) -> bool) {
        for gateway in self.all.iter().flat_map(|one| [one, one]) {
            let is_known = async || old(&gateway.call(request).await);
            until_holds("what was before is known", is_known).await;
        }
    }

    async fn revoke(&self, between: &impl AsyncFn()) -> Duration {
        let tokens = format!("/workspaces/{}/tokens", self.caller.id);
        let issued = self.change("POST", &tokens, None).await.json();
        let token = issued["token"].as_str().unwrap();
        let request = Request::post(self.paused.path(), CALL).bearer(token);
        self.known(&request, |a| a.status != 401).await;
        between().await;
        let path = format!("{tokens}/{}", issued["id"].as_str().unwrap());
        self.change("DELETE", &path, None).await;
        self.obeyed(&request, |a| a.status == 401).await
    }

    async fn relocate(&self, between: &impl AsyncFn()) -> Duration {
        let request = self.caller.calls(&self.moved);
        self.known(&request, |a| a.status == 200).await;
        between().await;
        let to = async |parent: &str| {
            let body = Some(json!({"parent_id": parent}));
            self.change("PATCH", "/workspaces/moved", body).await;
        };
        to("elsewhere").await;
        let away = self.obeyed(&request, |a| a.status == 403).await;
        to("team").await;
        away.max(self.obeyed(&request, |a| a.status == 200).await)
    }

    async fn redirect(&self, between: &impl AsyncFn()) -> Duration {
        let request = self.caller.calls(&self.redirected);
        let by = |who: &'static str| move |a: &Answer| a.text().contains(who);
        self.known(&request, by("first")).await;
        between().await;
        let key = format!("ws:{}:url", self.redirected.id);
        self.redis.command(&["SET", &key, &self.second.url()]);
        let there = self.obeyed_by_all(&request, by("second")).await;
        let url = self.redirected.agent.url();
        self.redis.command(&["SET", &key, &url]);
        there.max(self.obeyed_by_all(&request, by("first")).await)
    }

    /// For what another program changed: the first replica has no head start.
    async fn obeyed_by_all(&self, request: &Request, new: impl Fn(&Answer) -> bool) -> Duration {
        let changed = Instant::now();
        loop {
            let began = changed.elapsed();
            if new(&self.all[0].call(request).await) {
                return began.max(self.obeyed(request, new).await);
            }
            assert!(began < NEVER, "the old URL after {began:?}");
        }
    }

    async fn pause(&self, between: &impl AsyncFn()) -> Duration {
        let request = self.caller.calls(&self.paused);
        self.known(&request, |a| a.status == 200).await;
        between().await;
        let path = |what: &str| format!("/workspaces/{}/{what}", self.paused.id);
        self.change("POST", &path("pause"), None).await;
        let off = |a: &Answer| a.status == 503 && a.reason() == "workspace_offline";
        let paused = self.obeyed(&request, off).await;
        self.change("POST", &path("resume"), None).await;
        paused.max(self.obeyed(&request, |a| a.status == 200).await)
    }

    async fn grant(&self, between: &impl AsyncFn()) -> Duration {
        let request = self.stranger.calls(&self.granted);
        self.known(&request, |a| a.status == 403).await;
        between().await;
        let pair = json!({"caller_id": self.stranger.id, "target_id": self.granted.id});
        let made = self.change("POST", "/grants", Some(pair)).await.json();
        let given = self.obeyed(&request, |a| a.status == 200).await;
        let path = format!("/grants/{}", made["id"].as_str().unwrap());
        self.change("DELETE", &path, None).await;
        given.max(self.obeyed(&request, |a| a.status == 403).await)
    }

    /// Every change in turn; `between` happens after the old fact is known and before the change.
    async fn round(&self, between: impl AsyncFn()) -> [Duration; 5] {
        [
            self.revoke(&between).await,
            self.relocate(&between).await,
            self.redirect(&between).await,
            self.pause(&between).await,
            self.grant(&between).await,
        ]
    }

    async fn mend_link(&self) {
        self.redis.allow_links();
        for gateway in &self.all {
            gateway.until_coherent().await;
        }
    }
}

fn worst(all: &[[Duration; 5]]) -> String {
    let of = |change: usize| all.iter().map(|round| round[change]).max().unwrap();
    let words = CHANGES.iter().enumerate();
    let words = words.map(|(i, name)| format!("{name} {:?}", of(i)));
    let words: Vec<_> = words.collect();
    format!("{} rounds, worst: {}", all.len(), words.join(", "))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_replica_is_told_the_others_obey() {
    let replicas = Replicas::new().await;
    let mut all = Vec::new();
    for _ in 0..rounds(ROUNDS) {
        all.push(replicas.round(async || {}).await);
    }
    println!("linked: {}", worst(&all));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn they_obey_when_the_link_was_cut_in_between_and_after_it_came_back() {
    let replicas = Replicas::new().await;
    let (mut cut, mut back) = (Vec::new(), Vec::new());
    for done in 1..=rounds(ROUNDS_CUT) {
        cut.push(replicas.round(async || replicas.redis.cut_links()).await);
        replicas.mend_link().await;
        back.push(replicas.round(async || {}).await);
        // Each takes seconds: what is known so far is not to be waited for.
        if done % ROUNDS_CUT == 0 {
            println!("cut, {done} rounds: {}", worst(&cut));
            println!("linked again, {done} rounds: {}", worst(&back));
        }
    }
}
