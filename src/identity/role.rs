//! Roles of operators: the one table from route to role, and the operator behind a proof as audit records name it.

use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::closed_set::words;
use crate::store::Run;

words! {
    /// The role of an operator. Each later one may do all that the ones before it may.
    Role {
        /// Reads everything but content: the console, the audit, explanations, metrics and every GET. Of a message it sees
        /// caller, target, time and outcome, never what was said.
        Read => "read",
        /// Besides sends messages to agents, pauses and resumes, takes agents out of service, makes and ends stops
        /// and grants.
        Operate => "operate",
        /// Besides sees content, and changes workspaces, keys and credentials.
        Admin => "admin",
    }
}

impl Role {
    /// True if this role may do what `needed` is needed for.
    pub const fn covers(self, needed: Self) -> bool {
        self as u8 >= needed as u8
    }
}

/// The pattern of the A2A routes in [`required_role`], whatever their form and whatever stands behind it.
pub const A2A: &str = "/workspaces/{id}/a2a";

/// The route of the policy.
const POLICY: &str = "/policy";

/// The route that resumes a stream: its events are content.
const STREAM: &str = "/workspaces/{id}/streams/{stream}";

/// Returns the role that an operator needs for a route, on any listener. `pattern` is the route's pattern on the public
/// listener; routes of the admin listener's own have theirs. A route that is not listed, and that changes something, needs
/// [`Role::Admin`]. A dry run needs the role of the change, except that of a policy, which compares the document with what
/// `GET /policy` shows. Calls of A2A that return content need [`Role::Admin`] whatever their method
/// ([`returns_content`](crate::a2a::method::Method::returns_content)); inboxes and delegations are shown without it.
pub fn required_role(method: &Method, pattern: &str, run: Run) -> Role {
    if pattern == STREAM {
        return Role::Admin;
    }
    if method.is_safe() || (run.is_dry() && pattern == POLICY) {
        return Role::Read;
    }
    match (method.as_str(), pattern) {
        // They change nothing but what the operator sees: a question, the way to an event stream, a page's session.
        ("POST", "/registry/check-access" | "/ws/tickets" | "/console/session")
        | ("DELETE", "/console/session") => Role::Read,
        (_, A2A)
        | (
            "POST",
            "/workspaces/{id}/pause"
            | "/workspaces/{id}/resume"
            | "/registry/deregister"
            | "/registry/drain"
            | "/grants"
            | "/stops",
        )
        | ("DELETE", "/grants/{grant_id}" | "/stops/{stop_id}") => Role::Operate,
        _ => Role::Admin,
    }
}

/// Members of an answer in place of content that the role of its reader does not cover.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct WithheldContent {
    body: (),
    body_withheld: bool,
}

/// The members of an answer without its content.
pub const WITHHELD_CONTENT: WithheldContent = WithheldContent {
    body: (),
    body_withheld: true,
};

/// The operator behind a proof.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operator {
    /// The role.
    pub role: Role,
    /// The id of the token; `None`: the configuration names the token, or the first start made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_id: Option<String>,
    /// The name that its maker gave the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The person who signed in at the console; `None`: a token was presented.
    #[serde(default, flatten)]
    pub person: Option<Person>,
}

/// A person, as the identity provider names them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Person {
    /// The provider, `iss` of its tokens.
    pub issuer: String,
    /// `sub`: never given to another person of this provider.
    pub subject: String,
    /// The name or the address, for people who read records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Operator {
    /// The operator of a configured token, or of the one that the first start made.
    pub(crate) const CONFIGURED: Self = Self {
        role: Role::Admin,
        token_id: None,
        label: None,
        person: None,
    };

    /// Returns the members by which audit records and answers name the operator.
    pub fn to_json(&self) -> Map<String, Value> {
        let said = serde_json::to_value(self);
        // Strings: serialization cannot fail.
        said.ok()
            .and_then(|said| said.as_object().cloned())
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_role_covers_those_before_it() {
        for (n, role) in Role::ALL.iter().enumerate() {
            let covered: Vec<_> = Role::ALL.iter().map(|other| role.covers(*other)).collect();
            assert_eq!(covered, (0..3).map(|m| m <= n).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_change_that_no_rule_names_needs_the_greatest_role() {
        for (method, pattern, role) in [
            (Method::GET, "/anything", Role::Read),
            (Method::HEAD, A2A, Role::Read),
            (Method::GET, STREAM, Role::Admin),
            (Method::POST, A2A, Role::Operate),
            (Method::DELETE, A2A, Role::Operate),
            (Method::POST, "/anything", Role::Admin),
            (Method::POST, "unmatched", Role::Admin),
            (Method::DELETE, "/workspaces/{id}", Role::Admin),
        ] {
            let found = required_role(&method, pattern, Run::Real);
            assert_eq!(found, role, "{method} {pattern}");
        }
    }

    #[test]
    fn a_dry_run_needs_the_role_of_the_change_except_that_of_a_policy() {
        for (method, pattern, role) in [
            (Method::POST, POLICY, Role::Read),
            (Method::POST, "/grants", Role::Operate),
            (Method::DELETE, "/workspaces/{id}", Role::Admin),
        ] {
            let found = required_role(&method, pattern, Run::Dry);
            assert_eq!(found, role, "{method} {pattern}");
        }
    }

    #[test]
    fn an_operator_is_named_by_what_is_known() {
        let mut operator = Operator::CONFIGURED;
        assert_eq!(
            Value::Object(operator.to_json()).to_string(),
            r#"{"role":"admin"}"#
        );
        operator.person = Some(Person {
            issuer: "https://login.test".to_owned(),
            subject: "1".to_owned(),
            name: None,
        });
        let said = Value::Object(operator.to_json());
        assert_eq!(said["subject"], "1");
        assert_eq!(serde_json::from_value::<Operator>(said).unwrap(), operator);
    }
}
