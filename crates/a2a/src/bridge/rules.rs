//! The rules of the tables: how each member of a typed object is written ([`write_node`]).

use super::failure::Failure;
use super::nodes::{CONFIGURATION, MESSAGE, SEND, STATUS, STATUS_UPDATE};
use super::part::write_part;
use super::pass::Pass;
use super::push::push_config;
use super::table::{Form, Node, ROWS_MAX, Row, Rule};
use super::words::{self, Role};
use crate::fields::quote_string;
use crate::json::{Kind, Value};
use crate::state::TaskState;

/// The members of one object that were written so far.
pub(super) struct WrittenMembers {
    /// The rows that were read, by position.
    pub(super) seen: u32,
    /// The rows that were written.
    pub(super) kept: u32,
    /// The bytes of each written row in the result, with its comma.
    pub(super) ranges: [(usize, usize); ROWS_MAX],
    /// The value of `kind`.
    pub(super) kind: Option<Value>,
}

/// Writes the typed object that follows.
pub(super) fn write_node(pass: &mut Pass<'_>, node: &'static Node) -> Result<(), Failure> {
    let written = write_members(pass, node)?;
    if node.label == SEND.label && written.kept & 1 << 1 == 0 {
        return Err(Failure::Params("message"));
    }
    write_missing(pass, node, &written);
    pass.close();
    Ok(())
}

/// Writes the members of the object that follows, without what is missing and the closing brace.
pub(super) fn write_members(
    pass: &mut Pass<'_>,
    node: &'static Node,
) -> Result<WrittenMembers, Failure> {
    if pass.walker.peek() != Some(b'{') {
        return Err(Failure::Params(node.label));
    }
    let mut written = WrittenMembers {
        seen: 0,
        kept: 0,
        ranges: [(0, 0); ROWS_MAX],
        kind: None,
    };
    if node.label == STATUS.label {
        pass.state = None;
    }
    pass.out.push(b'{');
    if pass.settings.to == Form::V0 && !node.kind.is_empty() {
        pass.put_word("kind", node.kind);
    }
    pass.walk_members(|pass, name| {
        if let Some(at) = node.find(pass.settings.from, name) {
            return write_row(pass, node, at, &mut written);
        }
        pass.walker.read_value()?;
        pass.left.add(node.label, "other");
        Ok(())
    })?;
    Ok(written)
}

/// Writes the member of row `at`, whose value follows.
fn write_row(
    pass: &mut Pass<'_>,
    node: &'static Node,
    at: usize,
    written: &mut WrittenMembers,
) -> Result<(), Failure> {
    let row = &node.rows[at];
    let bit = 1 << at;
    if written.seen & bit != 0 {
        if pass.settings.is_request {
            return Err(Failure::Twice(row.label()));
        }
        remove_written(pass, at, written);
    }
    written.seen |= bit;
    if matches!(row.rule, Rule::Silent) {
        let value = pass.walker.read_value()?;
        if row.names[0] == "kind" {
            written.kind = Some(value);
        }
        return Ok(());
    }
    let name = row.names[pass.settings.to as usize];
    if name.is_empty() {
        let value = pass.walker.read_value()?;
        if value.kind != Kind::Null {
            pass.left.add(node.label, row.label());
        }
        return Ok(());
    }
    let start = pass.out.len();
    pass.put_name(name);
    if write_value(pass, node, row)? {
        pass.out.push(b',');
        written.kept |= bit;
        written.ranges[at] = (start, pass.out.len());
    } else {
        pass.out.truncate(start);
    }
    Ok(())
}

/// Takes a written member out of the result again.
pub(super) fn remove_written(pass: &mut Pass<'_>, at: usize, written: &mut WrittenMembers) {
    if written.kept & 1 << at == 0 {
        return;
    }
    written.kept &= !(1 << at);
    let (start, end) = written.ranges[at];
    pass.out.drain(start..end);
    for range in &mut written.ranges {
        if range.0 > start {
            *range = (range.0 - (end - start), range.1 - (end - start));
        }
    }
}

/// Writes the value that follows. Returns false if it counts as missing.
fn write_value(
    pass: &mut Pass<'_>,
    node: &'static Node,
    row: &'static Row,
) -> Result<bool, Failure> {
    if pass.walker.peek() == Some(b'n') {
        pass.walker.read_value()?;
        return Ok(false);
    }
    match row.rule {
        Rule::Copy => {
            let value = pass.walker.read_value()?;
            pass.copy(value);
        }
        Rule::Text | Rule::Full => {
            let value = pass.walker.read_value()?;
            if value.is_void() || is_empty(value, pass.text) {
                return Ok(false);
            }
            pass.copy(value);
        }
        Rule::Node(of) => write_node(pass, of)?,
        Rule::List(of) => pass.put_list(row.label(), |pass| write_node(pass, of))?,
        Rule::History => {
            if pass.settings.without_history {
                pass.walker.read_value()?;
                return Ok(false);
            }
            pass.put_list("history", |pass| write_node(pass, &MESSAGE))?;
        }
        Rule::Parts => pass.put_list("parts", write_part)?,
        Rule::Role => {
            let said = pass.walker.read_value()?.token(pass.text);
            let role = Role::read(&said);
            if role == Role::Unspecified {
                pass.left.add(node.label, "role");
            }
            pass.put(role.as_json(pass.settings.to));
        }
        Rule::State => {
            let said = pass.walker.read_value()?.token(pass.text);
            pass.state = words::parse_state(&said);
            if !words::is_state_word(&said, pass.state) {
                pass.left.add(node.label, "state");
            }
            pass.put_string(words::state_word(pass.state, pass.settings.to));
        }
        Rule::Time => return write_time(pass, node),
        Rule::Wait => return write_wait(pass),
        Rule::HistoryLength => return write_history_length(pass),
        Rule::Push => push_config(pass)?,
        Rule::Silent => return Ok(false),
    }
    Ok(true)
}

fn write_time(pass: &mut Pass<'_>, node: &'static Node) -> Result<bool, Failure> {
    let value = pass.walker.read_value()?;
    if pass.settings.to == Form::V0 && !value.is_void() {
        pass.copy(value);
        return Ok(true);
    }
    let said = value.unescaped(pass.text);
    let Some(time) = std::str::from_utf8(&said).ok().and_then(words::to_v1_time) else {
        if !value.is_void() {
            pass.left.add(node.label, "timestamp");
        }
        return Ok(false);
    };
    pass.put_string(&time);
    Ok(true)
}

/// `blocking` is the default in 0.3's JSON-RPC and in 1.0, where `returnImmediately` is its opposite.
fn write_wait(pass: &mut Pass<'_>) -> Result<bool, Failure> {
    let value = pass.walker.read_value()?;
    let said = value.raw(pass.text) == b"true";
    let waits = said != (pass.settings.from == Form::V1);
    pass.put(match (pass.settings.to, waits) {
        (Form::V0 | Form::V1, true) => return Ok(false),
        (Form::V0 | Form::V0Rest, false) => "false",
        (Form::V1, false) | (Form::V0Rest, true) => "true",
    });
    Ok(true)
}

fn write_history_length(pass: &mut Pass<'_>) -> Result<bool, Failure> {
    let token = pass.walker.read_value()?.token(pass.text);
    let length = std::str::from_utf8(&token).ok();
    let length = length.and_then(|token| token.parse::<i64>().ok());
    match length {
        Some(0) if pass.settings.from.is_v0() && pass.settings.zero_is_all => {}
        Some(0) if pass.settings.from.is_v0() => return Ok(false),
        Some(0) if pass.settings.zero_is_all => {
            pass.no_history = true;
            return Ok(false);
        }
        Some(0..) => {}
        _ => return Err(Failure::Params("historyLength")),
    }
    pass.out.extend_from_slice(&token);
    Ok(true)
}

/// Writes the members that are missing and required.
fn write_missing(pass: &mut Pass<'_>, node: &'static Node, written: &WrittenMembers) {
    let missing = |at: usize| written.kept & 1 << at == 0;
    match pass.settings.to {
        Form::V0 => {
            for (at, row) in node.rows.iter().enumerate() {
                if let Some(json) = row.need.filter(|_| missing(at)) {
                    pass.put_json(row.names[0], json);
                }
            }
        }
        Form::V1 => {
            let takes = node.rows[0].names[1] == "tenant";
            if let Some(tenant) = pass.settings.tenant.filter(|_| takes && missing(0)) {
                pass.put_json("tenant", &quote_string(tenant));
            }
        }
        // Its default is not to wait, which its SDKs take a missing member for.
        Form::V0Rest if node.label == CONFIGURATION.label && missing(2) => {
            pass.put(r#""blocking":true,"#);
        }
        Form::V0Rest if node.label == SEND.label && missing(2) => {
            pass.put(r#""configuration":{"blocking":true},"#);
        }
        Form::V0Rest => {}
    }
    let is_update = node.label == STATUS_UPDATE.label;
    if is_update && pass.settings.to.is_v0() {
        put_final(pass);
    }
}

/// Writes `final`: true exactly in a terminal state.
pub(super) fn put_final(pass: &mut Pass<'_>) {
    let terminal = pass.state.is_some_and(TaskState::is_terminal);
    pass.put(if terminal {
        r#""final":true,"#
    } else {
        r#""final":false,"#
    });
}

/// Returns true for an array without elements.
fn is_empty(value: Value, text: &[u8]) -> bool {
    let raw = value.raw(text);
    value.kind == Kind::Array && raw[1..raw.len() - 1].iter().all(u8::is_ascii_whitespace)
}
