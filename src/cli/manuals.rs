//! `a2a-gateway completions` and `a2a-gateway man`: files that packages install, made from the arguments of the
//! program.

use std::fs;
use std::path::PathBuf;

use clap::Command;
use clap_complete::env::Shells;
use clap_mangen::Man;

use ctl::{COMPLETION_VARIABLE, Failure, OrFail as _};

/// Ends the script for zsh.
const ZSH_FIRST_CALL: &str = r#"
if [ "$funcstack[1]" = "_NAME" ]; then
    _clap_dynamic_completer_ID "$@"
fi
"#;

/// `a2a-gateway completions SHELL`.
#[derive(clap::Args, Debug)]
pub(super) struct CompletionsArguments {
    /// The shell that reads the script
    #[arg(value_parser = ["bash", "fish", "zsh"])]
    shell: String,
}

/// `a2a-gateway man`.
#[derive(clap::Args, Debug)]
pub(super) struct ManArguments {
    /// Write one page for each command into this folder, which is made if it is missing
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

/// Prints the script that completes the arguments of `command` in a shell: it asks this program.
pub(super) fn run_completions(
    command: &Command,
    arguments: &CompletionsArguments,
) -> Result<String, Failure> {
    let name = command.get_name();
    let mut script = Vec::new();
    let shells = Shells::builtins();
    let shell = shells.completer(&arguments.shell);
    let shell = shell.ok_or_else(|| Failure::usage("there are no completions for this shell"))?;
    shell.write_registration(COMPLETION_VARIABLE, name, name, name, &mut script)?;
    let mut script = String::from_utf8_lossy(&script).into_owned();
    if arguments.shell == "zsh" {
        // As a file of a folder in `fpath` it is the function itself: without this its first call would offer nothing.
        script.push_str(
            &ZSH_FIRST_CALL
                .replace("NAME", name)
                .replace("ID", &name.replace('-', "_")),
        );
    }
    Ok(script)
}

/// Prints the manual page of `command`, or writes those of it and of all its subcommands.
pub(super) fn run_man(command: Command, arguments: &ManArguments) -> Result<String, Failure> {
    let Some(folder) = &arguments.out else {
        // As in the folder: `help` has no page.
        let mut command = command.disable_help_subcommand(true);
        command.build();
        let mut page = Vec::new();
        Man::new(command).render(&mut page)?;
        return Ok(String::from_utf8_lossy(&page).into_owned());
    };
    let made = fs::create_dir_all(folder);
    let written = made.and_then(|()| clap_mangen::generate_to(command, folder));
    let shown = folder.display();
    written.or_fail(format_args!("cannot write the manual pages into {shown}"))?;
    Ok(String::new())
}
