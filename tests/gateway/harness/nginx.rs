//! A real nginx in front, with the configuration of the documents.

use std::net::SocketAddr;

use super::balancer::Balancer;
use super::ports::free_address;
use super::{Answer, Connection, Request};

/// A real nginx. Dropping it ends it.
pub(crate) struct Nginx {
    pub(crate) address: SocketAddr,
    running: Balancer,
}

impl Nginx {
    /// Serves `locations` as the user of the tests, from a folder of its own.
    pub(crate) fn start(locations: &str) -> Self {
        let http = format!("server {{\n{locations}\n}}");
        Self::start_at(free_address("127.0.0.1"), &http)
    }

    /// Serves the contents of `http`, with one `server` that has no address yet.
    pub(crate) fn start_at(address: SocketAddr, http: &str) -> Self {
        let http = http.replacen("server {", &format!("server {{\n    listen {address};"), 1);
        let running = Balancer::nginx_at(address, |_| http.clone());
        Self { address, running }
    }

    pub(crate) fn log(&self) -> String {
        self.running.log()
    }

    pub(crate) async fn call(&self, request: &Request) -> Answer {
        Connection::open(self.address).await.call(request).await
    }
}
