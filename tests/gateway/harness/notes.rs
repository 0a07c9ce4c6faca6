//! Files of `scripts/test`: what it tells at the end of a run.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;

/// Appends a line to a file that `scripts/test` reads. One write, so that two at once stay two lines.
pub(crate) fn append(file: &str, line: &str) -> io::Result<()> {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(file);
    let mut open = OpenOptions::new().create(true).append(true).open(path)?;
    open.write_all(format!("{line}\n").as_bytes())
}
