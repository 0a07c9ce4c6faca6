//! The rule for migrations from 0.1.0 on: CONTRIBUTING.md, "A new migration".

use super::*;

/// Versions that a release contains, with the checksums of both texts. Add a row with each release; none changes.
const RELEASED: &[(i64, [&str; 2])] = &[];

/// Names the first statement of a migration that would break a replica of the release before.
fn find_breaking(sql: &str) -> Option<String> {
    let code: String = sql
        .lines()
        .map(|line| line.split("--").next().unwrap_or_default())
        .flat_map(|line| [line, " "])
        .collect();
    let mut statements = code.split(';').map(|statement| {
        let words: Vec<_> = statement.split_whitespace().collect();
        words.join(" ").to_uppercase()
    });
    statements.find(|statement| {
        let begins = |words: &str| statement.starts_with(words);
        let is_column = begins("ALTER TABLE ") && statement.contains(" ADD COLUMN ");
        let is_required = statement.contains(" NOT NULL") && !statement.contains(" DEFAULT ");
        let adds = statement.is_empty()
            || begins("CREATE TABLE ")
            || begins("CREATE INDEX ")
            || is_column && !is_required;
        !adds
    })
}

#[test]
fn a_statement_that_does_not_only_add_is_found() {
    for sql in [
        "DROP TABLE workspaces",
        "ALTER TABLE workspaces DROP COLUMN role",
        "ALTER TABLE workspaces RENAME COLUMN role TO kind",
        "ALTER TABLE workspaces ADD COLUMN zone TEXT NOT NULL",
        "UPDATE workspaces SET role = NULL",
        "DELETE FROM workspaces",
        // An insert of the release before may repeat what it forbids.
        "CREATE UNIQUE INDEX workspaces_by_name ON workspaces (name)",
        "CREATE TABLE zones (id TEXT); DROP INDEX workspaces_by_parent",
    ] {
        assert!(find_breaking(sql).is_some(), "{sql}");
    }
    for sql in [
        "-- Zones; DROP nothing\nCREATE TABLE zones (id TEXT NOT NULL PRIMARY KEY);\n",
        "CREATE INDEX zones_by_name ON zones (name);",
        "ALTER TABLE workspaces ADD COLUMN zone TEXT",
        "alter table workspaces\n  add column zone BIGINT NOT NULL DEFAULT 0",
    ] {
        assert_eq!(find_breaking(sql), None, "{sql}");
    }
}

#[test]
fn a_migration_after_the_first_only_adds() {
    for (version, name, texts) in &MIGRATIONS[1..] {
        for text in texts {
            assert_eq!(find_breaking(text), None, "{version} {name}");
        }
    }
}

/// The SHA-384 that databases hold, in hexadecimal.
fn checksum(text: &'static str) -> String {
    let name = "any".into();
    let migration = Migration::new(1, name, MigrationType::Simple, text.into_sql_str(), false);
    let digits = migration.checksum.iter().map(|byte| format!("{byte:02x}"));
    digits.collect()
}

#[test]
fn a_released_migration_is_not_edited() {
    assert!(MIGRATIONS.is_sorted_by_key(|(version, ..)| version));
    for (version, sums) in RELEASED {
        let found = MIGRATIONS.iter().find(|(known, ..)| known == version);
        let (_, name, texts) = found.expect("a released migration is not removed");
        for (text, sum) in texts.iter().zip(sums) {
            assert_eq!(checksum(text), *sum, "{version} {name}");
        }
    }
}

/// What a release stored is there after the migrations that follow, its statements still work, and it starts again.
#[tokio::test]
async fn each_schema_migrates_with_its_rows() {
    sqlx::any::install_default_drivers();
    const INSERT: &str = "INSERT INTO workspaces (id, name, status, delivery_mode, liveness, created_at, updated_at) \
         VALUES ($1, 'n', 'offline', 'push', 'heartbeat', 1, 1)";
    for released in 1..=MIGRATIONS.len() {
        let mut connection = AnyConnection::connect("sqlite::memory:").await.unwrap();
        let before = &MIGRATIONS[..released];
        run_migrations(&mut connection, before, 0).await.unwrap();
        let insert = sqlx::query(INSERT).bind("before");
        insert.execute(&mut connection).await.unwrap();
        for migrations in [MIGRATIONS, before] {
            run_migrations(&mut connection, migrations, 0)
                .await
                .unwrap();
        }
        let insert = sqlx::query(INSERT).bind("after");
        insert.execute(&mut connection).await.unwrap();
        let ids: Vec<String> = sqlx::query_scalar("SELECT id FROM workspaces ORDER BY id")
            .fetch_all(&mut connection)
            .await
            .unwrap();
        assert_eq!(ids, ["after", "before"]);
    }
}
