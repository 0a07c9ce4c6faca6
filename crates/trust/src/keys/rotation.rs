//! Key rotation: unconditional ([`rotate`], for the command line), or only if the active key is the
//! expected one ([`Keys::rotate`], for the console).

use std::path::Path;
use std::time::{Duration, SystemTime};

use super::folder::{Folder, StoredKey};
use super::{KeyError, KeyInfo, KeyState, Keys, SigningAlgorithm, list};

/// Time for which verifiers cache the published keys (`Cache-Control` of the JWKS), and so the time
/// for which a key should have been published before it signs.
pub const PUBLISHED_FIRST: Duration = Duration::from_secs(300);

/// The reason that the keys are not rotated.
#[derive(Debug, thiserror::Error)]
pub enum RotateError {
    /// Another key is active than the one that was to be replaced.
    #[error("another key signs by now ({active}): the keys were rotated meanwhile")]
    NotActive {
        /// The id of the active key.
        active: String,
    },
    /// Verifiers may not have the next key yet.
    #[error("the next key has been published for {} s of {} only: verifiers that keep the keys for five minutes would refuse what it signs", published_for.as_secs(), PUBLISHED_FIRST.as_secs())]
    TooYoung {
        /// Time since the next key was published.
        published_for: Duration,
        /// Time at which it will have been published long enough.
        ready_at: SystemTime,
    },
    /// The folder cannot be read or written.
    #[error(transparent)]
    Keys(#[from] KeyError),
}

/// The result of a rotation.
#[derive(Debug)]
pub struct RotationOutcome {
    /// The id of the key that signs now.
    pub active: String,
    /// The error of a step after the rotation: the new next key may not exist, or an old one is not
    /// deleted.
    pub unfinished: Option<KeyError>,
    /// The error by which this replica does not use the new key yet: the folder cannot be read
    /// again. [`Keys::refresh`] retries.
    pub not_in_force: Option<KeyError>,
}

impl Keys {
    /// Rotates the keys if `active` still signs and, unless `force`, the next one has been
    /// published for [`PUBLISHED_FIRST`]. The new next key has the algorithm of the active one.
    /// Blocks.
    ///
    /// # Errors
    /// [`RotateError`]: nothing is rotated.
    pub fn rotate(&self, active: &str, force: bool) -> Result<RotationOutcome, RotateError> {
        let now = SystemTime::now();
        let (mut next, mut unfinished) = (None, None);
        let turned = self.folder.rotate(None, now, |held, age| {
            next = find_kid(held, KeyState::Next);
            let signs = find_kid(held, KeyState::Active).unwrap_or_default();
            if signs != active {
                return Err(RotateError::NotActive { active: signs });
            }
            let published_for = age.unwrap_or_default();
            match PUBLISHED_FIRST.checked_sub(published_for) {
                Some(left) if !left.is_zero() && !force => Err(RotateError::TooYoung {
                    published_for,
                    ready_at: now + left,
                }),
                _ => Ok(()),
            }
        });
        match turned {
            Ok(()) => {}
            Err(RotateError::Keys(KeyError::Unfinished(error))) => unfinished = Some(*error),
            Err(error) => return Err(error),
        }
        let refreshed = self.refresh();
        Ok(RotationOutcome {
            active: next.unwrap_or_else(|| self.kid()),
            unfinished,
            not_in_force: refreshed.err(),
        })
    }
}

fn find_kid(held: &[StoredKey], state: KeyState) -> Option<String> {
    let found = held.iter().find(|one| one.state == state);
    found.map(|one| one.key.kid().to_owned())
}

/// Rotates the keys in `dir` and returns all keys after it. The new next key has `algorithm`.
/// Running gateways follow within a second or two. Blocks.
///
/// # Errors
/// [`KeyError`] names the file and the next step.
pub fn rotate(dir: &Path, algorithm: SigningAlgorithm) -> Result<Vec<KeyInfo>, KeyError> {
    let folder = Folder::new(dir.to_owned());
    folder.rotate(Some(algorithm), SystemTime::now(), |_, _| {
        Ok::<_, KeyError>(())
    })?;
    list(dir).map_err(KeyError::into_unfinished)
}

/// Returns the time since when the next key in `dir` can be fetched by verifiers; `None`: there is
/// none. Blocks.
pub fn next_age(dir: &Path) -> Option<Duration> {
    Folder::new(dir.to_owned()).next_age(SystemTime::now())
}
