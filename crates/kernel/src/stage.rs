//! The stages of a message, in their order. Explanations, the audit and traces name a stage by its word, and the order
//! of checks in `docs/reference/a2a.md` is made from this table.

/// Declares the stages: the word of each, and how the order of checks names it (`""`: as a part of the one before).
macro_rules! stages {
    ($($(#[$doc:meta])* $stage:ident => $word:literal, $phrase:literal;)*) => {
        $crate::closed_set::words! {
            /// A stage of a message. Each may refuse it.
            Stage { $($(#[$doc])* $stage => $word,)* }
        }

        impl Stage {
            /// Returns how the order of checks names the stage.
            const fn phrase(self) -> &'static str {
                match self { $(Self::$stage => $phrase,)* }
            }
        }
    };
}

stages! {
    /// The bytes and fields of the request's head.
    Http => "http", "the HTTP itself";
    /// The host that the request is for, and the page that sends it.
    Origin => "origin", "`Host` and `Origin`";
    /// This process accepts new requests.
    Process => "process", "draining";
    /// Capacity for another exchange.
    Places => "places", "`server.max_exchanges`";
    /// The HTTP method and, below the base, the route.
    Route => "route", "HTTP method, route";
    /// The form of the target's id.
    Target => "target", "id";
    /// The declared size of the body.
    Size => "size", "declared size";
    /// The principal of the caller's credential.
    Caller => "caller", "credential";
    /// The caller that the request names.
    Claim => "claim", "`X-Workspace-ID`";
    /// The caller's rate limit.
    Rate => "rate", "rate";
    /// An operator's role.
    Role => "role", "an operator's [role](http-api.md#operators)";
    /// The caller's place in the hierarchy.
    CallerPlace => "caller_place", "";
    /// The target's place in the hierarchy.
    TargetPlace => "target_place", "";
    /// An explicit grant, if the places do not permit the message.
    Grant => "grant", "";
    /// The rule that permits the caller to message the target.
    Rule => "rule", "CanCommunicate";
    /// The chain on which the caller acts, and the root that the target requires.
    Chain => "chain", "its [chain](credentials.md#chains)";
    /// The stops of operators, if there are any.
    Stop => "stop", "[stops](http-api.md#stops)";
    /// The target's lifecycle state.
    State => "state", "the target's state and URL";
    /// The target's liveness.
    Liveness => "liveness", "";
    /// The URL of the target's agent.
    Url => "url", "";
    /// The gateway's credential and certificates for the agent.
    Upstream => "upstream", "";
    /// What the request asks for in its fields.
    Fields => "fields", "`X-Timeout`, `X-A2A-Hops`";
    /// The media type of the body, its size, and the time that it takes.
    Body => "body", "media type, body";
    /// The call in the body.
    Envelope => "envelope", "call";
    /// Push notifications, if the call asks for them.
    Push => "push", "[push notifications](#push-notifications)";
    /// The tasks that the call names.
    Tasks => "tasks", "[its tasks](#tasks)";
    /// The URLs that the call names.
    Webhooks => "webhooks", "[its URLs](#push-notifications)";
    /// The instance of the agent, if it has several.
    Instance => "instance", "the instance";
    /// The protocol of the call to the agent.
    Call => "call", "translation";
    /// The guards of the operator.
    Guards => "guards", "its [guards](guards.md)";
    /// The idempotency key.
    Key => "key", "[its key](#idempotency-keys)";
    /// The caps that cover the message.
    Caps => "caps", "[caps](http-api.md#caps)";
    /// Room for a message that is kept: in the inbox of a polling target, or among deferred calls.
    Inbox => "inbox", "room in the inbox";
    /// Calls in progress at the target.
    Slots => "slots", "the target's concurrency";
    /// The address to connect to.
    Address => "address", "the addresses of its name";
    /// The connection to the agent.
    Connect => "connect", "connect and forward";
    /// Timeouts and limits of the exchange. They refuse nothing before the call is sent.
    Limits => "limits", "";
}

impl Stage {
    /// Returns the order of checks, as the documents have it.
    pub fn order_of_checks() -> String {
        let phrases = Self::ALL.iter().map(|stage| stage.phrase());
        let phrases: Vec<_> = phrases.filter(|phrase| !phrase.is_empty()).collect();
        phrases.join(" → ")
    }
}
