//! Python and Node packages that a script installs once, below `target/`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Returns the folder of the packages of `script`, and installs them if they are missing.
pub(crate) fn installed(script: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(root.join(script))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {told}");
    String::from_utf8(output.stdout).unwrap().trim().into()
}
