//! The tables of messages, tasks and events, and of the parameters of calls.
//!
//! Names are those of JSON-RPC 0.3, of 1.0, and of HTTP+JSON 0.3.

use super::table::{Node, Row, Rule};

/// The status that 0.3 requires where 1.0 left out one that is unspecified.
const UNKNOWN: &str = r#"{"state":"unknown"}"#;
const TENANT: Row = Row::with_names(["", "tenant", ""], Rule::Text);
/// `metadata` of a call that 1.0 has none for.
const LOST_METADATA: Row = Row::with_names(["metadata", "", ""], Rule::Copy);

/// Positions of rows in [`RESULT`] that tell its kind.
pub(super) mod result {
    pub(in super::super) const ID: usize = 1;
    pub(in super::super) const TASK_ID: usize = 2;
    pub(in super::super) const CONTEXT_ID: usize = 3;
    pub(in super::super) const STATUS: usize = 4;
    pub(in super::super) const FINAL: usize = 5;
    pub(in super::super) const ARTIFACT: usize = 6;
    pub(in super::super) const MESSAGE_ID: usize = 7;
    pub(in super::super) const ROLE: usize = 8;
    pub(in super::super) const PARTS: usize = 9;
}

/// Declares nodes, each with its label, its `kind` and its rows.
macro_rules! nodes {
    ($($(#[$doc:meta])* $node:ident $label:literal $kind:literal { $($row:expr,)* })*) => {$(
        $(#[$doc])*
        pub(super) static $node: Node = Node { label: $label, kind: $kind, rows: &[$($row),*] };
    )*};
}

nodes! {
    MESSAGE "message" "message" {
        Row::new("messageId", Rule::Copy).with_default(r#""""#),
        Row::new("role", Rule::Role).with_default(r#""agent""#),
        Row::with_names(["parts", "parts", "content"], Rule::Parts).with_default("[]").with_alias("parts"),
        Row::new("taskId", Rule::Text),
        Row::new("contextId", Rule::Text),
        Row::new("metadata", Rule::Copy),
        Row::new("extensions", Rule::Full),
        Row::with_names(["referenceTaskIds", "referenceTaskIds", ""], Rule::Full),
        Row::with_names(["kind", "", ""], Rule::Silent),
    }
    STATUS "status" "" {
        Row::new("state", Rule::State).with_default(r#""unknown""#),
        Row::new("message", Rule::Node(&MESSAGE)).with_alias("update"),
        Row::new("timestamp", Rule::Time),
    }
    ARTIFACT "artifact" "" {
        Row::new("artifactId", Rule::Copy).with_default(r#""""#),
        Row::new("name", Rule::Text),
        Row::new("description", Rule::Text),
        Row::new("parts", Rule::Parts).with_default("[]"),
        Row::new("metadata", Rule::Copy),
        Row::new("extensions", Rule::Full),
    }
    TASK "task" "task" {
        Row::new("id", Rule::Copy).with_default(r#""""#),
        Row::new("contextId", Rule::Text).with_default(r#""""#),
        Row::new("status", Rule::Node(&STATUS)).with_default(UNKNOWN),
        Row::new("artifacts", Rule::List(&ARTIFACT)),
        Row::new("history", Rule::History),
        Row::new("metadata", Rule::Copy),
        Row::with_names(["kind", "", ""], Rule::Silent),
    }
    STATUS_UPDATE "status_update" "status-update" {
        Row::new("taskId", Rule::Text).with_default(r#""""#),
        Row::new("contextId", Rule::Text).with_default(r#""""#),
        Row::new("status", Rule::Node(&STATUS)).with_default(UNKNOWN),
        Row::new("metadata", Rule::Copy),
        Row::with_names(["kind", "", ""], Rule::Silent),
        Row::with_names(["final", "", "final"], Rule::Silent),
    }
    ARTIFACT_UPDATE "artifact_update" "artifact-update" {
        Row::new("taskId", Rule::Text).with_default(r#""""#),
        Row::new("contextId", Rule::Text).with_default(r#""""#),
        Row::new("artifact", Rule::Node(&ARTIFACT)).with_default(r#"{"artifactId":"","parts":[]}"#),
        Row::new("append", Rule::Copy),
        Row::new("lastChunk", Rule::Copy),
        Row::new("metadata", Rule::Copy),
        Row::with_names(["kind", "", ""], Rule::Silent),
    }
    /// All members of a task, a message or an update of JSON-RPC 0.3: its `kind`, which tells them apart,
    /// may stand at the end.
    RESULT "result" "" {
        Row::with_names(["kind", "", ""], Rule::Silent),
        Row::new("id", Rule::Copy),
        Row::new("taskId", Rule::Text),
        Row::new("contextId", Rule::Text),
        Row::new("status", Rule::Node(&STATUS)),
        Row::with_names(["final", "", "final"], Rule::Silent),
        Row::new("artifact", Rule::Node(&ARTIFACT)),
        Row::new("messageId", Rule::Copy),
        Row::new("role", Rule::Role),
        Row::with_names(["parts", "parts", "content"], Rule::Parts),
        Row::new("artifacts", Rule::List(&ARTIFACT)),
        Row::new("history", Rule::History),
        Row::new("metadata", Rule::Copy),
        Row::new("extensions", Rule::Full),
        Row::with_names(["referenceTaskIds", "referenceTaskIds", ""], Rule::Full),
        Row::new("append", Rule::Copy),
        Row::new("lastChunk", Rule::Copy),
    }
    CONFIGURATION "configuration" "" {
        Row::new("acceptedOutputModes", Rule::Copy),
        Row::new("historyLength", Rule::HistoryLength),
        Row::with_names(["blocking", "returnImmediately", "blocking"], Rule::Wait),
        Row::with_names(["pushNotificationConfig", "taskPushNotificationConfig", "pushNotification"], Rule::Push),
    }
    SEND "send" "" {
        TENANT,
        Row::new("message", Rule::Node(&MESSAGE)).with_alias("request"),
        Row::new("configuration", Rule::Node(&CONFIGURATION)),
        Row::new("metadata", Rule::Copy),
    }
    GET "get" "" {
        TENANT,
        Row::new("id", Rule::Copy),
        Row::new("historyLength", Rule::HistoryLength),
        LOST_METADATA,
    }
    CANCEL "cancel" "" {
        TENANT,
        Row::new("id", Rule::Copy),
        Row::new("metadata", Rule::Copy),
    }
    SUBSCRIBE "subscribe" "" {
        TENANT,
        Row::new("id", Rule::Copy),
        LOST_METADATA,
    }
    /// `id` is the task in 0.3, and the configuration in 1.0.
    PUSH_GET "push_get" "" {
        TENANT,
        Row::with_names(["id", "taskId", "id"], Rule::Copy),
        Row::with_names(["pushNotificationConfigId", "id", "pushNotificationConfigId"], Rule::Text),
        LOST_METADATA,
    }
    PUSH_LIST "push_list" "" {
        TENANT,
        Row::with_names(["id", "taskId", "id"], Rule::Copy),
        Row::with_names(["", "pageSize", ""], Rule::Copy),
        Row::with_names(["", "pageToken", ""], Rule::Text),
        LOST_METADATA,
    }
    CARD "card" "" {
        TENANT,
        LOST_METADATA,
    }
}
