//! The README's steps and the commands of the guide, run as they stand but for the ports.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "common/ports.rs"]
mod ports;
#[path = "common/steps.rs"]
mod steps;

use std::fs;
use std::path::{Path, PathBuf};

use steps::assert_leads_to_what_it_shows;

/// Marks the place from which on the `sh` blocks of a document are run.
const MARKER: &str = "<!-- tests/readme.rs runs these blocks as they stand. -->";

/// Pages of the guide whose commands are run at the same time.
const AT_ONCE: usize = 2;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The pages of the guide with commands to run.
fn pages() -> Vec<PathBuf> {
    let folder = fs::read_dir(root().join("docs/guide")).unwrap();
    let pages = folder.map(|entry| entry.unwrap().path());
    let is_run = |page: &PathBuf| {
        page.extension().is_some_and(|e| e == "md")
            && fs::read_to_string(page).unwrap().contains(MARKER)
    };
    pages.filter(is_run).collect()
}

#[test]
fn the_readmes_steps_lead_from_nothing_to_an_answer_and_a_refusal() {
    assert_leads_to_what_it_shows(&root().join("README.md"), MARKER, &[]);
}

#[test]
fn the_commands_of_each_page_of_the_guide_lead_to_what_it_shows() {
    let pages = pages();
    assert!(pages.len() > 9, "{pages:?}");
    for some in pages.chunks(AT_ONCE) {
        std::thread::scope(|scope| {
            for page in some {
                scope.spawn(|| assert_leads_to_what_it_shows(page, MARKER, &[]));
            }
        });
    }
}
