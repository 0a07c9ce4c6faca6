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
    explain, finish, grants, health, is_on_screen, policy, records, revocations, run_to_end, send,
    stops, task, token, usage, who, workspace, write_prompt,
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
    /// Write a configuration, a token, and a unit or compose file
    Init(init::Arguments),
    /// Check the configuration; show each value and its source
    CheckConfig(check_config::Arguments),
    /// Send one message to a workspace and print the answer
    Send(Box<send::Arguments>),
    /// Show, list, cancel or follow tasks
    #[command(subcommand)]
    Task(task::Command),
    /// Show or rotate the keys that sign tokens
    #[command(subcommand)]
    Keys(keys::Command),
    /// List, verify or export the records of calls and changes
    #[command(subcommand)]
    Audit(audit::Command),
    /// Make, list, revoke, inspect and verify tokens
    #[command(subcommand)]
    Token(token::Command),
    /// Make, list, show, change, move, pause and remove workspaces
    #[command(subcommand)]
    Workspace(workspace::Command),
    /// Let one workspace message another outside the hierarchy
    #[command(subcommand)]
    Grant(grants::Command),
    /// List the caps, and how much of each is used
    Caps(caps::Arguments),
    /// Show calls, tokens and time by workspace or org and day
    Usage(usage::Arguments),
    /// List the agents and their state
    Agents(agents::Arguments),
    /// List finished calls
    #[command(subcommand)]
    Call(records::Command),
    /// Show calls as they happen
    #[command(subcommand)]
    Exchange(exchange::Command),
    /// Name gateways and their tokens in a file
    #[command(subcommand)]
    Context(context::Command),
    /// Ask for a gateway's URL and a token, check and keep them
    Login(who::LoginArguments),
    /// Show the gateway, the token, and its owner
    Whoami(who::WhoamiArguments),
    /// Guard an agent: admit only callers with the gateway's token
    Sidecar(sidecar::Arguments),
    /// Start an agent, register it, and drain it at the end
    Run(run::Arguments),
    /// Stop calls of a workspace, a subtree, an org, a pair, or all
    Stop(stops::StopArguments),
    /// End a stop: calls pass again
    Release(stops::ReleaseArguments),
    /// List the stops in force
    Stops(ReadFlags),
    /// End what a person, a session, a run or a credential began
    #[command(subcommand)]
    Revocation(revocations::Command),
    /// Print workspaces, grants and stops as a policy, in YAML
    Export(policy::ExportArguments),
    /// Show how a policy differs from a gateway, and apply it
    Apply(policy::ApplyArguments),
    /// Prove the statements of a policy about reach
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// List the pairs of workspaces that may call each other
    #[command(subcommand)]
    Access(policy::AccessCommand),
    /// Ask whether the gateway is ready; exit status 0 or 1
    Health(health::Arguments),
    /// Ask whether a call would pass; if not, why, and what to do
    Explain(explain::Arguments),
    /// Print the completion script of a shell
    Completions(manuals::CompletionsArguments),
    /// Print the manual page, or write those of all commands
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
        Command::Policy(command) => run_to_end(policy::run_policy(&command)),
        Command::Access(command) => run_to_end(policy::run_access(&command)),
        Command::Health(arguments) => run_to_end(health::run(&arguments)),
        Command::Explain(arguments) => run_to_end(explain::run(&arguments)),
        Command::Completions(arguments) => {
            let command = build_command::<Example>();
            finish(manuals::run_completions(&command, &arguments))
        }
        Command::Man(arguments) => finish(manuals::run_man(build_command::<Example>(), &arguments)),
    }
}

/// The headings of the program's help, and the commands below each.
const GROUPS: [(&str, &str); 5] = [
    (
        "Setup",
        "demo init login whoami context completions man help",
    ),
    ("Agents", "workspace agents run sidecar agent"),
    ("Calls", "send task call exchange explain usage"),
    (
        "Policy",
        "grant access policy export apply caps stop release stops revocation",
    ),
    ("Operate", "serve check-config health token keys audit"),
];

/// Returns the command line, each command with its examples.
fn build_command<Example: Subcommand>() -> clap::Command {
    let command = add_examples(CommandLine::<Example>::command(), "a2a-gateway");
    let mut built = command.clone();
    built.build();
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}Options:\n{{options}}{{after-help}}\n",
        list_commands(&built)
    );
    let command = command.help_template(template);
    // Elsewhere a line stays whole, as a script or a test reads it.
    match is_on_screen() {
        true => command.max_term_width(100),
        false => command.term_width(0),
    }
}

/// Lists the commands by group, each in one line. clap has groups of options only.
fn list_commands(command: &clap::Command) -> String {
    let mut list = String::new();
    for (heading, names) in GROUPS {
        list.push_str(&format!("{heading}:\n"));
        for name in names.split(' ') {
            if let Some(inner) = command.find_subcommand(name) {
                let about = inner.get_about().map(ToString::to_string);
                list.push_str(&format!("  {name:12}  {}\n", about.unwrap_or_default()));
            }
        }
        list.push('\n');
    }
    list
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
    fn each_command_is_in_one_group_and_its_line_fits_a_terminal() {
        let mut command = build_command::<Other>().term_width(80);
        command.build();
        let mut listed: Vec<_> = GROUPS.iter().flat_map(|group| group.1.split(' ')).collect();
        listed.retain(|name| *name != "agent");
        let mut names: Vec<_> = command
            .get_subcommands()
            .map(clap::Command::get_name)
            .collect();
        listed.sort_unstable();
        names.sort_unstable();
        assert_eq!(listed, names);
        let help = command.render_help().to_string();
        let lines = help.split("Examples:").next().unwrap().lines().skip(1);
        let wide: Vec<_> = lines.filter(|line| line.chars().count() > 80).collect();
        assert!(wide.is_empty(), "{wide:#?}");
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
