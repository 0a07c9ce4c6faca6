//! The room over a database and the memory of one process: order, replay, gaps, and who sees what.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::hub::{Hub, REPLAY_FOR, REPLAY_MAX};
use super::record::{PublishedEvent, Record};
use super::*;
use access::hierarchy::lineage_of;
use access::identity::{Principal, Proof};
use access::workspace::Workspaces;
use kernel::config::Config;
use kernel::metrics::EventReader;
use stores::coherence::Coherence;
use stores::db::Db;
use stores::shared::EntryId;

fn id(text: &str) -> WorkspaceId {
    WorkspaceId::parse(text).unwrap()
}

fn published(at: EntryId) -> PublishedEvent {
    let event = Event::new(Kind::WorkspaceOnline, &id("w"), json!({"status": "online"}));
    Record::new("n", &event, None)
        .into_published(Some(at))
        .unwrap()
}

fn now_ms() -> u64 {
    u64::try_from(Timestamp::now().0).unwrap()
}

/// Ids, and `gap`.
async fn resumed(hub: &Hub, after: Option<EntryId>) -> Vec<String> {
    let after = after.map(|after| after.to_string());
    let resumed = hub.resume(after.as_deref()).await;
    let name =
        |told: Arc<PublishedEvent>| told.id.map_or("gap".to_owned(), |id| id.seq.to_string());
    let gap = (!resumed.dropped.is_empty()).then(|| "gap".to_owned());
    gap.into_iter()
        .chain(resumed.replay.into_iter().map(name))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn what_was_missed_is_replayed_once_and_what_is_not_known_is_a_gap() {
    let hub = Hub::default();
    let ms = now_ms();
    let at = |seq| EntryId { ms, seq };
    hub.load_backlog(vec![published(at(5)), published(at(6))]);
    hub.publish_logged(published(at(7)));
    assert_eq!(resumed(&hub, None).await, Vec::<String>::new());
    assert_eq!(resumed(&hub, Some(at(5))).await, ["6", "7"]);
    assert_eq!(resumed(&hub, Some(at(7))).await, Vec::<String>::new());
    // The first one's predecessor is the last that is sure.
    assert_eq!(resumed(&hub, Some(at(4))).await, ["5", "6", "7"]);
    assert_eq!(resumed(&hub, Some(at(3))).await, ["gap", "5", "6", "7"]);
    // Of the future, after a wait.
    assert_eq!(resumed(&hub, Some(at(9))).await, ["gap", "5", "6", "7"]);
    let replay = hub.resume(Some("rubbish")).await.replay;
    assert_eq!(replay.len(), 4);
    // Another replica is ahead: we catch up while it waits.
    let (resumed_later, ()) = tokio::join!(resumed(&hub, Some(at(8))), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        hub.publish_logged(published(at(8)));
    });
    assert_eq!(resumed_later, Vec::<String>::new());
    // What was before a loss means nothing.
    let mut live = hub.live.subscribe();
    hub.reset();
    assert!(live.recv().await.unwrap().id.is_none());
    assert_eq!(resumed(&hub, Some(at(8))).await, ["gap"]);
    hub.publish_logged(published(at(12)));
    assert_eq!(resumed(&hub, Some(at(8))).await, ["gap", "12"]);
    assert_eq!(resumed(&hub, Some(at(11))).await, ["12"]);
}

#[tokio::test(start_paused = true)]
async fn the_newest_thousand_are_kept_for_ten_minutes() {
    let hub = Hub::default();
    let ms = now_ms();
    let at = |seq| EntryId { ms, seq };
    hub.load_backlog(Vec::new());
    for seq in 0..1500 {
        hub.publish_logged(published(at(seq)));
    }
    assert_eq!(resumed(&hub, Some(at(499))).await.len(), REPLAY_MAX);
    let replay = resumed(&hub, Some(at(498))).await;
    assert_eq!((replay.len(), replay[0].as_str()), (REPLAY_MAX + 1, "gap"));
    let hub = Hub::default();
    let past = ms - u64::try_from(REPLAY_FOR.as_millis()).unwrap() - 5_000;
    let old = |seq| EntryId { ms: past, seq };
    hub.load_backlog(vec![published(old(1)), published(old(2)), published(at(3))]);
    assert_eq!(resumed(&hub, Some(old(1))).await, ["gap", "3"]);
    assert_eq!(resumed(&hub, Some(old(2))).await, ["3"]);
}

#[tokio::test(start_paused = true)]
async fn one_org_pushes_out_nobody_elses_events() {
    let hub = Hub::default();
    let ms = now_ms();
    let mut seq = 0;
    let mut tell = |name: &str, org: Option<&str>| {
        seq += 1;
        let event = Event::new(Kind::AgentMessage, &id(name), json!({}));
        let record = Record::new("n", &event, Some(&lineage_of(name, org, &[])));
        hub.publish_logged(record.into_published(Some(EntryId { ms, seq })).unwrap());
    };
    tell("first", None);
    for name in ["quiet", "loud"] {
        tell(name, Some("acme"));
    }
    for _ in 0..3000 {
        tell("loud", Some("acme"));
    }
    tell("other", Some("globex"));
    let resumed = hub.resume(Some(&format!("{ms}-1"))).await;
    let names = |told: &[Arc<PublishedEvent>]| -> Vec<String> {
        let name = |told: &Arc<PublishedEvent>| match &told.subject {
            Some(subject) => subject.workspace.to_string(),
            None => "gap".to_owned(),
        };
        told.iter().map(name).collect()
    };
    let replay = names(&resumed.replay.into_iter().collect::<Vec<_>>());
    assert_eq!(
        (replay[0].as_str(), replay.last().unwrap().as_str()),
        ("quiet", "other")
    );
    assert!(
        (900..=REPLAY_MAX + 1).contains(&replay.len()),
        "{}",
        replay.len()
    );
    assert_eq!(names(&resumed.dropped), ["loud"]);
    let before = hub.resume(Some(&format!("{ms}-0"))).await;
    assert_eq!(
        names(&before.replay.into_iter().collect::<Vec<_>>())[0],
        "first"
    );
}

#[test]
fn frames_are_one_line_and_have_the_members_of_the_contract() {
    let mut event = Event::new(
        Kind::AgentCardUpdated,
        &id("w"),
        json!({"agent_card": "a\nb\r\u{2028}"}),
    );
    event.at = Timestamp(1_798_761_599_999);
    let record = Record::new("n", &event, None).encode().unwrap();
    assert!(!record.contains('\n'));
    let at = EntryId { ms: 17, seq: 3 };
    let told = Record::parse(&record)
        .unwrap()
        .into_published(Some(at))
        .unwrap();
    let sse = String::from_utf8(told.whole.as_sse().to_vec()).unwrap();
    let json = String::from_utf8(told.whole.as_json().to_vec()).unwrap();
    assert_eq!(sse, format!("id: 17-3\ndata: {json}\n\n"));
    assert_eq!(
        json,
        r#"{"id":"17-3","event":"AGENT_CARD_UPDATED","workspace_id":"w","timestamp":"2026-12-31T23:59:59.999Z","payload":{"agent_card":"a\nb\r "}}"#
    );
    assert!(told.bare.is_none());
    let passing = Record::parse(&record)
        .unwrap()
        .into_published(None)
        .unwrap();
    let sse = String::from_utf8(passing.whole.as_sse().to_vec()).unwrap();
    assert!(sse.starts_with("data: {\"id\":\""), "{sse}");
    // A payload beyond all bounds is left out.
    event.payload = json!({"x": "y".repeat(100_000)});
    let told = Record::new("n", &event, None).into_published(None).unwrap();
    assert!(told.whole.as_json().ends_with(b"\"payload\":{}}"));
    assert!(Record::parse("{}").is_none());
}

#[test]
fn an_event_of_an_earlier_release_is_read_and_one_of_this_has_the_life() {
    let earlier = r#"{"nonce":"n","event":"DELEGATION_SENT","workspace_id":"w","timestamp":"2026-12-31T23:59:59.999Z",
        "payload":{"target_id":"x"},"now":{"org":null,"above":["v"]},"was":null}"#;
    let told = Record::parse(earlier)
        .unwrap()
        .into_published(None)
        .unwrap();
    assert!(told.limited.is_none());
    let subject = told.subject.unwrap();
    assert_eq!(
        (subject.now.unwrap().born_at, subject.at.0),
        (0, 1_798_761_599_999)
    );
    let event = Event::new(
        Kind::DelegationSent,
        &id("w"),
        json!({"target_id": "x", "n": 1}),
    );
    let event = event.restrict_members(PayloadSubject::from_workspaces([&id("x")]), &["target_id"]);
    let later = Lineage {
        born_at: 7,
        ..lineage_of("w", None, &["v"])
    };
    let text = Record::new("n", &event, Some(&later)).encode().unwrap();
    let told = Record::parse(&text).unwrap().into_published(None).unwrap();
    assert_eq!(told.subject.unwrap().now.unwrap().born_at, 7);
    let (_, limited) = told.limited.unwrap();
    assert!(limited.as_json().ends_with(b"\"payload\":{\"n\":1}}"));
}

/// `pm` > `dev`, `qa` in acme; `free` in none; `ext` in other.
async fn hierarchy(folder: &tempfile::TempDir) -> Hierarchy {
    let mut config: Config =
        toml::from_str(include_str!("../../../../config/default.toml")).unwrap();
    config.stores.sql = format!("sqlite:{}/gateway.db", folder.path().display()).into();
    config.stores.timeout = Duration::from_secs(60);
    let metrics = Arc::new(Metrics::new());
    let db = Db::open(&config.stores, Arc::clone(&metrics)).unwrap();
    db.migrate().await.unwrap();
    for (name, parent, org) in [
        ("pm", None, Some("acme")),
        ("dev", Some("pm"), Some("acme")),
        ("qa", Some("pm"), Some("acme")),
        ("free", None, None),
        ("ext", None, Some("other")),
    ] {
        sqlx::query(
            "INSERT INTO workspaces (id, name, parent_id, org, status, delivery_mode, liveness, created_at, updated_at) \
             VALUES ($1, $1, $2, $3, 'online', 'push', 'heartbeat', 0, 0)",
        )
        .bind(name)
        .bind(parent)
        .bind(org)
        .execute(db.pool())
        .await
        .unwrap();
    }
    let shared = Shared::open(&config.stores, Arc::clone(&metrics)).unwrap();
    let coherence = Coherence::new(shared, true, Arc::clone(&metrics));
    let workspaces = Workspaces::new(db.clone());
    Hierarchy::new(workspaces, db, &coherence, metrics, config.into())
}

fn canvas(org: Option<&str>, workspaces: Option<&[&str]>) -> Principal {
    Principal::Canvas {
        user: "ada".into(),
        org: org.map(str::to_owned),
        confined: false,
        within: None,
        workspaces: workspaces.map(|list| list.iter().map(|name| id(name)).collect()),
    }
}

fn workspace(name: &str) -> Principal {
    Principal::Workspace { id: id(name) }
}

fn org(name: &str) -> Principal {
    Principal::Org {
        org: name.into(),
        within: None,
    }
}

/// Who sees the event: `w` with its payload, `b` without, `-` not at all.
async fn seen(hierarchy: &Hierarchy, told: &PublishedEvent, who: &[Principal]) -> String {
    let mut seen = String::new();
    for principal in who {
        let proof = Proof::for_test(principal.clone());
        let frame = audience::frame_for(hierarchy, &proof, told, false)
            .await
            .unwrap();
        // Decided anew for the first of many readers, and remembered for the others.
        for _ in 0..2 {
            let shared = audience::frame_for(hierarchy, &proof, told, true).await;
            assert_eq!(
                shared.unwrap().map(Frame::as_json),
                frame.map(Frame::as_json)
            );
        }
        seen.push(match frame {
            None => '-',
            Some(frame) if frame.as_json().ends_with(b"\"payload\":{}}") => 'b',
            Some(_) => 'w',
        });
    }
    seen
}

#[tokio::test]
async fn who_may_message_a_workspace_sees_its_events_and_nobody_else() {
    let folder = tempfile::tempdir().unwrap();
    let hierarchy = hierarchy(&folder).await;
    let who = [
        Principal::Operator,
        workspace("dev"),
        workspace("pm"),
        workspace("qa"),
        workspace("ext"),
        workspace("ghost"),
        canvas(Some("acme"), None),
        canvas(Some("other"), None),
        canvas(None, None),
        canvas(None, Some(&["dev"])),
        canvas(Some("acme"), Some(&["qa"])),
        org("acme"),
        org("other"),
    ];
    let event = |kind, was: Option<Lineage>| {
        let mut event = Event::new(kind, &id("dev"), json!({"org": "acme"}));
        event.was = was.map(Arc::new);
        event
    };
    let dev = lineage_of("dev", Some("acme"), &["pm"]);
    let online = event(Kind::WorkspaceOnline, None);
    let told = Record::new("n", &online, Some(&dev))
        .into_published(None)
        .unwrap();
    assert_eq!(seen(&hierarchy, &told, &who).await, "wwww--w--w-w-");
    // Of nowhere: for operators.
    let told = Record::new("n", &online, None)
        .into_published(None)
        .unwrap();
    assert_eq!(seen(&hierarchy, &told, &who).await, "w------------");
    // Moved away from acme: those who saw it there hear that it went, and not where to.
    let away = lineage_of("dev", Some("other"), &["ext"]);
    let moved = event(Kind::WorkspaceMoved, Some(dev.clone()));
    let told = Record::new("n", &moved, Some(&away))
        .into_published(None)
        .unwrap();
    assert_eq!(seen(&hierarchy, &told, &who).await, "wwbbw-bw-w-bw");
    // Moved within it, from below `pm` to the top.
    let top = lineage_of("dev", Some("acme"), &[]);
    let told = Record::new("n", &moved, Some(&top))
        .into_published(None)
        .unwrap();
    assert_eq!(seen(&hierarchy, &told, &who).await, "wwwb--w--w-w-");
    // Removed, with the place before, or at least the one that its row still has.
    let gone = Lineage {
        removed: true,
        ..dev.clone()
    };
    let removed = event(Kind::WorkspaceRemoved, Some(dev));
    let told = Record::new("n", &removed, Some(&gone))
        .into_published(None)
        .unwrap();
    assert_eq!(seen(&hierarchy, &told, &who).await, "wbbb--b--b-b-");
    let removed = event(Kind::WorkspaceRemoved, None);
    let told = Record::new("n", &removed, Some(&gone))
        .into_published(None)
        .unwrap();
    assert_eq!(seen(&hierarchy, &told, &who).await, "wwww--w--w-w-");
    // A later event of a removed workspace is for operators.
    let told = Record::new("n", &online, Some(&gone))
        .into_published(None)
        .unwrap();
    assert_eq!(seen(&hierarchy, &told, &who).await, "w------------");
}

#[tokio::test]
async fn what_is_told_is_read_in_order_and_what_passes_is_made_only_while_somebody_listens() {
    let folder = tempfile::tempdir().unwrap();
    let hierarchy = hierarchy(&folder).await;
    let config: Config = toml::from_str(include_str!("../../../../config/default.toml")).unwrap();
    let metrics = Arc::new(Metrics::new());
    let shared = Shared::open(&config.stores, Arc::clone(&metrics)).unwrap();
    let events = Events::new(config.into(), shared, Arc::clone(&metrics));
    let beat = || Event::new(Kind::WorkspaceHeartbeat, &id("dev"), json!({}));
    let status = |n: u32| Event::new(Kind::WorkspaceOnline, &id("dev"), json!({"n": n}));
    let work = async {
        events.publish(beat());
        assert_eq!(metrics.store_operations(), 0, "nobody listens");
        let proof = || Arc::new(Proof::for_test(workspace("qa")));
        let mut reader = events
            .open(proof(), EventReader::Stream, None)
            .await
            .unwrap();
        for n in 0..200 {
            events.publish(status(n));
        }
        let mut last = String::new();
        for n in 0..200 {
            let frame = reader.next(&hierarchy).await.unwrap().as_json();
            let frame: Value = serde_json::from_slice(&frame).unwrap();
            assert_eq!(frame["payload"]["n"], n);
            last = frame["id"].as_str().unwrap().to_owned();
            if n == 99 {
                let after = Some(last.as_str());
                let mut again = events
                    .open(proof(), EventReader::Socket, after)
                    .await
                    .unwrap();
                let frame = again.next(&hierarchy).await.unwrap().as_json();
                assert!(frame.ends_with(b"{\"n\":100}}"));
            }
        }
        events.publish(beat());
        let frame = reader.next(&hierarchy).await.unwrap().as_json();
        let frame: Value = serde_json::from_slice(&frame).unwrap();
        assert_eq!(frame["event"], "WORKSPACE_HEARTBEAT");
        assert_ne!(frame["id"], last);
        assert_eq!(metrics.event_readers[EventReader::Stream].get(), 1);
        assert_eq!(metrics.event_readers[EventReader::Socket].get(), 0);
        // A storm of what passes costs a slow reader some of that, and nothing else.
        let dev = lineage_of("dev", Some("acme"), &["pm"]);
        for _ in 0..10_000 {
            let beat = Record::new("n", &beat(), Some(&dev))
                .into_published(None)
                .unwrap();
            let _ = events.hub.passing.send(Arc::new(beat));
        }
        events.publish(status(200));
        let mut passed = 0;
        loop {
            let frame = reader.next(&hierarchy).await.unwrap().as_json();
            if frame.ends_with(b"{\"n\":200}}") {
                break;
            }
            passed += 1;
        }
        assert!(passed <= hub::PASSING_BEHIND_MAX, "{passed}");
        // Who does not read is cut, and nothing is held for it.
        for n in 0..6000 {
            events.publish(status(n));
            if n % 64 == 0 {
                tokio::task::yield_now().await;
            }
        }
        let cut = async { while reader.next(&hierarchy).await.is_ok() {} };
        tokio::time::timeout(Duration::from_secs(60), cut)
            .await
            .unwrap();
    };
    tokio::select! {
        () = events.run(&hierarchy) => {}
        () = work => {}
    }
}
