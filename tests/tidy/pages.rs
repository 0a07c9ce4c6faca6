//! The pages for browsers: no text becomes markup, and nothing stays behind.

use crate::tree::{has_extension, list_files, read_text};

/// What makes markup of text, or keeps something where the next user of the browser finds it.
const DENIED: &str = "innerHTML outerHTML insertAdjacentHTML document.write eval( Function( setAttribute(\"style\" \
                      localStorage sessionStorage document.cookie indexedDB";

#[test]
fn the_pages_have_headers_and_make_no_markup_of_text() {
    for path in [list_files("pages"), list_files("tests/pages")].concat() {
        let is_foreign = path.starts_with("pages/vendor");
        if is_foreign || !has_extension(&path, &["js", "mjs", "css"]) {
            continue;
        }
        let (text, name) = (read_text(&path), path.display());
        assert!(
            text.starts_with("//") || text.starts_with("/*"),
            "{name} has no header"
        );
        if path.starts_with("tests") {
            continue;
        }
        for word in DENIED.split(' ') {
            // Half of a session, which opens nothing alone, is kept by one module; and what of a
            // tab of the canvas survives its reload by another.
            let is_kept = word == "sessionStorage"
                && (path.ends_with("console/session.js") || path.ends_with("canvas/kept.js"));
            assert!(is_kept || !text.contains(word), "{name} says {word}");
        }
    }
}
