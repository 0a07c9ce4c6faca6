//! Credentials on both pairs of stores, and on two replicas.

use std::sync::Arc;

use a2a_gateway::config::Config;
use a2a_gateway::gateway::Gateway;
use a2a_gateway::identity::{EnrolmentMaker, LIVE_TOKENS_MAX, Principal, TokenTerms};
use a2a_gateway::ids::WorkspaceId;
use a2a_gateway::metrics::Metrics;
use a2a_gateway::rejection::Reason;
use a2a_gateway::store::Run;
use a2a_gateway::workspace::DeliveryMode;
use secrecy::{ExposeSecret as _, SecretString};

use crate::directory::creation;
use crate::harness::{servers, until_holds};

/// The terms of a token without a name and an end.
const FOREVER: TokenTerms = TokenTerms {
    label: None,
    expires_at: None,
};

fn open(folder: &tempfile::TempDir, sql: &str, shared: &str) -> Arc<Gateway> {
    let mut config: Config = toml::from_str(include_str!("../../config/default.toml")).unwrap();
    config.stores.sql = sql.to_owned().into();
    config.stores.shared = shared.to_owned().into();
    // A store that is busy with other cases is slow, not away.
    config.stores.timeout = std::time::Duration::from_secs(60);
    config.keys.dir = folder.path().join("keys");
    Gateway::open(config.into(), Arc::new(Metrics::new())).unwrap()
}

/// A gateway on each pair, on empty stores.
fn both(folder: &tempfile::TempDir) -> [Arc<Gateway>; 2] {
    let sqlite = format!("sqlite:{}/gw.db", folder.path().display());
    let (sql, shared) = (servers::postgres().database(), servers::redis().url());
    [open(folder, &sqlite, "memory"), open(folder, &sql, &shared)]
}

async fn workspace(gateway: &Gateway) -> WorkspaceId {
    let creation = creation(WorkspaceId::random(), DeliveryMode::Poll);
    let registrations = &gateway.directory.registrations;
    let created = registrations.create(&creation, Run::Real);
    created.await.unwrap().id
}

async fn ask(gateway: &Gateway, token: &SecretString) -> Result<Principal, Reason> {
    let field = format!("Bearer {}", token.expose_secret());
    let proof = gateway.identity.authenticate(Some(field.as_bytes())).await;
    let principal = proof.map(|proof| proof.principal.clone());
    principal.map_err(|refusal| refusal.reason)
}

#[tokio::test]
async fn every_kind_of_token_lives_and_dies_on_both_pairs() {
    let folder = tempfile::tempdir().unwrap();
    for gateway in both(&folder) {
        let admin = gateway.prepare().await.unwrap();
        assert!(gateway.prepare().await.is_none());
        assert_eq!(ask(&gateway, &admin).await, Ok(Principal::Operator));

        let (tokens, id) = (&gateway.identity.tokens, workspace(&gateway).await);
        let token = tokens.issue_workspace(&id, &FOREVER, Run::Real);
        let token = token.await.unwrap();
        let own = Principal::Workspace { id: id.clone() };
        assert_eq!(ask(&gateway, &token.token).await, Ok(own));
        let listed = tokens.list_workspace(&id, "", 10).await.unwrap();
        assert_eq!(listed.len(), 1);
        let revoked = tokens.revoke_workspace(&id, &token.token_id, Run::Real);
        assert!(revoked.await.unwrap().is_some());
        let refused = ask(&gateway, &token.token).await;
        assert_eq!(refused, Err(Reason::Unauthenticated));

        let org = tokens.issue_org(("acme", None), None, Run::Real);
        let org = org.await.unwrap();
        let acme = Principal::Org {
            within: None,
            org: "acme".to_owned(),
        };
        assert_eq!(ask(&gateway, &org.token).await, Ok(acme));
        let listed = tokens.list_org("acme", "", 10).await.unwrap();
        assert_eq!(listed[0].note, None);
        let revoked = tokens.revoke_org("acme", &org.token_id, Run::Real);
        assert!(revoked.await.unwrap());
        let refused = ask(&gateway, &org.token).await;
        assert_eq!(refused, Err(Reason::Unauthenticated));

        let enrolment = tokens.issue_enrolment(&id, EnrolmentMaker::Operator, Run::Real);
        let (enrolment, _) = enrolment.await.unwrap();
        let field = format!("Bearer {}", enrolment.token.expose_secret());
        let proof = gateway
            .identity
            .authenticate_enrolment(Some(field.as_bytes()));
        let proof = proof.await.unwrap();
        assert!(tokens.redeem_enrolment(&proof).await.unwrap());
        assert!(!tokens.redeem_enrolment(&proof).await.unwrap());
        tokens.restore_enrolment(&proof).await.unwrap();
        assert!(tokens.redeem_enrolment(&proof).await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_hold_for_those_who_come_at_once() {
    let folder = tempfile::tempdir().unwrap();
    for gateway in both(&folder) {
        gateway.prepare().await;
        let id = workspace(&gateway).await;
        for expected in [1, LIVE_TOKENS_MAX] {
            let mut asked = tokio::task::JoinSet::new();
            for _ in 0..LIVE_TOKENS_MAX + 5 {
                let (gateway, id) = (Arc::clone(&gateway), id.clone());
                asked.spawn(async move {
                    let tokens = &gateway.identity.tokens;
                    if expected == 1 {
                        return tokens.issue_first(&id).await.map(|_| ());
                    }
                    let issued = tokens.issue_workspace(&id, &FOREVER, Run::Real);
                    issued.await.map(|_| ())
                });
            }
            for done in asked.join_all().await {
                assert!(done.is_ok() || expected > 1);
            }
            let live = gateway.identity.tokens.count_live(&id).await.unwrap();
            assert_eq!(i64::try_from(live).unwrap(), expected);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_agree_on_the_first_admin_and_hear_of_a_revocation() {
    let folder = tempfile::tempdir().unwrap();
    let (sql, shared) = (servers::postgres().database(), servers::redis().url());
    let [one, other] = [0, 1].map(|_| open(&folder, &sql, &shared));
    assert_eq!(one.keys.kid(), other.keys.kid());
    let made = tokio::join!(one.prepare(), other.prepare());
    let admins: Vec<_> = [made.0, made.1].into_iter().flatten().collect();
    assert_eq!(admins.len(), 1);

    for gateway in [&one, &other] {
        let gateway = Arc::clone(gateway);
        tokio::spawn(async move { gateway.run().await });
    }
    let linked = async || one.metrics.coherent.get() + other.metrics.coherent.get() == 2;
    until_holds("both are linked", linked).await;
    let (tokens, id) = (&one.identity.tokens, workspace(&one).await);
    let token = tokens.issue_workspace(&id, &FOREVER, Run::Real);
    let token = token.await.unwrap();
    for gateway in [&one, &other] {
        assert!(ask(gateway, &token.token).await.is_ok());
    }
    let revoked = tokens.revoke_workspace(&id, &token.token_id, Run::Real);
    assert!(revoked.await.unwrap().is_some());
    assert!(ask(&one, &token.token).await.is_err());
    let refused = async || ask(&other, &token.token).await.is_err();
    until_holds("it is refused", refused).await;
}
