//! Key files: readable by their owner only, and created once even if several processes start
//! together.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;

use secrecy::{ExposeSecret, SecretString};

use super::KeyError;
use kernel::config::{open_regular, refuse_exposed};

/// Longest key file, in bytes; the gateway's own have about 120.
const FILE_BYTES_MAX: u64 = 16 * 1024;

pub(super) fn create_folder(dir: &Path) -> Result<(), KeyError> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir).map_err(io_error("create", dir))
}

/// Creates the file atomically, unless it exists. Of several processes exactly one wins.
pub(super) fn create(
    path: &Path,
    make: impl FnOnce() -> Result<SecretString, KeyError>,
) -> Result<(), KeyError> {
    // A mounted secret may be read-only, and exists then.
    if path.exists() {
        return Ok(());
    }
    let text = make()?;
    let failed = |error| io_error("create", path)(error);
    // Written to a draft, which is renamed when it is complete, so that the name never has half a
    // key.
    let mut draft = tempfile::Builder::new();
    let draft = draft.prefix(".").suffix(".draft");
    let folder = path.parent().unwrap_or(Path::new("."));
    // Readable by its owner only, like each file of this crate.
    let mut draft = draft.tempfile_in(folder).map_err(failed)?;
    draft
        .write_all(text.expose_secret().as_bytes())
        .and_then(|()| draft.as_file().sync_all())
        .map_err(failed)?;
    match draft.persist_noclobber(path) {
        Ok(_) => {}
        // Another process created it just now.
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        Err(error) => return Err(failed(error.error)),
    }
    sync_folder(folder).map_err(failed)
}

/// Makes the names in a folder survive a crash.
pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    fs::File::open(folder)?.sync_all()
}

pub(super) fn read(path: &Path) -> Result<SecretString, KeyError> {
    let failed = |error| io_error("read", path)(error);
    let file = open_regular(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    refuse_exposed(path, &metadata).map_err(|reason| failed(io::Error::other(reason)))?;
    warn_if_its_group_can_read(&metadata, path);
    let mut text = String::new();
    let mut file = file.take(FILE_BYTES_MAX);
    file.read_to_string(&mut text).map_err(failed)?;
    Ok(text.into())
}

/// Returns the error of a file or a folder, for an error of the system.
pub(super) fn io_error(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> KeyError {
    let path = path.to_owned();
    move |source| KeyError::File { verb, path, source }
}

/// Only a warning: mounted secrets are often readable by a group on purpose.
fn warn_if_its_group_can_read(metadata: &fs::Metadata, path: &Path) {
    #[cfg(unix)]
    if std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o070 != 0 {
        tracing::warn!(path = %path.display(), "a key file is readable by its group; run chmod 600");
    }
}
