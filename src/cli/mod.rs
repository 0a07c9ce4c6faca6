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
mod dry_run;
mod exchange;
mod explain;
mod grants;
mod health;
mod init;
mod keys;
mod manuals;
mod policy;
mod run;
mod send;
mod serve;
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
    Keys(keys::Arguments),
    /// Verify or export the audit: the records of calls and of changes
    Audit(audit::Arguments),
    /// Make, list and revoke tokens; get, inspect and verify signed ones
    Token(token::Arguments),
    /// Make, list, show, change, move, pause and remove workspaces
    Workspace(workspace::Arguments),
    /// Let one workspace message another besides what the hierarchy permits
    Grant(grants::Arguments),
    /// List the caps, and how much of each is used
    Caps(caps::Arguments),
    /// Show what calls took, by workspace or org and day
    Usage(usage::Arguments),
    /// List the agents, and whether they live
    Agents(agents::Arguments),
    /// Show exchanges as they pass
    Exchange(exchange::Arguments),
    /// Name gateways and their tokens in a file, for all commands that ask one
    Context(context::Arguments),
    /// Guard an agent: admit only callers that the gateway vouches for, by a signed token
    Sidecar(sidecar::Arguments),
    /// Start an agent, register it at a gateway, and let it leave without a lost call
    Run(run::Arguments),
    /// Stop calls of and to a workspace, a subtree, an org, a pair, or all; needs an operator's token (role operate), or an org's
    Stop(stops::StopArguments),
    /// End a stop: calls pass again
    Release(stops::ReleaseArguments),
    /// List the stops in force, with their reasons
    Stops(stops::StopsArguments),
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
    if connects && let Err(error) = check_trust_store() {
        print_error(&error);
        return ExitCode::from(USAGE);
    }
    match command {
        Command::Serve(arguments) => serve::run(arguments),
        Command::Example(arguments) => example(arguments),
        Command::Init(arguments) => init::run(&arguments),
        Command::CheckConfig(arguments) => check_config::run(arguments),
        Command::Send(arguments) => send::run(&arguments),
        Command::Keys(arguments) => keys::run(arguments),
        Command::Audit(arguments) => audit::run(arguments),
        Command::Token(arguments) => token::run(&arguments),
        Command::Workspace(arguments) => workspace::run(&arguments),
        Command::Grant(arguments) => grants::run(&arguments),
        Command::Caps(arguments) => caps::run(&arguments),
        Command::Usage(arguments) => usage::run(&arguments),
        Command::Agents(arguments) => agents::run(&arguments),
        Command::Exchange(arguments) => exchange::run(&arguments),
        Command::Context(arguments) => context::run(&arguments),
        Command::Sidecar(arguments) => sidecar::run(arguments),
        Command::Run(arguments) => run::run(arguments),
        Command::Stop(arguments) => stops::run_stop(&arguments),
        Command::Release(arguments) => stops::run_release(&arguments),
        Command::Stops(arguments) => stops::run_stops(&arguments),
        Command::Export(arguments) => policy::run_export(&arguments),
        Command::Apply(arguments) => policy::run_apply(&arguments),
        Command::Health(arguments) => health::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Completions(arguments) => {
            manuals::run_completions(&CommandLine::<Example>::command(), &arguments)
        }
        Command::Man(arguments) => manuals::run_man(CommandLine::<Example>::command(), &arguments),
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

/// The certificates that agents are verified with cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot load the system's trusted certificates; check SSL_CERT_FILE and SSL_CERT_DIR, or unset both: {0}"
)]
struct TrustStoreError(Box<pingora::Error>);

/// Loads the system's trusted certificates once as a check: Pingora loads them when it makes a
/// connector, and panics if it cannot.
fn check_trust_store() -> Result<(), TrustStoreError> {
    let mut store = pingora::tls::RootCertStore::empty();
    pingora::tls::load_platform_certs_incl_env_into_store(&mut store).map_err(TrustStoreError)
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
