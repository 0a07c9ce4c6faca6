//! Why a sign-in fails: the word that the page knows it by, and the rejection.

use kernel::rejection::{Reason, Rejection};
use kernel::telemetry::Chain;
use trust::{ExchangeFailure, TokenError};

use super::PAUSE;

/// Why a sign-in fails: the word in the address of the page, and the rejection.
pub(super) struct Failure(pub(super) &'static str, pub(super) Rejection);

/// The query of the callback is not one.
pub(super) fn invalid_callback() -> Failure {
    let message =
        "the provider's answer has `state`, and either `code` or `error`, each once: sign in again";
    Failure("state", Rejection::new(Reason::InvalidParams, message))
}

/// The provider does not answer.
pub(super) fn provider_unreachable(issuer: &str) -> Failure {
    let message = format!(
        "the provider `{issuer}` cannot be reached, or its metadata cannot be used: sign in again shortly, or with a token; \
         the gateway's log says why"
    );
    let rejection = Rejection::new(Reason::StoreUnavailable, message);
    Failure("away", rejection.with_retry_after(PAUSE))
}

/// The code gives no token.
pub(super) fn exchange_failure(failure: ExchangeFailure) -> Failure {
    match failure {
        ExchangeFailure::Away(failure) => {
            let (reason, error) = (failure.outcome.as_str(), Chain(failure.cause.as_ref()));
            tracing::warn!(reason, %error, "failed to exchange the code of a sign-in");
            let message =
                "the provider does not answer the gateway: sign in again shortly, or with a token";
            let rejection = Rejection::new(Reason::StoreUnavailable, message);
            Failure("away", rejection.with_retry_after(PAUSE))
        }
        ExchangeFailure::Code => {
            let message = "the provider does not know the code of this sign-in: it was used, is too old, or is of another one; \
                           sign in again";
            unauthenticated("code", message)
        }
        ExchangeFailure::Client(word) => {
            tracing::error!(
                error = word,
                "the provider refused the gateway's request for the tokens of a sign-in; check admin.sign_in"
            );
            let message = "the provider refuses this gateway; its administrator should look at its log and at admin.sign_in";
            Failure("setup", Rejection::new(Reason::Internal, message))
        }
    }
}

/// The ID token is not one of this sign-in.
pub(super) fn invalid_token(error: TokenError) -> Failure {
    tracing::warn!(%error, "refused the ID token of a sign-in");
    let message = "the provider's token is not valid for this sign-in; the gateway's log says why; sign in again";
    unauthenticated("token", message)
}

/// Nothing is proven.
pub(super) fn unauthenticated(word: &'static str, message: &'static str) -> Failure {
    Failure(word, Rejection::new(Reason::Unauthenticated, message))
}
