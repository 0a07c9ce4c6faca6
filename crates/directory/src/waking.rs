//! Waking agents: which workspace sleeps, who wakes it, and the claim by which one replica calls the waker
//! (`docs/guide/wake-a-sleeping-agent.md`). The data plane parks the calls and sends the request.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::address::{Addresses, Endpoint};
use super::rejections::invalid;
use super::resolution::{Entries, Entry};
use super::upstream::{field_name, field_value, open_for, seal_for};
use access::workspace::{
    DeliveryMode, Liveness, Status, StoredWake, WakeMethod, WakeView, Workspace,
};
use kernel::config::Config;
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};
use stores::store::Unavailable;
use trust::{Seal, SealedSecret};

/// Times of one workspace's waker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WakeTimes {
    /// Longest wait of a call for its agent.
    pub max_wait: Duration,
    /// Shortest time between two requests to the waker.
    pub cool_down: Duration,
    /// True if the waker is the workspace's own.
    pub own: bool,
}

impl WakeTimes {
    /// Returns the name of the setting that bounds the wait.
    pub fn max_wait_key(&self) -> &'static str {
        if self.own {
            "wake.max_wait_seconds of the workspace, or wake.max_wait"
        } else {
            "wake.max_wait"
        }
    }
}

/// Request to a waker, at an address that passed the policy.
pub struct WakeRequest {
    /// HTTP method.
    pub method: WakeMethod,
    /// Location of the waker.
    pub endpoint: Endpoint,
    /// Address to dial.
    pub address: SocketAddr,
    /// Header fields of the operator, with secret values.
    pub fields: Fields,
}

/// Wakers of workspaces.
pub struct Wakers {
    pub(super) entries: Arc<Entries>,
    pub(super) addresses: Arc<Addresses>,
}

impl Wakers {
    /// Returns the times of the waker if the workspace sleeps and has one. `None`: it is awake, it has no waker, or
    /// its state is one that a waker does not end.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn wake_times(&self, id: &WorkspaceId) -> Result<Option<WakeTimes>, Rejection> {
        let entry = self.entries.get(id).await?;
        Ok(find_times(&entry, &self.entries.core.config.get()))
    }

    /// True if the agent may still come: the workspace sleeps, or is being started.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn may_come(&self, id: &WorkspaceId) -> Result<bool, Rejection> {
        let entry = self.entries.get(id).await?;
        Ok(entry.workspace.as_ref().is_some_and(|workspace| {
            matches!(
                workspace.status,
                Status::Provisioning | Status::Restarting | Status::Online | Status::Degraded
            ) || is_asleep(&entry, workspace)
        }))
    }

    /// Claims the right to call the waker of `id` now: one replica gets it in `cool_down`.
    ///
    /// # Errors
    /// If the shared state does not answer.
    pub async fn claim(&self, id: &WorkspaceId, cool_down: Duration) -> Result<bool, Unavailable> {
        let key = format!("a2a:wake:{id}");
        self.entries
            .core
            .shared
            .set_if_absent(&key, "1", cool_down)
            .await
    }

    /// Returns the request to the waker of `id`, without the gateway's token.
    ///
    /// # Errors
    /// `address_forbidden`, `agent_unreachable` (its name has no address), `store_unavailable` (its header fields
    /// cannot be opened), `workspace_not_found` (there is no waker any more).
    pub async fn build_request(&self, id: &WorkspaceId) -> Result<WakeRequest, Rejection> {
        let entry = self.entries.get(id).await?;
        let own = entry.workspace.as_ref().and_then(|one| one.wake.as_ref());
        let (url, method, sealed) = match own {
            Some(wake) => (
                wake.shown.url.clone(),
                wake.shown.method,
                wake.sealed.as_ref(),
            ),
            None => {
                let config = self.entries.core.config.get();
                let all = config.wake.url.as_ref().and_then(|url| url.url_for(id));
                let message = "the workspace has no waker any more";
                let none = || Rejection::new(Reason::WorkspaceNotFound, message);
                (all.ok_or_else(none)?, WakeMethod::default(), None)
            }
        };
        let fields = sealed.map(|sealed| open_fields(&self.entries.core.seal, id, sealed));
        let fields = fields.transpose()?.unwrap_or_default();
        let (endpoint, address) = self.addresses.resolve_url(TITLE, &url).await?;
        Ok(WakeRequest {
            method,
            address,
            endpoint,
            fields,
        })
    }
}

/// Returns the times of the waker of a workspace that sleeps.
fn find_times(entry: &Entry, config: &Config) -> Option<WakeTimes> {
    let workspace = entry.workspace.as_ref()?;
    if !is_asleep(entry, workspace) {
        return None;
    }
    let all = &config.wake;
    let own = workspace.wake.as_ref().map(|wake| &wake.shown);
    if own.is_none() {
        all.url.as_ref()?.url_for(&workspace.id)?;
    }
    let seconds = |said: Option<u32>, all| said.map_or(all, |s| Duration::from_secs(s.into()));
    Some(WakeTimes {
        max_wait: seconds(own.and_then(|own| own.max_wait_seconds), all.max_wait),
        cool_down: seconds(own.and_then(|own| own.cool_down_seconds), all.cool_down),
        own: own.is_some(),
    })
}

/// True if its agent, which gets calls, has stopped and comes back by a registration or a heartbeat. A workspace with
/// assumed liveness that is offline was switched off by an operator.
fn is_asleep(entry: &Entry, workspace: &Workspace) -> bool {
    let stopped = match workspace.status {
        Status::Hibernated => true,
        Status::Offline => workspace.liveness == Liveness::Heartbeat,
        Status::Online | Status::Degraded => entry.has_lapsed(),
        Status::Provisioning
        | Status::Paused
        | Status::Failed
        | Status::Restarting
        | Status::Removed => false,
    };
    stopped && workspace.delivery_mode == DeliveryMode::Push
}

/// Name of the URL of a waker in rejections.
const TITLE: &str = "the waker's URL (wake.url)";

/// Form of the member, in each rejection.
const FORM: &str = r#"`wake` is {"url", "method", "headers", "max_wait_seconds", "cool_down_seconds"}: `url` is needed, `method` is POST, PUT or PATCH, `headers` an object of texts; null takes it back"#;

/// Maximum header fields of one waker.
const FIELDS_MAX: usize = 16;

/// Longest wait of a call that a workspace can ask for, in seconds.
const MAX_WAIT_MAX: u32 = 1800;

/// Longest pause between two requests, in seconds.
const COOL_DOWN_MAX: u32 = 86_400;

/// Header fields of a request, with their secret values.
pub(super) type Fields = Vec<(HeaderName, SecretString)>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    url: String,
    #[serde(default)]
    method: WakeMethod,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    max_wait_seconds: Option<u32>,
    cool_down_seconds: Option<u32>,
}

/// Waker of one workspace, as an operator set it.
#[derive(Clone, Debug)]
pub struct Wake {
    /// Form for operators, without the values of header fields.
    pub shown: WakeView,
    fields: Fields,
}

impl Wake {
    /// Parses the member `wake` of a body.
    ///
    /// # Errors
    /// `invalid_params`, with the cause; the message contains no value of a header field.
    pub fn parse(json: &RawValue) -> Result<Self, Rejection> {
        // The error of serde may contain a value.
        let form: Form = serde_json::from_str(json.get()).map_err(|_| invalid(FORM))?;
        let spans = [
            ("max_wait_seconds", form.max_wait_seconds, MAX_WAIT_MAX),
            ("cool_down_seconds", form.cool_down_seconds, COOL_DOWN_MAX),
        ];
        for (name, seconds, max) in spans {
            if seconds.is_some_and(|seconds| seconds == 0 || seconds > max) {
                return Err(invalid(format!(
                    "`wake.{name}` is a whole number from 1 to {max}"
                )));
            }
        }
        if form.headers.len() > FIELDS_MAX {
            return Err(invalid(format!(
                "`wake.headers` has more than {FIELDS_MAX} fields"
            )));
        }
        let mut fields = Fields::new();
        for (name, value) in form.headers {
            let name = field_name("wake.headers", &name)?;
            field_value("wake.headers", &value)?;
            if fields.iter().any(|(known, _)| *known == name) {
                return Err(invalid("`wake.headers` names a field twice"));
            }
            fields.push((name, value.into()));
        }
        Ok(Self {
            shown: WakeView {
                url: form.url,
                method: form.method,
                header_names: fields.iter().map(|(name, _)| name.to_string()).collect(),
                max_wait_seconds: form.max_wait_seconds,
                cool_down_seconds: form.cool_down_seconds,
            },
            fields,
        })
    }

    /// Seals it for the row of `id`; it opens for no other row. `url` is the normalized form of its URL.
    pub(crate) fn seal(
        &self,
        seal: &Seal,
        id: &WorkspaceId,
        url: String,
    ) -> Result<StoredWake, Rejection> {
        let sealed = if self.fields.is_empty() {
            None
        } else {
            let lines = self.fields.iter();
            let lines = lines.map(|(name, value)| format!("{name}:{}\n", value.expose_secret()));
            let text = SecretString::from(lines.collect::<String>());
            Some(seal_for(seal, (id, "wake"), &text)?)
        };
        Ok(StoredWake {
            shown: WakeView {
                url,
                ..self.shown.clone()
            },
            sealed,
        })
    }
}

/// Opens the header fields of a waker. If they cannot be opened the waker is not called: it requires them.
fn open_fields(seal: &Seal, id: &WorkspaceId, sealed: &SealedSecret) -> Result<Fields, Rejection> {
    let wrong = (
        "The header fields of this workspace's waker (wake.headers) cannot be opened; it is not woken",
        "the gateway cannot open the header fields of the waker: an operator sets wake again, or restores the key that sealed it",
    );
    open_for(seal, (id, "wake"), sealed, parse_fields, wrong)
}

fn parse_fields(secret: &SecretString) -> Option<Fields> {
    let lines = secret.expose_secret().lines();
    let fields = lines.map(|line| {
        let (name, value) = line.split_once(':')?;
        Some((HeaderName::from_bytes(name.as_bytes()).ok()?, value.into()))
    });
    fields.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parse(json: &Value) -> Result<Wake, Rejection> {
        Wake::parse(&serde_json::value::to_raw_value(json).unwrap())
    }

    #[test]
    fn sealed_fields_open_for_their_row_only_and_are_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        let seal = Seal::load_or_create(folder.path(), None).unwrap();
        let id = WorkspaceId::parse("a").unwrap();
        let wake = parse(
            &json!({"url": "http://w/", "headers": {"X-Key": "s3cret: 1", "Authorization": "Basic s3cret"}}),
        );
        let wake = wake.unwrap();
        assert_eq!(wake.shown.header_names, ["authorization", "x-key"]);
        let stored = wake.seal(&seal, &id, "http://w/".to_owned()).unwrap();
        let text = serde_json::to_string(&stored).unwrap();
        assert!(!text.contains("s3cret"), "{text}");
        assert!(!format!("{wake:?}").contains("s3cret"));
        let again: StoredWake = serde_json::from_str(&text).unwrap();
        assert_eq!(again, stored);
        let sealed = stored.sealed.unwrap();
        let fields = open_fields(&seal, &id, &sealed).unwrap();
        let fields: Vec<_> = fields
            .iter()
            .map(|(name, value)| (name.as_str(), value.expose_secret()))
            .collect();
        assert_eq!(
            fields,
            [("authorization", "Basic s3cret"), ("x-key", "s3cret: 1")]
        );
        let other = WorkspaceId::parse("b").unwrap();
        assert!(open_fields(&seal, &other, &sealed).is_err());
    }

    #[test]
    fn a_wrong_waker_is_refused_and_no_value_is_repeated() {
        let with = |headers: Value| json!({"url": "http://w/", "headers": headers});
        let many: BTreeMap<_, _> = (0..17).map(|n| (format!("x-{n}"), "s3cret")).collect();
        for json in [
            json!("s3cret"),
            json!({}),
            json!({"url": 7}),
            json!({"url": "http://w/", "method": "GET"}),
            json!({"url": "http://w/", "method": "s3cret"}),
            json!({"url": "http://w/", "s3cret": true}),
            json!({"url": "http://w/", "max_wait_seconds": 0}),
            json!({"url": "http://w/", "max_wait_seconds": 1801}),
            json!({"url": "http://w/", "cool_down_seconds": 0}),
            json!({"url": "http://w/", "cool_down_seconds": 86_401}),
            json!({"url": "http://w/", "cool_down_seconds": -1}),
            with(json!({"X-Key": 7})),
            with(json!({"X Key": "s3cret"})),
            with(json!({"Host": "s3cret"})),
            with(json!({"X-A2A-Wake-Token": "s3cret"})),
            with(json!({"X-Key": ""})),
            with(json!({"X-Key": "s3cret\r\nHost: evil"})),
            with(json!({"X-Key": "s3cret", "x-key": "s3cret"})),
            with(json!(many)),
        ] {
            let refusal = parse(&json).unwrap_err();
            assert_eq!(refusal.reason, Reason::InvalidParams, "{json}");
            assert!(refusal.message.contains("wake"), "{json}");
            assert!(!refusal.message.contains("s3cr"), "{}", refusal.message);
        }
    }
}
