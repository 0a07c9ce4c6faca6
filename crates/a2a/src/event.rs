//! Server-sent events (WHATWG HTML, 9.2): finds their boundaries, so that only whole events are
//! passed on, and detects the last event of a stream ([`Splitter`]).

use std::borrow::Cow;
use std::sync::LazyLock;

use bytes::Bytes;
use memchr::memmem::Finder;

use super::json::{MARK, Object, Value, without_mark};
use super::state::TaskState;
use super::walker::{WalkError, Walker};

/// Most bytes of one event that are searched for the end of its task. Status updates are small; a
/// task with more history than this in front of its status is not recognized as the last event.
const SEARCHED_BYTES_MAX: usize = 64 * 1024;

/// The line ends of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// `\r\n`: Python agents (sse-starlette).
    CrLf,
    /// `\n`: other agents.
    #[default]
    Lf,
}

impl Framing {
    /// Returns the line end of the last line of `text`.
    pub fn from_text(text: &[u8]) -> Self {
        if text.ends_with(b"\r\n") {
            Self::CrLf
        } else {
            Self::Lf
        }
    }

    /// Returns the line end.
    pub const fn line_end(self) -> &'static str {
        match self {
            Self::CrLf => "\r\n",
            Self::Lf => "\n",
        }
    }

    /// Returns the comment that keeps a silent stream alive: `: keepalive`. It is sent between two
    /// events. After a `numbered` event it has no blank line of its own: some readers would take
    /// that for an event (`stamp`).
    pub const fn keepalive_comment(self, numbered: bool) -> &'static str {
        match (self, numbered) {
            (Self::CrLf, true) => ": keepalive\r\n",
            (Self::CrLf, false) => ": keepalive\r\n\r\n",
            (Self::Lf, true) => ": keepalive\n",
            (Self::Lf, false) => ": keepalive\n\n",
        }
    }
}

/// Builds one event with `json`, which must be one line, and with `name`, if there is one.
pub fn final_event(name: Option<&str>, json: &str, framing: Framing) -> Bytes {
    let end = framing.line_end();
    let name = name.map_or_else(String::new, |name| format!("event: {name}{end}"));
    Bytes::from(format!("{name}data: {json}{end}{end}"))
}

/// The events that a chunk completed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompleteEvents {
    /// All bytes up to the last boundary, unchanged: events, and blocks of comments.
    pub bytes: Bytes,
    /// The number of events with `data` in them.
    pub events: u32,
    /// True if one of them made the stream final ([`Standing::is_final`]).
    pub is_final: bool,
}

impl CompleteEvents {
    fn count_block(&mut self, block: &[u8], standing: &mut Standing) {
        if !has_data(block) {
            return;
        }
        self.events += 1;
        if *standing == Standing::Over {
            return;
        }
        if let Some(next) = Standing::of_event(block) {
            *standing = next;
            self.is_final |= next.is_final();
        }
    }
}

/// The state of a stream by its events so far. Those that say nothing, such as pings of the
/// agent, do not change it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// More is to come.
    #[default]
    Open,
    /// The task waits for a person: the agent may be silent for long.
    Interrupted,
    /// A message was the answer, unless a task follows it.
    Answered,
    /// An event was the last one: `final: true`, a terminal state of its task, or an error.
    Over,
}

impl Standing {
    /// Returns true behind a final event: whatever ends the stream, it is whole.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Answered | Self::Over)
    }

    /// Returns what an event says. `None`: nothing.
    fn of_event(block: &[u8]) -> Option<Self> {
        let is_error = |line: &[u8]| matches!(line, b"event: error" | b"event:error");
        // HTTP+JSON of 0.3 tells errors by this name only.
        if !block.starts_with(b"data") && split_lines(block).any(is_error) {
            return Some(Self::Over);
        }
        Self::of_data(&join_data(block, SEARCHED_BYTES_MAX)?)
    }

    /// As [`Standing::of_event`], of the event's data.
    ///
    /// It must be a JSON-RPC response or, over REST, its result, in the form of 0.x or of 1.0.
    fn of_data(data: &[u8]) -> Option<Self> {
        let mut walker = Walker::new(data);
        let is_object = walker.peek() == Some(b'{');
        is_object.then(|| {
            EndMarkers::read(&mut walker, data, Level::Event)
                .0
                .standing(data)
        })?
    }

    const fn of_state(state: TaskState) -> Self {
        if state.is_terminal() {
            Self::Over
        } else if state.is_interrupted() {
            Self::Interrupted
        } else {
            Self::Open
        }
    }
}

/// Splits a stream at event boundaries, independently of its chunks. Each byte is scanned once.
///
/// It buffers an incomplete event; the caller must bound that by [`Splitter::pending_len`].
#[derive(Debug, Default)]
pub struct Splitter {
    /// The bytes after the last boundary.
    pending: Vec<u8>,
    place: BlockPosition,
    framing: Framing,
    standing: Standing,
    /// The bytes that were read of a byte order mark at the start; all of it once the stream has begun.
    mark: usize,
}

/// The position of the next byte in a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum BlockPosition {
    /// After a boundary.
    #[default]
    BlockStart,
    /// After a boundary that was a single `\r`: a following `\n` belongs to it.
    BlockStartBehindCr,
    /// After at least one byte of a line.
    Line,
    /// After a `\r` that ended a line: a following `\n` belongs to it.
    LineStartBehindCr,
    /// After the `\n` that ended a line.
    LineStart,
    /// After a line end and a `\r`: a blank line that may still get its `\n`. In a stream with
    /// `\r\n` a comment must not come between the two.
    BlankLineCr,
}

impl Splitter {
    /// Creates a splitter at the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next chunk and returns the complete events, without a byte order mark at the start
    /// of the stream. A later mark is part of its line.
    ///
    /// Copies nothing if no event was open and the chunk ends with one.
    pub fn push(&mut self, mut chunk: Bytes) -> CompleteEvents {
        self.skip_mark(&mut chunk);
        let mut passed = CompleteEvents::default();
        let mut from = 0;
        let mut at = 0;
        // Completes the open event; from then on `pending` is sent first.
        if !self.pending.is_empty() {
            let Some(end) = self.find_boundary(&chunk, &mut at) else {
                self.pending.extend_from_slice(&chunk);
                return passed;
            };
            self.pending.extend_from_slice(&chunk[..end]);
            passed.count_block(&self.pending, &mut self.standing);
            from = end;
        }
        let open = from;
        while let Some(end) = self.find_boundary(&chunk, &mut at) {
            passed.count_block(&chunk[from..end], &mut self.standing);
            from = end;
        }
        passed.bytes = if self.pending.is_empty() {
            chunk.slice(..from)
        } else {
            self.pending.extend_from_slice(&chunk[open..from]);
            Bytes::from(std::mem::take(&mut self.pending))
        };
        self.pending.extend_from_slice(&chunk[from..]);
        passed
    }

    fn skip_mark(&mut self, chunk: &mut Bytes) {
        while let (Some(expected), Some(byte)) = (MARK.get(self.mark), chunk.first()) {
            if byte == expected {
                *chunk = chunk.slice(1..);
                self.mark += 1;
                continue;
            }
            if self.mark > 0 {
                // What looked like a mark is the start of a line.
                self.pending.extend_from_slice(&MARK[..self.mark]);
                self.place = BlockPosition::Line;
            }
            self.mark = MARK.len();
        }
    }

    /// Returns the number of buffered bytes of an incomplete event.
    pub fn pending_len(&self) -> usize {
        self.pending.len()
    }

    /// Returns true if no event is half received. The bytes passed on always end between events, so
    /// a comment may follow them at any time.
    pub fn at_boundary(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns the line end of the last line.
    pub fn framing(&self) -> Framing {
        self.framing
    }

    /// Returns what the complete events so far say of the end of the stream.
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// Returns true if the pending event is complete should the stream end now: its blank line is a
    /// single `\r`.
    pub fn ends_whole(&self) -> bool {
        self.place == BlockPosition::BlankLineCr
    }

    /// Returns the incomplete event at the end of the agent's stream, unchanged.
    pub fn take_rest(self) -> Bytes {
        match self.mark {
            read if read < MARK.len() => Bytes::from_static(&MARK[..read]),
            _ => Bytes::from(self.pending),
        }
    }

    /// Returns the offset after the next blank line in `chunk`, from `at` on; `None` moves to its
    /// end.
    fn find_boundary(&mut self, chunk: &[u8], at: &mut usize) -> Option<usize> {
        while let Some(&byte) = chunk.get(*at) {
            let place = self.place;
            if place == BlockPosition::Line && !matches!(byte, b'\r' | b'\n') {
                let rest = &chunk[*at..];
                *at += memchr::memchr2(b'\r', b'\n', rest).unwrap_or(rest.len());
                continue;
            }
            if place == BlockPosition::BlankLineCr && byte != b'\n' {
                // The blank line was a single `\r`: this byte belongs to the next block.
                self.place = BlockPosition::BlockStartBehindCr;
                return Some(*at);
            }
            *at += 1;
            if self.advance(place, byte) {
                return Some(*at);
            }
        }
        None
    }

    /// Consumes one byte. Returns true if it ends a block.
    fn advance(&mut self, place: BlockPosition, byte: u8) -> bool {
        let (next, ended) = match (place, byte) {
            (BlockPosition::BlankLineCr, _)
            | (BlockPosition::BlockStartBehindCr | BlockPosition::BlockStart, b'\n') => {
                (BlockPosition::BlockStart, true)
            }
            (
                BlockPosition::BlockStart
                | BlockPosition::BlockStartBehindCr
                | BlockPosition::LineStartBehindCr,
                b'\r',
            ) => (BlockPosition::BlockStartBehindCr, true),
            (BlockPosition::LineStartBehindCr, b'\n') => {
                self.framing = Framing::CrLf;
                (BlockPosition::LineStart, false)
            }
            (BlockPosition::LineStart, b'\n') => (BlockPosition::BlockStart, true),
            (BlockPosition::LineStart, b'\r') => (BlockPosition::BlankLineCr, false),
            (BlockPosition::Line, b'\n') => {
                self.framing = Framing::Lf;
                (BlockPosition::LineStart, false)
            }
            (BlockPosition::Line, b'\r') => (BlockPosition::LineStartBehindCr, false),
            _ => (BlockPosition::Line, false),
        };
        self.place = next;
        ended
    }
}

/// Returns the blocks of complete events, each with the blank line that ends it.
pub fn split_blocks(whole: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut splitter = Splitter::new();
    let mut from = 0;
    std::iter::from_fn(move || {
        let mut at = from;
        // A `\r` at the very end is a blank line, too: the input is complete.
        let end = splitter
            .find_boundary(whole, &mut at)
            .unwrap_or(whole.len());
        let block = &whole[from..end];
        from = end;
        (!block.is_empty()).then_some(block)
    })
}

/// Returns the line end of the blank line that ends a block.
pub(super) fn line_end(block: &[u8]) -> &'static [u8] {
    if block.ends_with(b"\r\n") {
        b"\r\n"
    } else if block.ends_with(b"\r") {
        b"\r"
    } else {
        b"\n"
    }
}

/// Returns the lines of a block, without their line ends.
pub(super) fn split_lines(block: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = block;
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

/// Returns the value of a `data` line.
pub(super) fn data_value(line: &[u8]) -> Option<&[u8]> {
    match line.strip_prefix(b"data")? {
        [] => Some(&[]),
        [b':', b' ', value @ ..] | [b':', value @ ..] => Some(value),
        _ => None,
    }
}

/// Returns the data of a block; `None` if it is no event.
pub fn event_data(block: &[u8]) -> Option<Cow<'_, [u8]>> {
    has_data(block).then(|| join_data(block, usize::MAX))?
}

/// Returns the data of the last event of complete blocks.
pub fn last_data(whole: &[u8]) -> Option<Vec<u8>> {
    let last = split_blocks(whole).filter(|block| has_data(block)).last()?;
    join_data(last, SEARCHED_BYTES_MAX).map(Cow::into_owned)
}

/// Returns the task states in complete events, at most one of each event. Most events contain none,
/// and cost only a search for the name.
pub fn states_in(whole: &[u8]) -> impl Iterator<Item = TaskState> + '_ {
    static NAME: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(br#""state""#));
    let any = NAME.find(whole).is_some();
    let telling = any.then(|| split_blocks(whole)).into_iter().flatten();
    let telling = telling.filter(|block| NAME.find(block).is_some());
    telling
        .filter_map(|block| join_data(block, SEARCHED_BYTES_MAX))
        .filter_map(|data| TaskState::from_answer(&data))
}

/// Returns true if a block is an event.
pub(super) fn has_data(block: &[u8]) -> bool {
    block.starts_with(b"data:") || split_lines(block).any(|line| data_value(line).is_some())
}

/// Returns the `data` lines of a block, joined: of each line `max` bytes, and no further line once there are more.
/// `None`: it has none, so that it is no event.
pub(super) fn join_data(block: &[u8], max: usize) -> Option<Cow<'_, [u8]>> {
    let mut lines = split_lines(block)
        .filter_map(data_value)
        .map(|line| &line[..line.len().min(max)]);
    let first = lines.next()?;
    let Some(second) = lines.next() else {
        return Some(Cow::Borrowed(first));
    };
    let mut joined = first.to_vec();
    for line in std::iter::once(second).chain(lines) {
        if joined.len() > max {
            break;
        }
        joined.push(b'\n');
        joined.extend_from_slice(line);
    }
    Some(Cow::Owned(joined))
}

/// Returns true if an event with this data ends its stream.
pub(super) fn is_final_data(data: &[u8]) -> bool {
    Standing::of_data(data).is_some_and(Standing::is_final)
}

impl TaskState {
    /// Finds the state of the task in a response, in an update of it, or in the bare result of one.
    pub fn from_answer(answer: &[u8]) -> Option<Self> {
        let answer = without_mark(answer);
        let mut walker = Walker::new(answer);
        let (markers, walked) = EndMarkers::read(&mut walker, answer, Level::Event);
        walked.and_then(|_| walker.expect_end()).ok()?;
        markers.found_state()
    }
}

/// The depth of an object in an event.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    /// The event itself: a response, or a bare result.
    Event,
    /// `result`.
    Result,
    /// 1.0: `task`, `statusUpdate`.
    Inner,
}

/// The end markers of one object.
#[derive(Default)]
struct EndMarkers {
    kind: Option<Value>,
    /// `final: true`
    last: bool,
    /// `status.state`
    state: Option<TaskState>,
    /// The standing by a member that is a result of its own, or an error.
    inner: Option<Standing>,
    /// The state in such a member.
    inner_state: Option<TaskState>,
}

impl EndMarkers {
    /// Walks over the object that follows. Members read before an error count, as the text may be
    /// cut.
    fn read(
        walker: &mut Walker<'_>,
        text: &[u8],
        level: Level,
    ) -> (Self, Result<Object, WalkError>) {
        let mut update = Self::default();
        let walked = walker.walk_object(|walker, name| {
            let is_object = walker.peek() == Some(b'{');
            let below = match (&*name.unescaped, level) {
                (b"result", Level::Event) => Level::Result,
                (b"task" | b"statusUpdate" | b"status_update", Level::Event | Level::Result) => {
                    Level::Inner
                }
                (b"error", Level::Event) if is_object => {
                    update.inner = Some(Standing::Over);
                    return walker.read_value();
                }
                (b"message" | b"msg", Level::Event | Level::Result) if is_object => {
                    update.inner = update.inner.max(Some(Standing::Answered));
                    return walker.read_value();
                }
                (b"status", _) if is_object => return update.walk_status(walker, text),
                (b"kind", _) => return Ok(*update.kind.insert(walker.read_value()?)),
                (b"final", _) => {
                    let value = walker.read_value()?;
                    update.last = value.raw(text) == b"true";
                    return Ok(value);
                }
                _ => return walker.read_value(),
            };
            if !is_object {
                return walker.read_value();
            }
            let (inner, walked) = Self::read(walker, text, below);
            update.inner = update.inner.max(inner.standing(text));
            update.inner_state = update.inner_state.or(inner.found_state());
            walked.map(|object| object.to_value())
        });
        (update, walked)
    }

    /// Returns the state of the task, of the object or of one in it.
    fn found_state(&self) -> Option<TaskState> {
        self.state.or(self.inner_state)
    }

    fn walk_status(&mut self, walker: &mut Walker<'_>, text: &[u8]) -> Result<Value, WalkError> {
        let walked = walker.walk_members(|walker, name| {
            let value = walker.read_value()?;
            if *name.unescaped == *b"state" {
                let word = value.unescaped(text);
                self.state = std::str::from_utf8(&word).ok().and_then(TaskState::parse);
            }
            Ok(value)
        });
        walked.map(|(value, _)| value)
    }

    fn standing(&self, text: &[u8]) -> Option<Standing> {
        // 1.0 and some agents of 0.x have no `kind`.
        let is = |word| self.kind.is_none_or(|kind| kind.equals(text, word));
        let is_message = self.kind.is_some_and(|kind| kind.equals(text, "message"));
        let own = if self.last && is("status-update") {
            Some(Standing::Over)
        } else if is_message {
            Some(Standing::Answered)
        } else {
            let state = self.state.filter(|_| is("status-update") || is("task"));
            state.map(Standing::of_state)
        };
        // Beside a status or a kind, `message` is some member of an agent's own.
        let has_more = self.kind.is_some() || self.state.is_some();
        let inner = self
            .inner
            .filter(|inner| *inner != Standing::Answered || !has_more);
        own.max(inner)
    }
}
