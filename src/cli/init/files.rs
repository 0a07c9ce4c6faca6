//! The files of `init`: their texts, and how they are written.

use std::fs::{self, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::process::getuid;
use secrecy::{ExposeSecret as _, SecretString};
use tempfile::NamedTempFile;
use url::Url;

use super::{Answers, Kind, Stores};
use crate::identity::{CredentialHash, new_admin_token};

const CONFIG: &str = "gateway.toml";
const TOKEN: &str = "admin-token";
const UNIT: &str = "a2a-gateway.service";
const COMPOSE: &str = "compose.yaml";

/// The unit of the package. A unit of `init` has other paths and another user.
const PACKAGED: &str = include_str!("../../../packaging/a2a-gateway.service");

/// Mode of a file without a secret.
const OPEN: u32 = 0o644;

/// Mode of the file with the operator's token.
const SECRET: u32 = 0o600;

/// Folders that the unit of the package hides.
const HIDDEN: [(&str, &str); 5] = [
    ("/home/", "ProtectHome=yes\n"),
    ("/root/", "ProtectHome=yes\n"),
    ("/run/user/", "ProtectHome=yes\n"),
    ("/tmp/", "PrivateTmp=yes\n"),
    ("/var/tmp/", "PrivateTmp=yes\n"),
];

/// The files were not written.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    #[error("{0} exists, and nothing was written; --force replaces it")]
    Exists(String),
    #[error(
        "{0}: the paths in a unit for systemd have letters, digits, `/`, `.`, `_`, `-`; choose another folder"
    )]
    Path(String),
    #[error("cannot write {path}")]
    Io {
        path: String,
        #[source]
        error: io::Error,
    },
}

/// The texts of the files.
pub(super) struct Files {
    folder: PathBuf,
    /// Name, mode and text of each.
    files: [(&'static str, u32, String); 3],
    next: String,
}

/// Returns the absolute path of a folder, which is made if it is missing.
pub(super) fn folder(dir: &Path) -> Result<PathBuf, WriteError> {
    let made = fs::create_dir_all(dir).and_then(|()| dir.canonicalize());
    made.map_err(|error| failed(dir, error))
}

/// Refuses a folder with one of the files. Without a kind both kinds of supervisor count.
pub(super) fn refuse_existing(folder: &Path, kind: Option<Kind>) -> Result<(), WriteError> {
    let units: &[_] = match kind {
        Some(Kind::Systemd) => &[UNIT],
        Some(Kind::Compose) => &[COMPOSE],
        None => &[UNIT, COMPOSE],
    };
    let mut names = [CONFIG, TOKEN].iter().chain(units);
    match names.find(|name| folder.join(name).symlink_metadata().is_ok()) {
        Some(name) => Err(WriteError::Exists(folder.join(name).display().to_string())),
        None => Ok(()),
    }
}

/// Returns a base URL as it is written in settings: without the last slash.
pub(super) fn base(url: &Url) -> &str {
    url.as_str().trim_end_matches('/')
}

impl Files {
    pub(super) fn new(answers: &Answers, folder: &Path) -> Result<Self, WriteError> {
        let token = new_admin_token();
        let (name, unit, start) = match answers.kind {
            Kind::Systemd => (UNIT, unit(folder)?, by_systemd(folder)),
            Kind::Compose => (COMPOSE, compose(answers), by_compose(folder)),
        };
        let files = [
            (CONFIG, OPEN, config(answers, &token)),
            (TOKEN, SECRET, format!("{}\n", token.expose_secret())),
            (name, OPEN, unit),
        ];
        Ok(Self {
            folder: folder.to_owned(),
            files,
            next: format!("{start}{}", first_workspace(answers, folder)),
        })
    }

    /// Writes all files, and returns what to do next.
    pub(super) fn write(self, force: bool) -> Result<String, WriteError> {
        let data = self.folder.join("data");
        let made = fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&data);
        made.map_err(|error| failed(&data, error))?;
        let mut said = String::new();
        for (name, mode, text) in &self.files {
            let path = self.folder.join(name);
            put(&self.folder, &path, *mode, text, force)?;
            said.push_str(&format!("wrote {}\n", path.display()));
        }
        Ok(said + &self.next)
    }
}

/// Puts a file into the folder as a whole.
fn put(folder: &Path, path: &Path, mode: u32, text: &str, force: bool) -> Result<(), WriteError> {
    let file = whole(folder, mode, text).map_err(|error| failed(path, error))?;
    let placed = if force {
        file.persist(path)
    } else {
        file.persist_noclobber(path)
    };
    match placed {
        Ok(_) => Ok(()),
        Err(refused) if refused.error.kind() == io::ErrorKind::AlreadyExists => {
            Err(WriteError::Exists(path.display().to_string()))
        }
        Err(refused) => Err(failed(path, refused.error)),
    }
}

/// Writes a file without a name of its own yet.
fn whole(folder: &Path, mode: u32, text: &str) -> io::Result<NamedTempFile> {
    let mut file = NamedTempFile::new_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.as_file()
        .set_permissions(Permissions::from_mode(mode))?;
    file.as_file().sync_all()?;
    Ok(file)
}

fn failed(path: &Path, error: io::Error) -> WriteError {
    let path = path.display().to_string();
    WriteError::Io { path, error }
}

fn config(answers: &Answers, token: &SecretString) -> String {
    let hash = CredentialHash::of(token.expose_secret()).to_hex();
    let (sql, shared) = match &answers.stores {
        Stores::Embedded => ("sqlite:data/gateway.db", "memory"),
        Stores::Servers { sql, shared } => (sql.as_str(), shared.as_str()),
    };
    // Other services of a compose file call the gateway by the name of its service.
    let hosts = match answers.kind {
        Kind::Compose => "hosts = [\"gateway\", \"gateway:8080\"]\n",
        Kind::Systemd => "",
    };
    format!(
        "# Written by `a2a-gateway init`. Every key with its meaning: `a2a-gateway check-config --defaults`.\n\
         # Paths begin at the folder in which the gateway is started.\n\n\
         [server]\n\
         listen = {}\n\
         public_url = {}\n\
         {hosts}\n\
         [admin]\n\
         listen = {}\n\n\
         [stores]\n\
         sql = {}\n\
         shared = {}\n\n\
         [auth]\n\
         # The operator's token is in {TOKEN}.\n\
         admin_token_sha256 = [\"{hash}\"]\n",
        quoted(&answers.listen.to_string()),
        quoted(base(&answers.public_url)),
        quoted(&answers.admin_listen.to_string()),
        quoted(sql),
        quoted(shared),
    )
}

fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// Returns the unit of the package with the paths of this program and folder.
fn unit(folder: &Path) -> Result<String, WriteError> {
    let program =
        std::env::current_exe().map_err(|error| failed(Path::new("/proc/self/exe"), error))?;
    let [program, folder] = [plain(&program)?, plain(folder)?];
    let user = match getuid() {
        root if root.is_root() => "a2a-gateway".to_owned(),
        user => user.as_raw().to_string(),
    };
    let begin = PACKAGED.find("[Unit]").unwrap_or(0);
    let mut text = PACKAGED[begin..].to_owned();
    for (packaged, own) in [
        (
            "Documentation=file:/usr/share/doc/a2a-gateway/README.md\n",
            String::new(),
        ),
        (
            "/usr/bin/a2a-gateway --config /etc/a2a-gateway/gateway.toml",
            format!("{program} --config {folder}/{CONFIG}"),
        ),
        ("/etc/a2a-gateway/secrets", format!("{folder}/secrets")),
        ("User=a2a-gateway", format!("User={user}")),
        ("StateDirectory=a2a-gateway\n", String::new()),
        ("StateDirectoryMode=0700\n", String::new()),
        (
            "WorkingDirectory=/var/lib/a2a-gateway",
            format!("WorkingDirectory={folder}\nReadWritePaths={folder}/data"),
        ),
    ] {
        text = text.replace(packaged, &own);
    }
    for (hidden, line) in HIDDEN {
        if [&program, &folder]
            .iter()
            .any(|path| path.starts_with(hidden))
        {
            text = text.replace(line, "");
        }
    }
    Ok(format!("# Written by `a2a-gateway init`.\n{text}"))
}

/// Returns a path that a unit can name without quotes.
fn plain(path: &Path) -> Result<String, WriteError> {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    if text.chars().all(is_plain) {
        Ok(text)
    } else {
        Err(WriteError::Path(text))
    }
}

fn compose(answers: &Answers) -> String {
    format!(
        "# Written by `a2a-gateway init`. `docker build --tag a2a-gateway .` in the gateway's repository makes the image.\n\
         services:\n\
         \x20 gateway:\n\
         \x20   image: ${{A2A_GATEWAY_IMAGE:-a2a-gateway}}\n\
         \x20   ports: [\"{}:8080\"]\n\
         \x20   environment:\n\
         \x20     # All addresses of the container. Callers reach it at the port above.\n\
         \x20     A2A_GATEWAY__SERVER__LISTEN: 0.0.0.0:8080\n\
         \x20   volumes:\n\
         \x20     - ./{CONFIG}:/etc/a2a-gateway/config.toml:ro\n\
         \x20     - state:/var/lib/a2a-gateway\n\
         \x20   read_only: true\n\
         \x20   cap_drop: [ALL]\n\
         \x20   security_opt: [\"no-new-privileges\"]\n\
         \x20   # Above server.drain.\n\
         \x20   stop_grace_period: 150s\n\
         \x20   restart: unless-stopped\n\n\
         volumes:\n\
         \x20 state:\n",
        answers.listen,
    )
}

fn by_systemd(folder: &Path) -> String {
    let folder = folder.display();
    let (who, user) = if getuid().is_root() {
        let user = format!(
            "  id a2a-gateway || useradd --system --no-create-home --shell /usr/sbin/nologin a2a-gateway\n\
             \x20 chown -R a2a-gateway: {folder}/data\n"
        );
        ("", user)
    } else {
        (", as root", String::new())
    };
    format!(
        "\nStart it{who}:\n{user}  systemctl enable --now {folder}/{UNIT}\n\
         Or by hand:\n  cd {folder} && a2a-gateway --config {CONFIG}\n"
    )
}

fn by_compose(folder: &Path) -> String {
    let folder = folder.display();
    format!("\nStart it:\n  docker compose --project-directory {folder} up --detach --wait\n")
}

fn first_workspace(answers: &Answers, folder: &Path) -> String {
    let (folder, url) = (folder.display(), base(&answers.public_url));
    // A gateway in a container does not reach an agent on loopback.
    let (what, agent) = match answers.kind {
        Kind::Compose => ("Make the first workspace", ""),
        Kind::Systemd => (
            "Make the first workspace, and start an agent in it",
            "  a2a-gateway run --workspace billing --token-file token --port 8001 -- a2a-gateway agent echo --listen \
             127.0.0.1:8001\n",
        ),
    };
    format!(
        "\n{what}:\n\
         \x20 export A2A_GATEWAY_URL={url} A2A_GATEWAY_ADMIN_TOKEN=$(cat {folder}/{TOKEN})\n\
         \x20 curl -sS $A2A_GATEWAY_URL/workspaces -H \"Authorization: Bearer $A2A_GATEWAY_ADMIN_TOKEN\" \\\n\
         \x20   -H 'Content-Type: application/json' -d '{{\"id\":\"billing\",\"name\":\"Billing\"}}' \\\n\
         \x20   | jq -er '.enrolment_token // error(.error)' > token\n\
         {agent}"
    )
}
