//! `X-A2A-Hops`: the number of gateways that a call has passed, by which loops of agents that call
//! each other are stopped.

use http::{HeaderMap, HeaderName};

use crate::rejection::{Reason, Rejection};

const X_A2A_HOPS: HeaderName = HeaderName::from_static("x-a2a-hops");

/// Returns the number of gateways that the call has passed, including this one. `max` is
/// `forward.max_hops`.
///
/// # Errors
/// `invalid_request`, `loop_detected`.
pub fn count_hops(headers: &HeaderMap, max: u32) -> Result<u32, Rejection> {
    let mut values = headers.get_all(X_A2A_HOPS).iter();
    let before = match (values.next(), values.next()) {
        (None, _) => 0,
        (Some(field), None) => whole_number(field.as_bytes()).ok_or_else(|| {
            Rejection::new(
                Reason::InvalidRequest,
                "X-A2A-Hops is a whole number; pass it on as it came, or leave it out",
            )
        })?,
        (Some(_), Some(_)) => {
            return Err(Rejection::new(
                Reason::InvalidRequest,
                "the request has several `x-a2a-hops` fields; send one",
            ));
        }
    };
    let hops = u32::try_from(before.saturating_add(1)).unwrap_or(u32::MAX);
    if hops > max {
        return Err(Rejection::new(
            Reason::LoopDetected,
            format!(
                "the call went through forward.max_hops ({max}) gateways or more before this one: agents seem to call each other in a circle"
            ),
        )
        .with_fact("limit", max));
    }
    Ok(hops)
}

/// Parses a number in digits only. A number too large for its type becomes the largest.
pub fn whole_number(field: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(field).ok()?;
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hops_are_counted_and_bounded() {
        let ask = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(X_A2A_HOPS, value.parse().unwrap());
            }
            count_hops(&headers, 8).map_err(|r| r.reason)
        };
        assert_eq!((ask(&[]), ask(&["0"]), ask(&["7"])), (Ok(1), Ok(1), Ok(8)));
        for many in ["8", "4294967295", "99999999999999999999"] {
            assert_eq!(ask(&[many]), Err(Reason::LoopDetected), "{many}");
        }
        for bad in ["", " ", "-1", "+1", "1.0", "one", "1,1"] {
            assert_eq!(ask(&[bad]), Err(Reason::InvalidRequest), "{bad:?}");
        }
        assert_eq!(ask(&["1", "2"]), Err(Reason::InvalidRequest));
    }
}
