//! The agent's credentials: the file of its token, the enrolment token, and the place of the workspace's own token.

use std::cell::RefCell;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::NamedTempFile;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use ctl::token_alone;
use kernel::config::refuse_exposed;
use kernel::telemetry::Chain;

/// Largest token file, in bytes: twice the longest token that a gateway takes.
const TOKEN_FILE_MAX: u64 = 16 * 1024;

/// Longest wait for the content of the file, which may be on a server that is away.
const READ_WITHIN: Duration = Duration::from_secs(2);

/// Prefix of an enrolment token.
const ENROLMENT: &str = "a2ae_";

/// Mode of a file that only its owner may read.
const SECRET: u32 = 0o600;

/// Where the agent's tokens are.
pub(super) struct Credentials {
    file: PathBuf,
    enrolment: Option<String>,
    /// The workspace's own token, if the file could not be written.
    unwritten: RefCell<Option<String>>,
}

/// The tokens of the agent at one time.
pub(super) struct Tokens {
    /// Those that may be good, the best first.
    pub(super) all: Vec<String>,
    /// The reason for which the file was not read. A file that is missing or has no token has none.
    pub(super) unread: Option<io::Error>,
}

/// The file that replaces that of the token; none where its folder is not writable.
pub(super) type TokenSlot = Option<NamedTempFile>;

/// True for a token that only registers, and only once.
pub(super) fn is_enrolment(token: &str) -> bool {
    token.starts_with(ENROLMENT)
}

impl Credentials {
    pub(super) fn new(file: PathBuf, enrolment: Option<String>) -> Self {
        let unwritten = RefCell::default();
        Self {
            file,
            enrolment,
            unwritten,
        }
    }

    /// Returns the path of the file, for messages.
    pub(super) fn file_name(&self) -> String {
        self.file.display().to_string()
    }

    /// Warns of a file to which every user has access.
    pub(super) fn warn_of_readers(&self) {
        let about = self.file.metadata();
        if let Ok(Err(reason)) = about.map(|about| refuse_exposed(&self.file, &about)) {
            tracing::warn!(reason, "The agent's token is no secret");
        }
    }

    /// Returns the tokens as they are now: one that was rotated in the file counts at once.
    pub(super) async fn read_tokens(&self) -> Tokens {
        let file = self.file.clone();
        let reading = timeout(READ_WITHIN, spawn_blocking(move || read_token(&file)));
        let (read, unread) = match reading.await {
            Ok(Ok(Ok(token))) => (token, None),
            Ok(Ok(Err(error))) => (None, Some(error)),
            Ok(Err(panicked)) => (None, Some(io::Error::other(panicked))),
            Err(_) => {
                let late = format!("no answer from the file system within {READ_WITHIN:?}");
                (None, Some(io::Error::new(io::ErrorKind::TimedOut, late)))
            }
        };
        let (enrolment, own): (Vec<_>, Vec<_>) =
            read.into_iter().partition(|token| is_enrolment(token));
        let all = own
            .into_iter()
            .chain(self.unwritten.borrow().clone())
            .chain(enrolment)
            .chain(self.enrolment.clone().filter(|token| !token.is_empty()));
        Tokens {
            all: all.collect(),
            unread,
        }
    }

    /// Reserves the location of a new token before it is asked for.
    ///
    /// # Errors
    /// When neither the folder nor the file can be written, or the file is a folder.
    pub(super) fn reserve_slot(&self) -> io::Result<TokenSlot> {
        // A symbolic link is replaced, since another user may have made it.
        let file = &self.file;
        if file.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let folder = file
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        NamedTempFile::new_in(folder.unwrap_or(Path::new("."))).map_or_else(
            |error| {
                let opened = without_wait(libc::O_NOFOLLOW).write(true).open(file);
                opened.map(|_| None).map_err(|_| error)
            },
            |beside| Ok(Some(beside)),
        )
    }

    /// Puts the workspace's own token into the file, or keeps it in memory. `slot` is that of [`Self::reserve_slot`].
    pub(super) fn store_token(&self, token: &str, slot: Option<TokenSlot>) {
        let slot = slot.map_or_else(|| self.reserve_slot(), Ok);
        let written = slot.and_then(|slot| self.write_token(slot, token));
        if let Err(error) = &written {
            let file = self.file_name();
            tracing::error!(
                error = %Chain(error), file,
                "The workspace's own token cannot be written: it is lost with this process. Make another one for the \
                 file (POST /workspaces/ID/tokens)"
            );
        }
        self.unwritten
            .replace(written.is_err().then(|| token.to_owned()));
    }

    /// Replaces the file. Where it cannot be replaced, as a mount of the file alone, it is overwritten.
    fn write_token(&self, slot: TokenSlot, token: &str) -> io::Result<()> {
        let replaced = slot.is_some_and(|beside| replace_file(&self.file, beside, token).is_ok());
        if replaced {
            return Ok(());
        }
        let mut options = without_wait(libc::O_NOFOLLOW);
        let options = options.write(true).create(true).truncate(true).mode(SECRET);
        let mut opened = options.open(&self.file)?;
        // Some file systems have no modes.
        let _ = opened.set_permissions(Permissions::from_mode(SECRET));
        write_synced(&mut opened, token)
    }
}

/// A crash leaves the old content or the new one.
fn replace_file(file: &Path, mut beside: NamedTempFile, token: &str) -> io::Result<()> {
    write_synced(beside.as_file_mut(), token)?;
    beside.persist(file)?;
    Ok(())
}

fn write_synced(opened: &mut File, token: &str) -> io::Result<()> {
    opened.write_all(token.as_bytes())?;
    opened.sync_all()
}

/// Options with which a pipe without another end does not block.
fn without_wait(flags: i32) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags(libc::O_NONBLOCK | flags);
    options
}

/// Reads the file; none if it is missing or empty.
fn read_token(file: &Path) -> io::Result<Option<String>> {
    let opened = match without_wait(0).read(true).open(file) {
        Ok(opened) => opened,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if !opened.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut text = Vec::new();
    opened.take(TOKEN_FILE_MAX + 1).read_to_end(&mut text)?;
    if text.len() as u64 > TOKEN_FILE_MAX {
        let long = format!("it is too long for a token: more than {TOKEN_FILE_MAX} bytes");
        return Err(io::Error::other(long));
    }
    let token = token_alone(&text).map_err(io::Error::other)?;
    Ok(Some(token).filter(|token| !token.is_empty()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;

    /// A folder with a token file.
    fn place(text: impl AsRef<[u8]>) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        fs::write(&file, text).unwrap();
        (folder, file)
    }

    fn mode(file: &Path) -> u32 {
        file.symlink_metadata().unwrap().permissions().mode() & 0o777
    }

    #[tokio::test]
    async fn the_enrolment_token_follows_all_that_is_in_the_file() {
        let longest = "a2aw_".repeat(1638);
        for (text, expected) in [
            (" a2aw_own\n", &["a2aw_own", "a2ae_given"][..]),
            ("a2ae_once", &["a2ae_once", "a2ae_given"]),
            (longest.as_str(), &[longest.as_str(), "a2ae_given"]),
            ("", &["a2ae_given"]),
        ] {
            let (_folder, file) = place(text);
            let credentials = Credentials::new(file, Some("a2ae_given".to_owned()));
            let tokens = credentials.read_tokens().await;
            assert_eq!(tokens.all, expected);
            assert!(tokens.unread.is_none());
        }
    }

    #[tokio::test]
    async fn what_is_no_token_file_is_said() {
        let (folder, long) = place(vec![b'a'; 16 * 1024 + 1]);
        let pipe = folder.path().join("pipe");
        assert!(
            Command::new("mkfifo")
                .arg(&pipe)
                .status()
                .unwrap()
                .success()
        );
        let (_one, lines) = place("a2aw_one\na2aw_two");
        let (_two, nul) = place("a2aw_one\0");
        let (_three, mark) = place("\u{feff}a2aw_one");
        for (file, part) in [
            (long, "too long"),
            (lines, "more than one line"),
            (nul, "such as NUL"),
            (mark, "a BOM"),
            (pipe, "no regular file"),
            (folder.path().to_owned(), "no regular file"),
        ] {
            let tokens = Credentials::new(file, None).read_tokens().await;
            assert!(tokens.all.is_empty());
            let said = tokens.unread.unwrap().to_string();
            assert!(said.contains(part) && !said.contains("a2aw"), "{said}");
        }
    }

    #[tokio::test]
    async fn the_own_token_is_kept_where_the_file_cannot_be_replaced() {
        let (_folder, file) = place("a2ae_once_and_longer_than_the_own_token");
        let credentials = Credentials::new(file.clone(), None);
        let slot = credentials.reserve_slot().unwrap();
        // As if the file were a mount.
        fs::remove_file(slot.as_ref().unwrap().path()).unwrap();
        credentials.store_token("a2aw_first", Some(slot));
        assert_eq!(fs::read_to_string(&file).unwrap(), "a2aw_first");
        assert_eq!(mode(&file), SECRET);
        credentials.store_token("a2aw_second", None);
        assert_eq!(fs::read_to_string(&file).unwrap(), "a2aw_second");
        // A link that another user may have made is replaced, and its target stays as it is.
        let (_elsewhere, target) = place("of another");
        fs::remove_file(&file).unwrap();
        symlink(&target, &file).unwrap();
        let slot = credentials.reserve_slot().unwrap();
        fs::remove_file(slot.as_ref().unwrap().path()).unwrap();
        credentials.store_token("a2aw_nowhere", Some(slot));
        assert!(file.is_symlink());
        credentials.store_token("a2aw_linked", None);
        assert!(!file.is_symlink());
        assert_eq!(fs::read_to_string(&target).unwrap(), "of another");
        assert_eq!(fs::read_to_string(&file).unwrap(), "a2aw_linked");
        // No place at all.
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert!(credentials.reserve_slot().is_err());
        credentials.store_token("a2aw_third", None);
        assert_eq!(credentials.read_tokens().await.all, ["a2aw_third"]);
        fs::remove_dir(&file).unwrap();
        fs::write(&file, "a2aw_fourth").unwrap();
        assert_eq!(credentials.read_tokens().await.all[0], "a2aw_fourth");
    }
}
