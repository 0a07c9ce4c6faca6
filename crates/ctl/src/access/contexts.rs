//! The file of contexts: names of gateways, each with its URLs and its token. It has the mode 0600, and is refused if
//! others can read it.

use std::collections::BTreeMap;
use std::env;
use std::fmt::Display;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap_complete::engine::CompletionCandidate;
use serde::{Deserialize, Serialize};
use url::Url;

use super::{token_alone, without_user};
use crate::failure::Failure;

/// Variable with the path of the file.
const VARIABLE: &str = "A2A_CONTEXTS";

/// Largest file, in bytes.
const BYTES_MAX: u64 = 1 << 20;

/// Longest name of a context, in characters.
const NAME_MAX: usize = 64;

/// Longest wait for other commands that change the file.
const LOCK_MAX: Duration = Duration::from_secs(20);

/// A gateway and the credential for it, as the file has it under its name. Without `Debug`: it may hold a token.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Context {
    /// Base URL of the public listener.
    pub(crate) url: Url,
    /// Base URL of the admin listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) admin_url: Option<Url>,
    /// The token; it counts more than the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<String>,
    /// The file with the token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_file: Option<PathBuf>,
    /// The current context before this one, which is so again once this one is removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) before: Option<String>,
    /// Tokens of callers by their workspaces, for `send --as` and `task --as`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) callers: BTreeMap<String, String>,
}

/// The file of contexts.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Contexts {
    #[serde(skip)]
    path: PathBuf,
    /// The name of the one that is used where none is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) current: Option<String>,
    #[serde(default, rename = "contexts")]
    pub(crate) list: BTreeMap<String, Context>,
}

impl Context {
    /// Returns the token, read from its file if it is in one; `None` if there is none.
    ///
    /// # Errors
    /// The file cannot be read, or by others, too.
    pub(crate) fn read_token(&self) -> Result<Option<String>, Failure> {
        let token = match (&self.token, &self.token_file) {
            (None, Some(path)) => {
                let token = token_alone(read_private(path, File::open(path))?.as_bytes());
                Some(token.map_err(|why| malformed(path, why))?)
            }
            (token, _) => token.clone(),
        };
        Ok(token.filter(|token| !token.is_empty()))
    }

    /// Returns the token of a caller.
    ///
    /// # Errors
    /// The context has none of this workspace.
    pub(crate) fn find_caller(&self, workspace: &str) -> Result<String, Failure> {
        self.callers.get(workspace).cloned().ok_or_else(|| {
            let known: Vec<&str> = self.callers.keys().map(String::as_str).collect();
            let known = match known.is_empty() {
                true => "no caller's token".to_owned(),
                false => format!("tokens of {}", known.join(", ")),
            };
            Failure::usage(format!(
                "the context has {known}, none of {workspace}; add it: `a2a-gateway context add NAME --replace --as {workspace} --token -`"
            ))
        })
    }
}

impl Contexts {
    /// Reads the file; without one there are no contexts.
    ///
    /// # Errors
    /// It cannot be read or used, or others can read it.
    pub(crate) fn read() -> Result<Self, Failure> {
        let Some(path) = file_path() else {
            return Ok(Self::default());
        };
        let text = match File::open(&path) {
            Err(error) if is_absent(&error) => String::new(),
            opened => read_private(&path, opened)?,
        };
        let contexts = toml::from_str(&text).map_err(|error: toml::de::Error| {
            // Neither the line nor the parser's words, which may have a token.
            let start = error.span().map_or(0, |span| span.start);
            let before = text.get(..start).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            malformed(&path, format!("line {line} is not of a file of contexts"))
        })?;
        Ok(Self { path, ..contexts })
    }

    /// Reads the file to change it. Other commands that change it wait until the first value is dropped.
    ///
    /// # Errors
    /// As [`Self::read`]; there is no place for the file, or its folder cannot be locked.
    pub(crate) fn lock_and_read() -> Result<(File, Self), Failure> {
        let path = file_path().ok_or_else(|| {
            Failure::usage(
                "no place for the file of contexts: set A2A_CONTEXTS, XDG_CONFIG_HOME or HOME",
            )
        })?;
        let locked = lock_folder(parent_folder(&path));
        let locked = locked.map_err(|error| unwritable(&path, &error))?;
        Ok((locked, Self::read()?))
    }

    /// Returns a context.
    ///
    /// # Errors
    /// There is none of this name.
    pub(crate) fn find(&self, name: &str) -> Result<&Context, Failure> {
        self.list.get(name).ok_or_else(|| {
            let path = self.path.display();
            Failure::usage(format!(
                "there is no context {name:?} in {path}; `a2a-gateway context list` shows those that there are"
            ))
        })
    }

    /// Puts a context in. The first one is the current one.
    ///
    /// # Errors
    /// The name is none, or taken, unless it may `replace` one.
    pub(crate) fn insert(
        &mut self,
        name: &str,
        context: Context,
        replace: bool,
    ) -> Result<(), Failure> {
        let is_good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(is_good) {
            return Err(Failure::usage(format!(
                "a context is called by 1 to {NAME_MAX} letters, digits, `-`, `_` and `.`"
            )));
        }
        if !replace && self.list.contains_key(name) {
            return Err(Failure::usage(format!(
                "there is a context {name:?} already; --replace changes it"
            )));
        }
        if self.list.is_empty() {
            self.current = Some(name.to_owned());
        }
        self.list.insert(name.to_owned(), context);
        Ok(())
    }

    /// Makes a context the current one.
    ///
    /// # Errors
    /// As [`Self::find`].
    pub(crate) fn set_current(&mut self, name: &str) -> Result<(), Failure> {
        self.find(name)?;
        self.current = Some(name.to_owned());
        Ok(())
    }

    /// Takes a context out. True if it was the current one: then that before it is, or none.
    ///
    /// # Errors
    /// As [`Self::find`].
    pub(crate) fn remove(&mut self, name: &str) -> Result<bool, Failure> {
        self.find(name)?;
        let removed = self.list.remove(name);
        let was_current = self.current.take_if(|current| *current == name).is_some();
        if was_current {
            let before = removed.and_then(|context| context.before);
            self.current = before.filter(|before| self.list.contains_key(before));
        }
        Ok(was_current)
    }

    /// Writes the file as a whole, readable by its owner alone.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn write(&self) -> Result<(), Failure> {
        let text = toml::to_string(self).map_err(io::Error::other);
        let written = text.and_then(|text| write_private(&self.path, &text));
        written.map_err(|error| unwritable(&self.path, &error))
    }
}

fn malformed(path: &Path, why: impl Display) -> Failure {
    Failure::usage(format!("{} cannot be used: {why}", path.display()))
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::usage(format!("cannot write {}: {error}", path.display()))
}

/// Returns the contexts as candidates of a shell: none if the file cannot be used.
pub(crate) fn names_for_shells() -> Vec<CompletionCandidate> {
    let contexts = Contexts::read().unwrap_or_default().list;
    let candidate = |(name, context): (String, Context)| {
        CompletionCandidate::new(name).help(Some(without_user(&context.url).into()))
    };
    contexts.into_iter().map(candidate).collect()
}

/// True if there is no file: also where the home is another user's, as it is for a command below `sudo`.
fn is_absent(error: &io::Error) -> bool {
    let is_named = env::var_os(VARIABLE).is_some_and(|path| !path.is_empty());
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => true,
        io::ErrorKind::PermissionDenied => !is_named,
        _ => false,
    }
}

/// Returns the path of the file.
fn file_path() -> Option<PathBuf> {
    let of = |name: &str| {
        let path = env::var_os(name).map(PathBuf::from);
        path.filter(|path| !path.as_os_str().is_empty())
    };
    if let Some(path) = of(VARIABLE) {
        return Some(path);
    }
    // Relative paths in these are to be ignored (XDG Base Directory Specification).
    let folder = of("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
    let folder = folder.or_else(|| Some(of("HOME")?.join(".config")))?;
    Some(folder.join("a2a-gateway/contexts.toml"))
}

/// Reads a file that others must not be able to read.
fn read_private(path: &Path, opened: io::Result<File>) -> Result<String, Failure> {
    let shown = path.display();
    let unreadable = |error: io::Error| Failure::usage(format!("cannot read {shown}: {error}"));
    let file = opened.map_err(unreadable)?;
    let about = file.metadata().map_err(unreadable)?;
    let mode = about.permissions().mode() & 0o777;
    // What is no file, such as a pipe of the shell, is of this process alone.
    if about.is_file() && mode & 0o077 != 0 {
        return Err(Failure::usage(format!(
            "{shown} can be read or written by other users (mode {mode:o}), and may hold a token: `chmod 600 {shown}`"
        )));
    }
    let mut text = String::new();
    let read = file.take(BYTES_MAX + 1).read_to_string(&mut text);
    if read.map_err(unreadable)? as u64 > BYTES_MAX {
        return Err(malformed(
            path,
            format!("it has more than {BYTES_MAX} bytes"),
        ));
    }
    Ok(text)
}

fn parent_folder(path: &Path) -> &Path {
    let folder = path.parent();
    let folder = folder.filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Locks a folder, which is made with the mode 0700 if it is missing.
fn lock_folder(folder: &Path) -> io::Result<File> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    let (file, deadline) = (File::open(folder)?, Instant::now() + LOCK_MAX);
    while let Err(error) = file.try_lock() {
        if matches!(error, TryLockError::Error(_)) || Instant::now() >= deadline {
            return Err(error.into());
        }
        sleep(Duration::from_millis(5));
    }
    Ok(file)
}

/// Writes a file as a whole, with the mode 0600.
fn write_private(path: &Path, text: &str) -> io::Result<()> {
    // A link is kept.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut file = tempfile::NamedTempFile::new_in(parent_folder(&path))?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(&path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context() -> Context {
        Context {
            url: Url::parse("https://gateway.example.com").unwrap(),
            admin_url: None,
            token: Some("a2aa_secret".to_owned()),
            token_file: None,
            before: None,
            callers: BTreeMap::new(),
        }
    }

    #[test]
    fn a_file_is_written_for_its_owner_alone_and_refused_if_others_can_read_it() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("below/contexts.toml");
        let mut contexts = Contexts {
            path: path.clone(),
            ..Contexts::default()
        };
        contexts.insert("prod", context(), false).unwrap();
        lock_folder(parent_folder(&path)).unwrap();
        contexts.write().unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let read = || read_private(&path, File::open(&path));
        assert!(read().unwrap().contains("current = \"prod\""));
        for shared in [0o640, 0o604, 0o620] {
            fs::set_permissions(&path, fs::Permissions::from_mode(shared)).unwrap();
            let error = read().unwrap_err().to_string();
            assert!(error.contains(&format!("mode {shared:o}")), "{error}");
            assert!(error.contains("chmod 600"), "{error}");
        }
    }

    #[test]
    fn the_first_context_is_the_current_one_until_it_is_taken_out() {
        let mut contexts = Contexts::default();
        contexts.insert("one", context(), false).unwrap();
        contexts.insert("two", context(), false).unwrap();
        assert_eq!(contexts.current.as_deref(), Some("one"));
        let taken = contexts.insert("two", context(), false).unwrap_err();
        assert!(taken.to_string().contains("--replace"), "{taken}");
        contexts.insert("two", context(), true).unwrap();
        for name in ["", "a b", "a/b", &"x".repeat(65)] {
            let put = contexts.insert(name, context(), false).unwrap_err();
            assert!(put.to_string().contains("is called by"), "{name}: {put}");
        }
        contexts.set_current("two").unwrap();
        assert!(contexts.remove("two").unwrap());
        assert!(contexts.current.is_none());
        let after = Context {
            before: Some("one".to_owned()),
            ..context()
        };
        contexts.insert("two", after, false).unwrap();
        contexts.set_current("two").unwrap();
        assert!(contexts.remove("two").unwrap());
        assert_eq!(contexts.current.as_deref(), Some("one"));
        assert!(contexts.set_current("two").is_err());
    }
}
