//! `workspace`, `token`, `grant`, `caps` and `agents`.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use super::{ended, family, operating, run};
use crate::harness::{Agent, Builder, Gateway, Pair, Request, card};

#[tokio::test]
async fn a_workspace_is_made_shown_changed_and_removed() {
    let gateway = Gateway::start(Pair::Embedded).await;
    family(&gateway).await;
    let file = gateway.dir.join("token");
    let create = format!(
        "workspace create acme-ops --name Operations --parent acme-pm --role runs --set max_concurrent=4 --token-file {}",
        file.display()
    );
    let made = run(&gateway, &create).await.done();
    assert!(
        made.starts_with("acme-ops was created: provisioning, below acme-pm, in the org acme\n"),
        "{made}"
    );
    let token = std::fs::read_to_string(&file).unwrap();
    assert!(
        token.starts_with("a2ae_") && !made.contains("a2ae_"),
        "{made}"
    );
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // Neither a workspace nor a file is replaced, and a refusal leaves no file.
    run(&gateway, &create).await.refused(64, "token");
    let other = gateway.dir.join("other");
    let again = format!("workspace create acme-ops --token-file {}", other.display());
    run(&gateway, &again).await.refused(1, "conflict");
    assert!(!other.exists());

    let shown = run(&gateway, "workspace show acme-ops").await.done();
    for line in ["name:", "Operations\n", "max concurrent:", "4\n"] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    let set = "workspace set acme-ops role=watches max_concurrent=null --json";
    let changed = run(&gateway, set).await.json();
    assert_eq!(
        (&changed["role"], &changed["max_concurrent"]),
        (&json!("watches"), &Value::Null)
    );
    run(&gateway, "workspace set acme-ops rank=3")
        .await
        .refused(1, "rank");
    for (line, part) in [
        ("workspace pause acme-ops", "acme-ops is paused\n"),
        ("workspace resume acme-ops", "acme-ops is provisioning\n"),
        (
            "workspace move acme-ops --parent acme-qa",
            "below acme-qa now, in the org acme\n",
        ),
        (
            "workspace move acme-ops --root",
            "a root now, in the org acme\n",
        ),
        (
            "workspace move acme-ops --org rival --parent rival-spy",
            "in the org rival\n",
        ),
        ("workspace remove acme-ops", "acme-ops is removed\n"),
    ] {
        let out = run(&gateway, line).await.done();
        assert!(out.ends_with(part), "{line}: {out}");
    }
    run(&gateway, "workspace show acme-ops")
        .await
        .refused(1, "workspace_removed");
    run(&gateway, "workspace move acme-dev")
        .await
        .refused(64, "--parent");
    run(&gateway, "workspace show ../caps")
        .await
        .refused(64, "no id");
}

#[tokio::test]
async fn lists_follow_their_pages_to_the_end_and_the_tree_has_all() {
    let gateway = Gateway::start(Pair::Embedded).await;
    family(&gateway).await;
    for number in 0..601 {
        let id = format!("w{number:03}");
        gateway
            .create(json!({"id": id, "name": id, "org": "many"}))
            .await;
    }
    let all = run(&gateway, "workspace list --json").await.json();
    assert_eq!(all.as_array().unwrap().len(), 605);
    let many = run(&gateway, "workspace list --org many").await.done();
    assert_eq!(many.lines().count(), 602);
    assert!(
        many.starts_with("ID    NAME  PARENT  ORG   STATUS"),
        "{}",
        &many[..80]
    );
    let tree = run(&gateway, "workspace tree --org acme").await.done();
    let ids: Vec<_> = tree
        .lines()
        .map(|line| line.split("  ").next().unwrap())
        .collect();
    assert_eq!(ids[0], "acme-pm");
    assert!(
        ids[1].starts_with("├─ acme-dev") && ids[2].starts_with("└─ acme-qa"),
        "{tree}"
    );
    let below = run(&gateway, "workspace tree acme-pm --json").await.json();
    assert_eq!(below[0]["children"][1]["id"], "acme-qa");
    run(&gateway, "workspace tree nothing")
        .await
        .refused(1, "nothing");
}

#[tokio::test]
async fn a_workspace_with_others_below_it_is_removed_on_request_alone() {
    let gateway = Gateway::start(Pair::Embedded).await;
    family(&gateway).await;
    let remove = run(&gateway, "workspace remove acme-pm").await;
    remove.refused(64, "2 workspaces below it (acme-dev, acme-qa)");
    assert!(remove.err.contains("--yes"), "{remove:?}");
    let there = run(&gateway, "workspace show acme-pm --json").await.json();
    assert_eq!(there["status"], "provisioning");
    run(&gateway, "workspace remove acme-pm --yes").await.done();
    let tree = run(&gateway, "workspace tree acme-dev").await.done();
    assert!(tree.contains("its parent acme-pm is not here"), "{tree}");
}

#[tokio::test]
async fn tokens_and_grants_are_made_listed_and_taken_back() {
    let gateway = Gateway::start(Pair::Embedded).await;
    family(&gateway).await;
    let enrolment = run(&gateway, "token create acme-dev --enrolment")
        .await
        .done();
    assert!(enrolment.starts_with("a2ae_"), "{enrolment}");
    let create = "token create acme-dev --label laptop --expires-in 1h --json";
    let made = run(&gateway, create).await.json();
    let listed = run(&gateway, "token list acme-dev").await.done();
    assert!(listed.contains("laptop") && !listed.contains(made["token"].as_str().unwrap()));
    let id = made["id"].as_str().unwrap();
    run(&gateway, &format!("token revoke acme-dev {id}"))
        .await
        .done();
    let left = run(&gateway, "token list acme-dev --json").await.json();
    assert!(!left.to_string().contains(id), "{left}");
    // What an org's token may, it may here, too.
    let org = run(&gateway, "token create --org acme --note night")
        .await
        .done();
    let mut by_org = operating(&gateway);
    by_org
        .env("A2A_GATEWAY_TOKEN", org.trim())
        .args(["workspace", "list", "--json"]);
    let seen = ended(&mut by_org).await.json();
    assert_eq!(seen.as_array().unwrap().len(), 3, "{seen}");
    let listed = run(&gateway, "token list --org acme --json").await.json();
    let id = listed[0]["id"].as_str().unwrap();
    run(&gateway, &format!("token revoke --org acme {id}"))
        .await
        .done();
    assert_eq!(ended(&mut by_org).await.code, Some(1));
    run(&gateway, "token revoke acme-dev")
        .await
        .refused(64, "--org");

    let grant = "grant create rival-spy acme-dev --note audit --expires-in 1h";
    let granted = run(&gateway, grant).await.done();
    let (_, id) = granted.trim_end().rsplit_once("grant remove ").unwrap();
    let listed = run(&gateway, "grant list --target acme-dev").await.done();
    assert!(listed.lines().nth(1).unwrap().starts_with(id), "{listed}");
    assert_eq!(
        run(&gateway, "grant list --caller acme-qa").await.done(),
        "no grant fits\n"
    );
    run(&gateway, &format!("grant remove {id}")).await.done();
    assert_eq!(run(&gateway, "grant list --json").await.json(), json!([]));
    run(&gateway, "grant remove nothing")
        .await
        .refused(1, "not_found");
}

#[tokio::test]
async fn agents_and_caps_are_shown_with_their_use() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let cap = "[[cap]]\nname = \"calls\"\nper = \"caller\"\ncount = \"messages\"\nlimit = 5\nwindow = \"1h\"\n";
    std::fs::write(file.path(), cap).unwrap();
    let gateway = Builder::new(Pair::Embedded).file(file.path()).start().await;
    let answers = Agent::json(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).await;
    let (caller, target) = gateway.pair(answers).await;
    let beat = json!({"workspace_id": target.id, "active_tasks": 3, "current_task": "a\u{1b}[2Jb"});
    let beat = Request::post("/registry/heartbeat", beat.to_string()).bearer(&target.token);
    assert_eq!(gateway.call(&beat).await.status, 200);
    let instance = json!({"id": caller.id, "url": caller.agent.url(), "agent_card": card("caller"), "instance_id": "one"});
    let instance = Request::post("/registry/register", instance.to_string()).bearer(&caller.token);
    assert_eq!(gateway.call(&instance).await.status, 200);
    let call = Request::post("/workspaces/target/a2a", crate::harness::CALL).bearer(&caller.token);
    assert_eq!(gateway.call(&call).await.status, 200);

    let shown = async || run(&gateway, "agents").await.done();
    crate::harness::until_holds("the heartbeat is in the list", async || {
        shown().await.contains("?[2J")
    })
    .await;
    let shown = shown().await;
    let rows: Vec<Vec<&str>> = shown
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows[0][..4], ["ID", "NAME", "STATUS", "INSTANCES"]);
    assert_eq!(rows[1][..4], ["caller", "caller", "online", "1"]);
    assert_eq!(rows[2][..4], ["target", "target", "online", "-"]);
    assert_eq!(rows[2][5..], ["3", "a?[2Jb"], "a terminal is not steered");
    let listed = run(&gateway, "agents --status online --json").await.json();
    assert_eq!(listed[1]["active_tasks"], 3);

    let used = async || run(&gateway, "caps").await.done();
    crate::harness::until_holds("the call is counted", async || {
        used().await.contains("caller   ")
    })
    .await;
    let used = used().await;
    let row: Vec<&str> = used.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(
        row[..8],
        [
            "calls", "messages", "per", "caller", "5", "3600s", "caller", "-"
        ],
        "{used}"
    );
    assert_eq!(row[8..10], ["1", "no"]);
    let none = run(&gateway, "caps --org elsewhere --json").await.json();
    assert_eq!(none[0]["subjects"], json!([]));
}
