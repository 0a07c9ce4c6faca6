//! Files of keys: for their owner's eyes only, made once, however many processes start at the same time.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};

use super::KeyError;
use crate::config::refuse_exposed;

/// Bytes of a key file at most; ours have about 120.
const FILE_BYTES_MAX: u64 = 16 * 1024;

/// How often, and with which pause, a file that another process is writing is read again: 2 s.
pub(super) const REREADS_MAX: u32 = 100;
pub(super) const REREAD_PAUSE: Duration = Duration::from_millis(20);

pub(super) fn create_folder(dir: &Path) -> Result<(), KeyError> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder
        .create(dir)
        .map_err(|source| failed("create", dir, source))
}

/// Makes the file, unless it is there: `create_new` lets exactly one process win.
pub(super) fn create(
    path: &Path,
    make: impl FnOnce() -> Result<SecretString, KeyError>,
) -> Result<(), KeyError> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    // Made before the file is, so that no failure leaves an empty file.
    let text = make()?;
    let mut file = match options.open(path) {
        Ok(file) => file,
        // Made earlier, or by another process just now.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        // A mounted secret can be read only, and then it is there.
        Err(_) if path.exists() => return Ok(()),
        Err(error) => return Err(failed("create", path, error)),
    };
    file.write_all(text.expose_secret().as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(|error| failed("write", path, error))
}

pub(super) fn read(path: &Path) -> Result<SecretString, KeyError> {
    let file = fs::File::open(path).map_err(|error| failed("read", path, error))?;
    let metadata = file
        .metadata()
        .map_err(|error| failed("read", path, error))?;
    refuse_exposed(path, &metadata)
        .map_err(|reason| failed("read", path, io::Error::other(reason)))?;
    warn_if_its_group_can_read(&metadata, path);
    let mut text = String::new();
    file.take(FILE_BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(|error| failed("read", path, error))?;
    Ok(text.into())
}

pub(super) fn failed(verb: &'static str, path: &Path, source: io::Error) -> KeyError {
    KeyError::File {
        verb,
        path: path.to_owned(),
        source,
    }
}

/// Only warned of: mounted secrets are often readable by a group on purpose.
fn warn_if_its_group_can_read(metadata: &fs::Metadata, path: &Path) {
    #[cfg(unix)]
    if std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o070 != 0 {
        tracing::warn!(path = %path.display(), "A key can be read by its group: chmod 600");
    }
}
