//! Arguments, then [`a2a_gateway::cli`].

fn main() -> std::process::ExitCode {
    std::process::ExitCode::SUCCESS
}
