//! The orgs of many workspaces at once.

use std::collections::HashMap;

use serde_json::json;

use crate::rows::sql;
use stores::db::Db;
use stores::store::Unavailable;

// One parameter for any number of ids, so that there is one statement to prepare.
const IN_FILE: &str =
    "SELECT id, org FROM workspaces WHERE id IN (SELECT value FROM json_each($1))";

const IN_POSTGRES: &str = "SELECT id, org FROM workspaces \
     WHERE id IN (SELECT jsonb_array_elements_text(CAST($1 AS JSONB)))";

/// Returns the orgs of those of `ids` that exist, removed or not.
///
/// # Errors
/// When the store cannot be asked.
pub async fn orgs_of(
    db: &Db,
    ids: &[&str],
) -> Result<HashMap<String, Option<String>>, Unavailable> {
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let text = match db.is_embedded() {
        true => IN_FILE,
        false => IN_POSTGRES,
    };
    let orgs = db.fetch_all("workspace_orgs", sql!(text, json!(ids).to_string()));
    Ok(orgs.await?.into_iter().collect())
}
