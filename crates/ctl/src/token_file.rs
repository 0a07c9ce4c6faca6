//! `--token-file` and `--json` of the commands that make a token: the file gets it, and the terminal does not.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::{NamedTempFile, TempPath};

use super::failure::Failure;
use super::table::format_json;

/// Where a new token goes, and the form of what is printed.
#[derive(clap::Args, Debug, Default)]
pub(crate) struct TokenOutput {
    /// Write the token into this new file, which only its owner can read, instead of printing it
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Print the gateway's answer as JSON; with --token-file without the token
    #[arg(long)]
    pub(crate) json: bool,
}

impl TokenOutput {
    /// Opens the file for the token, if one was asked for: before there is a token, which is shown once.
    ///
    /// # Errors
    /// As [`open_file`].
    pub(crate) fn open(&self) -> Result<Option<NamedTempFile>, Failure> {
        self.token_file.as_deref().map(open_file).transpose()
    }

    /// Moves the token of an answer into the file, if there is one.
    ///
    /// # Errors
    /// The answer has no token, or the file cannot be written.
    pub(crate) fn store_token(
        made: &mut Value,
        file: Option<NamedTempFile>,
    ) -> Result<(), Failure> {
        let name = member_of(made);
        let token = made[name].as_str();
        let token = token.ok_or_else(|| Failure::new("the gateway gave no token"))?;
        let Some(mut file) = file else {
            return Ok(());
        };
        writeln!(file, "{token}")?;
        file.as_file().sync_all()?;
        file.keep().map_err(|kept| kept.error)?;
        made.as_object_mut().map(|made| made.remove(name));
        Ok(())
    }

    /// Returns what is printed of a new token; into the file goes the token itself.
    ///
    /// # Errors
    /// As [`TokenOutput::store_token`].
    pub(crate) fn hand_over(
        &self,
        mut made: Value,
        file: Option<NamedTempFile>,
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

/// Makes a file for a token, with the mode 0600, before there is one. Without a token it is removed again.
///
/// # Errors
/// There is a file of this name, or it cannot be made.
fn open_file(path: &Path) -> Result<NamedTempFile, Failure> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    let file = file.map_err(|error| {
        let path = path.display();
        Failure::usage(format!(
            "cannot make the file {path} for the token: {error}"
        ))
    })?;
    Ok(NamedTempFile::from_parts(
        file,
        TempPath::try_from_path(path)?,
    ))
}
