//! Tests of reloads without files.

use super::super::RESTART_KEYS;
use super::super::load::{Layers, load};
use super::*;

fn layers(sets: &[&str]) -> Result<LoadedConfig, ConfigError> {
    load(&Layers {
        overrides: sets.iter().map(|set| (*set).to_owned()).collect(),
        ..Layers::default()
    })
}

fn live(sets: &[&str]) -> Live {
    Live::new(layers(sets).unwrap())
}

fn changed(live: &Live, sets: &[&str]) -> Change {
    match live.reload(layers(sets)) {
        Outcome::Changed(change) => {
            live.set_view(change.view.clone());
            change
        }
        other => panic!("{other:?}"),
    }
}

fn shown<'t>(view: &'t ConfigView, key: &str) -> &'t str {
    let found = view.settings.iter().find(|setting| setting.key == key);
    &found.unwrap().value
}

#[test]
fn what_changed_is_in_force_and_named() {
    let live = live(&["rate.caller_burst=5", "cors.origins=https://a.example"]);
    let change = changed(&live, &["rate.caller_burst=6", "access.lineage=any"]);
    assert_eq!(
        change.applied,
        ["access.lineage", "cors.origins", "rate.caller_burst"]
    );
    assert!(change.waiting.is_empty());
    assert_eq!(live.get().rate.caller_burst, 6);
    assert!(live.get().cors.origins.is_empty());
    assert_eq!(shown(&live.view(), "access.lineage"), "\"any\"");
}

/// `GET /config` would otherwise show values before the parts of the gateway that keep something of the old ones
/// follow.
#[test]
fn operators_see_the_old_values_until_they_are_told() {
    let live = live(&["rate.caller_burst=5"]);
    let Outcome::Changed(change) = live.reload(layers(&["rate.caller_burst=6"])) else {
        panic!("a value changed");
    };
    assert_eq!(live.get().rate.caller_burst, 6);
    assert_eq!(shown(&live.view(), "rate.caller_burst"), "5");
    live.set_view(change.view);
    assert_eq!(shown(&live.view(), "rate.caller_burst"), "6");
}

#[test]
fn the_same_again_changes_nothing() {
    let live = live(&["rate.caller_burst=5"]);
    let held = live.snapshot();
    let again = live.reload(layers(&["rate.caller_burst=5"]));
    assert!(matches!(again, Outcome::Unchanged { mended: false }));
    assert!(std::sync::Arc::ptr_eq(&held, &live.snapshot()));
}

#[test]
fn what_is_wrong_leaves_all_as_it_was_until_it_is_mended() {
    let live = live(&["rate.caller_burst=5"]);
    let wrong = layers(&["rate.caller_burst=7", "timeouts.idle=0s", "no.such=1"]);
    let Outcome::Refused(error) = live.reload(wrong) else {
        panic!("it must be refused");
    };
    assert!(!error.problems.is_empty());
    assert_eq!(live.get().rate.caller_burst, 5);
    assert!(live.view().failure.is_some());
    let mended = live.reload(layers(&["rate.caller_burst=5"]));
    assert!(matches!(mended, Outcome::Unchanged { mended: true }));
    assert!(live.view().failure.is_none());
}

#[test]
fn what_needs_a_restart_waits_and_the_rest_counts() {
    let live = live(&["stores.shared=redis://:one@h/0"]);
    let sets = [
        "stores.shared=redis://:two@h/0",
        "server.listen=127.0.0.1:1",
        "server.tls.cert=/nowhere",
        "rate.caller_burst=9",
    ];
    // A certificate without a key is refused before other checks.
    assert!(matches!(live.reload(layers(&sets)), Outcome::Refused(_)));
    let sets = [sets[0], sets[1], sets[3]];
    let change = changed(&live, &sets);
    assert_eq!(change.applied, ["rate.caller_burst"]);
    assert_eq!(change.waiting, ["server.listen", "stores.shared"]);
    let view = live.view();
    assert_eq!(shown(&view, "server.listen"), "\"127.0.0.1:8080\"");
    let waiting = view.waiting["server.listen"].as_ref().unwrap();
    assert_eq!(waiting.value, "\"127.0.0.1:1\"");
    assert_eq!(live.get().server.listen.port(), 8080);
    // A changed password is a change, and is never displayed.
    assert!(!format!("{view:?}").contains("two"));
    // The value still needs a restart, and nothing else changed.
    assert!(matches!(
        live.reload(layers(&sets)),
        Outcome::Unchanged { mended: false }
    ));
    // After the change is reverted, no restart is needed.
    let back = changed(
        &live,
        &["stores.shared=redis://:one@h/0", "rate.caller_burst=9"],
    );
    assert!(back.waiting.is_empty() && back.applied.is_empty());
}

#[test]
fn a_value_that_is_unsafe_beside_one_that_stays_is_refused() {
    let live = live(&["server.listen=0.0.0.0:8080"]);
    let sets = ["server.listen=127.0.0.1:8080", "auth.mode=open"];
    let Outcome::Refused(error) = live.reload(layers(&sets)) else {
        panic!("open mode on every interface");
    };
    let text = error.to_string();
    assert!(text.contains("auth.mode"), "{text}");
    assert!(
        text.contains("a restart is needed first, for server.listen"),
        "{text}"
    );
    assert!(live.get().auth.mode == super::super::AuthMode::Token);
}

#[test]
fn the_operators_token_is_replaced_too() {
    let live = live(&[]);
    let token = format!("a2aa_{}", "x".repeat(43));
    let mut loaded = layers(&[]).unwrap();
    loaded.config.auth.admin_token = Some(token.into());
    let Outcome::Changed(change) = live.reload(Ok(loaded)) else {
        panic!("a token came");
    };
    assert_eq!(change.applied, [ADMIN_TOKEN]);
    assert!(live.get().auth.admin_token.is_some());
}

/// Returns all values, including those that are never displayed.
fn whole(config: &Config) -> String {
    let secrets = [
        &config.stores.sql,
        &config.stores.shared,
        &config.telemetry.otlp_headers,
    ]
    .map(ExposeSecret::expose_secret);
    format!(
        "{config:?} {secrets:?} {}",
        config.auth.admin_token_sha256.len()
    )
}

fn issuer() -> toml::Table {
    let members = [
        ("issuer", "https://else.example"),
        ("jwks_url", "https://else.example/keys"),
        ("audience", "gateway"),
    ];
    members
        .map(|(member, text)| (member.to_owned(), text.into()))
        .into_iter()
        .collect()
}

fn platform() -> toml::Table {
    let mut platform = issuer();
    let claims = toml::toml! { sub = "a:{name}" };
    platform.insert("claims".to_owned(), claims.into());
    platform.insert("workspace".to_owned(), "{name}".into());
    platform
}

fn cap() -> toml::Table {
    toml::toml! {
        name = "a"
        per = "run"
        count = "messages"
        limit = 5
    }
}

fn required() -> toml::Table {
    toml::toml! {
        targets = ["a"]
        root = "person"
    }
}

fn guard() -> toml::Table {
    let members = [("name", "secrets"), ("url", "http://else.example/")];
    members
        .map(|(member, text)| (member.to_owned(), text.into()))
        .into_iter()
        .collect()
}

#[test]
fn each_key_that_needs_a_restart_keeps_its_value_and_no_other_does() {
    let other = |key: &str, value: &toml::Value| -> toml::Value {
        match (key, value) {
            ("server.public_url", _) => "https://else.example/".into(),
            ("stores.shared", _) => "redis://h/3".into(),
            ("stores.sql", _) => "sqlite:else.db".into(),
            ("server.listen" | "admin.listen", _) => "127.0.0.1:9".into(),
            ("admin.auth", _) => "token".into(),
            ("auth.mode", _) => "open".into(),
            ("access.chain", _) => "ends".into(),
            ("access.require", _) => vec![required()].into(),
            ("access.lineage" | "access.observe.lineage", _) => "any".into(),
            ("a2a.complete" | "a2a.bridge", _) => "off".into(),
            ("a2a.refusal_status", _) => "200".into(),
            ("address.profile", _) => "strict".into(),
            ("audit.anchor", _) => "log".into(),
            ("audit.client_address", _) => "prefix".into(),
            ("card.access", _) => "public".into(),
            ("telemetry.log_format", _) => "json".into(),
            ("telemetry.otlp_endpoint", _) => "http://else.example:4318".into(),
            ("telemetry.otlp_headers", _) => "x-else=1".into(),
            ("telemetry.otlp_protocol", _) => "grpc".into(),
            ("breaker.ratio", _) => 0.25.into(),
            ("telemetry.sampling", _) => 0.5.into(),
            ("auth.admin_token_sha256", _) => vec!["ab".repeat(32)].into(),
            ("auth.issuers", _) => vec![issuer()].into(),
            ("auth.workspace_issuers", _) => vec![platform()].into(),
            ("cap", _) => vec![cap()].into(),
            ("guard", _) => vec![guard()].into(),
            ("server.trusted_proxies" | "address.allow", _) => vec!["10.9.0.0/16"].into(),
            ("address.nameservers", _) => vec!["10.9.0.53"].into(),
            (_, toml::Value::Integer(n)) => (n + 1).into(),
            (_, toml::Value::Boolean(on)) => (!on).into(),
            (_, toml::Value::Array(_)) => vec!["https://else.example"].into(),
            (_, toml::Value::String(text)) if text.ends_with("iB") => "9MiB".into(),
            (_, toml::Value::String(text)) if humantime::parse_duration(text).is_ok() => {
                "77s".into()
            }
            (_, toml::Value::String(text)) => format!("{text}-else").into(),
            (key, value) => panic!("what else can {key} be but {value}?"),
        }
    };
    let known = super::super::layer::known_keys();
    let old: Config = super::super::layer::default_table().try_into().unwrap();
    for (key, value) in super::super::layer::list_leaves(&known) {
        let mut table = super::super::layer::default_table();
        super::super::layer::put_value(&mut table, &key, other(&key, &value));
        let fresh: Config = table.try_into().unwrap_or_else(|e| panic!("{key}: {e}"));
        assert_ne!(whole(&fresh), whole(&old), "{key}: no other value");
        let mut kept = fresh.clone();
        restart::restore_values(&mut kept, &old);
        let stays = whole(&kept) == whole(&old);
        assert_eq!(stays, RESTART_KEYS.contains(&key.as_str()), "{key}");
    }
}

#[test]
fn the_default_file_marks_exactly_the_keys_that_need_a_restart() {
    let (mut section, mut marked) = ("", Vec::new());
    let lines: Vec<&str> = super::super::load::DEFAULT.lines().collect();
    for pair in lines.windows(2) {
        let [comment, line] = pair else { continue };
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']');
        }
        let key = line.trim_start_matches('#').split_once(" = ");
        if let Some((key, _)) = key
            && comment.ends_with("[restart]")
        {
            marked.push(format!("{section}.{key}"));
        }
    }
    marked.sort();
    assert_eq!(marked, RESTART_KEYS);
}
