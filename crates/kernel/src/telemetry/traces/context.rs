//! Parses and writes W3C Trace Context, `traceparent` and `tracestate`, without I/O.
//!
//! The parser of the SDK accepts ids that are too short, and a sign before a number. The gateway would
//! forward these to agents as if the caller had sent them.

use http::HeaderName;
use std::str::FromStr as _;

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Request fields of W3C Trace Context.
pub const FIELDS: [HeaderName; 2] = [TRACEPARENT, TRACESTATE];

/// True for fields that the gateway writes itself while tracing is on.
pub fn is_context(name: &HeaderName) -> bool {
    FIELDS.contains(name)
}

/// Returns the request fields of a context.
pub fn context_fields(context: &SpanContext) -> impl Iterator<Item = (HeaderName, String)> {
    let parent = (TRACEPARENT, to_traceparent(context));
    let state = to_tracestate(context).map(|state| (TRACESTATE, state));
    std::iter::once(parent).chain(state)
}

/// Length of a `traceparent` of version 00, in bytes.
const LENGTH: usize = 55;

/// Parses the trace context of a request. Returns `None` if it is absent or invalid: a new trace begins
/// then (W3C Trace Context, 4.3). An invalid `tracestate` is dropped alone.
///
/// Both parameters take all values of the field. More than one `traceparent` is invalid; several
/// `tracestate` are joined into one list.
pub fn parse_context<'a>(
    traceparent: impl IntoIterator<Item = &'a [u8]>,
    tracestate: impl IntoIterator<Item = &'a [u8]>,
) -> Option<SpanContext> {
    let mut parents = traceparent.into_iter();
    let (trace, parent, flags) = parse_traceparent(parents.next()?)?;
    if parents.next().is_some() {
        return None;
    }
    let state = parse_tracestate(tracestate).unwrap_or_default();
    let context = SpanContext::new(trace, parent, flags & TraceFlags::SAMPLED, true, state);
    context.is_valid().then_some(context)
}

fn parse_traceparent(field: &[u8]) -> Option<(TraceId, SpanId, TraceFlags)> {
    let text = std::str::from_utf8(field.trim_ascii()).ok()?;
    let mut parts = text.splitn(5, '-');
    let mut digits = |length: usize| {
        let part = parts.next()?;
        let lower = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
        (part.len() == length && part.bytes().all(lower)).then_some(part)
    };
    let (version, trace, parent, flags) = (digits(2)?, digits(32)?, digits(16)?, digits(2)?);
    // A later version may append more fields; version 00 must not.
    if version == "ff" || version == "00" && text.len() != LENGTH {
        return None;
    }
    let trace = TraceId::from_hex(trace).ok()?;
    let parent = SpanId::from_hex(parent).ok()?;
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?);
    Some((trace, parent, flags))
}

fn parse_tracestate<'a>(fields: impl IntoIterator<Item = &'a [u8]>) -> Option<TraceState> {
    let mut list = String::new();
    for field in fields {
        let field = std::str::from_utf8(field).ok()?;
        if !list.is_empty() {
            list.push(',');
        }
        list.push_str(field);
    }
    if list.is_empty() {
        return None;
    }
    TraceState::from_str(&list).ok()
}

/// Returns a `traceparent` of version 00 for children of a span.
pub fn to_traceparent(context: &SpanContext) -> String {
    format!(
        "00-{}-{}-{:02x}",
        context.trace_id(),
        context.span_id(),
        context.trace_flags().to_u8()
    )
}

/// Returns the `tracestate`, if it is not empty.
pub fn to_tracestate(context: &SpanContext) -> Option<String> {
    let state = context.trace_state().header();
    (!state.is_empty()).then_some(state)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const PARENT: &str = "00f067aa0ba902b7";

    fn one(traceparent: &str) -> Option<SpanContext> {
        parse_context([traceparent.as_bytes()], [])
    }

    #[test]
    fn a_context_is_read_as_it_is_written() {
        for flags in ["00", "01"] {
            let text = format!("00-{TRACE}-{PARENT}-{flags}");
            let context = one(&text).unwrap();
            assert_eq!(to_traceparent(&context), text);
            assert_eq!(context.is_sampled(), flags == "01");
            assert!(context.is_remote());
            assert_eq!(to_tracestate(&context), None);
        }
        // Other flags have no meaning yet, and are not forwarded.
        let context = one(&format!("00-{TRACE}-{PARENT}-ff")).unwrap();
        assert_eq!(to_traceparent(&context), format!("00-{TRACE}-{PARENT}-01"));
    }

    #[test]
    fn a_later_version_is_read_as_far_as_it_is_known() {
        for later in ["01-{t}-{p}-01", "cc-{t}-{p}-01-more", "fe-{t}-{p}-01-"] {
            let text = later.replace("{t}", TRACE).replace("{p}", PARENT);
            let context = one(&text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(
                to_traceparent(&context),
                format!("00-{TRACE}-{PARENT}-01"),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_malformed_is_no_context() {
        let zeros = "0".repeat(32);
        for bad in [
            String::new(),
            "00".to_owned(),
            TRACE.to_owned(),
            format!("ff-{TRACE}-{PARENT}-01"),
            format!("0-{TRACE}-{PARENT}-01"),
            format!("00-{TRACE}-{PARENT}-1"),
            format!("00-{TRACE}-{PARENT}"),
            format!("00-{TRACE}-{PARENT}-01-"),
            format!("00-{TRACE}-{PARENT}-01-x"),
            format!("00-{TRACE}-{PARENT}-01x"),
            format!("01-{TRACE}-{PARENT}-01x"),
            format!("00-{TRACE}-{PARENT}-0g"),
            format!("00-{}-{PARENT}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-{}-01", PARENT.to_uppercase()),
            format!("00-{}-{PARENT}-01", &TRACE[1..]),
            format!("00-{TRACE}0-{PARENT}-01"),
            format!("00-+{}-{PARENT}-01", &TRACE[1..]),
            format!("00-{zeros}-{PARENT}-01"),
            format!("00-{TRACE}-{}-01", &zeros[..16]),
            format!("00_{TRACE}_{PARENT}_01"),
            format!("00-{TRACE}-{PARENT}-ä"),
        ] {
            assert_eq!(one(&bad), None, "{bad}");
        }
        let good = format!("00-{TRACE}-{PARENT}-01");
        assert_eq!(parse_context([good.as_bytes(), good.as_bytes()], []), None);
        assert_eq!(parse_context([&b"\xff\xfe"[..]], []), None);
        assert_eq!(parse_context([], [&b"a=1"[..]]), None);
    }

    #[test]
    fn several_tracestates_are_one_list_and_a_bad_one_costs_only_itself() {
        let with = |states: &[&str]| {
            let states = states.iter().map(|s| s.as_bytes());
            let parent = format!("00-{TRACE}-{PARENT}-01");
            to_tracestate(&parse_context([parent.as_bytes()], states).unwrap())
        };
        assert_eq!(with(&["a=1", "b@c=2"]).unwrap(), "a=1,b@c=2");
        assert_eq!(with(&["a=1 , ,b=2"]).unwrap(), "a=1,b=2");
        for bad in ["A=1", "a", "ä=1", "a=1=2", ""] {
            assert_eq!(with(&[bad]), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics_and_what_goes_out_is_always_right(
            parent in prop::collection::vec(any::<u8>(), 0..80),
            near in "[0-9a-f]{2}-[0-9a-f]{31,33}-[0-9a-f]{15,17}-[0-9a-f]{1,3}(-[a-z]{0,3})?",
            state in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            for field in [parent.as_slice(), near.as_bytes()] {
                if let Some(context) = parse_context([field], [state.as_slice()]) {
                    let out = to_traceparent(&context);
                    prop_assert_eq!(out.len(), LENGTH);
                    let again = parse_context([out.as_bytes()], []).unwrap();
                    prop_assert_eq!(again.trace_id(), context.trace_id());
                    prop_assert_eq!(again.span_id(), context.span_id());
                    prop_assert_eq!(again.is_sampled(), context.is_sampled());
                }
            }
        }
    }
}
