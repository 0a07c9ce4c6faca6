//! A new process goes on with the listening sockets of the one before (SIGUSR2): between the two no call fails.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use crate::harness::ports::free_address;
use crate::harness::{
    Agent, Builder, Connection, Gateway, LAST_CHUNK, Pair, SSE_HEAD, Seat, Step, chunk, ok_json,
    until_holds,
};

/// A streaming call.
const STREAM: &str = r#"{"jsonrpc":"2.0","id":"s-1","method":"message/stream","params":{"message":{"kind":"message","messageId":"m-1","role":"user","parts":[{"kind":"text","text":"hi"}]}}}"#;

/// Events of one stream, and the time between two.
const EVENTS: usize = 10;
const PAUSE: Duration = Duration::from_millis(150);

/// In the log of a process that is not followed.
const NOT_SERVED: &str = "The new process did not come to serve";

/// For what takes a moment on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Who supervises, and hears which process is the gateway (`sd_notify(3)`). Dropping it ends those that it heard of.
pub(crate) struct Supervisor {
    socket: UnixDatagram,
    heard: Vec<u32>,
}

impl Supervisor {
    pub(crate) fn new(folder: &std::path::Path) -> Self {
        let socket = UnixDatagram::bind(folder.join("notify")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let heard = Vec::new();
        Self { socket, heard }
    }

    /// The next process that says that it is the gateway, and is ready.
    pub(crate) fn next(&mut self) -> u32 {
        let mut buffer = [0; 512];
        let said = loop {
            let length = self.socket.recv(&mut buffer);
            let length = length.expect("a process that is ready");
            let said = std::str::from_utf8(&buffer[..length]).unwrap();
            if said.trim() != "STOPPING=1" {
                break said.to_owned();
            }
        };
        let lines: Vec<&str> = said.lines().collect();
        assert!(lines.contains(&"READY=1"), "{said:?}");
        let pid = lines.iter().find_map(|line| line.strip_prefix("MAINPID="));
        let pid = pid.unwrap().parse().unwrap();
        self.heard.push(pid);
        pid
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        for pid in &self.heard {
            // Another program may have the number of one that has ended.
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if String::from_utf8_lossy(&command).contains("a2a-gateway\0serve") {
                signal(*pid, "KILL");
            }
        }
    }
}

pub(crate) fn signal(pid: u32, name: &str) -> bool {
    let mut kill = Command::new("kill");
    kill.args(["-s", name, &pid.to_string()]);
    kill.stderr(Stdio::null());
    kill.status().expect("kill runs").success()
}

/// Waits until it has ended. One that was not waited for has, too.
async fn ends(pid: u32) {
    let has_ended = async || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
        state.is_none_or(|state| state.starts_with('Z'))
    };
    until_holds("the process before ends", has_ended).await;
}

async fn agent() -> Agent {
    Agent::scripted(|request| {
        if !request.text().contains("message/stream") {
            let answer = ok_json(r#"{"jsonrpc":"2.0","id":"c-1","result":"done"}"#);
            return vec![Step::Wait(Duration::from_millis(5)), Step::Write(answer)];
        }
        let mut steps = vec![Step::write(SSE_HEAD)];
        for n in 0..EVENTS {
            steps.push(Step::write(chunk(format!("data: {{\"n\":{n}}}\n\n"))));
            steps.push(Step::Wait(PAUSE));
        }
        steps.push(Step::write(LAST_CHUNK));
        steps
    })
    .await
}

/// Callers that call one after the other, on connections that they keep for as long as they may.
struct Load {
    over: Arc<AtomicBool>,
    callers: JoinSet<(usize, usize)>,
}

impl Load {
    fn begin(gateway: &Gateway, caller: &Seat, target: &Seat) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let mut callers = JoinSet::new();
        for n in 0..8 {
            let (to, over) = (gateway.public, Arc::clone(&over));
            let request = caller.calls(target);
            // One of them pauses for longer than a process needs to be followed: its connection is idle then.
            let pause = Duration::from_millis(if n == 0 { 400 } else { 1 });
            callers.spawn(async move {
                let (mut calls, mut connections) = (0, 1);
                let mut connection = Connection::open(to).await;
                while !over.load(Ordering::Relaxed) {
                    let answer = connection.call(&request).await.has(200);
                    calls += 1;
                    if answer.field("connection") == Some("close") {
                        connections += 1;
                        connection = Connection::open(to).await;
                    }
                    sleep(pause).await;
                }
                (calls, connections)
            });
        }
        Self { over, callers }
    }

    /// Calls that were answered, and connections that they took.
    async fn end(mut self) -> (usize, usize) {
        self.over.store(true, Ordering::Relaxed);
        let mut all = (0, 0);
        while let Some(one) = self.callers.join_next().await {
            let (calls, connections) = one.expect("no call fails");
            all = (all.0 + calls, all.1 + connections);
        }
        all
    }
}

/// A stream, which has to be whole.
fn stream(gateway: &Gateway, caller: &Seat, target: &Seat) -> JoinHandle<()> {
    let to = gateway.public;
    let request = caller.sends(target, STREAM);
    tokio::spawn(async move {
        let answer = Connection::open(to).await.call(&request).await.unnumbered();
        assert!(answer.whole, "{}", answer.text());
        assert_eq!(answer.events().len(), EVENTS, "{}", answer.text());
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_follow_each_other_and_no_call_fails() {
    let folder = tempfile::tempdir().unwrap();
    let mut supervisor = Supervisor::new(folder.path());
    let notify = folder.path().join("notify");
    let builder = Builder::new(Pair::External).set("server.threads", "2");
    let builder = builder.env("NOTIFY_SOCKET", notify.to_str().unwrap());
    let mut gateway = builder.start().await;
    let mut before = supervisor.next();
    assert_eq!(before, gateway.pid());
    let (caller, target) = gateway.pair(agent().await).await;
    let load = Load::begin(&gateway, &caller, &target);
    let mut streams = Vec::new();
    for round in 0..2 {
        for _ in 0..4 {
            streams.push(stream(&gateway, &caller, &target));
        }
        sleep(Duration::from_millis(700)).await;
        assert!(signal(before, "USR2"));
        let after = tokio::task::block_in_place(|| supervisor.next());
        assert_ne!(after, before, "round {round}");
        streams.push(stream(&gateway, &caller, &target));
        ends(before).await;
        before = after;
    }
    let first = gateway.wait(PATIENCE);
    assert!(first.success(), "{first}");
    for stream in streams {
        stream.await.expect("streams are whole");
    }
    let (calls, connections) = load.end().await;
    let told = format!("{calls} calls on {connections} connections");
    assert!(calls > 8, "{told}");
    // Told to close once in each round.
    assert!(connections >= 8 + 2 * 7, "{told}");
    // The last one ends as any other does.
    assert!(signal(before, "TERM"));
    ends(before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_supervisor_that_does_not_read_holds_nobody_up() {
    let folder = tempfile::tempdir().unwrap();
    let notify = folder.path().join("notify");
    let deaf = UnixDatagram::bind(&notify).unwrap();
    let other = UnixDatagram::unbound().unwrap();
    other.connect(&notify).unwrap();
    other.set_nonblocking(true).unwrap();
    while other.send(b"STATUS=busy\n").is_ok() {}
    let builder = Builder::new(Pair::Embedded).env("NOTIFY_SOCKET", notify.to_str().unwrap());
    let mut gateway = builder.start().await;
    let (caller, target) = gateway.pair(agent().await).await;
    gateway.call(&caller.calls(&target)).await.has(200);
    gateway.signal("TERM");
    let ended = tokio::task::block_in_place(|| gateway.wait(PATIENCE));
    assert!(ended.success(), "{ended}");
    drop(deaf);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_with_stores_of_its_own_is_not_followed() {
    let gateway = Gateway::process(Pair::Embedded).await;
    let (caller, target) = gateway.pair(agent().await).await;
    gateway.signal("USR2");
    gateway.until_told("No new process can take over", 1).await;
    gateway.call(&caller.calls(&target)).await.has(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_cannot_be_followed_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    fs::write(&file, "").unwrap();
    let builder = Builder::new(Pair::External).process().file(&file);
    let gateway = builder.set("stores.timeout", "20s").start().await;
    let (caller, target) = gateway.pair(agent().await).await;
    fs::write(&file, "this is no configuration").unwrap();
    gateway.signal("USR2");
    gateway.until_told(NOT_SERVED, 1).await;
    gateway.call(&caller.calls(&target)).await.has(200);
    gateway.admin_get("/readyz").await.unwrap().has(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_cannot_be_started_can_be_put_right() {
    let folder = tempfile::tempdir().unwrap();
    let mut supervisor = Supervisor::new(folder.path());
    let notify = folder.path().join("notify");
    let [program, away] = ["a2a-gateway", "away"].map(|name| folder.path().join(name));
    fs::copy(env!("CARGO_BIN_EXE_a2a-gateway"), &program).unwrap();
    let builder = Builder::new(Pair::External).program(&program);
    let builder = builder.env("NOTIFY_SOCKET", notify.to_str().unwrap());
    let mut gateway = builder.start().await;
    let before = supervisor.next();
    let (caller, target) = gateway.pair(agent().await).await;
    let request = caller.calls(&target);
    // Not there, not to be run, and no program.
    fs::rename(&program, &away).unwrap();
    let spoil: [&dyn Fn(); 3] = [&|| {}, &|| fs::write(&program, "").unwrap(), &|| {
        fs::remove_file(&program).unwrap();
        fs::write(&program, "exit 1").unwrap();
        fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    }];
    for (round, spoil) in spoil.into_iter().enumerate() {
        spoil();
        assert!(signal(before, "USR2"));
        gateway.until_told("cannot be started", round + 1).await;
        assert_eq!(gateway.call(&request).await.status, 200, "round {round}");
    }
    fs::rename(&away, &program).unwrap();
    assert!(signal(before, "USR2"));
    let after = tokio::task::block_in_place(|| supervisor.next());
    assert_ne!(after, before);
    assert!(gateway.wait(PATIENCE).success());
    assert_eq!(gateway.call(&request).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_does_not_go_over_to_stores_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("a2a-gateway");
    let start_with = |arguments: &str| {
        let gateway = env!("CARGO_BIN_EXE_a2a-gateway");
        let script = format!("#!/usr/bin/env bash\nexec -a \"$0\" {gateway} {arguments}\n");
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    };
    start_with("\"$@\"");
    let builder = Builder::new(Pair::External).program(&program);
    let gateway = builder.start().await;
    let (caller, target) = gateway.pair(agent().await).await;
    start_with("\"${@/stores.sql=*/stores.sql=sqlite:other.db}\"");
    gateway.signal("USR2");
    for told in ["cannot go on for the process before", NOT_SERVED] {
        gateway.until_told(told, 1).await;
    }
    gateway.call(&caller.calls(&target)).await.has(200);
}

#[test]
fn of_two_that_start_at_once_on_the_same_addresses_one_ends() {
    let (address, admin) = (free_address("127.0.0.1"), free_address("127.0.0.1"));
    let folder = tempfile::tempdir().unwrap();
    let mut both = [1, 2].map(|n| {
        let home = folder.path().join(n.to_string());
        fs::create_dir(&home).unwrap();
        let mut one = Command::new(env!("CARGO_BIN_EXE_a2a-gateway"));
        one.args(["serve", "--set", &format!("admin.listen={admin}")]);
        one.args(["--set", &format!("server.listen={address}")]);
        one.current_dir(home).stdin(Stdio::null());
        one.stdout(Stdio::null()).stderr(Stdio::null());
        one.spawn().unwrap()
    });
    let deadline = Instant::now() + PATIENCE;
    let ended = loop {
        let over = |one: &mut Child| one.try_wait().unwrap().is_some();
        if let Some(ended) = both.iter_mut().position(over) {
            break ended;
        }
        assert!(Instant::now() < deadline, "both go on");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(both[ended].wait().unwrap().code(), Some(1));
    let other = &mut both[1 - ended];
    while std::net::TcpStream::connect(address).is_err() {
        assert!(Instant::now() < deadline, "the other does not serve");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(other.try_wait().unwrap(), None);
    other.kill().unwrap();
    other.wait().unwrap();
}
