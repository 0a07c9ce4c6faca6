//! The guard in `examples/guard/`, behind a gateway.

use tokio::process::Command;

use super::*;
use crate::harness::ports::free_address;
use crate::harness::until_holds;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/guard");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_rejects_cards_and_masks_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, "planted-key-of-the-example").unwrap();
    let address = free_address("127.0.0.1");
    let mut python = Command::new("python3");
    python
        .args(["-B", "guard.py", "--listen", &address.to_string()])
        .arg("--key-file")
        .arg(&key);
    let _guard = python
        .current_dir(FOLDER)
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let listens = async || tokio::net::TcpStream::connect(address).await.is_ok();
    until_holds("it is told", listens).await;
    let guards = json!([{"name": "example", "url": format!("http://{address}/"),
        "header": "X-Key: planted-key-of-the-example", "timeout": "60s"}]);
    let said = agent("write to me@agent.example").await;
    let case = Case::on(builder(Pair::Embedded, &guards), said).await;
    for form in Form::ALL {
        for streams in [false, true] {
            let call = async |text| case.call(form, streams, text).await;
            let card = call("4111 1111 1111 1111").await;
            card.refuses(403, "guard_rejected");
            let answer = call("I am you@caller.example").await.has(200);
            answer.says("write to [email]");
            let sent = case.target.agent.take();
            assert!(sent.text().contains("I am [email]"), "{}", sent.text());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_own_tests_pass() {
    let mut python = Command::new("python3");
    python.args(["-B", "-m", "unittest"]).current_dir(FOLDER);
    let tested = python.output().await.unwrap();
    let said = String::from_utf8_lossy(&tested.stderr);
    assert!(tested.status.success() && said.contains("OK"), "{said}");
}
