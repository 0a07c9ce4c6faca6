//! A changed configuration while the gateway runs: what counts at once, what waits, and that a wrong
//! one changes nothing and nothing open is dropped.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use crate::harness::authority::write_secret;
use crate::harness::{
    ADMIN, Agent, Builder, CALL, Connection, Gateway, LAST_CHUNK, Pair, Request, SSE_HEAD, Seat,
    Step, chunk, ok_json, until_found, until_holds,
};

const OFF: &str = "[rate]\ncaller_per_second = 0\nfailures_per_second = 0\n";
/// A configuration file in a folder of its own.
pub(crate) struct Written {
    folder: tempfile::TempDir,
}

impl Written {
    pub(crate) fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let written = Self { folder };
        fs::write(written.path(), text).unwrap();
        written
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.at("gateway.toml")
    }

    /// As an editor saves: another file takes the name.
    pub(crate) fn save(&self, text: &str) {
        fs::write(self.at("new"), text).unwrap();
        fs::rename(self.at("new"), self.path()).unwrap();
    }

    /// A gateway with a process of its own and this configuration.
    fn builder(&self) -> Builder {
        let builder = Builder::new(Pair::Embedded).process();
        builder.file(self.path())
    }

    /// Saves this besides what switches rates off, and waits until it is in force.
    async fn counts(&self, gateway: &Gateway, text: &str, key: &str, wished: Value) {
        self.save(&format!("{OFF}{text}"));
        in_force(gateway, key, wished).await;
    }
}

async fn config(gateway: &Gateway) -> Value {
    gateway.admin_get("/config").await.unwrap().json()
}

fn value(config: &Value, key: &str) -> Value {
    let settings = config["settings"].as_array().unwrap().iter();
    let found = settings.clone().find(|setting| setting["key"] == key);
    found.map_or(Value::Null, |setting| setting["value"].clone())
}

/// Waits until what `/config` says is as wished.
pub(crate) async fn shows(gateway: &Gateway, what: &str, wished: impl Fn(&Value) -> bool) -> Value {
    until_found(what, async || {
        Some(config(gateway).await).filter(|config| wished(config))
    })
    .await
}

async fn fails(gateway: &Gateway) -> Value {
    let failed = |config: &Value| config["last_reload"]["successful"] == false;
    shows(gateway, "a failure", failed).await
}

pub(crate) async fn in_force(gateway: &Gateway, key: &str, wished: Value) {
    shows(gateway, key, |config| value(config, key) == wished).await;
}

/// Answers at once; streams until it gets a permit; to what says `slow` not at all.
async fn agent(permits: &Arc<Semaphore>) -> Agent {
    let permits = Arc::clone(permits);
    Agent::scripted(move |request| match request.text() {
        text if text.contains("message/stream") => vec![
            Step::write(SSE_HEAD),
            Step::write(chunk("data: {\"n\":1}\n\n")),
            Step::Held(Arc::clone(&permits)),
            Step::write(chunk("data: {\"n\":2}\n\n")),
            Step::write(LAST_CHUNK),
        ],
        text if text.contains("slow") => vec![Step::Hang],
        _ => vec![Step::Write(ok_json("{}"))],
    })
    .await
}

fn call(from: &Seat, to: &Seat) -> Request {
    Request::post(to.path(), CALL).bearer(&from.token)
}

/// Asserts the reason of a refusal; `200`: none.
async fn gives(gateway: &Gateway, request: &Request, wished: &str) {
    assert_eq!(reason(gateway, request).await, wished, "{}", request.path);
}

async fn reason(gateway: &Gateway, request: &Request) -> String {
    let answer = gateway.call(request).await;
    match answer.status {
        200 => "200".to_owned(),
        _ => answer.reason(),
    }
}

#[tokio::test]
async fn a_change_is_noticed_however_it_is_written() {
    let written = Written::new("");
    for (version, burst) in [("one", 11), ("two", 12)] {
        fs::create_dir(written.at(version)).unwrap();
        let text = format!("[rate]\ncaller_burst = {burst}\n");
        fs::write(written.at(version).join("linked.toml"), text).unwrap();
    }
    symlink("one", written.at("..data")).unwrap();
    fs::remove_file(written.path()).unwrap();
    symlink("..data/linked.toml", written.path()).unwrap();
    let gateway = written.builder().start().await;
    let burst = async |wished: u32| in_force(&gateway, "rate.caller_burst", json!(wished)).await;
    burst(11).await;
    // As Kubernetes swaps a ConfigMap.
    symlink("two", written.at("..new")).unwrap();
    fs::rename(written.at("..new"), written.at("..data")).unwrap();
    burst(12).await;
    written.save("[rate]\ncaller_burst = 13\n");
    burst(13).await;
    fs::write(written.path(), "[rate]\ncaller_burst = 14\n").unwrap();
    burst(14).await;
    fs::remove_file(written.path()).unwrap();
    fails(&gateway).await;
    burst(14).await;
    fs::write(written.path(), "[rate]\ncaller_burst = 15\n").unwrap();
    burst(15).await;
    gateway.signal("HUP");
    gateway.until_told("SIGHUP received; reloading", 1).await;
    burst(15).await;
}

#[tokio::test]
async fn what_changes_counts_at_once_and_nothing_open_is_dropped() {
    let written = Written::new(OFF);
    let builder = written.builder().set("stores.timeout", "20s");
    let gateway = builder.start().await;
    let permits = Arc::new(Semaphore::new(0));
    let agent = || agent(&permits);
    let root = gateway.seat("root", "", agent().await).await;
    let _lead = gateway.seat("lead", "root", agent().await).await;
    let dev = gateway.seat("dev", "lead", agent().await).await;
    let qa = gateway.seat("qa", "lead", agent().await).await;
    let stream = CALL.replace("message/send", "message/stream");
    let mut streaming = Connection::open(gateway.public).await;
    let host = gateway.public.to_string();
    let request = Request::post(qa.path(), stream).bearer(&dev.token);
    streaming.send(&request.wire(&host)).await;
    let streamed = tokio::spawn(async move { streaming.answer().await });
    let mut kept = Connection::open(gateway.public).await;
    assert_eq!(kept.call(&call(&dev, &qa)).await.status, 200);

    // Who may: cached lineages are judged anew.
    gives(&gateway, &call(&root, &dev), "not_permitted").await;
    let any = "[access]\nlineage = \"any\"\n";
    let key = "access.lineage";
    written.counts(&gateway, any, key, json!("any")).await;
    gives(&gateway, &call(&root, &dev), "200").await;
    written.counts(&gateway, "", key, json!("direct")).await;
    gives(&gateway, &call(&root, &dev), "not_permitted").await;

    // Which pages may.
    let page = "https://canvas.example";
    let from_page = call(&dev, &qa).field("Origin", page);
    gives(&gateway, &from_page, "origin_forbidden").await;
    let cors = format!("[cors]\norigins = [\"{page}\"]\n");
    written
        .counts(&gateway, &cors, "cors.origins", json!([page]))
        .await;
    let answer = gateway.call(&from_page).await;
    assert_eq!(answer.field("access-control-allow-origin"), Some(page));

    // Where agents may be: a known address and an open connection to it are no way around.
    let strict = "[address]\nprofile = \"strict\"\n";
    let key = "address.profile";
    written.counts(&gateway, strict, key, json!("strict")).await;
    gives(&gateway, &call(&dev, &qa), "address_forbidden").await;
    let head = "[timeouts]\nhead = \"300ms\"\n";
    written.counts(&gateway, head, key, json!("default")).await;

    // For how long.
    becomes(&gateway, &call(&dev, &qa), "200").await;
    let slow = Request::post(qa.path(), CALL.replace("hi", "slow")).bearer(&dev.token);
    let late = gateway.call(&slow).await;
    assert_eq!(late.reason(), "agent_timeout");
    assert_eq!(late.fact("clock").as_deref(), Some("head"));

    // What is logged.
    let logs = |id: &str| call(&dev, &qa).field("X-Request-Id", id);
    let off = "[telemetry]\nlog = \"info,access=off\"\n";
    let key = "telemetry.log";
    written
        .counts(&gateway, off, key, json!("info,access=off"))
        .await;
    logged(&gateway, "telemetry.log", 1).await;
    gateway.call(&logs("unheard-of")).await;
    written.counts(&gateway, "", key, json!("info")).await;
    logged(&gateway, "telemetry.log", 2).await;
    gateway.call(&logs("noticed")).await;
    assert!(!gateway.access_lines("noticed").await.is_empty());
    assert!(!gateway.log().contains("unheard-of"));

    // How often.
    written.save("[rate]\ncaller_per_second = 1\ncaller_burst = 1\n");
    in_force(&gateway, "rate.caller_burst", json!(1)).await;
    becomes(&gateway, &call(&dev, &qa), "rate_limited").await;
    becomes(&gateway, &call(&dev, &qa), "200").await;
    let answer = gateway.call(&call(&dev, &qa)).await;
    assert_eq!(answer.field("ratelimit-limit"), Some("1"), "{answer:?}");
    written
        .counts(&gateway, "", "rate.caller_per_second", json!(0))
        .await;

    // Through all of it both connections stayed. The rates are off a moment after it is shown.
    loop {
        let answer = kept.call(&call(&dev, &qa)).await;
        if answer.status == 200 && answer.field("ratelimit-limit").is_none() {
            break;
        }
    }
    permits.add_permits(1);
    let streamed = streamed.await.unwrap();
    assert!(streamed.whole, "{}", streamed.text());
    assert_eq!(streamed.events().len(), 2, "{}", streamed.text());
    let log = gateway.log();
    assert!(log.contains("A changed configuration is in force"));
}

/// Waits for the line that names `key` for the `times`th time: what follows from it is done by then.
async fn logged(gateway: &Gateway, key: &str, times: usize) {
    let done = |line: &Value| {
        line["message"] == "A changed configuration is in force"
            && line["keys"].as_str().is_some_and(|keys| keys.contains(key))
    };
    let named = async || {
        let log = gateway.log();
        let lines = log.lines().filter_map(|l| serde_json::from_str(l).ok());
        lines.filter(done).count() >= times
    };
    until_holds(key, named).await;
}

#[tokio::test]
async fn a_wrong_file_leaves_the_last_good_one_in_force_until_it_is_mended() {
    let written = Written::new("[rate]\ncaller_burst = 7\n");
    let builder = written.builder().set("cors.origins", "https://set.example");
    let gateway = builder.start().await;
    let gauge = "a2a_gateway_config_last_reload_successful";
    let time = "a2a_gateway_config_last_reload_success_timestamp_seconds";
    assert_eq!(gateway.metric(gauge, &[]).await, 1.0);
    assert!(gateway.metric(time, &[]).await > 1.0e9);
    written.save("[rate]\ncaller_burst = 8\nno_such = 1\n[timeouts]\nidle = \"soon\"\n");
    let failed = fails(&gateway).await;
    let problems = failed["last_reload"]["problems"].to_string();
    assert!(problems.contains("rate.no_such") && problems.contains("timeouts.idle"));
    assert!(failed["last_reload"]["failed_at"].is_string());
    assert_eq!(value(&failed, "rate.caller_burst"), 7);
    gauged(&gateway, gauge, 0.0).await;
    gateway.until_told("last good one", 1).await;
    let log = gateway.log();
    let mut lines = log.lines().filter(|line| line.contains("last good one"));
    let (line, more) = (lines.next().unwrap(), lines.next());
    assert_eq!(more, None, "{log}");
    assert!(line.contains("rate.no_such") && line.contains("timeouts.idle"));

    // Mended: what is set on the command line stays above it.
    written.save("[rate]\ncaller_burst = 9\n[cors]\norigins = [\"https://file.example\"]\n");
    in_force(&gateway, "rate.caller_burst", json!(9)).await;
    let mended = config(&gateway).await;
    assert_eq!(mended["last_reload"]["successful"], true);
    let origins = value(&mended, "cors.origins");
    assert_eq!(origins, json!(["https://set.example"]));
    gauged(&gateway, gauge, 1.0).await;
}

/// Waits until a gauge says so: `/config` may show a moment earlier what it counts.
async fn gauged(gateway: &Gateway, gauge: &str, value: f64) {
    let says = async || gateway.metric(gauge, &[]).await == value;
    until_holds(gauge, says).await;
}

#[tokio::test]
async fn what_needs_a_restart_is_named_and_waits_for_it() {
    let written = Written::new("");
    let mut gateway = written.builder().start().await;
    written.save("[server]\nthreads = 3\nmax_exchanges = 77\n[stores]\ntimeout = \"3s\"\n");
    let waits = |config: &Value| value(config, "server.max_exchanges") == 77;
    let shown = shows(&gateway, "what waits", waits).await;
    assert_eq!(value(&shown, "server.threads"), 0);
    assert_eq!(value(&shown, "stores.timeout"), "2s");
    let waiting = shown["restart_needed"].as_array().unwrap();
    let waiting: Vec<&str> = waiting.iter().filter_map(|w| w["key"].as_str()).collect();
    assert_eq!(waiting, ["server.threads", "stores.timeout"]);
    gauged(&gateway, "a2a_gateway_config_restart_needed", 2.0).await;
    let named = gateway.until_told("server.threads, stores.timeout", 1);
    named.await;
    gateway.restart().await;
    let after = config(&gateway).await;
    assert_eq!(value(&after, "server.threads"), 3);
    assert_eq!(after["restart_needed"], json!([]));
}

#[tokio::test]
async fn a_token_that_is_taken_out_is_refused_and_one_that_comes_counts() {
    let other = |c: &str| format!("a2aa_{}", c.repeat(43));
    let (listed, mounted, next) = (other("b"), other("c"), other("d"));
    let hash = hex::encode(Sha256::digest(&listed));
    let written = Written::new(&format!("{OFF}[auth]\nadmin_token_sha256 = [\"{hash}\"]\n"));
    let secret = written.at("secret");
    write_secret(&secret, &mounted);
    let builder = written.builder().env("A2A_GATEWAY_ADMIN_TOKEN", "");
    let mounted_at = secret.to_str().unwrap();
    let builder = builder.env("A2A_GATEWAY_ADMIN_TOKEN_FILE", mounted_at);
    let builder = builder.set("stores.timeout", "20s");
    let gateway = builder.start().await;
    let ask = |token: &str| Request::get("/workspaces/none").bearer(token);
    let (known, unknown) = ("workspace_not_found", "unauthenticated");
    for (token, expected) in [
        (&*listed, known),
        (&mounted, known),
        (&next, unknown),
        (ADMIN, unknown),
    ] {
        gives(&gateway, &ask(token), expected).await;
    }
    written.save(OFF);
    in_force(&gateway, "auth.admin_token_sha256", json!([])).await;
    becomes(&gateway, &ask(&listed), unknown).await;
    gives(&gateway, &ask(&mounted), known).await;
    // The file that the variable names has another token in it.
    write_secret(&secret, &next);
    becomes(&gateway, &ask(&mounted), unknown).await;
    // It was refused a moment ago, which is remembered for a second.
    becomes(&gateway, &ask(&next), known).await;
    let log = gateway.log();
    for token in [&listed, &mounted, &next] {
        assert!(!log.contains(token.as_str()));
    }
}

/// What follows from a change follows a moment after `/config` shows it.
async fn becomes(gateway: &Gateway, request: &Request, wished: &str) {
    let is = async || reason(gateway, request).await == wished;
    until_holds(wished, is).await;
}

#[tokio::test]
async fn the_configuration_is_shown_masked_and_only_to_those_who_mean_this_listener() {
    let gateway = Builder::new(Pair::Embedded).process().start().await;
    let config = config(&gateway).await;
    assert_eq!(value(&config, "rate.caller_per_second"), 0);
    let mut settings = config["settings"].as_array().unwrap().iter();
    let listen = settings.find(|setting| setting["key"] == "server.listen");
    assert_eq!(listen.unwrap()["source"], "--set");
    assert!(config["loaded_at"].is_string());
    let mut connection = Connection::open(gateway.admin).await;
    let wire = Request::get("/config").wire("evil.example");
    connection.send(&wire).await;
    assert_eq!(connection.answer().await.reason(), "misdirected");
    let public = gateway.call(&Request::get("/config")).await;
    assert_eq!(public.status, 404);
}
