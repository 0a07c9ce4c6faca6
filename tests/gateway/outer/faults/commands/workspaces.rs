//! `workspace`, `token`, `grant`, `caps` and `agents`.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use super::{done, ended, family, json_of, operating, refused, run};
use crate::harness::{Builder, Gateway, Pair, Request, answering, card, until_holds};

#[tokio::test]
async fn a_workspace_is_made_shown_changed_and_removed() {
    let gateway = Gateway::start(Pair::Embedded).await;
    family(&gateway).await;
    let file = gateway.dir.join("token");
    let create = format!(
        "workspace create acme-ops --name Operations --parent acme-pm --role runs --set max_concurrent=4 --token-file {}",
        file.display()
    );
    let made = done(&gateway, &create).await;
    let said = "acme-ops was created: provisioning, below acme-pm, in the org acme\n";
    assert!(made.starts_with(said), "{made}");
    let token = std::fs::read_to_string(&file).unwrap();
    assert!(token.starts_with("a2ae_"), "{made}");
    assert!(!made.contains("a2ae_"), "{made}");
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // Neither a workspace nor a file is replaced, and a refusal leaves no file.
    refused(&gateway, &create, 64, "token").await;
    let other = gateway.dir.join("other");
    let again = format!("workspace create acme-ops --token-file {}", other.display());
    refused(&gateway, &again, 1, "conflict").await;
    assert!(!other.exists());

    let shown = done(&gateway, "workspace show acme-ops").await;
    for line in ["name:", "Operations\n", "max concurrent:", "4\n"] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    let set = "workspace set acme-ops role=watches max_concurrent=null --json";
    let changed = json_of(&gateway, set).await;
    assert_eq!(changed["role"], "watches");
    assert_eq!(changed["max_concurrent"], Value::Null);
    refused(&gateway, "workspace set acme-ops rank=3", 1, "rank").await;
    for row in [
        "workspace pause acme-ops -> acme-ops is paused",
        "workspace resume acme-ops -> acme-ops is provisioning",
        "workspace move acme-ops --parent acme-qa -> below acme-qa now, in the org acme",
        "workspace move acme-ops --root -> a root now, in the org acme",
        "workspace move acme-ops --org rival --parent rival-spy -> in the org rival",
        "workspace remove acme-ops -> acme-ops is removed",
    ] {
        let (line, end) = row.split_once(" -> ").unwrap();
        let out = done(&gateway, line).await;
        assert!(out.ends_with(&format!("{end}\n")), "{line}: {out}");
    }
    refused(&gateway, "workspace show acme-ops", 1, "workspace_removed").await;
    refused(&gateway, "workspace move acme-dev", 64, "--parent").await;
    refused(&gateway, "workspace show ../caps", 64, "no id").await;
}

#[tokio::test]
async fn lists_follow_their_pages_to_the_end_and_the_tree_has_all() {
    let gateway = Gateway::start(Pair::Embedded).await;
    family(&gateway).await;
    for number in 0..601 {
        let id = format!("w{number:03}");
        let workspace = json!({"id": id, "name": id, "org": "many"});
        gateway.create(workspace).await;
    }
    let all = json_of(&gateway, "workspace list --json").await;
    assert_eq!(all.as_array().unwrap().len(), 605);
    let many = done(&gateway, "workspace list --org many").await;
    assert_eq!(many.lines().count(), 602);
    let (head, begin) = ("ID    NAME  PARENT  ORG   STATUS", &many[..80]);
    assert!(many.starts_with(head), "{begin}");
    let tree = done(&gateway, "workspace tree --org acme").await;
    let ids = tree.lines().map(|line| line.split("  ").next().unwrap());
    let ids: Vec<_> = ids.collect();
    assert_eq!(ids[0], "acme-pm");
    assert!(ids[1].starts_with("├─ acme-dev"), "{tree}");
    assert!(ids[2].starts_with("└─ acme-qa"), "{tree}");
    let below = json_of(&gateway, "workspace tree acme-pm --json").await;
    assert_eq!(below[0]["children"][1]["id"], "acme-qa");
    refused(&gateway, "workspace tree nothing", 1, "nothing").await;
}

#[tokio::test]
async fn a_workspace_with_others_below_it_is_removed_on_request_alone() {
    let gateway = Gateway::start(Pair::Embedded).await;
    family(&gateway).await;
    let remove = run(&gateway, "workspace remove acme-pm").await;
    remove.refused(64, "2 workspaces below it (acme-dev, acme-qa)");
    assert!(remove.err.contains("--yes"), "{remove:?}");
    let there = json_of(&gateway, "workspace show acme-pm --json").await;
    assert_eq!(there["status"], "provisioning");
    done(&gateway, "workspace remove acme-pm --yes").await;
    let tree = done(&gateway, "workspace tree acme-dev").await;
    assert!(tree.contains("its parent acme-pm is not here"), "{tree}");
}

#[tokio::test]
async fn tokens_and_grants_are_made_listed_and_taken_back() {
    let gateway = Gateway::start(Pair::Embedded).await;
    family(&gateway).await;
    let enrolment = done(&gateway, "token create acme-dev --enrolment").await;
    assert!(enrolment.starts_with("a2ae_"), "{enrolment}");
    let create = "token create acme-dev --label laptop --expires-in 1h --json";
    let made = json_of(&gateway, create).await;
    let listed = done(&gateway, "token list acme-dev").await;
    assert!(listed.contains("laptop") && !listed.contains(made["token"].as_str().unwrap()));
    let id = made["id"].as_str().unwrap();
    done(&gateway, &format!("token revoke acme-dev {id}")).await;
    let left = json_of(&gateway, "token list acme-dev --json").await;
    assert!(!left.to_string().contains(id), "{left}");
    // What an org's token may, it may here, too.
    let org = done(&gateway, "token create --org acme --note night").await;
    let mut by_org = operating(&gateway);
    by_org.env("A2A_GATEWAY_TOKEN", org.trim());
    by_org.args(["workspace", "list", "--json"]);
    let seen = ended(&mut by_org).await.json();
    assert_eq!(seen.as_array().unwrap().len(), 3, "{seen}");
    let listed = json_of(&gateway, "token list --org acme --json").await;
    let id = listed[0]["id"].as_str().unwrap();
    done(&gateway, &format!("token revoke --org acme {id}")).await;
    assert_eq!(ended(&mut by_org).await.code, Some(1));
    refused(&gateway, "token revoke acme-dev", 64, "--org").await;

    let grant = "grant create rival-spy acme-dev --note audit --expires-in 1h";
    let granted = done(&gateway, grant).await;
    let (_, id) = granted.trim_end().rsplit_once("grant remove ").unwrap();
    let listed = done(&gateway, "grant list --target acme-dev").await;
    assert!(listed.lines().nth(1).unwrap().starts_with(id), "{listed}");
    let none = done(&gateway, "grant list --caller acme-qa").await;
    assert_eq!(none, "no grant fits\n");
    done(&gateway, &format!("grant remove {id}")).await;
    assert_eq!(json_of(&gateway, "grant list --json").await, json!([]));
    refused(&gateway, "grant remove nothing", 1, "not_found").await;
}

#[tokio::test]
async fn agents_and_caps_are_shown_with_their_use() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let cap = "[stores]\ntimeout = \"60s\"\n[[cap]]\nname = \"calls\"\nper = \"caller\"\ncount = \"messages\"\nlimit = 5\nwindow = \"1h\"\n";
    std::fs::write(file.path(), cap).unwrap();
    let gateway = Builder::new(Pair::Embedded).file(file.path()).start().await;
    let (caller, target) = gateway.pair(answering().await).await;
    let beat = json!({"workspace_id": target.id, "active_tasks": 3, "current_task": "a\u{1b}[2Jb"});
    let beat = Request::post("/registry/heartbeat", beat.to_string()).bearer(&target.token);
    gateway.call(&beat).await.has(200);
    let instance = json!({"id": caller.id, "url": caller.agent.url(), "agent_card": card("caller"), "instance_id": "one"});
    let instance = Request::post("/registry/register", instance.to_string()).bearer(&caller.token);
    gateway.call(&instance).await.has(200);
    gateway.call(&caller.calls(&target)).await.has(200);

    let shown = async || done(&gateway, "agents").await;
    let is_listed = async || shown().await.contains("?[2J");
    until_holds("the heartbeat is in the list", is_listed).await;
    let shown = shown().await;
    let rows = shown.lines().map(|line| line.split_whitespace().collect());
    let rows: Vec<Vec<&str>> = rows.collect();
    assert_eq!(
        rows[0][..5],
        ["ID", "NAME", "STATUS", "HEALTH", "INSTANCES"]
    );
    assert_eq!(rows[1][..5], ["caller", "caller", "online", "healthy", "1"]);
    assert_eq!(rows[2][..5], ["target", "target", "online", "healthy", "-"]);
    assert_eq!(rows[2][6..], ["3", "a?[2Jb"], "a terminal is not steered");
    let listed = json_of(&gateway, "agents --status online --json").await;
    assert_eq!(listed[1]["active_tasks"], 3);

    let used = async || done(&gateway, "caps").await;
    let is_counted = async || used().await.contains("caller   ");
    until_holds("the call is counted", is_counted).await;
    let used = used().await;
    let row: Vec<&str> = used.lines().nth(1).unwrap().split_whitespace().collect();
    let row = row[..10].join(" ");
    assert_eq!(
        row, "calls messages per caller 5 3600s caller - 1 no",
        "{used}"
    );
    let none = json_of(&gateway, "caps --org elsewhere --json").await;
    assert_eq!(none[0]["subjects"], json!([]));
}
