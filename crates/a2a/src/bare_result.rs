//! Responses to calls that the gateway translated from a route without JSON-RPC: the caller gets
//! the result without its envelope.

use std::borrow::Cow;

use super::error::RpcError;
use super::event::{data_value, join_data, split_blocks, split_lines};
use super::reply::Reply;

/// Removes the envelopes from the `data` of whole events, and leaves the rest as it came. An event
/// with an error gets the name `error`, where clients of HTTP+JSON look for it.
pub fn unwrap_events(blocks: &[u8]) -> Vec<u8> {
    let crlf = memchr::memmem::find(blocks, b"\r\n").is_some();
    let end: &[u8] = if crlf { b"\r\n" } else { b"\n" };
    let mut written = Vec::with_capacity(blocks.len());
    for block in split_blocks(blocks) {
        let mut data = join_data(block, usize::MAX);
        for line in split_lines(block).filter(|line| data_value(line).is_none()) {
            if line.is_empty() {
                put_data(&mut written, data.take(), end);
            }
            written.extend_from_slice(line);
            written.extend_from_slice(end);
        }
        put_data(&mut written, data, end);
    }
    written
}

fn put_data(written: &mut Vec<u8>, data: Option<Cow<'_, [u8]>>, end: &[u8]) {
    let Some(data) = data else { return };
    let reply = Reply::parse(&data);
    let reply = reply.as_ref().map(|reply| (reply.result(), reply.error()));
    let bare = match reply {
        Some((Some(result), _)) => result.to_owned(),
        Some((None, Some(error))) => {
            // The last name of an event counts.
            written.extend_from_slice(b"event: error");
            written.extend_from_slice(end);
            let error = RpcError::parse(error);
            error.rest_body(error.http_status(), false)
        }
        _ => String::from_utf8_lossy(&data).into_owned(),
    };
    for line in bare.split(['\n', '\r']) {
        written.extend_from_slice(b"data: ");
        written.extend_from_slice(line.as_bytes());
        written.extend_from_slice(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_lose_their_envelopes_and_nothing_else() {
        let cases: [(&str, &str); 6] = [
            (
                "data: {\"id\":1,\"result\":{\"a\":1}}\n\n",
                "data: {\"a\":1}\n\n",
            ),
            (
                "event: message\r\nid: 7\r\ndata: {\"result\":1}\r\n\r\n",
                "event: message\r\nid: 7\r\ndata: 1\r\n\r\n",
            ),
            (
                ": ping\n\ndata:{\"error\":{\"code\":1,\"message\":\"no\"}}\n\n",
                concat!(
                    ": ping\n\nevent: error\ndata: {\"error\":{\"code\":500,\"details\":[],\"message\":\"no\",",
                    "\"status\":\"INTERNAL\"},\"code\":1,\"message\":\"no\"}\n\n"
                ),
            ),
            (
                "data: {\"result\":\ndata: [1,\ndata: 2]}\n\n",
                "data: [1,\ndata: 2]\n\n",
            ),
            ("data: hello\n\n", "data: hello\n\n"),
            ("data: {\"result\":2}", "data: 2\n"),
        ];
        for (sent, expected) in cases {
            let passed = String::from_utf8(unwrap_events(sent.as_bytes())).unwrap();
            assert_eq!(passed, expected, "{sent:?}");
        }
    }
}
