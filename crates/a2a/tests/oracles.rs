//! The official SDKs' own converters as oracles: each of 10,000 generated objects a direction is translated by
//! the bridge and by them, and compared in normal form. Where they differ on purpose, [`DIFFERENCES`] says why.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../src/bridge/tests/objects.rs"]
mod objects;

#[path = "oracles/cards.rs"]
mod cards;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use a2a::Generation;
use a2a::bridge::card::{Facts, RequestedForm, translate_card};
use a2a::bridge::{Bridge, Call, Exchange, FileBytes, Side};
use a2a::method::Method;
use serde_json::{Map, Value, json};

use objects::Objects;

/// Objects of each direction and SDK.
const OBJECTS: u64 = 10_000;

const SEED: u64 = 0x0a2a_0300_0100;

/// A known difference: it applies to objects for which `applies` is true, and is undone by `undo` on both sides.
struct Difference {
    name: &'static str,
    /// The reason for which the bridge does not do as the SDK does.
    reason: &'static str,
    sdk: Sdk,
    up: bool,
    /// Takes it out of both results, given the object; true if it was there.
    undo: fn(&Value, &mut Value, &mut Value) -> bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sdk {
    Python,
    JavaScript,
}

/// All known differences.
const DIFFERENCES: [Difference; 6] = [
    Difference {
        name: "no `blocking` in a configuration returns at once",
        reason: "0.3 servers of both SDKs wait unless `blocking` is false: a caller that only names output modes would get \
                 an unfinished task",
        sdk: Sdk::JavaScript,
        up: true,
        undo: |object, _, theirs| {
            let configuration = &object["configuration"];
            let applies = configuration.is_object() && configuration.get("blocking").is_none();
            applies && remove(&mut theirs["configuration"], "returnImmediately")
        },
    },
    Difference {
        name: "`historyLength` 0 goes up as 0",
        reason: "0 is \"all\" in 0.3 and \"none\" in 1.0",
        sdk: Sdk::JavaScript,
        up: true,
        undo: |_, _, theirs| zero_history(theirs),
    },
    Difference {
        name: "`historyLength` 0 comes down as 0 (Python)",
        reason: "0.3 reads it as \"all\": the bridge leaves it out, and the history out of the answer",
        sdk: Sdk::Python,
        up: false,
        undo: |_, _, theirs| zero_history(theirs),
    },
    Difference {
        name: "`historyLength` 0 comes down as 0 (JavaScript)",
        reason: "0.3 reads it as \"all\": the bridge leaves it out, and the history out of the answer",
        sdk: Sdk::JavaScript,
        up: false,
        undo: |_, _, theirs| zero_history(theirs),
    },
    Difference {
        name: "a time keeps its offset",
        reason: "1.0 requires UTC with `Z` (5.6.1), and parsers of other SDKs refuse other texts",
        sdk: Sdk::JavaScript,
        up: true,
        undo: |_, ours, theirs| {
            let before = ours.clone();
            without_times(ours);
            without_times(theirs);
            *ours != before
        },
    },
    Difference {
        name: "the last of two OAuth flows is kept",
        reason: "1.0 has one; the bridge keeps the first of the order that the SDK for JavaScript has",
        sdk: Sdk::Python,
        up: true,
        undo: |object, ours, theirs| {
            let flows = &object["securitySchemes"]["oauth2"]["flows"];
            let are_two = flows.as_object().is_some_and(|flows| flows.len() > 1);
            let take = |said: &mut Value| {
                remove(
                    &mut said["securitySchemes"]["oauth2"]["oauth2SecurityScheme"],
                    "flows",
                )
            };
            are_two && take(ours) && take(theirs)
        },
    },
];

fn remove(object: &mut Value, name: &str) -> bool {
    object
        .as_object_mut()
        .is_some_and(|object| object.remove(name).is_some())
}

/// Removes a `historyLength` of 0, in parameters or in their configuration.
fn zero_history(theirs: &mut Value) -> bool {
    let inside = theirs.get_mut("configuration").is_some_and(zero_history);
    inside || theirs["historyLength"] == 0.0 && remove(theirs, "historyLength")
}

fn without_times(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(without_times),
        Value::Object(members) => {
            members.remove("timestamp");
            members.values_mut().for_each(without_times);
        }
        _ => {}
    }
}

/// The normal form: numbers are doubles, and members with the value of a missing one are left out.
fn normal(value: Value, name: &str) -> Value {
    let is_free = matches!(name, "metadata" | "data" | "security");
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(list) => list
            .into_iter()
            .map(|one| normal(one, if is_free { name } else { "" }))
            .collect(),
        Value::Object(members) => {
            let members = members.into_iter().map(|(key, value)| {
                let inner = if is_free {
                    name.to_owned()
                } else {
                    key.clone()
                };
                let value = normal(value, &inner);
                (key, value)
            });
            let kept = members.filter(|(key, value)| is_free || !is_default(key, value));
            kept.collect::<Map<_, _>>().into()
        }
        value => value,
    }
}

fn is_default(name: &str, value: &Value) -> bool {
    match name {
        "text" | "raw" | "bytes" | "data" => false,
        // Times are compared as instants: writers choose the number of digits.
        "timestamp" => value.is_null(),
        "blocking" => *value == true,
        "append" | "lastChunk" | "required" | "returnImmediately" => *value == false,
        "state" => *value == "TASK_STATE_UNSPECIFIED" || *value == 0.0,
        "metadata" | "configuration" | "status" | "securitySchemes" => {
            value.is_null() || *value == json!({})
        }
        _ => value.is_null() || *value == "" || *value == json!([]),
    }
}

/// Cuts the zeros at the end of the fraction of each time.
fn plain_times(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(plain_times),
        Value::Object(members) => {
            if let Some(Value::String(time)) = members.get_mut("timestamp")
                && let Some((head, fraction)) = time.trim_end_matches('Z').split_once('.')
            {
                let fraction = fraction.trim_end_matches('0');
                let dot = if fraction.is_empty() { "" } else { "." };
                *time = format!("{head}{dot}{fraction}Z");
            }
            members.values_mut().for_each(plain_times);
        }
        _ => {}
    }
}

const SHAPES: [(&str, Method); 9] = [
    ("send", Method::SendMessage),
    ("get", Method::GetTask),
    ("cancel", Method::CancelTask),
    ("outcome", Method::SendMessage),
    ("event", Method::SendStreamingMessage),
    ("event", Method::SendStreamingMessage),
    ("task", Method::GetTask),
    ("push", Method::GetPushConfig),
    ("card", Method::GetExtendedCard),
];

fn object(seed: u64, up: bool, shape: &str) -> Value {
    let mut made = Objects::new(seed, up, 0.1);
    match shape {
        "send" => made.send(),
        "get" => made.get(),
        "cancel" => made.cancel(),
        "outcome" => made.result(false),
        "event" => made.result(true),
        "task" => made.task(),
        "card" => cards::card(seed, up),
        _ => made.push(),
    }
}

/// Translates an object with the bridge.
fn translated(up: bool, shape: &str, method: Method, object: &Value) -> Value {
    let (v0, v1) = (
        Side::json_rpc(Generation::V0),
        Side::json_rpc(Generation::V1),
    );
    if shape == "card" {
        return translated_card(object, up);
    }
    let of_request = matches!(shape, "send" | "get" | "cancel");
    // A request goes from its caller, a result comes from its agent.
    let (from, to) = if up { (v0, v1) } else { (v1, v0) };
    let (caller, agent) = if of_request { (from, to) } else { (to, from) };
    if of_request {
        let bridge = Bridge {
            caller,
            agent,
            tenant: None,
            files: FileBytes::Unknown,
        };
        let name = method.name_in(caller.generation).unwrap();
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": name, "params": object});
        let call = call.to_string();
        let (sent, _) = bridge
            .translate_request(method, Call::Rpc(call.as_bytes()))
            .unwrap();
        let sent: Value = serde_json::from_slice(&sent.body).unwrap();
        return sent["params"].clone();
    }
    let exchange = Exchange::new(caller, agent, method, Some("1".to_owned()));
    let body = json!({"jsonrpc": "2.0", "id": 1, "result": object}).to_string();
    let written = if shape == "event" {
        let mut out = Vec::new();
        let block = format!("data: {body}\n\n");
        exchange
            .start_stream()
            .translate_block(block.as_bytes(), &mut out)
            .unwrap();
        let out = String::from_utf8(out).unwrap();
        // A task may stand in front of it.
        out.rsplit("data: ").next().unwrap().as_bytes().to_vec()
    } else {
        exchange
            .translate_answer(200, body.as_bytes())
            .unwrap()
            .body
    };
    let answer: Value = serde_json::from_slice(&written).unwrap();
    answer["result"].clone()
}

/// Translates a card of an agent that speaks both, without what is the gateway's.
fn translated_card(object: &Value, up: bool) -> Value {
    let both = [Generation::V0, Generation::V1];
    let asked = RequestedForm::Only(both[usize::from(up)]);
    let facts = Facts {
        base: "http://gateway/",
        sides: &both.map(Side::json_rpc),
        native: &both,
        grpc: None,
    };
    let text = translate_card(&object.to_string(), asked, &facts).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Members of a card that are the gateway's.
const OF_THE_GATEWAY: [&str; 5] = [
    "supportedInterfaces",
    "url",
    "preferredTransport",
    "additionalInterfaces",
    "protocolVersion",
];

/// A converter that runs.
struct Oracle {
    child: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Oracle {
    fn start(command: &mut Command) -> Self {
        let mut child = command
            .stderr(Stdio::null())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, answers }
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the folder of the SDKs' packages.
fn packages() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new(root.join("scripts/clients"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    String::from_utf8(output.stdout).unwrap().trim().into()
}

/// Compares both directions with one SDK. Returns how often each difference was there.
fn compare(sdk: Sdk, command: &mut Command) -> BTreeMap<&'static str, u64> {
    let mut oracle = Oracle::start(command);
    let mut input = oracle.child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || {
        for up in [true, false] {
            for number in 0..OBJECTS {
                let (shape, method) = SHAPES[number as usize % SHAPES.len()];
                let value = object(SEED + number, up, shape);
                let ours = translated(up, shape, method, &value);
                let asked = json!({"up": up, "shape": shape, "value": value, "ours": ours});
                writeln!(input, "{asked}").unwrap();
            }
        }
    });
    let (mut seen, mut lines) = (BTreeMap::new(), (&mut oracle.answers).lines());
    for up in [true, false] {
        for number in 0..OBJECTS {
            let (shape, method) = SHAPES[number as usize % SHAPES.len()];
            let object = object(SEED + number, up, shape);
            let said: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
            let theirs = said
                .get("value")
                .unwrap_or_else(|| panic!("{sdk:?} refuses {object}: {said}"));
            let mut ours = normal(translated(up, shape, method, &object), "");
            let mut theirs = normal(theirs.clone(), "");
            for said in [&mut ours, &mut theirs] {
                plain_times(said);
                for name in OF_THE_GATEWAY.iter().filter(|_| shape == "card") {
                    remove(said, name);
                }
            }
            for difference in &DIFFERENCES {
                if (difference.sdk, difference.up) == (sdk, up)
                    && ours != theirs
                    && (difference.undo)(&object, &mut ours, &mut theirs)
                {
                    *seen.entry(difference.name).or_default() += 1;
                }
            }
            assert_eq!(
                normal(ours, ""),
                normal(theirs, ""),
                "{sdk:?}, {shape}, up: {up}: {object}"
            );
        }
    }
    writer.join().unwrap();
    seen
}

#[test]
fn the_converters_of_the_sdks_agree_but_for_known_differences() {
    let (packages, own) = (
        packages(),
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracles"),
    );
    let mut python = Command::new(packages.join("py13/python/bin/python"));
    python.arg("-B").arg(own.join("python.py"));
    let mut seen = compare(Sdk::Python, &mut python);
    let mut javascript = Command::new("node");
    javascript
        .arg(own.join("javascript.mjs"))
        .arg(packages.join("js13/node_modules"));
    seen.extend(compare(Sdk::JavaScript, &mut javascript));
    for difference in &DIFFERENCES {
        let times = seen.get(difference.name).copied().unwrap_or_default();
        println!("{times:>6}  {}: {}", difference.name, difference.reason);
        assert!(times > 0, "{} is no difference any more", difference.name);
    }
}
