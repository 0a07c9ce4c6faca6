//! Revocations (`docs/reference/credentials.md`, "Revocations"): what a person, a session, a run or a credential began
//! by a time is over, its signed tokens and the chains of delegation that rest on them.
//!
//! Owns the tables `revocations` and `revocation_changes`. Every replica holds all rows in memory, so a call asks no
//! store; without one the check is an atomic load. A change is announced to all replicas, and a number that grows with
//! it is compared several times a second, as for stops. What was read before is not read again.
//!
//! Invariant: a replica that does not know the revocations refuses calls with a chain ([`Revocations::require_known`]).

mod table;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, sleep};
use utoipa::ToSchema;

use crate::identity::Proof;
use kernel::rejection::{Reason, Rejection};
use kernel::telemetry::Chain;
use kernel::time::Timestamp;
use stores::coherence::{Coherence, Invalidation};
use stores::db::Db;
use stores::store::{Run, Unavailable};

/// Revocations in force at once, of all makers, and those of the tokens of all orgs.
const REVOCATIONS_MAX: i64 = 100_000;
const OF_ORGS_MAX: i64 = 50_000;

/// Time for which one is kept: the longest that a chain lives.
pub const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// Interval of comparisons of the number of changes: half of the second within which one is in force.
const LOOK_EVERY: Duration = Duration::from_millis(400);

/// Interval of attempts after a failed one.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Time without an answer of the store after which the revocations are not known, while changes may be missed.
const STALE_MAX: Duration = Duration::from_millis(900);

/// Interval of removals of expired ones.
const EXPIRE_EVERY: Duration = Duration::from_secs(600);

/// Bytes of the longest name in one.
const NAME_BYTES_MAX: usize = 512;

/// What is revoked. As JSON it is the body of `POST /revocations`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// A person, or a workspace at the root of a chain.
    Root(RootName),
    /// A session at a provider.
    Session(SessionName),
    /// A run, by the `txn` of its chains.
    Run(String),
    /// A credential, by its id: of a signed token its `jti`.
    Credential(String),
}

/// The name of a root: of an issuer's person, or of one of ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RootName {
    /// The issuer.
    pub iss: String,
    /// Its name there.
    pub sub: String,
}

/// The name of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionName {
    /// The provider.
    pub iss: String,
    /// Its id there.
    pub sid: String,
}

impl Subject {
    /// Returns the key of a person.
    pub fn root(iss: &str, sub: &str) -> Self {
        Self::Root(RootName {
            iss: iss.to_owned(),
            sub: sub.to_owned(),
        })
    }

    /// Returns its key: 96 bits of a hash of the kind and the names.
    pub fn key(&self) -> String {
        let (kind, names): (_, &[&str]) = match self {
            Self::Root(root) => ("root", &[&root.iss, &root.sub]),
            Self::Session(session) => ("session", &[&session.iss, &session.sid]),
            Self::Run(txn) => ("run", &[txn]),
            Self::Credential(id) => ("credential", &[id]),
        };
        // Names are arbitrary text: JSON keeps them apart.
        let digest = Sha256::digest(serde_json::json!([kind, names]).to_string());
        URL_SAFE_NO_PAD.encode(&digest[..12])
    }

    /// Checks the names.
    ///
    /// # Errors
    /// `invalid_params`.
    pub fn check(&self) -> Result<(), Rejection> {
        let names: &[&str] = match self {
            Self::Root(root) => &[&root.iss, &root.sub],
            Self::Session(session) => &[&session.iss, &session.sid],
            Self::Run(name) | Self::Credential(name) => &[name],
        };
        let fits = |name: &&str| {
            (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.chars().any(char::is_control)
        };
        if names.iter().all(fits) {
            return Ok(());
        }
        let message = format!(
            "each name of what is revoked has 1 to {NAME_BYTES_MAX} bytes, none of them a control character"
        );
        Err(Rejection::new(Reason::InvalidParams, message))
    }
}

/// The keys by which a signed credential can be revoked, and the time of its issue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocable {
    /// The keys.
    pub keys: Vec<String>,
    /// Milliseconds since 1970; 0 of a token that does not say it.
    pub issued_at: i64,
    /// The org of the person, where the principal is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org: Option<String>,
}

impl Revocable {
    /// Returns the keys of a person's token.
    pub fn of_person(
        (iss, sub): (&str, &str),
        sid: Option<&str>,
        jti: Option<&str>,
        issued_at: i64,
    ) -> Self {
        let session = sid.map(|sid| {
            let (iss, sid) = (iss.to_owned(), sid.to_owned());
            Subject::Session(SessionName { iss, sid })
        });
        let credential = jti.map(|jti| Subject::Credential(jti.to_owned()));
        let subjects = [Some(Subject::root(iss, sub)), session, credential];
        Self {
            keys: subjects
                .into_iter()
                .flatten()
                .map(|one| one.key())
                .collect(),
            issued_at,
            org: None,
        }
    }
}

/// A revocation to be made.
pub struct NewRevocation {
    /// What is revoked.
    pub subject: Subject,
    /// The org of the token that makes it, to which it is confined.
    pub org: Option<String>,
    /// Why.
    pub reason: Option<String>,
    /// As records name a caller.
    pub created_by: String,
}

/// A revocation.
#[derive(Clone, Debug)]
pub struct Revocation {
    /// Its id.
    pub id: String,
    /// What is revoked, as JSON.
    pub subject: String,
    /// The org to which it is confined.
    pub org: Option<String>,
    /// What began at this time or earlier is over.
    pub before: Timestamp,
    /// Why.
    pub reason: Option<String>,
    /// As records name a caller.
    pub created_by: String,
    /// The end of its row.
    pub expires_at: Timestamp,
    key: String,
    change: i64,
}

/// One revocation, in memory.
struct Entry {
    org: Option<String>,
    before: i64,
    expires_at: i64,
}

/// The revocations, and the check of each call.
pub struct Revocations {
    db: Db,
    coherence: Arc<Coherence>,
    is_known: AtomicBool,
    count: AtomicUsize,
    by_key: RwLock<HashMap<String, Vec<Entry>>>,
    /// The number of changes that are in memory. Locked while they are read.
    version: Mutex<Option<i64>>,
    /// Notified when there is something to read.
    news: Notify,
    /// Called after each change of what is in force.
    changed: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Revocations {
    /// Creates it; does not touch the stores.
    pub fn new(db: Db, coherence: &Arc<Coherence>) -> Arc<Self> {
        let made = Arc::new(Self {
            db,
            coherence: Arc::clone(coherence),
            is_known: AtomicBool::new(false),
            count: AtomicUsize::new(0),
            by_key: RwLock::default(),
            version: Mutex::default(),
            news: Notify::new(),
            changed: OnceLock::new(),
        });
        let weak = Arc::downgrade(&made);
        coherence.on_invalidation(move |what| {
            if matches!(what, Invalidation::Revocations | Invalidation::Everything)
                && let Some(revocations) = weak.upgrade()
            {
                revocations.news.notify_one();
            }
            std::future::ready(())
        });
        made
    }

    /// Sets what is called after each change of what is in force. Set once.
    pub fn on_change(&self, changed: impl Fn() + Send + Sync + 'static) {
        let _ = self.changed.set(Box::new(changed));
    }

    /// True if there is no revocation.
    pub fn is_idle(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Refuses a call that needs the revocations while they are not known.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub fn require_known(&self) -> Result<(), Rejection> {
        if self.is_known.load(Ordering::Acquire) {
            return Ok(());
        }
        let message = "the gateway cannot read which persons, sessions and runs were revoked; try again shortly";
        let refusal = Rejection::new(Reason::StoreUnavailable, message);
        Err(refusal.with_retry_after(Duration::from_secs(1)))
    }

    /// True if one of the keys was revoked for what began at `began`, in milliseconds since 1970, within `org`.
    pub fn covers<K: AsRef<str>>(&self, keys: &[K], began: i64, org: Option<&str>) -> bool {
        if self.is_idle() {
            return false;
        }
        let (now, by_key) = (Timestamp::now().0, self.by_key.read());
        let mut found = keys
            .iter()
            .filter_map(|key| by_key.get(key.as_ref()))
            .flatten();
        found.any(|entry| {
            began <= entry.before
                && now < entry.expires_at
                && entry.org.as_deref().is_none_or(|own| Some(own) == org)
        })
    }

    /// True if the signed credential behind a proof was revoked.
    pub fn covers_proof(&self, proof: &Proof) -> bool {
        if self.is_idle() {
            return false;
        }
        let of_chain = proof.chain().map(|chain| chain.revocable());
        let mut all = proof.revocable().into_iter().chain(&of_chain);
        all.any(|revocable| {
            let org = revocable.org.as_deref().or(proof.principal.org());
            self.covers(&revocable.keys, revocable.issued_at, org)
        })
    }

    /// Makes a revocation of what began by now. It is in force here when this returns, and on every replica within 1 s.
    /// One that is made again is moved to now.
    ///
    /// # Errors
    /// `conflict` if there are as many as may be; `store_unavailable`: it may have been made.
    pub async fn revoke(
        self: &Arc<Self>,
        new: &NewRevocation,
        run: Run,
    ) -> Result<Revocation, Rejection> {
        let now = Timestamp::now();
        let max = match new.org {
            Some(_) => OF_ORGS_MAX,
            None => REVOCATIONS_MAX,
        };
        let work = async {
            let mut tx = self.db.begin().await?;
            let made = table::upsert(&mut tx, new, now, max).await?;
            if made.is_some() {
                tx.end(run).await?;
            }
            Ok(made)
        };
        let made = self.db.run("revocation_insert", work).await;
        if !run.is_dry() {
            if self.read().await.is_err() {
                self.news.notify_one();
            }
            let what = Invalidation::Revocations;
            self.coherence.invalidate_after(&made, what).await;
        }
        made?.ok_or_else(|| {
            let message = format!(
                "as many revocations as may be, {max}, are in force; each ends by itself, the first of them in a week \
                 at the latest"
            );
            Rejection::new(Reason::Conflict, message).with_fact("limit", max)
        })
    }

    /// Returns a page of those of an org, or of all, by their ids.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn list(
        &self,
        org: Option<&str>,
        after: &str,
        limit: u32,
    ) -> Result<Vec<Revocation>, Unavailable> {
        table::list(&self.db, org, after, limit, Timestamp::now()).await
    }

    /// Reads what has changed since it was read last.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn read(&self) -> Result<(), Unavailable> {
        let mut version = self.version.lock().await;
        let (read, rows) = table::read_since(&self.db, version.unwrap_or(0)).await?;
        let is_news = !rows.is_empty();
        if is_news {
            let mut by_key = self.by_key.write();
            for row in rows {
                let entries = by_key.entry(row.key).or_default();
                entries.retain(|entry| entry.org != row.org);
                entries.push(Entry {
                    org: row.org,
                    before: row.before.0,
                    expires_at: row.expires_at.0,
                });
            }
            self.count.store(by_key.len(), Ordering::Release);
        }
        *version = Some(read);
        self.is_known.store(true, Ordering::Release);
        if let Some(changed) = self.changed.get().filter(|_| is_news) {
            changed();
        }
        Ok(())
    }

    /// Keeps the revocations current. A background task; runs until it is dropped.
    pub async fn run(&self) {
        tokio::join!(self.follow_changes(), self.expire_regularly());
    }

    async fn follow_changes(&self) {
        let mut since = Instant::now();
        let mut pause = Duration::ZERO;
        // The time of the first announcement that is not read yet.
        let mut announced: Option<Instant> = None;
        loop {
            tokio::select! {
                () = self.news.notified() => { announced.get_or_insert_with(Instant::now); }
                () = sleep(pause) => {}
            }
            match self.read_if_changed(announced.is_some()).await {
                Ok(()) => {
                    (since, announced) = (Instant::now(), None);
                    pause = LOOK_EVERY;
                }
                Err(error) => {
                    tracing::debug!(error = %Chain(&error), "failed to read the revocations; will retry");
                    pause = RETRY_PAUSE;
                    let misses = self.coherence.max_age() <= Duration::from_secs(1);
                    let stale = announced.or(misses.then_some(since));
                    if stale.is_some_and(|since| since.elapsed() >= STALE_MAX)
                        && self.is_known.swap(false, Ordering::AcqRel)
                    {
                        tracing::warn!(
                            "the revocations are not known; calls for persons are refused until the store answers"
                        );
                    }
                }
            }
        }
    }

    /// Reads if there may be a change. `announced`: there is one.
    async fn read_if_changed(&self, announced: bool) -> Result<(), Unavailable> {
        // Nothing else writes to a store that is in this process.
        if self.is_known.load(Ordering::Acquire) && !announced && self.db.is_embedded() {
            return Ok(());
        }
        self.read().await
    }

    async fn expire_regularly(&self) {
        loop {
            sleep(EXPIRE_EVERY).await;
            let now = Timestamp::now();
            {
                let mut by_key = self.by_key.write();
                by_key.retain(|_, entries| {
                    entries.retain(|entry| now.0 < entry.expires_at);
                    !entries.is_empty()
                });
                self.count.store(by_key.len(), Ordering::Release);
            }
            if let Err(error) = table::delete_expired(&self.db, now).await {
                tracing::debug!(error = %Chain(&error), "failed to remove expired revocations; they are not in force");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_tell_kinds_and_names_apart() {
        let name = |text: &str| text.to_owned();
        let subjects = [
            Subject::root("a", "b"),
            Subject::root("ab", ""),
            Subject::root("b", "a"),
            Subject::Session(SessionName {
                iss: name("a"),
                sid: name("b"),
            }),
            Subject::Run(name("a")),
            Subject::Credential(name("a")),
        ];
        let keys: std::collections::HashSet<_> = subjects.iter().map(Subject::key).collect();
        assert_eq!(keys.len(), subjects.len());
        assert!(keys.iter().all(|key| key.len() == 16), "96 bits: {keys:?}");
    }

    #[test]
    fn names_are_bounded() {
        for (name, fits) in [
            ("", false),
            ("a", true),
            ("a\n", false),
            (&*"a".repeat(512), true),
            (&*"a".repeat(513), false),
        ] {
            let subject = Subject::Run(name.to_owned());
            assert_eq!(subject.check().is_ok(), fits, "{}", name.len());
            assert_eq!(Subject::root("iss", name).check().is_ok(), fits);
        }
    }
}
