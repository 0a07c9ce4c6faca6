//! Unit tests of stream logs: bounds, gaps, counts of readers, copies.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::stream_log::{Bounds, COST, LogRead, StreamAccess, StreamEnd, StreamLog};
use super::*;
use a2a::stamp::Stamper;
use kernel::config::Config;
use kernel::ids::{RequestId, WorkspaceIncarnation};
use kernel::rejection::Reason;
use stores::db::Db;
use stores::shared::Shared;

const BOUNDS: Bounds = Bounds {
    events: 4,
    bytes: 100,
};

struct TestLog {
    kept: StreamLog,
    held: ByteCounters,
    stamper: Stamper,
}

impl TestLog {
    fn new() -> Self {
        let held = ByteCounters::default();
        let access = StreamAccess {
            owner: "pm".into(),
            target: "dev".into(),
            form: ReplyForm::default(),
        };
        let kept = StreamLog::new(access, held.clone());
        Self {
            kept,
            held,
            stamper: Stamper::new("s".into()),
        }
    }

    fn write(&mut self, blocks: &str) {
        let stamped = self.stamper.stamp(blocks.as_bytes());
        self.kept.append_events(&stamped, BOUNDS);
    }

    fn read_after(&self, after: u64) -> Option<(u64, String, u64, Option<StreamEnd>)> {
        let look = self.kept.read_after(after)?;
        let LogRead {
            missed,
            bytes,
            up_to,
            over,
        } = look;
        Some((
            missed,
            String::from_utf8(bytes.to_vec()).unwrap(),
            up_to,
            over,
        ))
    }
}

#[test]
fn a_look_brings_what_comes_after_an_event_and_says_what_is_missing() {
    let mut log = TestLog::new();
    assert_eq!(log.read_after(0), None);
    log.write("data: 1\n\n");
    let one = "data: 1\nid: s-1\n\n";
    assert_eq!(log.read_after(0), Some((0, one.into(), 1, None)));
    assert_eq!(log.read_after(1), None);
    assert_eq!(log.read_after(7), None, "what is not there yet");
    for n in 2..=6 {
        log.write(&format!("data: {n}\n\n"));
    }
    // Four events are kept.
    let (missed, text, up_to, _) = log.read_after(1).unwrap();
    assert_eq!((missed, up_to), (1, 6));
    assert!(text.starts_with("data: 3\nid: s-3\n\n") && text.ends_with("id: s-6\n\n"));
    // Within the bound of bytes.
    log.write(&format!("data: {}\n\n", "x".repeat(60)));
    assert_eq!(log.read_after(6).map(|look| (look.0, look.2)), Some((0, 7)));
    assert_eq!(log.read_after(0).map(|look| (look.0, look.2)), Some((5, 7)));
    // One event above the bound: nothing is kept, and the gap is reported.
    log.write(&format!("data: {}\n\n", "x".repeat(200)));
    assert_eq!(log.read_after(6), Some((2, String::new(), 8, None)));
    let empty = log.held.all.load(Ordering::Relaxed);
    assert!((COST..COST + 64).contains(&empty), "{empty}");
    log.write("data: 9\n\n");
    assert_eq!(
        log.read_after(7),
        Some((1, "data: 9\nid: s-9\n\n".into(), 9, None))
    );
    log.kept.release();
    assert_eq!(log.held.all.load(Ordering::Relaxed), 0);
    assert_eq!(log.read_after(8), Some((1, String::new(), 9, None)));
}

#[test]
fn comments_go_with_the_next_event_and_the_last_ones_with_the_end() {
    let mut log = TestLog::new();
    log.write(": a\n\n");
    assert_eq!(log.read_after(0), None);
    log.write("data: 1\n\n: b\n\n");
    log.write(": c\n\n");
    log.write("data: 2\n\n: d\n\n");
    assert_eq!(
        log.read_after(0).unwrap().1,
        ": a\n\ndata: 1\nid: s-1\n\n: b\n: c\ndata: 2\nid: s-2\n\n"
    );
    assert_eq!(
        log.read_after(1).unwrap().1,
        ": b\n: c\ndata: 2\nid: s-2\n\n"
    );
    log.kept.record_end(Some(b"data: half"));
    let over = Some(StreamEnd::Whole(Bytes::from_static(b": d\ndata: half")));
    assert_eq!(log.read_after(2), Some((0, String::new(), 2, over.clone())));
    // The first end counts.
    log.kept.record_end(None);
    assert_eq!(log.read_after(2).unwrap().3, over);
    // Comments beyond the bound are dropped.
    let mut log = TestLog::new();
    for _ in 0..100 {
        log.write(&format!(": {}\n\n", "x".repeat(2000)));
    }
    log.kept.record_end(Some(b""));
    let Some(StreamEnd::Whole(rest)) = log.read_after(0).unwrap().3 else {
        panic!("it ended");
    };
    assert!(rest.len() <= 64 * 1024);
}

#[test]
fn what_is_copied_is_not_copied_again() {
    let mut log = TestLog::new();
    assert!(log.kept.uncopied_events().is_none() && log.kept.is_copied());
    log.write("data: 1\n\ndata: 2\n\n");
    let uncopied = log.kept.uncopied_events().unwrap();
    let numbers = |uncopied: &stream_log::UncopiedEvents| -> Vec<u64> {
        uncopied.events.iter().map(|(n, _)| *n).collect()
    };
    assert_eq!((numbers(&uncopied), uncopied.kept), (vec![1, 2], 2));
    log.write("data: 3\n\n");
    log.kept.mark_copied(&uncopied);
    assert!(!log.kept.is_copied());
    let uncopied = log.kept.uncopied_events().unwrap();
    assert_eq!(numbers(&uncopied), [3]);
    log.kept.mark_copied(&uncopied);
    log.kept.record_end(None);
    let uncopied = log.kept.uncopied_events().unwrap();
    assert_eq!(
        (numbers(&uncopied), uncopied.over.clone()),
        (vec![], Some(StreamEnd::Lost))
    );
    log.kept.mark_copied(&uncopied);
    assert!(log.kept.uncopied_events().is_none() && log.kept.is_copied());
}

fn new_streams(change: impl FnOnce(&mut Config)) -> Arc<Streams> {
    let mut config: Config = toml::from_str(kernel::config::load::DEFAULT).unwrap();
    // The database is opened on first use, which does not happen here.
    let folder = tempfile::tempdir().unwrap();
    let sql = format!("sqlite:{}", folder.path().join("gateway.db").display());
    config.stores.sql = sql.into();
    config.stores.shared = "memory".to_owned().into();
    change(&mut config);
    let metrics = Arc::new(Metrics::new());
    let db = Db::open(&config.stores, Arc::clone(&metrics)).unwrap();
    let shared = Shared::open(&config.stores, Arc::clone(&metrics)).unwrap();
    Streams::new(&Mailbox::new(config.into(), (db, shared), metrics))
}

#[tokio::test]
async fn all_logs_together_keep_to_their_bound_and_running_ones_are_shortened_last() {
    let streams = new_streams(|config| config.stream.logs_bytes.0 = 10_000);
    let target = WorkspaceIncarnation::parse("dev").unwrap();
    let begin = || streams.begin_log("pm".into(), &target, ReplyForm::default());
    let event = format!("data: {}\n\n", "x".repeat(3000));
    let mut ended = begin().unwrap();
    ended.append(event.as_bytes(), false);
    let first = ended.kept.id;
    ended.end(b"");
    let (mut one, mut two) = (begin().unwrap(), begin().unwrap());
    for log in [&mut one, &mut two] {
        log.append(event.as_bytes(), false);
    }
    assert!(
        streams.find_local(first).is_none(),
        "the one that ended goes first"
    );
    for _ in 0..5 {
        two.append(event.as_bytes(), false);
        assert!(streams.held.load(Ordering::Relaxed) <= 10_000);
    }
    assert_eq!(
        one.kept.read_after(0).unwrap().missed,
        0,
        "others keep theirs"
    );
    assert!(two.kept.read_after(0).unwrap().missed > 0);
    // No log ended, and there is no room.
    let held: Vec<_> = (0..20).map_while(|_| begin()).collect();
    assert!(held.len() < 20);
    assert_eq!(streams.metrics.streams.unresumable.get(), 1);
}

#[tokio::test]
async fn the_logs_of_one_caller_keep_to_their_bound_and_leave_others_alone() {
    // By its own bound, or by its share of all logs.
    for (kept_bytes, logs_bytes) in [(12_500, 1 << 20), (1 << 20, 20_000)] {
        keeps_to(kept_bytes, logs_bytes);
    }
}

fn keeps_to(kept_bytes: u64, logs_bytes: u64) {
    let streams = new_streams(|config| {
        config.limits.kept_bytes.0 = kept_bytes;
        config.stream.logs_bytes.0 = logs_bytes;
        config.stream.log_bytes.0 = 4000;
    });
    let target = WorkspaceIncarnation::parse("dev").unwrap();
    let begin = |owner: &str| {
        let form = ReplyForm::default();
        streams.begin_log(owner.into(), &target, form).unwrap()
    };
    let event = format!("data: {}\n\n", "x".repeat(3000));
    let mut other = begin("qa");
    other.append(event.as_bytes(), false);
    let mut ended = Vec::new();
    for _ in 0..10 {
        let mut log = begin("pm");
        log.append(event.as_bytes(), false);
        assert!(log.kept.caller_bytes() <= 12_500);
        ended.push(log.kept.id);
        log.end(b"");
    }
    assert!(
        streams.find_local(ended[0]).is_none(),
        "the oldest goes first"
    );
    assert!(streams.find_local(ended[9]).is_some());
    assert_eq!(other.kept.read_after(0).unwrap().missed, 0);
    let mut running: Vec<_> = (0..5).map(|_| begin("pm")).collect();
    for log in &mut running {
        log.append(event.as_bytes(), false);
        assert!(log.kept.caller_bytes() <= 12_500);
    }
}

#[tokio::test]
async fn a_log_that_is_dropped_says_that_there_was_more_and_frees_its_readers() {
    let streams = new_streams(|config| config.stream.readers = 16);
    let target = WorkspaceIncarnation::parse("dev").unwrap();
    let named = ReplyForm {
        rpc_id: Some("\"c-1\"".into()),
        ..ReplyForm::default()
    };
    let mut log = streams.begin_log("pm".into(), &target, named).unwrap();
    log.append(b"data: 1\r\n\r\n", false);
    let stream = log.kept.id.simple().to_string();
    let id = || RequestId::from_caller(Some(b"r-1"));
    let mut reader = streams
        .open(("pm", &target), &stream, None, id())
        .await
        .unwrap();
    let again = streams.open(("pm", &target), &stream, None, id()).await;
    assert_eq!(again.map(drop).unwrap_err().reason, Reason::Overloaded);
    let bytes = reader.next().await.unwrap();
    assert_eq!(bytes, format!("data: 1\r\nid: {stream}-1\r\n\r\n"));
    assert_eq!(log.unread_for(), Duration::ZERO);
    drop(log);
    let last = String::from_utf8(reader.next().await.unwrap().to_vec()).unwrap();
    assert!(
        last.contains("\"id\":\"c-1\"") && last.contains("\"delivered\":\"unknown\""),
        "{last}"
    );
    assert_eq!(reader.next().await, None);
    drop(reader);
    assert_eq!(streams.metrics.streams.readers.get(), 0);
    let after = format!("{stream}-1");
    streams
        .open(("pm", &target), &stream, Some(&after), id())
        .await
        .unwrap();
}

#[tokio::test]
async fn streams_without_callers_have_places_that_callers_share() {
    let streams = new_streams(|config| config.stream.lingering = 8);
    let target = WorkspaceIncarnation::parse("dev").unwrap();
    let mut lingering = Vec::new();
    for (owner, places) in [("pm", 4), ("qa", 2), ("dev", 1), ("ux", 1), ("ops", 0)] {
        let before = lingering.len();
        for _ in 0..5 {
            let log = streams.begin_log(owner.into(), &target, ReplyForm::default());
            lingering.extend(log.unwrap().linger());
        }
        assert_eq!(lingering.len() - before, places, "{owner}");
    }
    assert_eq!(streams.metrics.streams.lingering.get(), 8);
    lingering.clear();
    assert_eq!(streams.metrics.streams.lingering.get(), 0);
}
