//! `GET /audit`: audit records, newest first, and `GET /audit/chain`: the calls of a run as a tree
//! (`docs/reference/admin-api.md`).

use std::sync::Arc;

use axum::Json;
use axum::extract::{RawQuery, State};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;
use url::form_urlencoded;

use access::workspace::Timestamp;
use assembly::gateway::Gateway;
use audit::{EventType, Filter, PAGE, PAGE_MAX, RecordPosition, filter_values, parse_cursor};
use kernel::health::CallResult;
use kernel::rejection::{Reason, Rejection};

/// The parameters of the query, for the error message.
const NAMES: &str = "`workspace`, `caller`, `target`, `outcome`, `event_type`, `method`, `request_id`, `txn`, \
                     `replica`, `since`, `until`, `limit` and `cursor`";

/// A parsed query.
#[derive(Debug)]
struct AuditQuery {
    filter: Filter,
    after: Option<RecordPosition>,
    limit: usize,
}

/// Serves `GET /audit`.
pub(super) async fn list_records(
    State(gateway): State<Arc<Gateway>>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Rejection> {
    let asked = AuditQuery::parse(query.as_deref().unwrap_or_default())?;
    let (filter, after) = (&asked.filter, asked.after.as_ref());
    let page = gateway.audit.stored.read_page(filter, after, asked.limit);
    let mut page = page.await?;
    for record in page["records"].as_array_mut().into_iter().flatten() {
        if record["event_type"] == EventType::A2aCall.as_str() {
            let outcome = record["outcome"].as_str().unwrap_or_default();
            let status = record["status"].as_i64().unwrap_or(0);
            record["result"] = CallResult::of_record(outcome, status).as_str().into();
        }
    }
    Ok(Json(page))
}

/// Serves `GET /audit/chain`.
pub(super) async fn show_chain(
    State(gateway): State<Arc<Gateway>>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Rejection> {
    let asked = AuditQuery::parse(query.as_deref().unwrap_or_default())?.filter;
    let alone = Filter {
        request_id: asked.request_id.clone(),
        ..Filter::default()
    };
    let id = asked.request_id.as_deref().filter(|_| asked == alone);
    let id = id.ok_or_else(|| invalid_query("the query takes `request_id`".to_owned()))?;
    let tree = gateway.audit.stored.read_chain_tree(id).await?;
    let none = || Rejection::new(Reason::NotFound, "no call of this request is recorded");
    tree.map(Json).ok_or_else(none)
}

impl AuditQuery {
    /// Parses the query.
    ///
    /// # Errors
    /// `invalid_params`, with the name of the parameter.
    fn parse(query: &str) -> Result<Self, Rejection> {
        let mut asked = Self {
            filter: Filter::default(),
            after: None,
            limit: PAGE,
        };
        let mut seen: Vec<String> = Vec::new();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            if seen.contains(&name.clone().into_owned()) {
                return Err(invalid_query(format!("`{name}` stands twice in the query")));
            }
            asked.set_parameter(&name, value.into_owned())?;
            seen.push(name.into_owned());
        }
        Ok(asked)
    }

    fn set_parameter(&mut self, name: &str, value: String) -> Result<(), Rejection> {
        filter_values::parse_text(&value)
            .map_err(|why| invalid_query(format!("`{name}` is {why}")))?;
        let filter = &mut self.filter;
        match name {
            "workspace" => filter.workspace = Some(value),
            "caller" => filter.caller = Some(filter_values::parse_caller(&value)),
            "target" => filter.target = Some(value),
            "outcome" => {
                filter.outcome = Some(require_valid(name, filter_values::parse_outcome(&value))?)
            }
            "method" => {
                filter.method = Some(require_valid(name, filter_values::parse_method(&value))?)
            }
            "request_id" => filter.request_id = Some(value),
            "txn" => filter.txn = Some(value),
            "replica" => filter.replica = Some(value),
            "event_type" => {
                filter.event_type = Some(require_valid(
                    name,
                    filter_values::parse_event_type(&value),
                )?)
            }
            "since" => filter.since = Some(parse_time(name, &value)?),
            "until" => filter.until = Some(parse_time(name, &value)?),
            "limit" => {
                let limit = value.parse().ok().filter(|n| (1..=PAGE_MAX).contains(n));
                self.limit = limit.ok_or_else(|| {
                    invalid_query("`limit` is a whole number from 1 to 500".to_owned())
                })?;
            }
            "cursor" => {
                let cursor = parse_cursor(&value).filter(|_| is_plain(&value));
                self.after = Some(cursor.ok_or_else(|| {
                    invalid_query("`cursor` is the `next_cursor` of an earlier page".to_owned())
                })?);
            }
            _ => return Err(invalid_query(format!("the query takes {NAMES}"))),
        }
        Ok(())
    }
}

/// True if a cursor contains no escapes. Cursors of the gateway have none, and databases reject
/// some escaped characters.
fn is_plain(cursor: &str) -> bool {
    let inside = URL_SAFE_NO_PAD.decode(cursor).unwrap_or_default();
    !inside.contains(&b'\\')
}

/// Returns a value of a closed set, or the rejection that lists the set.
fn require_valid(name: &str, read: Result<String, String>) -> Result<String, Rejection> {
    read.map_err(|words| invalid_query(format!("`{name}` is {words}")))
}

fn parse_time(name: &str, value: &str) -> Result<Timestamp, Rejection> {
    Timestamp::parse(value).ok_or_else(|| {
        let example = "such as 2026-11-21T10:00:00Z (a + in an offset is written %2B)";
        invalid_query(format!("`{name}` is a time by RFC 3339, {example}"))
    })
}

fn invalid_query(message: String) -> Rejection {
    Rejection::new(Reason::InvalidParams, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_or_named_as_wrong() {
        let asked = AuditQuery::parse("workspace=a&outcome=not_permitted&limit=5").unwrap();
        assert_eq!(asked.filter.workspace.as_deref(), Some("a"));
        assert_eq!(asked.limit, 5);
        let asked =
            AuditQuery::parse("caller=operator&outcome=NOT_PERMITTED&method=message/send").unwrap();
        let Filter {
            caller,
            outcome,
            method,
            ..
        } = asked.filter;
        assert_eq!(
            [caller, outcome, method].map(Option::unwrap),
            ["operator:", "not_permitted", "send_message"]
        );
        let cursor = URL_SAFE_NO_PAD.encode(r#"[1,"a\u0000",2]"#);
        assert!(parse_cursor::<RecordPosition>(&cursor).is_some());
        for (query, word) in [
            (&*format!("cursor={cursor}"), "`cursor`"),
            ("outcome=bogus", "not_permitted"),
            ("method=message/sent", "send_message"),
            ("limit=0", "`limit`"),
            ("limit=501", "`limit`"),
            ("since=yesterday", "RFC 3339"),
            ("cursor=x", "`cursor`"),
            ("event_type=x", "A2A_CALL"),
            ("who=x", "`workspace`"),
            ("caller=", "`caller`"),
            ("caller=a%00", "control"),
            ("caller=a&caller=b", "twice"),
        ] {
            let refused = AuditQuery::parse(query).unwrap_err();
            assert_eq!(refused.reason, Reason::InvalidParams, "{query}");
            assert!(
                refused.message.contains(word),
                "{query}: {}",
                refused.message
            );
        }
    }
}
