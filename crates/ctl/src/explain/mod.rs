//! `a2a-gateway explain CALLER TARGET`: asks a running gateway whether a message would pass.

mod advice;

use std::fmt::Write as _;
use std::time::Duration;

use gateway_client::Request;
use http::Method;
use serde_json::Value;

use self::advice::{find_fact, give_advice, would_wait};
use super::access::AdminAccess;
use super::client::ask_admin;
use super::failure::Failure;
use super::table::format_json;
use super::{complete, print};

/// Timeout of the request: the gateway asks both stores and a name server, each with a timeout of
/// its own.
const WITHIN: Duration = Duration::from_secs(20);

/// `a2a-gateway explain CALLER TARGET`.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// The caller: a workspace id, `operator`, `canvas:<user>`, `org:<org>` or `subtree:<id>:<org>`
    #[arg(add = complete::by_workspace())]
    caller: String,
    /// The workspace that would get the message
    #[arg(add = complete::by_workspace())]
    target: String,
    /// The org named by the caller's canvas token
    #[arg(long)]
    org: Option<String>,
    /// A workspace listed by the caller's canvas token; may be given again
    #[arg(long = "workspace", value_name = "ID", add = complete::by_workspace())]
    workspaces: Vec<String>,
    /// Show every check as well, its facts and their source
    #[arg(long, short)]
    verbose: bool,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
    /// The admin listener; a token is not needed on loopback, unless admin.auth is "token".
    #[command(flatten)]
    gateway: AdminAccess,
}

/// Prints the explanation, and fails if the message would be refused.
pub async fn run(arguments: &Arguments) -> Result<String, Failure> {
    let client = arguments.gateway.build_client()?;
    let workspaces = arguments.workspaces.join(",");
    let query = write_query(arguments, &workspaces);
    let request = Request {
        within: WITHIN,
        ..client.request(Method::GET, "/explain", &query)
    };
    let (status, body) = ask_admin(request).await?;
    let Some(is_admitted) = body["admitted"].as_bool().filter(|_| status == 200) else {
        return Err(to_failure(status, &body));
    };
    let text = match arguments.json {
        true => format_json(&body),
        false => format_explanation(&body, arguments.verbose),
    };
    if is_admitted {
        return Ok(text);
    }
    print(&text).map_err(|error| Failure::from(error).with_status(1))?;
    Err(Failure::quiet(1))
}

fn write_query<'a>(arguments: &'a Arguments, workspaces: &'a str) -> Vec<(&'a str, &'a str)> {
    let mut query = vec![
        ("caller", arguments.caller.as_str()),
        ("target", arguments.target.as_str()),
    ];
    query.extend(arguments.org.as_deref().map(|org| ("org", org)));
    query.extend(Some(("workspaces", workspaces)).filter(|(_, ids)| !ids.is_empty()));
    query
}

fn to_failure(status: u16, body: &Value) -> Failure {
    let word = |member: &str| body[member].as_str().unwrap_or_default();
    let (reason, message) = (word("reason"), word("error"));
    match reason {
        "" | "not_found" => Failure::new(format!(
            "status {status}, and not the answer of a gateway's admin listener; --admin takes admin.listen, such as http://127.0.0.1:9090"
        )),
        "invalid_params" => Failure::usage(message),
        "unauthenticated" | "not_permitted" => Failure::new(format!(
            "{reason}: {message}; give an operator's token with --token, in A2A_GATEWAY_ADMIN_TOKEN or by `a2a-gateway login`"
        )),
        _ => Failure::new(format!("{reason}: {message}")),
    }
}

/// Returns the explanation as text: the answer, then, if they are asked for, the checks, one in a line.
fn format_explanation(body: &Value, is_verbose: bool) -> String {
    let mut text = format_answer(body);
    if !is_verbose {
        return text;
    }
    let word = |member: &str| body[member].as_str().unwrap_or_default();
    let _ = writeln!(text, "\n{} to {}\n", word("caller"), word("target"));
    for step in body["steps"].as_array().into_iter().flatten() {
        let mark = if step["ok"] == true { "ok" } else { "NO" };
        let name = step["step"].as_str().unwrap_or_default();
        let (source, age) = (step["source"].as_str().unwrap_or_default(), &step["age_ms"]);
        let _ = writeln!(
            text,
            "  {mark}  {name:<13} {:<14} {}",
            format_source(source, age.as_u64().unwrap_or(0)),
            format_facts(&step["fact"])
        );
    }
    text
}

/// Returns what would become of a message, and what to do about it.
fn format_answer(body: &Value) -> String {
    let word = |member: &str| body[member].as_str().unwrap_or_default();
    let mut text = String::new();
    let (reason, message) = (word("reason"), word("message"));
    if body["admitted"] == true {
        let inbox = body["steps"].as_array().into_iter().flatten();
        let inbox = inbox.into_iter().any(|step| step["step"] == "inbox");
        let goes = if inbox {
            "put into the inbox"
        } else {
            "sent to the agent"
        };
        let _ = writeln!(text, "A message would be {goes}.");
        text.push_str(&describe_unchecked(body, inbox));
        return text;
    }
    let status = &body["status"];
    let refused = if would_wait(body) {
        "kept waiting, and, if its agent does not come, refused with"
    } else {
        "refused with"
    };
    let _ = writeln!(
        text,
        "A message would be {refused} {status} {reason}: {message}."
    );
    let told = format_facts(&body["facts"]);
    if !told.is_empty() {
        let _ = writeln!(text, "Its caller is told besides: {told}");
    }
    if let Some(advice) = give_advice(body) {
        let _ = writeln!(text, "What to do: {advice}");
    }
    text
}

/// Returns what is known of an agent that would get the message: the checks do not contact it.
fn describe_unchecked(body: &Value, inbox: bool) -> String {
    let last = &find_fact(body, "slots")["last_failure"];
    if let (Some(number), Some(age)) = (
        last["failures_in_a_row"].as_u64(),
        last["age_seconds"].as_u64(),
    ) {
        let cause = last["cause"].as_str().unwrap_or_default();
        let calls = match number {
            1 => "The last call to it".to_owned(),
            number => format!("The last {number} calls to it"),
        };
        return format!(
            "{calls} by this gateway failed ({cause}), {age} s ago: look at the agent's log, and at the gateway's.\n"
        );
    }
    if find_fact(body, "liveness")["liveness"] == "assumed" {
        return "Whether the agent answers was not tried: that it lives is assumed.\n".to_owned();
    }
    if inbox {
        return String::new();
    }
    "The checks do not contact the agent: if calls fail, look at its log, and at the gateway's.\n"
        .to_owned()
}

/// Formats a source and its age: `memory`, `redis 3 ms`, `memory 12 s`.
fn format_source(source: &str, age_ms: u64) -> String {
    match age_ms {
        0 => source.to_owned(),
        ms @ 1..1000 => format!("{source} {ms} ms"),
        ms => format!("{source} {} s", ms / 1000),
    }
}

/// Formats the members of a fact: `status=online delivery_mode=push`. Null and empty members are
/// left out.
fn format_facts(fact: &Value) -> String {
    let members = fact.as_object().into_iter().flatten();
    let shown = members.filter_map(|(name, value)| {
        Some(match value {
            Value::Null => return None,
            Value::Array(items) if items.is_empty() => return None,
            Value::String(text) if text.contains(' ') => format!("{name}=\"{text}\""),
            Value::String(text) => format!("{name}={text}"),
            Value::Array(items) if items.iter().all(Value::is_string) => {
                let items: Vec<_> = items.iter().filter_map(Value::as_str).collect();
                format!("{name}={}", items.join(","))
            }
            other => format!("{name}={other}"),
        })
    });
    shown.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_refusal_is_told_with_what_to_do() {
        let body = json!({"caller": "a", "target": "b", "admitted": false, "reason": "workspace_offline",
            "status": 503, "message": "the workspace is paused", "facts": {"last_seen": "2026"},
            "steps": [{"step": "state", "ok": false, "source": "memory", "age_ms": 12_345,
                "fact": {"status": "paused", "stale": false, "org": null, "ids": ["x", "y"], "said": "a b"}}]});
        let text = format_explanation(&body, true);
        for part in [
            "a to b\n",
            "  NO  state         memory 12 s    ids=x,y said=\"a b\" stale=false status=paused\n",
            "refused with 503 workspace_offline: the workspace is paused.\n",
            "Its caller is told besides: last_seen=2026\n",
            "What to do: resume it (`a2a-gateway workspace resume b`).\n",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!text.contains("org"), "{text}");
        let short = format_explanation(&body, false);
        assert!(short.starts_with("A message would be refused"), "{short}");
        assert!(!short.contains("NO  state"), "{short}");
    }

    #[test]
    fn an_agent_that_was_not_asked_is_said_to_be() {
        let told = |liveness: &str| {
            let steps = json!([{"step": "liveness", "ok": true, "fact": {"liveness": liveness}}]);
            format_explanation(&json!({"admitted": true, "steps": steps}), false)
        };
        assert!(told("assumed").contains("was not tried"));
        assert!(!told("heartbeat").contains("was not tried"));
    }

    #[test]
    fn failures_since_the_last_success_are_shown() {
        let last = json!({"cause": "connect", "failures_in_a_row": 2, "age_seconds": 7});
        let steps = json!([{"step": "slots", "ok": true, "fact": {"last_failure": last}}]);
        let text = format_explanation(&json!({"admitted": true, "steps": steps}), false);
        let part = "The last 2 calls to it by this gateway failed (connect), 7 s ago";
        assert!(text.contains(part), "{text}");
    }

    #[test]
    fn the_question_is_spelled_for_the_wire() {
        let query = |typed: &[&str]| {
            let mut arguments = vec!["explain"];
            arguments.extend(typed);
            let command = <Arguments as clap::Args>::augment_args(clap::Command::new("explain"));
            let matches = command.try_get_matches_from(arguments).unwrap();
            let arguments = <Arguments as clap::FromArgMatches>::from_arg_matches(&matches);
            let arguments = arguments.unwrap();
            let workspaces = arguments.workspaces.join(",");
            let query = write_query(&arguments, &workspaces);
            let mut text = url::form_urlencoded::Serializer::new(String::new());
            text.extend_pairs(query).finish()
        };
        let words = "t --org o&p --workspace x --workspace y";
        let words: Vec<_> = ["canvas:a b"].into_iter().chain(words.split(' ')).collect();
        let expected = "caller=canvas%3Aa+b&target=t&org=o%26p&workspaces=x%2Cy";
        assert_eq!(query(&words), expected);
        assert_eq!(query(&["a", "b"]), "caller=a&target=b");
    }
}
