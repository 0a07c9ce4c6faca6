//! `a2a-gateway completions` and `a2a-gateway man`: files that packages install, made from the arguments of the program.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Command, ValueEnum};
use clap_complete::env::{Bash, EnvCompleter, Fish, Zsh};
use clap_mangen::Man;

use super::{complete, print, print_error};

/// Ends the script for zsh.
const ZSH_FIRST_CALL: &str = r#"
if [ "$funcstack[1]" = "_NAME" ]; then
    _clap_dynamic_completer_ID "$@"
fi
"#;

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  a2a-gateway completions bash > a2a-gateway.bash
  a2a-gateway completions zsh > _a2a-gateway
  a2a-gateway completions fish > a2a-gateway.fish

The script asks the program for commands, options and values, and for the ids of workspaces, tokens, grants
and stops it asks the gateway, for at most a second, as the command would: make it again for another release.";

const MAN_EXAMPLES: &str = "\
Examples:
  a2a-gateway man
  a2a-gateway man --out man1";

/// `a2a-gateway completions SHELL`.
#[derive(clap::Args, Debug)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
pub(super) struct CompletionsArguments {
    /// The shell that reads the script
    shell: Shell,
}

/// A shell whose completions are tested.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shell {
    Bash,
    Fish,
    Zsh,
}

/// `a2a-gateway man`.
#[derive(clap::Args, Debug)]
#[command(after_help = MAN_EXAMPLES)]
pub(super) struct ManArguments {
    /// Write one page for each command into this folder, which is made if it is missing
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

/// The manual pages cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the manual pages into {folder}")]
struct PagesError {
    folder: String,
    source: io::Error,
}

/// Prints the script that completes the arguments of `command` in a shell: it asks this program.
pub(super) fn run_completions(command: &Command, arguments: &CompletionsArguments) -> ExitCode {
    let name = command.get_name();
    let mut script = Vec::new();
    let shell: &dyn EnvCompleter = match arguments.shell {
        Shell::Bash => &Bash,
        Shell::Fish => &Fish,
        Shell::Zsh => &Zsh,
    };
    let written = shell.write_registration(complete::VARIABLE, name, name, name, &mut script);
    let mut script = String::from_utf8_lossy(&script).into_owned();
    if matches!(arguments.shell, Shell::Zsh) {
        // As a file of a folder in `fpath` it is the function itself: without this its first call would offer nothing.
        script.push_str(
            &ZSH_FIRST_CALL
                .replace("NAME", name)
                .replace("ID", &name.replace('-', "_")),
        );
    }
    to_exit_code(written.and_then(|()| print(&script)))
}

/// Prints the manual page of `command`, or writes those of it and of all its subcommands.
pub(super) fn run_man(command: Command, arguments: &ManArguments) -> ExitCode {
    let Some(folder) = &arguments.out else {
        // As in the folder: `help` has no page.
        let mut command = command.disable_help_subcommand(true);
        command.build();
        let mut page = Vec::new();
        let rendered = Man::new(command).render(&mut page);
        return to_exit_code(rendered.and_then(|()| print(&String::from_utf8_lossy(&page))));
    };
    match write_pages(command, folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(source) => {
            let folder = folder.display().to_string();
            print_error(&PagesError { folder, source });
            ExitCode::FAILURE
        }
    }
}

fn write_pages(command: Command, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    clap_mangen::generate_to(command, folder)
}

fn to_exit_code(printed: io::Result<()>) -> ExitCode {
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&error);
            ExitCode::FAILURE
        }
    }
}
