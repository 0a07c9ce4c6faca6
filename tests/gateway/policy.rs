//! A reload meets what is open and what is half-way: sockets whose reason to be open is gone, files
//! that are being written, and a configuration that can be read only once.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::harness::issuer::{Issuer, Key};
use crate::harness::watcher::{Socket, handshake};
use crate::harness::{Builder, Gateway, Pair, Request};
use crate::reload::{Written, in_force, shows};

const OFF: &str = "[rate]\ncaller_per_second = 0\nfailures_per_second = 0\n";

async fn start(written: &Written) -> Gateway {
    let builder = Builder::new(Pair::Embedded).process().file(written.path());
    builder.set("stores.timeout", "20s").start().await
}

/// Closed for the credential's sake, soon.
async fn is_cut(mut socket: Socket) {
    let (code, reason) = socket.next().await.unwrap_err();
    assert_eq!(code, 4401, "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_open_mode_let_in_ends_with_open_mode() {
    let written = Written::new(&format!("{OFF}[auth]\nmode = \"open\"\n"));
    let gateway = start(&written).await;
    let socket = Socket::open(gateway.public, &handshake("/ws")).await;
    written.save(OFF);
    in_force(&gateway, "auth.mode", json!("token")).await;
    is_cut(socket).await;
    assert_eq!(gateway.call(&handshake("/ws")).await.status, 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_who_is_taken_out_is_cut_off() {
    let token = format!("a2aa_{}", "k".repeat(43));
    let hash: String = Sha256::digest(&token)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let auth = format!("{OFF}[auth]\nadmin_token_sha256 = [\"{hash}\"]\n");
    let written = Written::new(&auth);
    let gateway = start(&written).await;
    let socket = Socket::open(gateway.public, &handshake("/ws").bearer(&token)).await;
    written.save(OFF);
    in_force(&gateway, "auth.admin_token_sha256", json!([])).await;
    is_cut(socket).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_an_issuer_go_the_sockets_and_tickets_of_its_tokens() {
    let key = Key::new("k-1");
    let issuer = Issuer::start("https://login.example.com", &[&key]).await;
    let table = issuer.table();
    let listed = format!(
        "{OFF}[[auth.issuers]]\nissuer = {}\njwks_url = {}\naudience = {}\n",
        table["issuer"], table["jwks_url"], table["audience"]
    );
    let written = Written::new(&listed);
    let gateway = start(&written).await;
    let token = key.sign(&issuer.claims(json!({"org": "acme"})));
    let ticket = async || {
        let request = Request::post("/ws/tickets", "").bearer(&token);
        let answer = gateway.call(&request).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
        let ticket = answer.json()["ticket"].as_str().unwrap().to_owned();
        handshake(&format!("/ws?ticket={ticket}"))
    };
    let by_token = Socket::open(gateway.public, &handshake("/ws").bearer(&token)).await;
    let by_ticket = Socket::open(gateway.public, &ticket().await).await;
    let unused = ticket().await;
    written.save(OFF);
    in_force(&gateway, "auth.issuers", json!([])).await;
    is_cut(by_token).await;
    is_cut(by_ticket).await;
    assert_eq!(gateway.call(&unused).await.status, 401);
}

/// What becomes of a file.
type Spoil<'a> = &'a dyn Fn(&Path);

fn failed(config: &Value) -> bool {
    config["last_reload"]["successful"] == false
}

#[tokio::test]
async fn an_empty_or_huge_file_and_a_pipe_leave_the_last_good_one_in_force() {
    let written = Written::new("[rate]\ncaller_burst = 7\n");
    let gateway = start(&written).await;
    let key = "rate.caller_burst";
    in_force(&gateway, key, json!(7)).await;
    let spoils: [(u32, &str, Spoil); 3] = [
        (8, "empty", &|path| fs::write(path, "").unwrap()),
        (9, "bytes", &|path| {
            let file = fs::File::create(path).unwrap();
            file.set_len(1 << 30).unwrap();
        }),
        (10, "regular", &|path| {
            fs::remove_file(path).unwrap();
            let made = Command::new("mkfifo").arg(path).status().unwrap();
            assert!(made.success());
        }),
    ];
    for (burst, name, spoil) in spoils {
        spoil(&written.path());
        let config = shows(&gateway, name, failed).await;
        let problems = config["last_reload"]["problems"].to_string();
        assert!(problems.contains(name), "{problems}");
        in_force(&gateway, key, json!(burst - 1)).await;
        written.save(&format!("[rate]\ncaller_burst = {burst}\n"));
        in_force(&gateway, key, json!(burst)).await;
    }
}

#[tokio::test]
async fn what_can_be_read_only_once_is_not_read_twice() {
    let written = Written::new("");
    fs::remove_file(written.path()).unwrap();
    let made = Command::new("mkfifo").arg(written.path()).status().unwrap();
    assert!(made.success());
    let path = written.path();
    let said = std::thread::spawn(move || fs::write(path, "[rate]\ncaller_burst = 7\n").unwrap());
    let gateway = start(&written).await;
    said.join().unwrap();
    gateway.signal("HUP");
    gateway.until_told("SIGHUP ignored", 1).await;
    in_force(&gateway, "rate.caller_burst", json!(7)).await;
}
