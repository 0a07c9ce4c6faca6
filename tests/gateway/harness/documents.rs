//! Code blocks of the documentation, to be run unchanged.

/// The first code block of a language below a heading of `docs/design/security.md`.
pub(crate) fn block(heading: &str, language: &str) -> String {
    block_of("docs/design/security.md", heading, language)
}

/// The first code block of a language below a heading of a document.
pub(crate) fn block_of(document: &str, heading: &str, language: &str) -> String {
    let document = text_of(document);
    let (_, below) = document.split_once(&format!("\n{heading}\n")).unwrap();
    let (_, rest) = below.split_once(&format!("\n```{language}\n")).unwrap();
    rest.split_once("\n```\n").unwrap().0.to_owned()
}

/// The text of a document.
pub(crate) fn text_of(document: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(document);
    std::fs::read_to_string(path).unwrap()
}
