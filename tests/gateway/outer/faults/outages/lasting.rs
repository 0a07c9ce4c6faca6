//! Outages that last: each store, and both, refusing connections or swallowing everything.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{
    SLACK, Site, TIMEOUT, UNKNOWN, Who, all_is_well, answer_1_0, beat, becomes_unready,
    behind_relays, issue, revoke, sit,
};
use crate::harness::relay::Relay;
use crate::harness::{ADMIN, Agent, CALL, Request, until_holds};

/// Past the second for which facts count without a link.
const PAST_A_SECOND: Duration = Duration::from_millis(2_500);

/// SQL has all that is needed: the rows have the URLs, too.
async fn without_redis(site: &Site) {
    becomes_unready(&site.gateway, "ok", "unavailable").await;
    site.look(PAST_A_SECOND, all_is_well).await;
    site.redis_link.resume();
    site.recovers().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_gone_or_silent_leaves_sql_to_find_every_address() {
    let site = Site::new().await;
    site.redis_link.cut();
    without_redis(&site).await;
    site.redis_link.black_hole();
    without_redis(&site).await;
}

/// Who is in memory is served, for the link says that nothing changed. Of others nothing is known.
async fn without_sql(site: &Site) {
    becomes_unready(&site.gateway, "unavailable", "ok").await;
    site.look(PAST_A_SECOND, |who| match who {
        Who::Warm => &[200],
        Who::Cold => &[503],
        Who::Stranger => &[403],
        Who::Revoked | Who::Unknown => &[401, 503],
    })
    .await;
    // Heartbeats of those in memory need no SQL; those of others prove that they live.
    beat(&site.gateway, &site.target).await.has(200);
    site.redis.command(&["DEL", "workspace:caller:heartbeat"]);
    let answer = beat(&site.gateway, &site.caller).await;
    answer.refuses(503, "store_unavailable");
    let lease = ["EXISTS", "workspace:caller:heartbeat"];
    assert_eq!(site.redis.command(&lease), "1");
    for _ in 0..5 {
        site.question(Who::Warm).expect(all_is_well).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (status, reason) = create(site).await;
    assert_eq!((status, reason.as_str()), (503, "store_unavailable"));
    site.sql_link.resume();
    site.recovers().await;
    assert_eq!(create(site).await.0, 201);
}

/// The control plane's answer to a change.
async fn create(site: &Site) -> (u16, String) {
    let body = json!({"name": "new"}).to_string();
    let started = Instant::now();
    let request = Request::post("/workspaces", body);
    let answer = site.gateway.as_operator(request).await;
    assert!(started.elapsed() < TIMEOUT + SLACK);
    let reason = (answer.status != 201).then(|| answer.reason());
    (answer.status, reason.unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sql_gone_serves_who_is_in_memory_and_refuses_who_is_not() {
    let site = Site::new().await;
    site.sql_link.cut();
    without_sql(&site).await;
    // Also who only reads the log knows when it was.
    let log = site.gateway.log();
    let said = |text: &str| {
        let mut lines = log.lines();
        lines.position(|line| line.contains(text) && line.contains(r#""store":"sql""#))
    };
    let gone = said("A store does not answer");
    let back = said("A store answers again");
    assert!(gone.is_some() && gone < back, "{gone:?} {back:?}: {log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sql_silent_serves_who_is_in_memory_and_refuses_who_is_not() {
    let site = Site::new().await;
    site.sql_link.black_hole();
    without_sql(&site).await;
}

/// A proof counts for one second more, then nothing can be decided.
async fn without_both(site: &Site) {
    let allowed = |who| -> &'static [u16] {
        match who {
            Who::Warm => &[200, 503],
            Who::Cold => &[503],
            Who::Stranger => &[403, 503],
            Who::Revoked | Who::Unknown => &[401, 503],
        }
    };
    site.look(Duration::from_millis(1_500), allowed).await;
    becomes_unready(&site.gateway, "unavailable", "unavailable").await;
    site.look(Duration::from_millis(500), |_| &[503]).await;
    site.sql_link.resume();
    site.redis_link.resume();
    site.recovers().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_stores_gone_refuse_everyone_after_a_second() {
    let site = Site::new().await;
    site.sql_link.cut();
    site.redis_link.cut();
    without_both(&site).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_stores_silent_refuse_everyone_after_a_second() {
    let site = Site::new().await;
    site.sql_link.black_hole();
    site.redis_link.black_hole();
    without_both(&site).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_changes_while_sql_is_away_is_followed_for_as_long_as_the_row_may_be_stale()
{
    let site = Site::with(|builder| builder.set("directory.stale", "20s")).await;
    let moved_to = Agent::json(&answer_1_0("moved")).await;
    let moves = || {
        site.redis
            .command(&["SET", "ws:target:url", &moved_to.url()])
    };
    site.sql_link.cut();
    becomes_unready(&site.gateway, "unavailable", "ok").await;
    let first = Instant::now();
    moves();
    let is_seen = async || site.ask(Who::Warm).await.has(200).text().contains("moved");
    until_holds("the new address is seen", is_seen).await;
    // From the first failed look on, twenty seconds; then the row is too old to be trusted.
    until_holds("directory.stale ends", async || {
        moves();
        let answer = site.ask(Who::Warm).await;
        if answer.status == 503 {
            answer.refuses(503, "store_unavailable");
            return true;
        }
        answer.has(200);
        false
    })
    .await;
    assert!(first.elapsed() > Duration::from_secs(6));
    site.sql_link.resume();
    let is_back = async || site.ask(Who::Warm).await.status == 200;
    until_holds("it recovers", is_back).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_starts_before_its_stores_answers_and_becomes_ready_by_itself() {
    let (_redis, [redis_link, sql_link], builder) = behind_relays();
    redis_link.cut();
    sql_link.cut();
    let gateway = builder.spawn();
    becomes_unready(&gateway, "unavailable", "unavailable").await;
    let health = gateway.admin_get("/healthz").await;
    health.unwrap().has(200);
    for token in [UNKNOWN, ADMIN] {
        let request = Request::post("/workspaces/target/a2a", CALL).bearer(token);
        let started = Instant::now();
        let answer = gateway.call(&request).await;
        answer.refuses(503, "store_unavailable");
        assert!(started.elapsed() < TIMEOUT + SLACK);
    }
    let request = Request::post("/workspaces", r#"{"name":"early"}"#);
    let answer = gateway.as_operator(request).await;
    answer.refuses(503, "store_unavailable");
    sql_link.resume();
    becomes_unready(&gateway, "ok", "unavailable").await;
    redis_link.resume();
    gateway.await_ready().await;
    let caller = sit(&gateway, "caller", "").await;
    let target = sit(&gateway, "target", "").await;
    gateway.call(&caller.calls(&target)).await.has(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_waits_for_its_stores_can_be_ended() {
    let (_redis, links, builder) = behind_relays();
    links.iter().for_each(Relay::black_hole);
    let mut gateway = builder.spawn();
    gateway.terminate();
    assert_eq!(gateway.wait(TIMEOUT + SLACK).code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_revoked_while_redis_is_away_stops_at_once() {
    let site = Site::new().await;
    for happens in [Relay::cut, Relay::black_hole] {
        let (token_id, token) = issue(&site.gateway, &site.caller).await;
        let request = Request::post(site.target.path(), CALL).bearer(&token);
        site.gateway.call(&request).await.has(200);
        happens(&site.redis_link);
        let started = Instant::now();
        let answer = revoke(&site.gateway, &site.caller, &token_id).await;
        assert!(started.elapsed() < TIMEOUT + SLACK);
        assert_eq!(answer.status, 200, "{}", answer.text());
        site.gateway.call(&request).await.has(401);
        site.redis_link.resume();
        site.recovers().await;
        site.gateway.call(&request).await.has(401);
    }
}
