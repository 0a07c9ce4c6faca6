//! The walls between the rooms: a plane imports no other, a room no plane, and each store has its homes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::imports::Imports;
use crate::tree::{Source, code, files, sources, text};

/// The folders of `src` that stand over the rooms.
const PLANES: [&str; 5] = ["proxy", "control", "admin", "cli", "server"];

/// The planes that no other plane imports, but for those that assemble them.
const APART: [&str; 3] = ["proxy", "control", "admin"];

/// Fails for each of `sources` whose product code mentions one of `words`.
fn deny(sources: &[Source], words: &[&str]) {
    for source in sources {
        for (number, line) in source.code().lines().enumerate() {
            for word in words {
                let path = source.path.display();
                assert!(!line.contains(word), "{path}:{}: `{word}`", number + 1);
            }
        }
    }
}

/// The room of a file below `src`: its folder, or its own name.
fn room(path: &std::path::Path) -> Option<String> {
    let below = path.strip_prefix("src").ok()?.iter().next()?;
    Some(below.to_string_lossy().trim_end_matches(".rs").to_owned())
}

#[test]
fn rooms_keep_their_walls() {
    let clocks = [
        "tokio::",
        "pingora",
        "axum",
        ".await",
        "Instant::now",
        "SystemTime::now",
    ];
    deny(&sources("crates/a2a/src"), &clocks);
    // The demo and its agents are for the binary alone.
    let mut library = sources("src");
    library.retain(|source| !source.path.ends_with("src/main.rs"));
    deny(&library, &["demo_agents"]);
    let mut hierarchy = sources("src/hierarchy");
    hierarchy.retain(|source| source.path.ends_with("hierarchy/mod.rs"));
    assert_eq!(hierarchy.len(), 1);
    deny(&hierarchy, &["sqlx", "redis::", "Instant::now"]);
    for plane in APART {
        deny(&sources(&format!("src/{plane}")), &["sqlx", "redis::"]);
    }
    let mut rooms = sources("src");
    rooms.retain(|source| {
        let room = room(&source.path).unwrap();
        // Files of certificates are read with Pingora's TLS.
        room != "main"
            && !PLANES.contains(&room.as_str())
            && !source.path.ends_with("config/tls_pair.rs")
    });
    deny(&rooms, &["pingora::", "axum::"]);
}

#[test]
fn no_room_imports_a_plane_and_no_plane_another() {
    for (path, named) in Imports::read().named {
        let Some(from) = room(&path).filter(|from| from != "lib" && from != "main") else {
            continue;
        };
        for name in named {
            let to = name.get(1).map_or("", String::as_str);
            let is_plane = PLANES.contains(&from.as_str());
            let is_apart = APART.contains(&from.as_str());
            let upward =
                from != to && PLANES.contains(&to) && (!is_plane || is_apart || to == "cli");
            assert!(
                !upward,
                "{}: {} is above it",
                path.display(),
                name.join("::")
            );
        }
    }
}

/// The modules of the library, in the order of `lib.rs`.
fn modules() -> Vec<String> {
    let text = text("src/lib.rs");
    let names = text.lines().filter_map(|line| {
        let name = line
            .strip_prefix("pub mod ")
            .or_else(|| line.strip_prefix("pub use "))?;
        Some(name.trim_end_matches(';').to_owned())
    });
    names.collect()
}

#[test]
fn each_module_imports_only_those_above_it() {
    let order = modules();
    assert!(order.len() > 30, "{order:?}");
    let place = |room: &str| order.iter().position(|module| module == room);
    for (path, named) in Imports::read().named {
        let Some(own) = room(&path).and_then(|room| place(&room)) else {
            continue;
        };
        for name in named {
            let other = name.get(1).and_then(|module| place(module));
            assert!(
                other.is_none_or(|other| other <= own),
                "{}: {} is below it in lib.rs",
                path.display(),
                name.join("::")
            );
        }
    }
}

#[test]
fn redis_commands_have_one_home() {
    let mut elsewhere = code();
    elsewhere.retain(|source| !source.path.starts_with("src/shared/redis"));
    deny(&elsewhere, &["redis::cmd"]);
}

/// The tables that the migrations create.
fn tables() -> BTreeSet<String> {
    let migrations = files("src/db/migrations");
    let texts: Vec<_> = migrations
        .iter()
        .map(|path| text(path.to_str().unwrap()))
        .collect();
    let created = texts
        .iter()
        .flat_map(|text| text.split("CREATE TABLE ").skip(1));
    let names = created.map(|text| {
        let text = text.strip_prefix("IF NOT EXISTS ").unwrap_or(text);
        let end = text
            .find(|c: char| c != '_' && !c.is_alphanumeric())
            .unwrap();
        text[..end].to_owned()
    });
    names.collect()
}

/// True if a statement in `code` reads or writes `table`.
fn spells(code: &str, table: &str) -> bool {
    ["FROM ", "INTO ", "UPDATE ", "JOIN "].iter().any(|verb| {
        let words = format!("{verb}{table}");
        code.match_indices(&words).any(|(at, hit)| {
            let behind = &code[at + hit.len()..];
            !behind.starts_with(|c: char| c == '_' || c.is_alphanumeric())
        })
    })
}

#[test]
fn each_table_is_spelled_in_one_file() {
    // A removed workspace's tokens prove nothing, whatever happens at the same moment: that takes
    // one statement over both tables. And a page of peers is one statement over relations and grants.
    let joined = [
        ("workspaces", "identity/token/mod.rs"),
        ("workspaces", "identity/token/enrolment.rs"),
        ("workspaces", "identity/token/orgs.rs"),
        ("access_grants", "workspace/candidates.rs"),
    ];
    // A table with more statements than fit into one file has a folder.
    let folders = BTreeMap::from([
        ("workspaces", "src/workspace"),
        ("agent_origins", "src/workspace"),
        ("workspace_instances", "src/workspace"),
        ("workspace_auth_tokens", "src/identity/token"),
        ("enrolment_tokens", "src/identity/token"),
        ("org_tokens", "src/identity/token"),
        ("subtree_tokens", "src/identity/token"),
        ("activity_logs", "src/delivery/inbox"),
        ("inbox_heads", "src/delivery/inbox"),
        ("task_updates", "src/delivery/inbox"),
        ("audit_chains", "src/audit"),
        ("audit_blocks", "src/audit"),
        ("audit_replicas", "src/audit"),
        ("audit_seen", "src/audit"),
        ("audit_words", "src/audit"),
        ("structure_events", "src/audit"),
    ]);
    let (sources, tables) = (code(), tables());
    assert!(tables.len() > 15, "{tables:?}");
    for table in &tables {
        let mut homes = BTreeSet::new();
        for source in &sources {
            let path = &source.path;
            let exempt = |(of, file): &(&str, &str)| of == table && path.ends_with(file);
            if joined.iter().any(exempt) || !spells(&source.product, table) {
                continue;
            }
            let folder = folders.get(table.as_str()).map(PathBuf::from);
            homes.insert(
                folder
                    .filter(|home| path.starts_with(home))
                    .unwrap_or_else(|| path.clone()),
            );
        }
        assert!(homes.len() <= 1, "table {table} is spelled in {homes:?}");
    }
}

#[test]
fn commands_write_to_a_terminal_by_one_way() {
    let mut commands = sources("src/cli");
    commands.extend(sources("crates/gateway-client/src"));
    let count = commands.len();
    commands.retain(|source| !source.path.ends_with("cli/terminal.rs"));
    assert_eq!(commands.len() + 1, count);
    deny(
        &commands,
        &["io::stdout", "io::stderr", "print!", "println!"],
    );
}
