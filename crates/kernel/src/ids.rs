//! Validated identifiers: [`WorkspaceId`], [`InstanceId`], [`RequestId`] and [`ReplicaId`]. A value that exists has
//! a valid form.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

/// Longest workspace id, in characters (`docs/reference/http-api.md`, conventions).
const WORKSPACE_ID_LEN_MAX: usize = 128;

/// Longest instance id, in characters.
const INSTANCE_ID_LEN_MAX: usize = 64;

/// Longest request id accepted from a caller, in characters.
const REQUEST_ID_LEN_MAX: usize = 128;

/// The id of a workspace: `[A-Za-z0-9._-]{1,128}`, opaque. A new one is not `.` or `..`.
///
/// `:` is not in the alphabet, so an id cannot be mistaken for a store key or a reserved caller.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, ToSchema)]
#[schema(value_type = String, pattern = "^[A-Za-z0-9._-]{1,128}$")]
pub struct WorkspaceId(Arc<str>);

impl WorkspaceId {
    /// Returns a new, random id for a workspace that was created without one.
    pub fn random() -> Self {
        Self(uuid::Uuid::now_v7().to_string().into())
    }

    /// Rejects `.` and `..`, which older tables may contain but a new workspace may not use: URL
    /// parsers that follow the standard remove both from the path, even when they are
    /// percent-encoded.
    ///
    /// # Errors
    /// [`InvalidWorkspaceId`].
    pub fn check_new(&self) -> Result<(), InvalidWorkspaceId> {
        match self.as_str() {
            "." | ".." => Err(InvalidWorkspaceId),
            _ => Ok(()),
        }
    }
}

impl Borrow<str> for WorkspaceId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// Declares what all ids have, and how those are parsed that have a longest text and an error.
macro_rules! ids {
    ($($kind:ident $(, $max:ident, $error:ident)?;)*) => {$(
        impl $kind {
            $(
                /// Checks the form of `text`.
                ///
                /// # Errors
                /// When it is empty, too long, or has a character outside the alphabet.
                pub fn parse(text: &str) -> Result<Self, $error> {
                    is_name(text, $max).then(|| Self(text.into())).ok_or($error)
                }
            )?

            /// Returns the id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}

ids! {
    WorkspaceId, WORKSPACE_ID_LEN_MAX, InvalidWorkspaceId;
    InstanceId, INSTANCE_ID_LEN_MAX, InvalidInstanceId;
    RequestId;
    ReplicaId;
}

/// Declares serialization as the displayed text.
macro_rules! serialize_as_text {
    ($($kind:ty: $parse:expr;)*) => {$(
        impl Serialize for $kind {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $kind {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                $parse(&text).ok_or_else(|| D::Error::custom(InvalidWorkspaceId))
            }
        }
    )*};
}

serialize_as_text! {
    WorkspaceId: |text: &str| Self::parse(text).ok();
    WorkspaceIncarnation: Self::parse;
}

/// The text is not a workspace id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a workspace id has 1 to 128 characters out of A-Z a-z 0-9 . _ -, and is neither `.` nor `..`"
)]
pub struct InvalidWorkspaceId;

/// The id of an instance of a workspace's agent: `[A-Za-z0-9._-]{1,64}`, opaque.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, ToSchema)]
#[schema(value_type = String, pattern = "^[A-Za-z0-9._-]{1,64}$")]
pub struct InstanceId(Arc<str>);

/// The text is not an instance id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an instance id has 1 to 64 characters out of A-Z a-z 0-9 . _ -")]
pub struct InvalidInstanceId;

/// True if `text` has 1 to `max` characters of the alphabet of names.
pub(crate) fn is_name(text: &str, max: usize) -> bool {
    let is_clean = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=max).contains(&text.len()) && text.bytes().all(is_clean)
}

/// One life of a workspace id, from its creation to its removal: an operator may give a removed id away again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WorkspaceIncarnation {
    /// The id.
    pub id: WorkspaceId,
    /// Time at which it began, in milliseconds since 1970; 0: the first life of the id.
    pub born_at: i64,
}

impl WorkspaceIncarnation {
    /// Reads what [`fmt::Display`] writes; `None`: it is the name of no workspace.
    pub fn parse(name: &str) -> Option<Self> {
        let (id, born_at) = match name.split_once(LATER_LIFE) {
            Some((id, born_at)) => (id, born_at.parse().ok()?),
            None => (name, 0),
        };
        let id = WorkspaceId::parse(id).ok()?;
        Some(Self { id, born_at })
    }
}

/// Precedes the beginning of a later life in its name. It is in no id.
const LATER_LIFE: char = '~';

/// The name under which state of this life is kept: the id, and of a later life its beginning.
impl fmt::Display for WorkspaceIncarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.born_at {
            0 => f.write_str(self.id.as_str()),
            born_at => write!(f, "{}{LATER_LIFE}{born_at}", self.id),
        }
    }
}

/// The id of one exchange: the caller's `X-Request-Id` if it is usable, else a new UUIDv7.
#[derive(Clone, PartialEq, Eq)]
pub struct RequestId(Arc<str>);

impl RequestId {
    /// Accepts the caller's id if it is 1 to 128 visible ASCII characters and contains no
    /// credential, else generates one.
    pub fn from_caller(field: Option<&[u8]>) -> Self {
        field
            .filter(|v| (1..=REQUEST_ID_LEN_MAX).contains(&v.len()))
            .filter(|v| v.iter().all(u8::is_ascii_graphic))
            .and_then(|v| std::str::from_utf8(v).ok())
            .filter(|v| !holds_credential(v))
            .map_or_else(Self::random, |v| Self(v.into()))
    }

    /// Returns a new id, ordered by time.
    pub fn random() -> Self {
        let mut text = uuid::Uuid::encode_buffer();
        let text: &str = uuid::Uuid::now_v7().hyphenated().encode_lower(&mut text);
        Self(text.into())
    }
}

/// The id of one run of one gateway process: its host name and a part that is unique to this start.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReplicaId(Arc<str>);

impl ReplicaId {
    /// Returns a new id that begins with the host name.
    pub fn random() -> Self {
        Self::with_name(&host_name())
    }

    /// Returns a new id that begins with the configured name, or else with the host name.
    pub fn from_config(name: Option<&str>) -> Self {
        name.map_or_else(Self::random, Self::with_name)
    }

    /// Returns a new id that begins with `name`. Each start has its own id, because an audit chain
    /// belongs to one start.
    pub fn with_name(name: &str) -> Self {
        let known = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let name: String = name.chars().filter(known).take(REPLICA_NAME_MAX).collect();
        let name = if name.is_empty() { "gateway" } else { &name };
        // The last digits of a UUIDv7 are random; the first are the time.
        let run = uuid::Uuid::now_v7().simple().to_string();
        Self(format!("{name}-{}{}", &run[..12], &run[24..]).into())
    }
}

/// Returns the machine's host name; empty if it is unknown.
pub fn host_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    host.trim().to_owned()
}

/// Longest name of a replica, in characters.
pub const REPLICA_NAME_MAX: usize = 48;

/// Length of the secret in a gateway token, in characters: 32 random bytes as base64url.
const SECRET_LEN: usize = 43;

/// Returns true if `text` contains something that looks like a credential: a token with its prefix
/// (`a2aw_`), the 43 characters of a token without it, or a JWT. Ids are logged and stored, so such
/// an id is not accepted. A run of more than 43 such characters counts only if 43 in a row contain
/// both capital and small letters, as random ones do; UUIDs, hashes and `traceparent` values are
/// allowed in ids.
pub fn holds_credential(text: &str) -> bool {
    let ours =
        |part: &[u8]| part.starts_with(b"a2a") && part[3].is_ascii_lowercase() && part[4] == b'_';
    let is_of_secret = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let looks_random = |part: &[u8]| {
        part.iter().any(u8::is_ascii_uppercase) && part.iter().any(u8::is_ascii_lowercase)
    };
    let mut runs = text.as_bytes().split(|byte| !is_of_secret(byte));
    text.contains(JWT_BEGINS)
        || text.as_bytes().windows(5).any(ours)
        || runs.any(|run| run.len() == SECRET_LEN || run.windows(SECRET_LEN).any(looks_random))
}

/// `{"` in base64url: the beginning of each JWT header and each JWT payload.
const JWT_BEGINS: &str = "eyJ";

/// Returns true if `text` is an id that a gateway generated: a UUID, alone or after `job-` or `stop-`.
pub fn is_made_here(text: &str) -> bool {
    let id = text.strip_prefix("job-").or(text.strip_prefix("stop-"));
    let id = id.unwrap_or(text);
    id.len() == 36 && uuid::Uuid::try_parse(id).is_ok()
}

/// Returns a new stream id: a timestamp followed by random bits. The id must not be guessable,
/// because the stream's last event contains it as proof that the gateway wrote it
/// ([`crate::rejection::STREAM`]). A UUIDv7 with a counter is not enough: UUIDs made in the same
/// millisecond predict each other, and agents see request ids.
pub fn stream_id() -> uuid::Uuid {
    let mut bytes = uuid::Uuid::new_v4().into_bytes();
    bytes[..6].copy_from_slice(&uuid::Uuid::now_v7().as_bytes()[..6]);
    // The version.
    bytes[6] = bytes[6] & 0x0f | 0x70;
    uuid::Uuid::from_bytes(bytes)
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
    fn what_urls_have_no_room_for_is_no_name_for_a_new_workspace() {
        let new = |id: &str| WorkspaceId::parse(id).and_then(|id| id.check_new());
        for id in [".", "..", "", "a b", "a:b"] {
            assert_eq!(new(id), Err(InvalidWorkspaceId), "{id}");
        }
        for id in ["...", ".a", "a..", "_", "-"] {
            assert_eq!(new(id), Ok(()), "{id}");
        }
        assert!(WorkspaceId::parse("..").is_ok(), "it may be there already");
    }

    #[test]
    fn ids_that_a_gateway_made_are_known_by_their_form() {
        let id = uuid::Uuid::now_v7().to_string();
        assert!(is_made_here(&id) && is_made_here(&format!("job-{id}")));
        for other in [
            "",
            "job-",
            "ada@example.org",
            &id[1..],
            &id.replace('-', ""),
        ] {
            assert!(!is_made_here(other), "{other}");
        }
    }

    #[test]
    fn a_request_id_that_holds_a_credential_is_not_taken_over() {
        let secret = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFG";
        let jwt = "eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJ4In0.c2ln";
        for held in [
            secret.to_owned(),
            format!("a2aw_{secret}"),
            format!("a2aa_{}", &secret[..20]),
            format!("x{secret}"),
            format!("req:{secret}:1"),
            format!("{secret}-{secret}"),
            secret.to_lowercase(),
            jwt.to_owned(),
            jwt[..40].to_owned(),
            format!("id-{}", &jwt[21..]),
        ] {
            let id = RequestId::from_caller(Some(held.as_bytes()));
            assert_ne!(id.as_str(), held);
            assert!(is_made_here(id.as_str()));
        }
        for fine in [
            "r-1",
            "0199aabb-ccdd-7eff-8011-223344556677",
            "req-0199aabb-ccdd-7eff-8011-223344556677-0199aabb-ccdd-7eff-8011-223344556677",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "01ARZ3NDEKTSV4RRFFQ69G5FAV",
            "a2a-gateway",
            &"x".repeat(128),
        ] {
            assert_eq!(RequestId::from_caller(Some(fine.as_bytes())).as_str(), fine);
        }
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
