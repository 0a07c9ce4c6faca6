//! The command line: its arguments, and one module for each command.
//!
//! The result of a command goes to standard output; errors and the log go to standard error.
//! Exit status: 0 done, 1 failed, 64 wrong arguments or configuration.

mod access;
mod agents;
mod audit;
mod caps;
mod check_config;
mod client;
mod complete;
mod context;
mod exchange;
mod explain;
mod failure;
mod grants;
mod health;
mod init;
mod keys;
mod manuals;
mod policy;
mod run;
mod send;
mod serve;
mod settings;
mod sidecar;
mod sse;
mod stops;
mod table;
mod terminal;
mod token;
mod token_file;
mod usage;
mod workspace;

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::CompleteEnv;
use url::Url;

use self::failure::{Failure, finish, run as run_to_end};
pub use self::serve::start;
pub use self::terminal::print_error;
use self::terminal::{escape_controls, print, print_note, write_prompt};

/// `EX_USAGE` of sysexits.h: arguments or configuration are wrong, and nothing was started.
pub const USAGE: u8 = 64;

const ABOUT: &str = "A gateway for agent-to-agent (A2A) messages: it knows who may message whom, \
                     where each agent is, and passes answers and streams on.";

const EXAMPLES: &str = "\
Examples:
  a2a-gateway demo                              try it: a gateway, five agents, commands to paste
  a2a-gateway                                   serve with defaults, data in ./data
  a2a-gateway init gateway                      write settings and a unit for systemd into a folder
  a2a-gateway --config gateway.toml             serve with your settings
  a2a-gateway --set server.listen=0.0.0.0:8080   change one setting
  a2a-gateway check-config gateway.toml         what would be in force, and from where
  a2a-gateway health                            is the gateway on this machine ready?
  a2a-gateway workspace create billing --token-file token   a workspace, and its agent's first token
  a2a-gateway run --workspace billing --token-file token -- python3 agent.py   start an agent, and register it
  a2a-gateway workspace tree                    the hierarchy
  a2a-gateway agents                            which agents live?
  a2a-gateway usage --by org --per total        what did each org use this month?
  a2a-gateway send acme-pm 'hello'              one message, from the command line
  a2a-gateway explain acme-pm acme-dev          would a message pass, and if not, why?
  a2a-gateway exchange tail --refused           what is refused, as it happens
  a2a-gateway stop --workspace acme-dev --reason 'a loop' --running   stop its calls, now
  a2a-gateway export > policy.yaml              workspaces, grants and stops as a file
  a2a-gateway apply policy.yaml --dry-run       what a policy would change
  a2a-gateway context add staging --url https://gateway.staging.example.com   a gateway elsewhere, by name
  a2a-gateway sidecar --workspace acme-pm --upstream http://127.0.0.1:8000   guard an agent
  a2a-gateway keys rotate --config gateway.toml    the next key signs from now on
  a2a-gateway audit verify --config gateway.toml   was any record changed, removed or put in?

Settings come from the built-in defaults, then --config, then the environment
(A2A_GATEWAY__SERVER__LISTEN for server.listen), then --set; the later one wins.
A change of the file, or SIGHUP, reloads them while it runs; a few keys wait for a restart.
SIGTERM ends it when its calls are over; at SIGUSR2 a new process goes on in its place.
The operator's token is read from A2A_GATEWAY_ADMIN_TOKEN; with none at all, the first start makes
one and prints it. Every setting, with its meaning: `a2a-gateway check-config --defaults`.";

#[derive(Debug, Parser)]
#[command(
    name = "a2a-gateway",
    version,
    about = ABOUT,
    after_help = EXAMPLES,
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
    #[command(after_help = serve::EXAMPLES)]
    Serve(serve::Arguments),
    /// A command of the demo, which is a crate of its own.
    #[command(flatten)]
    Example(Example),
    /// Write a configuration, an operator's token, and a unit for systemd or a compose file
    Init(init::Arguments),
    /// Check the configuration and show every value in force and its source
    CheckConfig(check_config::Arguments),
    /// Send one message to a workspace and print the answer
    Send(send::Arguments),
    /// Show or rotate the keys that sign tokens
    #[command(subcommand, after_help = keys::EXAMPLES)]
    Keys(keys::Command),
    /// Verify or export the audit: the records of calls and of changes
    #[command(subcommand, after_help = audit::EXAMPLES)]
    Audit(audit::Command),
    /// Make, list and revoke tokens; get, inspect and verify signed ones
    #[command(subcommand, after_help = token::EXAMPLES)]
    Token(token::Command),
    /// Make, list, show, change, move, pause and remove workspaces
    #[command(subcommand, after_help = workspace::EXAMPLES)]
    Workspace(workspace::Command),
    /// Let one workspace message another besides what the hierarchy permits
    #[command(subcommand, after_help = grants::EXAMPLES)]
    Grant(grants::Command),
    /// List the caps, and how much of each is used
    Caps(caps::Arguments),
    /// Show what calls took, by workspace or org and day
    Usage(usage::Arguments),
    /// List the agents, and whether they live
    Agents(agents::Arguments),
    /// Show exchanges as they pass
    #[command(subcommand, after_help = exchange::EXAMPLES)]
    Exchange(exchange::Command),
    /// Name gateways and their tokens in a file, for all commands that ask one
    #[command(subcommand, after_help = context::EXAMPLES)]
    Context(context::Command),
    /// Guard an agent: admit only callers that the gateway vouches for, by a signed token
    Sidecar(sidecar::Arguments),
    /// Start an agent, register it at a gateway, and let it leave without a lost call
    Run(run::Arguments),
    /// Stop calls of and to a workspace, a subtree, an org, a pair, or all; needs an operator's token (role operate), or an org's
    Stop(stops::StopArguments),
    /// End a stop: calls pass again
    Release(stops::ReleaseArguments),
    /// List the stops in force, with their reasons
    #[command(after_help = stops::STOPS_EXAMPLES)]
    Stops(client::ReadFlags),
    /// Print the workspaces, grants and stops of a running gateway as a policy, in YAML
    Export(policy::ExportArguments),
    /// Compare a policy with a running gateway, show the difference, and make it so in one transaction
    Apply(policy::ApplyArguments),
    /// Ask a running gateway whether it is ready; exit status 0 or 1, for health checks
    Health(health::Arguments),
    /// Ask a running gateway whether a message would pass: every check, its facts and their source
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
    let arguments = match CommandLine::<Example>::try_parse_from(&arguments) {
        Ok(arguments) => arguments,
        Err(asked) => {
            let words = arguments.iter().map(|word| word.to_string_lossy());
            let words = words.map(|word| escape_controls(&word).into_owned());
            // It repeats arguments. That of escaped ones can have its colours. A failed write cannot be reported.
            let _ = match CommandLine::<Example>::try_parse_from(words) {
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
            | Command::Audit(_)
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
        Command::Keys(command) => finish(keys::run(command)),
        Command::Audit(command) => run_to_end(audit::run(command)),
        Command::Token(command) => run_to_end(token::run(&command)),
        Command::Workspace(command) => run_to_end(workspace::run(&command)),
        Command::Grant(command) => run_to_end(grants::run(&command)),
        Command::Caps(arguments) => run_to_end(caps::run(&arguments)),
        Command::Usage(arguments) => run_to_end(usage::run(&arguments)),
        Command::Agents(arguments) => run_to_end(agents::run(&arguments)),
        Command::Exchange(command) => run_to_end(exchange::run(&command)),
        Command::Context(command) => finish(context::run(&command)),
        Command::Sidecar(arguments) => finish(sidecar::run(&arguments)),
        Command::Run(arguments) => finish(run::run(arguments)),
        Command::Stop(arguments) => run_to_end(stops::run_stop(&arguments)),
        Command::Release(arguments) => run_to_end(stops::run_release(&arguments)),
        Command::Stops(flags) => run_to_end(stops::run_stops(&flags)),
        Command::Export(arguments) => run_to_end(policy::run_export(&arguments)),
        Command::Apply(arguments) => run_to_end(policy::run_apply(&arguments)),
        Command::Health(arguments) => run_to_end(health::run(&arguments)),
        Command::Explain(arguments) => run_to_end(explain::run(&arguments)),
        Command::Completions(arguments) => {
            let command = CommandLine::<Example>::command();
            finish(manuals::run_completions(&command, &arguments))
        }
        Command::Man(arguments) => finish(manuals::run_man(
            CommandLine::<Example>::command(),
            &arguments,
        )),
    }
}

/// Answers a shell that completes a command line. Returns `None` for any other call of the program.
fn complete_words<Example: Subcommand>(arguments: &[OsString]) -> Option<ExitCode> {
    let asked = CompleteEnv::with_factory(CommandLine::<Example>::command).var(complete::VARIABLE);
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

/// Parses the http or https URL of a gateway.
fn parse_http_url(text: &str) -> Result<Url, &'static str> {
    let url = Url::parse(text)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https"));
    url.ok_or("write a URL with its scheme, such as http://127.0.0.1:9090")
}

/// Runs the future of a command on a runtime of its own, on this thread.
fn block_on<T, E: From<io::Error>>(work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    build_runtime()?.block_on(work)
}

/// Makes a runtime on this thread.
fn build_runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
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
        CommandLine::<Other>::command().debug_assert();
    }

    #[test]
    fn a_url_without_a_scheme_is_told_how_to_be_written() {
        assert!(parse_http_url("http://localhost:9090").is_ok());
        for typed in ["127.0.0.1:9090", "localhost:9090", "/readyz", ""] {
            assert!(
                parse_http_url(typed).unwrap_err().contains("http://"),
                "{typed}"
            );
        }
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
