//! The stores gone, silent, slow and flapping, under a running gateway and at its start: the address
//! is found where that is safe, refused in words where it is not, nobody gets in who may not, and
//! everything comes back by itself.
//!
//! A "warm" workspace was messaged before the outage, a "cold" one was only registered.

mod changes;
mod delivery;
mod lasting;
mod passing;
mod replicas;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::relay::Relay;
use crate::harness::servers::{self, Redis};
use crate::harness::{
    Agent, Answer, Builder, CALL, Connection, Gateway, Pair, Request, Seat, card_1_0, until_holds,
};

/// `stores.timeout` of these cases: longer than a busy machine makes a store that is well wait.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What a machine that others use, too, may add to a clock. Less than what hangs takes.
const SLACK: Duration = Duration::from_secs(30);

/// A token of the right form that nobody made.
const UNKNOWN: &str = "a2aw_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG";

/// Who calls whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Warm,
    Cold,
    /// A child of the warm caller calls the warm target: they are not related.
    Stranger,
    /// A token of the warm caller that was good, and was revoked before the outage.
    Revoked,
    Unknown,
}

impl Who {
    const ALL: [Self; 5] = {
        use Who::{Cold, Revoked, Stranger, Unknown, Warm};
        [Warm, Cold, Stranger, Revoked, Unknown]
    };
}

/// The statuses that may be answered. A 503 must be `store_unavailable`.
type Expected = fn(Who) -> &'static [u16];

fn all_is_well(who: Who) -> &'static [u16] {
    match who {
        Who::Warm | Who::Cold => &[200],
        Who::Stranger => &[403],
        Who::Revoked | Who::Unknown => &[401],
    }
}

/// One call, to be made by a task of its own.
struct Question {
    who: Who,
    gateway: SocketAddr,
    request: Request,
}

impl Question {
    async fn ask(&self) -> Answer {
        let mut connection = Connection::open(self.gateway).await;
        connection.call(&self.request).await
    }

    /// An expected answer, in JSON, in time.
    async fn expect(self, expected: Expected) {
        let (who, started) = (self.who, Instant::now());
        let answer = self.ask().await;
        let took = started.elapsed();
        let status = answer.status;
        let said = format!("{who:?}, after {took:?}: {status} {}", answer.text());
        assert!(expected(who).contains(&status), "{said}");
        assert!(took < TIMEOUT + SLACK, "{said}");
        if status == 503 {
            assert_eq!(answer.reason(), "store_unavailable", "{said}");
            assert_eq!(answer.field("retry-after"), Some("1"), "{said}");
        }
        if status == 200 {
            let name = if who == Who::Warm { "target" } else { "far" };
            let result = answer.json()["result"].to_string();
            assert!(result.contains(name), "{said}");
            let bridged = answer.field("x-a2a-bridged");
            assert_eq!(bridged.is_some(), who == Who::Warm, "{said}");
        }
    }
}

/// Redis, relays to it and to SQL, and a gateway behind them that is not yet started.
fn behind_relays() -> (Redis, [Relay; 2], Builder) {
    let redis = Redis::start();
    let (redis_link, shared) = redis.relayed();
    let (sql_link, sql) = servers::postgres().relayed();
    let builder = Builder::new(Pair::Embedded).stores(&sql, &shared);
    let builder = builder.set("stores.timeout", &format!("{}s", TIMEOUT.as_secs()));
    // Only the target sends heartbeats.
    let builder = builder.set("registry.heartbeat_ttl", "10m");
    (redis, [redis_link, sql_link], builder)
}

/// A gateway that reaches both stores through relays, and those who call.
struct Site {
    gateway: Gateway,
    caller: Seat,
    target: Seat,
    stranger: Seat,
    cold_caller: Seat,
    cold_target: Seat,
    revoked: String,
    redis_link: Relay,
    sql_link: Relay,
    redis: Redis,
}

impl Site {
    async fn new() -> Self {
        Self::with(|builder| builder).await
    }

    async fn with(more: impl FnOnce(Builder) -> Builder) -> Self {
        let (redis, [redis_link, sql_link], builder) = behind_relays();
        let gateway = more(builder.process()).start().await;
        let caller = sit(&gateway, "caller", "").await;
        // The calls of the warm, of 0.3, are translated.
        let agent = Agent::json(&answer_1_0("target")).await;
        let target = gateway.seat_of(card_1_0("target"), "", agent).await;
        let stranger = sit(&gateway, "stranger", "caller").await;
        let cold_caller = sit(&gateway, "cold", "").await;
        let cold_target = sit(&gateway, "far", "").await;
        let (token_id, revoked) = issue(&gateway, &caller).await;
        let site = Self {
            gateway,
            caller,
            target,
            stranger,
            cold_caller,
            cold_target,
            revoked,
            redis_link,
            sql_link,
            redis,
        };
        site.ask(Who::Revoked).await.has(200);
        revoke(&site.gateway, &site.caller, &token_id)
            .await
            .has(200);
        site.warms().await;
        site.question(Who::Revoked).expect(all_is_well).await;
        site
    }

    /// The revocation may come back by the link only now.
    async fn warms(&self) {
        let ask = async || {
            beat(&self.gateway, &self.target).await.has(200);
            for who in [Who::Warm, Who::Stranger] {
                self.question(who).expect(all_is_well).await;
            }
        };
        self.gateway.until_warm(ask).await;
    }

    fn question(&self, who: Who) -> Question {
        let (token, target) = match who {
            Who::Warm => (&self.caller.token, &self.target),
            Who::Cold => (&self.cold_caller.token, &self.cold_target),
            Who::Stranger => (&self.stranger.token, &self.target),
            Who::Revoked => (&self.revoked, &self.target),
            Who::Unknown => (&UNKNOWN.to_owned(), &self.target),
        };
        Question {
            who,
            gateway: self.gateway.public,
            request: Request::post(target.path(), CALL).bearer(token),
        }
    }

    async fn ask(&self, who: Who) -> Answer {
        self.question(who).ask().await
    }

    /// Looks at the outage for some time with one caller of each kind, then with fifty at once.
    async fn look(&self, span: Duration, expected: Expected) {
        let until = Instant::now() + span;
        while Instant::now() < until {
            for who in Who::ALL {
                self.question(who).expect(expected).await;
            }
        }
        let started = Instant::now();
        let mut crowd = tokio::task::JoinSet::new();
        for who in Who::ALL.into_iter().cycle().take(50) {
            crowd.spawn(self.question(who).expect(expected));
        }
        while let Some(asked) = crowd.join_next().await {
            asked.unwrap();
        }
        assert!(started.elapsed() < TIMEOUT + SLACK, "fifty at once");
        let health = self.gateway.admin_get("/healthz").await;
        health.unwrap().has(200);
    }

    /// Ready again by itself: the warm and the cold are heard, and still nobody else.
    async fn recovers(&self) {
        self.gateway.await_ready().await;
        self.gateway.until_coherent().await;
        for who in Who::ALL {
            let is_back = async || self.ask(who).await.status != 503;
            until_holds(&format!("{who:?} recovers"), is_back).await;
            self.question(who).expect(all_is_well).await;
        }
        let strangers = self.stranger.agent.count() + self.caller.agent.count();
        assert_eq!(strangers, 0, "nobody called these");
        self.gateway.assert_idle().await;
    }
}

/// `/readyz` comes to name the parts that fail, and never hangs.
async fn becomes_unready(gateway: &Gateway, sql: &str, shared: &str) {
    until_holds(&format!("sql {sql}, shared {shared}"), async || {
        let started = Instant::now();
        let ready = gateway.admin_get("/readyz").await.unwrap();
        assert!(started.elapsed() < TIMEOUT + SLACK);
        let parts = ready.json();
        ready.status == 503 && parts["sql"] == sql && parts["shared"] == shared
    })
    .await;
}

/// The answer of an agent of 1.0, with a text.
fn answer_1_0(text: &str) -> String {
    let message = json!({"messageId": "a", "role": "ROLE_AGENT", "parts": [{"text": text}]});
    json!({"jsonrpc": "2.0", "id": "c-1", "result": {"message": message}}).to_string()
}

/// A workspace whose agent answers with its name.
async fn sit(gateway: &Gateway, id: &str, parent: &str) -> Seat {
    let body = format!(r#"{{"jsonrpc":"2.0","id":"c-1","result":"{id}"}}"#);
    gateway.seat(id, parent, Agent::json(&body).await).await
}

async fn beat(gateway: &Gateway, seat: &Seat) -> Answer {
    let body = format!(r#"{{"workspace_id":"{}"}}"#, seat.id);
    let request = Request::post("/registry/heartbeat", body).bearer(&seat.token);
    gateway.call(&request).await
}

/// A further token of the workspace: its id, and its text.
async fn issue(gateway: &Gateway, seat: &Seat) -> (String, String) {
    let path = format!("/workspaces/{}/tokens", seat.id);
    let request = Request::post(path, "").bearer(&seat.token);
    let made = gateway.call(&request).await.has(201);
    let word = |name: &str| made.json()[name].as_str().unwrap().to_owned();
    (word("id"), word("token"))
}

async fn revoke(gateway: &Gateway, seat: &Seat, token_id: &str) -> Answer {
    let path = format!("/workspaces/{}/tokens/{token_id}", seat.id);
    let request = Request::new("DELETE", path).bearer(&seat.token);
    gateway.call(&request).await
}
