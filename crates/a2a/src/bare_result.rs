//! Responses to calls that the gateway translated from a route without JSON-RPC: the caller gets
//! the result without its envelope.

use super::error::RpcError;
use super::event::{data_value, split_lines};
use super::reply::Reply;

/// Removes the envelopes from the `data` of whole events, and leaves the rest as it came. An event
/// with an error gets the name `error`, where clients of HTTP+JSON look for it.
pub fn unwrap_events(blocks: &[u8]) -> Vec<u8> {
    let crlf = memchr::memmem::find(blocks, b"\r\n").is_some();
    let end: &[u8] = if crlf { b"\r\n" } else { b"\n" };
    let mut written = Vec::with_capacity(blocks.len());
    let mut data: Option<Vec<u8>> = None;
    for line in split_lines(blocks) {
        if let Some(said) = data_value(line) {
            match &mut data {
                None => data = Some(said.to_vec()),
                Some(data) => {
                    data.push(b'\n');
                    data.extend_from_slice(said);
                }
            }
            continue;
        }
        if line.is_empty() {
            put_data(&mut written, data.take(), end);
        }
        written.extend_from_slice(line);
        written.extend_from_slice(end);
    }
    put_data(&mut written, data, end);
    written
}

fn put_data(written: &mut Vec<u8>, data: Option<Vec<u8>>, end: &[u8]) {
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
