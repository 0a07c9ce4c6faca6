//! Tests of key folders, of interrupted rotations, and of invalid tokens of each kind.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use serde_json::Value;

use super::*;
use crate::{TOKEN_BYTES_MAX, TokenError};

const TYP: &str = "a2a-canvas+jwt";

fn house() -> (tempfile::TempDir, Keys) {
    let dir = tempfile::tempdir().unwrap();
    let keys = Keys::load_or_create(dir.path()).unwrap();
    (dir, keys)
}

fn now() -> u64 {
    jsonwebtoken::get_current_timestamp()
}

fn claims(exp: u64) -> Value {
    json!({"iss": "http://gw", "aud": "http://gw", "exp": exp, "sub": "ada"})
}

fn check(keys: &Keys, token: &str) -> Result<Value, TokenError> {
    let verified = keys.verify(token, TYP, "http://gw", "http://gw");
    verified.map(|verified| verified.claims)
}

fn states(keys: &[KeyInfo]) -> Vec<&'static str> {
    keys.iter().map(|key| key.state.as_str()).collect()
}

#[test]
fn processes_that_start_at_once_agree_on_the_keys() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys");
    let known: Vec<_> = std::thread::scope(|scope| {
        let starts: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| Keys::load_or_create(&path).unwrap().list()))
            .collect();
        starts.into_iter().map(|s| s.join().unwrap()).collect()
    });
    assert!(known.iter().all(|keys| *keys == known[0]), "{known:?}");
    assert_eq!(states(&known[0]), ["active", "next"]);
    let mode = |p: &Path| fs::metadata(p).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o700);
    for name in ["active.pem", "next.pem"] {
        assert_eq!(mode(&path.join(name)), 0o600);
    }
}

#[test]
fn a_spoiled_file_is_named_and_not_replaced() {
    for name in [
        "active.pem",
        "next.pem",
        "retired-99999999999-0123456789abcdef.pem",
    ] {
        let (dir, _) = house();
        let path = dir.path().join(name);
        let spoiled = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        write_as(&path, spoiled, 0o600);
        let error = Keys::load_or_create(dir.path()).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), spoiled);
    }
}

#[test]
fn a_folder_without_a_next_key_can_be_read() {
    let (dir, keys) = house();
    fs::remove_file(dir.path().join("next.pem")).unwrap();
    let kid = keys.kid();
    let held = list(dir.path()).unwrap();
    assert_eq!((states(&held), &held[0].kid), (vec!["active"], &kid));
}

#[test]
fn a_rotation_brings_the_next_key_and_keeps_the_last() {
    let (dir, keys) = house();
    let before = keys.list();
    let old = keys.sign(TYP, &claims(now() + 60)).unwrap();
    let after = rotate(dir.path(), SigningAlgorithm::Es256).unwrap();
    assert_eq!(states(&after), ["active", "next", "retired"]);
    assert_eq!(after[0].kid, before[1].kid, "the next one is active");
    assert_eq!(after[2].kid, before[0].kid, "the active one is retired");
    assert_eq!(after[1].algorithm, SigningAlgorithm::Es256);

    assert!(keys.refresh().unwrap() && !keys.refresh().unwrap());
    assert_eq!(keys.list(), after);
    assert_eq!(check(&keys, &old).unwrap()["sub"], "ada");
    rotate(dir.path(), SigningAlgorithm::EdDsa).unwrap();
    assert!(keys.refresh().unwrap());
    let es256 = keys.sign(TYP, &claims(now() + 60)).unwrap();
    let head = TokenHead::parse_own(&es256, TYP).unwrap();
    assert_eq!(head.algorithm, jsonwebtoken::Algorithm::ES256);
    assert_eq!(check(&keys, &es256).unwrap()["sub"], "ada");
    assert_eq!(check(&keys, &old).unwrap()["sub"], "ada");
}

#[test]
fn since_when_a_key_signs_is_told_by_the_rotation_or_else_by_its_file() {
    let (dir, keys) = house();
    let at = |name: &str| dir.path().join(name);
    let written = |name: &str, ago: u64| {
        let file = fs::File::options().write(true).open(at(name)).unwrap();
        let time = SystemTime::now() - Duration::from_secs(ago);
        file.set_modified(time).unwrap();
        time
    };
    let made = written("active.pem", 5000);
    assert_eq!(keys.start_times()[0], Some((made, KeyTimeSource::File)));
    // An interrupted rotation changes nothing.
    let kid = keys.kid();
    let retired = at(&format!("retired-{}-{kid}.pem", now()));
    fs::hard_link(at("active.pem"), retired).unwrap();
    assert_eq!(keys.start_times()[0], Some((made, KeyTimeSource::File)));
    let made = written("next.pem", 4000);
    assert_eq!(keys.start_times()[1], Some((made, KeyTimeSource::File)));
    assert!(keys.rotate(&kid, false).unwrap().unfinished.is_none());
    let (since, known) = keys.start_times()[0].unwrap();
    assert_eq!(known, KeyTimeSource::Rotation);
    assert!(
        since > SystemTime::now() - Duration::from_secs(60),
        "not since it was made"
    );
}

#[tokio::test]
async fn a_replica_that_has_not_looked_yet_looks_once_for_all_who_meet_a_new_key() {
    // One after the other would take 20 s: more than each may wait.
    let (dir, keys) = house();
    let keys = Arc::new(keys);
    for _ in 0..2 {
        rotate(dir.path(), SigningAlgorithm::EdDsa).unwrap();
    }
    let other = Keys::load_or_create(dir.path()).unwrap();
    let token = other.sign(TYP, &claims(now() + 60)).unwrap();
    assert_eq!(check(&keys, &token), Err(TokenError::UnknownKey));
    let looks = (0..200).map(|_| keys.reload_for_unknown_key());
    assert!(
        futures_util::future::join_all(looks)
            .await
            .iter()
            .all(Result::is_ok)
    );
    assert_eq!(check(&keys, &token).unwrap()["sub"], "ada");
}

#[tokio::test]
async fn nobody_is_told_that_a_look_that_failed_was_made() {
    let (dir, keys) = house();
    let keys = Arc::new(keys);
    rotate(dir.path(), SigningAlgorithm::EdDsa).unwrap();
    fs::write(dir.path().join("next.pem"), "no key").unwrap();
    let looks = (0..5).map(|_| keys.reload_for_unknown_key());
    let looks = futures_util::future::join_all(looks).await;
    assert!(looks.iter().all(Result::is_err));
}

#[test]
fn more_keys_than_verifiers_take_are_refused_and_change_nothing() {
    let (dir, keys) = house();
    let token = keys.sign(TYP, &claims(now() + 60)).unwrap();
    let most = crate::KEYS_MAX;
    for rotation in 2..most {
        rotate(dir.path(), SigningAlgorithm::EdDsa).unwrap_or_else(|e| panic!("{rotation}: {e}"));
    }
    assert_eq!(list(dir.path()).unwrap().len(), most);
    let full = rotate(dir.path(), SigningAlgorithm::EdDsa).unwrap_err();
    assert!(full.to_string().contains("more than 100 keys"), "{full}");
    assert!(keys.refresh().unwrap());
    assert!(check(&keys, &token).is_ok());
    // Placed there by hand.
    let other = house().0;
    let more = format!("retired-{}-0123456789abcdef.pem", now());
    fs::copy(other.path().join("active.pem"), dir.path().join(more)).unwrap();
    assert!(keys.refresh().is_err());
    assert!(check(&keys, &token).is_ok(), "those known before stay");
}

#[test]
fn a_rotation_that_was_cut_short_is_gone_on_with() {
    let (dir, keys) = house();
    let [active, next] = [keys.list()[0].kid.clone(), keys.list()[1].kid.clone()];
    let at = |name: &str| dir.path().join(name);
    // After its first step the active key has a second name.
    let retired = at(&format!("retired-{}-{active}.pem", now()));
    fs::hard_link(at("active.pem"), &retired).unwrap();
    assert_eq!(states(&list(dir.path()).unwrap()), ["active", "next"]);
    // After its second step there is no next key.
    fs::rename(at("next.pem"), at("active.pem")).unwrap();
    let held = list(dir.path()).unwrap();
    assert_eq!(states(&held), ["active", "retired"]);
    assert_eq!((&held[0].kid, &held[1].kid), (&next, &active));
    assert!(Keys::load_or_create(dir.path()).unwrap().list().len() == 3);
    assert_eq!(
        states(&rotate(dir.path(), SigningAlgorithm::EdDsa).unwrap()),
        ["active", "next", "retired", "retired"]
    );
}

#[test]
fn a_retired_key_ends_in_its_time_and_a_removed_one_at_once() {
    let (dir, keys) = house();
    let token = keys.sign(TYP, &claims(now() + 60)).unwrap();
    let key = keys
        .find(&TokenHead::parse_own(&token, TYP).unwrap())
        .unwrap();
    let kid = keys.kid();
    rotate(dir.path(), SigningAlgorithm::EdDsa).unwrap();
    let name = |seconds: u64| dir.path().join(format!("retired-{seconds}-{kid}.pem"));
    let made = fs::read_dir(dir.path()).unwrap().flatten();
    let made = made.map(|entry| entry.path());
    let retired = made
        .into_iter()
        .find(|path| path.to_string_lossy().contains("retired-"));
    let day = Duration::from_secs(25 * 3600).as_secs();
    fs::rename(retired.unwrap(), name(now() - day + 30)).unwrap();
    keys.refresh().unwrap();
    assert!(check(&keys, &token).is_ok(), "within its time");
    assert!(!key.is_withdrawn());
    fs::rename(name(now() - day + 30), name(now() - day)).unwrap();
    assert!(keys.refresh().unwrap());
    assert_eq!(check(&keys, &token), Err(TokenError::UnknownKey));
    assert!(key.is_withdrawn(), "what it proved ends, too");
    rotate(dir.path(), SigningAlgorithm::EdDsa).unwrap();
    assert!(!name(now() - day).exists(), "cleared away");

    let token = keys.sign(TYP, &claims(now() + 60)).unwrap();
    keys.refresh().unwrap();
    assert!(check(&keys, &token).is_ok());
    for entry in fs::read_dir(dir.path()).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with("retired-") {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    keys.refresh().unwrap();
    assert_eq!(check(&keys, &token), Err(TokenError::UnknownKey));
}

#[test]
fn the_known_keys_stay_in_force_when_the_folder_cannot_be_read() {
    let (dir, keys) = house();
    let token = keys.sign(TYP, &claims(now() + 60)).unwrap();
    let next = dir.path().join("next.pem");
    write_as(&next, "no key\n-----END PRIVATE KEY-----\n", 0o600);
    assert!(keys.refresh().is_err());
    assert!(check(&keys, &token).is_ok());
    fs::remove_dir_all(dir.path()).unwrap();
    assert!(keys.refresh().is_err());
    assert!(check(&keys, &token).is_ok());
}

#[test]
fn what_is_published_is_public() {
    let (dir, keys) = house();
    rotate(dir.path(), SigningAlgorithm::Es256).unwrap();
    keys.refresh().unwrap();
    let jwks: Value = serde_json::from_str(&keys.jwks()).unwrap();
    let jwks = jwks["keys"].as_array().unwrap();
    assert_eq!(jwks.len(), 3);
    for jwk in jwks {
        let members: BTreeSet<_> = jwk
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        let expected: &[&str] = match jwk["kty"].as_str().unwrap() {
            "OKP" => &["alg", "crv", "kid", "kty", "use", "x"],
            _ => &["alg", "crv", "kid", "kty", "use", "x", "y"],
        };
        assert_eq!(members, expected.iter().copied().collect());
    }
}

#[test]
fn the_key_id_is_the_thumbprint_of_rfc_7638() {
    // RFC 8037, A.3: the thumbprint of the key in A.1.
    let der = [
        &[
            0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22,
        ][..],
        &[0x04, 0x20],
        &URL_SAFE_NO_PAD
            .decode("nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A")
            .unwrap(),
    ]
    .concat();
    let key = SigningKey::from_pkcs8(&der.into()).unwrap();
    let whole = "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k";
    assert_eq!(key.kid(), &whole[..signing::KID_LEN]);
}

#[test]
fn what_was_signed_is_verified_and_nothing_else() {
    let (_dir, keys) = house();
    let good = keys.sign(TYP, &claims(now() + 60)).unwrap();
    assert_eq!(check(&keys, &good).unwrap()["sub"], "ada");

    let other_typ = keys.sign("a2a-pair+jwt", &claims(now() + 60)).unwrap();
    assert_eq!(check(&keys, &other_typ), Err(TokenError::Malformed));
    let stranger = house().1.sign(TYP, &claims(now() + 60)).unwrap();
    assert_eq!(check(&keys, &stranger), Err(TokenError::UnknownKey));
    let mut bent = good.clone().into_bytes();
    let middle = good.find('.').unwrap() + 5;
    bent[middle] = if bent[middle] == b'A' { b'B' } else { b'A' };
    assert_eq!(
        check(&keys, std::str::from_utf8(&bent).unwrap()),
        Err(TokenError::Signature)
    );
    assert_eq!(
        check(&keys, &"x".repeat(TOKEN_BYTES_MAX + 1)),
        Err(TokenError::TooLong)
    );
    for malformed in ["", "a.b", "a.b.c", "a.b.c.d", &format!("{good}.x")] {
        assert_eq!(check(&keys, malformed), Err(TokenError::Malformed));
    }
}

#[test]
fn times_issuer_and_audience_are_required_and_exact() {
    let (_dir, keys) = house();
    let sign = |claims: &Value| keys.sign(TYP, claims).unwrap();
    assert!(check(&keys, &sign(&claims(now() - 2))).is_ok(), "leeway");
    assert_eq!(
        check(&keys, &sign(&claims(now() - 10))),
        Err(TokenError::Expired)
    );
    let mut early = claims(now() + 60);
    early["nbf"] = (now() + 30).into();
    assert_eq!(check(&keys, &sign(&early)), Err(TokenError::Immature));
    for missing in ["exp", "iss", "aud"] {
        let mut claims = claims(now() + 60);
        claims.as_object_mut().unwrap().remove(missing);
        assert_eq!(check(&keys, &sign(&claims)), Err(TokenError::Claims));
    }
    for (name, wrong) in [("iss", "http://else"), ("aud", "http://else")] {
        let mut claims = claims(now() + 60);
        claims[name] = wrong.into();
        assert_eq!(check(&keys, &sign(&claims)), Err(TokenError::Claims));
    }
}

#[test]
fn a_header_that_would_choose_the_key_or_the_algorithm_is_refused() {
    let (_dir, keys) = house();
    let good = keys.sign(TYP, &claims(now() + 60)).unwrap();
    let rest = good.split_once('.').unwrap().1;
    let kid = keys.kid();
    for head in [
        json!({"alg": "none", "typ": TYP, "kid": kid}),
        json!({"alg": "HS256", "typ": TYP, "kid": kid}),
        json!({"alg": "EdDSA", "typ": TYP, "kid": kid, "jku": "http://evil"}),
        json!({"alg": "EdDSA", "typ": TYP, "kid": kid, "jwk": {}}),
        json!({"alg": "EdDSA", "typ": TYP, "kid": kid, "x5u": "http://evil"}),
        json!({"alg": "EdDSA", "typ": TYP, "kid": kid, "crit": ["b64"]}),
        json!({"alg": "EdDSA", "kid": kid}),
        json!({"alg": "EdDSA", "typ": TYP}),
    ] {
        let token = format!("{}.{rest}", URL_SAFE_NO_PAD.encode(head.to_string()));
        assert_eq!(check(&keys, &token), Err(TokenError::Malformed), "{head}");
    }
}

#[test]
fn debug_shows_the_key_id_only() {
    let (_dir, keys) = house();
    assert_eq!(
        format!("{keys:?}"),
        format!("Keys {{ kid: {:?}, .. }}", keys.kid())
    );
}

/// Writes a file with these permissions, in place of one that may not be writable.
fn write_as(path: &Path, text: &str, mode: u32) {
    let _ = fs::remove_file(path);
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}
