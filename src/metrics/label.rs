//! The values of labels: closed sets, one enum each.

use std::marker::PhantomData;
use std::ops::Index;

use crate::closed_set::{ClosedSet, words};
use crate::rejection::Reason;

/// The children of a family, one for each value of a label.
pub(super) struct By<L, M> {
    children: Box<[M]>,
    label: PhantomData<L>,
}

impl<L: ClosedSet, M> By<L, M> {
    /// Resolves the children: `child` returns that of a value.
    pub(super) fn new(child: impl FnMut(&'static str) -> M) -> Self {
        Self {
            children: L::WORDS.iter().copied().map(child).collect(),
            label: PhantomData,
        }
    }

    /// Returns all children.
    pub(super) fn iter(&self) -> std::slice::Iter<'_, M> {
        self.children.iter()
    }
}

impl<L: ClosedSet, M> Index<L> for By<L, M> {
    type Output = M;

    fn index(&self, label: L) -> &M {
        &self.children[label.index()]
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
}

words! {
    /// The way in which a lapse was noticed. The label `noticed`.
    LapseSource {
        /// The shared store reported that a lease expired.
        Expiry => "expiry",
        /// A message was addressed to the workspace.
        Request => "request",
        /// The sweep over all workspaces each second.
        Sweep => "sweep",
    }
}

words! {
    /// The outcome of sharing rate usage between replicas. The label `outcome`.
    RateShare {
        /// Sent to the other replicas.
        Told => "told",
        /// Received from another replica.
        Heard => "heard",
        /// Not sent.
        Lost => "lost",
    }
}

words! {
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
}

words! {
    /// The interface of an event reader.
    EventReader {
        /// `GET /ws`.
        Socket => "socket",
        /// `GET /events`.
        Stream => "stream",
        /// `GET /console/feed` of the admin listener.
        Console => "console",
    }
}

words! {
    /// The shape of a response.
    Shape {
        /// One body.
        Unary => "unary",
        /// `text/event-stream`.
        Stream => "stream",
    }
}

words! {
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
}

words! {
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
