//! What of an agent's answer reaches the caller: fields, statuses, dates.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::fields::{Case, names};
use crate::harness::{
    Agent, Answer, Builder, CALL, Gateway, LAST_CHUNK, Pair, Request, SSE_HEAD, Step, chunk,
    ok_json,
};

/// The words of a row.
pub(crate) fn words<const N: usize>(row: &str) -> [&str; N] {
    let words: Vec<_> = row.split(' ').collect();
    words.try_into().unwrap_or_else(|_| panic!("{row}"))
}

/// An object with more members, or with others.
pub(crate) fn merged(mut object: Value, more: &Value) -> Value {
    let members = object.as_object_mut().unwrap();
    members.extend(more.as_object().unwrap().clone());
    object
}

impl Gateway {
    /// The answer to an operator that reads there.
    pub(crate) async fn read(&self, path: &str) -> Value {
        self.as_operator(Request::get(path)).await.json()
    }

    /// The answer to an operator that posts there.
    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.as_operator(Request::post(path, body.to_string()))
            .await
    }

    /// As [`Gateway::create`], of a workspace that has nothing but its id.
    pub(crate) async fn found(&self, id: &str) -> String {
        self.create(json!({"id": id, "name": id})).await
    }

    /// As [`Gateway::metric`] of a label, or of none.
    pub(crate) async fn counts(&self, name: &str, label: &str) -> f64 {
        self.metric(&format!("a2a_gateway_{name}"), &[label]).await
    }
}

impl Answer {
    /// Asserts that it is this refusal.
    #[track_caller]
    pub(crate) fn refuses(&self, status: u16, reason: &str) {
        let is = (self.status, self.reason());
        assert_eq!(is, (status, reason.to_owned()), "{}", self.text());
    }

    /// The same in a row of a table.
    #[track_caller]
    pub(crate) fn refuses_for(&self, row: &dyn Debug, status: u16, reason: &str) {
        let is = (self.status, self.reason());
        assert_eq!(is, (status, reason.to_owned()), "{row:?}: {}", self.text());
    }

    /// Asserts that it is refused for this reason, whatever the status.
    #[track_caller]
    pub(crate) fn gives(&self, reason: &str) {
        assert_eq!(self.reason(), reason, "{}", self.text());
    }

    /// Asserts that it is an error of JSON-RPC.
    #[track_caller]
    pub(crate) fn errs(&self, status: u16, code: i64) {
        assert_eq!(self.status, status, "{}", self.text());
        assert_eq!(self.json()["error"]["code"], code, "{}", self.text());
    }

    /// Asserts a fact of a rejection.
    #[track_caller]
    pub(crate) fn tells(&self, fact: &str, value: &str) {
        assert_eq!(self.fact(fact).as_deref(), Some(value), "{}", self.text());
    }

    /// The same in a row of a table.
    #[track_caller]
    pub(crate) fn tells_for(&self, row: &dyn Debug, fact: &str, value: &str) {
        let told = self.fact(fact);
        assert_eq!(told.as_deref(), Some(value), "{row:?}: {}", self.text());
    }

    /// Asserts the value of a field.
    #[track_caller]
    pub(crate) fn has_field(&self, name: &str, value: &str) {
        assert_eq!(self.field(name), Some(value), "{}", self.text());
    }

    /// The same in a row of a table.
    #[track_caller]
    pub(crate) fn has_field_for(&self, row: &dyn Debug, name: &str, value: &str) {
        let field = self.field(name);
        assert_eq!(field, Some(value), "{row:?}: {name}: {}", self.text());
    }

    /// Asserts that its body contains this.
    #[track_caller]
    pub(crate) fn says(&self, what: &str) {
        assert!(self.text().contains(what), "{what}: {}", self.text());
    }
}

fn field_names(answer: &Answer) -> BTreeSet<String> {
    let named = answer.fields.iter();
    named.map(|(name, _)| name.to_ascii_lowercase()).collect()
}

#[tokio::test]
async fn only_listed_fields_of_an_agents_answer_reach_the_caller() {
    let body = r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#;
    let head = format!(
        "HTTP/1.1 200 Fine\r\nContent-Type: application/a2a+json\r\nContent-Length: {}\r\n\
         Set-Cookie: a=1\r\nSet-Cookie: b=2\r\nServer: agent/1.0\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\n\
         Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nProxy-Authenticate: Basic\r\n\
         Upgrade: h2c\r\nTrailer: X-T\r\nTE: trailers\r\nX-Request-Id: forged\r\nX-A2A-Completed: forged\r\n\
         X-A2A-Refused: forged\r\nX-A2A-Stream: forged\r\nIdempotent-Replay: true\r\n\
         A2A-Version: 0.3\r\nA2A-Extensions: https://a.example/1\r\nA2A-Extensions: https://a.example/2\r\n\
         ETag: \"e\"\r\nX-Own: kept\r\nCache-Control: private\r\nRetry-After: 9\r\n\r\n",
        body.len()
    );
    let case = Case::answering(head + body).await;
    let request = case.request().field("X-Request-Id", "mine-1");
    let answer = case.gateway.call(&request).await;
    assert_eq!((answer.status, answer.text().as_str()), (200, body));
    let expected: [_; 11] = words(
        "a2a-extensions a2a-version cache-control connection content-length content-type date \
         etag retry-after x-content-type-options x-request-id",
    );
    assert_eq!(field_names(&answer), names(&expected));
    let fields = &answer.fields;
    assert_eq!(fields.len(), expected.len() + 1, "{fields:?}");
    for (name, value) in [
        ("content-type", "application/a2a+json"),
        ("x-request-id", "mine-1"),
        ("connection", "keep-alive"),
        ("cache-control", "private"),
        ("a2a-version", "0.3"),
        ("retry-after", "9"),
        ("x-content-type-options", "nosniff"),
    ] {
        assert_eq!(answer.field(name), Some(value), "{name}");
    }
    let date = answer.field("date").expect("a date");
    assert!(!date.contains("1970"), "the gateway's own: {date}");
}

#[tokio::test]
async fn a_streams_head_follows_the_same_rules() {
    for (said, cache) in [
        ("", "no-cache"),
        ("Cache-Control: no-store\r\n", "no-store"),
    ] {
        let fields = format!(
            "{said}Set-Cookie: a=1\r\nServer: agent\r\nX-Own: kept\r\nX-Accel-Buffering: yes\r\n\
             Content-Encoding: identity\r\nX-A2A-Refused: forged\r\nX-A2A-Stream: forged\r\nIdempotent-Replay: true\r\n\r\n"
        );
        let head = SSE_HEAD.strip_suffix("\r\n").unwrap().to_owned() + &fields;
        let steps = vec![
            Step::write(&head),
            Step::Write(chunk("data: {}\n\n")),
            Step::write(LAST_CHUNK),
        ];
        let agent = Agent::scripted(move |_| steps.clone()).await;
        let case = Case::with(Builder::new(Pair::Embedded), agent).await;
        let answer = case.gateway.call(&case.request()).await;
        assert_eq!(answer.field("cache-control"), Some(cache));
        assert_eq!(answer.field("x-accel-buffering"), Some("no"));
        assert_ne!(answer.field("x-a2a-stream"), Some("forged"));
        let expected: [_; 10] = words(
            "cache-control connection content-encoding content-type date transfer-encoding \
             x-a2a-stream x-accel-buffering x-content-type-options x-request-id",
        );
        assert_eq!(field_names(&answer), names(&expected));
        let fields = &answer.fields;
        assert_eq!(fields.len(), expected.len(), "none twice: {fields:?}");
    }
}

#[tokio::test]
async fn an_agents_status_is_never_changed() {
    let agent = Agent::scripted(|request| {
        let status = request.text().rsplit_once("status-").unwrap().1[..3].to_owned();
        let body = format!(r#"{{"said":{status}}}"#);
        let fields = format!("Content-Type: text/plain\r\nContent-Length: {}", body.len());
        vec![Step::write(match status.as_str() {
            "204" => "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
            "205" => "HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n".to_owned(),
            _ => format!("HTTP/1.1 {status} Said\r\n{fields}\r\n\r\n{body}"),
        })]
    });
    let case = Case::with(Builder::new(Pair::Embedded), agent.await).await;
    let answered = async |status: u16| {
        let call = CALL.replace("\"hi\"", &format!("\"status-{status}\""));
        let request = Request::post(case.target.path(), call).bearer(&case.caller.token);
        case.gateway.call(&request).await
    };
    for status in [
        200, 201, 202, 203, 400, 401, 402, 403, 404, 405, 409, 410, 413, 415, 418, 421, 422, 429,
        431, 500, 501, 502, 503, 504, 505, 511, 599,
    ] {
        let answer = answered(status).await.has(status);
        assert!(answer.whole, "{status}");
        assert_eq!(answer.text(), format!(r#"{{"said":{status}}}"#));
        assert_eq!(answer.field("content-type"), Some("text/plain"));
        assert_eq!(answer.field("transfer-encoding"), None, "{status}");
        assert!(answer.field("x-request-id").is_some());
    }
    // No client can read an answer without a body.
    for status in [204, 205] {
        let answer = answered(status).await;
        answer.refuses_for(&status, 502, "agent_protocol_error");
    }
    for status in [300, 301, 302, 303, 304, 305, 307, 308] {
        let answer = answered(status).await;
        answer.refuses_for(&status, 502, "agent_redirected");
        assert_eq!(answer.field("location"), None);
    }
    case.gateway.assert_idle().await;
}

#[tokio::test]
async fn informational_answers_are_passed_over() {
    let whole = String::from_utf8(ok_json("{}")).unwrap();
    let hints = "HTTP/1.1 103 Early Hints\r\nLink: </x>; rel=preload\r\n\r\n";
    let case = Case::answering(format!("HTTP/1.1 100 Continue\r\n\r\n{hints}{whole}")).await;
    let answer = case.gateway.call(&case.request()).await;
    assert_eq!((answer.status, answer.text().as_str()), (200, "{}"));
    assert_eq!(answer.field("link"), None);
}

#[tokio::test]
async fn every_answer_is_dated_now() {
    let case = Case::new().await;
    for request in [
        case.request(),
        Request::post(case.target.path(), CALL),
        Request::get("/nowhere"),
        Request::get("/workspaces/caller").bearer(&case.caller.token),
    ] {
        let asked = SystemTime::now();
        let answer = case.gateway.call(&request).await;
        let dates = answer.fields.iter();
        let dates = dates.filter(|(n, _)| n.eq_ignore_ascii_case("date"));
        let dates: Vec<_> = dates.collect();
        assert_eq!(dates.len(), 1, "{:?}", answer.fields);
        // It may be a second old.
        let span = asked.elapsed().unwrap().as_secs() + 2;
        let since = asked - Duration::from_secs(1);
        let mut near = (0..=span).map(|s| http_date(since + Duration::from_secs(s)));
        let date = &dates[0].1;
        assert!(near.any(|one| one == *date), "{date} is not now");
    }
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`.
fn http_date(at: SystemTime) -> String {
    // `2026-01-31T10:20:30Z`
    let iso = humantime::format_rfc3339_seconds(at).to_string();
    let number = |range: std::ops::Range<usize>| iso[range].parse::<usize>().unwrap();
    let months = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let month = number(5..7) - 1;
    let days = at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() / 86_400;
    let weekdays = "ThuFriSatSunMonTueWed";
    let three = |of: &'static str, at: usize| &of[at * 3..at * 3 + 3];
    let weekday = three(weekdays, usize::try_from(days % 7).unwrap());
    let (day, month, year, time) = (&iso[8..10], three(months, month), &iso[..4], &iso[11..19]);
    format!("{weekday}, {day} {month} {year} {time} GMT")
}
