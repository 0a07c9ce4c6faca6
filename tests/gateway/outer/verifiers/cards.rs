//! The gateway's signature on cards, verified by others: the official SDK, and a JWS library with a
//! canonicalisation of its own.

use std::process::{Command, Stdio};

use a2a_gateway::trust::{SigningAlgorithm, rotate};
use serde_json::{Value, json};

use super::{add, answers, card_of, generations, patch, serving};
use crate::harness::documents::block;
use crate::harness::packages::installed;
use crate::harness::{ADMIN, Agent, Gateway, Request, until_holds};

/// Reads cards and keys, and answers for each card: how many of its signatures are over the document as
/// it stands, and what the SDK says.
const VERIFIER: &str = r#"
import copy, json, sys
import jwt, rfc8785
from a2a.client.card_resolver import parse_agent_card
from a2a.utils.signing import SignatureVerificationError, create_signature_verifier
from jwt.utils import base64url_encode

asked = json.load(sys.stdin)
keys = {key["kid"]: jwt.PyJWK(key) for key in asked["jwks"]["keys"]}
algorithms = ["EdDSA", "ES256"]

def over_the_document(card):
    unsigned = {name: value for name, value in card.items() if name != "signatures"}
    payload = base64url_encode(rfc8785.dumps(unsigned)).decode()
    verified = 0
    for signature in card.get("signatures", []):
        token = f'{signature["protected"]}.{payload}.{signature["signature"]}'
        header = jwt.get_unverified_header(token)
        assert header["typ"] == "JOSE" and header["jku"] == asked["jku"], header
        try:
            jwt.api_jws.decode(token, keys[header["kid"]].key, algorithms=algorithms)
            verified += 1
        except jwt.InvalidSignatureError:
            pass
    return verified

def by_the_sdk(card):
    verify = create_signature_verifier(lambda kid, jku: keys[kid], algorithms)
    try:
        verify(parse_agent_card(copy.deepcopy(card)))
        return "verified"
    except SignatureVerificationError as error:
        return type(error).__name__

json.dump([{"document": over_the_document(card), "sdk": by_the_sdk(card)} for card in asked["cards"]], sys.stdout)
"#;

/// Has `cards` verified with `jwks`.
fn verified(cards: &[Value], jwks: &Value, jku: &str) -> Vec<Value> {
    let asked = json!({"cards": cards, "jwks": jwks, "jku": jku});
    answers(python().args(["-c", VERIFIER]), &asked)
}

fn python() -> Command {
    Command::new(installed("scripts/verifiers").join("python/bin/python"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_verify_the_gateways_signature() {
    let gateway = Gateway::with("card.sign=true").await;
    let mut cards = Vec::new();
    let mut tags = Vec::new();
    let mut agents = Vec::new();
    for (at, (_, mut card)) in generations().into_iter().enumerate() {
        // Names and numbers that a careless canonicalisation gets wrong.
        card["description"] = "é \u{1F600} \u{2028} \"\\ /".into();
        if let Some(params) = card["capabilities"].pointer_mut("/extensions/0/params") {
            *params = json!({"\u{1F600}": 1e21, "\u{FB33}": 1.10, "a": -0.0, "B": 333_333_333.333_333_3, "n": 10, "deep": [[], {"x": "y"}]});
        }
        let agent = serving("/.well-known/agent-card.json", &card).await;
        let url = json!({"url": agent.url()});
        if at == 0 {
            add(&gateway, "target", url).await;
        } else {
            patch(&gateway, "target", url).await;
        }
        let answer = card_of(&gateway, "target").await;
        tags.push(answer.field("etag").unwrap().to_owned());
        cards.push(answer.json());
        agents.push(agent);
    }
    // The agent's own, such as it was, is gone.
    let its_own = |card: &Value| card["signatures"].to_string().contains("\"AA\"");
    assert!(!cards.iter().any(its_own));
    // A signature of Ed25519 is the same each time, and so is the document.
    assert!(tags.iter().all(|tag| tag.starts_with('"')), "{tags:?}");
    // One of ES256 is not: the next key, and the one after it, count within seconds.
    for _ in 0..2 {
        rotate(&gateway.dir.join("keys"), SigningAlgorithm::Es256).unwrap();
    }
    let is_next = async || {
        let answer = card_of(&gateway, "target").await;
        answer.field("etag").unwrap().starts_with("W/\"")
    };
    until_holds("the new key is followed", is_next).await;
    let signed = card_of(&gateway, "target").await.json();
    cards.push(signed);
    let good = cards.len();
    for at in 0..good {
        let mut forged = cards[at].clone();
        forged["description"] = "forged".into();
        cards.push(forged);
        let mut unsigned = cards[at].clone();
        unsigned["signatures"] = json!([]);
        cards.push(unsigned);
    }
    let jwks = Request::get("/.well-known/jwks.json");
    let jwks = gateway.call(&jwks).await.json();
    let jku = format!("http://{}/.well-known/jwks.json", gateway.public);
    let shown = cards.clone();
    let answers = tokio::task::spawn_blocking(move || verified(&shown, &jwks, &jku));
    let answers = answers.await.unwrap();
    assert_eq!(answers.len(), cards.len());
    for (at, (answer, card)) in answers.iter().zip(&cards).enumerate() {
        let is_good = at < good;
        assert_eq!(answer["document"], i32::from(is_good), "{card}");
        assert_eq!(answer["sdk"] == "verified", is_good, "{card}");
    }
}

/// Runs the program of `docs/design/security.md` with these arguments: its exit status, and what it printed.
fn by_hand(program: &str, arguments: &[String], token: Option<&str>) -> (Option<i32>, String) {
    let mut verifier = python();
    verifier.args(["-c", program]).args(arguments);
    verifier.env_remove("A2A_TOKEN");
    if let Some(token) = token {
        verifier.env("A2A_TOKEN", token);
    }
    let output = verifier.stdin(Stdio::null()).output().unwrap();
    let told = [output.stdout, output.stderr].concat();
    let told = String::from_utf8_lossy(&told).into_owned();
    (output.status.code(), told)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documents_verifier_takes_a_signed_card_and_no_other() {
    let gateway = Gateway::with("card.sign=true").await;
    let program = block("### A signed card, verified by hand", "python");
    let ours = format!("http://{}", gateway.public);
    let (good, forged) = ("signed by the gateway", "no signature of this gateway's");
    // Those of the others: above.
    let (_, card) = generations().into_iter().next().unwrap();
    let agent = serving("/.well-known/agent-card.json", &card).await;
    add(&gateway, "target", json!({"url": agent.url()})).await;
    let url = format!("{ours}/workspaces/target/a2a/.well-known/agent-card.json");
    let at_ours = vec![ours.clone(), url];
    let mut tries = vec![
        (at_ours.clone(), Some(ADMIN), good),
        (at_ours.clone(), Some("wrong"), ": 401 {"),
        (at_ours.clone(), None, "A2A_TOKEN is not set"),
        (at_ours[1..].to_vec(), Some(ADMIN), "usage: "),
    ];
    let mut elsewhere = Vec::new();
    // The same card elsewhere, with something else in it, and with nothing that proves it.
    let card = card_of(&gateway, "target").await.json();
    let others = json!([{"protected": "e30", "signature": "AA"}, {}]);
    for (name, value, says) in [
        ("signatures", card["signatures"].clone(), good),
        ("description", json!("forged"), forged),
        ("signatures", json!([]), "the card is not signed"),
        ("signatures", others, forged),
    ] {
        let mut card = card.clone();
        card[name] = value;
        let agent = Agent::json(&card.to_string()).await;
        tries.push((vec![ours.clone(), agent.url()], Some(ADMIN), says));
        elsewhere.push(agent);
    }
    let asked = tokio::task::spawn_blocking(move || {
        let told = |(arguments, token, says): (Vec<String>, _, _)| {
            (by_hand(&program, &arguments, token), says)
        };
        tries.into_iter().map(told).collect::<Vec<_>>()
    });
    for ((status, told), says) in asked.await.unwrap() {
        assert_eq!(status, Some(i32::from(says != good)), "{told}");
        assert!(told.contains(says), "{told}");
    }
    // The token is for the gateway.
    for agent in elsewhere {
        assert_eq!(agent.take().field("authorization"), None);
    }
}
