//! The values of labels: closed sets, one enum each.

use crate::rejection::Reason;

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

/// The cache of a look-up. The label `cache`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Credential to principal.
    Credentials,
    /// Workspace to its ancestors.
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

/// The way in which a lapse was noticed. The label `noticed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noticed {
    /// The shared store reported that a lease expired.
    Expiry,
    /// A message was addressed to the workspace.
    Request,
    /// The sweep over all workspaces each second.
    Sweep,
}

/// The outcome of sharing rate usage between replicas. The label `outcome`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateShare {
    /// Sent to the other replicas.
    Told,
    /// Received from another replica.
    Heard,
    /// Not sent.
    Lost,
}

impl RateShare {
    pub(super) const LABELS: [&str; 3] = ["told", "heard", "lost"];
}

/// The outcome of a fetch of an issuer's keys. The label `outcome`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JwksFetch {
    /// The keys were fetched.
    Fetched,
    /// The connection failed (DNS, TCP or TLS), or broke.
    Unreachable,
    /// No complete response in time.
    TimedOut,
    /// The response was a redirect.
    Redirected,
    /// The response had a status other than 200.
    Status,
    /// The response was too large.
    TooLarge,
    /// The response was not a JWKS.
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

    /// Returns the value of the label.
    pub const fn as_str(self) -> &'static str {
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

/// The interface of an event reader; index into its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventReader {
    /// `GET /ws`.
    Socket = 0,
    /// `GET /events`.
    Stream = 1,
    /// `GET /console/feed` of the admin listener.
    Console = 2,
}

/// The shape of a response; index into pairs of children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One body.
    Unary = 0,
    /// `text/event-stream`.
    Stream = 1,
}

/// The reason why a caller's connection was rejected or closed. The label `why`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// `server.max_connections` is reached.
    Full,
    /// `server.connections_per_address` is reached.
    Address,
    /// The TLS handshake failed or timed out.
    Handshake,
    /// The head of a request timed out.
    SlowHead,
    /// The request was not valid HTTP, or not of an accepted version.
    BadHead,
    /// The client reset too many streams.
    Resets,
    /// The admin listener has its maximum number of connections.
    AdminFull,
    /// The client of the admin listener stopped reading.
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
