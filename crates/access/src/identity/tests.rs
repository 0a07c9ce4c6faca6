//! Unit tests on real embedded stores.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;

use super::*;
use kernel::config::{AuthMode, Config, Live};
use kernel::ids::WorkspaceId;
use kernel::metrics::Metrics;
use kernel::rejection::{Reason, Rejection};
use kernel::time::Timestamp;
use stores::coherence::Coherence;
use stores::db::Db;
use stores::shared::Shared;
use stores::store::Run::Real;
use trust::{Keys, Seal};

struct House {
    identity: Identity,
    keys: Arc<Keys>,
    db: Db,
    metrics: Arc<Metrics>,
    config: Live,
    _dir: tempfile::TempDir,
}

impl House {
    async fn new(admin: Option<&SecretString>, change: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config: Config =
            toml::from_str(include_str!("../../../../config/default.toml")).unwrap();
        config.stores.sql = format!("sqlite:{}", dir.path().join("gw.db").display()).into();
        config.stores.timeout = Duration::from_secs(60);
        config.auth.admin_token = admin.cloned();
        change(&mut config);
        let config = Live::from(config);
        let metrics = Arc::new(Metrics::new());
        let db = Db::open(&config.get().stores, Arc::clone(&metrics)).unwrap();
        db.migrate().await.unwrap();
        let shared = Shared::open(&config.get().stores, Arc::clone(&metrics)).unwrap();
        let coherence = Coherence::new(shared, db.is_embedded(), Arc::clone(&metrics));
        let keys = Arc::new(Keys::load_or_create(dir.path()).unwrap());
        let identity = Identity::new(
            config.clone(),
            db.clone(),
            (
                Arc::clone(&keys),
                Arc::new(Seal::load_or_create(dir.path(), None).unwrap()),
            ),
            coherence,
            Arc::clone(&metrics),
        );
        Self {
            identity,
            keys,
            db,
            metrics,
            config,
            _dir: dir,
        }
    }

    fn tokens(&self) -> &Tokens {
        &self.identity.tokens
    }

    async fn issue(&self, id: &WorkspaceId) -> Result<IssuedToken, Rejection> {
        let terms = TokenTerms::default();
        self.tokens().issue_workspace(id, &terms, Real).await
    }

    async fn enrolment(&self, id: &WorkspaceId) -> SecretString {
        let (maker, tokens) = (EnrolmentMaker::Operator, self.tokens());
        tokens
            .issue_enrolment(id, maker, Real)
            .await
            .unwrap()
            .0
            .token
    }

    async fn plain() -> Self {
        Self::new(None, |_| {}).await
    }

    /// Inserts a row into the table of workspaces.
    async fn workspace(&self, id: &str) -> WorkspaceId {
        let text = "INSERT INTO workspaces (id, name, status, delivery_mode, liveness, created_at, \
            updated_at) VALUES ($1, $1, 'online', 'push', 'heartbeat', 0, 0)";
        let query = sqlx::query(text).bind(id.to_owned());
        query.execute(self.db.pool()).await.unwrap();
        WorkspaceId::parse(id).unwrap()
    }

    async fn remove(&self, id: &WorkspaceId) {
        let query = sqlx::query("UPDATE workspaces SET status = 'removed' WHERE id = $1");
        let query = query.bind(id.as_str().to_owned());
        query.execute(self.db.pool()).await.unwrap();
    }

    async fn ask(&self, token: &str) -> Result<Arc<Proof>, Rejection> {
        let field = format!("Bearer {token}");
        self.identity.authenticate(Some(field.as_bytes())).await
    }

    async fn reason(&self, token: &str) -> Reason {
        self.ask(token).await.unwrap_err().reason
    }

    fn canvas(&self, change: impl FnOnce(&mut serde_json::Value)) -> String {
        let issuer = self.config.get().issuer();
        let now = Timestamp::now().0 / 1000;
        let mut claims = json!({"iss": issuer, "aud": issuer, "sub": "ada", "iat": now, "nbf": now,
            "exp": now + 60, "jti": "1", "scope": "a2a:canvas", "org": "acme"});
        change(&mut claims);
        self.keys.sign("a2a-canvas+jwt", &claims).unwrap()
    }
}

fn text(token: &IssuedToken) -> &str {
    token.token.expose_secret()
}

#[tokio::test]
async fn a_workspace_token_proves_its_workspace_until_revoked() {
    let house = House::plain().await;
    let id = house.workspace("ws-1").await;
    let token = house.issue(&id).await.unwrap();
    let proof = house.ask(text(&token)).await.unwrap();
    assert_eq!(proof.principal, Principal::Workspace { id: id.clone() });
    assert_eq!(proof.kind, CredentialKind::Workspace);
    assert_eq!(proof.prefix, text(&token)[..8]);

    let revoke = |id| house.tokens().revoke_workspace(id, &token.token_id, Real);
    assert!(revoke(&id).await.unwrap().is_some());
    assert_eq!(house.reason(text(&token)).await, Reason::Unauthenticated);
    assert!(
        revoke(&id).await.unwrap().is_some(),
        "repeating it is harmless"
    );
    let other = WorkspaceId::parse("ws-2").unwrap();
    assert_eq!(revoke(&other).await.unwrap(), None);
}

#[tokio::test]
async fn a_revocation_that_the_store_is_too_slow_to_answer_for_is_not_overlooked() {
    let change = |config: &mut Config| config.stores.timeout = Duration::from_secs(5);
    let house = House::new(None, change).await;
    let id = house.workspace("ws-1").await;
    for everything in [false, true] {
        let token = house.issue(&id).await.unwrap();
        house.ask(text(&token)).await.unwrap();
        // Another connection writes, for longer than the timeout allows.
        let mut slow = house.db.begin_reading().await.unwrap();
        let run = async |connection: &mut stores::db::Connection, text: &'static str| {
            sqlx::query(text).execute(connection).await.unwrap();
        };
        run(&mut slow, "BEGIN IMMEDIATE").await;
        if everything {
            house.tokens().revoke_all(&id).await.unwrap_err();
        } else {
            let revoked = house.tokens().revoke_workspace(&id, &token.token_id, Real);
            revoked.await.unwrap_err();
        }
        // And commits the statement after its caller has timed out.
        run(&mut slow, "UPDATE workspace_auth_tokens SET revoked_at = 1").await;
        run(&mut slow, "COMMIT").await;
        drop(slow);
        assert_eq!(house.reason(text(&token)).await, Reason::Unauthenticated);
    }
}

#[tokio::test]
async fn steady_state_asks_no_store_and_a_crowd_asks_once() {
    let house = House::plain().await;
    let id = house.workspace("ws-1").await;
    let token = house.issue(&id).await.unwrap();
    let before = house.metrics.store_operations();
    let crowd = (0..50).map(|_| house.ask(text(&token)));
    for proof in join_all(crowd).await {
        proof.unwrap();
    }
    assert_eq!(house.metrics.store_operations() - before, 1);
    house.ask(text(&token)).await.unwrap();
    assert_eq!(house.metrics.store_operations() - before, 1);
}

#[tokio::test]
async fn guesses_are_remembered_for_a_moment_and_evict_no_good_entry() {
    let house = House::plain().await;
    let guess = format!("a2aw_{}", "x".repeat(43));
    assert_eq!(house.reason(&guess).await, Reason::Unauthenticated);
    let before = house.metrics.store_operations();
    assert_eq!(house.reason(&guess).await, Reason::Unauthenticated);
    assert_eq!(house.metrics.store_operations(), before);
}

#[tokio::test]
async fn a_removed_workspaces_tokens_prove_nothing_and_no_new_one_is_made() {
    let house = House::plain().await;
    let id = house.workspace("ws-1").await;
    let token = house.issue(&id).await.unwrap();
    let enrolment = house.enrolment(&id).await;
    house.remove(&id).await;
    assert_eq!(house.reason(text(&token)).await, Reason::Unauthenticated);
    let field = format!("Bearer {}", enrolment.expose_secret());
    let refused = house
        .identity
        .authenticate_enrolment(Some(field.as_bytes()));
    assert_eq!(refused.await.unwrap_err().reason, Reason::Unauthenticated);
    let issued = house.issue(&id).await;
    assert_eq!(issued.unwrap_err().reason, Reason::WorkspaceNotFound);
}

#[tokio::test]
async fn fifty_live_tokens_are_enough() {
    let house = House::plain().await;
    let id = house.workspace("ws-1").await;
    for _ in 0..LIVE_TOKENS_MAX {
        house.issue(&id).await.unwrap();
    }
    let refused = house.issue(&id).await.unwrap_err();
    assert_eq!(refused.reason, Reason::Conflict);
    assert_eq!(house.tokens().count_live(&id).await.unwrap(), 50);

    let page = house.tokens().list_workspace(&id, "", 20).await;
    let page = page.unwrap();
    assert_eq!(page.len(), 20);
    let last = &page[19].token_id;
    let rest = house.tokens().list_workspace(&id, last, 500).await;
    assert_eq!(rest.unwrap().len(), 30);
    let revoked = house.tokens().revoke_workspace(&id, last, Real);
    revoked.await.unwrap();
    house.issue(&id).await.unwrap();
}

#[tokio::test]
async fn the_first_token_is_given_once() {
    let house = House::plain().await;
    let id = house.workspace("ws-1").await;
    let first = || house.tokens().issue_first(&id);
    let given = join_all((0..8).map(|_| first())).await;
    let given: Vec<_> = given.into_iter().map(Result::unwrap).collect();
    assert_eq!(given.iter().flatten().count(), 1);
}

#[tokio::test]
async fn an_enrolment_token_registers_once_and_does_nothing_else() {
    let house = House::plain().await;
    let id = house.workspace("ws-1").await;
    let token = house.enrolment(&id).await;
    let token = token.expose_secret();
    assert_eq!(house.reason(token).await, Reason::Unauthenticated);

    let field = format!("Bearer {token}");
    let enrol = || {
        house
            .identity
            .authenticate_enrolment(Some(field.as_bytes()))
    };
    let proof = enrol().await.unwrap();
    assert_eq!(proof.kind, CredentialKind::Enrolment);
    assert_eq!(proof.principal.workspace(), Some(&id));
    assert!(house.tokens().redeem_enrolment(&proof).await.unwrap());
    assert!(!house.tokens().redeem_enrolment(&proof).await.unwrap());
    assert_eq!(enrol().await.unwrap_err().reason, Reason::Unauthenticated);

    house.tokens().restore_enrolment(&proof).await.unwrap();
    enrol().await.unwrap();

    // Its holder crashed during the registration, more than two minutes ago.
    let tokens = &house.identity.tokens;
    assert!(
        tokens
            .redeem(proof.credential.unwrap(), Timestamp::now().0 - 121_000)
            .await
            .unwrap()
    );
    enrol().await.unwrap();
    assert!(house.tokens().redeem_enrolment(&proof).await.unwrap());
    assert!(!house.tokens().redeem_enrolment(&proof).await.unwrap());
    house.tokens().restore_enrolment(&proof).await.unwrap();
    // Likewise, but the workspace has a token: the registration completed.
    assert!(
        tokens
            .redeem(proof.credential.unwrap(), Timestamp::now().0 - 121_000)
            .await
            .unwrap()
    );
    let issued = house.issue(&id).await.unwrap();
    assert_eq!(enrol().await.unwrap_err().reason, Reason::Unauthenticated);
    let revoked = house.tokens().revoke_workspace(&id, &issued.token_id, Real);
    assert_eq!(revoked.await.unwrap(), Some(Vec::new()), "it was used");
    assert_eq!(enrol().await.unwrap_err().reason, Reason::Unauthenticated);
    assert!(!house.tokens().redeem_enrolment(&proof).await.unwrap());
}

#[tokio::test]
async fn org_tokens_act_in_their_org_until_revoked() {
    let house = House::plain().await;
    let (of, tokens) = (("acme", None), house.tokens());
    let token = tokens.issue_org(of, Some("ci"), Real).await.unwrap();
    let proof = house.ask(text(&token)).await.unwrap();
    assert_eq!(proof.principal.to_string(), "org:acme");
    let listed = tokens.list_org("acme", "", 10).await;
    assert_eq!(listed.unwrap()[0].note.as_deref(), Some("ci"));
    let revoke = |org| tokens.revoke_org(org, &token.token_id, Real);
    assert!(!revoke("other").await.unwrap() && revoke("acme").await.unwrap());
    assert_eq!(house.reason(text(&token)).await, Reason::Unauthenticated);
}

#[tokio::test]
async fn admin_tokens_come_from_the_start_or_are_made_once() {
    let given: SecretString = format!("a2aa_{}", "y".repeat(43)).into();
    let house = House::new(Some(&given), |_| {}).await;
    let proof = house.ask(given.expose_secret()).await.unwrap();
    assert_eq!(proof.principal, Principal::Operator);
    let ensure = async |house: &House, candidate| {
        let ensured = house.identity.ensure_admin_token(candidate).await;
        ensured.unwrap()
    };
    let (one, other) = (new_admin_token(), new_admin_token());
    assert!(ensure(&house, &one).await.is_none());

    let house = House::plain().await;
    assert_eq!(
        house.reason(given.expose_secret()).await,
        Reason::Unauthenticated
    );
    let made = ensure(&house, &one).await.unwrap();
    assert!(is_admin_token(made.expose_secret()));
    assert!(ensure(&house, &other).await.is_none());
    let again = ensure(&house, &one).await.unwrap();
    assert_eq!(
        again.expose_secret(),
        made.expose_secret(),
        "the store may not have answered the first time"
    );
    let proof = house.ask(made.expose_secret()).await.unwrap();
    assert_eq!(proof.kind, CredentialKind::Admin);
}

#[tokio::test]
async fn no_credential_is_refused_except_in_open_mode_and_a_wrong_one_always() {
    let house = House::plain().await;
    let refused = house.identity.authenticate(None).await.unwrap_err();
    assert_eq!(refused.reason, Reason::Unauthenticated);
    assert!(refused.message.contains("Authorization: Bearer"));

    let house = House::new(None, |config| config.auth.mode = AuthMode::Open).await;
    let proof = house.identity.authenticate(None).await.unwrap();
    assert_eq!(proof.kind, CredentialKind::Open);
    assert_eq!(house.reason("rubbish").await, Reason::Unauthenticated);
    let unknown = format!("a2aw_{}", "x".repeat(43));
    assert_eq!(house.reason(&unknown).await, Reason::Unauthenticated);
}

#[tokio::test]
async fn canvas_tokens_prove_a_user_within_their_time() {
    let house = House::plain().await;
    let only = [WorkspaceId::parse("ws-1").unwrap()];
    let hour = Duration::from_secs(3600);
    let issued = house
        .identity
        .signed
        .issue_canvas(&NewCanvas {
            user: "ada",
            org: Some("acme"),
            workspaces: Some(&only),
            groups: &[],
            ttl: hour,
            maker: None,
        })
        .unwrap();
    assert!((issued.expires_at - Timestamp::now().0 - 3_600_000).abs() < 5000);
    let proof = house.ask(issued.token.expose_secret()).await.unwrap();
    let expected = Principal::Canvas {
        user: "ada".into(),
        org: Some("acme".into()),
        workspaces: Some(only.to_vec()),
        confined: false,
        within: None,
    };
    assert_eq!(proof.principal, expected);
    assert_eq!(proof.kind, CredentialKind::Canvas);

    let wrong: [fn(&mut serde_json::Value); 5] = [
        |claims| claims["scope"] = "a2a:message".into(),
        |claims| claims["exp"] = 1.into(),
        |claims| claims["aud"] = "http://else".into(),
        |claims| claims["iss"] = "http://else".into(),
        |claims| claims["workspaces"] = json!(["a b"]),
    ];
    for change in wrong {
        let reason = house.reason(&house.canvas(change)).await;
        assert_eq!(reason, Reason::Unauthenticated);
    }
    for ttl in [Duration::ZERO, CANVAS_TTL_MAX + Duration::from_secs(1)] {
        let refused = house.identity.signed.issue_canvas(&NewCanvas {
            user: "ada",
            org: None,
            workspaces: None,
            groups: &[],
            ttl,
            maker: None,
        });
        assert_eq!(refused.unwrap_err().reason, Reason::InvalidParams);
    }
}

#[tokio::test]
async fn canvas_users_of_two_issuers_are_two_owners() {
    let house = House::plain().await;
    let mut ada = Proof::clone(&*house.ask(&house.canvas(|_| {})).await.unwrap());
    let mut owners = vec![ada.owner()];
    for issuer in ["https://one.test", "https://two.test"] {
        ada.signer.as_mut().unwrap().named.issuer = Some(issuer.to_owned());
        assert!(!owners.contains(&ada.owner()), "{issuer}");
        owners.push(ada.owner());
    }
}

#[tokio::test]
async fn a_cached_canvas_proof_does_not_outlive_its_token() {
    let house = House::plain().await;
    // Valid when it is first seen; at its end, beyond the leeway, when it is seen again.
    let token = house.canvas(|claims| claims["exp"] = (Timestamp::now().0 / 1000 + 5).into());
    house.ask(&token).await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while house.ask(&token).await.is_ok() {
        assert!(Instant::now() < deadline, "it outlives its token");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(house.reason(&token).await, Reason::Unauthenticated);
}

#[tokio::test]
async fn a_store_that_cannot_be_read_refuses_but_a_cached_proof_counts() {
    let house = House::plain().await;
    let id = house.workspace("ws-1").await;
    let issue = || house.issue(&id);
    let (seen, unseen) = (issue().await.unwrap(), issue().await.unwrap());
    house.ask(text(&seen)).await.unwrap();
    house.db.pool().close().await;
    house.ask(text(&seen)).await.unwrap();
    assert_eq!(house.reason(text(&unseen)).await, Reason::StoreUnavailable);
    let configured = house.canvas(|_| {});
    house.ask(&configured).await.unwrap();
}

#[tokio::test]
async fn the_callers_own_word_counts_only_when_it_is_proven() {
    let house = House::plain().await;
    let id = house.workspace("ws-1").await;
    let token = house.issue(&id).await.unwrap();
    let proof = house.ask(text(&token)).await.unwrap();
    proof.check_caller(None).unwrap();
    proof.check_caller(Some(b"ws-1")).unwrap();
    for claimed in [&b"ws-2"[..], b"", b"WS-1", b"ws-1 ", b"ws-1,ws-1"] {
        let refused = proof.check_caller(Some(claimed)).unwrap_err();
        assert_eq!(refused.reason, Reason::CallerMismatch);
    }
    let canvas = house.ask(&house.canvas(|_| {})).await.unwrap();
    let refused = canvas.check_caller(Some(b"ws-1")).unwrap_err();
    assert_eq!(refused.reason, Reason::CallerMismatch);
}

#[tokio::test]
async fn an_operator_has_what_the_role_of_now_covers() {
    let house = House::plain().await;
    let terms = TokenTerms::default();
    let token = house.tokens().issue_operator(Role::Admin, &terms, Real);
    let token = token.await.unwrap();
    let before = house.ask(text(&token)).await.unwrap();
    let lower = sqlx::query("UPDATE operator_tokens SET role = 'read'");
    lower.execute(house.db.pool()).await.unwrap();
    house.identity.proofs.forget_all();
    assert!(!house.identity.is_still_valid(&before).await);
    let now = house.ask(text(&token)).await.unwrap();
    assert_eq!(now.role(), Some(Role::Read));
}

#[tokio::test]
async fn uses_are_noted_behind_the_callers_back() {
    let house = House::plain().await;
    let id = house.workspace("ws-1").await;
    let token = house.issue(&id).await.unwrap();
    house.ask(text(&token)).await.unwrap();
    let noted = async {
        loop {
            let rows = house.tokens().list_workspace(&id, "", 1).await;
            if rows.unwrap()[0].last_used_at.is_some() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        () = house.identity.run() => {}
        noted = tokio::time::timeout(Duration::from_secs(60), noted) => noted.unwrap(),
    }
}
