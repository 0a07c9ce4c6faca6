//! Seals and opens the secrets of a workspace's row.

use secrecy::SecretString;

use crate::rejection::{Reason, Rejection};
use crate::trust::{Seal, SealError, SealedSecret};

/// Seals a secret for `owner`; it opens for no other owner.
pub(in crate::directory) fn seal_for(
    seal: &Seal,
    owner: &str,
    secret: &SecretString,
) -> Result<SealedSecret, Rejection> {
    seal.seal(owner, secret).map_err(|error| {
        Rejection::new(
            Reason::Internal,
            "the gateway cannot seal the credential; the log says more under the request's id",
        )
        .with_cause(error)
    })
}

/// Opens a secret of `owner`, and parses it.
pub(in crate::directory) fn open_for<T>(
    seal: &Seal,
    owner: &str,
    sealed: &SealedSecret,
    parse: impl FnOnce(&SecretString) -> Option<T>,
) -> Result<T, SealError> {
    parse(&seal.open(owner, sealed)?).ok_or(SealError::Form)
}
