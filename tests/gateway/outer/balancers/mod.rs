//! HAProxy, nginx, Envoy and Traefik in front of gateways, while PostgreSQL is away. All are configured as
//! `docs/guide/deploy.md` says.

mod forward_auth;
mod response_fields;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::harness::balancer::Balancer;
use crate::harness::documents::block_of;
use crate::harness::servers::{Postgres, Redis};
use crate::harness::{
    Agent, Builder, Connection, Gateway, Pair, Request, Seat, Step, answering, until_holds,
};

const GUIDE: &str = "docs/guide/deploy.md";

/// How long PostgreSQL is away: several checks of the balancer.
const AWAY: Duration = Duration::from_secs(5);

struct Site {
    postgres: Postgres,
    gateways: [Gateway; 2],
    caller: Seat,
    target: Seat,
    _redis: Redis,
}

impl Site {
    async fn new() -> Self {
        let (postgres, redis) = (Postgres::start(), Redis::start());
        let sql = postgres.database();
        let start = async || {
            let builder = Builder::new(Pair::Embedded).stores(&sql, &redis.url());
            documented(builder.process()).start().await
        };
        let gateways = [start().await, start().await];
        for gateway in &gateways {
            gateway.until_coherent().await;
        }
        let agent = Agent::json(r#"{"jsonrpc":"2.0","id":"c-1","result":"well"}"#).await;
        let (caller, target) = gateways[0].pair(agent).await;
        Self {
            postgres,
            gateways,
            caller,
            target,
            _redis: redis,
        }
    }

    fn call(&self) -> Request {
        let request = self.caller.calls(&self.target);
        request.field("Host", "gateway.example.com")
    }

    /// Calls through `address` for a while: how many were answered with each status.
    async fn calls(&self, address: SocketAddr, span: Duration) -> (usize, Vec<String>) {
        let (mut well, mut others) = (0, Vec::new());
        let until = Instant::now() + span;
        while Instant::now() < until {
            let answer = Connection::open(address).await.call(&self.call()).await;
            if answer.status == 200 {
                well += 1;
            } else {
                others.push(format!("{} {}", answer.status, answer.text()));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        (well, others)
    }

    /// One gateway is gone: the balancer leaves it out.
    async fn outlives_a_gateway(&mut self, balancer: &Balancer) {
        self.gateways[1].kill();
        until_holds("the balancer leaves it out", async || {
            let (_, others) = self.calls(balancer.address, Duration::from_secs(1)).await;
            others.is_empty()
        })
        .await;
    }

    /// PostgreSQL stops, and comes back; every call in between is served from memory.
    async fn outlives_postgres(&self, balancer: &Balancer) {
        // A balancer may listen before it has read which gateways there are.
        until_holds("the balancer has read its gateways", async || {
            let span = Duration::from_millis(200);
            self.calls(balancer.address, span).await.1.is_empty()
        })
        .await;
        for gateway in &self.gateways {
            let ask = async || assert_eq!(gateway.call(&self.call()).await.status, 200);
            gateway.until_warm(ask).await;
        }
        self.postgres.kill();
        let (well, others) = self.calls(balancer.address, AWAY).await;
        let log = balancer.log();
        assert!(others.is_empty(), "{well} served: {others:?}\n{log}");
        assert!(well > 0);
        for gateway in &self.gateways {
            gateway.admin_get("/readyz").await.unwrap().has(503);
            let traffic = gateway.admin_get("/readyz/traffic").await.unwrap();
            assert_eq!(traffic.has(200).json()["sql"], "unavailable");
        }
        self.postgres.restart();
        let (_, others) = self.calls(balancer.address, Duration::from_secs(1)).await;
        assert!(others.is_empty(), "{others:?}");
    }
}

/// The documented settings of a gateway, but for the addresses.
fn documented(builder: Builder) -> Builder {
    let settings = block_of(GUIDE, "## The gateways behind it", "toml");
    let mut settings: toml::Table = settings.parse().unwrap();
    let server = settings.remove("server").unwrap();
    let keys = ["public_url", "hosts", "trusted_proxies"];
    let builder = keys.into_iter().fold(builder, |builder, key| {
        builder.set(&format!("server.{key}"), &server[key].to_string())
    });
    builder.set("server.trusted_proxies", r#"["127.0.0.0/8"]"#)
}

/// A documented configuration with the admin ports of the test, each written behind `port`.
fn configured(language: &str, heading: &str, port: &str, site: &Site) -> String {
    let mut text = block_of(GUIDE, heading, language);
    for gateway in &site.gateways {
        let admin = format!("{port}{}", gateway.admin.port());
        text = text.replacen(&format!("{port}9090"), &admin, 1);
    }
    let [one, other] = &site.gateways;
    text.replace("10.0.0.11:8080", &one.public.to_string())
        .replace("10.0.0.12:8080", &other.public.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cached_calls_through_haproxy_outlive_postgres_and_a_stopped_gateway() {
    let mut site = Site::new().await;
    let balancer = Balancer::haproxy(|listen| {
        let bind = "*:443 ssl crt /etc/haproxy/gateway.pem";
        configured("haproxy", "## HAProxy", "port ", &site).replace(bind, &listen.to_string())
    });
    site.outlives_postgres(&balancer).await;
    site.outlives_a_gateway(&balancer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cached_calls_through_nginx_outlive_postgres() {
    let site = Site::new().await;
    let balancer = Balancer::nginx(|listen| {
        configured("nginx", "## nginx", "port ", &site)
            .replace("443 ssl", &listen.to_string())
            .lines()
            .filter(|line| !line.trim_start().starts_with("ssl_"))
            .map(|line| format!("{line}\n"))
            .collect()
    });
    site.outlives_postgres(&balancer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cached_calls_through_envoy_outlive_postgres_and_a_stopped_gateway() {
    let mut site = Site::new().await;
    let socket = |address: &str, port: u16| format!("{{address: {address}, port_value: {port}}}");
    let own = |gateway: &Gateway| socket("127.0.0.1", gateway.public.port());
    let balancer = Balancer::envoy(|listen| {
        let text = configured("yaml", "## Envoy", "port_value: ", &site);
        let [one, other] = &site.gateways;
        let (before, rest) = text.split_once("          transport_socket:\n").unwrap();
        let (_, behind) = rest.split_once("  clusters:\n").unwrap();
        format!("{before}  clusters:\n{behind}")
            .replace(&socket("0.0.0.0", 443), &socket("127.0.0.1", listen.port()))
            .replace(&socket("10.0.0.11", 8080), &own(one))
            .replace(&socket("10.0.0.12", 8080), &own(other))
    });
    site.outlives_postgres(&balancer).await;
    // Were health checks refused, a gateway that is gone would get half of the calls.
    site.outlives_a_gateway(&balancer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cached_calls_through_traefik_outlive_postgres() {
    let site = Site::new().await;
    // One gateway: the port of health checks is the same for all, and here each has its own.
    let balancer = Balancer::traefik(
        |listen| block_of(GUIDE, "## Traefik", "yaml").replace(":443", &listen.to_string()),
        || {
            let text = block_of(GUIDE, "`/etc/traefik/gateways.yaml`:", "yaml");
            let (text, _) = text.split_once("tls:\n").unwrap();
            let gateway = &site.gateways[0];
            text.replace(", tls: {}", "")
                .replace("10.0.0.11:8080", &gateway.public.to_string())
                .replace(r#", {url: "http://10.0.0.12:8080"}"#, "")
                .replace("port: 9090", &format!("port: {}", gateway.admin.port()))
        },
    );
    site.outlives_postgres(&balancer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_whose_stores_never_answered_or_that_drains_gets_no_traffic() {
    let (postgres, redis) = (Postgres::start(), Redis::start());
    let sql = postgres.database();
    // The schema outlives the second kill, although the tests' servers answer before a commit is written.
    postgres.statement("ALTER ROLE postgres SET synchronous_commit = on");
    postgres.statement("CHECKPOINT");
    postgres.kill();
    let builder = Builder::new(Pair::Embedded).stores(&sql, &redis.url());
    let gateway = builder.set("stores.timeout", "10s").spawn();
    let traffic = async || gateway.admin_get("/readyz/traffic").await.unwrap();
    let answer = traffic().await.has(503);
    assert_eq!(answer.json()["status"], "not_ready");
    assert_eq!(answer.json()["sql"], "unavailable");
    postgres.restart();
    until_holds("it takes traffic", async || traffic().await.status == 200).await;
    postgres.kill();
    // No store is asked: the answer does not wait for its clock.
    for _ in 0..20 {
        let began = Instant::now();
        traffic().await.has(200);
        assert!(began.elapsed() < Duration::from_secs(8));
    }
    // A call that is in progress keeps the process; nothing new is to come.
    let slow = Agent::scripted(|_| vec![Step::Hang]).await;
    // Until it has noticed, it is ready from before.
    until_holds("it misses Postgres", async || {
        gateway.admin_get("/readyz").await.unwrap().status == 503
    })
    .await;
    postgres.restart();
    gateway.await_ready().await;
    let (caller, target) = gateway.pair(slow).await;
    let other = gateway.seat("other", "", answering().await).await;
    // It is ready some moments before it has read the stops again.
    until_holds("calls are let through", async || {
        gateway.call(&caller.calls(&other)).await.status == 200
    })
    .await;
    let mut connection = Connection::open(gateway.public).await;
    connection.ask(&caller.calls(&target)).await;
    target.agent.until_count(1).await;
    gateway.terminate();
    until_holds("it is draining", async || {
        let answer = traffic().await;
        answer.status == 503 && answer.json()["draining"] == true
    })
    .await;
}
