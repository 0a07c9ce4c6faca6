//! Where the gateway connects to: no notation hides a refused address, no answer of a DNS server moves a
//! connection, no redirect and no proxy of the environment does, and trusted agents are exactly those.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::harness::dns::Dns;
use crate::harness::issuer::{Issuer, Key, tls_door};
use crate::harness::{
    ADMIN, Agent, Answer, Builder, CALL, Connection, Gateway, Pair, Request, Step, card, ok_json,
    until_holds,
};
use crate::reload::{Written, in_force};

/// What is refused always, or needs an operator's word.
const REFUSED: &str = "0.0.0.0 100.64.0.1 100.100.100.200 168.63.129.16 169.254.169.254 \
    192.0.0.192 192.0.2.1 192.88.99.1 198.18.0.1 198.51.100.7 203.0.113.7 224.0.0.1 \
    239.255.255.255 240.0.0.1 255.255.255.255";

/// The same of IPv6.
const REFUSED_V6: &str = ":: fe80::1 febf::1 fec0::1 fd00:ec2::254 fd20:ce::254 ff02::1 100::1 \
    2001:db8::1 3fff::1 2001:2::1 64:ff9b:1::808:808";

/// Loopback and private: refused unless `address.allow` lists them.
const GUARDED: &str = "127.0.0.1 127.255.255.254 10.0.0.1 172.31.255.255 192.168.1.1";

/// An address of IPv4 in every notation that a URL parser reads, and inside those of IPv6.
fn notations(dotted: &str) -> Vec<String> {
    let [a, b, c, d] = dotted.parse::<std::net::Ipv4Addr>().unwrap().octets();
    let whole = u32::from_be_bytes([a, b, c, d]);
    let (high, low) = (whole >> 16, whole & 0xffff);
    vec![
        dotted.to_owned(),
        format!("{dotted}."),
        format!("{whole}"),
        format!("{whole:#x}"),
        format!("0{whole:o}"),
        format!("{a:#x}.{b:#x}.{c:#x}.{d:#x}"),
        format!("0{a:o}.0{b:o}.0{c:o}.0{d:o}"),
        format!("{a}.{}", whole & 0x00ff_ffff),
        format!("{a:#x}.0{b:o}.{low}"),
        dotted.replace('.', "%2e"),
        format!("[::ffff:{dotted}]"),
        format!("[::ffff:{high:x}:{low:x}]"),
        format!("[64:ff9b::{high:x}:{low:x}]"),
        format!("[2002:{high:x}:{low:x}::1]"),
        format!("[2001:0:{high:x}:{low:x}::f7f7:f7f7]"),
    ]
}

async fn assumed(gateway: &Gateway, id: &str, url: &str) -> Answer {
    let new = json!({"id": id, "name": id, "url": url, "liveness": "assumed"});
    gateway.post("/workspaces", new).await
}

fn call(id: &str) -> Request {
    Request::post(format!("/workspaces/{id}/a2a"), CALL).bearer(ADMIN)
}

/// Calls until the answer is a refusal for `reason`.
async fn until(gateway: &Gateway, id: &str, reason: &str) {
    until_holds(reason, async || {
        let answer = gateway.call(&call(id)).await;
        answer.status >= 400 && answer.reason() == reason
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_notation_of_a_refused_address_is_registered() {
    let default = Gateway::start(Pair::Embedded).await;
    let strict = Builder::new(Pair::Embedded).set("address.profile", "strict");
    let strict = strict.start().await;
    for (gateway, with_guarded) in [(&default, false), (&strict, true)] {
        gateway
            .create(json!({"id": "a", "name": "a", "url": "https://[2e00::1]/kept"}))
            .await;
        let mut hosts: Vec<String> = REFUSED.split(' ').flat_map(notations).collect();
        hosts.extend(REFUSED_V6.split(' ').map(|ip| format!("[{ip}]")));
        if with_guarded {
            hosts.extend(GUARDED.split(' ').flat_map(notations));
            hosts.extend(["[::1]", "[fd12::1]", "localhost"].map(String::from));
        }
        let mut connection = Connection::open(gateway.public).await;
        for (number, host) in hosts.iter().enumerate() {
            // The ports and schemes in turn: a product of all would take long and show no more.
            let url = match number % 4 {
                0 => format!("http://{host}/"),
                1 => format!("https://{host}:8443/a2a"),
                2 => format!("HTTP://{host}:80"),
                _ => format!("http://{host}:8000/?x=1"),
            };
            let registration = json!({"id": "a", "url": url, "agent_card": card("a")});
            let by_agent = Request::post("/registry/register", registration.to_string());
            let answer = connection.call(&by_agent.bearer(ADMIN)).await;
            answer.refuses_for(&url, 502, "address_forbidden");
            let member = ["url", "internal_url", "card_url"][number % 3];
            let change = json!({member: url}).to_string();
            let patch = Request::patch("/workspaces/a", change);
            let answer = connection.call(&patch.bearer(ADMIN)).await;
            assert_eq!(answer.reason(), "address_forbidden", "{member} {url}");
            // It names no address. Short ones stand in the request's id by accident.
            let said = answer.json()["error"].to_string();
            assert!(!said.contains(host.trim_matches(['[', ']'])), "{said}");
        }
        let read = gateway.read("/workspaces/a").await;
        assert_eq!(read["url"], "https://[2e00::1]/kept");
        assert_eq!(read["internal_url"], Value::Null);
        assert_eq!(read["card_url"], Value::Null);
        let userinfo = json!({"name": "b", "url": "http://10.0.0.1@169.254.169.254/"});
        let refused = gateway.post("/workspaces", userinfo).await;
        refused.gives("address_forbidden");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trusted_agents_may_be_anywhere_but_at_metadata_as_long_as_they_are_trusted() {
    let agent = Agent::json(r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#).await;
    let other = Agent::json("{}").await;
    let (port, elsewhere) = (agent.port, other.port);
    let rates = "[rate]\ncaller_per_second = 0\nfailures_per_second = 0\n";
    let strict = format!("{rates}[address]\nprofile = \"strict\"\n");
    let prefixes = json!([
        format!("http://127.0.0.1:{port}/a2a"),
        "http://198.18.0.7:8000",
        "http://169.254.169.254",
        "http://[fd00:ec2::254]",
    ]);
    let trusting = format!("trusted_agents = {prefixes}\n{strict}");
    let written = Written::new(&trusting);
    let builder = Builder::new(Pair::Embedded).file(written.path());
    let gateway = builder.set("stores.timeout", "20s").start().await;
    let userinfo = format!("http://127.0.0.1:{port}@127.0.0.1:{elsewhere}/a2a");
    for (url, good) in [
        (format!("http://127.0.0.1:{port}/a2a"), true),
        (format!("http://0x7f.1:{port}/a2a/v1?x=1"), true),
        ("http://198.18.0.7:8000/".to_owned(), true),
        (format!("http://127.0.0.1:{port}/"), false),
        (format!("http://127.0.0.1:{port}/a2ab"), false),
        (format!("http://127.0.0.1:{port}/a2a/../x"), false),
        (format!("http://127.0.0.1:{port}/a2a/..%2fx"), false),
        (format!("https://127.0.0.1:{port}/a2a"), false),
        (format!("http://127.0.0.2:{port}/a2a"), false),
        (format!("http://localhost:{port}/a2a"), false),
        (userinfo, false),
        (format!("http://127.0.0.1:{elsewhere}/a2a"), false),
        ("http://198.18.0.70:8000/".to_owned(), false),
        ("http://169.254.169.254/".to_owned(), false),
        ("http://169.254.169.254/latest/meta-data".to_owned(), false),
        ("http://[fd00:ec2::254]/".to_owned(), false),
    ] {
        let new = json!({"name": "x", "url": url});
        let answer = gateway.post("/workspaces", new).await;
        if good {
            assert_eq!(answer.status, 201, "{url}: {}", answer.text());
        } else {
            assert_eq!(answer.reason(), "address_forbidden", "{url}");
        }
    }
    let url = format!("http://127.0.0.1:{port}/a2a");
    assert_eq!(assumed(&gateway, "a", &url).await.status, 201);
    assert_eq!(gateway.call(&call("a")).await.status, 200);
    // Not trusted any more: refused from now on, on a connection that is open, too.
    written.save(&strict);
    in_force(&gateway, "trusted_agents", json!([])).await;
    until(&gateway, "a", "address_forbidden").await;
    assert_eq!(agent.calls(), 1);
    written.save(&trusting);
    in_force(&gateway, "trusted_agents", prefixes).await;
    // What was judged before is forgotten a moment after the change is shown.
    let is_trusted = async || gateway.call(&call("a")).await.status == 200;
    until_holds("trusted again", is_trusted).await;
    assert_eq!(other.connections(), 0);
}

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_changes_its_meaning_gains_nothing() {
    let changed = Arc::new(AtomicBool::new(false));
    let moved = Arc::clone(&changed);
    let dns = Dns::start(move |name, _| match (name, moved.load(Ordering::SeqCst)) {
        // Public first, where nobody is; then the gateway's own machine.
        ("rebinding.test", false) => ips(&["2e00::1"]),
        ("rebinding.test", true) => ips(&["127.0.0.1"]),
        // The first is open here; the second is not.
        ("moving.test", false) => ips(&["127.0.0.2"]),
        ("moving.test", true) => ips(&["127.0.0.1"]),
        ("both.test", _) => ips(&["127.0.0.2", "127.0.0.1"]),
        ("mixed.test", _) => ips(&["127.0.0.2", "::1"]),
        ("mapped.test", _) => ips(&["::ffff:127.0.0.1"]),
        ("metadata.test", _) => ips(&["169.254.169.254"]),
        ("good.test", _) => ips(&["127.0.0.2"]),
        _ => Vec::new(),
    })
    .await;
    let ok = ok_json(r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#);
    let inner = Agent::json(r#"{"secret":"of the machine"}"#).await;
    let port = inner.port;
    let behaviour = move |_: &_| vec![Step::Write(ok.clone())];
    let open = Agent::scripted_at(&format!("127.0.0.2:{port}"), behaviour).await;
    let settings = "address.allow=127.0.0.2/32 timeouts.connect=20s address.nameservers";
    let gateway = Gateway::with(&format!("{settings}={}", dns.address)).await;
    for name in ["both.test", "mixed.test", "mapped.test", "metadata.test"] {
        let answer = assumed(&gateway, name, &format!("http://{name}:{port}/")).await;
        let reason = answer.reason();
        assert_eq!(reason, "address_forbidden", "{name}: {}", answer.text());
    }
    let answer = assumed(&gateway, "unknown", "http://unknown.test/").await;
    assert_eq!(answer.reason(), "agent_unreachable", "{}", answer.text());
    let began = Instant::now();
    for name in ["rebinding.test", "moving.test", "good.test"] {
        let answer = assumed(&gateway, name, &format!("http://{name}:{port}/")).await;
        assert_eq!(answer.status, 201, "{name}: {}", answer.text());
    }
    // What was checked is what is dialled: asked once for registration and call.
    gateway.call(&call("moving.test")).await.has(200);
    // A query without an answer is repeated after a second, and an answer is forgotten after some.
    let is_once = dns.lookups("moving.test") == 1 || began.elapsed() >= Duration::from_secs(1);
    assert!(is_once, "asked again");
    assert_eq!(open.calls(), 1);
    let answer = gateway.call(&call("rebinding.test")).await;
    assert!(answer.status >= 500, "{}", answer.text());
    changed.store(true, Ordering::SeqCst);
    tokio::join!(
        until(&gateway, "rebinding.test", "address_forbidden"),
        until(&gateway, "moving.test", "address_forbidden"),
    );
    assert!(dns.lookups("moving.test") >= 2);
    assert_eq!(gateway.call(&call("good.test")).await.status, 200);
    assert_eq!(inner.connections(), 0, "the gateway was led to itself");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redirect_leads_nowhere() {
    let elsewhere = Agent::json("{}").await;
    let gateway = Gateway::start(Pair::Embedded).await;
    for status in [301, 302, 303, 307, 308] {
        let location = elsewhere.url();
        let agent = Agent::scripted(move |_| {
            let head = format!("HTTP/1.1 {status} X\r\nLocation: {location}");
            vec![Step::write(head + "\r\nContent-Length: 0\r\n\r\n")]
        });
        let agent = agent.await;
        let id = format!("to-{status}");
        assert_eq!(assumed(&gateway, &id, &agent.url()).await.status, 201);
        let answer = gateway.call(&call(&id)).await;
        assert_eq!(answer.reason(), "agent_redirected", "{status}");
        assert_eq!((answer.status, agent.calls()), (502, 1), "{status}");
        assert!(answer.field("location").is_none());
    }
    assert_eq!(elsewhere.connections(), 0);
}

/// Counts connections, and answers none.
async fn trap() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let caught = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&caught);
    tokio::spawn(async move {
        while listener.accept().await.is_ok() {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    (format!("http://{address}"), caught)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_proxy_of_the_environment_is_used_for_anything() {
    let (proxy, caught) = trap().await;
    let (plain, secure) = (Key::new("plain"), Key::new("secure"));
    let by_http = Issuer::start("https://plain.example", &[&plain]).await;
    let by_https = Issuer::start("https://secure.example", &[&secure]).await;
    let (port, pem) = tls_door(&by_https.host).await;
    let mut table = by_https.table();
    table["jwks_url"] = format!("https://localhost:{port}/jwks.json").into();
    let folder = tempfile::tempdir().unwrap();
    let roots = folder.path().join("roots.pem");
    std::fs::write(&roots, pem).unwrap();
    let issuers = Value::from(vec![by_http.table(), table]).to_string();
    let mut builder = Builder::new(Pair::External)
        .set("auth.issuers", &issuers)
        .env("SSL_CERT_FILE", &roots.display().to_string())
        .env("NO_PROXY", "")
        .env("no_proxy", "");
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        builder = builder.env(name, &proxy).env(&name.to_lowercase(), &proxy);
    }
    let gateway = builder.start().await;
    let agent = Agent::json(r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#).await;
    assumed(&gateway, "a", &agent.url()).await.has(201);
    for (issuer, key) in [(&by_http, &plain), (&by_https, &secure)] {
        let token = key.sign(&issuer.claims(json!({"workspaces": ["a"]})));
        let request = Request::post("/workspaces/a/a2a", CALL).bearer(&token);
        let verifies = async || gateway.call(&request).await.status == 200;
        until_holds("the keys", verifies).await;
        assert!(issuer.host.count() > 0);
    }
    assert_eq!(agent.calls(), 2);
    assert_eq!(caught.load(Ordering::SeqCst), 0, "a proxy was asked");
}
