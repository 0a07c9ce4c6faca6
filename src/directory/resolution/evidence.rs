//! Evidence for a resolution, for explanations: the facts of the entry, with their sources and ages.

use serde_json::{Value, json};
use url::Url;

use super::destination::{Destination, called_at};
use super::entry::Entry;
use crate::directory::liveness::{HeartbeatBuffer, Presence, Pulse, must_beat};
use crate::explain::{Fact, Source, Witness};
use crate::stage::Stage;
use crate::time::{Timestamp, to_millis};
use crate::workspace::Workspace;

/// Evidence for one resolution.
pub(super) struct Evidence<'e> {
    pub(super) presence: &'e Presence,
    pub(super) heartbeats: &'e HeartbeatBuffer,
    pub(super) entry: &'e Entry,
    /// True if the entry was in memory.
    pub(super) remembered: bool,
}

impl Evidence<'_> {
    /// Reports the facts of the entry up to the one that decided.
    pub(super) fn report(&self, witness: &mut impl Witness) {
        let entry = self.entry;
        let Some(workspace) = &entry.workspace else {
            let source = if self.remembered {
                Source::Memory
            } else {
                Source::Sql
            };
            witness.record(|| {
                let fact = Fact::new(Stage::State, source, json!({"exists": false}));
                fact.with_age(entry.read_at.row.elapsed())
            });
            return;
        };
        let refused_at = entry.destination().err().map(|not| not.at);
        let polls = matches!(entry.destination(), Ok(Destination::Inbox(_)));
        let ends_here = refused_at == Some(Stage::State);
        witness.record(|| self.state_fact(workspace, ends_here));
        if polls || ends_here {
            return;
        }
        witness.record(|| self.liveness_fact(workspace));
        if refused_at == Some(Stage::Liveness) {
            return;
        }
        witness.record(|| self.url_fact(workspace));
        if refused_at == Some(Stage::Url) {
            return;
        }
        witness.record(|| {
            let mut value = json!({
                "credential": workspace.upstream_auth.is_some(),
                "certificates": workspace.upstream_tls.is_some(),
                "proof": workspace.proof.unwrap_or_default().as_str(),
            });
            if workspace.upstream_auth.is_some() && entry.calls_without_credential() {
                value["credential_withheld"] = json!(
                    "the agent is not where an operator set upstream_auth for it: set it again"
                );
            }
            self.of_row(Stage::Upstream, value)
        });
    }

    /// `is_last`: no further check follows, so the liveness is reported here.
    fn state_fact(&self, workspace: &Workspace, is_last: bool) -> Fact {
        let mut value = json!({
            "exists": true,
            "status": workspace.status.as_str(),
            "delivery_mode": workspace.delivery_mode.as_str(),
            "stale": self.entry.read_at.stale,
        });
        if is_last {
            let last_seen = self.heartbeats.last_sign_of(workspace);
            value["liveness"] = json!(workspace.liveness.as_str());
            value["last_seen"] = json!(last_seen);
            value["heartbeat_age_ms"] = json!(age_ms(last_seen));
            if workspace.active_probe().is_some() {
                value["probed"] = json!(true);
            }
        }
        self.of_row(Stage::State, value)
    }

    fn liveness_fact(&self, workspace: &Workspace) -> Fact {
        let entry = self.entry;
        let last_seen = self.heartbeats.last_sign_of(workspace);
        let value = match entry.pulse {
            Pulse::Beats(_) => {
                let left = entry.alive_for();
                // Each heartbeat grants the full TTL.
                let beat = self.presence.leases.ttl().checked_sub(left);
                json!({
                    "liveness": "heartbeat", "beats": true, "last_seen": last_seen,
                    "lapses_in_ms": to_millis(left), "heartbeat_age_ms": beat.map(to_millis),
                })
            }
            Pulse::Lapsed => json!({
                "liveness": "heartbeat", "beats": false, "last_seen": last_seen,
                "heartbeat_age_ms": age_ms(last_seen), "ttl_ms": to_millis(self.presence.leases.ttl()),
            }),
            Pulse::AsItsStatus if must_beat(workspace) => json!({
                "liveness": "heartbeat", "beats": null, "last_seen": last_seen,
                "unavailable": "no lease can be read: its status counts",
            }),
            Pulse::AsItsStatus => {
                json!({"liveness": workspace.liveness.as_str(), "last_seen": last_seen})
            }
        };
        let mut value = value;
        if !entry.instances.is_empty() {
            let alive = entry.instances.iter().filter(|one| one.is_alive).count();
            value["instances"] = json!({"alive": alive, "offline": entry.instances.len() - alive});
        }
        match entry.read_at.shared.filter(|_| must_beat(workspace)) {
            Some(read_at) => {
                let source = self.shared_source();
                Fact::new(Stage::Liveness, source, value).with_age(read_at.elapsed())
            }
            None => self.of_row(Stage::Liveness, value),
        }
    }

    fn url_fact(&self, workspace: &Workspace) -> Fact {
        let entry = self.entry;
        let url = called_at(&entry.urls.host, &workspace.card_url, workspace.liveness);
        let from = match url {
            None => None,
            Some(_) if entry.urls.shared => {
                let [url_key, _] = self.presence.url_keys(&workspace.id);
                Some(url_key)
            }
            Some(_) if entry.urls.host.is_some() => Some("the workspace's row".to_owned()),
            Some(_) => Some("the workspace's card_url".to_owned()),
        };
        let from = match entry.destination() {
            Ok(Destination::Agent(agent)) => {
                let instance = agent.instance.as_ref();
                instance.map(|id| format!("the instance {id}")).or(from)
            }
            _ => from,
        };
        let value = json!({"url": url.map(mask_credentials), "from": from});
        match entry.read_at.shared.filter(|_| entry.urls.shared) {
            Some(read_at) => {
                let source = self.shared_source();
                Fact::new(Stage::Url, source, value).with_age(read_at.elapsed())
            }
            None => self.of_row(Stage::Url, value),
        }
    }

    /// Returns a fact of the row. A stale row counts as memory, too.
    fn of_row(&self, check: Stage, value: Value) -> Fact {
        let source = if self.remembered || self.entry.read_at.stale {
            Source::Memory
        } else {
            Source::Sql
        };
        Fact::new(check, source, value).with_age(self.entry.read_at.row.elapsed())
    }

    fn shared_source(&self) -> Source {
        if self.remembered || self.presence.is_embedded() {
            Source::Memory
        } else {
            Source::Redis
        }
    }
}

/// Age by wall-clock time.
fn age_ms(last_seen: Option<Timestamp>) -> Option<u64> {
    last_seen.map(|at| to_millis(Timestamp::now().since(at)))
}

/// Returns the URL without user and password. An agent's URL may not have them, and they are never shown.
fn mask_credentials(text: &str) -> String {
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
            assert_eq!(
                mask_credentials(url),
                shown.unwrap_or("(not the URL of a server)")
            );
        }
    }
}
