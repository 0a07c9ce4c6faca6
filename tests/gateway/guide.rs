//! The page of the guide that needs real stores. `tests/readme.rs` runs the others.

#[path = "../common/steps.rs"]
mod steps;

use std::path::Path;

use crate::harness::planted::DATABASE_PASSWORD;
use crate::harness::servers::{Redis, postgres};

/// Waits until the other gateway refuses the token.
const REVOKED: &str = r#"
while a2a-gateway send writer 'is it good?' --url $two --token "$script" > /dev/null 2>&1; do sleep 0.2; done
"#;

#[test]
fn the_page_of_two_gateways_leads_to_what_it_shows() {
    let redis = Redis::start();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guide/two-gateways.md");
    let marker = "<!-- tests/gateway/guide.rs runs these blocks as they stand. -->";
    let database = postgres().database();
    let database = database.replacen(&format!(":{DATABASE_PASSWORD}@"), "@", 1);
    let password = format!("echo {DATABASE_PASSWORD} >");
    let replaced = [
        ("echo gateway >", &*password),
        // On a busy machine it takes longer than the second that the page waits.
        ("\nsleep 1\n", REVOKED),
        ("postgres://gateway@127.0.0.1:5432/gateway", &*database),
        ("redis://127.0.0.1:6379/1", &*redis.url()),
    ];
    steps::assert_leads_to_what_it_shows(&page, marker, &replaced);
}
