//! Seconds of several replicas, put together for readers: bounded, unknown ids in one row.

use super::*;
use crate::console::sample::tests::sample;
use crate::console::tally::tests::passed;

fn data(event: &Bytes) -> serde_json::Value {
    let text = std::str::from_utf8(event).unwrap();
    let data = text.lines().nth(1).unwrap().strip_prefix("data: ").unwrap();
    serde_json::from_str(data).unwrap()
}

#[tokio::test]
async fn replicas_are_put_together_and_told_once() {
    let hub = Hub::default();
    let (_, mut live) = hub.subscribe("x");
    hub.add_sample(sample("x"));
    hub.add_sample(sample("y"));
    hub.send_tick(Timestamp(10), |_| true);
    let tick = data(&live.recv().await.unwrap());
    assert_eq!(tick["counts"], json!([["a", 4, 2]]));
    assert_eq!(tick["sent"], json!([["b", 4]]));
    assert_eq!(tick["streams"], json!([["a", 2]]));
    assert_eq!(tick["more"], 6);
    assert_eq!(tick["exchanges"].as_array().unwrap().len(), 2);
    assert_eq!(tick["replicas"].as_array().unwrap().len(), 2);
    hub.add_sample(Sample {
        streams: Vec::new(),
        ..sample("y")
    });
    hub.send_tick(Timestamp(11), |_| true);
    let tick = data(&live.recv().await.unwrap());
    assert_eq!(tick["streams"], json!([["a", 1]]), "y has none any more");
    let (begin, _) = hub.subscribe("x");
    let begin = data(&begin);
    assert_eq!(begin["minute"], json!([[11, [["a", 6, 3]], [["b", 6]]]]));
    assert_eq!(begin["streams"], json!([["a", 1]]));
}

#[tokio::test]
async fn what_is_told_is_bounded_and_the_rest_counted() {
    let hub = Hub::default();
    let (_, mut live) = hub.subscribe("x");
    let told = vec![passed(true); TOLD_MAX];
    for replica in ["x", "y"] {
        let told = told.clone();
        hub.add_sample(Sample {
            told,
            more: 0,
            ..sample(replica)
        });
    }
    hub.send_tick(Timestamp(1), |_| true);
    let tick = data(&live.recv().await.unwrap());
    assert_eq!(tick["exchanges"].as_array().unwrap().len(), TOLD_MAX);
    assert_eq!(tick["more"], TOLD_MAX);
    for n in 0..2 * REPLICAS_MAX {
        hub.add_sample(sample(&n.to_string()));
    }
    assert_eq!(hub.state.lock().replicas.len(), REPLICAS_MAX);
    for second in 0..200 {
        hub.send_tick(Timestamp(second), |_| true);
    }
    assert_eq!(hub.state.lock().minute.len(), PIECES);
}

#[tokio::test(start_paused = true)]
async fn made_up_replicas_keep_nobody_out_but_for_a_while() {
    let hub = Hub::default();
    for n in 0..REPLICAS_MAX {
        assert!(hub.add_sample(sample(&n.to_string())));
    }
    assert!(!hub.add_sample(sample("new")));
    let has = |id: &str| hub.state.lock().replicas.contains_key(id);
    hub.add_own_sample(sample("own"));
    assert!(has("own") && !has("new"));
    assert_eq!(hub.state.lock().replicas.len(), REPLICAS_MAX);
    tokio::time::advance(STREAMS_COUNT_FOR + Duration::from_millis(1)).await;
    hub.add_own_sample(sample("own"));
    assert!(hub.add_sample(sample("new")));
    assert!(has("own") && has("new"));
    assert_eq!(hub.state.lock().replicas.len(), REPLICAS_MAX);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_ends_says_so_and_one_that_falls_silent_has_no_streams() {
    let hub = Hub::default();
    let (_, mut live) = hub.subscribe("x");
    let second = async |live: &mut broadcast::Receiver<Bytes>| {
        hub.send_tick(Timestamp(1), |_| true);
        data(&live.recv().await.unwrap())
    };
    hub.add_sample(sample("x"));
    hub.add_sample(sample("y"));
    second(&mut live).await;
    hub.add_sample(sample("y").into_last());
    let tick = second(&mut live).await;
    assert_eq!(tick["streams"], json!([["a", 1]]));
    assert_eq!(tick["replicas"].as_array().unwrap().len(), 1, "{tick}");
    tokio::time::advance(STREAMS_COUNT_FOR + Duration::from_millis(1)).await;
    let tick = second(&mut live).await;
    assert_eq!(tick["streams"], json!([["a", 0]]));
    assert_eq!(tick["replicas"][0]["streams"], 0, "{tick}");
    tokio::time::advance(REPLICA_SHOWN_FOR).await;
    assert_eq!(second(&mut live).await["replicas"], json!([]));
}

#[tokio::test]
async fn ids_that_no_workspace_has_are_counted_together() {
    let hub = Hub::default();
    let (_, mut live) = hub.subscribe("x");
    let counts = [
        ("known", 2, 2),
        ("made-up", 1, 1),
        ("another", 3, 3),
        ("new", 2, 1),
        (UNKNOWN, 4, 4),
    ];
    let counts = counts.map(|(id, exchanges, refusals)| (id.to_owned(), exchanges, refusals));
    hub.add_sample(Sample {
        counts: counts.to_vec(),
        ..sample("x")
    });
    hub.send_tick(Timestamp(1), |id| id == "known");
    let tick = data(&live.recv().await.unwrap());
    let mut counts = tick["counts"].as_array().unwrap().clone();
    counts.sort_by_key(ToString::to_string);
    let expected = [
        json!(["known", 2, 2]),
        json!(["new", 2, 1]),
        json!(["unknown:", 8, 8]),
    ];
    assert_eq!(counts, expected);
}

#[tokio::test]
async fn counts_stop_at_the_most_that_they_can_be() {
    let hub = Hub::default();
    let (_, mut live) = hub.subscribe("x");
    for replica in ["x", "y"] {
        hub.add_sample(Sample {
            counts: vec![("a".to_owned(), u32::MAX, u32::MAX)],
            streams: vec![("a".to_owned(), u32::MAX)],
            more: u64::MAX,
            ..sample(replica)
        });
    }
    for second in 0..2 {
        hub.send_tick(Timestamp(second), |_| true);
    }
    let tick = data(&live.recv().await.unwrap());
    assert_eq!(tick["counts"], json!([["a", u32::MAX, u32::MAX]]));
    assert_eq!(tick["streams"], json!([["a", u32::MAX]]));
    assert_eq!(tick["more"], u64::MAX);
    hub.subscribe("x");
}
