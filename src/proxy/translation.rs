//! What a call keeps of its translation: the fields of its request and of its answer, and the rejection of what has no
//! translation.

use http::{HeaderName, HeaderValue};
use pingora::http::ResponseHeader;

use crate::a2a::Generation;
use crate::a2a::bridge::{Failure, extensions_field};
use crate::metrics::Metrics;
use crate::rejection::{Delivery, Reason, Rejection};

/// Names the generations of caller and agent in an answer that was translated.
const BRIDGED: HeaderName = HeaderName::from_static("x-a2a-bridged");

/// The fields of a translated answer.
#[derive(Clone, Copy, Debug)]
pub(in crate::proxy) struct TranslationFields {
    /// The generations, the caller's first: `0.3>1.0`.
    pub(in crate::proxy) label: &'static str,
    caller: Generation,
}

impl TranslationFields {
    pub(in crate::proxy) const fn new(label: &'static str, caller: Generation) -> Self {
        Self { label, caller }
    }

    /// Puts the generations, the caller's version, and the extensions under the caller's name for them, into a head.
    ///
    /// # Errors
    /// A field cannot be built, which is a bug.
    pub(in crate::proxy) fn write_to(self, head: &mut ResponseHeader) -> pingora::Result<()> {
        let other = match self.caller {
            Generation::V0 => Generation::V1,
            Generation::V1 => Generation::V0,
        };
        let (theirs, ours) = (extensions_field(other), extensions_field(self.caller));
        let named: Vec<HeaderValue> = head.headers.get_all(theirs).iter().cloned().collect();
        head.remove_header(theirs);
        for value in named {
            head.append_header(ours, value)?;
        }
        if head.remove_header("a2a-version").is_some() {
            head.insert_header("a2a-version", self.caller.version())?;
        }
        head.insert_header(BRIDGED, self.label)
    }
}

/// The fields of a translated request, in place of the caller's.
pub(in crate::proxy) struct TranslatedHeaders {
    /// `Content-Type`.
    pub(in crate::proxy) content_type: &'static str,
    /// `Accept`.
    pub(in crate::proxy) accept: &'static str,
    /// `A2A-Version`.
    pub(in crate::proxy) version: &'static str,
    /// The name of the field with the extensions.
    pub(in crate::proxy) extensions: &'static str,
}

/// Counts a call or an answer that has no translation, and returns its rejection.
pub(in crate::proxy) fn reject_untranslatable(
    metrics: &Metrics,
    failure: &Failure,
    delivered: Delivery,
) -> Rejection {
    metrics.bridge.count_failed(failure.label());
    let reason = match failure {
        Failure::Push { .. } => Reason::PushNotSupported,
        Failure::List | Failure::Method { .. } | Failure::Off { .. } => Reason::VersionNotSupported,
        Failure::Twice(_) | Failure::TooDeep => Reason::InvalidRequest,
        Failure::Params(_) | Failure::TooLong => Reason::InvalidParams,
        Failure::NotJson(_) => Reason::ParseError,
        Failure::Answer(_) => Reason::AgentProtocolError,
    };
    let rejection = Rejection::new(reason, failure.to_string()).with_delivery(delivered);
    match i32::try_from(failure.code()) {
        Ok(code) if code != reason.rpc_code() => rejection.with_rpc_code(code),
        _ => rejection,
    }
}

/// Rejects what the gateway keeps of an agent, in its form of 0.3, and that has none in 1.0.
pub(in crate::proxy) fn untranslatable_reply(failure: Failure) -> Rejection {
    Rejection::new(Reason::AgentProtocolError, failure.to_string()).with_delivery(Delivery::Sent)
}
