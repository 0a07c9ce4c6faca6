//! Who may register and create what, and what is refused before anything is written.

use super::*;

async fn reason<T>(outcome: impl Future<Output = Result<T, Rejection>>) -> Option<Reason> {
    outcome.await.err().map(|refusal| refusal.reason)
}

#[tokio::test]
async fn a_registration_is_checked_before_it_counts() {
    let room = room().await;
    room.directory
        .registrations
        .create(&creation("a"), Run::Real)
        .await
        .unwrap();
    let with = |change: fn(&mut Registration)| {
        let mut registration = registration("a");
        change(&mut registration);
        registration
    };
    for (registration, expected) in [
        (with(|r| r.url = None), Reason::InvalidParams),
        (with(|r| r.agent_card = card("[]")), Reason::InvalidParams),
        (
            with(|r| r.url = Some("http://169.254.169.254/".into())),
            Reason::AddressForbidden,
        ),
        (
            with(|r| r.url = Some("http://u:p@127.0.0.1/".into())),
            Reason::AddressForbidden,
        ),
        (
            with(|r| r.internal_url = Some("http://[fe80::1]/".into())),
            Reason::AddressForbidden,
        ),
        (with(|r| r.id = id("ghost")), Reason::WorkspaceNotFound),
    ] {
        let outcome = room
            .directory
            .registrations
            .register(&registration, &Registrar::Itself);
        assert_eq!(reason(outcome).await, Some(expected), "{registration:?}");
    }
    assert_eq!(room.status("a").await, Status::Provisioning);
    assert_eq!(room.shared.get("ws:a:url").await.unwrap(), None);
    room.set_status("a", Status::Removed).await;
    let again = registration("a");
    let outcome = room
        .directory
        .registrations
        .register(&again, &Registrar::Itself);
    assert_eq!(reason(outcome).await, Some(Reason::WorkspaceRemoved));
    assert_eq!(room.status("a").await, Status::Removed);
}

#[tokio::test]
async fn registering_again_updates_and_forgets_what_is_not_said_any_more() {
    let room = room().await;
    room.online("a").await;
    room.agent("a").await;
    room.set_status("a", Status::Offline).await;
    let again = Registration {
        url: Some("http://127.0.0.1:9002/".to_owned()),
        internal_url: None,
        agent_card: card(r#"{"protocolVersion":"0.3.0"}"#),
        ..registration("a")
    };
    let done = room
        .directory
        .registrations
        .register(&again, &Registrar::Itself)
        .await
        .unwrap();
    assert!(!done.created);
    let agent = room.agent("a").await;
    assert_eq!(agent.endpoint.host, "127.0.0.1:9002");
    assert_eq!(agent.options.generation, Generation::V0);
    assert_eq!(room.shared.get("ws:a:internal_url").await.unwrap(), None);
    let permit = Permit::for_test(Some(id("b")), id("a"));
    let found = room.directory.views.discover(&permit).await.unwrap();
    assert_eq!(found.url.as_deref(), Some("http://127.0.0.1:9002/"));
}

#[tokio::test]
async fn a_name_that_cannot_be_looked_up_is_a_mistake_only_where_we_connect() {
    let room = room().await;
    room.directory
        .registrations
        .create(&creation("a"), Run::Real)
        .await
        .unwrap();
    let unknown = Some("http://agent.invalid:8000/".to_owned());
    let inside = Registration {
        internal_url: unknown.clone(),
        ..registration("a")
    };
    assert_eq!(
        reason(
            room.directory
                .registrations
                .register(&inside, &Registrar::Itself)
        )
        .await,
        None
    );
    let outside = Registration {
        url: unknown,
        ..registration("a")
    };
    let outcome = room
        .directory
        .registrations
        .register(&outside, &Registrar::Itself);
    assert_eq!(reason(outcome).await, Some(Reason::AgentUnreachable));
}

#[tokio::test]
async fn an_org_token_creates_in_its_org_and_moves_nothing() {
    let room = room().await;
    let by = |org: &str, terms: Terms| Registrar::Org {
        within: None,
        org: org.to_owned(),
        terms,
    };
    let terms = Terms::default;
    let done = room
        .directory
        .registrations
        .register(&registration("a"), &by("acme", terms()))
        .await
        .unwrap();
    assert!(done.created);
    assert_eq!(done.workspace.org.as_deref(), Some("acme"));
    assert_eq!(done.workspace.status, Status::Online);
    room.agent("a").await;
    let foreign = room
        .directory
        .registrations
        .register(&registration("a"), &by("other", terms()))
        .await;
    assert_eq!(foreign.unwrap_err().reason, Reason::NotPermitted);
    room.directory
        .registrations
        .register(&registration("p"), &by("acme", terms()))
        .await
        .unwrap();
    let below = Terms {
        parent_id: Some(id("p")),
        ..terms()
    };
    let moved = room
        .directory
        .registrations
        .register(&registration("a"), &by("acme", below.clone()))
        .await;
    assert_eq!(moved.unwrap_err().reason, Reason::NotPermitted);
    let new = room
        .directory
        .registrations
        .register(&registration("c"), &by("acme", below))
        .await
        .unwrap();
    assert_eq!(new.workspace.parent_id, Some(id("p")));
}

#[tokio::test]
async fn an_operator_moves_but_makes_no_cycle_and_crosses_no_org() {
    let room = room().await;
    for name in ["a", "b", "c"] {
        room.directory
            .registrations
            .create(&creation(name), Run::Real)
            .await
            .unwrap();
    }
    let elsewhere = creation_with("x", |said| said.org = Some(Some("other".to_owned())));
    room.directory
        .registrations
        .create(&elsewhere, Run::Real)
        .await
        .unwrap();
    let below = |parent: &str| {
        Registrar::Operator(Terms {
            parent_id: Some(id(parent)),
            name: Some("renamed".to_owned()),
            ..Terms::default()
        })
    };
    let moved = |child: &'static str, parent: &'static str| {
        let (child, by) = (registration(child), below(parent));
        let directory = &room.directory;
        async move { directory.registrations.register(&child, &by).await }
    };
    let done = moved("b", "a").await.unwrap();
    assert_eq!(done.workspace.parent_id, Some(id("a")));
    assert_eq!(done.workspace.name, "renamed");
    moved("c", "b").await.unwrap();
    for (child, parent) in [("a", "c"), ("a", "a"), ("a", "x"), ("a", "ghost")] {
        let outcome = reason(moved(child, parent)).await;
        assert_eq!(outcome, Some(Reason::Conflict), "{child} below {parent}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_two_opposite_moves_at_once_one_is_made() {
    let room = Arc::new(room().await);
    for round in 0..20 {
        let [a, b] = ["a", "b"].map(|side| format!("{side}{round}"));
        for name in [&a, &b] {
            room.directory
                .registrations
                .create(&creation(name), Run::Real)
                .await
                .unwrap();
        }
        let moved = |child: &str, parent: &str| {
            let terms = Terms {
                parent_id: Some(id(parent)),
                ..Terms::default()
            };
            let (child, room) = (registration(child), Arc::clone(&room));
            let by = Registrar::Operator(terms);
            tokio::spawn(
                async move { reason(room.directory.registrations.register(&child, &by)).await },
            )
        };
        let (one, other) = tokio::join!(moved(&a, &b), moved(&b, &a));
        let both = [one.unwrap(), other.unwrap()];
        assert!(
            both.contains(&None) && both.contains(&Some(Reason::Conflict)),
            "{both:?}"
        );
        let mut tied = 0;
        for name in [&a, &b] {
            let found = room.workspaces.find(&id(name)).await.unwrap().unwrap();
            tied += usize::from(found.parent_id.is_some());
        }
        assert_eq!(tied, 1, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_that_register_a_new_workspace_at_once_all_do() {
    let room = Arc::new(room().await);
    room.directory
        .registrations
        .create(&creation("top"), Run::Real)
        .await
        .unwrap();
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..32 {
        let terms = Terms {
            parent_id: Some(id("top")),
            ..Terms::default()
        };
        let (new, room) = (registration("new"), Arc::clone(&room));
        let by = Registrar::Operator(terms);
        all.spawn(async move { room.directory.registrations.register(&new, &by).await });
    }
    let all = all.join_all().await;
    let created = all.iter().filter(|done| done.as_ref().unwrap().created);
    assert_eq!(created.count(), 1);
}

#[tokio::test]
async fn a_url_is_kept_as_it_was_understood_or_not_at_all() {
    let room = room().await;
    room.directory
        .registrations
        .create(&creation("a"), Run::Real)
        .await
        .unwrap();
    let with = |url: &str| Registration {
        url: Some(url.to_owned()),
        internal_url: Some(url.to_owned()),
        ..registration("a")
    };
    let done = room
        .directory
        .registrations
        .register(&with("HTTP://0x7f.1:9001/a/../b"), &Registrar::Itself)
        .await
        .unwrap();
    for kept in [
        done.workspace.url.clone(),
        done.workspace.internal_url.clone(),
    ] {
        assert_eq!(kept.as_deref(), Some("http://127.0.0.1:9001/b"));
    }
    for wrong in [
        "127.0.0.1:8001",
        "http://127.0.0.1:1\\@b/",
        "http://127.0.0.1/\0",
        "http://127.0.0.1/ ",
    ] {
        let outcome = reason(
            room.directory
                .registrations
                .register(&with(wrong), &Registrar::Itself),
        )
        .await;
        assert_eq!(outcome, Some(Reason::InvalidParams), "{wrong:?}");
        let creation = creation_with("new", |said| {
            said.card_url = Some(Some(wrong.to_owned()));
        });
        let outcome = reason(room.directory.registrations.create(&creation, Run::Real)).await;
        assert_eq!(outcome, Some(Reason::InvalidParams), "{wrong:?}");
    }
    // A move that comes with a wrong URL is not made.
    room.directory
        .registrations
        .create(&creation("b"), Run::Real)
        .await
        .unwrap();
    let by = Registrar::Operator(Terms {
        parent_id: Some(id("b")),
        ..Terms::default()
    });
    let outcome = reason(room.directory.registrations.register(&with("nowhere"), &by)).await;
    assert_eq!(outcome, Some(Reason::InvalidParams));
    let found = room.workspaces.find(&id("a")).await.unwrap().unwrap();
    assert_eq!(found.parent_id, None);
}

#[tokio::test]
async fn a_creation_is_checked_and_an_id_is_given_once() {
    let room = room().await;
    let acme = creation_with("p", |said| said.org = Some(Some("acme".to_owned())));
    let parent = room
        .directory
        .registrations
        .create(&acme, Run::Real)
        .await
        .unwrap();
    assert_eq!(parent.status, Status::Provisioning);
    let child = creation_with("c", |said| said.parent_id = Some(Some("p".to_owned())));
    let made = room
        .directory
        .registrations
        .create(&child, Run::Real)
        .await
        .unwrap();
    assert_eq!(
        made.org.as_deref(),
        Some("acme"),
        "whom its parent belongs to"
    );
    let with = |say: fn(&mut SettingsPatch)| creation_with("new", say);
    for (creation, expected) in [
        (acme, Reason::Conflict),
        (
            with(|c| c.parent_id = Some(Some("ghost".into()))),
            Reason::Conflict,
        ),
        (
            with(|c| c.parent_id = Some(Some("new".into()))),
            Reason::Conflict,
        ),
        (
            with(|c| {
                c.parent_id = Some(Some("p".into()));
                c.org = Some(Some("other".into()));
            }),
            Reason::Conflict,
        ),
        (
            with(|c| c.name = Some(String::new())),
            Reason::InvalidParams,
        ),
        (
            with(|c| c.role = Some(Some("a\0".into()))),
            Reason::InvalidParams,
        ),
        (
            with(|c| c.max_concurrent = Some(Some(0))),
            Reason::InvalidParams,
        ),
        (
            with(|c| c.liveness = Some(Liveness::Assumed)),
            Reason::InvalidParams,
        ),
        (
            with(|c| c.url = Some(Some("ftp://127.0.0.1/".into()))),
            Reason::AddressForbidden,
        ),
        (
            with(|c| c.card_url = Some(Some("http://0.0.0.0/".into()))),
            Reason::AddressForbidden,
        ),
    ] {
        let outcome = reason(room.directory.registrations.create(&creation, Run::Real)).await;
        assert_eq!(outcome, Some(expected), "{creation:?}");
    }
}

#[tokio::test]
async fn a_removed_parent_has_no_new_children_and_a_nameless_creation_gets_an_id() {
    let room = room().await;
    room.directory
        .registrations
        .create(&creation("p"), Run::Real)
        .await
        .unwrap();
    room.set_status("p", Status::Removed).await;
    let orphan = creation_with("new", |said| said.parent_id = Some(Some("p".to_owned())));
    assert_eq!(
        reason(room.directory.registrations.create(&orphan, Run::Real)).await,
        Some(Reason::Conflict)
    );
}

#[tokio::test]
async fn an_assumed_workspace_is_online_without_heartbeats() {
    let room = room().await;
    let outsider = creation_with("x", |said| {
        said.liveness = Some(Liveness::Assumed);
        said.url = Some(registration("x").url);
        said.max_concurrent = Some(Some(1));
        said.complete = Some(Some(CompletionMode::Off));
    });
    room.directory
        .registrations
        .create(&outsider, Run::Real)
        .await
        .unwrap();
    pass(2 * TTL).await;
    let agent = room.agent("x").await;
    assert_eq!(agent.options.complete, CompletionMode::Off);
    let _held = agent
        .slots
        .take(Account::without_group(1), CallKind::Unary)
        .unwrap();
    assert!(
        agent
            .slots
            .take(Account::without_group(2), CallKind::Unary)
            .is_err()
    );
}

#[tokio::test]
async fn the_workspace_reads_as_the_contract_says() {
    use access::workspace::UrlVisibility;
    let room = room().await;
    room.online("a").await;
    let workspace = room.directory.views.find(&id("a")).await.unwrap();
    let shown = serde_json::to_value(workspace.as_view(UrlVisibility::Shown)).unwrap();
    let members: Vec<_> = shown
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    let mut expected = vec![
        "id",
        "name",
        "role",
        "parent_id",
        "org",
        "status",
        "delivery_mode",
        "liveness",
        "url",
        "internal_url",
        "card_url",
        "agent_card",
        "last_seen",
        "active_tasks",
        "current_task",
        "max_concurrent",
        "created_at",
        "updated_at",
    ];
    expected.sort_unstable();
    assert_eq!(members, expected);
    assert_eq!(shown["url"], "http://127.0.0.1:9001/a2a");
    assert_eq!(shown["status"], "online");
    assert_eq!(
        shown["last_seen"].as_str().unwrap().len(),
        "2026-01-01T00:00:00.000Z".len()
    );
    let hidden = serde_json::to_value(workspace.as_view(UrlVisibility::Hidden)).unwrap();
    assert!(hidden["url"].is_null() && hidden["internal_url"].is_null());
    assert_eq!(hidden["agent_card"], shown["agent_card"]);
}
