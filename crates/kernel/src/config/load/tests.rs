//! Tests of layers, refused values and masking.

use std::collections::BTreeSet;
use std::path::Path;

use secrecy::ExposeSecret;
use toml::{Table, Value};

use super::*;
use crate::config::exposure::tests::write;

/// Loads with only these `--set` values.
pub(in crate::config) fn set(overrides: &[&str]) -> Result<LoadedConfig, ConfigError> {
    load(&Layers {
        overrides: overrides.iter().map(|&o| o.to_owned()).collect(),
        ..Layers::default()
    })
}

fn environment(name: &str, value: &str) -> Result<LoadedConfig, ConfigError> {
    load(&Layers {
        environment: vec![(name.to_owned(), value.into())],
        ..Layers::default()
    })
}

fn file(text: &str) -> (tempfile::TempDir, Layers) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gateway.toml");
    std::fs::write(&path, text).unwrap();
    let layers = Layers {
        file: Some(path),
        ..Layers::default()
    };
    (folder, layers)
}

/// Asserts that the error contains the key and the reason.
#[track_caller]
pub(in crate::config) fn refused(
    result: Result<LoadedConfig, ConfigError>,
    key: &str,
    reason: &str,
) {
    let text = result.expect_err("must be refused").to_string();
    assert!(text.contains(key) && text.contains(reason), "{text}");
}

#[test]
fn the_shipped_file_is_the_default() {
    let loaded = set(&[]).unwrap();
    assert_eq!(loaded.config.public_url(), "http://127.0.0.1:8080");
    assert_eq!(loaded.notes, Vec::<String>::new());
    assert!(loaded.settings.iter().all(|s| s.source == Source::Default));
}

/// Reads the keys of the structs from serde's error, which lists the fields of a section for an
/// unknown one.
#[test]
fn the_shipped_file_has_every_key_of_the_structs_and_no_other() {
    fn compare(known: &Table, path: &str) {
        let mut bogus = layer::known_keys();
        layer::put_value(&mut bogus, &format!("{path}zzz"), Value::Integer(1));
        let error = bogus.try_into::<Config>().unwrap_err();
        let fields: BTreeSet<&str> = error
            .message()
            .split_once("expected ")
            .map(|(_, list)| list.split('`').skip(1).step_by(2).collect())
            .unwrap_or_default();
        let keys: BTreeSet<&str> = known.keys().map(String::as_str).collect();
        assert_eq!(fields, keys, "in [{path}]: {}", error.message());
        for (key, value) in known {
            if let Value::Table(inner) = value {
                compare(inner, &format!("{path}{key}."));
            }
        }
    }
    compare(&layer::known_keys(), "");
}

#[test]
fn every_key_of_the_shipped_file_is_explained() {
    let lines: Vec<&str> = DEFAULT.lines().collect();
    for (i, line) in lines.iter().enumerate() {
        let key = line.trim_start_matches('#');
        if !key.starts_with(|c: char| c.is_ascii_lowercase()) || !key.contains(" = ") {
            continue;
        }
        // The comment above the key, or above its group.
        let above = lines[..i]
            .iter()
            .rev()
            .find(|l| l.is_empty() || l.starts_with("# "));
        assert!(above.is_some_and(|l| l.starts_with("# ")), "{line}");
    }
}

#[test]
fn each_layer_wins_over_the_one_below() {
    let (_folder, mut layers) = file(
        "[limits]\nrequest_bytes = \"1MiB\"\nstream_bytes = \"1MiB\"\nresponse_bytes = \"1MiB\"\n",
    );
    layers.environment = [("REQUEST_BYTES", "2MiB"), ("STREAM_BYTES", "2097152")]
        .map(|(k, v)| (format!("A2A_GATEWAY__LIMITS__{k}"), v.into()))
        .to_vec();
    layers.overrides = vec!["limits.request_bytes=3MiB".to_owned()];
    let loaded = load(&layers).unwrap();
    let limits = &loaded.config.limits;
    assert_eq!(
        [
            limits.request_bytes.0,
            limits.stream_bytes.0,
            limits.response_bytes.0
        ],
        [3 << 20, 2 << 20, 1 << 20]
    );
    let source = |key: &str| {
        let setting = loaded.settings.iter().find(|s| s.key == key).unwrap();
        setting.source.to_string()
    };
    assert_eq!(source("limits.request_bytes"), "--set");
    assert_eq!(
        source("limits.stream_bytes"),
        "environment A2A_GATEWAY__LIMITS__STREAM_BYTES"
    );
    assert!(source("limits.response_bytes").ends_with("gateway.toml"));
    assert_eq!(source("limits.target_concurrency"), "default");
}

#[test]
fn text_takes_the_type_of_its_key() {
    let loaded = set(&[
        "server.hosts=a.example, b.example:8080",
        "server.trusted_proxies=[\"10.0.0.0/8\"]",
        "cors.origins=",
        "server.threads=3",
        "telemetry.log=\"warn,access=off\"",
        "server.listen=127.0.0.1:1",
        "limits.request_bytes=512",
        "tokens.issuer=2026",
    ])
    .unwrap();
    let server = &loaded.config.server;
    assert_eq!(server.hosts, ["a.example", "b.example:8080"]);
    assert_eq!(server.trusted_proxies.len(), 1);
    assert_eq!(server.threads, 3);
    assert_eq!(loaded.config.telemetry.log, "warn,access=off");
    assert_eq!(loaded.config.limits.request_bytes.0, 512);
    assert_eq!(loaded.config.issuer(), "2026");
}

#[test]
fn unknown_keys_are_refused_with_the_one_that_was_meant() {
    refused(
        set(&["server.lisen=1"]),
        "server.lisen",
        "did you mean `server.listen`?",
    );
    refused(
        set(&["timeouts.final_grace=1s"]),
        "",
        "did you mean `stream.final_grace`?",
    );
    refused(
        set(&["sever.listen=1"]),
        "",
        "did you mean `server.listen`?",
    );
    refused(set(&["zzz.qqq=1"]), "zzz.qqq", "no such key");
    refused(
        environment("A2A_GATEWAY__SERVER__TLS__CRET", "x"),
        "server.tls.cret (from environment A2A_GATEWAY__SERVER__TLS__CRET)",
        "did you mean `server.tls.cert`?",
    );
    let (_folder, layers) = file("[servr]\nlisten = \"127.0.0.1:1\"\n");
    refused(load(&layers), "servr (from file", "did you mean `server`?");
    let (_folder, layers) = file("[timeout]\nidle = \"1s\"\n");
    refused(
        load(&layers),
        "timeout (from file",
        "no such section; did you mean `timeouts`?",
    );
    let (_folder, layers) = file("[timeouts]\nidle = 30\n");
    refused(load(&layers), "timeouts.idle (from file", "like \"120s\"");
    let (_folder, layers) = file("server = 3\n");
    refused(load(&layers), "server (from file", "is a section");
    refused(set(&["server.tls=x"]), "server.tls", "is a section");
    refused(set(&["server.listen"]), "--set", "section.key=value");
}

#[test]
fn names_that_kubernetes_sets_are_passed_over() {
    assert!(environment("A2A_GATEWAY_PORT", "tcp://10.0.0.1:80").is_ok());
    assert!(environment("A2A_GATEWAY_SERVICE_HOST", "10.0.0.1").is_ok());
}

#[test]
fn bad_values_are_refused_with_key_source_and_reason() {
    for (value, reason) in [
        ("server.listen=8080", "write \"127.0.0.1:8080\""),
        (
            "server.threads=many",
            "`many` is not possible: write a whole number",
        ),
        ("server.threads=-1", "a whole number from 0 on"),
        ("server.drain=130", "is not a duration"),
        ("limits.request_bytes=10MB", "is not a size"),
        ("auth.mode=closed", "expected `token` or `open`"),
        ("auth.admin_token_sha256=abc", "64 hexadecimal digits"),
        ("address.allow=10.0.0.0/99", "10.0.0.0/8"),
        ("server.public_url=gateway", "https://gateway.example.com"),
    ] {
        let key = value.split('=').next().unwrap();
        refused(set(&[value]), &format!("{key} (from --set)"), reason);
    }
}

#[test]
fn all_problems_are_told_at_once() {
    let error = set(&["server.listn=1", "server.drain=1", "limits.request_bytes=x"]).unwrap_err();
    assert_eq!(error.problems.len(), 3);
    let error = set(&[
        "stores.sql=sqlite:",
        "stores.shared=redis://h/db",
        "timeouts.idle=0s",
        "telemetry.log=debugg",
    ])
    .unwrap_err();
    assert_eq!(error.problems.len(), 4, "{error}");
}

#[test]
fn tls_needs_both_files_and_both_readable() {
    refused(
        set(&["server.tls.cert=/a"]),
        "server.tls.cert",
        "needs server.tls.key",
    );
    refused(
        set(&["server.tls.key=/a"]),
        "server.tls.key",
        "needs server.tls.cert",
    );
    let both = [
        "server.tls.cert=/nowhere/cert.pem",
        "server.tls.key=/nowhere/key.pem",
    ];
    refused(
        set(&both),
        "server.tls.cert",
        "cannot read /nowhere/cert.pem",
    );
    let (folder, _) = file("not PEM");
    let path = folder.path().join("gateway.toml");
    let both = [
        format!("server.tls.cert={}", path.display()),
        format!("server.tls.key={}", path.display()),
    ];
    refused(
        set(&[&both[0], &both[1]]),
        "server.tls.key",
        "holds no private key",
    );
    let pair = || rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let put = |name: &str, text: String| {
        let path = folder.path().join(name);
        write(&path, &text, 0o600);
        path.display().to_string()
    };
    let one = pair();
    let cert = put("cert.pem", one.cert.pem());
    let key = put("key.pem", one.signing_key.serialize_pem());
    let other = put("other.pem", pair().signing_key.serialize_pem());
    let with = |key: &str| {
        set(&[
            &format!("server.tls.cert={cert}"),
            &format!("server.tls.key={key}"),
        ])
    };
    assert!(with(&key).is_ok());
    write(Path::new(&key), &one.signing_key.serialize_pem(), 0o644);
    refused(with(&key), "server.tls.key", &format!("chmod 600 {key}"));
    refused(with(&other), "server.tls.cert", "and server.tls.key: ");
}

#[test]
fn a_file_that_cannot_be_read_or_parsed_is_refused_without_quoting_it() {
    let missing = Layers {
        file: Some("/nowhere/gateway.toml".into()),
        ..Layers::default()
    };
    refused(load(&missing), "/nowhere/gateway.toml", "cannot read it");
    let (_folder, layers) = file("[stores]\nsql = \"postgres://u:geheim@h/d\n");
    let text = load(&layers).unwrap_err().to_string();
    assert!(
        text.contains("line 2 is not TOML") && !text.contains("geheim"),
        "{text}"
    );
}

#[test]
fn secrets_are_never_shown() {
    for value in [
        "stores.sql=postgres://u:geheim@h/d?password=geheim&sslmode=require",
        "stores.shared=rediss://:geheim@h:6379/0",
        "stores.sql=oracle://u:geheim@h/d",
        "stores.shared=[\"geheim\"]",
        "stores.sql=postgres://u:geheim@h:port/d",
        "cors.origins=https://u:geheim@h",
        "server.public_url=https://u:geheim@h:port",
        "timeouts.idle=redis://:ge/geheim@h/0",
    ] {
        let shown = match set(&[value]) {
            Ok(loaded) => format!("{loaded:?}"),
            Err(error) => error.to_string(),
        };
        assert!(!shown.contains("geheim"), "{shown}");
    }
    let shown = layer::mask_passwords("postgres://u:geheim@h/d?sslmode=require&x=geheim");
    assert_eq!(shown, "postgres://u:***@h/d?sslmode=require&x=***");
}

#[test]
fn a_secret_can_be_kept_in_a_file() {
    let (folder, _) = file("");
    let path = folder.path().join("sql-url");
    write(&path, "postgres://u:geheim@h/d\n", 0o644);
    let said = environment("A2A_GATEWAY__STORES__SQL_FILE", path.to_str().unwrap());
    refused(said, "stores.sql", "chmod 600");
    write(&path, "postgres://u:geheim@h/d\n", 0o600);
    let loaded = environment("A2A_GATEWAY__STORES__SQL_FILE", path.to_str().unwrap()).unwrap();
    assert_eq!(
        loaded.config.stores.sql.expose_secret(),
        "postgres://u:geheim@h/d"
    );
    refused(
        environment("A2A_GATEWAY__STORES__SQL_FILE", "/nowhere"),
        "stores.sql (from environment A2A_GATEWAY__STORES__SQL_FILE)",
        "cannot read the file",
    );
    refused(
        environment("A2A_GATEWAY__STORES__SQK_FILE", "/x"),
        "sqk_file",
        "no such key",
    );
}

#[test]
fn the_operators_token_comes_from_the_environment_in_its_form() {
    let token = format!("a2aa_{}", "Ab-_".repeat(11).split_at(43).0);
    let loaded = environment("A2A_GATEWAY_ADMIN_TOKEN", &token).unwrap();
    assert_eq!(
        loaded.config.auth.admin_token.unwrap().expose_secret(),
        token
    );
    assert!(
        environment("A2A_GATEWAY_ADMIN_TOKEN", "")
            .unwrap()
            .config
            .auth
            .admin_token
            .is_none()
    );
    for wrong in ["geheim", "a2aw_0123", &format!("{token}x"), &token[5..]] {
        let text = environment("A2A_GATEWAY_ADMIN_TOKEN", wrong)
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("A2A_GATEWAY_ADMIN_TOKEN") && !text.contains(wrong),
            "{text}"
        );
    }
}

#[test]
fn optional_keys_stay_unset_when_the_environment_passes_them_on_empty() {
    let loaded = environment("A2A_GATEWAY__SERVER__PUBLIC_URL", "").unwrap();
    assert!(loaded.config.server.public_url.is_none());
}

#[test]
fn what_is_probably_not_meant_is_noted() {
    for (overrides, part) in [
        (
            &["server.listen=0.0.0.0:8080"][..],
            "tokens travel in the clear",
        ),
        (&["server.listen=192.0.2.1:8080"], "get 421 until"),
        (&["admin.listen=0.0.0.0:9090"], "asks for no credential"),
        (&["stores.sql=postgres://h/d"], "one gateway only"),
        (&["timeouts.idle=1s"], "keep-alive"),
        (&["audit.retention=1m"], "audit.retention is 1m"),
    ] {
        let notes = set(overrides).unwrap().notes;
        assert!(notes.iter().any(|note| note.contains(part)), "{notes:?}");
    }
}
