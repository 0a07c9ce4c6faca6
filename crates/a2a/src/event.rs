//! Server-sent events (WHATWG HTML, 9.2): where one ends, so that only whole ones are passed on,
//! and whether it was the last one.

use std::borrow::Cow;
use std::sync::LazyLock;

use bytes::Bytes;
use memchr::memmem::Finder;

use super::json::{Kind, Object, Value};
use super::state::TaskState;
use super::walker::{Broken, Walker};

/// How much of one event is searched for the end of its task. Status updates are small; a task
/// with more history than this in front of its status is not recognized as the last event.
const SEARCHED_BYTES_MAX: usize = 64 * 1024;

/// How lines end in a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// `\r\n`: Python agents (sse-starlette).
    CrLf,
    /// `\n`: the others.
    #[default]
    Lf,
}

impl Framing {
    /// How the last line of `text` ends.
    pub fn of(text: &[u8]) -> Self {
        if text.ends_with(b"\r\n") {
            Self::CrLf
        } else {
            Self::Lf
        }
    }

    /// The end of a line.
    pub const fn line_end(self) -> &'static str {
        match self {
            Self::CrLf => "\r\n",
            Self::Lf => "\n",
        }
    }

    /// The comment that keeps a silent stream alive: `: keepalive`. It stands between two events. Behind a
    /// `numbered` one it has no blank line of its own: some readers would take that for an event (`stamp`).
    pub const fn keepalive(self, numbered: bool) -> &'static str {
        match (self, numbered) {
            (Self::CrLf, true) => ": keepalive\r\n",
            (Self::CrLf, false) => ": keepalive\r\n\r\n",
            (Self::Lf, true) => ": keepalive\n",
            (Self::Lf, false) => ": keepalive\n\n",
        }
    }
}

/// One event that carries `json`, which is one line as JSON without line breaks is; of this name, if it has one.
pub fn final_event(name: Option<&str>, json: &str, framing: Framing) -> Bytes {
    let end = framing.line_end();
    let name = name.map(|name| format!("event: {name}{end}"));
    let name = name.unwrap_or_default();
    Bytes::from(format!("{name}data: {json}{end}{end}"))
}

/// What a chunk completed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Everything up to the last boundary, as it came: events, and blocks of comments.
    pub bytes: Bytes,
    /// How many events with `data` are in there.
    pub events: u32,
    /// An event of the stream so far was final: `final: true` or a terminal state of its task. What comes behind it,
    /// such as pings of the agent, changes nothing.
    pub final_seen: bool,
}

/// Cuts a stream between its events, whatever its chunks. Every byte is looked at once.
///
/// It holds what came of an event that is not whole yet; whoever pushes bounds that by
/// [`Splitter::pending_len`].
#[derive(Debug, Default)]
pub struct Splitter {
    /// What came behind the last boundary.
    pending: Vec<u8>,
    place: Place,
    framing: Framing,
    final_seen: bool,
}

/// Where in a block the next byte stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Behind a boundary.
    #[default]
    BlockStart,
    /// Behind a boundary that was a single `\r`: a `\n` still belongs to it.
    BlockStartBehindCr,
    /// Behind at least one byte of a line.
    Line,
    /// Behind a `\r` that ended a line: a `\n` still belongs to it.
    LineStartBehindCr,
    /// Behind the `\n` that ended a line.
    LineStart,
    /// Behind a line end and a `\r`: a blank line, whose `\n` is awaited, since in a stream with
    /// `\r\n` a comment must not come between the two.
    BlankLineCr,
}

impl Splitter {
    /// At the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next chunk and gives back what is whole.
    ///
    /// Nothing is copied when no event was open and the chunk ends with one.
    pub fn push(&mut self, chunk: Bytes) -> Passed {
        let mut events = 0;
        let mut from = 0;
        let mut at = 0;
        // Completes the event that was open; from then on `pending` is what goes out first.
        if !self.pending.is_empty() {
            let Some(end) = self.boundary(&chunk, &mut at) else {
                self.pending.extend_from_slice(&chunk);
                return self.passed(Bytes::new(), 0);
            };
            self.pending.extend_from_slice(&chunk[..end]);
            if has_data(&self.pending) {
                events += 1;
                self.final_seen = self.final_seen || is_final(&self.pending);
            }
            from = end;
        }
        let open = from;
        while let Some(end) = self.boundary(&chunk, &mut at) {
            if has_data(&chunk[from..end]) {
                events += 1;
                self.final_seen = self.final_seen || is_final(&chunk[from..end]);
            }
            from = end;
        }
        let bytes = if self.pending.is_empty() {
            chunk.slice(..from)
        } else {
            self.pending.extend_from_slice(&chunk[open..from]);
            Bytes::from(std::mem::take(&mut self.pending))
        };
        self.pending.extend_from_slice(&chunk[from..]);
        self.passed(bytes, events)
    }

    /// How many bytes of an event that is not whole are held.
    pub fn pending_len(&self) -> usize {
        self.pending.len()
    }

    /// Whether no event is half received. What was passed on ends between events in any case, so
    /// a comment may follow it at any time.
    pub fn at_boundary(&self) -> bool {
        self.pending.is_empty()
    }

    /// How the last line ended.
    pub fn framing(&self) -> Framing {
        self.framing
    }

    /// Whether what is pending is whole after all, if nothing comes any more: its blank line is a single `\r`.
    pub fn ends_whole(&self) -> bool {
        self.place == Place::BlankLineCr
    }

    /// What the agent left unfinished when it ended the stream itself: passed on as it came.
    pub fn take_rest(self) -> Bytes {
        Bytes::from(self.pending)
    }

    fn passed(&self, bytes: Bytes, events: u32) -> Passed {
        Passed {
            bytes,
            events,
            final_seen: self.final_seen,
        }
    }

    /// The offset behind the next blank line in `chunk`, from `at` on; `None` moves to its end.
    fn boundary(&mut self, chunk: &[u8], at: &mut usize) -> Option<usize> {
        while let Some(&byte) = chunk.get(*at) {
            let place = self.place;
            if place == Place::Line && !matches!(byte, b'\r' | b'\n') {
                let rest = &chunk[*at..];
                *at += memchr::memchr2(b'\r', b'\n', rest).unwrap_or(rest.len());
                continue;
            }
            if place == Place::BlankLineCr && byte != b'\n' {
                // The blank line was a single `\r`: this byte belongs to the next block.
                self.place = Place::BlockStartBehindCr;
                return Some(*at);
            }
            *at += 1;
            if self.step(place, byte) {
                return Some(*at);
            }
        }
        None
    }

    /// Moves over one byte and says whether a block ends with it.
    fn step(&mut self, place: Place, byte: u8) -> bool {
        let (next, ended) = match (place, byte) {
            (Place::BlankLineCr, _) | (Place::BlockStartBehindCr | Place::BlockStart, b'\n') => {
                (Place::BlockStart, true)
            }
            (Place::BlockStart | Place::BlockStartBehindCr | Place::LineStartBehindCr, b'\r') => {
                (Place::BlockStartBehindCr, true)
            }
            (Place::LineStartBehindCr, b'\n') => {
                self.framing = Framing::CrLf;
                (Place::LineStart, false)
            }
            (Place::LineStart, b'\n') => (Place::BlockStart, true),
            (Place::LineStart, b'\r') => (Place::BlankLineCr, false),
            (Place::Line, b'\n') => {
                self.framing = Framing::Lf;
                (Place::LineStart, false)
            }
            (Place::Line, b'\r') => (Place::LineStartBehindCr, false),
            _ => (Place::Line, false),
        };
        self.place = next;
        ended
    }
}

/// The blocks of whole ones, each with the blank line that ends it.
pub(super) fn blocks(whole: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut splitter = Splitter::new();
    let mut from = 0;
    std::iter::from_fn(move || {
        let mut at = from;
        // A `\r` at the very end is a blank line, too: what passed is whole.
        let end = splitter.boundary(whole, &mut at).unwrap_or(whole.len());
        let block = &whole[from..end];
        from = end;
        (!block.is_empty()).then_some(block)
    })
}

/// The lines of a block, without their ends. A byte order mark, which only a stream's first line
/// may have, is no part of it.
pub(super) fn lines(block: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = block.strip_prefix(b"\xef\xbb\xbf").unwrap_or(block);
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = memchr::memchr2(b'\r', b'\n', rest).unwrap_or(rest.len());
        let (line, behind) = rest.split_at(end);
        rest = behind
            .strip_prefix(b"\r\n")
            .unwrap_or_else(|| behind.get(1..).unwrap_or_default());
        Some(line)
    })
}

/// The value of a `data` line.
pub(super) fn data_of(line: &[u8]) -> Option<&[u8]> {
    match line.strip_prefix(b"data")? {
        [] => Some(&[]),
        [b':', b' ', value @ ..] | [b':', value @ ..] => Some(value),
        _ => None,
    }
}

/// What the last event of whole blocks says.
pub fn last_data(whole: &[u8]) -> Option<Vec<u8>> {
    let last = blocks(whole).filter(|block| has_data(block)).last()?;
    Some(data(last).into_owned())
}

/// The states of tasks that whole events tell: one of each event that tells one. The usual event tells none, and
/// costs a search for the name.
pub fn states_told(whole: &[u8]) -> impl Iterator<Item = TaskState> + '_ {
    static NAME: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(br#""state""#));
    let any = NAME.find(whole).is_some();
    let telling = any.then(|| blocks(whole)).into_iter().flatten();
    let telling = telling.filter(|block| NAME.find(block).is_some());
    telling.filter_map(|block| TaskState::of(&data(block)))
}

fn has_data(block: &[u8]) -> bool {
    block.starts_with(b"data:") || lines(block).any(|line| data_of(line).is_some())
}

/// What an event says, as far as it is searched: its `data` lines, joined.
fn data(block: &[u8]) -> Cow<'_, [u8]> {
    let mut data = lines(block).filter_map(data_of);
    let bounded = |line: &[u8]| line.len().min(SEARCHED_BYTES_MAX);
    let first = data.next().unwrap_or_default();
    let first = &first[..bounded(first)];
    let Some(second) = data.next() else {
        return Cow::Borrowed(first);
    };
    let mut joined = first.to_vec();
    for line in std::iter::once(second).chain(data) {
        if joined.len() > SEARCHED_BYTES_MAX {
            break;
        }
        joined.push(b'\n');
        joined.extend_from_slice(&line[..bounded(line)]);
    }
    Cow::Owned(joined)
}

/// Whether an event ends its stream.
///
/// It carries a JSON-RPC response or, over REST, its result: an update with `final: true`, or the
/// status of a task that is in a terminal state, in the shape of 0.x or of 1.0.
fn is_final(block: &[u8]) -> bool {
    let data = data(block);
    let mut walker = Walker::new(&data);
    walker.peek() == Some(b'{') && Update::walk(&mut walker, &data, Level::Event).0
}

/// How deep an object is in an event.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    /// The event itself: a response, or a bare result.
    Event,
    /// `result`.
    Result,
    /// 1.0: `task`, `statusUpdate`.
    Inner,
}

/// What one object says about the end.
#[derive(Default)]
struct Update {
    kind: Option<Value>,
    /// `final: true`
    last: bool,
    /// `status.state` is terminal.
    terminal: bool,
    /// An object in it says so.
    inner: bool,
}

impl Update {
    /// Walks over the object that follows; also what was met before an error counts, as the text
    /// may be cut.
    fn walk(walker: &mut Walker<'_>, text: &[u8], level: Level) -> (bool, Result<Object, Broken>) {
        let mut update = Self::default();
        let walked = walker.object(|walker, name| {
            let is_object = walker.peek() == Some(b'{');
            let below = match (&*name.said, level) {
                (b"result", Level::Event) => Level::Result,
                (b"task" | b"statusUpdate", Level::Event | Level::Result) => Level::Inner,
                (b"status", _) if is_object => return update.walk_status(walker, text),
                (b"kind", _) => return Ok(*update.kind.insert(walker.value()?)),
                (b"final", _) => {
                    let value = walker.value()?;
                    update.last = value.raw(text) == b"true";
                    return Ok(value);
                }
                _ => return walker.value(),
            };
            if !is_object {
                return walker.value();
            }
            let (inner, walked) = Self::walk(walker, text, below);
            update.inner |= inner;
            walked.map(|object| object.value())
        });
        (update.is_final(text), walked)
    }

    fn walk_status(&mut self, walker: &mut Walker<'_>, text: &[u8]) -> Result<Value, Broken> {
        let object = walker.object(|walker, name| {
            let value = walker.value()?;
            if *name.said == *b"state" {
                self.terminal = value.kind == Kind::String && is_terminal(&value.said(text));
            }
            Ok(value)
        })?;
        Ok(object.value())
    }

    fn is_final(&self, text: &[u8]) -> bool {
        // 1.0 and some agents of 0.x have no `kind`.
        let is = |word| self.kind.is_none_or(|kind| kind.says(text, word));
        self.inner
            || self.last && is("status-update")
            || self.terminal && (is("status-update") || is("task"))
    }
}

/// Terminal task states: 0.x, then 1.0, whose 0.3 drafts wrote `CANCELLED` (a2a.md, 1.2).
fn is_terminal(state: &[u8]) -> bool {
    matches!(
        state,
        b"completed"
            | b"canceled"
            | b"failed"
            | b"rejected"
            | b"TASK_STATE_COMPLETED"
            | b"TASK_STATE_CANCELED"
            | b"TASK_STATE_CANCELLED"
            | b"TASK_STATE_FAILED"
            | b"TASK_STATE_REJECTED"
    )
}
