//! Identity: authenticates credentials into proven principals, issues and revokes the credentials, and limits
//! the rate of each principal.
//!
//! Invariants: a principal exists only with a proof; an unavailable store never widens access; a credential's
//! text is never stored, logged or compared except by its hash.

mod account;
mod authenticate;
mod caller_tokens;
mod chain_cache;
mod chain_token;
mod chains;
mod credential;
mod issuers;
mod named_caller;
mod proof;
mod rate;
mod refusal;
pub mod revocations;
mod role;
mod signed_tokens;
mod stored_principal;
mod ticket;
mod tokens;
mod workspace_states;

pub use self::authenticate::{Identity, SLOW_BODY};
pub use self::caller_tokens::CallerToken;
pub use self::chain_cache::SentChain;
pub use self::chain_token::{Chain, Detail};
pub use self::chains::{ChainCall, Exchanged, ON_BEHALF_OF, chain_revoked, names_chain};
pub use self::credential::{
    CredentialHash, IssuedToken, is_admin_token, may_be_credential, new_admin_token,
};
pub use self::issuers::logout::Logout;
pub use self::named_caller::{Credentials, NamedCaller};
pub use self::proof::{ClientAddr, CredentialKind, Principal, Proof};
pub use self::rate::{Allowance, Rates};
pub use self::role::{Operator, Person, Role, WITHHELD_CONTENT, WithheldContent};
pub use self::signed_tokens::{
    CANVAS_SCOPE, CANVAS_TTL_DEFAULT, CANVAS_TTL_MAX, CANVAS_TYP, IssuedCanvas, IssuedPair,
    NewCanvas, SignedTokens,
};
pub use self::stored_principal::{stored_account, stored_chain};
pub use self::ticket::TICKET_TTL;
pub use self::tokens::{
    EnrolmentMaker, LIVE_TOKENS_MAX, NewEnrolment, OperatorRow, OrgTokenRow, TokenRow, TokenTerms,
    Tokens,
};

#[cfg(test)]
mod tests;
