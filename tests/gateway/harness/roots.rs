//! The root certificate that gateways of the cases trust, unless a case has them trust another. To load those of the
//! system takes a tenth of the CPU time in which a gateway starts.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use rcgen::{CertificateParams, DnType, KeyPair};

/// Writes one root below `folder`, and returns the environment of a gateway that trusts only this one.
pub(super) fn one_root(folder: &Path) -> [(&'static str, PathBuf); 2] {
    static ROOT: LazyLock<String> = LazyLock::new(|| {
        let key = KeyPair::generate().expect("a key");
        let mut parameters = CertificateParams::default();
        // Under a name of its own: that of a certificate under test would make it the issuer.
        let name = &mut parameters.distinguished_name;
        name.push(DnType::CommonName, "root of the tests");
        let made = parameters.self_signed(&key).expect("a certificate");
        made.pem()
    });
    let folder = folder.join("roots");
    fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("root.pem");
    fs::write(&file, ROOT.as_bytes()).expect("room for a certificate");
    // Of the folder only files are read that a hash names.
    [("SSL_CERT_FILE", file), ("SSL_CERT_DIR", folder)]
}
