//! The command line: its arguments, and one module for each command.
//!
//! The result of a command goes to standard output; errors and the log go to standard error.
//! Exit status: 0 done, 1 failed, 64 wrong arguments or configuration.

mod audit;
mod check_config;
mod init;
mod keys;
mod manuals;
mod serve;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use clap_complete::CompleteEnv;

pub use self::serve::start;
pub use ctl::context::{find_context, remove_context, save_context};
use ctl::{
    COMPLETION_VARIABLE, Failure, ReadFlags, agents, caps, context, escape_controls, exchange,
    explain, finish, grants, health, policy, records, revocations, run_to_end, send, stops, task,
    token, usage, who, workspace, write_prompt,
};
pub use ctl::{USAGE, print_error};
use run::sidecar;

/// What stands below the help of each command, behind a heading with its name.
const EXAMPLES: &str = include_str!("examples.txt");

const ABOUT: &str = "A gateway for agent-to-agent (A2A) messages: it knows who may message whom, \
                     where each agent is, and passes answers and streams on.";

#[derive(Debug, Parser)]
#[command(
    name = "a2a-gateway",
    version,
    about = ABOUT,
    args_conflicts_with_subcommands = true
)]
struct CommandLine<Example: Subcommand> {
    #[command(subcommand)]
    command: Option<Command<Example>>,
    #[command(flatten)]
    serve: serve::Arguments,
}

#[derive(Debug, Subcommand)]
enum Command<Example: Subcommand> {
    /// Run the gateway (the default command)
    Serve(serve::Arguments),
    /// A command of the demo, which is a crate of its own.
    #[command(flatten)]
    Example(Example),
    /// Write a configuration, an operator's token, and a unit for systemd or a compose file
    Init(init::Arguments),
    /// Check the configuration and show every value in force and its source
    CheckConfig(check_config::Arguments),
    /// Send one message to a workspace and print the answer
    Send(Box<send::Arguments>),
    /// Show, list, cancel or follow the tasks that a message started
    #[command(subcommand)]
    Task(task::Command),
    /// Show or rotate the keys that sign tokens
    #[command(subcommand)]
    Keys(keys::Command),
    /// List, verify or export the audit: the records of calls and of changes
    #[command(subcommand)]
    Audit(audit::Command),
    /// Make, list and revoke tokens; get, inspect and verify signed ones
    #[command(subcommand)]
    Token(token::Command),
    /// Make, list, show, change, move, pause and remove workspaces
    #[command(subcommand)]
    Workspace(workspace::Command),
    /// Let one workspace message another besides what the hierarchy permits
    #[command(subcommand)]
    Grant(grants::Command),
    /// List the caps, and how much of each is used
    Caps(caps::Arguments),
    /// Show what calls took, by workspace or org and day
    Usage(usage::Arguments),
    /// List the agents, and whether they live
    Agents(agents::Arguments),
    /// List calls that are over
    #[command(subcommand)]
    Call(records::Command),
    /// Show exchanges as they pass
    #[command(subcommand)]
    Exchange(exchange::Command),
    /// Name gateways and their tokens in a file, for all commands that ask one
    #[command(subcommand)]
    Context(context::Command),
    /// Ask for a gateway's URL and a token, try them, and make them the current context
    Login(who::LoginArguments),
    /// Say which gateway commands ask, with which token, and who that is there
    Whoami(who::WhoamiArguments),
    /// Guard an agent: admit only callers that the gateway vouches for, by a signed token
    Sidecar(sidecar::Arguments),
    /// Start an agent, register it at a gateway, and let it leave without a lost call
    Run(run::Arguments),
    /// Stop calls of and to a workspace, a subtree, an org, a pair, or all; needs an operator's token (role operate),
    /// or an org's
    Stop(stops::StopArguments),
    /// End a stop: calls pass again
    Release(stops::ReleaseArguments),
    /// List the stops in force, with their reasons
    Stops(ReadFlags),
    /// Revoke what a person, a session, a run or a credential began by now, and list what is revoked
    #[command(subcommand)]
    Revocation(revocations::Command),
    /// Print the workspaces, grants and stops of a running gateway as a policy, in YAML
    Export(policy::ExportArguments),
    /// Compare a policy with a running gateway, show the difference, and make it so in one transaction
    Apply(policy::ApplyArguments),
    /// Ask a running gateway whether it is ready; exit status 0 or 1, for health checks
    Health(health::Arguments),
    /// Ask a running gateway whether a message would pass, and if not why, and what to do
    Explain(explain::Arguments),
    /// Print the script that completes commands and options in a shell
    Completions(manuals::CompletionsArguments),
    /// Print the manual page of this program, or write those of all commands into a folder
    Man(manuals::ManArguments),
}

/// Runs the command that `arguments` name; the first is the program itself. `example` runs the commands of the demo.
pub fn run<Example: Subcommand>(
    arguments: impl IntoIterator<Item = OsString>,
    example: impl FnOnce(Example) -> ExitCode,
) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    if let Some(ended) = complete_words::<Example>(&arguments) {
        return ended;
    }
    let parse = |words: Vec<OsString>| {
        let matches = build_command::<Example>().try_get_matches_from(words)?;
        CommandLine::<Example>::from_arg_matches(&matches)
    };
    let arguments = match parse(arguments.clone()) {
        Ok(arguments) => arguments,
        Err(asked) => {
            let words = arguments.iter().map(|word| word.to_string_lossy());
            let words = words.map(|word| escape_controls(&word).into_owned().into());
            // It repeats arguments. That of escaped ones can have its colours. A failed write cannot be reported.
            let _ = match parse(words.collect()) {
                Err(shown) => shown.print(),
                Ok(_) => write_prompt(&asked.to_string()),
            };
            return ExitCode::from(if asked.use_stderr() { USAGE } else { 0 });
        }
    };
    let command = arguments.command.unwrap_or(Command::Serve(arguments.serve));
    let connects = !matches!(
        command,
        Command::Init(_)
            | Command::CheckConfig(_)
            | Command::Keys(_)
            | Command::Audit(audit::Command::Verify(_) | audit::Command::Export { .. })
            | Command::Context(_)
            | Command::Completions(_)
            | Command::Man(_)
    );
    if connects && let Err(failure) = check_trust_store() {
        return failure.report();
    }
    match command {
        Command::Serve(arguments) => serve::run(arguments),
        Command::Example(arguments) => example(arguments),
        Command::Init(arguments) => finish(init::run(&arguments)),
        Command::CheckConfig(arguments) => finish(check_config::run(arguments)),
        Command::Send(arguments) => run_to_end(send::run(&arguments)),
        Command::Task(command) => run_to_end(task::run(&command)),
        Command::Keys(command) => finish(keys::run(command)),
        Command::Audit(command) => run_to_end(audit::run(command)),
        Command::Token(command) => run_to_end(token::run(&command)),
        Command::Workspace(command) => run_to_end(workspace::run(&command)),
        Command::Grant(command) => run_to_end(grants::run(&command)),
        Command::Caps(arguments) => run_to_end(caps::run(&arguments)),
        Command::Usage(arguments) => run_to_end(usage::run(&arguments)),
        Command::Agents(arguments) => run_to_end(agents::run(&arguments)),
        Command::Call(command) => run_to_end(records::run_call(&command)),
        Command::Exchange(command) => run_to_end(exchange::run(&command)),
        Command::Context(command) => run_to_end(context::run(&command)),
        Command::Login(arguments) => run_to_end(who::run_login(&arguments)),
        Command::Whoami(arguments) => run_to_end(who::run_whoami(&arguments)),
        Command::Sidecar(arguments) => finish(sidecar::run(&arguments)),
        Command::Run(arguments) => finish(run::run(arguments)),
        Command::Stop(arguments) => run_to_end(stops::run_stop(&arguments)),
        Command::Release(arguments) => run_to_end(stops::run_release(&arguments)),
        Command::Stops(flags) => run_to_end(stops::run_stops(&flags)),
        Command::Revocation(command) => run_to_end(revocations::run(&command)),
        Command::Export(arguments) => run_to_end(policy::run_export(&arguments)),
        Command::Apply(arguments) => run_to_end(policy::run_apply(&arguments)),
        Command::Health(arguments) => run_to_end(health::run(&arguments)),
        Command::Explain(arguments) => run_to_end(explain::run(&arguments)),
        Command::Completions(arguments) => {
            let command = build_command::<Example>();
            finish(manuals::run_completions(&command, &arguments))
        }
        Command::Man(arguments) => finish(manuals::run_man(build_command::<Example>(), &arguments)),
    }
}

/// Returns the command line, each command with its examples.
fn build_command<Example: Subcommand>() -> clap::Command {
    add_examples(CommandLine::<Example>::command(), "a2a-gateway")
}

/// Puts the examples of the command at `path`, and of those below it, below their help.
fn add_examples(command: clap::Command, path: &str) -> clap::Command {
    let behind = EXAMPLES.split_once(&format!("# {path}\n"));
    let text = behind.and_then(|(_, behind)| behind.split("\n\n# ").next());
    let command = command.mut_subcommands(|inner| {
        let path = format!("{path} {}", inner.get_name());
        add_examples(inner, &path)
    });
    match text {
        Some(text) => command.after_help(text.trim_end()),
        None => command,
    }
}

/// Answers a shell that completes a command line. Returns `None` for any other call of the program.
fn complete_words<Example: Subcommand>(arguments: &[OsString]) -> Option<ExitCode> {
    let asked = CompleteEnv::with_factory(build_command::<Example>).var(COMPLETION_VARIABLE);
    let folder = std::env::current_dir().ok();
    match asked.try_complete(arguments, folder.as_deref()) {
        Ok(false) => None,
        Ok(true) => Some(ExitCode::SUCCESS),
        // The shell shows nothing, then.
        Err(_) => Some(ExitCode::FAILURE),
    }
}

/// Loads the system's trusted certificates once as a check: Pingora loads them when it makes a
/// connector, and panics if it cannot.
fn check_trust_store() -> Result<(), Failure> {
    let mut store = pingora::tls::RootCertStore::empty();
    let loaded = pingora::tls::load_platform_certs_incl_env_into_store(&mut store);
    loaded.map_err(|error| {
        Failure::usage(format!(
            "cannot load the system's trusted certificates; check SSL_CERT_FILE and SSL_CERT_DIR, or unset both: {error}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A command of another crate.
    #[derive(Debug, Subcommand)]
    enum Other {
        Demo,
    }

    #[test]
    fn the_command_line_is_consistent() {
        build_command::<Other>().debug_assert();
    }

    #[test]
    fn serve_is_what_runs_without_a_word() {
        for typed in [
            &[
                "a2a-gateway",
                "--config",
                "a.toml",
                "--set",
                "a.b=c",
                "--set",
                "d.e=f",
            ][..],
            &[
                "a2a-gateway",
                "serve",
                "--config",
                "a.toml",
                "--set",
                "a.b=c",
                "--set",
                "d.e=f",
            ],
        ] {
            let parsed = CommandLine::<Other>::try_parse_from(typed).unwrap();
            let serve = match parsed.command {
                Some(Command::Serve(serve)) => serve,
                None => parsed.serve,
                Some(other) => panic!("{other:?}"),
            };
            assert_eq!(serve.set, ["a.b=c", "d.e=f"]);
            assert_eq!(serve.config.unwrap().to_str(), Some("a.toml"));
        }
    }
}
