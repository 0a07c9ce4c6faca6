//! Every kind of principal against every kind of target, and moves that take effect at once.

use super::*;
use crate::hierarchy::{Grant, NewGrant};
use crate::workspace::{NewWorkspace, Status, WorkspaceSettings};
use kernel::config::Config;
use kernel::ids::RequestId;
use kernel::time::Timestamp;
use stores::coherence::Invalidation;
use stores::db::Db;
use stores::shared::Shared;
use stores::store::Run;

struct Room {
    hierarchy: Hierarchy,
    workspaces: Workspaces,
    coherence: Arc<Coherence>,
    metrics: Arc<Metrics>,
    db: Db,
    _folder: tempfile::TempDir,
}

/// `pm` > `dev` > `bot` and `pm` > `qa` in acme, `gone` removed below `pm`; `ext` in other; `free` in none.
async fn room() -> Room {
    room_of(100_000).await
}

async fn room_of(cache_entries: u64) -> Room {
    let folder = tempfile::tempdir().unwrap();
    let mut config: Config =
        toml::from_str(include_str!("../../../../../config/default.toml")).unwrap();
    config.stores.sql = format!("sqlite:{}/gateway.db", folder.path().display()).into();
    config.stores.timeout = std::time::Duration::from_secs(60);
    config.directory.cache_entries = cache_entries;
    let metrics = Arc::new(Metrics::new());
    let db = Db::open(&config.stores, Arc::clone(&metrics)).unwrap();
    db.migrate().await.unwrap();
    let shared = Shared::open(&config.stores, Arc::clone(&metrics)).unwrap();
    let coherence = Coherence::new(shared, true, Arc::clone(&metrics));
    let workspaces = Workspaces::new(db.clone());
    let hierarchy = Hierarchy::new(
        workspaces.clone(),
        db.clone(),
        &coherence,
        Arc::clone(&metrics),
        config.into(),
    );
    let room = Room {
        hierarchy,
        workspaces,
        coherence,
        metrics,
        db,
        _folder: folder,
    };
    for (name, parent, org) in [
        ("pm", None, Some("acme")),
        ("dev", Some("pm"), Some("acme")),
        ("qa", Some("pm"), Some("acme")),
        ("bot", Some("dev"), Some("acme")),
        ("gone", Some("pm"), Some("acme")),
        ("ext", None, Some("other")),
        ("free", None, None),
    ] {
        room.create(name, parent, org).await;
    }
    let now = Timestamp::now();
    let (from, to) = (Status::Online, Status::Removed);
    assert!(
        room.workspaces
            .set_status(&id("gone"), from, to, now)
            .await
            .unwrap()
    );
    room
}

fn id(text: &str) -> WorkspaceId {
    WorkspaceId::parse(text).unwrap()
}

impl Room {
    async fn create(&self, name: &str, parent: Option<&str>, org: Option<&str>) {
        let new = NewWorkspace {
            id: id(name),
            settings: WorkspaceSettings {
                name: name.to_owned(),
                parent_id: parent.map(id),
                org: org.map(str::to_owned),
                status: Status::Online,
                ..WorkspaceSettings::default()
            },
            origins: Default::default(),
            enrolment: None,
            instances: Vec::new(),
        };
        self.workspaces
            .create(&new, Timestamp::now(), Run::Real)
            .await
            .unwrap();
        self.coherence
            .invalidate(Invalidation::Lineage(id(name)))
            .await;
    }

    async fn place(&self, name: &str, parent: Option<&str>) {
        let (parent, now) = (parent.map(id), Timestamp::now());
        let org = Some("acme");
        assert!(
            self.workspaces
                .set_place(&id(name), parent.as_ref(), org, now)
                .await
                .unwrap()
        );
        self.coherence
            .invalidate(Invalidation::Lineage(id(name)))
            .await;
    }

    async fn ask(&self, principal: &Principal, target: &str) -> Result<Rule, Reason> {
        let permit = self
            .hierarchy
            .permit_principal(principal, &id(target), &mut ())
            .await;
        permit.map(|permit| permit.rule()).map_err(|r| r.reason)
    }
}

fn workspace(name: &str) -> Principal {
    Principal::Workspace { id: id(name) }
}

fn canvas(org: Option<&str>, workspaces: Option<&[&str]>) -> Principal {
    Principal::Canvas {
        user: "u".to_owned(),
        org: org.map(str::to_owned),
        confined: false,
        within: None,
        workspaces: workspaces.map(|list| list.iter().map(|name| id(name)).collect()),
    }
}

#[tokio::test]
async fn every_principal_reaches_what_the_contract_says() {
    use Reason::{NotPermitted, WorkspaceNotFound, WorkspaceRemoved};
    let room = room().await;
    let acme = Principal::Org {
        org: "acme".to_owned(),
        within: None,
    };
    let operator = Principal::Operator;
    for (principal, target, expected) in [
        (workspace("dev"), "dev", Ok(Rule::SelfRule)),
        (workspace("pm"), "dev", Ok(Rule::Parent)),
        (workspace("dev"), "pm", Ok(Rule::Child)),
        (workspace("dev"), "qa", Ok(Rule::Sibling)),
        (workspace("pm"), "bot", Err(NotPermitted)),
        (workspace("pm"), "ext", Err(NotPermitted)),
        (workspace("pm"), "free", Err(NotPermitted)),
        (workspace("pm"), "gone", Err(NotPermitted)),
        (workspace("pm"), "ghost", Err(NotPermitted)),
        (workspace("ghost"), "pm", Err(NotPermitted)),
        (workspace("ghost"), "ghost", Err(WorkspaceNotFound)),
        (workspace("gone"), "gone", Err(WorkspaceRemoved)),
        (workspace("gone"), "pm", Err(NotPermitted)),
        (acme.clone(), "bot", Ok(Rule::Org)),
        (acme.clone(), "ext", Err(NotPermitted)),
        (acme.clone(), "free", Err(NotPermitted)),
        (acme.clone(), "ghost", Err(NotPermitted)),
        (acme, "gone", Err(WorkspaceRemoved)),
        (canvas(None, None), "free", Ok(Rule::Canvas)),
        (canvas(None, None), "ext", Err(NotPermitted)),
        (canvas(Some("acme"), None), "bot", Ok(Rule::Canvas)),
        (canvas(Some("acme"), None), "ext", Err(NotPermitted)),
        (canvas(Some("acme"), None), "free", Err(NotPermitted)),
        (canvas(Some("acme"), None), "ghost", Err(NotPermitted)),
        (canvas(Some("acme"), None), "gone", Err(WorkspaceRemoved)),
        (
            canvas(Some("acme"), Some(&["ext"])),
            "ext",
            Ok(Rule::Canvas),
        ),
        (
            canvas(Some("acme"), Some(&["ext"])),
            "dev",
            Err(NotPermitted),
        ),
        (canvas(None, Some(&[])), "dev", Err(NotPermitted)),
        (canvas(None, Some(&["dev"])), "ghost", Err(NotPermitted)),
        (operator.clone(), "ext", Ok(Rule::Operator)),
        (operator.clone(), "ghost", Err(WorkspaceNotFound)),
        (operator, "gone", Err(WorkspaceRemoved)),
    ] {
        let said = room.ask(&principal, target).await;
        assert_eq!(said, expected, "{principal:?} to {target}");
    }
}

#[tokio::test]
async fn an_unknown_target_reads_exactly_like_a_denied_one() {
    let room = room().await;
    let request = RequestId::from_caller(Some(b"r"));
    let mut bodies = Vec::new();
    for target in ["ghost", "gone", "ext", "bot", "free"] {
        let refusal = room
            .hierarchy
            .permit_principal(&workspace("pm"), &id(target), &mut ())
            .await;
        bodies.push(refusal.unwrap_err().rpc_body(&request, Some("1")));
    }
    bodies.dedup();
    assert_eq!(bodies.len(), 1);
}

#[tokio::test]
async fn steady_state_asks_no_store() {
    let room = room().await;
    room.ask(&workspace("pm"), "dev").await.unwrap();
    let before = room.metrics.store_operations();
    for _ in 0..50 {
        room.ask(&workspace("pm"), "dev").await.unwrap();
    }
    assert_eq!(room.metrics.store_operations(), before);
}

#[tokio::test]
async fn as_many_pairs_as_there_are_entries_are_decided_from_memory() {
    let room = room_of(20).await;
    let pairs: Vec<_> = (0..20)
        .map(|n| (format!("a{n}"), format!("b{n}")))
        .collect();
    for (n, (caller, target)) in pairs.iter().enumerate() {
        let parent = format!("parent-{n}");
        room.create(&parent, None, Some("acme")).await;
        room.create(caller, Some(&parent), Some("acme")).await;
        room.create(target, Some(&parent), Some("acme")).await;
    }
    let mut asked = Vec::new();
    for _ in 0..3 {
        for (caller, target) in &pairs {
            room.ask(&workspace(caller), target).await.unwrap();
        }
        asked.push(room.metrics.store_operations());
    }
    assert_eq!((asked[0], asked[0]), (asked[1], asked[2]));
}

#[tokio::test]
async fn a_move_is_in_force_at_once_for_all_below() {
    let room = room().await;
    room.hierarchy
        .config
        .change(|config| config.access.lineage = LineageReach::Any);
    assert_eq!(room.ask(&workspace("pm"), "bot").await, Ok(Rule::Ancestor));
    room.place("dev", None).await;
    assert_eq!(
        room.ask(&workspace("pm"), "bot").await,
        Err(Reason::NotPermitted)
    );
    assert_eq!(
        room.ask(&workspace("pm"), "dev").await,
        Ok(Rule::RootSibling)
    );
    room.create("late", Some("dev"), Some("acme")).await;
    assert_eq!(room.ask(&workspace("dev"), "late").await, Ok(Rule::Parent));
}

#[tokio::test]
async fn a_created_workspace_is_known_at_once() {
    let room = room().await;
    assert_eq!(
        room.ask(&Principal::Operator, "new").await,
        Err(Reason::WorkspaceNotFound)
    );
    room.create("new", None, None).await;
    assert_eq!(
        room.ask(&Principal::Operator, "new").await,
        Ok(Rule::Operator)
    );
}

#[tokio::test]
async fn a_cycle_in_the_data_denies_and_ends() {
    let room = room().await;
    room.place("pm", Some("bot")).await;
    for target in ["pm", "dev", "bot"] {
        let said = room.ask(&workspace("dev"), target).await;
        assert_eq!(said, Err(Reason::NotPermitted), "{target}");
    }
    assert_eq!(
        room.ask(&Principal::Operator, "dev").await,
        Ok(Rule::Operator)
    );
}

#[tokio::test]
async fn a_store_that_does_not_answer_permits_nothing_new() {
    let room = room().await;
    room.ask(&workspace("pm"), "dev").await.unwrap();
    room.db.pool().close().await;
    assert_eq!(room.ask(&workspace("pm"), "dev").await, Ok(Rule::Parent));
    for principal in [workspace("pm"), Principal::Operator, canvas(None, None)] {
        let said = room.ask(&principal, "qa").await;
        assert_eq!(said, Err(Reason::StoreUnavailable), "{principal:?}");
    }
}

impl Room {
    async fn grant(&self, caller: &str, target: &str, expires_in: Option<i64>) -> Grant {
        let new = NewGrant {
            caller: id(caller),
            target: id(target),
            note: None,
            expires_at: expires_in.map(|ms| Timestamp(Timestamp::now().0 + ms)),
        };
        self.hierarchy.put_grant(&new, Run::Real).await.unwrap()
    }

    async fn refused(&self, caller: &str, target: &str, expires_in: Option<i64>) -> Reason {
        let new = NewGrant {
            caller: id(caller),
            target: id(target),
            note: None,
            expires_at: expires_in.map(|ms| Timestamp(Timestamp::now().0 + ms)),
        };
        self.hierarchy
            .put_grant(&new, Run::Real)
            .await
            .unwrap_err()
            .reason
    }
}

#[tokio::test]
async fn a_grant_is_for_one_ordered_pair_and_crosses_orgs() {
    let room = room().await;
    for (caller, target) in [("pm", "ext"), ("bot", "pm"), ("free", "dev")] {
        let before = room.ask(&workspace(caller), target).await;
        assert_eq!(before, Err(Reason::NotPermitted), "{caller} to {target}");
        let grant = room.grant(caller, target, None).await;
        let said = room.ask(&workspace(caller), target).await;
        assert_eq!(said, Ok(Rule::Grant), "{caller} to {target}");
        let back = room.ask(&workspace(target), caller).await;
        assert_eq!(back, Err(Reason::NotPermitted), "{target} to {caller}");
        for _ in 0..2 {
            assert!(
                room.hierarchy
                    .remove_grant(&grant.id, Run::Real)
                    .await
                    .unwrap()
            );
            let said = room.ask(&workspace(caller), target).await;
            assert_eq!(said, Err(Reason::NotPermitted), "{caller} to {target}");
        }
    }
    assert!(
        !room
            .hierarchy
            .remove_grant("never", Run::Real)
            .await
            .unwrap()
    );
    // A relation comes first.
    room.grant("pm", "dev", None).await;
    assert_eq!(room.ask(&workspace("pm"), "dev").await, Ok(Rule::Parent));
}

#[tokio::test]
async fn a_grant_ends_to_the_millisecond_and_no_permission_asks_a_store_for_it() {
    let room = room().await;
    let first = room.grant("pm", "ext", Some(12_000)).await;
    let end = first.expires_at.unwrap();
    assert_eq!(room.ask(&workspace("pm"), "ext").await, Ok(Rule::Grant));
    let before = room.metrics.store_operations();
    loop {
        let began = Timestamp::now();
        let said = room.ask(&workspace("pm"), "ext").await.is_ok();
        assert!(said || Timestamp::now() >= end, "ended early");
        assert!(!said || began < end, "ended late");
        if !said {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    // The refusal took the one look that every refusal takes.
    assert_eq!(room.metrics.store_operations(), before + 1);
    // What is over is not changed: the next one is another.
    let second = room.grant("pm", "ext", Some(60_000)).await;
    assert_ne!(first.id, second.id, "an expired grant counted");
    let third = room.grant("pm", "ext", None).await;
    assert_eq!((&third.id, third.expires_at), (&second.id, None));
    assert_eq!(third.created_at, second.created_at);
    assert!(
        room.hierarchy
            .remove_grant(&second.id, Run::Real)
            .await
            .unwrap()
    );
    let fourth = room.grant("pm", "ext", None).await;
    assert_ne!(fourth.id, second.id, "a grant that was taken back counted");
    assert!(
        !room
            .hierarchy
            .remove_grant(&second.id, Run::Real)
            .await
            .unwrap()
    );
    let all = room.hierarchy.list_grants(None, None, "", 10).await;
    assert_eq!(all.unwrap(), [fourth]);
}

#[tokio::test]
async fn a_refusal_takes_one_look_whether_or_not_the_target_is_known() {
    let room = room().await;
    let (org, within) = ("acme".to_owned(), None);
    let org = Principal::Org { org, within };
    room.ask(&Principal::Operator, "ext").await.unwrap();
    for principal in [workspace("pm"), org, canvas(Some("acme"), None)] {
        for target in ["ext", "ghost"] {
            // Whether there is a grant is remembered for both.
            room.ask(&principal, target).await.unwrap_err();
            for _ in 0..5 {
                let before = room.metrics.store_operations();
                room.ask(&principal, target).await.unwrap_err();
                let looks = room.metrics.store_operations() - before;
                assert_eq!(looks, 1, "{principal:?} to {target}");
            }
        }
    }
}

#[tokio::test]
async fn no_grant_joins_removed_workspaces_or_lines_with_a_cycle() {
    let room = room().await;
    for (caller, target, expires_in, reason) in [
        ("pm", "gone", None, Reason::WorkspaceRemoved),
        ("gone", "pm", None, Reason::WorkspaceRemoved),
        ("pm", "ghost", None, Reason::WorkspaceNotFound),
        ("ghost", "pm", None, Reason::WorkspaceNotFound),
        ("pm", "pm", None, Reason::InvalidParams),
        ("pm", "ext", Some(0), Reason::InvalidParams),
        ("pm", "ext", Some(-1), Reason::InvalidParams),
    ] {
        let said = room.refused(caller, target, expires_in).await;
        assert_eq!(said, reason, "{caller} to {target}");
    }
    for (caller, target) in [("dev", "ext"), ("ext", "dev"), ("free", "ext")] {
        room.grant(caller, target, None).await;
        assert_eq!(room.ask(&workspace(caller), target).await, Ok(Rule::Grant));
    }
    room.place("pm", Some("bot")).await;
    for (caller, target) in [("dev", "ext"), ("ext", "dev")] {
        let said = room.ask(&workspace(caller), target).await;
        assert_eq!(said, Err(Reason::NotPermitted), "{caller} to {target}");
    }
    let (from, to, now) = (Status::Online, Status::Removed, Timestamp::now());
    let removed = room.workspaces.set_status(&id("ext"), from, to, now).await;
    assert!(removed.unwrap());
    room.coherence
        .invalidate(Invalidation::Lineage(id("ext")))
        .await;
    assert_eq!(
        room.ask(&workspace("free"), "ext").await,
        Err(Reason::NotPermitted)
    );
}

#[tokio::test]
async fn a_grant_that_cannot_be_read_permits_nothing_but_one_that_was_read_does() {
    let room = room().await;
    room.grant("pm", "ext", None).await;
    room.ask(&workspace("pm"), "ext").await.unwrap();
    room.ask(&workspace("pm"), "bot").await.unwrap_err();
    room.ask(&workspace("dev"), "dev").await.unwrap();
    room.db.pool().close().await;
    assert_eq!(room.ask(&workspace("pm"), "ext").await, Ok(Rule::Grant));
    assert_eq!(
        room.ask(&workspace("pm"), "bot").await,
        Err(Reason::NotPermitted)
    );
    assert_eq!(
        room.ask(&workspace("dev"), "ext").await,
        Err(Reason::StoreUnavailable)
    );
}
