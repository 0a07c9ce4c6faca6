//! The files of `init`: their texts, and how they are written.

use std::fmt::Display;
use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::process::getuid;
use secrecy::{ExposeSecret as _, SecretString};
use tempfile::NamedTempFile;
use url::Url;

use super::{Answers, Stores, Supervisor};
use access::identity::{CredentialHash, new_admin_token};
use ctl::{Failure, to_loopback};

const CONFIG: &str = "gateway.toml";
const TOKEN: &str = "admin-token";
const UNIT: &str = "a2a-gateway.service";
const COMPOSE: &str = "compose.yaml";

/// The unit of the package. A unit of `init` has other paths and another user.
const PACKAGED: &str = include_str!("../../../packaging/a2a-gateway.service");

/// The configuration, with places for the answers.
const CONFIG_TEXT: &str = include_str!("gateway.toml");

/// The compose file, with a place for the address.
const COMPOSE_TEXT: &str = include_str!("compose.yaml");

/// Mode of a file without a secret.
const OPEN: u32 = 0o644;

/// Mode of the file with the operator's token.
const SECRET: u32 = 0o600;

/// Folders that the unit of the package hides.
const HIDDEN: [(&str, &str); 5] = [
    ("/home", "ProtectHome=yes\n"),
    ("/root", "ProtectHome=yes\n"),
    ("/run/user", "ProtectHome=yes\n"),
    ("/tmp", "PrivateTmp=yes\n"),
    ("/var/tmp", "PrivateTmp=yes\n"),
];

/// The first port at which every user may listen.
const FREE_PORTS: u16 = 1024;

/// The user of the service, if root makes its unit.
const SERVICE_USER: &str = "a2a-gateway";

/// Mode bit with which every user may enter a folder.
const ENTER: u32 = 0o001;

/// Returns the absolute path of a folder, which is made if it is missing.
pub(super) fn create_folder(dir: &Path) -> Result<PathBuf, Failure> {
    let made = fs::create_dir_all(dir).and_then(|()| dir.canonicalize());
    made.map_err(|error| write_error(dir, error))
}

/// Refuses a folder with one of the files. Without a kind both kinds of supervisor count.
pub(super) fn refuse_existing(folder: &Path, kind: Option<Supervisor>) -> Result<(), Failure> {
    let units: &[_] = match kind {
        Some(Supervisor::Systemd) => &[UNIT],
        Some(Supervisor::Compose) => &[COMPOSE],
        None => &[UNIT, COMPOSE],
    };
    let mut names = [CONFIG, TOKEN].iter().chain(units);
    match names.find(|name| folder.join(name).symlink_metadata().is_ok()) {
        Some(name) => Err(exists_error(&folder.join(name))),
        None => Ok(()),
    }
}

/// Returns a base URL as it is written in settings: without the last slash.
pub(super) fn format_base_url(url: &Url) -> &str {
    url.as_str().trim_end_matches('/')
}

/// Writes all files, or none if one of them cannot be made, and returns what to do next.
pub(super) fn write_files(
    answers: &Answers,
    folder: &Path,
    force: bool,
) -> Result<String, Failure> {
    let token = new_admin_token();
    let (name, unit, start) = match answers.kind {
        Supervisor::Systemd => (
            UNIT,
            unit_text(answers, folder, &program_path()?)?,
            systemd_steps(folder),
        ),
        Supervisor::Compose => (
            COMPOSE,
            fill_template(COMPOSE_TEXT, &[("listen", answers.listen.to_string())]),
            compose_steps(folder),
        ),
    };
    let lock = File::open(folder).map_err(|error| write_error(folder, error))?;
    // It ends with this process.
    if lock.try_lock().is_err() {
        let folder = folder.display();
        return Err(Failure::new(format!(
            "another init writes into {folder}; nothing was written"
        )));
    }
    if !force {
        refuse_existing(folder, Some(answers.kind))?;
    }
    let data = folder.join("data");
    let mut options = fs::DirBuilder::new();
    let made = options.recursive(true).mode(0o700).create(&data);
    made.map_err(|error| write_error(&data, error))?;
    let mut said = String::new();
    let mut whole_files = Vec::new();
    // The token before its hash: a configuration whose token is nowhere would have no operator.
    for (name, mode, text) in [
        (TOKEN, SECRET, format!("{}\n", token.expose_secret())),
        (CONFIG, OPEN, config_text(answers, &token)),
        (name, OPEN, unit),
    ] {
        let path = folder.join(name);
        if path.is_dir() {
            return Err(write_error(&path, io::ErrorKind::IsADirectory.into()));
        }
        let file = write_temp_file(folder, mode, &text);
        let file = file.map_err(|error| write_error(&path, error))?;
        said.push_str(&format!("wrote {}\n", path.display()));
        whole_files.push((file, path));
    }
    for (file, path) in whole_files {
        persist_file(file, &path, force)?;
    }
    Ok(said + &start + &workspace_steps(answers, folder))
}

/// Gives a file its name.
fn persist_file(file: NamedTempFile, path: &Path, force: bool) -> Result<(), Failure> {
    let placed = if force {
        file.persist(path)
    } else {
        file.persist_noclobber(path)
    };
    placed
        .map(drop)
        .map_err(|refused| match refused.error.kind() {
            io::ErrorKind::AlreadyExists => exists_error(path),
            _ => write_error(path, refused.error),
        })
}

/// Writes a file without a name of its own yet.
fn write_temp_file(folder: &Path, mode: u32, text: &str) -> io::Result<NamedTempFile> {
    let mut file = NamedTempFile::new_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.as_file()
        .set_permissions(Permissions::from_mode(mode))?;
    file.as_file().sync_all()?;
    Ok(file)
}

fn write_error(path: &Path, error: io::Error) -> Failure {
    Failure::new(format!("cannot write {}: {error}", path.display()))
}

fn exists_error(path: &Path) -> Failure {
    let path = path.display();
    Failure::new(format!(
        "{path} exists, and nothing was written; --force replaces it"
    ))
}

/// Returns a template with its values in their places.
fn fill_template(template: &str, values: &[(&str, String)]) -> String {
    values
        .iter()
        .fold(template.to_owned(), |text, (name, value)| {
            text.replace(&format!("{{{{{name}}}}}"), value)
        })
}

fn config_text(answers: &Answers, token: &SecretString) -> String {
    let (sql, shared) = match &answers.stores {
        Stores::Embedded => ("sqlite:data/gateway.db", "memory"),
        Stores::Servers { sql, shared } => (sql.as_str(), shared.as_str()),
    };
    // Other services of a compose file call the gateway by the name of its service.
    let hosts = match answers.kind {
        Supervisor::Compose => "hosts = [\"gateway\", \"gateway:8080\"]\n",
        Supervisor::Systemd => "",
    };
    let hash = CredentialHash::digest(token.expose_secret()).to_hex();
    let values = [
        ("hash", hash),
        ("hosts", hosts.to_owned()),
        ("listen", quote_toml(answers.listen)),
        ("admin_listen", quote_toml(answers.admin_listen)),
        (
            "public_url",
            quote_toml(format_base_url(&answers.public_url)),
        ),
        ("sql", quote_toml(sql)),
        ("shared", quote_toml(shared)),
    ];
    fill_template(CONFIG_TEXT, &values)
}

fn quote_toml(value: impl Display) -> String {
    toml::Value::from(value.to_string()).to_string()
}

/// Returns the unit of the package with the paths of this program and folder.
fn unit_text(answers: &Answers, folder: &Path, program: &Path) -> Result<String, Failure> {
    let [program, folder] = [check_plain_path(program)?, check_plain_path(folder)?];
    let user = match getuid() {
        root if root.is_root() => SERVICE_USER.to_owned(),
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
            .any(|path| Path::new(path).starts_with(hidden))
        {
            text = text.replace(line, "");
        }
    }
    let listens = [answers.listen, answers.admin_listen];
    if listens.iter().any(|address| address.port() < FREE_PORTS) {
        for set in ["CapabilityBoundingSet=", "AmbientCapabilities="] {
            text = text.replace(&format!("{set}\n"), &format!("{set}CAP_NET_BIND_SERVICE\n"));
        }
        // A user namespace of its own would take the capability's effect on the ports of the machine.
        text = text.replace("PrivateUsers=yes\n", "");
    }
    Ok(format!("# Written by `a2a-gateway init`.\n{text}"))
}

fn program_path() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|error| write_error(Path::new("/proc/self/exe"), error))
}

/// Returns the folder above `path`, or `path` itself, that the user of the service cannot enter.
fn find_closed_folder(path: &Path) -> Option<&Path> {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let mut users = users.lines().map(|line| line.split(':'));
    let id = users.find_map(|mut user| {
        (user.next() == Some(SERVICE_USER)).then(|| user.nth(1)?.parse().ok())?
    });
    path.ancestors().find(|folder| {
        folder.metadata().is_ok_and(|known| {
            known.is_dir() && known.permissions().mode() & ENTER == 0 && Some(known.uid()) != id
        })
    })
}

/// Returns a path that a unit can name without quotes.
fn check_plain_path(path: &Path) -> Result<String, Failure> {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    if text.chars().all(is_plain) {
        Ok(text)
    } else {
        Err(Failure::new(format!(
            "{text}: the paths in a unit for systemd have letters, digits, `/`, `.`, `_`, `-`; choose another folder"
        )))
    }
}

fn systemd_steps(folder: &Path) -> String {
    let (who, user) = if getuid().is_root() {
        let user = format!(
            "  id {SERVICE_USER} || useradd --system --no-create-home --shell /usr/sbin/nologin {SERVICE_USER}\n\
             \x20 chown -R {SERVICE_USER}: {}\n",
            quote_shell_word(folder.join("data").display())
        );
        ("", user)
    } else {
        (", as root", String::new())
    };
    format!(
        "{}\nStart it{who}:\n{user}  systemctl enable --now {}\n\
         Or by hand:\n  cd {} && a2a-gateway --config {CONFIG}\n",
        warn_of_closed_folders(folder),
        quote_shell_word(folder.join(UNIT).display()),
        quote_shell_word(folder.display()),
    )
}

/// Warns of folders that the user of the service cannot enter.
fn warn_of_closed_folders(folder: &Path) -> String {
    if !getuid().is_root() {
        return String::new();
    }
    let program = program_path().ok();
    let paths = [Some(folder), program.as_deref()];
    let mut closed: Vec<_> = paths
        .into_iter()
        .flatten()
        .filter_map(find_closed_folder)
        .collect();
    closed.dedup();
    let warnings = closed.iter().map(|closed| {
        format!(
            "\nThe user {SERVICE_USER} of the unit cannot enter {}: open it (chmod o+x {}), or choose a folder such as\n\
             /var/lib/{SERVICE_USER}, and a place such as /usr/local/bin for the program.\n",
            closed.display(),
            quote_shell_word(closed.display()),
        )
    });
    warnings.collect()
}

fn compose_steps(folder: &Path) -> String {
    let folder = quote_shell_word(folder.display());
    format!(
        "\nMake the image, in the gateway's repository (or name one in A2A_GATEWAY_IMAGE):\n\
         \x20 docker build --tag a2a-gateway .\n\
         Start it:\n  docker compose --project-directory {folder} up --detach --wait\n"
    )
}

fn workspace_steps(answers: &Answers, folder: &Path) -> String {
    let (what, url, admin, agent) = match answers.kind {
        // A gateway in a container does not reach an agent on loopback, and its admin listener is reached in it alone.
        Supervisor::Compose => (
            "Make the first workspace",
            format_base_url(&answers.public_url).to_owned(),
            String::new(),
            String::new(),
        ),
        // The commands run on this machine: the public URL may need a proxy or a name first.
        Supervisor::Systemd => {
            let local = |listen| format!("http://{}", to_loopback(listen));
            let admin = quote_shell_word(local(answers.admin_listen));
            (
                "Make the first workspace, and start an agent in it",
                local(answers.listen),
                format!(" A2A_GATEWAY_ADMIN_URL={admin}"),
                agent_command(answers.listen),
            )
        }
    };
    let console = match answers.kind {
        Supervisor::Compose => String::new(),
        Supervisor::Systemd => format!(
            "\nThe console is at http://{}/; the token in {} signs in.\n",
            to_loopback(answers.admin_listen),
            folder.join(TOKEN).display()
        ),
    };
    format!(
        "{console}\n{what}:\n\
         \x20 export A2A_GATEWAY_URL={}{admin}\n\
         \x20 export A2A_GATEWAY_ADMIN_TOKEN=\"$(cat {})\"\n\
         \x20 a2a-gateway workspace create billing --name Billing --token-file token\n\
         {agent}",
        quote_shell_word(url),
        quote_shell_word(folder.join(TOKEN).display()),
    )
}

/// Returns the command that starts an agent beside a gateway at `listen`.
fn agent_command(listen: SocketAddr) -> String {
    // To `run`, a gateway at an address of the network is on another machine.
    let advertise = if to_loopback(listen).ip().is_loopback() {
        ""
    } else {
        "--advertise http://127.0.0.1:8001 "
    };
    format!(
        "  a2a-gateway run --workspace billing --token-file token --port 8001 {advertise}-- a2a-gateway agent echo\n"
    )
}

/// Returns a word of a shell's command.
fn quote_shell_word(word: impl Display) -> String {
    let word = word.to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-:@%+,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_shows_the_folder_and_lets_it_listen() {
        let answers = |listen: &str| Answers {
            kind: Supervisor::Systemd,
            listen: listen.parse().unwrap(),
            admin_listen: "127.0.0.1:9090".parse().unwrap(),
            public_url: Url::parse("https://gw.test").unwrap(),
            stores: Stores::Embedded,
        };
        let unit = |listen: &str, folder: &str, program: &str| {
            unit_text(&answers(listen), Path::new(folder), Path::new(program)).unwrap()
        };
        let installed = "/usr/bin/a2a-gateway";
        for (folder, line) in [
            ("/root", "ProtectHome=yes"),
            ("/home/ada", "ProtectHome=yes"),
            ("/var/tmp", "PrivateTmp=yes"),
        ] {
            let built = format!("{folder}/target/debug/a2a-gateway");
            for (folder, program) in [(folder, installed), ("/srv/gw", &built)] {
                let unit = unit("127.0.0.1:8080", folder, program);
                assert!(!unit.contains(line), "{folder} {program}");
            }
        }
        let high = unit("127.0.0.1:8080", "/srv/tmp", installed);
        let low = unit("0.0.0.0:443", "/srv/tmp", installed);
        assert!(high.contains("PrivateUsers=yes\n") && !high.contains("CAP_NET"));
        assert!(!low.contains("PrivateUsers") && low.contains("PrivateTmp=yes\n"));
        for set in ["\nCapabilityBoundingSet", "\nAmbientCapabilities"] {
            assert!(low.contains(&format!("{set}=CAP_NET_BIND_SERVICE\n")));
        }
    }
}
