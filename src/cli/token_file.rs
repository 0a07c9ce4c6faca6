//! `--token-file` of the commands that make a token: the file gets it, and the terminal does not.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use super::client::Failure;

/// A file for a token, opened before there is one. An empty one is removed again.
pub(super) struct TokenFile<'a> {
    path: &'a Path,
    file: std::fs::File,
    is_written: bool,
}

impl<'a> TokenFile<'a> {
    /// Makes the file, with the mode 0600.
    ///
    /// # Errors
    /// There is a file of this name, or it cannot be made.
    pub(super) fn open(path: &'a Path) -> Result<Self, Failure> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(path);
        let file = file.map_err(|error| {
            let path = path.display();
            Failure::Usage(format!(
                "cannot make the file {path} for the token: {error}"
            ))
        })?;
        Ok(Self {
            path,
            file,
            is_written: false,
        })
    }

    /// Writes the token.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn keep(&mut self, token: &str) -> Result<(), Failure> {
        writeln!(self.file, "{token}")?;
        self.file.sync_all()?;
        self.is_written = true;
        Ok(())
    }
}

impl Drop for TokenFile<'_> {
    fn drop(&mut self) {
        if !self.is_written {
            // Without a token it is of no use; that it stays is no harm.
            let _ = std::fs::remove_file(self.path);
        }
    }
}
