//! `--token-file` and `--json` of the commands that make a token: the file gets it, and the terminal does not.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::client::format_json;
use super::failure::Failure;

/// Where a new token goes, and the form of what is printed.
#[derive(clap::Args, Debug)]
pub(super) struct TokenOutput {
    /// Write the token into this new file, which only its owner can read, instead of printing it
    #[arg(long, value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,
    /// Print the gateway's answer as JSON; with --token-file without the token
    #[arg(long)]
    pub(super) json: bool,
}

impl TokenOutput {
    /// Opens the file for the token, if one was asked for: before there is a token, which is shown once.
    ///
    /// # Errors
    /// As [`TokenFile::open`].
    pub(super) fn open(&self) -> Result<Option<TokenFile<'_>>, Failure> {
        self.token_file.as_deref().map(TokenFile::open).transpose()
    }

    /// Moves the token of an answer into the file, if there is one.
    ///
    /// # Errors
    /// The answer has no token, or the file cannot be written.
    pub(super) fn store_token(
        made: &mut Value,
        file: Option<TokenFile<'_>>,
    ) -> Result<(), Failure> {
        let name = member_of(made);
        let token = made[name].as_str();
        let token = token.ok_or_else(|| Failure::new("the gateway gave no token"))?;
        let Some(mut file) = file else {
            return Ok(());
        };
        file.write_token(token)?;
        made.as_object_mut().map(|made| made.remove(name));
        Ok(())
    }

    /// Returns what is printed of a new token; into the file goes the token itself.
    ///
    /// # Errors
    /// As [`TokenOutput::store_token`].
    pub(super) fn hand_over(
        &self,
        mut made: Value,
        file: Option<TokenFile<'_>>,
    ) -> Result<String, Failure> {
        let name = member_of(&made);
        Self::store_token(&mut made, file)?;
        if self.json {
            return Ok(format_json(&made));
        }
        let id = made["id"].as_str().map(|id| format!(" {id}"));
        Ok(match (made[name].as_str(), &self.token_file) {
            (None, Some(path)) => {
                let id = id.unwrap_or_default();
                format!("token{id}: in {}\n", path.display())
            }
            (token, _) => format!("{}\n", token.unwrap_or_default()),
        })
    }
}

/// Returns the member of an answer that has the token.
fn member_of(made: &Value) -> &'static str {
    match made["token"].is_string() {
        true => "token",
        false => "enrolment_token",
    }
}

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
            Failure::usage(format!(
                "cannot make the file {path} for the token: {error}"
            ))
        })?;
        Ok(Self {
            path,
            file,
            is_written: false,
        })
    }

    fn write_token(&mut self, token: &str) -> Result<(), Failure> {
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
