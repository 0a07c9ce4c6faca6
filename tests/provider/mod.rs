//! A gateway at which operators sign in with a real `OpenID` provider (`provider.mjs`), and a browser that does.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::ports::free_address;
use crate::{packages, root};

/// How long a program may take until it serves.
const START_MAX: Duration = Duration::from_secs(60);

/// The secret of the client.
const SECRET: &str = "the secret of the client";

/// The admin token of the gateways.
const ADMIN: &str = "a2aa_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG";

/// A program that is ended when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The provider: what it runs as, and its issuer. It sends browsers back to `redirect_uri`.
fn provider(redirect_uri: &str) -> (Running, String) {
    let mut child = Command::new("node")
        .arg(root().join("tests/provider/provider.mjs"))
        .env("PROVIDER_PACKAGES", packages::installed("scripts/provider"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let issuer = line(&mut said);
    let person =
        |groups: &str| json!({"email": format!("{groups}@example.com"), "groups": [groups]});
    let people: Value = ["staff", "night", "admins", "stranger"]
        .map(|groups| (groups.to_owned(), person(groups)))
        .into_iter()
        .collect::<serde_json::Map<_, _>>()
        .into();
    let told = json!({"redirect_uri": redirect_uri, "secret": SECRET, "people": people});
    writeln!(child.stdin.as_mut().unwrap(), "{told}").unwrap();
    assert_eq!(line(&mut said), "ready");
    (Running(child), issuer)
}

fn line(from: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    line.trim().to_owned()
}

/// Starts a gateway at `[public, admin]`, at which people of `issuer` sign in.
fn gateway(folder: &std::path::Path, [public, admin]: [SocketAddr; 2], issuer: &str) -> Running {
    let secret = folder.join("secret");
    std::fs::write(&secret, SECRET).unwrap();
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let sets = [
        format!("server.listen={public}"),
        format!("admin.listen={admin}"),
        format!("stores.sql=sqlite:{}", folder.join("gateway.db").display()),
        "stores.timeout=20s".to_owned(),
        format!("keys.dir={}", folder.join("keys").display()),
        format!("audit.spool_dir={}", folder.join("audit").display()),
        format!("admin.sign_in.issuer={issuer}"),
        "admin.sign_in.client_id=a2a-gateway".to_owned(),
        format!("admin.sign_in.client_secret_file={}", secret.display()),
        "admin.sign_in.roles.read=staff".to_owned(),
        "admin.sign_in.roles.operate=night".to_owned(),
        "admin.sign_in.roles.admin=admins".to_owned(),
    ];
    let mut command = Command::new(env!("CARGO_BIN_EXE_a2a-gateway"));
    command.arg("serve").env("A2A_GATEWAY_ADMIN_TOKEN", ADMIN);
    for set in &sets {
        command.args(["--set", set]);
    }
    let log = std::fs::File::create(folder.join("log")).unwrap();
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    let running = Running(command.current_dir(folder).spawn().unwrap());
    let until = Instant::now() + START_MAX;
    while TcpStream::connect(public).is_err() || TcpStream::connect(admin).is_err() {
        assert!(Instant::now() < until, "the gateway does not start");
        std::thread::sleep(Duration::from_millis(50));
    }
    running
}

/// Runs signin.mjs against a gateway and its provider, and another gateway that has not asked the provider yet.
pub(crate) fn drive() -> Result<(), String> {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [one, other] = [(); 2].map(|()| [free_address("127.0.0.1"), free_address("127.0.0.1")]);
    let (provider, issuer) = provider(&format!("http://{}/console/sign-in/callback", one[1]));
    let _gateways = [
        gateway(folders[0].path(), one, &issuer),
        gateway(folders[1].path(), other, &issuer),
    ];
    let [public, admin] = one;
    let page = format!(
        "callers and agents http://{public}\nmetrics and health http://{admin}\nconsole in a browser http://{admin}/\n"
    );
    let more = [
        ("PAGES_ADMIN", ADMIN.to_owned()),
        ("PAGES_PROVIDER", issuer),
        ("PAGES_PROVIDER_PID", provider.0.id().to_string()),
        ("PAGES_OTHER", format!("http://{}/", other[1])),
    ];
    let driven = crate::drive("signin.mjs", &page, &more);
    let logs = folders
        .map(|folder| std::fs::read_to_string(folder.path().join("log")).unwrap_or_default());
    driven.map_err(|error| format!("{error}\n{}", logs.join("\n")))
}
