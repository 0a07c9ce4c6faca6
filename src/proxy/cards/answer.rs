//! HTTP response with a card: whole, or "not modified".

use bytes::Bytes;
use http::{HeaderMap, Method, header};
use pingora::http::ResponseHeader;

use super::cache::FRESH;
use super::forms::ServedCard;
use crate::a2a::bridge::card::VARY;
use crate::a2a::completion_steps::CompletionSteps;
use crate::proxy::outcome::ExchangeOutcome;
use crate::proxy::request::Request;
use crate::proxy::respond::internal_error;

/// Field that names the generations of the card's interfaces: a client of another generation cannot read the
/// card.
pub(super) const SPEAKS: &str = "x-a2a-speaks";

/// Sends the card, or 304 if the caller has it.
pub(super) async fn send_card(
    request: &mut Request<'_>,
    card: &ServedCard,
) -> Result<ExchangeOutcome, ExchangeOutcome> {
    let asked = request.head();
    let known = is_known(&asked.headers, &card.tag);
    let without_body = known || asked.method == Method::HEAD;
    let head = card_head(card, known).map_err(internal_error)?;
    let head = request.response_head(head, CompletionSteps::default())?;
    let body = if without_body {
        Bytes::new()
    } else {
        card.body.clone()
    };
    request.respond(head, body).await
}

fn card_head(card: &ServedCard, known: bool) -> pingora::Result<ResponseHeader> {
    let mut head = ResponseHeader::build(if known { 304 } else { 200 }, Some(12))?;
    if !known {
        head.append_header(header::CONTENT_TYPE, "application/json")?;
        head.append_header(header::CONTENT_LENGTH, card.body.len())?;
    }
    head.append_header(header::ETAG, card.tag.as_str())?;
    let modified = httpdate::fmt_http_date(card.modified);
    head.append_header(header::LAST_MODIFIED, modified)?;
    // Access is decided for each caller.
    let kept = format!("private, max-age={}", FRESH.as_secs());
    head.append_header(header::CACHE_CONTROL, kept)?;
    head.append_header(header::VARY, format!("Authorization, Origin, {VARY}"))?;
    if let Some(speaks) = card.speaks {
        head.append_header(SPEAKS, speaks)?;
    }
    Ok(head)
}

/// True if the caller has this card (RFC 9110, 13.1.2: weak comparison).
fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    let opaque = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
    let known = headers.get_all(header::IF_NONE_MATCH).iter();
    known
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|known| known.trim() == "*" || opaque(known) == opaque(tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_compared_weakly() {
        let known = |values: &[&str], tag: &str| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::IF_NONE_MATCH, value.parse().unwrap());
            }
            is_known(&headers, tag)
        };
        for values in [
            &["\"a\""][..],
            &["W/\"a\""],
            &["\"b\", W/\"a\" ,\"c\""],
            &["\"b\"", "\"a\""],
            &["*"],
        ] {
            assert!(known(values, "\"a\""), "{values:?}");
            assert!(known(values, "W/\"a\""), "{values:?}");
        }
        for values in [&[][..], &["\"b\""], &["a"], &["\"A\""], &[""], &["\"a"]] {
            assert!(!known(values, "\"a\""), "{values:?}");
        }
    }
}
