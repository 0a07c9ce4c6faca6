//! Roles of operators, and the operator behind a proof as audit records name it.

use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::rows::stored_words;
use kernel::closed_set::words;

words! {
    /// The role of an operator. Each later one may do all that the ones before it may.
    Role {
        /// Reads everything but content: the console, the audit, explanations, metrics and every GET. Of a message it
        /// sees caller, target, time and outcome, never what was said.
        Read => "read",
        /// Besides sends messages to agents, pauses and resumes, takes agents out of service, makes and ends stops
        /// and grants.
        Operate => "operate",
        /// Besides sees content, and changes workspaces, keys and credentials.
        Admin => "admin",
    }
}

stored_words!(Role);

impl Role {
    /// True if this role may do what `needed` is needed for.
    pub const fn covers(self, needed: Self) -> bool {
        self as u8 >= needed as u8
    }

    /// Returns the role that an operator needs for a call of A2A, whatever its form and whatever stands behind it.
    /// Calls that return content need [`Role::Admin`] besides
    /// ([`returns_content`](a2a::method::Method::returns_content)).
    pub fn for_call(method: &Method) -> Self {
        if method.is_safe() {
            Self::Read
        } else {
            Self::Operate
        }
    }
}

/// Members of an answer in place of content that the role of its reader does not cover.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct WithheldContent {
    /// With `body_withheld`, in place of content that the role of an operator does not cover.
    #[schema(value_type = String, pattern = "^null$")]
    body: (),
    #[schema(value_type = String, pattern = "^true$")]
    body_withheld: bool,
}

/// The members of an answer without its content.
pub const WITHHELD_CONTENT: WithheldContent = WithheldContent {
    body: (),
    body_withheld: true,
};

/// The operator behind a proof.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Operator {
    /// The role.
    pub role: Role,
    /// The id of the token; `None`: the configuration names the token, or the first start made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub token_id: Option<String>,
    /// The name that its maker gave the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub label: Option<String>,
    /// The person who signed in at the console; `None`: a token was presented.
    #[serde(default, flatten)]
    pub person: Option<Person>,
}

/// A person, as the identity provider names them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Person {
    /// The provider, `iss` of its tokens.
    pub issuer: String,
    /// `sub`: never given to another person of this provider.
    pub subject: String,
    /// The name or the address, for people who read records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub name: Option<String>,
}

impl Operator {
    /// The operator of a configured token, or of the one that the first start made.
    pub const CONFIGURED: Self = Self {
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
    fn a_call_needs_the_role_to_operate_and_a_card_does_not() {
        for (method, role) in [
            (Method::HEAD, Role::Read),
            (Method::POST, Role::Operate),
            (Method::DELETE, Role::Operate),
        ] {
            assert_eq!(Role::for_call(&method), role, "{method}");
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
