//! Two gateways on one pair of stores: what one is told, the other obeys, whatever
//! becomes of the link between them.

use std::time::{Duration, Instant};

use super::{issue, revoke, sit};
use crate::harness::relay::Relay;
use crate::harness::servers::Redis;
use crate::harness::{Builder, CALL, Gateway, Pair, Request, Seat, Stores};

/// The time after which a revocation counts as not obeyed: what is in memory stays for a quarter of an hour.
const NEVER: Duration = Duration::from_secs(60);

struct Replicas {
    /// Where changes are made, and its link.
    one: Gateway,
    one_link: Relay,
    /// Where they must be obeyed, and its link.
    other: Gateway,
    other_link: Relay,
    caller: Seat,
    target: Seat,
    _redis: Redis,
}

impl Replicas {
    async fn new() -> Self {
        let Stores { redis, sql } = Stores::start();
        let start = async || {
            let (link, shared) = redis.relayed();
            let gateway = Builder::new(Pair::Embedded).stores(&sql, &shared);
            (gateway.set("stores.timeout", "5s").start().await, link)
        };
        let (one, one_link) = start().await;
        let (other, other_link) = start().await;
        let caller = sit(&one, "caller", "").await;
        let target = sit(&one, "target", "").await;
        Self {
            one,
            one_link,
            other,
            other_link,
            caller,
            target,
            _redis: redis,
        }
    }

    /// A token that both know; what `happens` to the link; then it is revoked on one.
    async fn obeyed_after(&self, happens: impl FnOnce(&Self)) {
        let (token_id, token) = issue(&self.one, &self.caller).await;
        let request = Request::post(self.target.path(), CALL).bearer(&token);
        for gateway in [&self.one, &self.other] {
            for _ in 0..3 {
                gateway.call(&request).await.has(200);
            }
        }
        happens(self);
        revoke(&self.one, &self.caller, &token_id).await.has(200);
        let revoked = Instant::now();
        self.one.call(&request).await.has(401);
        loop {
            let late = revoked.elapsed();
            let answer = self.other.call(&request).await;
            if answer.status == 401 {
                break;
            }
            answer.has(200);
            assert!(late < NEVER, "still obeyed {late:?} after it was revoked");
        }
        // For good.
        for _ in 0..20 {
            self.other.call(&request).await.has(401);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn linked_again(&self) {
        for (link, gateway) in [(&self.one_link, &self.one), (&self.other_link, &self.other)] {
            link.resume();
            gateway.until_coherent().await;
            gateway.await_ready().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_revoked_on_one_replica_is_refused_by_the_other() {
    let replicas = Replicas::new().await;
    for _ in 0..3 {
        replicas.obeyed_after(|_| {}).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revocation_is_obeyed_when_the_link_was_cut_or_swallows_everything() {
    let replicas = Replicas::new().await;
    // The last: open connections are dead without a reset; new ones are not.
    for happens in [Relay::cut, Relay::black_hole, Relay::strand] {
        replicas.obeyed_after(|all| happens(&all.other_link)).await;
        replicas.linked_again().await;
    }
    replicas.obeyed_after(|_| {}).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revocation_is_obeyed_when_only_who_made_it_is_cut_off() {
    let replicas = Replicas::new().await;
    for happens in [Relay::cut, Relay::black_hole] {
        replicas.obeyed_after(|all| happens(&all.one_link)).await;
        replicas.linked_again().await;
    }
    replicas.obeyed_after(|_| {}).await;
}
