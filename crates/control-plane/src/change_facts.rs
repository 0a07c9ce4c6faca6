//! The audit details of a changed or registered workspace: its place in the tree, the location of its agent, and the
//! kind of the agent's credential. Of an address only the origin is recorded, since a path may contain a secret.

use serde_json::Value;
use url::Url;

use access::workspace::{Recorded, SaidSetting, StoredProbe, Workspace};
use audit::change::ChangeFacts;
use directory::{Change, UpstreamAuth, Wake};

/// Maximum characters of a recorded name.
const NAME_CHARS_MAX: usize = 128;

/// Returns the details of a workspace that was created or registered.
pub(super) fn about_workspace(workspace: &Workspace) -> ChangeFacts {
    let said = workspace.settings.to_plain_patch().said().into_iter();
    let said = said.filter(|one| one.recorded != Recorded::Change);
    said.fold(ChangeFacts::for_workspace(&workspace.id), with_recorded)
}

/// Returns the details of a workspace that a request created.
pub(super) fn about_creation(workspace: &Workspace, change: &Change) -> ChangeFacts {
    let facts = made_facts(change).into_iter();
    facts.fold(about_workspace(workspace), |about, (name, value)| {
        about.with_fact(name, value.unwrap_or_default())
    })
}

/// Adds the members that a request changed, with their new values.
pub(super) fn about_change(about: ChangeFacts, change: &Change) -> ChangeFacts {
    let said = change.patch.said();
    let changed: Vec<&str> = said.iter().map(|one| one.name).collect();
    let about = said.into_iter().fold(about, with_recorded);
    let facts = made_facts(change).into_iter();
    let facts = facts.filter_map(|(name, value)| Some((name, value?)));
    let about = facts.fold(about, |about, (name, value)| about.with_fact(name, value));
    about.with_fact("changed", changed)
}

/// Adds what is recorded of a setting.
fn with_recorded(about: ChangeFacts, said: SaidSetting) -> ChangeFacts {
    let text = said.value.as_str();
    let value = match said.recorded {
        Recorded::Name => return about,
        Recorded::Value | Recorded::Change => said.value,
        Recorded::Label => text
            .map(|text| text.chars().take(NAME_CHARS_MAX).collect::<String>())
            .into(),
        Recorded::Origin => url_origin(text),
    };
    about.with_fact(said.name, value)
}

/// Returns what is recorded of settings with secrets, if they are said: the kind of the credential, the origin of the
/// waker, and what the probe asks for.
fn made_facts(change: &Change) -> [(&'static str, Option<Value>); 3] {
    let (auth, wake, probe) = (&change.upstream_auth, &change.wake, &change.probe);
    let auth = auth
        .as_ref()
        .map(|auth| auth.as_ref().map(UpstreamAuth::kind).into());
    let url = |wake: &Wake| url_origin(Some(&wake.shown.url));
    let kind = |probe: &StoredProbe| if probe.card { "card" } else { "path" };
    let wake = wake
        .as_ref()
        .map(|wake| wake.as_ref().map_or(Value::Null, url));
    let probe = probe.as_ref().map(|probe| probe.as_ref().map(kind).into());
    [("upstream_auth", auth), ("wake", wake), ("probe", probe)]
}

fn url_origin(url: Option<&str>) -> Value {
    let origin = |url: Url| url.origin().ascii_serialization();
    url.and_then(|url| Url::parse(url).ok()).map(origin).into()
}
