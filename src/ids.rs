//! Names of things, checked once. An id that exists has the right form.

use std::fmt;
use std::sync::Arc;

/// Longest workspace id, in characters (`docs/api.md`, conventions).
const WORKSPACE_ID_LEN_MAX: usize = 128;

/// Longest request id that is taken over from a caller, in characters.
const REQUEST_ID_LEN_MAX: usize = 128;

/// The name of a workspace: `[A-Za-z0-9._-]{1,128}`, opaque.
///
/// `:` is not in the alphabet, so no id can be mistaken for a store key or a reserved caller.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkspaceId(Arc<str>);

impl WorkspaceId {
    /// Checks the form of `text`.
    ///
    /// # Errors
    /// [`InvalidWorkspaceId`] when it is empty, too long, or has a character outside the alphabet.
    pub fn parse(text: &str) -> Result<Self, InvalidWorkspaceId> {
        let fits = (1..=WORKSPACE_ID_LEN_MAX).contains(&text.len());
        let clean = text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
        if fits && clean {
            Ok(Self(text.into()))
        } else {
            Err(InvalidWorkspaceId)
        }
    }

    /// A new, random id for a workspace that was created without one.
    pub fn random() -> Self {
        Self(uuid::Uuid::now_v7().to_string().into())
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for WorkspaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for WorkspaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The text is not a workspace id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a workspace id has 1 to 128 characters out of A-Z a-z 0-9 . _ -")]
pub struct InvalidWorkspaceId;

/// The name of one exchange: the caller's `X-Request-Id` where it is usable, else a new UUIDv7.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestId(Arc<str>);

impl RequestId {
    /// Takes over the caller's own id if it is 1 to 128 visible ASCII characters, else makes one.
    pub fn from_caller(field: Option<&[u8]>) -> Self {
        field
            .filter(|v| (1..=REQUEST_ID_LEN_MAX).contains(&v.len()))
            .filter(|v| v.iter().all(u8::is_ascii_graphic))
            .and_then(|v| std::str::from_utf8(v).ok())
            .map_or_else(Self::random, |v| Self(v.into()))
    }

    /// A new id, ordered by time.
    pub fn random() -> Self {
        Self(uuid::Uuid::now_v7().to_string().into())
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of one run of one gateway: its host, and what tells this start from all others.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReplicaId(Arc<str>);

impl ReplicaId {
    /// A new one, for a process that starts.
    pub fn random() -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let known = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let host: String = host.trim().chars().filter(known).take(48).collect();
        let host = if host.is_empty() { "gateway" } else { &host };
        // The last digits of a UUID of version 7 are random; the first are the time.
        let run = uuid::Uuid::now_v7().simple().to_string();
        Self(format!("{host}-{}{}", &run[..12], &run[24..]).into())
    }

    /// The id as text: letters, digits, `.`, `_` and `-`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_start_has_a_name_of_its_own_that_stands_anywhere() {
        let [one, other] = [ReplicaId::random(), ReplicaId::random()];
        assert_ne!(one, other);
        assert!(WorkspaceId::parse(one.as_str()).is_ok(), "{one}");
    }

    #[test]
    fn workspace_ids_keep_to_their_alphabet() {
        for good in [
            "a",
            "ws_01hx3k",
            "developer-pm",
            "0199a.b",
            &"x".repeat(128),
        ] {
            assert!(WorkspaceId::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "system:x", "a/b", "ä", "a b", "a%2e", &"x".repeat(129)] {
            assert_eq!(WorkspaceId::parse(bad), Err(InvalidWorkspaceId), "{bad}");
        }
    }

    #[test]
    fn a_callers_request_id_is_kept_only_when_it_can_be_shown() {
        assert_eq!(RequestId::from_caller(Some(b"abc-1")).as_str(), "abc-1");
        for bad in [&b""[..], b"a b", b"a\x7f", "ä".as_bytes(), &[b'x'; 129]] {
            assert_eq!(RequestId::from_caller(Some(bad)).as_str().len(), 36);
        }
    }
}
