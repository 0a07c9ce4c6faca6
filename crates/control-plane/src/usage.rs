//! `GET /usage`: what calls took, by day, workspace and org (`docs/reference/usage.md`). Operators see all; an
//! integration sees its org, or its subtree.

use std::sync::Arc;

use axum::Json as Answer;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream::try_unfold;
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE, VARY};
use http::request::Parts;
use http::{HeaderMap, HeaderValue};
use serde::Serialize;
use url::form_urlencoded;
use utoipa::ToSchema;

use super::extract::{Caller, is_name, not_permitted};
use a2a::accept::prefers_media;
use access::identity::Principal;
use access::workspace::Timestamp;
use assembly::gateway::Gateway;
use audit::usage::{Day, Side, Sums, Usage, UsageCursor, UsageLine, UsageQuery, UsageSpan};
use kernel::rejection::{Reason, Rejection};
use stores::store::Unavailable;

/// Default and greatest number of sums in a page.
const PAGE: (usize, usize) = (100, 500);

/// The most days of one request: a leap year.
const DAYS_MAX: i64 = 366;

const NAMES: &str =
    "from, to, side, by, per, org, workspace, format, limit and cursor, each at most once";

/// A request, as it was sent.
#[derive(Default)]
struct Query {
    from: Option<Day>,
    to: Option<Day>,
    side: Option<Side>,
    by_org: Option<bool>,
    per: Option<UsageSpan>,
    org: Option<String>,
    workspace: Option<String>,
    csv: Option<bool>,
    limit: Option<usize>,
    cursor: Option<String>,
}

impl Query {
    /// # Errors
    /// `invalid_params`.
    fn parse(text: &str) -> Result<Self, Rejection> {
        let mut query = Self::default();
        for (name, value) in form_urlencoded::parse(text.as_bytes()) {
            let is_again = match &*name {
                "from" => query.from.replace(parse_day("from", &value)?).is_some(),
                "to" => query.to.replace(parse_day("to", &value)?).is_some(),
                "side" => {
                    let side = require_word("side", "caller or target", Side::parse(&value))?;
                    query.side.replace(side).is_some()
                }
                "by" => {
                    let by_org = match &*value {
                        "org" => Some(true),
                        "workspace" => Some(false),
                        _ => None,
                    };
                    let by_org = require_word("by", "org or workspace", by_org)?;
                    query.by_org.replace(by_org).is_some()
                }
                "per" => {
                    let per = require_word("per", "day or total", UsageSpan::parse(&value))?;
                    query.per.replace(per).is_some()
                }
                // An empty one stands for callers and targets of no org.
                "org" if value.is_empty() => query.org.replace(String::new()).is_some(),
                "org" => query.org.replace(parse_text("org", &value)?).is_some(),
                "workspace" => {
                    let workspace = parse_text("workspace", &value)?;
                    query.workspace.replace(workspace).is_some()
                }
                "format" => {
                    let csv = match &*value {
                        "csv" => Some(true),
                        "json" => Some(false),
                        _ => None,
                    };
                    let csv = require_word("format", "json or csv", csv)?;
                    query.csv.replace(csv).is_some()
                }
                "limit" => {
                    let limit = value.parse().ok();
                    let limit = limit.filter(|limit| (1..=PAGE.1).contains(limit));
                    let numbers = format!("a whole number from 1 to {}", PAGE.1);
                    query
                        .limit
                        .replace(require_word("limit", &numbers, limit)?)
                        .is_some()
                }
                "cursor" => query.cursor.replace(value.into_owned()).is_some(),
                _ => return Err(invalid_params(format!("the query takes {NAMES}"))),
            };
            if is_again {
                return Err(invalid_params(format!("the query takes {NAMES}")));
            }
        }
        Ok(query)
    }

    /// Returns what is asked for, of one org for an integration.
    ///
    /// # Errors
    /// `invalid_params`, `not_permitted`.
    fn to_usage_query(&self, principal: &Principal) -> Result<UsageQuery, Rejection> {
        let org = match principal {
            Principal::Operator => self.org.clone(),
            Principal::Org { org, .. } => {
                if self.org.as_ref().is_some_and(|asked| asked != org) {
                    let message =
                        "an org token sees the usage of its own org only; leave `org` out";
                    return Err(not_permitted(message));
                }
                Some(org.clone())
            }
            Principal::Workspace { .. } | Principal::Canvas { .. } => {
                return Err(not_permitted("this needs an admin token or an org token"));
            }
        };
        let to = self
            .to
            .unwrap_or_else(|| Day::from_timestamp(Timestamp::now()));
        let from = self.from.unwrap_or_else(|| to.first_of_month());
        if from > to {
            return Err(invalid_params(format!(
                "`from` ({from}) is after `to` ({to}): name the earlier day in `from`"
            )));
        }
        if to.0 - from.0 >= DAYS_MAX {
            return Err(invalid_params(format!(
                "`from` to `to` is at most {DAYS_MAX} days: ask for a shorter time, or several times"
            )));
        }
        let by_org = self.by_org.unwrap_or(false);
        if by_org && self.workspace.is_some() {
            return Err(invalid_params(
                "`workspace` goes with `by=workspace`: a sum by org has all of its workspaces",
            ));
        }
        let within = principal.within().cloned();
        if by_org && within.is_some() {
            return Err(not_permitted(
                "a token of a subtree sees the usage of its workspaces; leave `by` out",
            ));
        }
        Ok(UsageQuery {
            from,
            to,
            side: self.side.unwrap_or(Side::Caller),
            by_org,
            per: self.per.unwrap_or(UsageSpan::Day),
            org,
            workspace: self.workspace.clone(),
            within,
        })
    }
}

fn parse_day(name: &str, value: &str) -> Result<Day, Rejection> {
    require_word(name, "a day of UTC, such as 2026-11-28", Day::parse(value))
}

fn parse_text(name: &str, value: &str) -> Result<String, Rejection> {
    let text = Some(value.to_owned()).filter(|value| is_name(value));
    require_word(name, "text of 1 to 256 characters", text)
}

fn require_word<T>(name: &str, words: &str, read: Option<T>) -> Result<T, Rejection> {
    read.ok_or_else(|| invalid_params(format!("`{name}` is {words}")))
}

fn invalid_params(message: impl Into<std::borrow::Cow<'static, str>>) -> Rejection {
    Rejection::new(Reason::InvalidParams, message)
}

/// One sum in JSON.
#[derive(Serialize, ToSchema)]
pub(super) struct UsageRow {
    /// null: all days that were asked for.
    day: Option<Day>,
    org: Option<String>,
    /// null: all of the org. With a colon at its end: the kind of a caller that is no workspace.
    workspace: Option<String>,
    #[serde(flatten)]
    sums: UsageSums,
}

#[derive(Serialize, ToSchema)]
struct UsageSums {
    /// Answered, or left by their callers.
    #[schema(minimum = 0)]
    calls: i64,
    /// Those of them whose method opens a stream.
    #[schema(minimum = 0)]
    streams: i64,
    /// With a reason of a 4xx status.
    #[schema(minimum = 0)]
    refused: i64,
    /// With a reason of a 5xx status.
    #[schema(minimum = 0)]
    failed: i64,
    /// Bodies of requests, but of those that were refused.
    #[schema(minimum = 0)]
    bytes_in: i64,
    /// Bodies of their answers.
    #[schema(minimum = 0)]
    bytes_out: i64,
    /// How long they took together.
    #[schema(minimum = 0)]
    seconds: f64,
    /// Those of `calls`, `refused` and `failed` that the agent failed: it answered with a 5xx status, or not at all.
    #[schema(minimum = 0)]
    agent_failed: i64,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Usage)]
pub(super) struct UsagePage {
    usage: Vec<UsageRow>,
    total: UsageSums,
    from: Day,
    to: Day,
    side: Side,
    #[schema(pattern = "^(workspace|org)$")]
    by: &'static str,
    per: UsageSpan,
    /// false: audit.enabled is off, so nothing is counted.
    recording: bool,
    next_cursor: Option<String>,
}

/// `GET /usage`.
pub(super) async fn list_usage(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    parts: Parts,
) -> Result<Response, Rejection> {
    let query = Query::parse(parts.uri.query().unwrap_or_default())?;
    let wanted = query.to_usage_query(caller.principal())?;
    let after = query.cursor.as_deref().map(|cursor| {
        let message = "`cursor` is the `next_cursor` of the page before";
        UsageCursor::parse(cursor).ok_or_else(|| invalid_params(message))
    });
    let after = after.transpose()?;
    if query.csv.unwrap_or_else(|| prefers_csv(&parts.headers)) {
        if after.is_some() || query.limit.is_some() {
            return Err(invalid_params(
                "a CSV file has all of it: leave `cursor` and `limit` out",
            ));
        }
        return stream_file(gateway.audit.usage.clone(), wanted).await;
    }
    let usage = &gateway.audit.usage;
    let limit = query.limit.unwrap_or(PAGE.0);
    let (lines, next) = usage.read_page(&wanted, after.as_ref(), limit).await?;
    let listed = UsagePage {
        usage: lines.into_iter().map(usage_row).collect(),
        total: usage_sums(usage.read_total(&wanted).await?),
        from: wanted.from,
        to: wanted.to,
        side: wanted.side,
        by: if wanted.by_org { "org" } else { "workspace" },
        per: wanted.per,
        recording: gateway.audit.is_on(),
        next_cursor: next.map(|after| after.encode()),
    };
    let vary = [(VARY, HeaderValue::from_static("Accept"))];
    Ok((vary, Answer(listed)).into_response())
}

fn prefers_csv(headers: &HeaderMap) -> bool {
    prefers_media(headers, "text/csv", "application/json")
}

fn usage_row(line: UsageLine) -> UsageRow {
    UsageRow {
        day: line.day,
        org: line.org,
        workspace: line.workspace,
        sums: usage_sums(line.sums),
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "exact up to 285,000 years, in milliseconds"
)]
fn usage_sums(sums: Sums) -> UsageSums {
    UsageSums {
        calls: sums.calls,
        streams: sums.streams,
        refused: sums.refused,
        failed: sums.failed,
        bytes_in: sums.bytes_in,
        bytes_out: sums.bytes_out,
        seconds: sums.duration_ms as f64 / 1000.0,
        agent_failed: sums.agent_failed,
    }
}

/// The first line of a file.
const HEAD: &str = "from,to,side,org,workspace,calls,streams,refused,failed,bytes_in,bytes_out,seconds,agent_failed\r\n";

/// The position in a file that is being sent.
enum FilePosition {
    Begin(Vec<UsageLine>, Option<UsageCursor>),
    Behind(UsageCursor),
    End,
}

/// Answers with all sums as CSV (RFC 4180), read and sent page by page. A store that goes away in between breaks the
/// answer off, so a file that was received whole is whole.
async fn stream_file(usage: Usage, wanted: UsageQuery) -> Result<Response, Rejection> {
    // The first page is read before the head is sent, so that most failures are reported as such.
    let (lines, next) = usage.read_page(&wanted, None, PAGE.1).await?;
    let name = format!("usage-{}-{}.csv", wanted.from, wanted.to);
    let begin = (FilePosition::Begin(lines, next), usage, wanted);
    let pieces = try_unfold(begin, |(place, usage, wanted)| async move {
        let (mut text, (lines, next)) = match place {
            FilePosition::End => return Ok::<_, Unavailable>(None),
            FilePosition::Begin(lines, next) => (HEAD.to_owned(), (lines, next)),
            FilePosition::Behind(after) => {
                let page = usage.read_page(&wanted, Some(&after), PAGE.1);
                (String::new(), page.await?)
            }
        };
        for line in &lines {
            text.push_str(&csv_record(&wanted, line));
        }
        let place = next.map_or(FilePosition::End, FilePosition::Behind);
        Ok(Some((Bytes::from(text), (place, usage, wanted))))
    });
    let mut response = Response::new(Body::from_stream(pieces));
    let fields = response.headers_mut();
    let csv = HeaderValue::from_static("text/csv; charset=utf-8; header=present");
    fields.insert(CONTENT_TYPE, csv);
    fields.insert(VARY, HeaderValue::from_static("Accept"));
    let disposition = format!("attachment; filename=\"{name}\"");
    if let Ok(disposition) = HeaderValue::from_str(&disposition) {
        fields.insert(CONTENT_DISPOSITION, disposition);
    }
    Ok(response)
}

fn csv_record(wanted: &UsageQuery, line: &UsageLine) -> String {
    let [from, to] = [wanted.from, wanted.to].map(|day| line.day.unwrap_or(day).to_string());
    let org = csv_cell(line.org.as_deref().unwrap_or_default());
    let workspace = csv_cell(line.workspace.as_deref().unwrap_or_default());
    let side = wanted.side.as_str();
    let sums = &line.sums;
    let (seconds, ms) = (sums.duration_ms / 1000, sums.duration_ms % 1000);
    format!(
        "{from},{to},{side},{org},{workspace},{},{},{},{},{},{},{seconds}.{ms:03},{}\r\n",
        sums.calls,
        sums.streams,
        sums.refused,
        sums.failed,
        sums.bytes_in,
        sums.bytes_out,
        sums.agent_failed
    )
}

/// Returns text as a field of CSV. A spreadsheet would run what begins with one of these characters as a formula.
pub(super) fn csv_cell(text: &str) -> String {
    let runs = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let text = format!("{}{text}", if runs { "'" } else { "" });
    if text.contains([',', '"', '\r', '\n', ';']) || text.trim() != text {
        return format!("\"{}\"", text.replace('"', "\"\""));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::ids::WorkspaceIncarnation;

    #[test]
    fn text_in_a_file_is_no_formula_and_no_other_field() {
        for (text, written) in [
            ("acme", "acme"),
            ("", ""),
            ("Acme, Ltd.", "\"Acme, Ltd.\""),
            ("the \"A\" team", "\"the \"\"A\"\" team\""),
            ("=1+1", "'=1+1"),
            ("-pm", "'-pm"),
            ("+1", "'+1"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("=\"a\",b", "\"'=\"\"a\"\",b\""),
            ("a\r\nb", "\"a\r\nb\""),
            (" a", "\" a\""),
        ] {
            assert_eq!(csv_cell(text), written, "{text}");
        }
    }

    #[test]
    fn a_query_is_read_or_named_as_wrong() {
        let operator = Principal::Operator;
        let read =
            |text: &str| Query::parse(text).and_then(|query| query.to_usage_query(&operator));
        let wanted = read("to=2026-11-28").unwrap();
        assert_eq!(wanted.from.to_string(), "2026-11-01");
        assert_eq!((wanted.side, wanted.by_org), (Side::Caller, false));
        assert!(read("from=2026-01-01&to=2026-12-31&by=org&per=total").is_ok());
        for (text, word) in [
            ("from=2026-11-31", "`from`"),
            ("to=now", "`to`"),
            ("from=2026-11-02&to=2026-11-01", "after `to`"),
            ("from=2025-11-01&to=2026-11-28", "366 days"),
            ("side=both", "caller or target"),
            ("by=day", "org or workspace"),
            ("per=month", "day or total"),
            ("limit=501", "500"),
            ("limit=0", "500"),
            ("workspace=", "`workspace`"),
            ("by=org&workspace=a", "by=workspace"),
            ("format=xlsx", "json or csv"),
            ("side=caller&side=caller", "at most once"),
            ("what=x", "workspace"),
        ] {
            let refused = read(text).unwrap_err();
            assert_eq!(refused.reason, Reason::InvalidParams, "{text}");
            assert!(
                refused.message.contains(word),
                "{text}: {}",
                refused.message
            );
        }
        let org = Principal::Org {
            org: "acme".to_owned(),
            within: None,
        };
        let read = |text: &str| Query::parse(text).and_then(|query| query.to_usage_query(&org));
        assert_eq!(read("").unwrap().org.as_deref(), Some("acme"));
        assert_eq!(read("org=globex").unwrap_err().reason, Reason::NotPermitted);
        let root = WorkspaceIncarnation::parse("team").unwrap();
        let subtree = Principal::Org {
            org: "acme".to_owned(),
            within: Some(root.clone()),
        };
        let read = |text: &str| Query::parse(text).and_then(|query| query.to_usage_query(&subtree));
        let wanted = read("").unwrap();
        assert_eq!(
            (wanted.org.as_deref(), wanted.within),
            (Some("acme"), Some(root))
        );
        assert_eq!(read("by=org").unwrap_err().reason, Reason::NotPermitted);
    }
}
