//! `urls` and `resolve` of a workspace with assumed liveness: its instances at URLs that an operator names, or at the
//! addresses of one name, for A2A servers that know nothing of the gateway.
//!
//! Checks cards and labels of registrations and creations.

use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use url::Url;

use crate::rejections::{conflict, invalid};
use access::workspace::{
    DeliveryMode, INSTANCES_MAX, Liveness, Resolve, Settings, SettingsPatch, StoredInstance,
    Workspace,
};
use kernel::ids::InstanceId;
use kernel::rejection::Rejection;
use kernel::time::Timestamp;

/// Beginning of the ids of listed instances.
const LISTED: &str = "url-";

/// Bytes of the hash of a URL in the id of its instance.
const HASH_BYTES: usize = 8;

/// Checks a list of URLs, apart from each URL.
pub(super) fn check_urls(urls: &[String]) -> Result<(), Rejection> {
    if urls.is_empty() {
        return Err(invalid(
            "urls has at least one URL; for an agent at one URL say url",
        ));
    }
    if urls.len() > INSTANCES_MAX {
        let message = format!("urls has at most {INSTANCES_MAX} URLs");
        return Err(invalid(message).with_fact("limit", INSTANCES_MAX));
    }
    Ok(())
}

/// Returns the instances at checked `urls`. The id follows from the URL, so that an instance that stays in the list
/// keeps what is bound to it. `old`: the present instances.
pub(super) fn instances_at(
    urls: &[String],
    old: &[StoredInstance],
    now: Timestamp,
) -> Result<Vec<StoredInstance>, Rejection> {
    let mut instances: Vec<StoredInstance> = Vec::with_capacity(urls.len());
    for url in urls {
        let hash = Sha256::digest(url.as_bytes());
        let hash: String = hash[..HASH_BYTES]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let id = InstanceId::parse(&format!("{LISTED}{hash}"))?;
        if instances.iter().any(|one| one.id == id) {
            return Err(invalid("urls has the same URL twice"));
        }
        let known = old.iter().find(|one| one.id == id && one.url == *url);
        instances.push(StoredInstance {
            id,
            url: url.clone(),
            internal_url: None,
            is_draining: known.is_some_and(|known| known.is_draining),
            has_auth: true,
            registered_at: known.map_or(now, |known| known.registered_at),
            last_seen: known.map_or(now, |known| known.last_seen),
        });
    }
    Ok(instances)
}

/// Checks that the addresses of a workspace's name can be its instances. `has_list`: it has `urls`.
pub(super) fn require_resolvable(
    (liveness, delivery_mode): (Liveness, DeliveryMode),
    url: Option<&str>,
    has_list: bool,
) -> Result<(), Rejection> {
    if liveness != Liveness::Assumed || delivery_mode != DeliveryMode::Push {
        return Err(invalid(
            "resolve \"each\" needs \"liveness\":\"assumed\" and delivery_mode push: instances that send heartbeats \
             register with an instance_id",
        ));
    }
    let url = url
        .filter(|_| !has_list)
        .and_then(|url| Url::parse(url).ok());
    if url.is_none_or(|url| url.domain().is_none()) {
        return Err(invalid(
            "resolve \"each\" needs a url with a name, such as http://agents.internal:8000, and no urls",
        ));
    }
    Ok(())
}

/// Checks `resolve` after a change of it, or of a setting that it needs.
pub(super) fn settle_resolve(
    workspace: &Workspace,
    patch: &SettingsPatch,
    settings: &Settings,
) -> Result<(), Rejection> {
    let may_differ = patch.resolve.is_some()
        || patch.liveness.is_some()
        || patch.delivery_mode.is_some()
        || patch.url.is_some()
        || patch.urls.is_some();
    if settings.resolve != Some(Resolve::Each) || !may_differ {
        return Ok(());
    }
    let listed = settings.instances.as_ref().map(|all| !all.is_empty());
    let has_list = listed.unwrap_or(workspace.instances > 0);
    let kind = (settings.liveness, settings.delivery_mode);
    require_resolvable(kind, settings.url.as_deref(), has_list)
}

/// True if an operator listed the URL of an instance. An instance that registers itself may take such an id: then it
/// counts as listed.
pub(super) fn is_listed(instance: &StoredInstance) -> bool {
    instance.id.as_str().starts_with(LISTED)
}

fn self_registered() -> Rejection {
    conflict(
        "the instances of the workspace registered themselves: they end with POST /registry/deregister",
    )
}

/// Applies a change of `urls`, `url` and `internal_url` to the instances. `urls`: the checked list; `None` leaves it as
/// it is, `Some(None)` clears it.
pub(super) fn settle_urls(
    workspace: &Workspace,
    old: &[StoredInstance],
    patch: &SettingsPatch,
    urls: Option<&Option<Vec<String>>>,
    settings: &mut Settings,
) -> Result<(), Rejection> {
    match urls {
        Some(Some(_)) if old.iter().any(|one| !is_listed(one)) => return Err(self_registered()),
        Some(Some(urls)) => {
            settings.url = urls.first().cloned();
            settings.internal_url = None;
            settings.instances = Some(instances_at(urls, old, Timestamp::now())?);
            if settings.liveness != Liveness::Assumed {
                return Err(invalid(
                    "urls needs \"liveness\":\"assumed\": instances that send heartbeats register with an instance_id",
                ));
            }
        }
        Some(None) if old.iter().any(|one| !is_listed(one)) => return Err(self_registered()),
        Some(None) => settings.instances = (workspace.instances > 0).then(Vec::new),
        None if settings.liveness != Liveness::Assumed && old.iter().any(is_listed) => {
            return Err(invalid(
                "urls needs \"liveness\":\"assumed\": with liveness heartbeat say \"urls\":null, too",
            ));
        }
        None if workspace.instances == 0 => {}
        None if patch.url.is_none() && patch.internal_url.is_none() => {}
        None if settings.liveness != Liveness::Assumed => {
            return Err(conflict(
                "the instances of the workspace registered their own URLs: deregister them first \
                 (POST /registry/deregister without instance_id)",
            ));
        }
        None if patch.url.is_none() => {
            return Err(conflict(
                "internal_url is of an agent at one url, and the workspace has urls: say url first",
            ));
        }
        // One URL takes the place of the list.
        None => settings.instances = Some(Vec::new()),
    }
    Ok(())
}

/// Longest agent card, in bytes.
pub const AGENT_CARD_BYTES_MAX: usize = 256 * 1024;
/// Longest name, role and org, in characters.
const LABEL_CHARS_MAX: usize = 256;

/// Checks an agent card: an object within the limit.
pub(super) fn check_card(card: &RawValue) -> Result<(), Rejection> {
    if !card.get().starts_with('{') {
        return Err(invalid("agent_card must be a JSON object"));
    }
    if card.get().len() > AGENT_CARD_BYTES_MAX {
        return Err(invalid("agent_card is longer than 256 KiB"));
    }
    Ok(())
}

/// Checks a label: not empty, within the limit, without invisible characters.
pub(super) fn check_label(name: &'static str, text: &str) -> Result<(), Rejection> {
    let bad = text.trim().is_empty()
        || text.chars().count() > LABEL_CHARS_MAX
        || text.chars().any(char::is_control);
    if bad {
        return Err(invalid(format!(
            "{name} must have 1 to {LABEL_CHARS_MAX} characters, none of them a control character"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn a_card_is_an_object_of_at_most_256_kib() {
        let of_length = |bytes: usize| card(&format!("{{\"a\":\"{}\"}}", "x".repeat(bytes - 8)));
        assert!(check_card(&card(" {} ")).is_ok());
        assert!(check_card(&of_length(AGENT_CARD_BYTES_MAX)).is_ok());
        assert!(check_card(&of_length(AGENT_CARD_BYTES_MAX + 1)).is_err());
        for wrong in ["null", "[]", "\"{}\"", "1"] {
            assert!(check_card(&card(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn labels_are_visible_text() {
        assert!(check_label("name", "Développeur 1").is_ok());
        for wrong in ["", "  ", "a\0b", "a\nb", &"x".repeat(257)] {
            assert!(check_label("name", wrong).is_err(), "{wrong:?}");
        }
    }
}
