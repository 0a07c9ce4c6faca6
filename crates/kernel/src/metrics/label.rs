//! The values of labels: closed sets, one enum each.

use std::marker::PhantomData;
use std::ops::Index;

use crate::closed_set::{ClosedSet, words};
use crate::rejection::Reason;
use a2a::state::TaskState;

/// The children of a family, one for each value of a label. Resolved once.
pub struct LabelMap<L, M> {
    children: Box<[M]>,
    label: PhantomData<L>,
}

impl<L: ClosedSet, M> LabelMap<L, M> {
    /// Resolves the children: `child` returns that of a value.
    pub(super) fn new(child: impl FnMut(&'static str) -> M) -> Self {
        Self {
            children: L::WORDS.iter().copied().map(child).collect(),
            label: PhantomData,
        }
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, M> {
        self.children.iter()
    }
}

impl<L: ClosedSet, M> Index<L> for LabelMap<L, M> {
    type Output = M;

    fn index(&self, label: L) -> &M {
        &self.children[label.index()]
    }
}

words! {
    /// The result of a call. The label `result`; [`crate::health`] decides it.
    CallResult {
        /// The agent answered; an A2A error, or any 4xx, is an answer.
        Answered => "answered",
        /// No answer, a 5xx, or a broken stream.
        AgentFailed => "agent_failed",
        /// A store, overload, a guard that cannot be asked, a shutdown, a bug.
        GatewayFailed => "gateway_failed",
        /// Policy, a stop, a guard, a cap or a rate.
        Denied => "denied",
        /// A mistake of the caller.
        Rejected => "rejected",
        /// The caller left.
        Left => "left",
    }
}

/// The outcome of an exchange. The label `outcome`, also used in audit records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The complete response of the agent was forwarded.
    Answered,
    /// The caller disconnected before the end.
    CallerLeft,
    /// The gateway rejected the request, or cut the response, for this reason.
    Rejected(Reason),
}

impl Outcome {
    /// The number of outcomes.
    pub(super) const COUNT: usize = Reason::ALL.len() + 2;

    /// Returns the value of the label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::CallerLeft => "caller_left",
            Self::Rejected(reason) => reason.as_str(),
        }
    }

    pub(super) const fn index(self) -> usize {
        match self {
            Self::Answered => 0,
            Self::CallerLeft => 1,
            Self::Rejected(reason) => 2 + reason as usize,
        }
    }
}

words! {
    /// The cache of a look-up. The label `cache`.
    Cache {
        /// Credential to principal.
        Credentials => "credentials",
        /// Workspace to its ancestors.
        Lineages => "lineages",
        /// Workspace to its state and address.
        Directory => "directory",
        /// Caller and target to the grant between them.
        Grants => "grants",
        /// Workspace to its agent's card.
        Cards => "cards",
    }

    /// The way in which a lapse was noticed. The label `noticed`.
    LapseSource {
        /// The shared store reported that a lease expired.
        Expiry => "expiry",
        /// A message was addressed to the workspace.
        Request => "request",
        /// The sweep over all workspaces each second.
        Sweep => "sweep",
    }

    /// The outcome of sharing rate usage between replicas. The label `outcome`.
    RateShare {
        /// Sent to the other replicas.
        Told => "told",
        /// Received from another replica.
        Heard => "heard",
        /// Not sent.
        Lost => "lost",
    }

    /// The outcome of a fetch of an issuer's keys. The label `outcome`.
    JwksFetch {
        /// The keys were fetched.
        Fetched => "fetched",
        /// The connection failed (DNS, TCP or TLS), or broke.
        Unreachable => "unreachable",
        /// No complete response in time.
        TimedOut => "timed_out",
        /// The response was a redirect.
        Redirected => "redirected",
        /// The response had a status other than 200.
        Status => "status",
        /// The response was too large.
        TooLarge => "too_large",
        /// The response was not a JWKS.
        Invalid => "invalid",
    }

    /// The interface of an event reader.
    EventReader {
        /// `GET /ws`.
        Socket => "socket",
        /// `GET /events`.
        Stream => "stream",
        /// `GET /console/feed` of the admin listener.
        Console => "console",
    }

    /// The shape of a response.
    Shape {
        /// One body.
        Unary => "unary",
        /// `text/event-stream`.
        Stream => "stream",
    }

    /// The reason why a caller's connection was rejected or closed. The label `why`.
    ConnectionCut {
        /// `server.max_connections` is reached.
        Full => "full",
        /// `server.connections_per_address` is reached.
        Address => "address",
        /// The TLS handshake failed or timed out.
        Handshake => "handshake",
        /// The head of a request timed out.
        SlowHead => "slow_head",
        /// The request was not valid HTTP, or not of an accepted version.
        BadHead => "bad_head",
        /// The client reset too many streams.
        Resets => "resets",
        /// The admin listener has its maximum number of connections.
        AdminFull => "admin_full",
        /// The client of the admin listener stopped reading.
        AdminSlow => "admin_slow",
    }

    /// The kind of an event. The label `kind`.
    EventKind {
        /// Kept for replay.
        Kept => "kept",
        /// Only passing.
        Passing => "passing",
    }
}

impl EventKind {
    /// Returns the kind of an event that passes, or does not.
    pub const fn from_passing(passing: bool) -> Self {
        if passing { Self::Passing } else { Self::Kept }
    }
}

words! {
    /// The place in which a lost record was queued. The label `where`.
    AuditLoss {
        /// The queue in memory, before the record was chained.
        Queue => "queue",
        /// The spool on disk (`audit.spool_bytes`).
        Spool => "spool",
    }

    /// The way in which an agent failed. The label `cause`.
    AgentFailure {
        /// No connection: refused, or no TLS.
        Connect => "connect",
        /// No connection, head or piece in time.
        Timeout => "timeout",
        /// Broken HTTP.
        Protocol => "protocol",
        /// A stream without its end.
        Stream => "stream",
        /// The status 502, 503 or 504.
        Status => "status",
    }

    /// The way in which an instance was chosen for a call. The label `by`.
    InstanceChoice {
        /// The call's task is bound to it.
        Task => "task",
        /// The call's context is bound to it.
        Context => "context",
        /// Rendezvous hashing of the context, or of a task that is not bound.
        Hash => "hash",
        /// The less busy of two.
        Load => "load",
        /// The task or the context is bound to another one, which is gone or has an open breaker.
        Rebound => "rebound",
    }

    /// The end of a wait for a place at a target. The label `outcome`.
    QueueOutcome {
        /// It got a place.
        Placed => "placed",
        /// `limits.target_queue_wait` passed.
        TimedOut => "timed_out",
        /// The caller left, or its deadline passed.
        Left => "left",
        /// The breaker opened.
        Refused => "refused",
        /// There was no place in the queue.
        Full => "full",
    }

    /// The end of a wait for an agent that refuses connections. The label `outcome`.
    HoldOutcome {
        /// The agent was back.
        Connected => "connected",
        /// `upstream.hold` passed.
        TimedOut => "timed_out",
        /// The caller left, or its deadline passed.
        Left => "left",
        /// `upstream.hold_calls` or `upstream.hold_bytes` was reached.
        Full => "full",
    }

    /// The verdict of a guard, or how it failed. The label `verdict`.
    GuardVerdict {
        /// The document passes.
        Pass => "pass",
        /// It is rejected.
        Reject => "reject",
        /// It passes in another form.
        Replace => "replace",
        /// There was no answer in time.
        Timeout => "timeout",
        /// There was no connection, the address policy refused the address, or the connection broke.
        Unreachable => "unreachable",
        /// The answer was no verdict, too large, or a replacement that does not keep the names.
        Invalid => "invalid",
        /// The document is larger than the guard's `max_bytes`.
        TooLarge => "too_large",
        /// As many questions as may be were in progress for all of the time.
        Busy => "busy",
        /// It was not asked, since it had failed too often.
        Open => "open",
    }

    /// The kind of a waiting reader of an inbox.
    InboxReader {
        /// A request with `?wait=`.
        Wait => "wait",
        /// An event stream.
        Stream => "stream",
        /// A message that waits for the agent's reply.
        Sender => "sender",
    }

    /// The reason why a replica's sample for the console is not shown. The label `why`.
    LostSample {
        /// Received, and too long.
        TooLong => "too_long",
        /// Received, and malformed.
        Malformed => "malformed",
        /// Truncated before it was sent, to fit.
        Cut => "cut",
        /// Received from more replicas than can be shown.
        Full => "full",
    }

    /// A queue in SQL. The label `queue`.
    Backlog {
        /// Unacknowledged entries of inboxes.
        Inbox => "inbox",
        /// Delegations and deferred calls that are not sent yet.
        Jobs => "jobs",
    }

    /// The plane of a rejection. The label `plane`.
    Plane {
        /// Messages to agents, and their cards.
        A2a => "a2a",
        /// All other routes of the public listener; on a sidecar, its own routes.
        Control => "control",
    }

    /// The reason why a credential was rejected. The label `why`.
    CredentialFlaw {
        /// Missing.
        Missing => "missing",
        /// Of an unknown form, or more than one credential.
        Form => "form",
        /// Valid only elsewhere: an enrolment token, a ticket.
        Misplaced => "misplaced",
        /// In no table: never issued, revoked, used up, or of a removed workspace.
        Unknown => "unknown",
        /// Not a signed token of an accepted form.
        Malformed => "malformed",
        /// Signed by a key that its issuer does not publish.
        UnknownKey => "unknown_key",
        /// Invalid signature: forged or damaged.
        Signature => "signature",
        /// Expired.
        Expired => "expired",
        /// Not valid yet.
        Immature => "immature",
        /// Another issuer or audience, or a claim that is missing or of a wrong type.
        Claims => "claims",
        /// A genuine token of a platform that names no workspace, or one of another org.
        Unmapped => "unmapped",
        /// A pair token of a forwarded request, sent to the gateway.
        Forwarded => "forwarded",
        /// At a sidecar: not bound to one request.
        Unbound => "unbound",
        /// At a sidecar: bound to another body or method.
        OtherBody => "other_body",
        /// At a sidecar: used before.
        Replayed => "replayed",
    }

    /// The kind of content that was not stored.
    RetainedKind {
        /// An entry of an inbox.
        Inbox => "inbox",
        /// An agent's reply to an entry of its inbox.
        Reply => "reply",
        /// The response of a call with an idempotency key.
        Answer => "answer",
        /// A delegation or a deferred call.
        Delegation => "delegation",
        /// The result of a delegation or a deferred call.
        Result => "result",
    }

    /// The outcome of a request to a waker. The label `outcome`.
    WakeOutcome {
        /// The waker answered 2xx.
        Accepted => "accepted",
        /// The waker answered another status.
        Refused => "refused",
        /// The waker answered with a redirect, which is not followed.
        Redirected => "redirected",
        /// The connection failed (DNS, TCP or TLS).
        Unreachable => "unreachable",
        /// There was no complete answer in time.
        TimedOut => "timed_out",
        /// The address policy refuses the address.
        Forbidden => "forbidden",
        /// The request could not be made, or the answer was no HTTP or too large.
        Failed => "failed",
    }

    /// The outcome of a probe. The label `outcome`.
    ProbeOutcome {
        /// The agent, or one of its instances, answered 2xx.
        Succeeded => "succeeded",
        /// Another answer, or none in time.
        Failed => "failed",
        /// A store did not answer, or the gateway may not ask: the outcome tells nothing of the agent.
        NotMade => "not_made",
    }

    /// Whether a look-up was answered from memory. The label `result`.
    LookupResult {
        /// It was.
        Hit => "hit",
        /// It was not.
        Miss => "miss",
    }

    /// What became of a recorded span. The label `outcome`.
    SpanOutcome {
        /// The collector accepted it.
        Exported => "exported",
        /// The queue was full.
        Dropped => "dropped",
        /// The collector did not accept it.
        Failed => "failed",
    }

    /// A queue. The label `queue`.
    Queue {
        /// Events to be published that are kept for replay, in this replica's memory.
        EventsKept => "events_kept",
        /// Events to be published that are not kept, in this replica's memory.
        EventsPassing => "events_passing",
        /// Owners and uses of tasks to be written for other replicas, in this replica's memory.
        TaskNotes => "task_notes",
        /// [`Backlog::Inbox`].
        Inbox => "inbox",
        /// [`Backlog::Jobs`].
        Jobs => "jobs",
    }
}

impl ClosedSet for TaskState {
    const WORDS: &'static [&'static str] = &[
        "submitted",
        "working",
        "input_required",
        "auth_required",
        "completed",
        "canceled",
        "failed",
        "rejected",
    ];

    fn index(self) -> usize {
        self as usize
    }
}
