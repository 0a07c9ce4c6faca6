//! What replicas tell one another for the console: all of it is judged, and the last word is said.

use serde_json::json;

use super::{feed, replicas_in, ticks};
use crate::events::Replicas;
use crate::harness::watcher::Feed;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_ends_is_gone_at_once() {
    let mut replicas = Replicas::start(2, &[]).await;
    let two = replicas.all.pop().unwrap();
    let one = &replicas.all[0];
    let mut feed = Feed::open(one.admin, &feed()).await;
    ticks(&mut feed, |data| replicas_in(data) == 2).await;
    two.terminate();
    ticks(&mut feed, |data| replicas_in(data) == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_replica_says_is_not_taken() {
    let replicas = Replicas::start(1, &[]).await;
    let one = &replicas.all[0];
    let mut feed = Feed::open(one.admin, &feed()).await;
    ticks(&mut feed, |_| true).await;
    replicas.redis.until_subscribed("gw:console", 1).await;
    let since = std::time::UNIX_EPOCH.elapsed().unwrap();
    let at = u64::try_from(since.as_millis()).unwrap();
    let sample = json!({"replica": "other", "version": "1", "started": 1, "at": at, "sql": true, "shared": true,
        "draining": false, "open": -1, "counts": [["a", 4_294_967_295_u32, 1]], "streams": [], "all_streams": true,
        "told": [], "more": u64::MAX});
    let mut strange = sample.clone();
    strange["counts"] = json!([["<b>", 1, 1]]);
    let mut large = sample.clone();
    large["counts"] = json!([["a", 4_294_967_296_u64, 1]]);
    // As text it would be too long for a command line: the server makes it.
    let script = "for n = 1, 2 do redis.call('PUBLISH', KEYS[1], ARGV[1]) end \
        redis.call('PUBLISH', KEYS[1], ARGV[2]) redis.call('PUBLISH', KEYS[1], ARGV[3]) \
        redis.call('PUBLISH', KEYS[1], 'no JSON') \
        return redis.call('PUBLISH', KEYS[1], ARGV[1] .. string.rep(' ', 1048576))";
    let [good, strange, large] = [sample, strange, large].map(|sample| sample.to_string());
    let publish = ["EVAL", script, "1", "gw:console", &good, &strange, &large];
    replicas.redis.command(&publish);
    // Two good ones, which together are more than can be counted.
    let tick = ticks(&mut feed, |data| replicas_in(data) == 2).await;
    let count = &tick["counts"][0];
    assert_eq!(
        [&count[0], &count[1]],
        [&json!("a"), &json!(u32::MAX)],
        "{tick}"
    );
    let name = "a2a_gateway_console_samples_lost_total";
    one.until_counted(name, &["malformed"], 3.0).await;
    one.until_counted(name, &["too_long"], 1.0).await;
    ticks(&mut feed, |_| true).await;
}
