//! Registrations of agents, and changes of workspaces by operators and org tokens.

mod change;
mod lifecycle;
mod register;
mod registrar;
mod tree_rules;
mod urls;

pub use self::change::{Change, Registrations};
pub use self::register::{
    Creation, Registration, RegistrationResult, Update, VettedUpdate, listed_urls, reports_itself,
};
pub use self::registrar::{Recheck, Registrar, Terms};
pub use self::tree_rules::{Editor, org_below as org_of_new};
pub use self::urls::AGENT_CARD_BYTES_MAX;
