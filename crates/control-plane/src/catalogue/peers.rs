//! `GET /registry/{id}/peers?skill=&mode=`: the peers whose registered cards fit.

use std::sync::Arc;

use axum::extract::{FromRequestParts, Query};
use http::request::Parts;
use serde::Deserialize;
use tokio::time::Instant;

use super::entry::Entry;
use super::search::words_of;
use super::{PAGE, PATIENCE, SEARCHED_MAX, wrong};
use crate::extract::is_name;
use access::hierarchy::Rule;
use access::workspace::CandidateQuery;
use assembly::gateway::Gateway;
use kernel::ids::WorkspaceId;
use kernel::rejection::Rejection;

/// What a card has to have.
#[derive(Deserialize)]
pub(crate) struct SkillFilter {
    /// Words, each of which, or its beginning, stands in the skills.
    skill: Option<String>,
    /// An input or output mode.
    mode: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for SkillFilter {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejection> {
        let query = Query::<Self>::from_request_parts(parts, state).await;
        let Ok(Query(mut query)) = query else {
            return Err(wrong("`skill` and `mode` stand once at most, as UTF-8"));
        };
        for text in [&mut query.skill, &mut query.mode] {
            *text = text.take().map(|text| text.trim().to_owned());
            text.take_if(|text| text.is_empty());
            if !text.as_deref().is_none_or(is_name) {
                return Err(wrong(
                    "`skill` and `mode` have at most 256 characters, none of them a control character",
                ));
            }
        }
        Ok(query)
    }
}

impl SkillFilter {
    /// Returns whether all cards fit.
    pub(crate) const fn is_empty(&self) -> bool {
        self.skill.is_none() && self.mode.is_none()
    }

    /// Returns a page of the peers of `id` that fit, and the id after which to continue. After [`SEARCHED_MAX`] peers,
    /// or [`PATIENCE`], the page ends before it is full.
    ///
    /// # Errors
    /// As [`access::hierarchy::Hierarchy::list_peers`].
    pub(crate) async fn find_peers(
        &self,
        gateway: &Gateway,
        id: &WorkspaceId,
        wish: CandidateQuery<'_>,
    ) -> Result<(Vec<(WorkspaceId, Rule)>, Option<String>), Rejection> {
        let config = Arc::clone(&*gateway.config());
        let limit = usize::try_from(wish.limit).unwrap_or(usize::MAX);
        let end = Instant::now() + PATIENCE;
        let (mut found, mut searched, mut after) = (Vec::new(), 0, wish.after.to_owned());
        loop {
            let query = CandidateQuery {
                after: &after,
                limit: PAGE,
                ..wish
            };
            let reached = gateway.hierarchy.list_peers(id, &query).await?;
            searched += reached.found.len();
            let ids: Vec<_> = reached.found.iter().map(|(id, _)| id.clone()).collect();
            let mut workspaces = gateway.directory.views.find_many(&ids).await?;
            workspaces.retain(|one| self.fits(&Entry::new(&config, one)));
            let last = ids.last().map(|id| id.as_str().to_owned());
            for (id, rule) in reached.found {
                if !workspaces.iter().any(|one| one.id == id) {
                    continue;
                }
                if found.len() == limit {
                    let last = found
                        .last()
                        .map(|(id, _): &(WorkspaceId, _)| id.to_string());
                    return Ok((found, last));
                }
                found.push((id, rule));
            }
            match last {
                Some(last) if reached.more => after = last,
                _ => return Ok((found, None)),
            }
            if searched >= SEARCHED_MAX || Instant::now() > end {
                return Ok((found, Some(after)));
            }
        }
    }

    fn fits(&self, entry: &Entry) -> bool {
        let fits_skill = self.skill.as_deref().is_none_or(|skill| {
            let texts = [&entry.capabilities, &entry.tags, &entry.skills].into_iter();
            let has: Vec<_> = texts.flatten().flat_map(|text| words_of(text)).collect();
            let wanted = words_of(skill);
            let is_there = |word: &String| has.iter().any(|one| one.starts_with(word.as_str()));
            !wanted.is_empty() && wanted.iter().all(is_there)
        });
        let is_mode = |mode: &str| entry.modes.iter().any(|one| one.eq_ignore_ascii_case(mode));
        fits_skill && self.mode.as_deref().is_none_or(is_mode)
    }
}
