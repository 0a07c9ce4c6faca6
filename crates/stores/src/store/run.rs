//! Dry runs: changes that are made up to their commit, and rolled back there.

use url::form_urlencoded;

use kernel::rejection::{Reason, Rejection};

/// The parameter of the query that asks for a dry run.
pub const DRY_RUN: &str = "dry_run";

/// The end of a change that its checks permit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Run {
    /// It is committed and published.
    #[default]
    Real,
    /// It is rolled back, and nothing is published (`?dry_run=true`).
    Dry,
}

impl Run {
    /// Returns the run that the value of `dry_run` asks for.
    pub const fn from_dry_run(dry_run: bool) -> Self {
        if dry_run { Self::Dry } else { Self::Real }
    }

    /// True for a dry run.
    pub const fn is_dry(self) -> bool {
        matches!(self, Self::Dry)
    }

    /// Refuses `dry_run` in the query of a route that has none, whatever its value: ignored, the change would be made.
    ///
    /// # Errors
    /// `invalid_params`.
    pub fn refuse_in(query: Option<&str>, method: &str, route: &str) -> Result<(), Rejection> {
        let query = query.unwrap_or_default();
        if form_urlencoded::parse(query.as_bytes()).all(|(name, _)| name != DRY_RUN) {
            return Ok(());
        }
        let message = format!(
            "{method} {route} has no dry run, and nothing was done: leave `{DRY_RUN}` out (docs/reference/http-api.md, \
             \"Dry runs\", names the routes that have one)"
        );
        Err(Rejection::new(Reason::InvalidParams, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dry_run_is_refused_in_any_spelling_of_its_name() {
        for query in [
            "dry_run=true",
            "a=b&dry_run=false",
            "dry_run",
            "dry%5Frun=true",
        ] {
            let refused = Run::refuse_in(Some(query), "POST", "/ws/tickets").unwrap_err();
            assert!(refused.message.contains("POST /ws/tickets"), "{query}");
        }
        for query in [None, Some(""), Some("limit=5&dry_runs=true")] {
            assert!(Run::refuse_in(query, "POST", "/ws/tickets").is_ok());
        }
    }
}
