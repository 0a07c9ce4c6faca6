//! Queries of usage: pages with a cursor, and the sum of all.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::json;

use super::super::canonical::clean_text;
use super::day::Day;
use super::days::{self, SumsQuery};
use super::sums::{Key, Side, Sums};
use kernel::closed_set::words;
use kernel::ids::WorkspaceIncarnation;
use stores::db::Db;
use stores::store::Unavailable;

words! {
    /// The span of one sum.
    UsageSpan {
        /// A day.
        Day => "day",
        /// All days that are asked for.
        Total => "total",
    }
}

/// The usage that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageQuery {
    /// The first day.
    pub from: Day,
    /// The last day.
    pub to: Day,
    /// The side.
    pub side: Side,
    /// True: a sum for each org. False: one for each workspace.
    pub by_org: bool,
    /// The span of a sum.
    pub per: UsageSpan,
    /// Only of this org; `Some("")`: of none.
    pub org: Option<String>,
    /// Only of this workspace, or of this kind of caller. Not with `by_org`.
    pub workspace: Option<String>,
    /// Only of the workspaces of the subtree of this one, as the hierarchy is now. Not with `by_org`; with `org`.
    pub within: Option<WorkspaceIncarnation>,
}

/// The position after which the next page begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageCursor(Key);

impl UsageCursor {
    /// Parses a cursor of the pages of `wanted`.
    pub fn parse(text: &str, wanted: &UsageQuery) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (org, workspace, day) = serde_json::from_slice::<(String, String, i64)>(&bytes).ok()?;
        // Databases refuse some of these characters, and no name has them.
        let is_plain = [&org, &workspace]
            .iter()
            .all(|name| !name.chars().any(char::is_control));
        let key = Key {
            kind: wanted.sum_kind(),
            org,
            workspace,
            day: Day(day),
        };
        is_plain.then_some(Self(key))
    }

    /// Returns the cursor.
    pub fn encode(&self) -> String {
        let Key {
            org,
            workspace,
            day,
            ..
        } = &self.0;
        URL_SAFE_NO_PAD.encode(json!([org, workspace, day.0]).to_string())
    }
}

/// One sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageLine {
    /// The day; `None`: all that are asked for.
    pub day: Option<Day>,
    /// The org; `None`: no org.
    pub org: Option<String>,
    /// The workspace, or the kind of another caller with a colon; `None`: all of the org.
    pub workspace: Option<String>,
    /// The sums.
    pub sums: Sums,
}

impl UsageQuery {
    fn sum_kind(&self) -> &'static str {
        self.side.sum_kind(self.by_org)
    }

    fn to_sums_query<'a>(&'a self, kind: &'static str, org: Option<&'a str>) -> SumsQuery<'a> {
        SumsQuery {
            kind,
            from: self.from,
            to: self.to,
            org,
            workspace: self.workspace.as_deref(),
            within: self.within.as_ref(),
        }
    }
}

/// The stored sums.
#[derive(Clone)]
pub struct Usage {
    db: Db,
}

impl Usage {
    /// Returns the sums of a database, without I/O.
    pub fn new(db: Db) -> Self {
        Self { db }
    }

    /// Returns at most `limit` sums behind `after`, by org, workspace and day, and the place of the next page.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn read_page(
        &self,
        wanted: &UsageQuery,
        after: Option<&UsageCursor>,
        limit: usize,
    ) -> Result<(Vec<UsageLine>, Option<UsageCursor>), Unavailable> {
        let org = wanted.org.as_deref().map(|org| clean_text(org.into()));
        let asked = wanted.to_sums_query(wanted.sum_kind(), org.as_deref());
        let is_whole = wanted.per == UsageSpan::Total;
        // One more shows whether there is a next page.
        let more = i64::try_from(limit).map_or(i64::MAX, |limit| limit.saturating_add(1));
        let after = after.map(|after| &after.0);
        let mut found = days::read_page(&self.db, &asked, is_whole, after, more).await?;
        let has_more = found.len() > limit;
        found.truncate(limit);
        let last = found.last().filter(|_| has_more);
        let next = last.map(|(key, _)| UsageCursor(key.clone()));
        let named = |name: String| Some(name).filter(|name| !name.is_empty());
        let line = |(key, sums): (Key, Sums)| UsageLine {
            day: Some(key.day).filter(|_| !is_whole),
            org: named(key.org),
            workspace: named(key.workspace),
            sums,
        };
        Ok((found.into_iter().map(line).collect(), next))
    }

    /// Returns the sum of all pages.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn read_total(&self, wanted: &UsageQuery) -> Result<Sums, Unavailable> {
        let org = wanted.org.as_deref().map(|org| clean_text(org.into()));
        // The orgs have the same sum in fewer rows.
        let of_some = wanted.workspace.is_some() || wanted.within.is_some();
        let kind = wanted.side.sum_kind(wanted.by_org || !of_some);
        days::read_total(&self.db, &wanted.to_sums_query(kind, org.as_deref())).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> UsageQuery {
        UsageQuery {
            from: Day(0),
            to: Day(9),
            side: Side::Target,
            by_org: true,
            per: UsageSpan::Day,
            org: None,
            workspace: None,
            within: None,
        }
    }

    #[test]
    fn a_cursor_comes_back_as_it_was_given() {
        let after = UsageCursor(Key {
            kind: "target_org",
            org: "Acme, Ltd.".to_owned(),
            workspace: String::new(),
            day: Day(3),
        });
        assert_eq!(UsageCursor::parse(&after.encode(), &wanted()), Some(after));
        let sly = URL_SAFE_NO_PAD.encode(r#"["a\u0000","",1]"#);
        for bad in ["", "!", "AAAA", &sly] {
            assert_eq!(UsageCursor::parse(bad, &wanted()), None, "{bad}");
        }
    }
}
