//! Waker of a sleeping agent, as stored and as shown (`docs/guide/wake-a-sleeping-agent.md`).

use serde::{Deserialize, Serialize};

use kernel::closed_set::words;
use trust::SealedSecret;

words! {
    /// HTTP method of the request to a waker.
    #[derive(Default)]
    WakeMethod {
        /// `POST`.
        #[default]
        Post => "POST",
        /// `PUT`.
        Put => "PUT",
        /// `PATCH`.
        Patch => "PATCH",
    }
}

/// Waker of an agent. Names of header fields are kept beside the sealed values, so that a read of a workspace opens
/// no seal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredWake {
    /// View for operators.
    #[serde(flatten)]
    pub shown: WakeView,
    /// Header fields with their values. Never shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed: Option<SealedSecret>,
}

/// JSON form of a waker, for operators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WakeView {
    /// URL of the waker.
    pub url: String,
    /// HTTP method of the request.
    pub method: WakeMethod,
    /// Names of the header fields that the request has.
    pub header_names: Vec<String>,
    /// Longest wait of a call for its agent; `None`: `wake.max_wait`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_wait_seconds: Option<u32>,
    /// Shortest time between two requests to the waker; `None`: `wake.cool_down`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cool_down_seconds: Option<u32>,
}
