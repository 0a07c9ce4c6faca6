//! The bytes of files, in base64 ([`FileBytes`]).

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use memchr::memchr2;

use super::failure::Failure;
use super::pass::Pass;
use super::table::{FileBytes, Form};
use crate::json::Value;

/// Media types of files that are never text in base64 themselves.
const BINARY: [&str; 8] = [
    "image/",
    "audio/",
    "video/",
    "font/",
    "application/pdf",
    "application/zip",
    "application/gzip",
    "application/vnd.",
];

/// Writes the bytes of a file. `media_type`: the one that is declared. `is_of_proto`: the part has the form of 0.3's
/// proto, and not that of its JSON-RPC.
///
/// # Errors
/// [`Failure::FileBytes`] if the bytes could be read, or are going to be read, in either way.
pub(super) fn put_bytes(
    pass: &mut Pass<'_>,
    value: Value,
    media_type: Option<Value>,
    is_of_proto: bool,
) -> Result<(), Failure> {
    let (from, to, files) = (pass.settings.from, pass.settings.to, pass.settings.files);
    let text = value.unescaped(pass.text);
    if from == Form::V0Rest && is_of_proto {
        // What is no base64 inside was encoded once.
        let inner = decode(&text).filter(|inner| decode(inner).is_some());
        let is_binary = || {
            let declared = media_type.map(|value| value.unescaped(pass.text).to_ascii_lowercase());
            let declared = declared.unwrap_or_default();
            BINARY
                .iter()
                .any(|kind| declared.starts_with(kind.as_bytes()))
        };
        if let Some(inner) = inner
            && files != FileBytes::Once
        {
            if files == FileBytes::Unknown && !is_binary() {
                return Err(Failure::FileBytes);
            }
            put_text(pass, &standardize(&inner));
            return Ok(());
        }
    }
    match files {
        FileBytes::Twice if to == Form::V0Rest => {
            put_text(pass, STANDARD.encode(&*standardize(&text)).as_bytes());
        }
        FileBytes::Unknown if to == Form::V0Rest => return Err(Failure::FileBytes),
        _ => match standardize(&text) {
            Cow::Owned(text) if from == Form::V1 && is_plain(&text) => put_text(pass, &text),
            _ => pass.copy(value),
        },
    }
    Ok(())
}

fn put_text(pass: &mut Pass<'_>, text: &[u8]) {
    pass.out.push(b'"');
    pass.out.extend_from_slice(text);
    pass.out.push(b'"');
}

/// Returns false for text that needs an escape in JSON: it is no base64.
fn is_plain(text: &[u8]) -> bool {
    let mut bytes = text.iter();
    bytes.all(|byte| *byte >= b' ' && !matches!(byte, b'"' | b'\\'))
}

/// Returns the bytes of base64 in either alphabet. `None`: it is none, or of nothing.
fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let bytes = STANDARD.decode(&*standardize(text)).ok()?;
    (!bytes.is_empty()).then_some(bytes)
}

/// Returns base64 in its standard alphabet with padding, which is all that decoders of 0.3 take. Those of 1.0 take the
/// alphabet of URLs, and text without padding, too.
fn standardize(text: &[u8]) -> Cow<'_, [u8]> {
    if text.len().is_multiple_of(4) && memchr2(b'-', b'_', text).is_none() {
        return Cow::Borrowed(text);
    }
    let standard = text.iter().map(|byte| match byte {
        b'-' => b'+',
        b'_' => b'/',
        byte => *byte,
    });
    let mut written: Vec<u8> = standard.collect();
    written.resize(text.len().next_multiple_of(4), b'=');
    Cow::Owned(written)
}
