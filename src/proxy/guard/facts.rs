//! The facts of a call that questions to guards name.

use std::borrow::Cow;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::proxy::guard::document::Document;
use crate::shares::Account;

/// Longest id of a task, a context or a run that questions name.
const ID_MAX: usize = 512;

/// The facts of a call, the same in all phases.
#[derive(Serialize)]
pub(in crate::proxy) struct CallFacts {
    /// `X-Request-Id`.
    pub(in crate::proxy) request_id: String,
    /// The method as its caller spells it.
    pub(in crate::proxy) method: String,
    /// The caller.
    pub(in crate::proxy) caller: Party,
    /// The account of the caller: its questions take a share of the guard's places.
    #[serde(skip)]
    pub(in crate::proxy) account: Account,
    /// The target.
    pub(in crate::proxy) target: Party,
    /// The rule that permits the call.
    pub(in crate::proxy) rule: &'static str,
    /// The trace that the call is part of, for [`CallFacts::run_id`].
    #[serde(skip)]
    pub(in crate::proxy) trace: Option<String>,
    /// `run_id` in `metadata`.
    #[serde(skip)]
    pub(in crate::proxy) run: OnceLock<String>,
}

/// The caller or the target of a call.
#[derive(Serialize)]
pub(in crate::proxy) struct Party {
    /// Its name in records.
    pub(in crate::proxy) id: String,
    /// Its org.
    pub(in crate::proxy) org: Option<String>,
    /// The kind of a caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::proxy) kind: Option<&'static str>,
}

/// The names in a payload.
#[derive(Default)]
pub(super) struct PayloadNames {
    pub(super) task: Option<String>,
    pub(super) context: Option<String>,
}

/// The members of a message, a task or an event with names, and those that hold one of these.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NamedMembers<'a> {
    #[serde(borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    task_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    context_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    task: Option<Box<NamedMembers<'a>>>,
    message: Option<Box<NamedMembers<'a>>>,
    status_update: Option<Box<NamedMembers<'a>>>,
    artifact_update: Option<Box<NamedMembers<'a>>>,
}

impl CallFacts {
    /// Returns the run of the call: `metadata.run_id` of its message, or the trace that it is part of.
    pub(super) fn run_id(&self) -> Option<&str> {
        self.run.get().or(self.trace.as_ref()).map(String::as_str)
    }

    /// Records the run that a message names.
    pub(super) fn record_run(&self, document: &Document) {
        let beside = document.metadata();
        let own = || {
            let named = serde_json::from_slice::<NamedMembers<'_>>(document.payload());
            Some(named.ok()?.metadata?.get().as_bytes())
        };
        let run = beside.and_then(read_run).or_else(|| read_run(own()?));
        if let Some(run) = run {
            let _ = self.run.set(run);
        }
    }

    /// Returns the names in a document.
    pub(super) fn read_names(document: &Document) -> PayloadNames {
        let named = serde_json::from_slice::<NamedMembers<'_>>(document.payload());
        let Ok(named) = named else {
            return PayloadNames::default();
        };
        let inner = [
            named.task,
            named.status_update,
            named.artifact_update,
            named.message,
        ];
        let named = match inner.into_iter().flatten().next() {
            Some(inner) if named.task_id.is_none() && named.context_id.is_none() => *inner,
            _ => NamedMembers {
                id: named.id,
                task_id: named.task_id,
                context_id: named.context_id,
                ..NamedMembers::default()
            },
        };
        let short = |id: Cow<'_, str>| (id.len() <= ID_MAX).then(|| id.into_owned());
        PayloadNames {
            task: named.task_id.or(named.id).and_then(short),
            context: named.context_id.and_then(short),
        }
    }
}

fn read_run(metadata: &[u8]) -> Option<String> {
    let metadata = serde_json::from_slice::<Value>(metadata).ok()?;
    let run = metadata.get("run_id")?.as_str()?;
    (!run.is_empty() && run.len() <= ID_MAX).then(|| run.to_owned())
}

/// Returns the trace of a `traceparent` field.
pub(in crate::proxy) fn parse_trace(traceparent: &str) -> Option<String> {
    let id = traceparent.split('-').nth(1)?;
    let hex = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    hex.then(|| id.to_owned())
}
