//! Redis killed, again and again, while two gateways deliver everything there is to deliver. What was
//! acknowledged is there, once and in order for each reader; no agent ran a call with a key or a delegation
//! twice; a broken stream is taken up whole, or it is said that it cannot be; what is refused meanwhile is
//! refused in words and at once; and afterwards everything works.
//!
//! `A2A_GATEWAY_REDIS_KILLS=30 cargo test --test gateway -- outages::delivery --nocapture` prints counts.

#![expect(
    clippy::disallowed_methods,
    reason = "how often, and what became of it, is for whoever runs it by hand"
)]

mod checks;
mod streams;
mod work;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::time::timeout;

use self::streams::Taken;
use crate::harness::servers::Redis;
use crate::harness::{Agent, Answer, Connection, Gateway, Request, Stores, card_1_0};
use crate::jobs;

/// How often Redis is killed, if nothing else is asked for.
const KILLS: usize = 4;

/// No answer takes longer than a clock for each store that a request asks, one after the other, on a machine
/// that others use, too.
const ANSWERED_WITHIN: Duration = Duration::from_secs(60);

/// Nothing that is to be known at all stays unknown for longer.
const KNOWN_WITHIN: Duration = Duration::from_secs(120);

/// What was acknowledged, and what came of the rest.
#[derive(Default)]
struct Told {
    /// Names and texts of messages.
    messages: Mutex<Vec<(String, String)>>,
    /// By the text of the call: whether it was answered; else its outcome was said to be unknown.
    keyed: Mutex<HashMap<String, bool>>,
    /// Names and texts.
    delegations: Mutex<Vec<(String, String)>>,
    /// The same of calls that wait for a target that is away.
    deferred: Mutex<Vec<(String, String)>>,
    streams: Mutex<Vec<Taken>>,
    /// How many requests were refused.
    refused: AtomicUsize,
    /// How long the slowest answer took.
    slowest: Mutex<Duration>,
    next: AtomicUsize,
    over: AtomicBool,
}

/// Who works, and where.
#[derive(Clone)]
struct Client {
    gateways: [SocketAddr; 2],
    token: String,
    told: Arc<Told>,
}

impl Client {
    /// One request, to one of the gateways by chance. `None`: refused for a store that is away.
    async fn call(&self, request: Request) -> Option<Answer> {
        let (which, _) = uuid::Uuid::new_v4().as_u64_pair();
        self.call_at(usize::from(which % 2 == 0), request).await
    }

    /// The same at this one. Nothing but a word about the store counts as a refusal.
    async fn call_at(&self, gateway: usize, request: Request) -> Option<Answer> {
        let request = request.bearer(&self.token);
        let began = Instant::now();
        let mut connection = Connection::open(self.gateways[gateway]).await;
        let answer = timeout(ANSWERED_WITHIN, connection.call(&request));
        let answer = answer.await.unwrap_or_else(|_| {
            panic!("{} {} hangs", request.method, request.path);
        });
        let took = began.elapsed();
        let mut slowest = self.told.slowest.lock().unwrap();
        *slowest = took.max(*slowest);
        drop(slowest);
        if answer.status == 503 {
            let reason = answer.reason();
            assert_eq!(reason, "store_unavailable", "{}", answer.text());
            self.told.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(answer)
    }

    fn text(&self, kind: &str) -> String {
        format!("{kind}-{}", self.told.next.fetch_add(1, Ordering::Relaxed))
    }

    fn goes_on(&self) -> bool {
        !self.told.over.load(Ordering::Relaxed)
    }
}

/// Two gateways, and who lives there.
struct Site {
    gateways: [Gateway; 2],
    redis: Redis,
    client: Client,
    /// The token of the workspace `poller`.
    poller: String,
    /// The instances of the workspaces `target` and `away`; the second is paused.
    target: Vec<Agent>,
    away: Vec<Agent>,
    _caller: Agent,
}

impl Site {
    async fn new() -> Self {
        let stores = Stores::start();
        let settings = "stores.timeout=10s inbox.max_messages=1000000 delegation.max_pending=100000 \
                        limits.target_concurrency=256";
        let gateways: [Gateway; 2] = stores.replicas(settings).await;
        let one = &gateways[0];
        let caller = one.seat("caller", "", Agent::json("{}").await).await;
        let target = one.seat("target", "", streams::agent().await).await;
        let echo = Agent::scripted(jobs::echo).await;
        // Its callers speak 0.3: what they left is translated when it is sent.
        let away = one.seat_of(card_1_0("away"), "", echo).await;
        // Nobody beats while this goes on.
        one.patch("caller", json!({"liveness": "assumed"})).await;
        let mut target = vec![target.agent];
        target.extend([streams::agent().await, streams::agent().await]);
        let away = vec![away.agent, Agent::scripted(jobs::echo).await];
        for (id, agents) in [("target", &target), ("away", &away)] {
            let urls: Vec<_> = agents.iter().map(Agent::url).collect();
            let change = json!({"liveness": "assumed", "urls": urls});
            one.patch(id, change).await.has(200);
        }
        jobs::pause(one, "away", "pause").await;
        let poller = one.poller("poller").await;
        let client = Client {
            gateways: [gateways[0].public, gateways[1].public],
            token: caller.token,
            told: Arc::default(),
        };
        Self {
            gateways,
            redis: stores.redis,
            client,
            poller,
            target,
            away,
            _caller: caller.agent,
        }
    }

    /// Kills Redis and starts it again, empty, at a moment taken by chance.
    async fn lose_redis(&self) {
        let (before, away) = uuid::Uuid::new_v4().as_u64_pair();
        tokio::time::sleep(Duration::from_millis(200 + before % 500)).await;
        self.redis.kill();
        tokio::time::sleep(Duration::from_millis(away % 1_000)).await;
        self.redis.restart();
    }

    /// Both gateways are ready and linked again.
    async fn recovers(&self) {
        for gateway in &self.gateways {
            gateway.until_coherent().await;
            gateway.await_ready().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_outlives_a_redis_that_is_killed_again_and_again() {
    let kills = std::env::var("A2A_GATEWAY_REDIS_KILLS").ok();
    let kills = kills.map_or(KILLS, |text| text.parse().expect("a number"));
    let site = Site::new().await;
    let client = &site.client;
    let mut readers = tokio::task::JoinSet::new();
    let read = Arc::<[AtomicUsize; 2]>::default();
    for n in 0..2 {
        let (client, poller) = (client.clone(), site.poller.clone());
        readers.spawn(work::follow(client, poller, n, read.clone()));
    }
    let mut work = tokio::task::JoinSet::new();
    for _ in 0..2 {
        work.spawn(client.clone().send_messages());
        work.spawn(client.clone().call_with_keys());
        work.spawn(client.clone().take_up_streams());
    }
    work.spawn(client.clone().delegate());
    work.spawn(client.clone().defer());
    for _ in 0..kills {
        site.lose_redis().await;
    }
    site.recovers().await;
    client.told.over.store(true, Ordering::Relaxed);
    let ended = async {
        while let Some(ended) = work.join_next().await {
            ended.expect("no client fails");
        }
    };
    timeout(KNOWN_WITHIN, ended).await.expect("all clients end");
    let inbox = site.check_messages(&read).await;
    readers.shutdown().await;
    let keyed = site.check_keyed();
    let delegations = site.check_delegations().await;
    let deferred = site.check_deferred().await;
    let streams = site.check_streams();
    site.check_that_all_works().await;
    println!(
        "{kills} kills of Redis; {inbox}; {keyed}; {delegations}; {deferred}; {streams}; {} requests refused, \
         the slowest answer took {:?}",
        client.told.refused.load(Ordering::Relaxed),
        client.told.slowest.lock().unwrap(),
    );
}
