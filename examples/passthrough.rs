//! Bare Pingora pass-through: what `scripts/bench` compares the gateway with. It admits, reads and
//! records nothing. `passthrough LISTEN UPSTREAM THREADS`.

use async_trait::async_trait;
use pingora::http::RequestHeader;
use pingora::proxy::{ProxyHttp, Session, http_proxy_service};
use pingora::server::Server;
use pingora::server::configuration::ServerConf;
use pingora::upstreams::peer::HttpPeer;

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

struct PassThrough(String);

#[async_trait]
impl ProxyHttp for PassThrough {
    type CTX = ();

    fn new_ctx(&self) {}

    async fn upstream_peer(
        &self,
        _session: &mut Session,
        _ctx: &mut (),
    ) -> pingora::Result<Box<HttpPeer>> {
        Ok(Box::new(HttpPeer::new(
            self.0.as_str(),
            false,
            String::new(),
        )))
    }

    async fn upstream_request_filter(
        &self,
        _session: &mut Session,
        request: &mut RequestHeader,
        _ctx: &mut (),
    ) -> pingora::Result<()> {
        request.insert_header("host", "upstream")
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (Some(listen), Some(upstream), Some(threads)) = (
        arguments.next(),
        arguments.next(),
        arguments.next().and_then(|t| t.parse().ok()),
    ) else {
        panic!("usage: passthrough LISTEN UPSTREAM THREADS");
    };
    let conf = ServerConf {
        threads,
        grace_period_seconds: Some(0),
        // As the gateway.
        work_stealing: threads > 1,
        ..ServerConf::default()
    };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    let mut service = http_proxy_service(&server.configuration, PassThrough(upstream));
    service.add_tcp(&listen);
    server.add_service(service);
    server.run_forever();
}
