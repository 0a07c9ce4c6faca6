//! Finds the task id, the task state and the context id in a response while it passes, in chunks of any size
//! ([`TaskScan`]).
//!
//! Keeps only the string that is being compared: pydantic writes artifacts and history before the id, so megabytes
//! may precede it. Lenient, since the caller gets the agent's JSON as it is: the scan stops at the first syntax
//! error.

use smallvec::SmallVec;

use super::event;
use super::json::unescape;
use super::refs::TASK_ID_BYTES_MAX;
use super::state::TaskState;

/// Most bytes of a string that are kept: an id in which each character is escaped.
const KEPT_BYTES_MAX: usize = 6 * TASK_ID_BYTES_MAX;

/// Bytes of a string that are kept without an allocation: a UUID, and every state.
const KEPT_BYTES_INLINE: usize = 48;

/// Most bytes after the id in which the state is searched. SDKs write them close together; this bounds the cost of
/// others.
const BEHIND_ID_MAX: usize = 64 * 1024;

/// The position of the result in a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// In the `result` of a response with the `id` of the call.
    Rpc,
    /// The response is the result.
    Rest,
}

/// Searches one response, or the events of one stream, for the task id, the task state and, if that is wanted, the
/// context id. The first of each counts.
#[derive(Debug)]
pub struct TaskScan {
    binding: Binding,
    state: State,
    /// The objects around the next byte, from the outside. Deeper ones are only counted.
    path: [Level; DEPTH_MAX],
    depth: usize,
    /// The number of open objects and arrays that are being skipped.
    skipped: usize,
    /// The meaning of the member with the next value.
    name: Name,
    /// The string that is being compared, as it is spelled.
    kept: SmallVec<[u8; KEPT_BYTES_INLINE]>,
    /// True if the next byte is escaped.
    escaped: bool,
    /// True once the id was found.
    named: bool,
    /// The number of bytes in the chunks after it.
    behind: usize,
    /// The state that was found and not taken yet.
    task_state: Option<TaskState>,
    /// True once the state was found.
    stated: bool,
    /// The context id that was found and not taken yet.
    context: Option<String>,
    /// True unless the context id is still to be found.
    contexted: bool,
}

/// The response, `result`, `result.task`, `result.task.status`.
const DEPTH_MAX: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    /// A response.
    Envelope,
    /// A task, a message, an update, or an object with one of them under its name.
    Result,
    /// `task`
    Task,
    /// `message`, `statusUpdate` and the like.
    Update,
    /// `status` of a task or an update.
    Status,
}

/// The meaning of a member, or of a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    /// The name of a member.
    Member,
    /// The id of the task.
    Id,
    /// The state of the task.
    State,
    /// The id of the context.
    Context,
    /// An object that may contain them.
    Object(Level),
    /// Not relevant.
    Other,
    /// In a skipped object or array.
    Skipped,
}

/// The next token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The response.
    Start,
    /// A name, or the end of the object.
    Member,
    /// `:`
    Colon,
    /// A value.
    Value,
    /// The rest of a string.
    Text(Name),
    /// The rest of a number or a word.
    Scalar,
    /// `,` or the end of the object.
    Comma,
    /// A token in a skipped object or array.
    Skipped,
    /// Nothing: all were found, the response has ended, or it cannot be parsed.
    Over,
}

impl TaskScan {
    /// Creates a scan at the start of a response.
    pub fn new(binding: Binding) -> Self {
        Self {
            binding,
            state: State::Start,
            path: [Level::Envelope; DEPTH_MAX],
            depth: 0,
            skipped: 0,
            name: Name::Other,
            kept: SmallVec::new(),
            escaped: false,
            named: false,
            behind: 0,
            task_state: None,
            stated: false,
            context: None,
            contexted: true,
        }
    }

    /// Has the context id searched, too. For a scan that has not begun.
    pub fn want_context(&mut self) {
        self.contexted = false;
    }

    /// Returns the context id, once, as soon as it is found.
    pub fn take_context(&mut self) -> Option<String> {
        self.context.take()
    }

    /// Returns the state of the task, once, as soon as it is found.
    pub fn take_state(&mut self) -> Option<TaskState> {
        self.task_state.take()
    }

    /// Returns true if the context id was found and not taken yet.
    pub fn has_context(&self) -> bool {
        self.context.is_some()
    }

    /// Returns true if nothing more can be found.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Takes the next chunk of a response. Returns the id once.
    pub fn push(&mut self, piece: &[u8]) -> Option<String> {
        if self.named {
            self.behind += piece.len();
            if self.behind > BEHIND_ID_MAX {
                self.state = State::Over;
            }
        }
        let mut found = None;
        let mut rest = piece;
        while !rest.is_empty() && self.state != State::Over {
            rest = match self.state {
                State::Text(text) => {
                    let (behind, ended) = self.read_text(text, rest);
                    if ended && let Some(id) = self.end_text(text) {
                        found = Some(id);
                    }
                    behind
                }
                State::Skipped => self.skip_bytes(rest),
                State::Scalar => {
                    let end = rest.iter().position(|byte| ends_scalar(*byte));
                    if end.is_some() {
                        self.state = State::Comma;
                    }
                    &rest[end.unwrap_or(rest.len())..]
                }
                _ => {
                    self.state = self.advance(rest[0]);
                    &rest[1..]
                }
            };
        }
        found
    }

    /// Takes the next complete events of a stream, each with a response in its `data`.
    pub fn push_events(&mut self, events: &[u8]) -> Option<String> {
        let mut found = None;
        for line in event::split_lines(events) {
            if line.is_empty() {
                *self = Self {
                    kept: std::mem::take(&mut self.kept),
                    context: self.context.take(),
                    contexted: self.contexted,
                    ..Self::new(self.binding)
                };
            } else if let Some(data) = event::data_value(line) {
                let (in_line, at_end) = (self.push(data), self.push(b"\n"));
                found = found.or(in_line).or(at_end);
            }
            // The context id may stand behind the task id of the same event.
            if found.is_some() && (self.contexted || line.is_empty()) {
                return found;
            }
        }
        found
    }

    /// Consumes one byte between strings.
    fn advance(&mut self, byte: u8) -> State {
        match (self.state, byte) {
            // A byte order mark counts as white space in front of a response.
            (State::Start, 0xef | 0xbb | 0xbf) => State::Start,
            (state, b' ' | b'\t' | b'\n' | b'\r') => state,
            (State::Start, b'{') => {
                let level = match self.binding {
                    Binding::Rpc => Level::Envelope,
                    Binding::Rest => Level::Result,
                };
                self.enter_object(level)
            }
            (State::Member, b'"') => self.start_text(Name::Member),
            (State::Member | State::Comma, b'}') => {
                self.depth -= 1;
                match self.depth {
                    0 => State::Over,
                    _ => State::Comma,
                }
            }
            (State::Colon, b':') => State::Value,
            (State::Comma, b',') => State::Member,
            (State::Value, b'"') => self.start_text(self.name),
            (State::Value, b'{') => match self.name {
                Name::Object(level) => self.enter_object(level),
                _ => self.skip_value(),
            },
            (State::Value, b'[') => self.skip_value(),
            (State::Value, byte) if !ends_scalar(byte) => State::Scalar,
            _ => State::Over,
        }
    }

    fn enter_object(&mut self, level: Level) -> State {
        // Levels follow each other in one order, so that there are never more than these.
        let Some(place) = self.path.get_mut(self.depth) else {
            return State::Over;
        };
        *place = level;
        self.depth += 1;
        State::Member
    }

    fn skip_value(&mut self) -> State {
        self.skipped = 1;
        State::Skipped
    }

    fn start_text(&mut self, text: Name) -> State {
        self.kept.clear();
        self.escaped = false;
        State::Text(text)
    }

    /// Moves to the next relevant byte in a skipped value.
    fn skip_bytes<'a>(&mut self, rest: &'a [u8]) -> &'a [u8] {
        let of_interest = |byte: &u8| matches!(byte, b'"' | b'{' | b'[' | b'}' | b']');
        let Some(at) = rest.iter().position(of_interest) else {
            return &[];
        };
        match rest[at] {
            b'"' => self.state = self.start_text(Name::Skipped),
            b'{' | b'[' => self.skipped = self.skipped.saturating_add(1),
            _ => {
                self.skipped -= 1;
                if self.skipped == 0 {
                    self.state = State::Comma;
                }
            }
        }
        &rest[at + 1..]
    }

    /// Advances in a string. Returns true if it ends here.
    fn read_text<'a>(&mut self, text: Name, mut rest: &'a [u8]) -> (&'a [u8], bool) {
        loop {
            if self.escaped {
                let Some((byte, behind)) = rest.split_first() else {
                    return (rest, false);
                };
                self.escaped = false;
                self.keep_bytes(text, std::slice::from_ref(byte));
                rest = behind;
            }
            let end = memchr::memchr2(b'"', b'\\', rest);
            self.keep_bytes(text, &rest[..end.unwrap_or(rest.len())]);
            let Some(end) = end else { return (&[], false) };
            let behind = &rest[end + 1..];
            if rest[end] == b'"' {
                return (behind, true);
            }
            self.keep_bytes(text, b"\\");
            self.escaped = true;
            rest = behind;
        }
    }

    /// Beyond the bound the string is longer than any relevant one: one extra byte marks that.
    fn keep_bytes(&mut self, text: Name, bytes: &[u8]) {
        if !matches!(text, Name::Object(_) | Name::Other | Name::Skipped) {
            let room = (KEPT_BYTES_MAX + 1).saturating_sub(self.kept.len());
            self.kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
    }

    fn end_text(&mut self, text: Name) -> Option<String> {
        self.state = match text {
            Name::Member => State::Colon,
            Name::Skipped => State::Skipped,
            _ => State::Comma,
        };
        match text {
            Name::Member => self.name = self.name_meaning(),
            Name::Id => {
                let id = self.read_id()?;
                self.named = true;
                self.end_if_complete();
                // The replacement of invalid UTF-8 may be longer.
                return Some(id).filter(|id| id.len() <= TASK_ID_BYTES_MAX);
            }
            Name::Context => {
                let id = self.read_id()?;
                self.contexted = true;
                self.context = Some(id).filter(|id| id.len() <= TASK_ID_BYTES_MAX);
                self.end_if_complete();
            }
            Name::State => {
                let word = self.kept_text()?;
                let state = std::str::from_utf8(&word).ok().and_then(TaskState::parse)?;
                self.task_state = Some(state);
                self.stated = true;
                self.end_if_complete();
            }
            Name::Object(_) | Name::Other | Name::Skipped => {}
        }
        None
    }

    /// Returns the id that was read, if it has a length that the gateway tracks.
    fn read_id(&self) -> Option<String> {
        let id = self.kept_text()?;
        let fits = (1..=TASK_ID_BYTES_MAX).contains(&id.len());
        fits.then(|| String::from_utf8_lossy(&id).into_owned())
    }

    /// Ends the scan if all are found.
    fn end_if_complete(&mut self) {
        if self.named && self.stated && self.contexted {
            self.state = State::Over;
        }
    }

    fn kept_text(&self) -> Option<std::borrow::Cow<'_, [u8]>> {
        (self.kept.len() <= KEPT_BYTES_MAX).then(|| unescape(&self.kept))
    }

    /// Returns the meaning of the name in the object around it.
    fn name_meaning(&self) -> Name {
        let (Some(name), Some(level)) = (self.kept_text(), self.depth.checked_sub(1)) else {
            return Name::Other;
        };
        match (self.path[level], &*name) {
            (Level::Envelope, b"result") => Name::Object(Level::Result),
            (Level::Result | Level::Task, b"id")
            | (Level::Result | Level::Update, b"taskId" | b"task_id")
                if !self.named =>
            {
                Name::Id
            }
            (Level::Result | Level::Task | Level::Update, b"contextId" | b"context_id")
                if !self.contexted =>
            {
                Name::Context
            }
            (Level::Result | Level::Task | Level::Update, b"status") if !self.stated => {
                Name::Object(Level::Status)
            }
            (Level::Status, b"state") => Name::State,
            (Level::Result, b"task") => Name::Object(Level::Task),
            (
                Level::Result,
                b"message" | b"msg" | b"statusUpdate" | b"artifactUpdate" | b"status_update"
                | b"artifact_update",
            ) => Name::Object(Level::Update),
            _ => Name::Other,
        }
    }
}

const fn ends_scalar(byte: u8) -> bool {
    matches!(
        byte,
        b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r' | b':' | b'{' | b'[' | b'"'
    )
}
