//! The agent's process, with all that it starts, and the signals for it. It has a process group of its own: a Ctrl-C of
//! the terminal reaches it only after its calls are over, and no process of it stays behind.

use std::convert::Infallible;
use std::env;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{ExitStatus, Stdio};
use std::task::Poll;
use std::time::Duration;

pub(super) use rustix::process::Signal;
use rustix::process::{Pid, WaitOptions, kill_process_group, test_kill_process_group, waitpgid};
use tokio::process::{Child, Command};
use tokio::signal::unix::{self, SignalKind};
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// Variables with credentials that neither `run` nor the agent needs.
const KEPT_BACK: [&str; 3] = [
    "A2A_GATEWAY_ADMIN_TOKEN",
    "A2A_GATEWAY_ADMIN_TOKEN_FILE",
    // That of `token`, `send` and `stop`, which is often an operator's.
    "A2A_GATEWAY_TOKEN",
];

/// Variables that the agent gets besides those of `run`.
pub(super) type AgentEnvironment = [(&'static str, OsString); 4];

/// Starts this program again in this process, if its environment has credentials of others. The agent could read them
/// there (`/proc/PID/environ`), whatever its own environment has.
///
/// # Errors
/// The program cannot be started again.
pub(super) fn restart_without_credentials() -> io::Result<()> {
    if KEPT_BACK.iter().all(|name| env::var_os(name).is_none()) {
        return Ok(());
    }
    let mut again = std::process::Command::new(env::current_exe()?);
    again.args(env::args_os().skip(1));
    for name in KEPT_BACK {
        again.env_remove(name);
    }
    Err(again.exec())
}

/// Delay between two looks at the processes that a command left behind.
const LOOK: Duration = Duration::from_millis(20);

/// Longest wait for the end of a killed process.
const KILLED: Duration = Duration::from_secs(5);

/// Exit status of a process that a signal ended: this, and the signal's number.
const BY_SIGNAL: i32 = 128;

/// The agent's process.
pub(super) struct AgentProcess {
    child: Child,
    pub(super) group: ProcessGroup,
}

/// The agent's process group.
#[derive(Clone, Copy)]
pub(super) struct ProcessGroup(pub(super) Pid);

impl ProcessGroup {
    /// Sends a signal to all processes of the group that are left.
    pub(super) fn send_signal(self, signal: Signal) {
        // An error means that none is left.
        let _ = kill_process_group(self.0, signal);
    }

    /// Waits until no process of the group is left, and kills those that are left at `until`.
    async fn wait_until_gone(self, until: Instant) {
        while test_kill_process_group(self.0).is_ok() {
            if Instant::now() >= until {
                return self.send_signal(Signal::KILL);
            }
            // The first process of a container has the orphans as its children.
            let _ = waitpgid(self.0, WaitOptions::NOHANG);
            sleep(LOOK).await;
        }
    }
}

impl AgentProcess {
    /// Starts `command` with the variables of `environment` besides those of this process.
    ///
    /// # Errors
    /// The command is missing, or cannot be executed.
    pub(super) fn start(command: &[OsString], environment: &AgentEnvironment) -> io::Result<Self> {
        let Some((program, arguments)) = command.split_first() else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let mut command = Command::new(program);
        command
            .args(arguments)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            // It is used up.
            .env_remove("A2A_GATEWAY_ENROLMENT_TOKEN")
            .stdin(Stdio::null())
            .process_group(0)
            .kill_on_drop(true);
        let child = command.spawn()?;
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        let group = id.and_then(Pid::from_raw).map(ProcessGroup);
        let group = group.ok_or(io::ErrorKind::NotFound)?;
        Ok(Self { child, group })
    }

    /// Waits for the agent to end by itself. What it started and left behind is killed.
    pub(super) async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await?;
        self.group.send_signal(Signal::KILL);
        Ok(status)
    }

    /// Passes `signal` on, and each of `signals`, until the agent has ended, and what it started. Kills what is left at
    /// `until`.
    pub(super) async fn stop(
        &mut self,
        signal: Signal,
        signals: &mut Signals,
        until: Instant,
    ) -> io::Result<ExitStatus> {
        let group = self.group;
        group.send_signal(signal);
        tokio::select! {
            biased;
            status = self.wait_or_kill(until) => status,
            never = signals.pass_on(group) => match never {},
        }
    }

    async fn wait_or_kill(&mut self, until: Instant) -> io::Result<ExitStatus> {
        if let Ok(status) = timeout_at(until, self.child.wait()).await {
            self.group.wait_until_gone(until).await;
            return status;
        }
        tracing::warn!("The agent did not end in time (--grace); killing it");
        self.group.send_signal(Signal::KILL);
        match timeout(KILLED, self.child.wait()).await {
            Ok(status) => status,
            Err(_) => Ok(ExitStatus::from_raw(Signal::KILL.as_raw())),
        }
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        if self.child.id().is_some() {
            self.group.send_signal(Signal::KILL);
        }
    }
}

/// Returns the exit status of a shell for a command that ended so.
pub(super) fn exit_code(status: ExitStatus) -> u8 {
    let by_signal = || status.signal().map(|number| BY_SIGNAL + number);
    let code = status.code().or_else(by_signal);
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// The signals to this process.
pub(super) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Catches them from now on.
    ///
    /// # Errors
    /// When the system cannot install the handlers.
    pub(super) fn new() -> io::Result<Self> {
        let caught = |signal: Signal| {
            let kind = SignalKind::from_raw(signal.as_raw());
            Ok::<_, io::Error>((signal, unix::signal(kind)?))
        };
        let signals = [
            Signal::TERM,
            Signal::INT,
            Signal::QUIT,
            Signal::HUP,
            Signal::USR1,
            Signal::USR2,
        ];
        signals
            .into_iter()
            .map(caught)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Waits for a signal that asks the agent to end, and passes others on.
    pub(super) async fn wait_for_stop(&mut self, group: ProcessGroup) -> Signal {
        loop {
            let signal = self.next().await;
            if [Signal::TERM, Signal::INT, Signal::QUIT].contains(&signal) {
                return signal;
            }
            group.send_signal(signal);
        }
    }

    /// Passes each signal on.
    async fn pass_on(&mut self, group: ProcessGroup) -> Infallible {
        loop {
            group.send_signal(self.next().await);
        }
    }

    async fn next(&mut self) -> Signal {
        std::future::poll_fn(|context| {
            for (signal, caught) in &mut self.0 {
                if caught.poll_recv(context).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }
}
