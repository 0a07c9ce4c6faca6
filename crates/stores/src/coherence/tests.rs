//! Tests of cache invalidation: with both kinds of link, and without one.

use std::sync::atomic::AtomicU32;

use futures_util::FutureExt as _;

use super::*;

fn coherence(shared_url: &str, sql_is_embedded: bool) -> Arc<Coherence> {
    let settings = kernel::config::Stores {
        sql: "sqlite:unused".to_owned().into(),
        shared: shared_url.to_owned().into(),
        timeout: Duration::from_millis(200),
        sql_connections: 1,
    };
    let metrics = Arc::new(Metrics::new());
    let shared = Shared::open(&settings, Arc::clone(&metrics)).unwrap();
    Coherence::new(shared, sql_is_embedded, metrics)
}

fn cache(coherence: &Arc<Coherence>) -> CoherentCache<u8, u32> {
    let cache: CoherentCache<u8, u32> = CoherentCache::new(
        Arc::clone(coherence),
        Arc::new(Metrics::new()),
        kernel::metrics::Cache::Credentials,
        (10, None),
        |_| true,
    );
    let held = cache.clone();
    coherence.on_invalidation(move |what| {
        let held = held.clone();
        async move {
            match what {
                Invalidation::Everything => held.forget_all(),
                _ => held.forget(&1),
            }
        }
    });
    cache
}

async fn load(cache: &CoherentCache<u8, u32>, key: u8, value: &AtomicU32) -> u32 {
    let load = || async { Ok::<_, ()>(value.load(Ordering::SeqCst)) };
    cache.get_or_load(&key, load).await.unwrap()
}

fn credential() -> Invalidation {
    Invalidation::Credential("00".into())
}

#[test]
fn invalidations_are_read_as_they_were_written() {
    let id = WorkspaceId::parse("ws-1").unwrap();
    for what in [
        credential(),
        Invalidation::Everything,
        Invalidation::Grant(id.clone(), WorkspaceId::parse("b").unwrap()),
        Invalidation::Lineage(id.clone()),
        Invalidation::Revocations,
        Invalidation::Stops,
        Invalidation::Workspace(id),
    ] {
        assert_eq!(Invalidation::parse(&what.to_string()), Some(what));
    }
    assert_eq!(Invalidation::parse("unheard:of"), None);
}

#[test]
fn only_a_link_that_is_up_or_not_needed_lets_facts_grow_old() {
    assert_eq!(coherence("memory", true).max_age(), AGE_MAX_LINKED);
    assert_eq!(coherence("memory", false).max_age(), AGE_MAX_UNLINKED);
    let redis = coherence("redis://127.0.0.1:1", true);
    assert_eq!(redis.max_age(), AGE_MAX_UNLINKED);
    redis.set_up(true);
    assert_eq!(redis.max_age(), AGE_MAX_LINKED);
}

#[tokio::test]
async fn a_dropped_fact_is_loaded_again() {
    let coherence = coherence("memory", true);
    let cache = cache(&coherence);
    let value = AtomicU32::new(1);
    assert_eq!(load(&cache, 1, &value).await, 1);
    value.store(2, Ordering::SeqCst);
    assert_eq!(load(&cache, 1, &value).await, 1);
    for (what, expected) in [(credential(), 2), (Invalidation::Everything, 3)] {
        value.store(expected, Ordering::SeqCst);
        coherence.invalidate(what).await;
        assert_eq!(load(&cache, 1, &value).await, expected);
    }
}

#[tokio::test]
async fn another_keys_invalidation_keeps_an_entry() {
    let coherence = coherence("memory", true);
    let cache = cache(&coherence);
    let value = AtomicU32::new(1);
    load(&cache, 2, &value).await;
    value.store(2, Ordering::SeqCst);
    coherence.invalidate(credential()).await;
    assert_eq!(load(&cache, 2, &value).await, 1);
}

#[tokio::test]
async fn a_link_that_is_up_again_drops_what_was_cached_before() {
    let coherence = coherence("memory", true);
    let cache = cache(&coherence);
    let mut listener = std::pin::pin!(coherence.follow_channel());
    // It runs up to its next wait.
    let mut listens = || listener.as_mut().now_or_never();
    listens();
    let value = AtomicU32::new(1);
    load(&cache, 2, &value).await;
    value.store(2, Ordering::SeqCst);
    // Of the other key. They are more than wait for a listener, which hears of a gap instead.
    let other = credential().to_string();
    for (messages, expected) in [(1, 1), (2000, 2)] {
        for _ in 0..messages {
            coherence.shared.publish(CHANNEL, &other).await.unwrap();
        }
        listens();
        assert_eq!(load(&cache, 2, &value).await, expected, "{messages}");
    }
}

#[tokio::test]
async fn a_load_that_was_overtaken_by_an_invalidation_is_not_kept() {
    let coherence = coherence("memory", true);
    let cache = cache(&coherence);
    let (reading, go_on) = (Notify::new(), Notify::new());
    let rounds = AtomicU32::new(0);
    let slow = || async {
        let round = rounds.fetch_add(1, Ordering::SeqCst);
        if round == 0 {
            reading.notify_one();
            go_on.notified().await;
        }
        Ok::<_, ()>(round)
    };
    let early = cache.get_or_load(&1, slow);
    let late = async {
        reading.notified().await;
        coherence.invalidate(credential()).await;
        go_on.notify_one();
        // Begins after the invalidation, so the overtaken load must not decide it.
        cache.get_or_load(&1, slow).await
    };
    let (_, late) = tokio::join!(early, late);
    assert_eq!(late, Ok(1));
    assert_eq!(cache.get(&1), Some(1));
}

#[tokio::test]
async fn what_cannot_be_published_is_kept_within_a_bound() {
    let coherence = coherence("redis://127.0.0.1:1", true);
    coherence.invalidate(credential()).await;
    assert_eq!(coherence.next_unsent(), Some(credential()));
    for _ in 0..=UNSENT_MAX {
        coherence.keep_unsent(credential());
    }
    assert_eq!(coherence.next_unsent(), Some(Invalidation::Everything));
    assert_eq!(coherence.next_unsent(), None);
}

#[tokio::test]
async fn callers_of_one_key_share_a_load_and_its_error() {
    let coherence = coherence("memory", true);
    let cache = cache(&coherence);
    let (loads, go_on) = (AtomicU32::new(0), Notify::new());
    let fails = || async {
        let load = loads.fetch_add(1, Ordering::SeqCst);
        go_on.notified().await;
        Err::<u32, _>(load)
    };
    let release = async {
        tokio::task::yield_now().await;
        go_on.notify_waiters();
    };
    let (one, two, ()) = tokio::join!(
        cache.get_or_load(&1, fails),
        cache.get_or_load(&1, fails),
        release
    );
    assert_eq!((one, two), (Err(Arc::new(0)), Err(Arc::new(0))));
    assert_eq!(loads.load(Ordering::SeqCst), 1);
    // An error is not cached, and a load with another type of error is one of its own.
    let value = AtomicU32::new(7);
    assert_eq!(load(&cache, 1, &value).await, 7);
}

#[tokio::test]
async fn the_next_caller_loads_when_the_first_has_left() {
    let coherence = coherence("memory", true);
    let cache = cache(&coherence);
    let reading = Notify::new();
    let never = || async {
        reading.notify_one();
        std::future::pending::<Result<u32, ()>>().await
    };
    let value = AtomicU32::new(3);
    let mut first = Box::pin(cache.get_or_load(&1, never));
    tokio::select! {
        biased;
        _ = &mut first => unreachable!("the load never ends"),
        () = reading.notified() => assert!(matches!(cache.cached_state(&1), CachedState::Loading)),
    }
    drop(first);
    assert!(matches!(cache.cached_state(&1), CachedState::Nothing));
    assert_eq!(load(&cache, 1, &value).await, 3);
    assert!(matches!(cache.cached_state(&1), CachedState::Value(3)));
}

#[tokio::test]
async fn a_cache_is_bounded_by_weight() {
    let coherence = coherence("memory", true);
    let metrics = Arc::new(Metrics::new());
    let name = kernel::metrics::Cache::Credentials;
    let cache: CoherentCache<u32, u32> =
        CoherentCache::new(coherence, metrics, name, (100, Some(|_| 10)), |_| true);
    for key in 0..1000 {
        let load = || async move { Ok::<_, ()>(key) };
        assert_eq!(cache.get_or_load(&key, load).await, Ok(key));
    }
    let kept = cache.iter_valid().count();
    assert!(
        (1..=10).contains(&kept),
        "{kept} entries of weight 10 in 100"
    );
}
