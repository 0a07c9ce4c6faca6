//! From a permit to a destination, also while stores are away; slots and discovery.

use super::*;

#[tokio::test]
async fn a_registered_agent_is_found_with_all_that_a_call_needs() {
    let room = room().await;
    room.online("a").await;
    let agent = room.agent("a").await;
    assert_eq!(agent.endpoint.host, "127.0.0.1:9001");
    assert_eq!(agent.endpoint.path_and_query, "/a2a");
    assert_eq!(agent.options.generation, Generation::V1);
    assert_eq!(agent.options.complete, CompletionMode::Full);
    let address = room
        .directory
        .addresses
        .agent_address(
            &agent.address_decision,
            &agent.endpoint,
            LookupFor::for_call(Account::without_group(1)),
            &mut (),
        )
        .await
        .unwrap();
    assert_eq!(address.first.to_string(), "127.0.0.1:9001");
    for (key, url) in [
        ("ws:a:url", "http://127.0.0.1:9001/a2a"),
        ("ws:a:internal_url", "http://10.0.0.7:8000/a2a"),
    ] {
        assert_eq!(room.shared.get(key).await.unwrap().as_deref(), Some(url));
    }
    let lease = room
        .shared
        .get_with_ttl("workspace:a:heartbeat")
        .await
        .unwrap();
    let (value, left) = lease.unwrap();
    assert!(value.parse::<i64>().is_ok());
    assert!(left.unwrap() <= TTL && left.unwrap() > TTL / 2);
}

#[tokio::test]
async fn steady_state_asks_no_store_and_a_heartbeat_asks_once() {
    let room = room().await;
    room.online("a").await;
    room.agent("a").await;
    let before = room.metrics.store_operations();
    for _ in 0..50 {
        room.agent("a").await;
    }
    assert_eq!(room.metrics.store_operations(), before);
    for _ in 0..5 {
        pass(Duration::from_secs(60)).await;
        room.beat("a", &Heartbeat::default()).await;
        // Beyond the lease that was read, and still from memory: the heartbeat came in here.
        let asked = room.metrics.store_operations();
        room.agent("a").await;
        assert_eq!(room.metrics.store_operations(), asked);
    }
}

#[tokio::test]
async fn each_status_has_its_refusal() {
    let room = room().await;
    room.online("a").await;
    for (status, reason) in [
        (Status::Provisioning, Some(Reason::WorkspaceRestarting)),
        (Status::Restarting, Some(Reason::WorkspaceRestarting)),
        (Status::Hibernated, Some(Reason::WorkspaceRestarting)),
        (Status::Offline, Some(Reason::WorkspaceOffline)),
        (Status::Paused, Some(Reason::WorkspaceOffline)),
        (Status::Failed, Some(Reason::WorkspaceOffline)),
        (Status::Degraded, None),
        (Status::Online, None),
        (Status::Removed, Some(Reason::WorkspaceRemoved)),
    ] {
        room.set_status("a", status).await;
        assert_eq!(room.resolve("a").await.err(), reason, "{status:?}");
    }
    assert_eq!(room.refusal("ghost").await, Reason::WorkspaceNotFound);
}

#[tokio::test]
async fn a_poll_target_is_an_inbox_also_while_its_agent_is_away() {
    let room = room().await;
    room.directory
        .registrations
        .create(&creation("p"), Run::Real)
        .await
        .unwrap();
    let poll = Registration {
        delivery_mode: Some(DeliveryMode::Poll),
        url: None,
        internal_url: None,
        ..registration("p")
    };
    room.directory
        .registrations
        .register(&poll, &Registrar::Itself)
        .await
        .unwrap();
    assert!(matches!(room.resolve("p").await, Ok(Destination::Inbox(_))));
    pass(TTL + Duration::from_secs(1)).await;
    assert!(matches!(room.resolve("p").await, Ok(Destination::Inbox(_))));
    assert_eq!(room.status("p").await, Status::Offline);
    assert!(matches!(room.resolve("p").await, Ok(Destination::Inbox(_))));
    room.set_status("p", Status::Paused).await;
    assert_eq!(room.refusal("p").await, Reason::WorkspaceOffline);
}

#[tokio::test]
async fn a_url_that_another_program_wrote_counts_if_the_policy_lets_it() {
    let room = room().await;
    room.online("a").await;
    for (url, outcome) in [
        ("http://127.0.0.1:32768/", Ok("127.0.0.1:32768")),
        ("http://169.254.169.254/", Err(Reason::AddressForbidden)),
        ("nonsense", Err(Reason::AddressForbidden)),
    ] {
        room.shared.set("ws:a:url", url, None).await.unwrap();
        room.coherence.apply(&Invalidation::Everything).await;
        let found = room.resolve("a").await;
        match outcome {
            Ok(host) => assert_eq!(room.agent("a").await.endpoint.host, host),
            Err(reason) => assert_eq!(found.unwrap_err(), reason, "{url}"),
        }
    }
    room.shared.delete(&["ws:a:url"]).await.unwrap();
    room.coherence.apply(&Invalidation::Everything).await;
    assert_eq!(room.agent("a").await.endpoint.host, "127.0.0.1:9001");
}

/// Row and shared state are not read at one moment: of an agent that moves to and fro, either may be behind.
#[tokio::test]
async fn an_address_that_differs_from_the_row_gets_the_credential_only_if_an_operator_wants_it() {
    for goes_along in [false, true] {
        let room =
            room_with(|config| config.registry.shared_addresses_move_credentials = goes_along)
                .await;
        let new = creation_with("a", |said| {
            said.url = Some(Some("http://127.0.0.1:9001/".to_owned()));
            said.liveness = Some(Liveness::Assumed);
            said.upstream_auth = Some(Some(card(r#""s3cret""#)));
        });
        let registrations = &room.directory.registrations;
        registrations.create(&new, Run::Real).await.unwrap();
        for (url, has_it) in [
            ("http://127.0.0.1:9001/elsewhere", true),
            ("HTTP://2130706433:9001", true),
            ("http://127.0.0.1:9002/", goes_along),
            ("http://127.0.0.1/", goes_along),
            ("https://127.0.0.1:9001/", goes_along),
        ] {
            room.shared.set("ws:a:url", url, None).await.unwrap();
            room.coherence.apply(&Invalidation::Everything).await;
            let agent = room.agent("a").await;
            assert_eq!(agent.upstream_auth.is_some(), has_it, "{url}");
        }
    }
}

#[tokio::test]
async fn when_sql_is_away_what_was_known_counts_for_a_minute() {
    let room = room().await;
    room.online("a").await;
    room.online("unseen").await;
    room.agent("a").await;
    room.db.pool().close().await;
    room.coherence.apply(&Invalidation::Everything).await;
    room.agent("a").await;
    assert_eq!(room.refusal("unseen").await, Reason::StoreUnavailable);
    pass(Duration::from_secs(54)).await;
    room.agent("a").await;
    pass(Duration::from_secs(8)).await;
    assert_eq!(room.refusal("a").await, Reason::StoreUnavailable);
}

#[tokio::test]
async fn when_sql_is_away_a_name_goes_on_at_the_addresses_that_were_its_own() {
    let room = room().await;
    for name in ["called", "uncalled"] {
        room.online(name).await;
        let named = Registration {
            url: Some("http://localhost:9001/a2a".to_owned()),
            ..registration(name)
        };
        let registered = room
            .directory
            .registrations
            .register(&named, &Registrar::Itself)
            .await;
        registered.unwrap();
    }
    let address = async |name: &str| {
        let agent = room.agent(name).await;
        let asker = LookupFor::for_call(Account::without_group(1));
        let address = room
            .directory
            .addresses
            .agent_address(&agent.address_decision, &agent.endpoint, asker, &mut ())
            .await;
        address
            .map(|address| address.first)
            .map_err(|refusal| refusal.reason)
    };
    let known = address("called").await;
    assert!(known.is_ok());
    room.agent("uncalled").await;
    room.db.pool().close().await;
    room.coherence.apply(&Invalidation::Everything).await;
    assert_eq!(address("called").await, known);
    assert_eq!(address("uncalled").await, Err(Reason::StoreUnavailable));
}

#[tokio::test]
async fn what_is_said_to_have_changed_is_never_served_stale() {
    let room = room().await;
    room.online("a").await;
    room.agent("a").await;
    room.db.pool().close().await;
    room.coherence
        .apply(&Invalidation::Workspace(id("a")))
        .await;
    assert_eq!(room.refusal("a").await, Reason::StoreUnavailable);
}

#[tokio::test]
async fn when_the_shared_state_is_away_sql_says_where_the_agent_is() {
    let room = room_on("redis://127.0.0.1:1/").await;
    room.directory
        .registrations
        .create(&creation("a"), Run::Real)
        .await
        .unwrap();
    let refusal = room
        .directory
        .registrations
        .register(&registration("a"), &Registrar::Itself)
        .await;
    assert_eq!(refusal.unwrap_err().reason, Reason::StoreUnavailable);
    assert_eq!(room.agent("a").await.endpoint.host, "127.0.0.1:9001");
    assert_eq!(
        room.beat("a", &Heartbeat::default()).await.to,
        Status::Online
    );
    assert!(
        room.directory
            .lapses
            .sweep()
            .await
            .is_ok_and(|lapsed| lapsed.is_empty())
    );
    room.set_status("a", Status::Offline).await;
    assert_eq!(room.refusal("a").await, Reason::WorkspaceOffline);
    // It may have lost leases: each look that fails begins a TTL in which a missing one proves nothing.
    let leases = &room.directory.registrations.presence.leases;
    pass(TTL).await;
    assert!(leases.doubt_left().is_zero());
    leases.read(&id("a")).await.unwrap_err();
    assert!(!leases.doubt_left().is_zero());
}

#[tokio::test]
async fn discovery_tells_each_caller_its_own_url() {
    let room = room().await;
    room.online("a").await;
    let ask = async |caller: Option<&str>| {
        let permit = Permit::for_test(caller.map(id), id("a"));
        room.directory.views.discover(&permit).await
    };
    let inside = ask(Some("b")).await.unwrap();
    assert_eq!(inside.url.as_deref(), Some("http://10.0.0.7:8000/a2a"));
    let outside = ask(None).await.unwrap();
    assert_eq!(outside.url.as_deref(), Some("http://127.0.0.1:9001/a2a"));
    assert_eq!(outside.status, Status::Online);
    let json = serde_json::to_value(&outside).unwrap();
    assert_eq!(json["agent_card"]["name"], "a");
    room.set_status("a", Status::Paused).await;
    let refusal = ask(None).await.unwrap_err();
    assert_eq!(refusal.reason, Reason::WorkspaceOffline);
    assert!(refusal.facts.iter().any(|(name, _)| *name == "last_seen"));
}

#[tokio::test]
async fn long_cards_leave_room_for_fewer_entries() {
    let room = room_of("memory", 100).await;
    let long = card(&format!(r#"{{"name":"{}"}}"#, "x".repeat(64 << 10)));
    for n in 0..40 {
        let name = format!("w{n}");
        room.directory
            .registrations
            .create(&creation(&name), Run::Real)
            .await
            .unwrap();
        let registration = Registration {
            agent_card: long.clone(),
            ..registration(&name)
        };
        let itself = Registrar::Itself;
        room.directory
            .registrations
            .register(&registration, &itself)
            .await
            .unwrap();
        room.resolve(&name).await.unwrap();
    }
    room.directory.entries.known.run_pending_tasks().await;
    // Each counts as eight, the most that one does.
    let known = room.directory.entries.known.entry_count();
    assert!((1..=12).contains(&known), "{known} entries of 64 KiB");
    for n in 0..100 {
        let name = format!("short{n}");
        room.online(&name).await;
        room.resolve(&name).await.unwrap();
    }
    // Who is asked for again and again stays for that, beside a cache full of short ones.
    for _ in 0..40 {
        room.resolve("w0").await.unwrap();
    }
    let id = WorkspaceId::parse("w0").unwrap();
    assert!(room.directory.entries.cache.get(&id).is_some());
}
