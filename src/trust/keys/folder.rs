//! The folder of the trust keys: `active.pem` signs, `next.pem` will, `retired-<seconds>-<kid>.pem` did
//! until that time, in seconds since 1970.
//!
//! A rotation is three steps in an order such that at no moment, and after no crash, `active.pem` is
//! missing or a key that has signed is forgotten.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::signing::{KID_LEN, PEM_END, SigningAlgorithm, SigningKey, der_of, new_pem};
use super::{KeyError, State};
use crate::trust::file;

const ACTIVE: &str = "active.pem";
const NEXT: &str = "next.pem";
const RETIRED: &str = "retired-";

/// Held while keys are made or rotated, so that two processes do not do it at once.
const LOCK: &str = ".lock";

/// How long a retired key still verifies: the longest token, a canvas token of 24 h, and an hour for
/// clocks and for those who rotate by hand.
pub(super) const RETIRED_FOR: Duration = Duration::from_secs(25 * 3600);

/// One key of the folder.
pub(super) struct Held {
    pub(super) key: SigningKey,
    pub(super) state: State,
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
        if let Err(error) = file::create(&self.at(NEXT), || new_pem(algorithm)) {
            tracing::debug!(%error, "No next key is made: keys.dir is read only");
        }
        Ok(())
    }

    /// Every key that still counts: the active one first, then the next, then the retired ones, newest
    /// first.
    pub(super) fn read(&self, now: SystemTime) -> Result<Vec<Held>, KeyError> {
        let mut held = vec![Held {
            key: read_key(&self.at(ACTIVE))?,
            state: State::Active,
        }];
        if self.at(NEXT).exists() {
            let key = read_key(&self.at(NEXT))?;
            held.push(Held {
                key,
                state: State::Next,
            });
        }
        for (path, at) in self.retired()? {
            let until = at + RETIRED_FOR;
            if now >= until {
                continue;
            }
            let key = match read_key(&path) {
                Ok(key) => key,
                // Another process has just cleared it away.
                Err(_) if !path.exists() => continue,
                Err(error) => return Err(error),
            };
            held.push(Held {
                key,
                state: State::Retired { at, until },
            });
        }
        // A rotation that was cut short leaves one key under two names: the first one counts.
        let mut seen = Vec::new();
        held.retain(|one| {
            let new = !seen.iter().any(|kid| kid == one.key.kid());
            seen.push(one.key.kid().to_owned());
            new
        });
        Ok(held)
    }

    /// The next key signs from now on, the active one retires, and a new next one is made. Retired keys
    /// whose time is over are deleted.
    pub(super) fn rotate(
        &self,
        algorithm: SigningAlgorithm,
        now: SystemTime,
    ) -> Result<(), KeyError> {
        self.prepare(algorithm)?;
        let _lock = self.lock()?;
        let [active, next] = [self.at(ACTIVE), self.at(NEXT)];
        let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let kid = read_key(&active)?.kid().to_owned();
        read_key(&next)?;
        let retired = self.at(&format!("{RETIRED}{seconds}-{kid}.pem"));
        match fs::hard_link(&active, &retired) {
            Ok(()) => {}
            // The same key a second ago, by a rotation that was cut short.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(file::failed("create", &retired, error)),
        }
        fs::rename(&next, &active).map_err(|error| file::failed("write", &active, error))?;
        file::create(&next, || new_pem(algorithm))?;
        for (path, at) in self.retired()? {
            if now >= at + RETIRED_FOR {
                fs::remove_file(&path).map_err(|error| file::failed("remove", &path, error))?;
            }
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

    /// Files of retired keys and when they retired, newest first. Other names are none of ours.
    fn retired(&self) -> Result<Vec<(PathBuf, SystemTime)>, KeyError> {
        let failed = |error| file::failed("read", &self.path, error);
        let mut retired = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if let Some(at) = entry.file_name().to_str().and_then(retired_at) {
                retired.push((entry.path(), at));
            }
        }
        retired.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
        Ok(retired)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Released when the file is dropped. Waits for a process that has it, for a while.
    fn lock(&self) -> Result<fs::File, KeyError> {
        let path = self.at(LOCK);
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(false);
        let file = options
            .open(&path)
            .map_err(|error| file::failed("lock", &path, error))?;
        let mut tries = 0;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(error) if tries == file::REREADS_MAX => {
                    return Err(file::failed("lock", &path, error.into()));
                }
                Err(_) => {}
            }
            tries += 1;
            std::thread::sleep(file::REREAD_PAUSE);
        }
    }
}

fn retired_at(name: &str) -> Option<SystemTime> {
    let (seconds, kid) = name
        .strip_prefix(RETIRED)?
        .strip_suffix(".pem")?
        .split_once('-')?;
    let seconds: u64 = seconds.parse().ok()?;
    (kid.len() == KID_LEN).then(|| UNIX_EPOCH.checked_add(Duration::from_secs(seconds)))?
}

/// Reads the file, again for as long as another process has only begun to write it.
fn read_key(path: &Path) -> Result<SigningKey, KeyError> {
    let not_a_key = || KeyError::NotAKey {
        path: path.to_owned(),
    };
    let mut rereads = 0;
    loop {
        let pem = file::read(path)?;
        if let Some(der) = der_of(&pem) {
            return SigningKey::from_pkcs8(&der).ok_or_else(not_a_key);
        }
        let whole = secrecy::ExposeSecret::expose_secret(&pem).contains(PEM_END);
        if whole || rereads == file::REREADS_MAX {
            return Err(not_a_key());
        }
        rereads += 1;
        std::thread::sleep(file::REREAD_PAUSE);
    }
}
