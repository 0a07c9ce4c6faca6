//! Files named by the operator: reading them without blocking on pipes, and permission checks on those that hold
//! secrets.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::Path;

/// Permission bits of other users: read, write, execute.
const EVERYBODY: u32 = 0o007;

/// Opens a regular file. Opening a pipe would block until it has a writer.
///
/// # Errors
/// Returns the system's error, or an error for anything but a regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    File::open(path)
}

/// Reads a whole file of at most `most` bytes.
pub(super) fn read_at_most(file: File, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = file.take(most + 1).read_to_end(&mut bytes)?;
    if u64::try_from(read).is_ok_and(|read| read > most) {
        return Err(io::Error::other(format!("more than {most} bytes")));
    }
    Ok(bytes)
}

/// Refuses the file of a secret to which other users of the machine have access. Access of its
/// group is allowed: orchestrators mount secrets for a group.
///
/// # Errors
/// Returns the path and the command that fixes it.
pub fn refuse_exposed(path: &Path, metadata: &Metadata) -> Result<(), String> {
    #[cfg(unix)]
    if std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & EVERYBODY != 0 {
        let path = path.display();
        return Err(format!(
            "every user of this machine has access to the secret in {path}: chmod 600 {path} (a mounted secret: mode 0400, in Kubernetes `defaultMode: 0400`)"
        ));
    }
    Ok(())
}

/// Does the same for a path. A missing file is accepted: its reader reports it.
pub(super) fn refuse_exposed_at(path: &Path) -> Result<(), String> {
    std::fs::metadata(path).map_or(Ok(()), |metadata| refuse_exposed(path, &metadata))
}

/// Does the same for a file that must exist.
pub(super) fn refuse_unusable_at(path: &Path) -> Result<(), String> {
    let metadata = open_regular(path).and_then(|file| file.metadata());
    let metadata = metadata.map_err(|error| format!("cannot read {}: {error}", path.display()));
    refuse_exposed(path, &metadata?)
}

/// Returns the refusals of the private keys in a folder. Certificates may be readable for all.
pub(super) fn refuse_exposed_keys(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.retain(|path| path.is_file() && holds_a_key(path));
    paths.sort();
    let refused = paths
        .iter()
        .filter_map(|path| refuse_exposed_at(path).err());
    refused.collect()
}

fn holds_a_key(path: &Path) -> bool {
    let extension = path.extension().and_then(std::ffi::OsStr::to_str);
    match extension {
        Some("key") => true,
        Some("pem") => super::tls_pair::read_pem(path, "PRIVATE KEY-----").is_ok(),
        _ => false,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::config::load::{Layers, load};

    /// Writes a file with these permissions, in place of one that may not be writable.
    pub(crate) fn write(path: &Path, text: &str, mode: u32) {
        let _ = fs::remove_file(path);
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn what_everybody_has_access_to_is_refused_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        for (mode, good) in [
            (0o600, true),
            (0o400, true),
            (0o640, true),
            (0o440, true),
            (0o644, false),
            (0o604, false),
            (0o602, false),
            (0o777, false),
        ] {
            write(&path, "s3cret", mode);
            let said = refuse_exposed_at(&path);
            assert_eq!(said.is_ok(), good, "{mode:o}");
            if let Err(said) = said {
                let chmod = format!("chmod 600 {}", path.display());
                assert!(said.contains(&chmod) && !said.contains("s3cret"), "{said}");
            }
        }
        assert!(refuse_exposed_at(&folder.path().join("nowhere")).is_ok());
    }

    #[test]
    fn a_folder_of_keys_is_judged_by_its_private_keys() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        write(&at("active.pem"), "-----BEGIN PRIVATE KEY-----\n", 0o600);
        write(&at("cert.pem"), "-----BEGIN CERTIFICATE-----\n", 0o644);
        write(&at("README"), "keys live here", 0o644);
        assert_eq!(refuse_exposed_keys(folder.path()), Vec::<String>::new());
        write(&at("next.pem"), "-----BEGIN PRIVATE KEY-----\n", 0o644);
        write(&at("seal.key"), "AAAA", 0o604);
        let refused = refuse_exposed_keys(folder.path());
        assert!(
            refused.len() == 2 && refused[0].contains("next.pem"),
            "{refused:?}"
        );
        assert_eq!(refuse_exposed_keys(&at("nowhere")), Vec::<String>::new());
    }

    #[test]
    fn what_is_no_secret_may_stand_where_everybody_can_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("burst");
        write(&path, "7\n", 0o644);
        let name = "A2A_GATEWAY__RATE__CALLER_BURST_FILE".to_owned();
        let loaded = load(&Layers {
            environment: vec![(name, path.to_str().unwrap().into())],
            ..Layers::default()
        });
        assert_eq!(loaded.unwrap().config.rate.caller_burst, 7);
    }

    #[test]
    fn a_configuration_with_a_password_that_everybody_can_read_is_noted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gateway.toml");
        let noted = |mode: u32| {
            write(&path, "[stores]\nsql = \"postgres://u:geheim@h/d\"\n", mode);
            let loaded = load(&Layers {
                file: Some(path.clone()),
                ..Layers::default()
            });
            let loaded = loaded.unwrap();
            assert!(!format!("{loaded:?}").contains("geheim"));
            let mut notes = loaded.notes.iter();
            notes.any(|note| note.contains("stores.sql may hold a password"))
        };
        assert!(noted(0o644) && !noted(0o640));
        // The default settings contain no password.
        write(&path, crate::config::load::DEFAULT, 0o644);
        let loaded = load(&Layers {
            file: Some(path),
            ..Layers::default()
        });
        let notes = loaded.unwrap().notes;
        assert!(
            !notes.iter().any(|note| note.contains("password")),
            "{notes:?}"
        );
    }
}
