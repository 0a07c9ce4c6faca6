//! The folder of the trust keys: `active.pem` signs, `next.pem` will sign after the next rotation,
//! and `retired-<seconds>-<kid>.pem` signed until that time, in seconds since 1970.
//!
//! A rotation has three steps. Their order ensures that at no moment, and after no crash,
//! `active.pem` is missing or a key that has signed is lost.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::iter::once;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::signing::{KID_LEN, SigningAlgorithm, SigningKey, der_of, new_pem};
use super::{KeyError, KeyState, KeyTimeSource};
use crate::{KEYS_MAX, file};

const ACTIVE: &str = "active.pem";
const NEXT: &str = "next.pem";
const RETIRED: &str = "retired-";

/// The lock file, held while keys are created or rotated, so that two processes do not do it at
/// once.
const LOCK: &str = ".lock";

/// Longest wait for another process's lock: it creates a few small files under it.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(2);
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Time for which a retired key still verifies: the longest token, a canvas token of 24 h, and an
/// hour for clock differences and manual rotations.
pub(super) const RETIRED_FOR: Duration = Duration::from_secs(25 * 3600);

/// One key of the folder.
pub(super) struct StoredKey {
    pub(super) key: SigningKey,
    pub(super) state: KeyState,
}

/// The file of a retired key.
struct RetiredKey {
    path: PathBuf,
    at: SystemTime,
    until: SystemTime,
}

/// A snapshot of the folder, to detect changes: name, inode, length and times of each key.
pub(super) type FolderSnapshot = Vec<(String, [i64; 4])>;

pub(super) struct Folder {
    pub(super) path: PathBuf,
}

impl Folder {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Creates the folder, the active key and the next key, if they are missing. A read-only
    /// folder, such as a mounted secret, needs the active key only.
    pub(super) fn prepare(&self, algorithm: SigningAlgorithm) -> Result<(), KeyError> {
        file::create_folder(&self.path)?;
        let _lock = self.lock();
        file::create(&self.path_of(ACTIVE), || new_pem(algorithm))?;
        match file::create(&self.path_of(NEXT), || new_pem(algorithm)) {
            Err(KeyError::File { source, .. }) if is_read_only(&source) => {
                tracing::debug!(error = %source, "next key not created: keys.dir is read-only");
                Ok(())
            }
            made => made,
        }
    }

    /// Reads all keys that are valid at `now`: the active one first, then the next, then the
    /// retired ones, newest first.
    pub(super) fn read(&self, now: SystemTime) -> Result<Vec<StoredKey>, KeyError> {
        let mut held = vec![StoredKey {
            key: read_key(&self.path_of(ACTIVE))?,
            state: KeyState::Active,
        }];
        let retired = self.list_retired()?.into_iter();
        let retired = retired.filter(|gone| now < gone.until);
        let retired =
            retired.map(|RetiredKey { path, at, until }| (path, KeyState::Retired { at, until }));
        for (path, state) in once((self.path_of(NEXT), KeyState::Next)).chain(retired) {
            match read_key(&path) {
                Ok(key) => held.push(StoredKey { key, state }),
                // It does not exist, or another process has just renamed it.
                Err(_) if !path.exists() => {}
                Err(error) => return Err(error),
            }
        }
        // An interrupted rotation leaves one key under two names: the first one counts.
        let mut seen = HashSet::new();
        held.retain(|one| seen.insert(one.key.kid().to_owned()));
        if held.len() > KEYS_MAX {
            return Err(KeyError::TooMany(self.path.clone()));
        }
        Ok(held)
    }

    /// Returns the time since the next key was created, which is the longest it can have been
    /// published.
    pub(super) fn next_age(&self, now: SystemTime) -> Option<Duration> {
        now.duration_since(self.written_at(NEXT)?).ok()
    }

    /// Returns the time since when the active key signs, as far as the folder shows it. The name of
    /// the newest retired key has the time of the rotation. If `active.pem` was written after that,
    /// it was placed there by hand; if there is no retired key, there was no rotation yet. Then the
    /// time of the file counts.
    pub(super) fn active_since(&self) -> Option<(SystemTime, KeyTimeSource)> {
        let written = self.written_at(ACTIVE);
        let kid = read_key(&self.path_of(ACTIVE)).ok()?.kid().to_owned();
        // An interrupted rotation may have given the active key a retired name.
        let before = |gone: &RetiredKey| !gone.path.ends_with(retired_name(gone.at, &kid));
        let retired = self.list_retired().ok()?.into_iter().find(before);
        let rotated = retired.map(|gone| gone.at);
        // Names have whole seconds; file times are finer.
        let second = Duration::from_secs(1);
        if rotated.is_some_and(|at| written.is_none_or(|written| written < at + second)) {
            return Some((rotated?, KeyTimeSource::Rotation));
        }
        Some((written?, KeyTimeSource::File))
    }

    /// Returns the time at which the next key's file was written: the earliest it can have been
    /// published.
    pub(super) fn next_since(&self) -> Option<(SystemTime, KeyTimeSource)> {
        Some((self.written_at(NEXT)?, KeyTimeSource::File))
    }

    /// Returns the time since the active key was created. It keeps the time of its file when it
    /// becomes active.
    pub(super) fn active_age(&self, now: SystemTime) -> Option<Duration> {
        now.duration_since(self.written_at(ACTIVE)?).ok()
    }

    /// Makes the next key active, retires the active key, and creates a new next key. Deletes
    /// expired retired keys. `check` sees all keys and the age of the next key, while no other
    /// process can rotate. `algorithm` is that of the new next key; `None`: that of the active one.
    pub(super) fn rotate<E: From<KeyError>>(
        &self,
        algorithm: Option<SigningAlgorithm>,
        now: SystemTime,
        check: impl FnOnce(&[StoredKey], Option<Duration>) -> Result<(), E>,
    ) -> Result<(), E> {
        let as_active = || Some(read_key(&self.path_of(ACTIVE)).ok()?.algorithm());
        let algorithm = algorithm.or_else(as_active).unwrap_or_default();
        self.prepare(algorithm)?;
        let _lock = self.lock()?;
        // Before anything changes: a key that cannot be read now could not be read after the
        // rotation.
        let held = self.read(now)?;
        check(&held, self.next_age(now))?;
        Ok(self.promote_next(algorithm, now, &held)?)
    }

    /// Does the rotation under the lock.
    fn promote_next(
        &self,
        algorithm: SigningAlgorithm,
        now: SystemTime,
        held: &[StoredKey],
    ) -> Result<(), KeyError> {
        let [active, next] = [self.path_of(ACTIVE), self.path_of(NEXT)];
        if held.len() == KEYS_MAX {
            return Err(KeyError::TooMany(self.path.clone()));
        }
        let kid = held.first().map(|one| one.key.kid().to_owned());
        let kid = kid.unwrap_or_default();
        let retired = self.path_of(&retired_name(now, &kid));
        match fs::hard_link(&active, &retired) {
            Ok(()) => {}
            // The same key within this second, by an interrupted rotation.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(file::io_error("create", &retired)(error)),
        }
        fs::rename(&next, &active).map_err(file::io_error("write", &active))?;
        // The next key signs: if a step fails from here on, the keys are rotated all the same.
        self.clean_up(algorithm, now)
            .map_err(KeyError::into_unfinished)
    }

    /// Does the steps that follow once the next key signs.
    fn clean_up(&self, algorithm: SigningAlgorithm, now: SystemTime) -> Result<(), KeyError> {
        let [active, next] = [self.path_of(ACTIVE), self.path_of(NEXT)];
        file::sync_folder(&self.path).map_err(file::io_error("write", &active))?;
        file::create(&next, || new_pem(algorithm))?;
        let retired = self.list_retired()?.into_iter();
        for gone in retired.filter(|gone| now >= gone.until) {
            fs::remove_file(&gone.path).map_err(file::io_error("remove", &gone.path))?;
        }
        Ok(())
    }

    /// Returns a snapshot of the folder, to detect changes.
    pub(super) fn take_snapshot(&self) -> io::Result<FolderSnapshot> {
        use std::os::unix::fs::MetadataExt;
        let mut snapshot = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            // A mounted secret is a symbolic link, so its target is read.
            if let Ok(data) = fs::metadata(entry.path())
                && Path::new(&name).extension().is_some_and(|e| e == "pem")
            {
                let inode = i64::from_ne_bytes(data.ino().to_ne_bytes());
                let length = i64::try_from(data.len()).unwrap_or(i64::MAX);
                snapshot.push((name, [inode, length, data.ctime(), data.ctime_nsec()]));
            }
        }
        snapshot.sort();
        Ok(snapshot)
    }

    /// Lists the retired keys, newest first. Ignores other names.
    fn list_retired(&self) -> Result<Vec<RetiredKey>, KeyError> {
        let failed = |error| file::io_error("read", &self.path)(error);
        let mut retired = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            retired.extend(entry.file_name().to_str().and_then(|name| {
                let at = retired_at(name)?;
                Some(RetiredKey {
                    path: entry.path(),
                    at,
                    until: at.checked_add(RETIRED_FOR)?,
                })
            }));
        }
        retired.sort_by(|one, other| (other.at, &one.path).cmp(&(one.at, &other.path)));
        Ok(retired)
    }

    fn written_at(&self, name: &str) -> Option<SystemTime> {
        let metadata = fs::metadata(self.path_of(name)).ok()?;
        metadata.modified().ok()
    }

    fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Takes the lock, which is released when the file is dropped. Waits up to [`LOCK_WAIT_MAX`]
    /// for another process.
    fn lock(&self) -> Result<fs::File, KeyError> {
        let path = self.path_of(LOCK);
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).map_err(file::io_error("lock", &path))?;
        let until = Instant::now() + LOCK_WAIT_MAX;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(error) if Instant::now() >= until => {
                    return Err(file::io_error("lock", &path)(error.into()));
                }
                Err(_) => std::thread::sleep(LOCK_PAUSE),
            }
        }
    }
}

fn retired_name(at: SystemTime, kid: &str) -> String {
    let seconds = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    format!("{RETIRED}{seconds}-{kid}.pem")
}

fn retired_at(name: &str) -> Option<SystemTime> {
    let (seconds, kid) = name
        .strip_prefix(RETIRED)?
        .strip_suffix(".pem")?
        .split_once('-')?;
    let seconds: u64 = seconds.parse().ok()?;
    (kid.len() == KID_LEN).then(|| UNIX_EPOCH.checked_add(Duration::from_secs(seconds)))?
}

fn read_key(path: &Path) -> Result<SigningKey, KeyError> {
    let pem = file::read(path)?;
    let key = der_of(&pem).and_then(|der| SigningKey::from_pkcs8(&der));
    key.ok_or_else(|| KeyError::NotAKey(path.to_owned()))
}

/// Returns true if the folder is read-only on purpose, and not merely full or broken.
fn is_read_only(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
    )
}
