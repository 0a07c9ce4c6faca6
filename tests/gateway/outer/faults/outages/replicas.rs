//! Two gateways on one pair of stores: what one is told, the other obeys, whatever
//! becomes of the link between them.

use std::time::{Duration, Instant};

use super::{issue, revoke, sit};
use crate::harness::relay::Relay;
use crate::harness::servers::{self, Redis};
use crate::harness::{Builder, CALL, Gateway, Pair, Request, Seat};

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
        let redis = Redis::start();
        let sql = servers::postgres().database();
        let (one_link, shared) = redis.relayed();
        let one = Builder::new(Pair::Embedded).stores(&sql, &shared);
        let one = one.set("stores.timeout", "1s").start().await;
        let (other_link, shared) = redis.relayed();
        let other = Builder::new(Pair::Embedded).stores(&sql, &shared);
        let other = other.set("stores.timeout", "1s").start().await;
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
                let answer = gateway.call(&request).await;
                assert_eq!(answer.status, 200, "{}", answer.text());
            }
        }
        happens(self);
        let answer = revoke(&self.one, &self.caller, &token_id).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let revoked = Instant::now();
        assert_eq!(self.one.call(&request).await.status, 401);
        loop {
            let began = Instant::now();
            let answer = self.other.call(&request).await;
            if answer.status == 401 {
                break;
            }
            assert_eq!(answer.status, 200, "{}", answer.text());
            let late = began - revoked;
            assert!(late < NEVER, "still obeyed {late:?} after it was revoked");
        }
        // For good.
        for _ in 0..20 {
            assert_eq!(self.other.call(&request).await.status, 401);
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
    replicas.obeyed_after(|all| all.other_link.cut()).await;
    replicas.linked_again().await;
    replicas
        .obeyed_after(|all| all.other_link.black_hole())
        .await;
    replicas.linked_again().await;
    // Open connections are dead, and nobody says so; new ones are not.
    replicas.obeyed_after(|all| all.other_link.strand()).await;
    replicas.linked_again().await;
    replicas.obeyed_after(|_| {}).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revocation_is_obeyed_when_only_who_made_it_is_cut_off() {
    let replicas = Replicas::new().await;
    replicas.obeyed_after(|all| all.one_link.cut()).await;
    replicas.linked_again().await;
    replicas.obeyed_after(|all| all.one_link.black_hole()).await;
    replicas.linked_again().await;
    replicas.obeyed_after(|_| {}).await;
}
