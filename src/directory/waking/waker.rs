//! Waker of one workspace (`wake`): parsed, sealed and opened here.

use std::collections::BTreeMap;
use std::fmt;

use http::HeaderName;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::directory::rejections::{RETRY_AFTER, invalid};
use crate::directory::upstream::{field_name, field_value, open_for, seal_for};
use crate::ids::WorkspaceId;
use crate::rejection::{Reason, Rejection};
use crate::trust::{Seal, SealedSecret};
use crate::workspace::{StoredWake, WakeMethod, WakeView};

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
#[derive(Clone)]
pub struct Wake {
    shown: WakeView,
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

    /// Returns the form for operators, without the values of header fields.
    pub fn as_view(&self) -> &WakeView {
        &self.shown
    }

    /// Seals it for the row of `id`; it opens for no other row. `url` is the normalized form of its URL.
    pub(in crate::directory) fn seal(
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
            Some(seal_for(seal, &seal_owner(id), &text)?)
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

impl fmt::Debug for Wake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Wake").field(&self.shown).finish()
    }
}

/// Opens the header fields of a waker. If they cannot be opened the waker is not called: it requires them.
pub(super) fn open_fields(
    seal: &Seal,
    id: &WorkspaceId,
    sealed: &SealedSecret,
) -> Result<Fields, Rejection> {
    open_for(seal, &seal_owner(id), sealed, parse_fields).map_err(|error| {
        tracing::error!(%error, workspace.id = %id, "The header fields of this workspace's waker (wake.headers) cannot be opened; it is not woken");
        Rejection::new(
            Reason::StoreUnavailable,
            "the gateway cannot open the header fields of the waker: an operator sets wake again, or restores the key that sealed it",
        )
        .with_retry_after(RETRY_AFTER)
        .with_cause(error)
    })
}

fn parse_fields(secret: &SecretString) -> Option<Fields> {
    let lines = secret.expose_secret().lines();
    let fields = lines.map(|line| {
        let (name, value) = line.split_once(':')?;
        Some((HeaderName::from_bytes(name.as_bytes()).ok()?, value.into()))
    });
    fields.collect()
}

/// Owner for sealing, distinct from those of the other columns. `:` is in no workspace id.
fn seal_owner(id: &WorkspaceId) -> String {
    format!("{id}:wake")
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
        assert_eq!(wake.as_view().header_names, ["authorization", "x-key"]);
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
