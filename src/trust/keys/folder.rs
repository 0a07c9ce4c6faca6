//! The folder of the trust keys: `active.pem` signs, `next.pem` will, `retired-<seconds>-<kid>.pem` did
//! until that time, in seconds since 1970.
//!
//! A rotation is three steps in an order such that at no moment, and after no crash, `active.pem` is
//! missing or a key that has signed is forgotten.

use std::fs;
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::signing::{KID_LEN, SigningAlgorithm, SigningKey, der_of, new_pem};
use super::{KeyError, Known, State};
use crate::trust::{KEYS_MAX, file};

const ACTIVE: &str = "active.pem";
const NEXT: &str = "next.pem";
const RETIRED: &str = "retired-";

/// Held while keys are made or rotated, so that two processes do not do it at once.
const LOCK: &str = ".lock";

/// How long another process may hold it: it makes a few small files.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(2);
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// How long a retired key still verifies: the longest token, a canvas token of 24 h, and an hour for
/// clocks and for those who rotate by hand.
pub(super) const RETIRED_FOR: Duration = Duration::from_secs(25 * 3600);

/// One key of the folder.
pub(super) struct Held {
    pub(super) key: SigningKey,
    pub(super) state: State,
}

/// The file of a retired key.
struct Gone {
    path: PathBuf,
    at: SystemTime,
    until: SystemTime,
}

/// What tells one state of the folder from another: name, inode, length and times of each key.
pub(super) type Look = Vec<(String, [i64; 4])>;

pub(super) struct Folder {
    path: PathBuf,
}

impl Folder {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Makes the folder, the active key and the next one, where they are missing. A folder that cannot
    /// be written to, such as a mounted secret, needs the active key only.
    pub(super) fn prepare(&self, algorithm: SigningAlgorithm) -> Result<(), KeyError> {
        file::create_folder(&self.path)?;
        let _lock = self.lock();
        file::create(&self.at(ACTIVE), || new_pem(algorithm))?;
        match file::create(&self.at(NEXT), || new_pem(algorithm)) {
            Err(KeyError::File { source, .. }) if is_read_only(&source) => {
                tracing::debug!(error = %source, "No next key is made: keys.dir is read only");
                Ok(())
            }
            made => made,
        }
    }

    /// Every key that still counts: the active one first, then the next, then the retired ones, newest
    /// first.
    pub(super) fn read(&self, now: SystemTime) -> Result<Vec<Held>, KeyError> {
        let mut held = vec![Held {
            key: read_key(&self.at(ACTIVE))?,
            state: State::Active,
        }];
        let others = [(self.at(NEXT), State::Next)];
        let retired = self.retired()?.into_iter();
        let retired = retired.filter(|gone| now < gone.until);
        for (path, state) in others.into_iter().chain(retired.map(|gone| {
            (
                gone.path,
                State::Retired {
                    at: gone.at,
                    until: gone.until,
                },
            )
        })) {
            match read_key(&path) {
                Ok(key) => held.push(Held { key, state }),
                // There is none, or another process has just given it another name.
                Err(_) if !path.exists() => {}
                Err(error) => return Err(error),
            }
        }
        // A rotation that was cut short leaves one key under two names: the first one counts.
        let mut seen = Vec::new();
        held.retain(|one| {
            let new = !seen.iter().any(|kid| kid == one.key.kid());
            seen.push(one.key.kid().to_owned());
            new
        });
        if held.len() > KEYS_MAX {
            let path = self.path.clone();
            return Err(KeyError::TooMany { path });
        }
        Ok(held)
    }

    /// How long ago the next key was made, and with that published at most.
    pub(super) fn next_age(&self, now: SystemTime) -> Option<Duration> {
        let made = fs::metadata(self.at(NEXT)).and_then(|data| data.modified());
        now.duration_since(made.ok()?).ok()
    }

    /// Since when the active key signs, as far as the folder tells. The newest retired key's name says when it took
    /// over; a file that was written later than that was put there by somebody, or there was no rotation yet.
    pub(super) fn active_since(&self) -> Option<(SystemTime, Known)> {
        let active = self.at(ACTIVE);
        let written = fs::metadata(&active).and_then(|data| data.modified()).ok();
        let kid = read_key(&active).ok()?.kid().to_owned();
        // A rotation that was cut short has left the active key a name among them.
        let before = |gone: &Gone| !gone.path.ends_with(retired_name(gone.at, &kid));
        let retired = self.retired().ok()?.into_iter().find(before);
        let rotated = retired.map(|gone| gone.at);
        // Names have whole seconds, and times of files more.
        let second = Duration::from_secs(1);
        if rotated.is_some_and(|at| written.is_none_or(|written| written < at + second)) {
            return Some((rotated?, Known::Rotation));
        }
        Some((written?, Known::File))
    }

    /// When the next key's file was written: it was published then at the earliest.
    pub(super) fn next_since(&self) -> Option<(SystemTime, Known)> {
        let written = fs::metadata(self.at(NEXT)).and_then(|data| data.modified());
        Some((written.ok()?, Known::File))
    }

    /// How long ago the key that signs was made. It keeps its time when it comes to sign.
    pub(super) fn active_age(&self, now: SystemTime) -> Option<Duration> {
        let made = fs::metadata(self.at(ACTIVE)).and_then(|data| data.modified());
        now.duration_since(made.ok()?).ok()
    }

    /// The next key signs from now on, the active one retires, and a new next one is made. Retired keys
    /// whose time is over are deleted. `check` sees all keys, and how long ago the next one was made, while nobody
    /// else can rotate. `algorithm`: what the new next key signs by; `None`: as the active one.
    pub(super) fn rotate<E: From<KeyError>>(
        &self,
        algorithm: Option<SigningAlgorithm>,
        now: SystemTime,
        check: impl FnOnce(&[Held], Option<Duration>) -> Result<(), E>,
    ) -> Result<(), E> {
        let as_active = || Some(read_key(&self.at(ACTIVE)).ok()?.algorithm());
        let algorithm = algorithm.or_else(as_active).unwrap_or_default();
        self.prepare(algorithm)?;
        let _lock = self.lock()?;
        // Before anything changes: what cannot be read now could not be read then.
        let held = self.read(now)?;
        check(&held, self.next_age(now))?;
        Ok(self.turn(algorithm, now, &held)?)
    }

    /// Does it, under the lock.
    fn turn(
        &self,
        algorithm: SigningAlgorithm,
        now: SystemTime,
        held: &[Held],
    ) -> Result<(), KeyError> {
        let [active, next] = [self.at(ACTIVE), self.at(NEXT)];
        if held.len() == KEYS_MAX {
            let path = self.path.clone();
            return Err(KeyError::TooMany { path });
        }
        let kid = held.first().map(|one| one.key.kid().to_owned());
        let kid = kid.unwrap_or_default();
        let retired = self.at(&retired_name(now, &kid));
        match fs::hard_link(&active, &retired) {
            Ok(()) => {}
            // The same key a second ago, by a rotation that was cut short.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(file::failed("create", &retired, error)),
        }
        fs::rename(&next, &active).map_err(|error| file::failed("write", &active, error))?;
        // The next key signs: whatever fails from here on, it is a rotation.
        self.tidy(algorithm, now).map_err(KeyError::unfinished)
    }

    /// What follows once the next key signs.
    fn tidy(&self, algorithm: SigningAlgorithm, now: SystemTime) -> Result<(), KeyError> {
        let [active, next] = [self.at(ACTIVE), self.at(NEXT)];
        file::sync_folder(&self.path).map_err(|error| file::failed("write", &active, error))?;
        file::create(&next, || new_pem(algorithm))?;
        for gone in self.retired()?.into_iter().filter(|gone| now >= gone.until) {
            let path = gone.path;
            fs::remove_file(&path).map_err(|error| file::failed("remove", &path, error))?;
        }
        Ok(())
    }

    /// The folder as it is now, to see whether it changes.
    pub(super) fn look(&self) -> io::Result<Look> {
        use std::os::unix::fs::MetadataExt;
        let mut look = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            // A mounted secret is a link, so what it leads to is looked at.
            if let Ok(data) = fs::metadata(entry.path())
                && Path::new(&name).extension().is_some_and(|e| e == "pem")
            {
                let inode = i64::from_ne_bytes(data.ino().to_ne_bytes());
                let length = i64::try_from(data.len()).unwrap_or(i64::MAX);
                look.push((name, [inode, length, data.ctime(), data.ctime_nsec()]));
            }
        }
        look.sort();
        Ok(look)
    }

    /// Retired keys, newest first. Other names are none of ours.
    fn retired(&self) -> Result<Vec<Gone>, KeyError> {
        let failed = |error| file::failed("read", &self.path, error);
        let mut retired = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            retired.extend(entry.file_name().to_str().and_then(|name| {
                let at = retired_at(name)?;
                Some(Gone {
                    path: entry.path(),
                    at,
                    until: at.checked_add(RETIRED_FOR)?,
                })
            }));
        }
        retired.sort_by(|one, other| (other.at, &one.path).cmp(&(one.at, &other.path)));
        Ok(retired)
    }

    pub(super) fn not_published(&self) -> KeyError {
        let path = self.path.clone();
        KeyError::NotPublished { path }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Released when the file is dropped. Waits for a process that has it, for a while.
    fn lock(&self) -> Result<fs::File, KeyError> {
        let path = self.at(LOCK);
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options
            .open(&path)
            .map_err(|error| file::failed("lock", &path, error))?;
        restrict(&file).map_err(|error| file::failed("restrict", &path, error))?;
        let until = Instant::now() + LOCK_WAIT_MAX;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(error) if Instant::now() >= until => {
                    return Err(file::failed("lock", &path, error.into()));
                }
                Err(_) => std::thread::sleep(LOCK_PAUSE),
            }
        }
    }
}

/// For its owner alone, also where an earlier release made it.
fn restrict(file: &fs::File) -> io::Result<()> {
    if file.metadata()?.permissions().mode() & 0o077 == 0 {
        return Ok(());
    }
    file.set_permissions(fs::Permissions::from_mode(0o600))
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
    key.ok_or_else(|| KeyError::NotAKey {
        path: path.to_owned(),
    })
}

/// Whether the folder was meant to be read only, and not merely full or broken.
fn is_read_only(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
    )
}
