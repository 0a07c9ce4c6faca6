//! The answer of the provider, which the browser brings back.

use url::form_urlencoded;

use super::failure::{Failure, invalid_callback};

/// Longest value in the query of a callback, in bytes.
const VALUE_MAX: usize = 4096;

/// The answer of the provider, in the query of the callback.
pub(super) struct Answer {
    pub(super) state: String,
    /// `None`: it is an error.
    pub(super) code: Option<String>,
    pub(super) iss: Option<String>,
}

impl Answer {
    /// Reads the query. Each parameter may stand once; those of other names are ignored, as the protocol says.
    pub(super) fn parse(query: &str) -> Result<Self, Failure> {
        let (mut state, mut code, mut iss, mut error) = (None, None, None, None);
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let place = match &*name {
                "state" => &mut state,
                "code" => &mut code,
                "iss" => &mut iss,
                "error" => &mut error,
                _ => continue,
            };
            if value.len() > VALUE_MAX || place.replace(value.into_owned()).is_some() {
                return Err(invalid_callback());
            }
        }
        match (state, &code, &error) {
            (Some(state), Some(_), None) | (Some(state), None, Some(_)) => {
                Ok(Self { state, code, iss })
            }
            _ => Err(invalid_callback()),
        }
    }
}
