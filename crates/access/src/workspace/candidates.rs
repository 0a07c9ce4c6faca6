//! Pages of workspaces: the candidates of a page by their place in the table, in order of id.
//! [`crate::hierarchy`] decides about each; a candidate is not a permission.
//!
//! Each branch of a page is limited in the database, so that a page of 100,000 roots reads one page.

use std::collections::HashSet;

use sqlx::any::AnyRow;
use sqlx::{AssertSqlSafe, FromRow};

use super::sql::COLUMNS;
use super::{Status, Step, Timestamp, Workspace, Workspaces};
use crate::rows::{Statement, read, select_in, sql, to_bigint};
use kernel::config::CardAccess;
use kernel::ids::{WorkspaceId, WorkspaceIncarnation};
use stores::db::Values;
use stores::store::Unavailable;

/// Part of a list to read.
#[derive(Clone, Copy, Debug)]
pub struct CandidateQuery<'a> {
    /// Only workspaces with this text in their name or role.
    pub search: Option<&'a Search>,
    /// Only workspaces in this status; `None`: all except removed ones.
    pub status: Option<Status>,
    /// Only ids after this one.
    pub after: &'a str,
    /// Maximum number.
    pub limit: u32,
}

/// Subject of a page.
#[derive(Clone, Copy, Debug)]
pub enum CandidateScope<'a> {
    /// The workspaces of a realm.
    Realm(Realm<'a>),
    /// Workspaces near one workspace: related to it, or granted to it.
    Near(NearScope<'a>),
    /// Workspaces with a card that anyone may read; where a workspace does not say, this access applies.
    Public(CardAccess),
}

/// The bounds of a realm: of the workspaces that a principal other than a workspace may reach. Without any of them it
/// has every workspace.
#[derive(Clone, Copy, Debug, Default)]
pub struct Realm<'a> {
    /// Only these.
    pub listed: Option<&'a [WorkspaceId]>,
    /// Only those of this org; no org counts as one org.
    pub org: Option<Option<&'a str>>,
    /// Only this one, in the life that is meant, and those below it, as the hierarchy is now: a later life of its id
    /// has no subtree.
    pub within: Option<&'a WorkspaceIncarnation>,
}

/// Returns the ids of the subtree of `root` in `org`, removed workspaces included; `None`: there are more than `max`.
///
/// # Errors
/// When the store cannot be asked.
pub async fn load_subtree(
    workspaces: &Workspaces,
    (org, root): (&str, &WorkspaceIncarnation),
    max: usize,
) -> Result<Option<HashSet<String>>, Unavailable> {
    let text = format!("{} LIMIT $4", ids_below("$1", "$2", "$3"));
    let (id, limit) = (root.id.as_str(), to_bigint(max.saturating_add(1)));
    let query = sql!(AssertSqlSafe(text), id, root.born_at, org, limit);
    let ids: Vec<(String,)> = workspaces.db.fetch_all("workspace_subtree", query).await?;
    Ok((ids.len() <= max).then(|| ids.into_iter().map(|(id,)| id).collect()))
}

/// Returns a query of the ids of a subtree, removed ones included: a removed workspace is where it was, and none is
/// below it. `root`, `born_at` and `org` are markers of parameters; the org is `''` for none.
pub fn ids_below(root: &str, born_at: &str, org: &str) -> String {
    format!(
        "WITH RECURSIVE below (id, status) AS ( \
           SELECT id, status FROM workspaces \
             WHERE id = {root} AND born_at = {born_at} AND COALESCE(org, '') = {org} AND status <> 'removed' \
           UNION SELECT w.id, w.status FROM workspaces w JOIN below ON w.parent_id = below.id \
             WHERE below.status <> 'removed') \
         SELECT id FROM below"
    )
}

/// The workspace that the page is about.
#[derive(Clone, Copy, Debug)]
pub struct NearScope<'a> {
    /// Id of the workspace.
    pub id: &'a WorkspaceId,
    /// Parent workspace.
    pub parent_id: Option<&'a WorkspaceId>,
    /// Org that the workspace belongs to.
    pub org: Option<&'a str>,
    /// True if all ancestors and descendants count, not only parent and children.
    pub lines: bool,
    /// True if the workspace itself counts.
    pub itself: bool,
    /// Time at which grants must hold.
    pub now: Timestamp,
}

/// Candidate of a page.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Its place in the hierarchy.
    pub step: Step,
    /// Length of its card.
    pub card_bytes: u64,
}

impl FromRow<'_, AnyRow> for Candidate {
    fn from_row(row: &AnyRow) -> Result<Self, sqlx::Error> {
        let card_bytes: u32 = read(row, "card_bytes")?;
        Ok(Self {
            step: Step::from_row(row)?,
            card_bytes: card_bytes.into(),
        })
    }
}

/// Text to search for in names and roles, ignoring case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Search {
    /// Pattern for `LIKE`, in lower case.
    pattern: String,
    /// Upper and lower case of each character that a database may not fold.
    foldings: Vec<(String, String)>,
}

impl Search {
    /// Creates a search for the literal `text`.
    pub fn new(text: &str) -> Self {
        let mut pattern = String::from("%");
        let mut foldings: Vec<(String, String)> = Vec::new();
        for lower in text.chars().flat_map(char::to_lowercase) {
            if matches!(lower, '%' | '_' | '!') {
                pattern.push('!');
            }
            pattern.push(lower);
            let upper: String = lower.to_uppercase().collect();
            let lower = lower.to_string();
            // A letter that becomes two (ß) cannot be folded back.
            let folds = !lower.is_ascii() && upper != lower && upper.chars().count() == 1;
            if folds && foldings.iter().all(|(_, known)| *known != lower) {
                foldings.push((upper, lower));
            }
        }
        pattern.push('%');
        Self { pattern, foldings }
    }
}

impl Workspaces {
    /// Returns the candidates of the page, in order of id.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn find_candidates(
        &self,
        among: CandidateScope<'_>,
        query: &CandidateQuery<'_>,
    ) -> Result<Vec<Candidate>, Unavailable> {
        let query = build_statement(among, query);
        self.db.fetch_all("workspace_candidates", query).await
    }

    /// Returns the first id of each `step` candidates, in order of id, of at most `query.limit` candidates.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn find_boundaries(
        &self,
        among: CandidateScope<'_>,
        query: &CandidateQuery<'_>,
        step: u32,
    ) -> Result<Vec<WorkspaceId>, Unavailable> {
        let mut values = Values::default();
        let candidates = build_text(&mut values, "w.id", among, query);
        let step = values.bind(i64::from(step));
        let text = format!(
            "SELECT id FROM (SELECT c.id, ROW_NUMBER() OVER (ORDER BY c.id) - 1 AS place FROM ({candidates}) AS c) \
                 AS placed WHERE placed.place % {step} = 0 ORDER BY id"
        );
        let ids: Vec<(String,)> = self
            .db
            .fetch_all("workspace_boundaries", values.into_query(text))
            .await?;
        Ok(ids
            .iter()
            .filter_map(|(id,)| WorkspaceId::parse(id).ok())
            .collect())
    }

    /// Returns those of `ids` that exist, removed or not, in order of id.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn find_many(&self, ids: &[WorkspaceId]) -> Result<Vec<Workspace>, Unavailable> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let select = format!("SELECT {} FROM workspaces WHERE id", *COLUMNS);
        let query = select_in(&select, ids.iter(), " ORDER BY id");
        self.db.fetch_all("workspace_find_many", query).await
    }
}

fn build_statement(among: CandidateScope<'_>, query: &CandidateQuery<'_>) -> Statement<'static> {
    let mut values = Values::default();
    let columns = "w.id, w.parent_id, w.org, w.status, w.access_generation, w.born_at, \
         CAST(COALESCE(OCTET_LENGTH(w.agent_card), 0) AS BIGINT) AS card_bytes";
    let text = build_text(&mut values, columns, among, query);
    values.into_query(text)
}

/// Writes the query of these columns of the candidates.
fn build_text(
    values: &mut Values,
    columns: &str,
    among: CandidateScope<'_>,
    query: &CandidateQuery<'_>,
) -> String {
    let wanted = build_filter(values, query);
    let limit = values.bind(i64::from(query.limit));
    let (lines, which) = match among {
        CandidateScope::Realm(realm) => (String::new(), build_bounds(values, &realm) + &wanted),
        CandidateScope::Public(default) => {
            let default = values.bind(default.as_str());
            let public = format!("COALESCE(w.card_access, {default}) = 'public' AND {wanted}");
            (String::new(), public)
        }
        CandidateScope::Near(near) => {
            let branches = build_branches(values, &near).into_iter().enumerate().map(
                |(n, branch)| {
                    format!(
                        "SELECT id FROM (SELECT w.id FROM workspaces w WHERE {branch} AND {wanted} \
                         ORDER BY w.id LIMIT {limit}) AS branch_{n}"
                    )
                },
            );
            let branches: Vec<_> = branches.collect();
            let lines = near.lines.then(|| build_lines(values, &near));
            let lines = lines.unwrap_or_default();
            (lines, format!("w.id IN ({})", branches.join(" UNION ")))
        }
    };
    format!("{lines}SELECT {columns} FROM workspaces w WHERE {which} ORDER BY w.id LIMIT {limit}")
}

/// Writes the bounds of a realm, each followed by `AND`.
fn build_bounds(values: &mut Values, realm: &Realm<'_>) -> String {
    let mut bounds = String::new();
    if let Some(ids) = realm.listed {
        let places: Vec<_> = ids.iter().map(|id| values.bind(id.as_str())).collect();
        // An empty list is not valid SQL.
        let places = match places.is_empty() {
            true => "NULL".to_owned(),
            false => places.join(", "),
        };
        bounds = format!("w.id IN ({places}) AND ");
    }
    if realm.org.is_none() && realm.within.is_none() {
        return bounds;
    }
    let org = values.bind(realm.org.flatten().unwrap_or_default());
    if let Some(root) = realm.within {
        let id = values.bind(root.id.as_str());
        let born_at = values.bind(root.born_at);
        bounds += &format!("w.id IN ({}) AND ", ids_below(&id, &born_at, &org));
    }
    bounds + &format!("COALESCE(w.org, '') = {org} AND ")
}

/// Writes the conditions of each branch.
fn build_filter(values: &mut Values, query: &CandidateQuery<'_>) -> String {
    let after = values.bind(query.after);
    let mut wanted = match query.status {
        Some(status) => {
            let status = values.bind(status.as_str());
            format!("w.id > {after} AND w.status = {status}")
        }
        None => format!("w.id > {after} AND w.status <> 'removed'"),
    };
    if let Some(search) = query.search {
        let pattern = values.bind(&search.pattern);
        let (mut name, mut role) = ("LOWER(w.name)".to_owned(), "LOWER(w.role)".to_owned());
        for (upper, lower) in &search.foldings {
            let (upper, lower) = (values.bind(upper), values.bind(lower));
            name = format!("REPLACE({name}, {upper}, {lower})");
            role = format!("REPLACE({role}, {upper}, {lower})");
        }
        wanted.push_str(&format!(
            " AND ({name} LIKE {pattern} ESCAPE '!' \
                 OR (w.role IS NOT NULL AND {role} LIKE {pattern} ESCAPE '!'))"
        ));
    }
    wanted
}

/// Returns one condition for each way to be near.
fn build_branches(values: &mut Values, near: &NearScope<'_>) -> Vec<String> {
    let id = values.bind(near.id.as_str());
    let org = values.bind(near.org.unwrap_or_default());
    let now = values.bind(near.now.0);
    let same_org = format!("COALESCE(w.org, '') = {org} AND w.id <> {id}");
    let mut branches = vec![
        format!("w.parent_id = {id} AND {same_org}"),
        format!(
            "w.id <> {id} AND w.id IN (SELECT g.target_id FROM access_grants g \
                 WHERE g.caller_id = {id} AND g.removed_at IS NULL \
                 AND (g.expires_at IS NULL OR g.expires_at > {now}))"
        ),
    ];
    if let Some(parent) = near.parent_id {
        let parent = values.bind(parent.as_str());
        branches.push(format!("w.id = {parent} AND {same_org}"));
        branches.push(format!("w.parent_id = {parent} AND {same_org}"));
    } else {
        branches.push(format!("w.parent_id IS NULL AND {same_org}"));
    }
    if near.lines {
        branches.push(format!("w.id IN (SELECT id FROM above) AND {same_org}"));
        branches.push(format!("w.id IN (SELECT id FROM below) AND {same_org}"));
    }
    if near.itself {
        branches.push(format!("w.id = {id}"));
    }
    branches
}

/// Adds all ancestors and descendants. Both ends stop at a removed workspace, and at one that was seen
/// before.
fn build_lines(values: &mut Values, near: &NearScope<'_>) -> String {
    let id = values.bind(near.id.as_str());
    let parent = values.bind(near.parent_id.map_or("", WorkspaceId::as_str));
    format!(
        "WITH RECURSIVE above (id, parent_id) AS ( \
               SELECT id, parent_id FROM workspaces WHERE id = {parent} AND status <> 'removed' \
               UNION SELECT w.id, w.parent_id FROM workspaces w JOIN above ON w.id = above.parent_id \
                 WHERE w.status <> 'removed'), \
             below (id) AS ( \
               SELECT id FROM workspaces WHERE parent_id = {id} AND status <> 'removed' \
               UNION SELECT w.id FROM workspaces w JOIN below ON w.parent_id = below.id \
                 WHERE w.status <> 'removed') "
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_is_folded_and_its_wildcards_are_letters() {
        let plain = Search::new("Design");
        assert_eq!(
            (plain.pattern.as_str(), plain.foldings.len()),
            ("%design%", 0)
        );
        assert_eq!(Search::new("50%_!").pattern, "%50!%!_!!%");
        let umlauts = Search::new("ÄäÖß日");
        assert_eq!(umlauts.pattern, "%ääöß日%");
        let foldings: Vec<_> = umlauts.foldings.iter().map(|(u, l)| (&**u, &**l)).collect();
        assert_eq!(foldings, [("Ä", "ä"), ("Ö", "ö")]);
    }
}
