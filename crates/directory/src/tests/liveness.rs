//! Heartbeats, lapses and the sweep.

use super::*;
use access::workspace::{Move, Origins, Settings, Surroundings, Workspace};
use kernel::metrics::LapseSource;
use kernel::time::Timestamp;

#[tokio::test]
async fn a_lapsed_workspace_is_offline_at_once_and_a_heartbeat_revives_it() {
    let room = room().await;
    room.online("a").await;
    room.agent("a").await;
    pass(TTL - Duration::from_secs(6)).await;
    room.agent("a").await;
    pass(Duration::from_secs(8)).await;
    assert_eq!(
        room.directory.views.find(&id("a")).await.unwrap().status,
        Status::Offline
    );
    let permit = Permit::for_test(None, id("a"));
    let refusal = room
        .directory
        .resolution
        .resolve(&permit)
        .await
        .unwrap_err();
    assert_eq!(refusal.reason, Reason::WorkspaceOffline);
    assert_eq!(
        refusal.message,
        "the workspace has sent no heartbeat for 90 s"
    );
    assert_eq!(refusal.retry_after, Some(15));
    assert!(refusal.facts.iter().any(|(name, _)| *name == "last_seen"));
    assert_eq!(
        room.status("a").await,
        Status::Offline,
        "who notices writes it down"
    );
    let beaten = room.beat("a", &Heartbeat::default()).await;
    assert_eq!((beaten.from, beaten.to), (Status::Offline, Status::Online));
    assert_eq!(beaten.expires_in, TTL);
    room.agent("a").await;
}

#[tokio::test]
async fn a_heartbeat_revives_a_lapse_that_nobody_wrote_down() {
    let room = room().await;
    room.online("a").await;
    pass(TTL + Duration::from_secs(1)).await;
    assert!(
        room.directory
            .entries
            .get(&id("a"))
            .await
            .unwrap()
            .has_lapsed()
    );
    room.beat("a", &Heartbeat::default()).await;
    room.agent("a").await;
}

#[tokio::test]
async fn the_sweep_finds_what_lapsed_and_only_that() {
    let room = room().await;
    room.online("alive").await;
    // Up on paper, never seen, no lease: what a crash leaves behind.
    for name in ["dead", "assumed", "paused"] {
        room.directory
            .registrations
            .create(&creation(name), Run::Real)
            .await
            .unwrap();
    }
    room.set_status("dead", Status::Degraded).await;
    room.set_status("paused", Status::Paused).await;
    let assumed = creation_with("outsider", |said| {
        said.liveness = Some(Liveness::Assumed);
        said.url = Some(registration("x").url);
    });
    room.directory
        .registrations
        .create(&assumed, Run::Real)
        .await
        .unwrap();
    assert_eq!(room.directory.lapses.sweep().await.unwrap(), [id("dead")]);
    assert_eq!(room.status("dead").await, Status::Offline);
    assert_eq!(room.directory.lapses.sweep().await.unwrap(), []);
    for (name, status) in [
        ("alive", Status::Online),
        ("paused", Status::Paused),
        ("outsider", Status::Online),
    ] {
        assert_eq!(room.status(name).await, status, "{name}");
    }
}

#[tokio::test]
async fn a_lapse_is_not_recorded_over_a_heartbeat_that_came_since() {
    let room = room().await;
    room.online("a").await;
    let lapses = &room.directory.lapses;
    let missing = Timestamp::now().after(Duration::from_millis(1));
    std::thread::sleep(Duration::from_millis(3));
    // The heartbeat of a workspace that another replica had recorded as offline.
    room.set_status("a", Status::Offline).await;
    room.beat("a", &Heartbeat::default()).await;
    room.shared
        .delete(&["workspace:a:heartbeat"])
        .await
        .unwrap();
    assert!(!lapses.record(&id("a"), missing, LapseSource::Sweep).await);
    assert_eq!(room.status("a").await, Status::Online);
    let now = Timestamp::now();
    assert!(lapses.record(&id("a"), now, LapseSource::Sweep).await);
    assert_eq!(room.status("a").await, Status::Offline);
    // The clock was set back since.
    room.beat("a", &Heartbeat::default()).await;
    let (workspace, missing, now) = (id("a"), Timestamp(1), Timestamp(2));
    let lapsed = room.workspaces.record_lapse(&workspace, missing, now).await;
    assert!(lapsed.unwrap());
}

#[tokio::test]
async fn a_lapse_between_the_row_and_the_lease_of_a_registration_is_undone() {
    let room = room().await;
    room.online("a").await;
    let written = room.workspaces.find(&id("a")).await.unwrap().unwrap();
    let presence = &room.directory.registrations.presence;
    room.set_status("a", Status::Offline).await;
    presence.catch_up(&written).await.unwrap();
    assert_eq!(room.status("a").await, Status::Online);
    // Without a lease the lapse stands.
    let lease = ["workspace:a:heartbeat"];
    room.shared.delete(&lease).await.unwrap();
    room.set_status("a", Status::Offline).await;
    presence.catch_up(&written).await.unwrap();
    assert_eq!(room.status("a").await, Status::Offline);
}

#[tokio::test]
async fn a_missing_lease_proves_nothing_when_the_shared_state_was_away() {
    let room = room().await;
    room.online("a").await;
    room.shared
        .delete(&["workspace:a:heartbeat"])
        .await
        .unwrap();
    // In process, for a TTL after the start: leases died with the last process.
    room.coherence.apply(&Invalidation::Everything).await;
    room.agent("a").await;
    pass(TTL).await;
    assert_eq!(room.refusal("a").await, Reason::WorkspaceOffline);
}

#[tokio::test]
async fn trouble_degrades_and_only_calm_restores() {
    let room = room().await;
    room.online("a").await;
    let rate = |error_rate| Heartbeat {
        error_rate: Some(error_rate),
        ..Heartbeat::default()
    };
    let wedged = Heartbeat {
        wedged: true,
        ..Heartbeat::default()
    };
    for (beat, status) in [
        (rate(0.49), Status::Online),
        (rate(0.5), Status::Degraded),
        (rate(0.1), Status::Degraded),
        (rate(0.09), Status::Online),
        (wedged.clone(), Status::Degraded),
        (wedged, Status::Degraded),
        (Heartbeat::default(), Status::Online),
    ] {
        assert_eq!(room.beat("a", &beat).await.to, status, "{beat:?}");
        assert_eq!(room.status("a").await, status, "{beat:?}");
        room.agent("a").await;
    }
    for wrong in [-0.01, 1.01, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let refusal = room
            .directory
            .heartbeats
            .record(&id("a"), &rate(wrong))
            .await;
        assert_eq!(refusal.unwrap_err().reason, Reason::InvalidParams);
        assert_eq!(room.status("a").await, Status::Online);
    }
    for status in [Status::Paused, Status::Failed, Status::Restarting] {
        room.set_status("a", status).await;
        assert_eq!(room.beat("a", &rate(0.0)).await.to, status);
    }
    for (beat, status) in [(rate(0.0), Status::Online), (rate(0.5), Status::Degraded)] {
        room.set_status("a", Status::Hibernated).await;
        assert_eq!(room.beat("a", &beat).await.to, status, "it is awake");
    }
    room.set_status("a", Status::Removed).await;
    let removed = room
        .directory
        .heartbeats
        .record(&id("a"), &rate(0.0))
        .await
        .unwrap_err();
    assert_eq!(removed.reason, Reason::WorkspaceRemoved);
    let ghost = room
        .directory
        .heartbeats
        .record(&id("ghost"), &rate(0.0))
        .await
        .unwrap_err();
    assert_eq!(ghost.reason, Reason::WorkspaceNotFound);
    assert_eq!(
        room.shared.get("workspace:ghost:heartbeat").await.unwrap(),
        None
    );
}

#[tokio::test]
async fn a_heartbeat_before_registration_makes_nobody_reachable() {
    let room = room().await;
    room.directory
        .registrations
        .create(&creation("a"), Run::Real)
        .await
        .unwrap();
    assert_eq!(
        room.beat("a", &Heartbeat::default()).await.to,
        Status::Provisioning
    );
    assert_eq!(room.refusal("a").await, Reason::WorkspaceRestarting);
}

#[tokio::test]
async fn what_heartbeats_say_is_seen_at_once_and_written_later() {
    let room = room().await;
    room.online("a").await;
    let beat = Heartbeat {
        active_tasks: 3,
        current_task: Some("a\0b".to_owned()),
        idle_timeout_seconds: Some(7),
        ..Heartbeat::default()
    };
    let registered = room.workspaces.find(&id("a")).await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_millis(2)).await;
    room.beat("a", &beat).await;
    assert_eq!(
        room.agent("a").await.idle_timeout,
        Some(Duration::from_secs(7))
    );
    let seen = room.directory.views.find(&id("a")).await.unwrap();
    assert_eq!(
        (seen.active_tasks, seen.current_task.as_deref()),
        (3, Some("ab"))
    );
    let row = room.workspaces.find(&id("a")).await.unwrap().unwrap();
    assert_eq!((row.active_tasks, row.last_seen), (0, registered.last_seen));
    room.online("b").await;
    tokio::time::sleep(Duration::from_millis(2)).await;
    room.beat("b", &Heartbeat::default()).await;
    room.directory.heartbeats.flush().await.unwrap();
    let row = room.workspaces.find(&id("a")).await.unwrap().unwrap();
    assert_eq!((row.active_tasks, row.last_seen), (3, seen.last_seen));
    let asked = room.metrics.store_operations();
    room.directory.heartbeats.flush().await.unwrap();
    assert_eq!(
        room.metrics.store_operations(),
        asked,
        "nothing new, nothing written"
    );
}

#[tokio::test]
async fn a_lost_url_key_comes_back_and_another_programs_stays() {
    let room = room().await;
    room.online("a").await;
    let (own, foreign) = ("http://127.0.0.1:9001/a2a", "http://10.0.0.99:8000/a2a");
    let (url, internal) = ("ws:a:url", "ws:a:internal_url");
    // The key of ours was lost while it was away; the other is another program's now.
    room.set_status("a", Status::Offline).await;
    room.shared.delete(&[url]).await.unwrap();
    room.shared.set(internal, foreign, None).await.unwrap();
    assert_eq!(
        room.beat("a", &Heartbeat::default()).await.to,
        Status::Online,
        "it has a URL in SQL"
    );
    assert_eq!(room.shared.get(url).await.unwrap().as_deref(), Some(own));
    let kept = room.shared.get(internal).await.unwrap();
    assert_eq!(kept.as_deref(), Some(foreign));
}

#[tokio::test]
async fn a_url_key_does_not_come_back_after_its_agent_left_on_another_replica() {
    let room = room().await;
    room.online("a").await;
    room.agent("a").await;
    // As the other replica leaves it before we hear of it: the row without URLs, and no keys.
    let leave = |workspace: &Workspace, _: &Surroundings| {
        let mut settings = Settings::from_workspace(workspace);
        (settings.url, settings.internal_url) = (None, None);
        settings.status = Status::Offline;
        Ok::<_, Rejection>(settings)
    };
    let now = Timestamp::now();
    let (id, stay, nowhere) = (id("a"), Move::default(), Origins::default());
    let left = room
        .workspaces
        .change(&id, &stay, &nowhere, (now, Run::Real), leave);
    left.await.unwrap().unwrap().unwrap();
    let keys = ["ws:a:url", "ws:a:internal_url"];
    room.shared.delete(&keys).await.unwrap();
    room.beat("a", &Heartbeat::default()).await;
    assert_eq!(room.shared.get_many(&keys).await.unwrap(), [None, None]);
}

#[tokio::test]
async fn a_status_for_which_the_store_did_not_answer_is_told_if_it_was_changed() {
    let room = room().await;
    room.online("a").await;
    let (a, at) = (id("a"), Timestamp::now());
    let (from, to) = (Status::Online, Status::Degraded);
    let set = room.workspaces.set_status(&a, from, to, at).await;
    assert!(set.unwrap());
    // No replica publishes here: what was told waits.
    let told = || room.metrics.queues.entries[kernel::metrics::Queue::EventsKept].get();
    let before = told();
    let announcer = &room.directory.heartbeats.core.announcer;
    let made = announcer.announce_status_if_made(&a, at);
    let other = at.after(Duration::from_millis(1));
    let other = announcer.announce_status_if_made(&a, other);
    assert_eq!(told(), before, "not before its doubt is over");
    other.await.unwrap();
    made.await.unwrap();
    assert_eq!(told(), before + 1);
}
