//! What the fuzz targets do with one input, and what must hold for every input. Each module is one
//! target. `tests/corpus.rs` includes this file and does the same with every file of the corpus, so
//! that a plain `cargo test` replays what was found.

pub mod answer;
pub mod bridge;
pub mod card;
pub mod envelope;
pub mod event;
pub mod head;
pub mod token;
pub mod url;

/// Runs one input. Panics where a promise is broken.
pub type Target = fn(&[u8]);

/// The targets by name: that of their module, of their file in `fuzz_targets/` and of their corpus.
pub const TARGETS: [(&str, Target); 8] = [
    ("answer", answer::run),
    ("bridge", bridge::run),
    ("card", card::run),
    ("envelope", envelope::run),
    ("event", event::run),
    ("head", head::run),
    ("token", token::run),
    ("url", url::run),
];
