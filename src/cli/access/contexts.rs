//! The file of contexts: names of gateways, each with its URLs and its token. It has the mode 0600, and is refused if
//! others can read it.

use std::collections::BTreeMap;
use std::env;
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

/// Variable with the path of the file.
const VARIABLE: &str = "A2A_CONTEXTS";

/// Largest file, in bytes.
const BYTES_MAX: u64 = 1 << 20;

/// Longest name of a context, in characters.
const NAME_MAX: usize = 64;

/// Longest wait for other commands that change the file.
const LOCK_MAX: Duration = Duration::from_secs(20);

/// The contexts cannot be read, written or found.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum ContextsError {
    #[error("cannot read {path}")]
    Unreadable {
        /// The file.
        path: String,
        #[source]
        source: io::Error,
    },
    #[error(
        "{path} can be read or written by other users (mode {mode:o}), and may hold a token: `chmod 600 {path}`"
    )]
    Shared {
        /// The file.
        path: String,
        /// Its permissions.
        mode: u32,
    },
    #[error("{path} cannot be used: {why}")]
    Malformed {
        /// The file.
        path: String,
        /// The first fault.
        why: String,
    },
    #[error(
        "there is no context {name:?} in {path}; `a2a-gateway context list` shows those that there are"
    )]
    Unknown {
        /// The name.
        name: String,
        /// The file.
        path: String,
    },
    #[error("there is a context {0:?} already; --replace changes it")]
    Taken(String),
    #[error("a context is called by 1 to {NAME_MAX} letters, digits, `-`, `_` and `.`")]
    Name,
    #[error("no place for the file of contexts: set A2A_CONTEXTS, XDG_CONFIG_HOME or HOME")]
    NoPlace,
    #[error("cannot write {path}")]
    Unwritable {
        /// The file.
        path: String,
        #[source]
        source: io::Error,
    },
}

/// A gateway and the credential for it. Without `Debug`: it may hold a token.
#[derive(Clone)]
pub(in crate::cli) struct Context {
    /// Its name.
    pub(in crate::cli) name: String,
    /// Base URL of the public listener.
    pub(in crate::cli) url: Url,
    /// Base URL of the admin listener.
    pub(in crate::cli) admin_url: Option<Url>,
    /// The token, or where it is.
    pub(in crate::cli) secret: Secret,
}

/// The credential of a context.
#[derive(Clone)]
pub(in crate::cli) enum Secret {
    /// There is none.
    None,
    /// It is in the file of contexts.
    Inline(String),
    /// It is the content of this file.
    File(PathBuf),
}

/// A context as it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    url: Url,
    #[serde(skip_serializing_if = "Option::is_none")]
    admin_url: Option<Url>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_file: Option<PathBuf>,
}

/// The content of the file.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<String>,
    #[serde(default)]
    contexts: BTreeMap<String, Entry>,
}

/// The file of contexts.
pub(in crate::cli) struct Contexts {
    path: Option<PathBuf>,
    content: Content,
}

impl Context {
    /// Returns the token, read from its file if it is in one; `None` if there is none.
    ///
    /// # Errors
    /// [`ContextsError`], if the file cannot be read, or by others, too.
    pub(in crate::cli) fn read_token(&self) -> Result<Option<String>, ContextsError> {
        let text = match &self.secret {
            Secret::None => None,
            Secret::Inline(token) => Some(token.clone()),
            Secret::File(path) => {
                let token = token_alone(read_private(path)?.as_bytes());
                Some(token.map_err(|why| ContextsError::Malformed {
                    path: path.display().to_string(),
                    why: why.to_owned(),
                })?)
            }
        };
        Ok(text.filter(|token| !token.is_empty()))
    }

    fn from_entry(name: &str, entry: &Entry) -> Self {
        let secret = match (&entry.token, &entry.token_file) {
            (Some(token), _) => Secret::Inline(token.clone()),
            (None, Some(path)) => Secret::File(path.clone()),
            (None, None) => Secret::None,
        };
        Self {
            name: name.to_owned(),
            url: entry.url.clone(),
            admin_url: entry.admin_url.clone(),
            secret,
        }
    }
}

impl Contexts {
    /// Reads the file; without one there are no contexts.
    ///
    /// # Errors
    /// [`ContextsError`], if it cannot be read or used, or others can read it.
    pub(in crate::cli) fn read() -> Result<Self, ContextsError> {
        let Some(path) = file_path() else {
            return Ok(Self {
                path: None,
                content: Content::default(),
            });
        };
        let text = match read_private(&path) {
            Ok(text) => text,
            Err(ContextsError::Unreadable { source, .. }) if is_absent(&source) => String::new(),
            Err(error) => return Err(error),
        };
        let content = toml::from_str(&text).map_err(|error: toml::de::Error| {
            // Neither the line nor the parser's words, which may have a token.
            let start = error.span().map_or(0, |span| span.start);
            let before = text.get(..start).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            let why = format!("line {line} is not of a file of contexts");
            ContextsError::Malformed {
                path: path.display().to_string(),
                why,
            }
        })?;
        Ok(Self {
            path: Some(path),
            content,
        })
    }

    /// Reads the file to change it. Other commands that change it wait until the first value is dropped.
    ///
    /// # Errors
    /// As [`Self::read`]; [`ContextsError::NoPlace`], [`ContextsError::Unwritable`].
    pub(in crate::cli) fn lock_and_read() -> Result<(File, Self), ContextsError> {
        let path = file_path().ok_or(ContextsError::NoPlace)?;
        let locked =
            lock_folder(parent_folder(&path)).map_err(|source| ContextsError::Unwritable {
                path: path.display().to_string(),
                source,
            })?;
        Ok((locked, Self::read()?))
    }

    /// Returns the contexts by name.
    pub(in crate::cli) fn list(&self) -> Vec<Context> {
        let entries = self.content.contexts.iter();
        entries
            .map(|(name, entry)| Context::from_entry(name, entry))
            .collect()
    }

    /// True if there is a context of this name.
    pub(in crate::cli) fn contains(&self, name: &str) -> bool {
        self.content.contexts.contains_key(name)
    }

    /// Returns a context.
    ///
    /// # Errors
    /// [`ContextsError::Unknown`].
    pub(in crate::cli) fn find(&self, name: &str) -> Result<Context, ContextsError> {
        let entry = self.content.contexts.get(name);
        let entry = entry.ok_or_else(|| self.unknown_context(name))?;
        Ok(Context::from_entry(name, entry))
    }

    /// Returns the context that is used where none is named.
    ///
    /// # Errors
    /// [`ContextsError::Unknown`], if the file names one that it does not have.
    pub(in crate::cli) fn current(&self) -> Result<Option<Context>, ContextsError> {
        let current = self.content.current.as_deref();
        current.map(|name| self.find(name)).transpose()
    }

    /// Returns the name of the context that is used where none is named.
    pub(in crate::cli) fn current_name(&self) -> Option<&str> {
        self.content.current.as_deref()
    }

    /// Puts a context in. The first one is the current one.
    ///
    /// # Errors
    /// [`ContextsError::Name`]; [`ContextsError::Taken`], unless it may `replace` one.
    pub(in crate::cli) fn insert(
        &mut self,
        context: Context,
        replace: bool,
    ) -> Result<(), ContextsError> {
        let Context {
            name,
            url,
            admin_url,
            secret,
        } = context;
        let is_good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(is_good) {
            return Err(ContextsError::Name);
        }
        if !replace && self.content.contexts.contains_key(&name) {
            return Err(ContextsError::Taken(name));
        }
        let (token, token_file) = match secret {
            Secret::None => (None, None),
            Secret::Inline(token) => (Some(token), None),
            Secret::File(path) => (None, Some(path)),
        };
        if self.content.contexts.is_empty() {
            self.content.current = Some(name.clone());
        }
        let entry = Entry {
            url,
            admin_url,
            token,
            token_file,
        };
        self.content.contexts.insert(name, entry);
        Ok(())
    }

    /// Makes a context the current one.
    ///
    /// # Errors
    /// [`ContextsError::Unknown`].
    pub(in crate::cli) fn set_current(&mut self, name: &str) -> Result<(), ContextsError> {
        if !self.content.contexts.contains_key(name) {
            return Err(self.unknown_context(name));
        }
        self.content.current = Some(name.to_owned());
        Ok(())
    }

    /// Takes a context out. If it was the current one there is none then.
    ///
    /// # Errors
    /// [`ContextsError::Unknown`].
    pub(in crate::cli) fn remove(&mut self, name: &str) -> Result<(), ContextsError> {
        if self.content.contexts.remove(name).is_none() {
            return Err(self.unknown_context(name));
        }
        if self.content.current.as_deref() == Some(name) {
            self.content.current = None;
        }
        Ok(())
    }

    /// Writes the file as a whole, readable by its owner alone.
    ///
    /// # Errors
    /// [`ContextsError::NoPlace`], [`ContextsError::Unwritable`].
    pub(in crate::cli) fn write(&self) -> Result<(), ContextsError> {
        let path = self.path.as_ref().ok_or(ContextsError::NoPlace)?;
        let text = toml::to_string(&self.content).map_err(io::Error::other);
        text.and_then(|text| write_private(path, &text))
            .map_err(|source| ContextsError::Unwritable {
                path: path.display().to_string(),
                source,
            })
    }

    fn unknown_context(&self, name: &str) -> ContextsError {
        let path = self.path.as_ref();
        ContextsError::Unknown {
            name: name.to_owned(),
            path: path.map_or_else(String::new, |path| path.display().to_string()),
        }
    }
}

/// Returns the contexts as candidates of a shell: none if the file cannot be used.
pub(in crate::cli) fn names_for_shells() -> Vec<CompletionCandidate> {
    let list = Contexts::read().map_or_else(|_| Vec::new(), |contexts| contexts.list());
    list.iter()
        .map(|context| {
            let about = without_user(&context.url);
            CompletionCandidate::new(&context.name).help(Some(about.into()))
        })
        .collect()
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
fn read_private(path: &Path) -> Result<String, ContextsError> {
    let shown = || path.display().to_string();
    let unreadable = |source| ContextsError::Unreadable {
        path: shown(),
        source,
    };
    let file = File::open(path).map_err(unreadable)?;
    let about = file.metadata().map_err(unreadable)?;
    let mode = about.permissions().mode() & 0o777;
    // What is no file, such as a pipe of the shell, is of this process alone.
    if about.is_file() && mode & 0o077 != 0 {
        return Err(ContextsError::Shared {
            path: shown(),
            mode,
        });
    }
    let mut text = String::new();
    let read = file.take(BYTES_MAX + 1).read_to_string(&mut text);
    let read = read.map_err(unreadable)?;
    if u64::try_from(read).unwrap_or(u64::MAX) > BYTES_MAX {
        return Err(ContextsError::Malformed {
            path: shown(),
            why: format!("it has more than {BYTES_MAX} bytes"),
        });
    }
    Ok(text)
}

fn parent_folder(path: &Path) -> &Path {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
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

    fn context(name: &str) -> Context {
        Context {
            name: name.to_owned(),
            url: Url::parse("https://gateway.example.com").unwrap(),
            admin_url: None,
            secret: Secret::Inline("a2aa_secret".to_owned()),
        }
    }

    #[test]
    fn a_file_is_written_for_its_owner_alone_and_refused_if_others_can_read_it() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("below/contexts.toml");
        let mut contexts = Contexts {
            path: Some(path.clone()),
            content: Content::default(),
        };
        contexts.insert(context("prod"), false).unwrap();
        lock_folder(parent_folder(&path)).unwrap();
        contexts.write().unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(read_private(&path).unwrap().contains("current = \"prod\""));
        for shared in [0o640, 0o604, 0o620] {
            fs::set_permissions(&path, fs::Permissions::from_mode(shared)).unwrap();
            let error = read_private(&path).unwrap_err().to_string();
            assert!(error.contains(&format!("mode {shared:o}")), "{error}");
            assert!(error.contains("chmod 600"), "{error}");
        }
    }

    #[test]
    fn the_first_context_is_the_current_one_until_it_is_taken_out() {
        let mut contexts = Contexts {
            path: None,
            content: Content::default(),
        };
        contexts.insert(context("one"), false).unwrap();
        contexts.insert(context("two"), false).unwrap();
        assert_eq!(contexts.current_name(), Some("one"));
        assert!(matches!(
            contexts.insert(context("two"), false),
            Err(ContextsError::Taken(_))
        ));
        contexts.insert(context("two"), true).unwrap();
        for name in ["", "a b", "a/b", &"x".repeat(65)] {
            let put = contexts.insert(context(name), false);
            assert!(matches!(put, Err(ContextsError::Name)), "{name}");
        }
        contexts.set_current("two").unwrap();
        contexts.remove("two").unwrap();
        assert!(contexts.current().unwrap().is_none());
        assert!(contexts.set_current("two").is_err());
    }
}
