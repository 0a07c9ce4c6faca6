//! The documentation as a site: `scripts/site` builds it and follows its links; Debian's chromium searches in it
//! (`tests/pages/site.mjs`, seen with `--nocapture`).
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

#[path = "gateway/harness/packages.rs"]
mod packages;

use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn the_site_has_all_documents_its_links_lead_somewhere_and_a_search_finds_a_page() {
    common::assert_script_passes("scripts/site");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    common::assert_passes(
        Command::new("node")
            .arg(root.join("tests/pages/site.mjs"))
            .env("PAGES_PACKAGES", packages::installed("scripts/pages"))
            .env("PAGES_DEMO", "")
            .env("PAGES_SEEN", target.join("pages-seen"))
            .env("SITE", target.join("site")),
    );
}
