//! Arguments, then [`a2a_gateway::cli`]. Joins the gateway with its demo: neither crate depends on the other.

use std::error::Error;
use std::process::ExitCode;

use a2a_gateway::cli;
use a2a_gateway::config::load::{Layers, load};
use a2a_gateway::ids::WorkspaceId;
use a2a_gateway::telemetry;
use demo_agents::{DemoContext, Gateway, PreparedGateway, agent, demo};

// jemalloc needs less memory for each open stream than the system's allocator, and is faster under many
// threads.
#[cfg(all(feature = "jemalloc", not(target_env = "msvc")))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The commands that show the gateway with agents of its own.
#[derive(Debug, clap::Subcommand)]
enum Example {
    /// Try it out: a gateway, five example agents and a page of commands to paste
    Demo(demo::Arguments),
    /// Run one example agent (echo, slow, flaky or broken) as a process of its own
    // The last of the list.
    #[command(display_order = 99)]
    Agent(agent::Arguments),
}

fn main() -> ExitCode {
    let gateway = Gateway {
        prepare,
        print_error: cli::print_error,
        save_context,
        find_context: || cli::find_context(DEMO),
        remove_context: || cli::remove_context(DEMO).map_err(|failure| failure.to_string().into()),
    };
    cli::run(std::env::args_os(), |example| match example {
        Example::Demo(arguments) => demo::run(&arguments, gateway),
        Example::Agent(arguments) => run_agent(arguments, gateway),
    })
}

/// The context of a demo in the background.
const DEMO: &str = "demo";

fn save_context(demo: DemoContext) -> Result<(), Box<dyn Error>> {
    let urls = (demo.url, demo.admin_url);
    let saved = cli::save_context(DEMO, urls, demo.token, demo.callers);
    saved.map_err(|failure| failure.to_string().into())
}

fn prepare(settings: Vec<String>, operator: &str) -> Result<PreparedGateway, Box<dyn Error>> {
    let mut loaded = load(&Layers {
        overrides: settings,
        ..Layers::default()
    })?;
    let config = &mut loaded.config;
    config.auth.admin_token = Some(operator.into());
    Ok(PreparedGateway {
        listen: config.server.listen,
        admin_listen: config.admin.listen,
        has_canvas: config.canvas.enabled,
        has_console: config.admin.console,
        serve: Box::new(|| cli::start(loaded, None)),
    })
}

fn run_agent(arguments: agent::Arguments, gateway: Gateway) -> ExitCode {
    if let Some(Err(error)) = arguments.id().map(WorkspaceId::parse) {
        cli::print_error(&error);
        return ExitCode::from(cli::USAGE);
    }
    // An example agent has no settings of its own: it logs with the gateway's default settings.
    let _log = load(&Layers::default()).map(|loaded| telemetry::start(&loaded.config.telemetry));
    agent::run(arguments, gateway)
}
