//! The walls between the rooms: a plane imports no other, a room no plane, and each store has its homes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::imports::{name_module, read_imports};
use crate::tree::{
    PROGRAM, Source, assert_lacks, list_files, read_sources, read_text, split_words,
};

#[test]
fn crates_keep_their_walls() {
    let clocks = "tokio:: Instant::now SystemTime::now .await";
    assert_lacks(&read_sources(&["crates/a2a/src"]), clocks);
    let mut hierarchy = read_sources(&["crates/access/src/hierarchy"]);
    hierarchy.retain(|source| source.path.ends_with("hierarchy/mod.rs"));
    assert_eq!(hierarchy.len(), 1);
    assert_lacks(&hierarchy, "sqlx redis:: Instant::now");
    // Cargo holds a crate to its dependencies, so the manifests are the walls.
    for (crates, denied) in [
        ("data-plane control-plane", "sqlx redis rusqlite"),
        (
            "stores trust access audit directory mailbox assembly",
            "pingora axum hyper",
        ),
        (
            "http1",
            "a2a kernel stores trust access audit directory mailbox assembly",
        ),
        ("grpc", "pingora tokio http1 kernel stores trust access"),
        ("data-plane", "control-plane"),
        ("control-plane", "data-plane"),
        (
            "ctl",
            "stores access audit directory mailbox assembly data-plane control-plane server",
        ),
    ] {
        for name in crates.split(' ') {
            let manifest = read_text(format!("crates/{name}/Cargo.toml"));
            let product = manifest.split("[dev-dependencies]").next().unwrap();
            for other in denied.split(' ') {
                let line = format!("\n{other}.workspace");
                assert!(!product.contains(&line), "{name} depends on {other}");
            }
        }
    }
}

/// Fails for an import that is denied, by the names of the module and of what it imports.
fn assert_no_import(is_denied: impl Fn(&[String], &[String]) -> bool) {
    for (module, named) in read_imports() {
        for name in named {
            let (from, to) = (module.join("::"), name.join("::"));
            assert!(!is_denied(&module, &name), "{from} imports {to}");
        }
    }
}

/// The modules that a file declares, in their order.
fn list_modules(file: &str) -> Vec<String> {
    let text = read_text(file);
    let names = text.lines().filter_map(|line| {
        let mut starts = ["mod ", "pub mod "].iter();
        let name = starts.find_map(|start| line.strip_prefix(start))?;
        Some(name.strip_suffix(';')?.to_owned())
    });
    names.collect()
}

/// Fails for a module that imports one that their parent, in `file`, declares below it, or an item of the parent.
fn assert_each_imports_those_above_it(file: &str) {
    let (parent, order) = (name_module(Path::new(file)), list_modules(file));
    assert!(order.len() > 30, "{order:?}");
    let find_place = |name: &[String]| {
        let own = name.get(parent.len())?;
        order.iter().position(|module| module == own)
    };
    assert_no_import(|from, to| {
        let is_inside = from.starts_with(&parent) && from.len() > parent.len();
        let is_above = find_place(to).is_some() && find_place(to) <= find_place(from);
        is_inside && to.starts_with(&parent) && !is_above
    });
}

#[test]
fn each_module_of_the_data_plane_imports_only_those_above_it() {
    assert_each_imports_those_above_it("crates/data-plane/src/lib.rs");
}

#[test]
fn redis_commands_have_one_home() {
    let mut elsewhere = read_sources(&PROGRAM);
    elsewhere.retain(|source| !source.path.starts_with("crates/stores/src/shared/redis"));
    assert_lacks(&elsewhere, "redis::cmd");
}

/// The tables that the migrations create.
fn list_tables() -> BTreeSet<String> {
    let migrations = list_files("crates/stores/src/db/migrations");
    let text: String = migrations.iter().map(read_text).collect();
    let created = text.split("CREATE TABLE ").skip(1);
    let names = created.map(|text| text.trim_start_matches("IF NOT EXISTS "));
    let names = names.map(|text| split_words(text).next().unwrap().to_owned());
    names.collect()
}

/// The folder of a table whose statements stand in several files.
fn find_folder(table: &str) -> Option<&'static Path> {
    let folder = match table {
        "workspaces" => "crates/access/src/workspace",
        "activity_logs" | "inbox_heads" | "mailbox_items" => "crates/mailbox/src",
        "enrolment_tokens" | "org_tokens" => "crates/access/src/identity/tokens",
        "workspace_auth_tokens" => "crates/access/src/identity/tokens",
        "audit_blocks" | "audit_chains" | "audit_replicas" | "audit_seen" => "crates/audit/src",
        "audit_words" | "structure_events" => "crates/audit/src",
        _ => return None,
    };
    Some(Path::new(folder))
}

#[test]
fn each_table_is_spelled_in_one_file_or_folder() {
    // A removed workspace's tokens prove nothing, whatever happens at the same moment: that takes
    // one statement over both tables. And a page of peers is one statement over relations and grants.
    let joined = [
        ("workspaces", "identity/tokens/mod.rs"),
        ("workspaces", "identity/tokens/enrolment.rs"),
        ("workspaces", "identity/tokens/orgs_and_operators.rs"),
        ("access_grants", "workspace/candidates.rs"),
    ];
    let (sources, tables) = (read_sources(&PROGRAM), list_tables());
    let mut homes: BTreeMap<&str, BTreeSet<&Path>> = BTreeMap::new();
    for Source { path, product, .. } in &sources {
        let words: Vec<&str> = split_words(product).collect();
        for pair in words.windows(2) {
            let is_read = ["FROM", "INTO", "UPDATE", "JOIN"].contains(&pair[0]);
            let mut exempt = joined.iter().filter(|(_, file)| path.ends_with(file));
            if is_read && tables.contains(pair[1]) && exempt.all(|(table, _)| *table != pair[1]) {
                let folder = find_folder(pair[1]).filter(|folder| path.starts_with(folder));
                let home = folder.unwrap_or(path);
                homes.entry(pair[1]).or_default().insert(home);
            }
        }
    }
    assert!(homes.len() > 15, "{homes:?}");
    homes.retain(|_, files| files.len() > 1);
    assert!(homes.is_empty(), "tables in several files: {homes:?}");
}

#[test]
fn commands_write_to_a_terminal_by_one_way() {
    let crates = ["ctl", "run", "gateway-client"].map(|name| format!("crates/{name}/src"));
    let mut commands = read_sources(&["src/cli"]);
    commands.extend(crates.iter().flat_map(|folder| read_sources(&[folder])));
    let count = commands.len();
    commands.retain(|source| !source.path.ends_with("ctl/src/terminal.rs"));
    assert_eq!(commands.len() + 1, count);
    assert_lacks(&commands, "io::stdout io::stderr print! println!");
}
