//! The audit details of a changed or registered workspace: its place in the tree, the location of its agent, and the
//! kind of the agent's credential. Of an address only the origin is recorded, since a path may contain a secret.

use serde_json::{Value, json};
use url::Url;

use crate::audit::change::ChangeFacts;
use crate::config::Bridging;
use crate::directory::{Change, Probe, UpstreamAuth, Wake};
use crate::workspace::{CallerProof, Resolve, Workspace};

/// Maximum characters of a recorded name.
const NAME_CHARS_MAX: usize = 128;

/// Returns the details of a workspace that was created or registered.
pub(super) fn about_workspace(workspace: &Workspace) -> ChangeFacts {
    ChangeFacts::for_workspace(&workspace.id)
        .with_fact("org", short_name(workspace.org.as_deref()))
        .with_fact(
            "parent_id",
            workspace.parent_id.as_ref().map(|id| id.as_str()),
        )
        .with_fact("delivery_mode", workspace.delivery_mode.as_str())
        .with_fact("url", url_origin(workspace.url.as_deref()))
        .with_fact(
            "internal_url",
            url_origin(workspace.internal_url.as_deref()),
        )
        .with_fact("card_url", url_origin(workspace.card_url.as_deref()))
        .with_fact("proof", proof_word(workspace.proof))
        .with_fact("bridge", bridge_word(workspace.bridge))
        .with_fact("resolve", workspace.resolve.map(Resolve::as_str))
}

/// Adds the members that a request changed, with their new values.
pub(super) fn about_change(mut about: ChangeFacts, change: &Change) -> ChangeFacts {
    let mut changed = Vec::new();
    let mut note = |member: &'static str, is_said: bool| {
        if is_said {
            changed.push(member);
        }
    };
    note("name", change.name.is_some());
    note("role", change.role.is_some());
    note("max_concurrent", change.max_concurrent.is_some());
    note("complete", change.complete.is_some());
    note("push_notifications", change.push_notifications.is_some());
    note("upstream_tls", change.upstream_tls.is_some());
    note("org", change.place.org.is_some());
    note("parent_id", change.place.parent_id.is_some());
    note("url", change.url.is_some());
    note("internal_url", change.internal_url.is_some());
    note("card_url", change.card_url.is_some());
    note("urls", change.urls.is_some());
    note("delivery_mode", change.delivery_mode.is_some());
    note("liveness", change.liveness.is_some());
    note("upstream_auth", change.upstream_auth.is_some());
    note("wake", change.wake.is_some());
    note("probe", change.probe.is_some());
    note("proof", change.proof.is_some());
    note("bridge", change.bridge.is_some());
    note("refusal_status", change.refusal_status.is_some());
    note("resolve", change.resolve.is_some());
    note("status", change.status.is_some());
    for (member, value) in new_values(change) {
        if let Some(value) = value {
            about = about.with_fact(member, value);
        }
    }
    about.with_fact("changed", changed)
}

/// Returns the new values that may be recorded.
fn new_values(change: &Change) -> [(&'static str, Option<Value>); 14] {
    let place = &change.place;
    [
        (
            "org",
            place.org.as_ref().map(|org| short_name(org.as_deref())),
        ),
        (
            "parent_id",
            place
                .parent_id
                .as_ref()
                .map(|id| json!(id.as_ref().map(|id| id.as_str()))),
        ),
        (
            "url",
            change.url.as_ref().map(|url| url_origin(url.as_deref())),
        ),
        (
            "internal_url",
            change
                .internal_url
                .as_ref()
                .map(|url| url_origin(url.as_deref())),
        ),
        (
            "card_url",
            change
                .card_url
                .as_ref()
                .map(|url| url_origin(url.as_deref())),
        ),
        (
            "delivery_mode",
            change.delivery_mode.map(|mode| mode.as_str().into()),
        ),
        (
            "liveness",
            change.liveness.map(|liveness| liveness.as_str().into()),
        ),
        (
            "upstream_auth",
            change
                .upstream_auth
                .as_ref()
                .map(|auth| auth_kind(auth.as_ref())),
        ),
        (
            "wake",
            change.wake.as_ref().map(|wake| waker_origin(wake.as_ref())),
        ),
        (
            "probe",
            change
                .probe
                .as_ref()
                .map(|value| probe_kind(value.as_ref())),
        ),
        ("proof", change.proof.map(proof_word)),
        ("bridge", change.bridge.map(bridge_word)),
        (
            "resolve",
            change
                .resolve
                .map(|value| value.map(Resolve::as_str).into()),
        ),
        ("status", change.status.map(|status| status.as_str().into())),
    ]
}

/// Returns the kind of an agent's credential, never the credential.
pub(super) fn auth_kind(auth: Option<&UpstreamAuth>) -> Value {
    auth.map_or(Value::Null, |auth| auth.kind().into())
}

/// Returns the origin of a waker, never its path or its header fields.
pub(super) fn waker_origin(wake: Option<&Wake>) -> Value {
    url_origin(wake.map(|wake| wake.as_view().url.as_str()))
}

/// Returns what a probe asks for, `path` or `card`, never the path.
pub(super) fn probe_kind(probe: Option<&Probe>) -> Value {
    probe.map_or(Value::Null, |probe| probe.kind().into())
}

/// Returns the proof in the tokens that the agent gets; `null`: the default.
fn proof_word(value: Option<CallerProof>) -> Value {
    value.map(CallerProof::as_str).into()
}

/// Returns the translation of calls; `null`: that of `a2a.bridge`.
fn bridge_word(value: Option<Bridging>) -> Value {
    value.map(Bridging::as_str).into()
}

fn short_name(name: Option<&str>) -> Value {
    let shown = |name: &str| name.chars().take(NAME_CHARS_MAX).collect::<String>();
    name.map(shown).into()
}

fn url_origin(url: Option<&str>) -> Value {
    let origin = |url: Url| url.origin().ascii_serialization();
    url.and_then(|url| Url::parse(url).ok()).map(origin).into()
}
