//! Arguments, then [`a2a_gateway::cli`].

// jemalloc needs less memory for each open stream than the system's allocator, and is faster under many
// threads.
#[cfg(all(feature = "jemalloc", not(target_env = "msvc")))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> std::process::ExitCode {
    a2a_gateway::cli::run(std::env::args_os())
}
