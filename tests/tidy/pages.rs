//! The pages for browsers: readable, and no text becomes markup.

use std::fs;

use crate::FILE_LINES_MAX;
use crate::tree::root;

#[test]
fn the_pages_stay_readable_and_make_no_markup_of_text() {
    let mut folders = vec![root().join("pages"), root().join("tests/pages")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("pages/vendor") {
                folders.push(path);
                continue;
            }
            let is_source = |e: &std::ffi::OsStr| e == "js" || e == "mjs" || e == "css";
            if !path.extension().is_some_and(is_source) {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let lines = text.lines().count();
            assert!(
                lines <= FILE_LINES_MAX,
                "{} has {lines} lines",
                path.display()
            );
            let begins = text.starts_with("//") || text.starts_with("/*");
            assert!(begins, "{} has no header", path.display());
            if path.starts_with(root().join("tests")) {
                continue;
            }
            // Nor is anything kept where the next user of the browser finds it.
            // Half of a session, which opens nothing alone, is kept by one module.
            let keeps = path.ends_with("console/session.js");
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                "setAttribute(\"style\"",
                "localStorage",
                "sessionStorage",
                "document.cookie",
                "indexedDB",
            ] {
                let allowed = keeps && word == "sessionStorage";
                assert!(
                    allowed || !text.contains(word),
                    "{} says {word}",
                    path.display()
                );
            }
        }
    }
}
