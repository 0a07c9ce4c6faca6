//! Reads files named by the operator, without blocking on pipes.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Opens a regular file. Opening a pipe would block until it has a writer.
///
/// # Errors
/// Returns the system's error, or an error for anything but a regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    File::open(path)
}

/// Reads a whole regular file of at most `most` bytes.
pub(super) fn read_regular(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = open_regular(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if u64::try_from(read).is_ok_and(|read| read > most) {
        return Err(io::Error::other(format!("more than {most} bytes")));
    }
    Ok(bytes)
}
