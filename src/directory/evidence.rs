//! Evidence for a resolution, for explanations: the facts of the entry, with their sources and ages.

use std::time::Duration;

use serde_json::{Value, json};
use url::Url;

use super::entry::{Entry, NotReached, Pulse, called_at, must_beat};
use super::{Agent, Destination, Directory};
use crate::explain::{Check, Fact, Source, Witness};
use crate::hierarchy::Permit;
use crate::rejection::Rejection;
use crate::shares::{Account, Bound};
use crate::workspace::{Timestamp, Workspace};

impl Directory {
    /// Resolves a permitted message as [`Directory::resolve`] does, and reports the facts to `witness`. Records
    /// neither a lapse nor a use; values read are cached.
    ///
    /// # Errors
    /// As [`Directory::resolve`].
    pub async fn look(
        &self,
        permit: &Permit,
        witness: &mut impl Witness,
    ) -> Result<Destination, NotReached> {
        let read = self.entry_from(permit.target()).await;
        let (entry, remembered) = read.map_err(NotReached::at(Check::State))?;
        self.tell(&entry, remembered, witness);
        entry.destination()
    }

    /// Checks that the agent has a free slot for a call of `account`.
    ///
    /// # Errors
    /// `agent_busy`, as [`Directory::slot`].
    pub fn look_for_slot(
        &self,
        agent: &Agent,
        account: Account,
        witness: &mut impl Witness,
    ) -> Result<(), Rejection> {
        let (taken, limit) = (agent.calls.taken(), agent.concurrency_max);
        witness.hear(|| {
            let value = json!({"taken": taken, "limit": limit, "of": "this replica"});
            Fact::new(Check::Slots, Source::Memory, value)
        });
        let looked = agent.calls.look(account, Bound::places(limit));
        looked.map_err(|full| super::busy(agent, full))
    }

    /// Reports the facts of the entry up to the one that decided.
    fn tell(&self, entry: &Entry, remembered: bool, witness: &mut impl Witness) {
        let Some(workspace) = &entry.workspace else {
            let source = if remembered {
                Source::Memory
            } else {
                Source::Sql
            };
            witness.hear(|| {
                let fact = Fact::new(Check::State, source, json!({"exists": false}));
                fact.aged(entry.read_at.row.elapsed())
            });
            return;
        };
        let refused_at = entry.destination().err().map(|not| not.at);
        let polls = matches!(entry.destination(), Ok(Destination::Inbox(_)));
        let ends_here = refused_at == Some(Check::State);
        witness.hear(|| self.state(entry, workspace, (remembered, ends_here)));
        if polls || ends_here {
            return;
        }
        witness.hear(|| self.liveness(entry, workspace, remembered));
        if refused_at == Some(Check::Liveness) {
            return;
        }
        witness.hear(|| self.url(entry, workspace, remembered));
        if refused_at == Some(Check::Url) {
            return;
        }
        witness.hear(|| {
            let mut value = json!({
                "credential": workspace.upstream_auth.is_some(),
                "certificates": workspace.upstream_tls.is_some(),
            });
            if workspace.is_credential_withheld() {
                value["credential_withheld"] =
                    json!("the agent registered elsewhere: set upstream_auth again");
            }
            of_row(entry, Check::Upstream, value, remembered)
        });
    }

    fn state(
        &self,
        entry: &Entry,
        workspace: &Workspace,
        (remembered, ends_here): (bool, bool),
    ) -> Fact {
        let mut value = json!({
            "exists": true,
            "status": workspace.status.as_str(),
            "delivery_mode": workspace.delivery_mode.as_str(),
            "stale": entry.read_at.stale,
        });
        // If no further check follows, report the liveness here.
        if ends_here {
            let last_seen = self.last_seen(workspace);
            value["liveness"] = json!(workspace.liveness.as_str());
            value["last_seen"] = json!(last_seen);
            value["heartbeat_age_ms"] = json!(age_ms(last_seen));
        }
        of_row(entry, Check::State, value, remembered)
    }

    fn liveness(&self, entry: &Entry, workspace: &Workspace, remembered: bool) -> Fact {
        let last_seen = self.last_seen(workspace);
        let value = match entry.pulse {
            Pulse::Beats(_) => {
                let left = entry.alive_for();
                // Each heartbeat grants the full TTL.
                let beat = self.leases.ttl().checked_sub(left);
                json!({
                    "liveness": "heartbeat", "beats": true, "last_seen": last_seen,
                    "lapses_in_ms": millis(left), "heartbeat_age_ms": beat.map(millis),
                })
            }
            Pulse::Lapsed => json!({
                "liveness": "heartbeat", "beats": false, "last_seen": last_seen,
                "heartbeat_age_ms": age_ms(last_seen), "ttl_ms": millis(self.leases.ttl()),
            }),
            Pulse::AsItsStatus if must_beat(workspace) => json!({
                "liveness": "heartbeat", "beats": null, "last_seen": last_seen,
                "unavailable": "no lease can be read: its status counts",
            }),
            Pulse::AsItsStatus => {
                json!({"liveness": workspace.liveness.as_str(), "last_seen": last_seen})
            }
        };
        match entry.read_at.shared.filter(|_| must_beat(workspace)) {
            Some(read_at) => {
                let source = self.shared_source(remembered);
                Fact::new(Check::Liveness, source, value).aged(read_at.elapsed())
            }
            None => of_row(entry, Check::Liveness, value, remembered),
        }
    }

    fn url(&self, entry: &Entry, workspace: &Workspace, remembered: bool) -> Fact {
        let url = called_at(&entry.urls.host, &workspace.card_url, workspace.liveness);
        let from = match url {
            None => None,
            Some(_) if entry.urls.shared => Some(self.url_key.key(&workspace.id)),
            Some(_) if entry.urls.host.is_some() => Some("the workspace's row".to_owned()),
            Some(_) => Some("the workspace's card_url".to_owned()),
        };
        let value = json!({"url": url.map(masked), "from": from});
        match entry.read_at.shared.filter(|_| entry.urls.shared) {
            Some(read_at) => {
                let source = self.shared_source(remembered);
                Fact::new(Check::Url, source, value).aged(read_at.elapsed())
            }
            None => of_row(entry, Check::Url, value, remembered),
        }
    }

    fn shared_source(&self, remembered: bool) -> Source {
        if remembered || self.shared.is_embedded() {
            Source::Memory
        } else {
            Source::Redis
        }
    }
}

/// Age by wall-clock time.
fn age_ms(last_seen: Option<Timestamp>) -> Option<u64> {
    last_seen.map(|at| millis(Timestamp::now().since(at)))
}

/// Returns a fact of the row. A stale row counts as memory, too.
fn of_row(entry: &Entry, check: Check, value: Value, remembered: bool) -> Fact {
    let source = if remembered || entry.read_at.stale {
        Source::Memory
    } else {
        Source::Sql
    };
    Fact::new(check, source, value).aged(entry.read_at.row.elapsed())
}

/// Returns the URL without user and password. An agent's URL may not have them, and they are never shown.
fn masked(text: &str) -> String {
    let parsed = Url::parse(text).ok().filter(Url::has_host);
    let Some(mut url) = parsed else {
        return "(not the URL of a server)".to_owned();
    };
    if url.username().is_empty() && url.password().is_none() {
        return text.to_owned();
    }
    // Both fail only for URLs without a host, which have no user.
    let _ = url.set_password(None);
    let _ = url.set_username("***");
    url.to_string()
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn userinfo_is_shown_to_nobody() {
        for (url, shown) in [
            (
                "http://127.0.0.1:9001/a?x=1",
                Some("http://127.0.0.1:9001/a?x=1"),
            ),
            ("http://u:geheim@h/a", Some("http://***@h/a")),
            ("http://geheim@h/", Some("http://***@h/")),
            ("http://:geheim@h/", Some("http://***@h/")),
            ("u:geheim@h", None),
            ("//u:geheim@h", None),
            ("mailto:geheim@h", None),
        ] {
            assert_eq!(masked(url), shown.unwrap_or("(not the URL of a server)"));
        }
    }
}
