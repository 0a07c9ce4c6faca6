//! The head of an agent's answer: parsed by `httparse`, as leniently as clients of agents are used to (a space before a
//! colon, folded lines). What may pass of it is judged by [`super::super::answer_head`].

use std::mem::MaybeUninit;

use bytes::Bytes;
use http::{HeaderName, Version, header};
use httparse::{ParserConfig, Response, Status};
use pingora::http::{ResponseHeader, header_value_from_raw};
use pingora::{Error, ErrorType, OrErr};

use super::body::BodyState;

/// Maximum fields that are parsed. More than `FIELDS_MAX` of [`super::super::answer_head`], which has the better
/// message.
const FIELDS_MAX: usize = 256;

/// The head of an agent's answer.
#[derive(Debug)]
pub struct AnswerHead {
    /// Status and fields. Without a length beside a transfer coding, which prevails.
    pub fields: ResponseHeader,
    /// Its bytes.
    pub bytes: usize,
    /// True if it states a length and a transfer coding.
    pub framed_twice: bool,
    /// The body that follows.
    pub(super) body: BodyState,
}

/// Parses the head at the start of `bytes`. `None`: there is more to come.
///
/// # Errors
/// It is not HTTP/1, or has no one length.
pub(super) fn parse_head(bytes: &[u8]) -> pingora::Result<Option<AnswerHead>> {
    let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut response = Response::new(&mut []);
    let mut parser = ParserConfig::default();
    parser.allow_spaces_after_header_name_in_responses(true);
    parser.allow_obsolete_multiline_headers_in_responses(true);
    let parsed = parser.parse_response_with_uninit_headers(&mut response, bytes, &mut fields);
    let Status::Complete(end) = parsed.or_err(ErrorType::InvalidHTTPHeader, "of an answer")? else {
        return Ok(None);
    };
    let mut head = ResponseHeader::build_no_case(
        response.code.unwrap_or_default(),
        Some(response.headers.len()),
    )?;
    head.set_version(match response.version {
        Some(1) => Version::HTTP_11,
        _ => Version::HTTP_10,
    });
    // One allocation, in which all values are.
    let raw = Bytes::copy_from_slice(&bytes[..end]);
    for field in response.headers.iter() {
        let name = HeaderName::from_bytes(field.name.as_bytes());
        let name = name.or_err(ErrorType::InvalidHTTPHeader, "the name of a field")?;
        let start = (field.value.as_ptr() as usize).wrapping_sub(bytes.as_ptr() as usize);
        let value = match field.value.len() {
            // It may point anywhere.
            0 => Bytes::new(),
            length => raw.slice(start..start + length),
        };
        head.append_header(name, header_value_from_raw(value))?;
    }
    let framed_twice = head.headers.contains_key(header::TRANSFER_ENCODING)
        && head.remove_header(&header::CONTENT_LENGTH).is_some();
    let body = BodyState::from_head(&head);
    Ok(Some(AnswerHead {
        body: body.or_else(|why| Error::e_explain(ErrorType::InvalidHTTPHeader, why))?,
        fields: head,
        bytes: end,
        framed_twice,
    }))
}

impl AnswerHead {
    /// True if the agent leaves the connection open after a body with an end of its own (RFC 9112, 9.3).
    pub(super) fn keeps_open(&self) -> bool {
        let headers = &self.fields.headers;
        let is_1_1 = self.fields.version == Version::HTTP_11;
        // The end of chunks in an answer of HTTP/1.0 is not to be trusted (RFC 9112, 6.1).
        if !is_1_1 && headers.contains_key(header::TRANSFER_ENCODING) {
            return false;
        }
        let mut keeps = is_1_1 || headers.contains_key(header::CONNECTION);
        for value in headers.get_all(header::CONNECTION) {
            let value = value.as_bytes();
            let mut options = value.split(|b| *b == b',').map(<[u8]>::trim_ascii);
            if options.any(|option| option.eq_ignore_ascii_case(b"close")) {
                return false;
            }
            // Of HTTP/1.0 nothing but this, in each of the fields, is a promise to be relied on.
            keeps &= is_1_1 || value.trim_ascii().eq_ignore_ascii_case(b"keep-alive");
        }
        keeps
    }
}
