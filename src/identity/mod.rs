//! Identity: authenticates credentials into proven principals, issues and revokes the credentials, and limits
//! the rate of each principal.
//!
//! Invariants: a principal exists only with a proof; an unavailable store never widens access; a credential's
//! text is never stored, logged or compared except by its hash.

mod account;
mod authenticate;
mod callers;
mod credential;
mod issuance;
mod issuers;
mod named;
mod places;
mod proof;
mod rate;
mod refusal;
mod role;
mod signed;
mod standing;
mod stored;
mod ticket;
mod token;

pub use self::authenticate::{FirstAdmin, Identity};
pub use self::callers::CallerToken;
pub use self::credential::{CredentialHash, is_admin_token, may_be_credential, new_admin_token};
pub use self::issuance::Issuance;
pub use self::named::{Credentials, Named};
pub use self::proof::{ClientAddr, CredentialKind, Principal, Proof};
pub use self::rate::{Allowance, Rates};
pub use self::role::{A2A, Operator, Person, Role, WITHHELD, Withheld, role_for};
pub use self::signed::{
    CANVAS_SCOPE, CANVAS_TTL_DEFAULT, CANVAS_TTL_MAX, CANVAS_TYP, IssuedPair, NewCanvas,
    SignedTokens,
};
pub use self::standing::SLOW_BODY;
pub use self::stored::stored_account;
pub use self::ticket::{TICKET_TTL, Tickets};
pub use self::token::{
    EnrolmentMaker, IssuedToken, LIVE_TOKENS_MAX, NewEnrolment, OperatorRow, OrgTokenRow, TokenRow,
    TokenTerms,
};

#[cfg(test)]
mod tests;
