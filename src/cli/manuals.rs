//! `a2a-gateway completions` and `a2a-gateway man`: files that packages install, made from the arguments of the program.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Command, ValueEnum};
use clap_complete::shells;
use clap_mangen::Man;

use super::{complain, print};

/// `a2a-gateway completions SHELL`.
#[derive(clap::Args, Debug)]
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

/// Prints the script that completes the arguments of `command` in a shell.
pub(super) fn run_completions(mut command: Command, arguments: &CompletionsArguments) -> ExitCode {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    match arguments.shell {
        Shell::Bash => clap_complete::generate(shells::Bash, &mut command, &name, &mut script),
        Shell::Fish => clap_complete::generate(shells::Fish, &mut command, &name, &mut script),
        Shell::Zsh => clap_complete::generate(shells::Zsh, &mut command, &name, &mut script),
    }
    let mut script = String::from_utf8_lossy(&script).into_owned();
    if matches!(arguments.shell, Shell::Bash) {
        // clap_complete 4.6 spells a hyphen of the program's name in two ways, so no subcommand would be completed.
        script = script.replace(&name.replace('-', "__subcmd__"), &name.replace('-', "__"));
    }
    shown(print(&script))
}

/// Prints the manual page of `command`, or writes those of it and of all its subcommands.
pub(super) fn run_man(command: Command, arguments: &ManArguments) -> ExitCode {
    let Some(folder) = &arguments.out else {
        // As in the folder: `help` has no page.
        let mut command = command.disable_help_subcommand(true);
        command.build();
        let mut page = Vec::new();
        let rendered = Man::new(command).render(&mut page);
        return shown(rendered.and_then(|()| print(&String::from_utf8_lossy(&page))));
    };
    match write_pages(command, folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(source) => {
            let folder = folder.display().to_string();
            complain(&PagesError { folder, source });
            ExitCode::FAILURE
        }
    }
}

fn write_pages(command: Command, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    clap_mangen::generate_to(command, folder)
}

fn shown(printed: io::Result<()>) -> ExitCode {
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    }
}
