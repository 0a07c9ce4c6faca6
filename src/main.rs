//! Arguments, then [`a2a_gateway::cli`].

// Fewer bytes for each open stream than the system's allocator, and faster under many threads.
#[cfg(all(feature = "jemalloc", not(target_env = "msvc")))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> std::process::ExitCode {
    a2a_gateway::cli::run(std::env::args_os())
}
