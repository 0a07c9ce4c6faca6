//! The values of labels: closed sets, one enum each.

use crate::rejection::Reason;

/// How an exchange ended. The label `outcome`, and the word in the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The agent's answer was passed on whole.
    Answered,
    /// The caller left before the end.
    CallerLeft,
    /// The gateway refused, or cut the answer, for this reason.
    Rejected(Reason),
}

impl Outcome {
    /// How many there are.
    pub(super) const COUNT: usize = Reason::ALL.len() + 2;

    /// The label.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::CallerLeft => "caller_left",
            Self::Rejected(reason) => reason.word(),
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

/// Which cache was asked. The label `cache`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Credential to principal.
    Credentials,
    /// Workspace to its line of ancestors.
    Lineages,
    /// Workspace to its state and address.
    Directory,
    /// Caller and target to the grant between them.
    Grants,
    /// Workspace to its agent's card.
    Cards,
}

impl Cache {
    pub(super) const ALL: [Self; 5] = [
        Self::Credentials,
        Self::Lineages,
        Self::Directory,
        Self::Grants,
        Self::Cards,
    ];

    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Credentials => "credentials",
            Self::Lineages => "lineages",
            Self::Directory => "directory",
            Self::Grants => "grants",
            Self::Cards => "cards",
        }
    }
}

/// By what a lapse was noticed. The label `noticed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noticed {
    /// By the shared state's word that a lease ended.
    Expiry,
    /// By a message to the workspace.
    Request,
    /// By the look at all workspaces each second.
    Sweep,
}

/// What became of requests that count against a rate on every replica. The label `outcome`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateShare {
    /// Other replicas were told.
    Told,
    /// Other replicas said so.
    Heard,
    /// Other replicas could not be told.
    Lost,
}

impl RateShare {
    pub(super) const LABELS: [&str; 3] = ["told", "heard", "lost"];
}

/// How a fetch of an issuer's keys ended. The label `outcome`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JwksFetch {
    /// The keys are known.
    Fetched,
    /// No connection: DNS, TCP or TLS; or it broke.
    Unreachable,
    /// No whole answer in time.
    TimedOut,
    /// The answer was a redirect.
    Redirected,
    /// The answer had a status other than 200.
    Status,
    /// The answer was too large.
    TooLarge,
    /// The answer was no JWKS.
    Invalid,
}

impl JwksFetch {
    pub(super) const ALL: [Self; 7] = [
        Self::Fetched,
        Self::Unreachable,
        Self::TimedOut,
        Self::Redirected,
        Self::Status,
        Self::TooLarge,
        Self::Invalid,
    ];

    /// The label.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Fetched => "fetched",
            Self::Unreachable => "unreachable",
            Self::TimedOut => "timed_out",
            Self::Redirected => "redirected",
            Self::Status => "status",
            Self::TooLarge => "too_large",
            Self::Invalid => "invalid",
        }
    }
}

/// How events are read; index into its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventReader {
    /// `GET /ws`.
    Socket = 0,
    /// `GET /events`.
    Stream = 1,
    /// `GET /console/feed` of the admin listener.
    Console = 2,
}

/// Whether a response is a stream of events; index into pairs of children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One body.
    Unary = 0,
    /// `text/event-stream`.
    Stream = 1,
}

/// Why a connection of a caller was refused or cut. The label `why`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// `server.max_connections` are open.
    Full,
    /// `server.connections_per_address` are.
    Address,
    /// No TLS handshake, or none in time.
    Handshake,
    /// The head of a request did not come in time, or none came at all.
    SlowHead,
    /// What came was no HTTP, or not the HTTP that is accepted.
    BadHead,
    /// Streams were begun only to be given up.
    Resets,
    /// As many connections to the admin listener as may be are open.
    AdminFull,
    /// A connection to the admin listener took no more of its answer.
    AdminSlow,
}

impl Cut {
    pub(super) const LABELS: [&'static str; 8] = [
        "full",
        "address",
        "handshake",
        "slow_head",
        "bad_head",
        "resets",
        "admin_full",
        "admin_slow",
    ];
}
