//! A parsed JSON-RPC response ([`Reply`]), for responses in which the gateway changes the result.

use std::borrow::Cow;

use memchr::memmem;

use super::error::RpcError;
use super::event::{data_value, join_data, split_blocks, split_lines};
use super::fields::Fields;
use super::json::without_mark;

/// Errors with which an agent says that it does not know a method in this generation, so that nothing has run: "Method
/// not found" of JSON-RPC, `VersionNotSupportedError` of A2A.
const NOT_RUN: [i64; 2] = [-32_601, -32_009];

/// Returns true if an answer of JSON-RPC shows that the agent did not run the call. Without `has_version` the call did
/// not say its version, and `VersionNotSupportedError` may be about that.
pub fn shows_not_run(body: &[u8], has_version: bool) -> bool {
    // Almost all answers have no such number.
    if memmem::find(body, b"-32").is_none() {
        return false;
    }
    let codes = &NOT_RUN[..if has_version { 2 } else { 1 }];
    let is_one = |reply: Reply<'_>| reply.result().is_none() && codes.contains(&reply.error_code());
    Reply::parse(body).is_some_and(is_one)
}

/// A parsed response.
pub struct Reply<'a>(Fields<'a>);

impl<'a> Reply<'a> {
    /// Parses a response, without a byte order mark. `None`: it is not a JSON object, or has a duplicate member.
    pub fn parse(body: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(without_mark(body)).ok()?;
        Fields::parse(text).map(Self)
    }

    /// Returns the result as it is spelled, if there is one and no error.
    pub fn result(&self) -> Option<&str> {
        self.any_result().filter(|_| self.error().is_none())
    }

    /// Returns the result even if there is an error.
    pub fn any_result(&self) -> Option<&str> {
        self.0.get_given("result")
    }

    /// Returns the error as it is spelled.
    pub fn error(&self) -> Option<&str> {
        self.0.get_given("error")
    }

    /// Returns the code of the error; 0 if there is none.
    pub fn error_code(&self) -> i64 {
        let error = self.error().and_then(Fields::parse);
        let code = error.as_ref().and_then(|error| error.get("code"));
        code.and_then(|code| code.parse().ok()).unwrap_or(0)
    }

    /// Returns the response with another result.
    pub fn with_result(mut self, result: String) -> String {
        self.0.set("result", result);
        self.0.to_json()
    }
}

/// Removes the envelopes from the `data` of whole events, and leaves the rest as it came. An event
/// with an error gets the name `error`, where clients of HTTP+JSON look for it.
pub fn unwrap_events(blocks: &[u8]) -> Vec<u8> {
    let crlf = memmem::find(blocks, b"\r\n").is_some();
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
    fn an_answer_is_a_result_or_an_error() {
        let cases = [
            (
                r#"{"jsonrpc":"2.0","id":1,"result":{"a":1.0}}"#,
                Some(r#"{"a":1.0}"#),
                None,
                0,
            ),
            (r#"{"result":"x","error":null}"#, Some(r#""x""#), None, 0),
            (
                r#"{"error":{"code":-32001,"message":"x"}}"#,
                None,
                Some(r#"{"code":-32001,"message":"x"}"#),
                -32001,
            ),
            (r#"{"error":"no","result":{}}"#, None, Some(r#""no""#), 0),
            (r#"{"result":null}"#, None, None, 0),
        ];
        for (text, result, error, code) in cases {
            let reply = Reply::parse(text.as_bytes()).unwrap();
            let read = (reply.result(), reply.error(), reply.error_code());
            assert_eq!(read, (result, error, code), "{text}");
        }
        let marked = "\u{feff}{\"result\":1}";
        let reply = Reply::parse(marked.as_bytes()).unwrap();
        assert_eq!(reply.with_result("2".into()), r#"{"result":2}"#);
        for none in ["[]", "", r#"{"result":1,"result":2}"#, "{\"result\":1} x"] {
            assert!(Reply::parse(none.as_bytes()).is_none(), "{none}");
        }
    }
}

#[cfg(test)]
mod bare_result_tests {
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
