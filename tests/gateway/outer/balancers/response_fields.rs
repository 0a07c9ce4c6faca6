//! An agent that commands a proxy in front of the gateway: a real nginx, with the configuration of the documents.

use std::net::SocketAddr;
use std::path::Path;

use crate::fields::Case;
use crate::harness::documents::block_of;
use crate::harness::nginx::Nginx;
use crate::harness::ports::free_address;
use crate::harness::{Builder, CALL, Gateway, Pair, Request};
use crate::response_fields::hostile;

/// The configuration of the documents, and a file that only nginx itself may send.
fn nginx_before(gateway: &Gateway, address: SocketAddr, secrets: &Path) -> Nginx {
    let alias = format!(
        "location /internal/ {{ internal; alias {}/; }}",
        secrets.display()
    );
    let internal = format!("    {alias}\n    location / {{");
    let documented = block_of(super::GUIDE, "## nginx", "nginx");
    // Without TLS, at the address of the test.
    let own = |line: &&str| !line.trim_start().starts_with("ssl_") && !line.contains("listen 443");
    let lines: Vec<&str> = documented.lines().filter(own).collect();
    let mut http = lines.join("\n").replacen("    location / {", &internal, 1);
    for documented in ["10.0.0.11:8080", "10.0.0.12:8080"] {
        http = http.replace(documented, &gateway.public.to_string());
    }
    Nginx::start_at(address, &http)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_commands_no_nginx_in_front() {
    let address = free_address("127.0.0.1");
    let builder = Builder::new(Pair::Embedded).set("server.hosts", &address.to_string());
    let case = Case::with(builder, hostile().await).await;
    let secrets = tempfile::tempdir().unwrap();
    std::fs::write(secrets.path().join("secret"), "of nginx alone").unwrap();
    let nginx = nginx_before(&case.gateway, address, secrets.path());
    let direct = nginx.call(&Request::get("/internal/secret")).await;
    assert_eq!(direct.status, 404, "{}", nginx.log());
    for kind in ["application/json", "text/html", "stream"] {
        let body = CALL.replace("\"hi\"", &format!("\"{kind}\""));
        let answer = nginx.call(&case.caller.sends(&case.target, &body)).await;
        let (said, log) = (answer.text(), nginx.log());
        assert_eq!(answer.status, 200, "{kind}: {said}\n{log}");
        assert!(!said.contains("of nginx alone"), "{kind}: {said}");
        assert_eq!(answer.field("x-accel-redirect"), None);
    }
}
