//! New databases that have the schema already. The migrations take half of the time in which a gateway starts, so they
//! run once for each kind of database, and the cases copy what they made. Cases of the migrations begin with an empty
//! one.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use a2a_gateway::config::Stores;
use a2a_gateway::db::Db;
use a2a_gateway::metrics::Metrics;

use super::pooler::name_of;
use super::servers;

/// Makes a SQLite database in `folder`, and returns its URL for `stores.sql`.
pub(super) fn sqlite_in(folder: &Path) -> String {
    static MIGRATED: OnceLock<Vec<u8>> = OnceLock::new();
    let bytes = MIGRATED.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("gateway.db");
        migrate(&format!("sqlite:{}", file.display()));
        std::fs::read(file).expect("a database")
    });
    let file = folder.join("gateway.db");
    // With the permissions that the gateway gives it.
    let mut options = OpenOptions::new();
    let options = options.write(true).create_new(true).mode(0o600);
    let mut copy = options.open(&file).expect("a file");
    copy.write_all(bytes).expect("room for a database");
    format!("sqlite:{}", file.display())
}

/// Makes a database on the PostgreSQL of this test process, and returns its URL for `stores.sql`.
pub(super) fn postgres() -> String {
    static MIGRATED: OnceLock<String> = OnceLock::new();
    let server = servers::postgres();
    let template = MIGRATED.get_or_init(|| {
        let url = server.database();
        migrate(&url);
        name_of(&url)
    });
    server.copy_of(template)
}

/// Applies the migrations to an empty database, and leaves it.
fn migrate(url: &str) {
    let stores = Stores {
        sql: url.into(),
        shared: "memory".into(),
        timeout: Duration::from_secs(30),
        sql_connections: 1,
    };
    let work = async move {
        let db = Db::open(&stores, Arc::new(Metrics::new())).expect("a URL");
        db.migrate().await.expect("migrations");
    };
    // The thread of a case runs within its own runtime, which admits no other.
    let runtime = || tokio::runtime::Runtime::new().expect("a runtime");
    let done = std::thread::spawn(move || runtime().block_on(work)).join();
    done.expect("a database with the schema");
}
