//! Parses a request body as JSON, bounded in size and time. An error names the invalid member.

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, ORIGIN};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::duplicate_names::{duplicate_path, duplicate_rejection};
use super::extract::AdmittedRequest;
use super::turns::{Turn, Turns};
use a2a::accept::is_json;
use a2a::names::{self, DEPTH_MAX, NameScan, WalkError};
pub(super) use access::hierarchy::check_note;
use access::identity::{SLOW_BODY, may_be_credential};
use assembly::gateway::Gateway;
use kernel::json_errors::wrong_member;
use kernel::rejection::{Reason, RejectedRequest, Rejection};
use kernel::shares::{Account, Bound, Share, ShareRefusal, Shares};

/// Maximum bytes of a body: two tokens, and the other members.
pub(super) const FORM_BYTES_MAX: usize = 32 * 1024;

/// Maximum bytes of a body: an agent card of 256 KiB with worst-case escaping, and the other members.
const BODY_BYTES_MAX: usize = 1 << 20;

/// Members whose documents are stored as they are: the gateway reads no duplicate names in them.
const OPAQUE: [&str; 1] = ["agent_card"];

/// Maximum characters of the label of a token.
const LABEL_CHARS_MAX: usize = 64;

/// Checks the label of a workspace token. Lists and records show it, so it must not be a credential.
///
/// # Errors
/// `invalid_params`.
pub(super) fn check_token_label(label: Option<&str>) -> Result<(), Rejection> {
    let fits = |label: &str| {
        (1..=LABEL_CHARS_MAX).contains(&label.chars().count())
            && !label.trim().is_empty()
            && !label.chars().any(char::is_control)
    };
    let message = match label {
        Some(label) if !fits(label) => {
            "`label` has 1 to 64 characters, none of them a control character"
        }
        // A version has two dots, too, and is no JWT.
        Some(label) if label.starts_with("eyJ") || label.split('.').any(may_be_credential) => {
            "`label` has the form of a credential, and lists and records show it: choose another one"
        }
        _ => return Ok(()),
    };
    Err(Rejection::new(Reason::InvalidParams, message))
}

/// A required body, parsed as `T`.
pub(super) struct Json<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Arc<Gateway>> for Json<T> {
    type Rejection = Rejection;

    async fn from_request(request: Request, gateway: &Arc<Gateway>) -> Result<Self, Rejection> {
        parse(&read_body(request, gateway, BODY_BYTES_MAX).await?).map(Self)
    }
}

/// An optional body, parsed as `T`, or the default of `T`.
pub(super) struct OptionalJson<T>(pub(super) T);

impl<T: DeserializeOwned + Default> FromRequest<Arc<Gateway>> for OptionalJson<T> {
    type Rejection = Rejection;

    async fn from_request(request: Request, gateway: &Arc<Gateway>) -> Result<Self, Rejection> {
        let body = read_body(request, gateway, BODY_BYTES_MAX).await?;
        if body.is_empty() {
            return Ok(Self(T::default()));
        }
        parse(&body).map(Self)
    }
}

/// A required body, parsed as `T`, of which no object has a name twice, whether it is read or not: for bodies with
/// members that are read as they come.
pub(super) struct UniqueJson<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Arc<Gateway>> for UniqueJson<T> {
    type Rejection = Rejection;

    async fn from_request(request: Request, gateway: &Arc<Gateway>) -> Result<Self, Rejection> {
        parse_unique(&read_body(request, gateway, BODY_BYTES_MAX).await?).map(Self)
    }
}

/// A policy: as [`UniqueJson`], within a limit of its own, and with the turn in which it is read and compared.
pub(super) struct PolicyJson<T>(pub(super) T, pub(super) Turn);

impl<T: DeserializeOwned> FromRequest<Arc<Gateway>> for PolicyJson<T> {
    type Rejection = Rejection;

    async fn from_request(request: Request, gateway: &Arc<Gateway>) -> Result<Self, Rejection> {
        let max = gateway.config().limits.policy_bytes.bytes();
        let admitted: AdmittedRequest = request.extensions().get().cloned().unwrap_or_default();
        let bodies: Bodies = request.extensions().get().cloned().unwrap_or_default();
        let body = read_body(request, gateway, max).await?;
        let proof = admitted.proof();
        let proof =
            proof.ok_or_else(|| Rejection::new(Reason::Unauthenticated, "send a credential"))?;
        let turn = bodies.policies.take(&proof).await?;
        parse_unique(&body).map(|policy| Self(policy, turn))
    }
}

/// Reads a body of JSON. Its bytes count until the request is answered.
async fn read_body(request: Request, gateway: &Gateway, max: usize) -> Result<Bytes, Rejection> {
    check_media_type(request.headers())?;
    read_bytes(request, gateway, max).await
}

/// As [`read_body`], of any media type, also without a credential.
pub(super) async fn read_bytes(
    request: Request,
    gateway: &Gateway,
    max: usize,
) -> Result<Bytes, Rejection> {
    let (parts, body) = request.into_parts();
    refuse_declared_oversize(&parts.headers, max)?;
    let admitted: AdmittedRequest = parts.extensions.get().cloned().unwrap_or_default();
    let account = admitted
        .proof()
        .map_or(Account::default(), |proof| proof.account);
    let bodies: Bodies = parts.extensions.get().cloned().unwrap_or_default();
    let room = BodyBounds::for_account(gateway, account);
    let _receiving = room.take_slot(&bodies)?;
    let mut share = Share::empty(&bodies.bytes, account);
    let limit = gateway.config().timeouts.request_body;
    let began = Instant::now();
    let read = tokio::time::timeout(limit, collect_pieces(body, &mut share, &room, max)).await;
    let body = read.unwrap_or_else(|_| {
        let message = "the request body did not arrive in time; send it without a pause";
        let late = Rejection::new(Reason::RequestTimeout, message);
        let late = late.with_fact("clock", "request_body");
        Err(late.with_fact("limit", humantime::format_duration(limit)))
    })?;
    if let Some(proof) = admitted.proof().filter(|_| began.elapsed() >= SLOW_BODY) {
        gateway.identity.recheck(&proof).await?;
    }
    admitted.keep_share(share);
    Ok(body)
}

async fn collect_pieces(
    mut body: Body,
    share: &mut Share,
    room: &BodyBounds<'_>,
    max: usize,
) -> Result<Bytes, Rejection> {
    let mut held = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(piece) = frame.map_err(broken_body)?.into_data() else {
            continue;
        };
        if held.len() + piece.len() > max {
            return Err(too_large(max));
        }
        room.take_bytes(share, piece.len())?;
        held.extend_from_slice(&piece);
    }
    Ok(held.freeze())
}

/// Returns the data plane's rejection of the body; otherwise the caller left or violated HTTP.
fn broken_body(error: axum::Error) -> Rejection {
    match error.into_inner().downcast::<RejectedRequest>() {
        Ok(refused) => refused.0,
        Err(_) => Rejection::new(Reason::InvalidRequest, "the body broke off"),
    }
}

/// The memory that the bodies of all requests to the control plane take.
#[derive(Clone, Default)]
pub(super) struct Bodies {
    bytes: Arc<Shares>,
    /// The number of bodies being received.
    receiving: Arc<Shares>,
    pub(super) policies: Turns,
    pub(super) replays: Turns,
}

/// The bounds of one caller's bodies.
struct BodyBounds<'a> {
    gateway: &'a Gateway,
    account: Account,
    bytes: Bound,
    bodies: Bound,
}

impl<'a> BodyBounds<'a> {
    fn for_account(gateway: &'a Gateway, account: Account) -> Self {
        let config = gateway.config();
        Self {
            gateway,
            account,
            bytes: Bound::with_least(config.limits.control_bodies_bytes.bytes(), BODY_BYTES_MAX),
            bodies: Bound::with_places(config.server.max_exchanges),
        }
    }

    /// Takes a slot for one more body to be received.
    ///
    /// # Errors
    /// `overloaded`.
    fn take_slot(&self, bodies: &Bodies) -> Result<Share, Rejection> {
        let entered = bodies.receiving.take(self.account, 1, self.bodies);
        entered.map_err(|full| {
            self.overloaded(match full {
                ShareRefusal::All => "too many bodies are on their way (server.max_exchanges)",
                ShareRefusal::Share | ShareRefusal::Each => {
                    "bodies of this caller are half of what others leave of server.max_exchanges: send fewer at once"
                }
            })
        })
    }

    /// Reserves memory for `bytes` more.
    ///
    /// # Errors
    /// `overloaded`.
    fn take_bytes(&self, share: &mut Share, bytes: usize) -> Result<(), Rejection> {
        share.grow(bytes, self.bytes).map_err(|full| {
            self.overloaded(match full {
                ShareRefusal::All => {
                    "the control plane holds as many bytes of bodies as it may (limits.control_bodies_bytes)"
                }
                ShareRefusal::Share | ShareRefusal::Each => {
                    "bodies of this caller take half of what others leave of limits.control_bodies_bytes: send fewer at once"
                }
            })
        })
    }

    fn overloaded(&self, message: &'static str) -> Rejection {
        self.gateway.metrics.bodies_refused.inc();
        Rejection::new(Reason::Overloaded, message).with_retry_after(Duration::from_secs(1))
    }
}

fn refuse_declared_oversize(headers: &HeaderMap, max: usize) -> Result<(), Rejection> {
    let declared = headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok());
    let declared = declared.and_then(|text| text.parse::<usize>().ok());
    if declared.is_some_and(|length| length > max) {
        return Err(too_large(max));
    }
    Ok(())
}

fn too_large(max: usize) -> Rejection {
    let message = match max {
        BODY_BYTES_MAX => "a body of the control plane has at most 1 MiB",
        FORM_BYTES_MAX => "the form has more than 32 KiB",
        _ => "the policy has more bytes than limits.policy_bytes: raise it, or leave sections out",
    };
    Rejection::new(Reason::BodyTooLarge, message).with_fact("limit", max)
}

/// Rejects other media types with `unsupported_media_type`. A browser can send a body without a type across origins, so
/// a request that is recognizably from a browser must declare one.
fn check_media_type(headers: &HeaderMap) -> Result<(), Rejection> {
    let refused = |message| Err(Rejection::new(Reason::UnsupportedMediaType, message));
    if headers.contains_key(CONTENT_ENCODING) {
        return refused("send the body without a `Content-Encoding`");
    }
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    match (types.next(), types.next()) {
        (Some(one), None) if one.to_str().is_ok_and(is_json) => Ok(()),
        (None, _) if !is_browser(headers) => Ok(()),
        _ => refused("send the body as JSON: `Content-Type: application/json`"),
    }
}

fn is_browser(headers: &HeaderMap) -> bool {
    let fetch = |name: &http::HeaderName| name.as_str().starts_with("sec-fetch-");
    headers.contains_key(ORIGIN) || headers.keys().any(fetch)
}

/// Parses `body`. An error names the invalid member, and never repeats its content.
fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Rejection> {
    let (text, scan) = scan_object(body)?;
    deserialize_text(text, &scan)
}

/// As [`parse`], and no object has a name twice.
fn parse_unique<T: DeserializeOwned>(body: &[u8]) -> Result<T, Rejection> {
    let (text, scan) = scan_object(body)?;
    match &scan.duplicate {
        Some(name) => Err(duplicate_rejection(name, duplicate_path(text).as_deref())),
        None => deserialize_text(text, &scan),
    }
}

/// Returns the text of a body that is an object, and what a walk over it found.
fn scan_object(body: &[u8]) -> Result<(&str, NameScan), Rejection> {
    let body = body.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(body);
    let not_json = || Rejection::new(Reason::ParseError, "the body is not JSON in UTF-8");
    let text = std::str::from_utf8(body).map_err(|_| not_json())?;
    let scan = names::scan_names(text, &OPAQUE);
    if matches!(scan, Err(WalkError::Syntax(_))) {
        return Err(not_json());
    }
    if !text.trim_start().starts_with('{') {
        let message = "the body is JSON, but not an object";
        return Err(Rejection::new(Reason::InvalidRequest, message));
    }
    let Ok(scan) = scan else {
        let message = format!("the body nests deeper than {DEPTH_MAX}");
        return Err(Rejection::new(Reason::InvalidRequest, message));
    };
    Ok((text, scan))
}

fn deserialize_text<T: DeserializeOwned>(text: &str, scan: &NameScan) -> Result<T, Rejection> {
    // Tracking the path doubles the cost, so only an invalid body is parsed that way.
    serde_json::from_str(text).or_else(|_| {
        if let Some(name) = &scan.duplicate {
            return Err(duplicate_rejection(name, None));
        }
        let mut reader = serde_json::Deserializer::from_str(text);
        serde_path_to_error::deserialize(&mut reader).map_err(|error| wrong_member(&error))
    })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::value::RawValue;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct Inner {
        seconds: u32,
    }

    #[derive(Debug, Deserialize)]
    struct Outer {
        name: String,
        inner: Option<Inner>,
        card: Option<Box<RawValue>>,
    }

    fn refusal(body: &[u8]) -> (Reason, String) {
        let refusal = parse::<Outer>(body).unwrap_err();
        (refusal.reason, refusal.message.into_owned())
    }

    #[test]
    fn a_card_keeps_its_bytes_and_what_is_unknown_is_passed_over() {
        let body = "\u{feff} {\"name\":\"n\",\"x\":[{}],\"card\":{ \"b\":1.0, \"a\":1e400 },\"inner\":null,\"x\":1}";
        let outer: Outer = parse(body.as_bytes()).unwrap();
        assert_eq!(outer.name, "n");
        assert!(outer.inner.is_none());
        assert_eq!(outer.card.unwrap().get(), "{ \"b\":1.0, \"a\":1e400 }");
        let outer: Outer = parse(br#"{"name":"n","inner":{"seconds":3}}"#).unwrap();
        assert_eq!(outer.inner.unwrap().seconds, 3);
    }

    #[test]
    fn what_is_wrong_is_named_and_not_repeated() {
        for (body, reason, says) in [
            (&b""[..], Reason::ParseError, "not JSON"),
            (b"{} x", Reason::ParseError, "not JSON"),
            (b"{\"name\":NaN}", Reason::ParseError, "not JSON"),
            (b"{\"name\":\"\xff\"}", Reason::ParseError, "not JSON"),
            (b"{\0}\0", Reason::ParseError, "not JSON"),
            (b"[]", Reason::InvalidRequest, "object"),
            (b"\"secret\"", Reason::InvalidRequest, "object"),
            (b"{}", Reason::InvalidParams, "`name` is missing"),
            (b"{\"name\":5}", Reason::InvalidParams, "`name` has"),
            (
                b"{\"name\":\"n\",\"name\":\"secret\"}",
                Reason::InvalidRequest,
                "`name` stands twice",
            ),
            (
                b"{\"name\":\"n\",\"inner\":{\"seconds\":1,\"seconds\":2}}",
                Reason::InvalidRequest,
                "`seconds` stands twice in the body",
            ),
            (
                b"{\"name\":\"n\",\"inner\":{\"seconds\":\"secret\"}}",
                Reason::InvalidParams,
                "`inner.seconds` has",
            ),
            (
                b"{\"name\":\"n\",\"inner\":{}}",
                Reason::InvalidParams,
                "`inner.seconds` is missing",
            ),
        ] {
            let (found, message) = refusal(body);
            assert_eq!(found, reason, "{message}");
            assert!(message.contains(says), "{message}");
            assert!(!message.contains("secret"), "{message}");
        }
    }

    #[test]
    fn a_name_that_is_not_read_stands_once_where_members_are_read_as_they_come() {
        let body = br#"{"name":"n","x":[{"a":1},{"a":1,"a":2}]}"#;
        assert!(parse::<Outer>(body).is_ok());
        let refusal = parse_unique::<Outer>(body).unwrap_err();
        assert_eq!(refusal.reason, Reason::InvalidRequest);
        assert_eq!(refusal.message, "`a` stands twice in `x[1]`");
        assert!(parse_unique::<Outer>(br#"{"name":"n","x":[{"a":1},{"a":1}]}"#).is_ok());
    }

    #[test]
    fn a_word_that_is_none_of_a_few_is_told_which_they_are() {
        #[derive(Debug, Deserialize)]
        #[expect(dead_code, reason = "only read")]
        struct Body {
            liveness: Option<access::workspace::Liveness>,
            count: Option<u32>,
        }
        let refusal = |body: &str| {
            let refusal = parse::<Body>(body.as_bytes()).unwrap_err();
            refusal.message.into_owned()
        };
        let known = "`liveness` is no value that is known; known are `heartbeat` or `assumed`";
        for word in ["assume", "x, expected `secret`", ""] {
            let body = serde_json::json!({"liveness": word});
            assert_eq!(refusal(&body.to_string()), known);
        }
        assert_eq!(
            refusal(r#"{"liveness":5}"#),
            "`liveness` has the wrong type"
        );
        let number = "`count` has the wrong type: a whole number is expected";
        assert_eq!(refusal(r#"{"count":"5, expected a string"}"#), number);
    }

    #[test]
    fn where_nothing_unknown_passes_the_unknown_is_named_with_what_is_known() {
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        #[expect(dead_code, reason = "only read")]
        struct Strict {
            name: Option<String>,
            org: Option<String>,
        }
        let refusal = |body: &str| {
            let refusal = parse::<Strict>(body.as_bytes()).unwrap_err();
            assert_eq!(refusal.reason, Reason::InvalidParams);
            refusal.message.into_owned()
        };
        let known = "is not known here; known are `name` or `org`";
        assert_eq!(
            refusal(r#"{"name":"n","Name":5}"#),
            format!("`Name` {known}")
        );
        // An invalid name may contain anything, even a secret, so it is not repeated.
        assert_eq!(
            refusal(r#"{"a`, expected one of `b":5}"#),
            format!("`a` {known}")
        );
        for name in ["", "a b", "ä", &"x".repeat(65)] {
            let message = refusal(&format!("{{\"{name}\":5}}"));
            assert!(
                message.ends_with(known) && !message.contains("a b"),
                "{message}"
            );
        }
        assert!(parse::<Strict>(br#"{"name":null}"#).is_ok());
    }

    #[test]
    fn depth_is_bounded_and_brackets_in_strings_do_not_count() {
        let nested = |depth: usize| {
            let (open, close) = ("[".repeat(depth - 1), "]".repeat(depth - 1));
            format!(
                "{{\"name\":\"{}\\\"[\",\"x\":{open}{close}}}",
                "[".repeat(600)
            )
        };
        assert!(parse::<Outer>(nested(DEPTH_MAX).as_bytes()).is_ok());
        let (reason, _) = refusal(nested(DEPTH_MAX + 1).as_bytes());
        assert_eq!(reason, Reason::InvalidRequest);
    }

    #[test]
    fn media_types_of_json_are_taken() {
        for good in [
            "application/json",
            "Application/JSON; charset=UTF-8",
            "application/json;charset=\"utf-8\"",
            "application/a2a+json",
            "application/vnd.x+json; v=1",
        ] {
            assert!(is_json(good), "{good}");
        }
        for bad in [
            "",
            "text/plain",
            "json",
            "x/+json",
            "application/json; charset=latin1",
        ] {
            assert!(!is_json(bad), "{bad}");
        }
    }
}
