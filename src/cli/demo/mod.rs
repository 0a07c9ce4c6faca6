//! x
use std::process::ExitCode;
/// .
#[derive(clap::Args, Debug)]
pub(super) struct Arguments {}
pub(super) fn run(_: &Arguments) -> ExitCode {
    ExitCode::SUCCESS
}
