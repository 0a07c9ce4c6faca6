//! The root certificate that gateways of the cases trust, unless a case has them trust another. To load those of the
//! system takes a tenth of the CPU time in which a gateway starts.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use super::authority::Authority;

/// Returns the environment of a gateway that trusts one root, which no certificate under test is of.
pub(super) fn one_root() -> [(&'static str, &'static Path); 2] {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("roots");
        fs::create_dir_all(&folder).expect("a folder");
        let root = Authority::new("root of the tests").pem();
        fs::write(folder.join("root.pem"), root).expect("room for a certificate");
        folder
    });
    static FILE: LazyLock<PathBuf> = LazyLock::new(|| FOLDER.join("root.pem"));
    // Of the folder only files are read that a hash names.
    [
        ("SSL_CERT_FILE", FILE.as_path()),
        ("SSL_CERT_DIR", FOLDER.as_path()),
    ]
}
