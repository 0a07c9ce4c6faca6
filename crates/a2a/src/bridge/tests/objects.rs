//! Objects of both generations, made by a seed: for the properties here, and for the SDKs' converters
//! (`tests/oracles.rs`).

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Map, Value, json};

/// The states of 0.3 with those of 1.0.
const STATES: [(&str, &str); 9] = [
    ("unknown", "TASK_STATE_UNSPECIFIED"),
    ("submitted", "TASK_STATE_SUBMITTED"),
    ("working", "TASK_STATE_WORKING"),
    ("completed", "TASK_STATE_COMPLETED"),
    ("failed", "TASK_STATE_FAILED"),
    ("canceled", "TASK_STATE_CANCELED"),
    ("input-required", "TASK_STATE_INPUT_REQUIRED"),
    ("rejected", "TASK_STATE_REJECTED"),
    ("auth-required", "TASK_STATE_AUTH_REQUIRED"),
];

/// A source of objects in the form of one generation.
pub(crate) struct Objects {
    rng: StdRng,
    v0: bool,
    /// Probability of members that the other generation does not have.
    foreign: f64,
}

impl Objects {
    pub(crate) fn new(seed: u64, v0: bool, foreign: f64) -> Self {
        Self {
            rng: StdRng::seed_from_u64(seed),
            v0,
            foreign,
        }
    }

    fn chance(&mut self, probability: f64) -> bool {
        self.rng.random_bool(probability)
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.rng.random_range(0..all.len())]
    }

    fn few(&mut self, most: usize, mut each: impl FnMut(&mut Self) -> Value) -> Value {
        let count = self.rng.random_range(1..=most);
        (0..count).map(|_| each(self)).collect()
    }

    fn word(&mut self) -> Value {
        let words = [
            "a",
            "task-7",
            "ä€😀",
            "with \"quotes\" and \\",
            "line\nbreak\ttab",
            "kind",
            "</script>",
        ];
        self.one_of(&words).into()
    }

    /// Free-form JSON. Numbers are exact as doubles, which the SDKs make of them.
    fn free(&mut self, depth: usize) -> Value {
        match self.rng.random_range(0..if depth == 0 { 5 } else { 8 }) {
            0 => self.word(),
            1 => json!(self.rng.random_range(-1_000_000_i64..1_000_000)),
            2 => json!(f64::from(self.rng.random_range(-4000_i32..4000)) / 8.0),
            3 => json!(self.chance(0.5)),
            4 => json!(self.rng.random_range(0..1_000_000_000_000_i64)),
            5 => {
                let count = self.rng.random_range(0..3);
                (0..count).map(|_| self.free(depth - 1)).collect()
            }
            _ => self.free_object(depth - 1),
        }
    }

    fn free_object(&mut self, depth: usize) -> Value {
        let mut object = Map::new();
        for _ in 0..self.rng.random_range(1..4) {
            let names = ["k", "kind", "n", "messageId", "snake_name", "value", "ä"];
            let name = self.one_of(&names);
            object.insert(name.to_owned(), self.free(depth));
        }
        object.into()
    }

    fn maybe(
        &mut self,
        object: &mut Value,
        name: &str,
        probability: f64,
        value: impl FnOnce(&mut Self) -> Value,
    ) {
        if self.chance(probability) {
            object[name] = value(self);
        }
    }

    fn metadata(&mut self, object: &mut Value) {
        self.maybe(object, "metadata", 0.3, |made| made.free_object(2));
    }

    /// A member that no table has.
    fn other(&mut self, object: &mut Value) {
        let foreign = self.foreign;
        self.maybe(object, "x-private", foreign, |made| made.free(1));
    }

    pub(crate) fn part(&mut self) -> Value {
        let bytes = self.one_of(&["", "AA==", "+/A=", "aGVsbG8="]);
        let (kind, name) = self.one_of(&[
            ("text", "text"),
            ("file", "bytes"),
            ("file", "uri"),
            ("data", "data"),
        ]);
        let mut part = match (self.v0, name) {
            (_, "text") => json!({"text": if self.chance(0.1) { "".into() } else { self.word() }}),
            (_, "data") => {
                let any = !self.v0 && self.chance(0.3);
                json!({"data": if any { self.free(2) } else { self.free_object(2) }})
            }
            (true, "bytes") => json!({"file": {"bytes": bytes}}),
            (true, _) => json!({"file": {"uri": "http://files/a b"}}),
            (false, "bytes") => json!({"raw": bytes}),
            (false, _) => json!({"url": "http://files/a b"}),
        };
        if kind == "file" {
            let (holder, media, filename) = if self.v0 {
                (&mut part["file"], "mimeType", "name")
            } else {
                (&mut part, "mediaType", "filename")
            };
            if self.rng.random_bool(0.5) {
                holder[media] = "image/png".into();
            }
            if self.rng.random_bool(0.5) {
                holder[filename] = "f.png".into();
            }
            if self.v0 && self.rng.random_bool(self.foreign) {
                holder["size"] = 7.into();
            }
        }
        if self.v0 {
            part["kind"] = kind.into();
        }
        self.metadata(&mut part);
        if self.v0 && kind == "data" && self.chance(0.2) {
            part = json!({"kind": "data", "data": {"value": self.free(0)}, "metadata": {"data_part_compat": true}});
            if self.chance(0.5) {
                part["metadata"]["k"] = self.word();
            }
        }
        self.other(&mut part);
        part
    }

    fn role(&mut self) -> Value {
        let user = self.chance(0.5);
        match (self.v0, user) {
            (true, true) => "user",
            (true, false) => "agent",
            (false, true) => "ROLE_USER",
            (false, false) => "ROLE_AGENT",
        }
        .into()
    }

    pub(crate) fn message(&mut self) -> Value {
        let mut message = json!({"messageId": "m-1", "role": self.role()});
        message["parts"] = self.few(3, Self::part);
        if self.v0 {
            message["kind"] = "message".into();
        }
        self.maybe(&mut message, "taskId", 0.4, |_| "t-1".into());
        self.maybe(&mut message, "contextId", 0.4, |_| "c-1".into());
        self.maybe(&mut message, "extensions", 0.2, |made| {
            made.few(2, Self::word)
        });
        self.maybe(&mut message, "referenceTaskIds", 0.2, |made| {
            made.few(2, Self::word)
        });
        self.metadata(&mut message);
        self.other(&mut message);
        message
    }

    fn time(&mut self) -> Value {
        let up = [
            "2026-08-18T10:00:00+00:00",
            "2026-08-18T10:00:00.123456+00:00",
            "2026-08-18T10:00:00+02:00",
        ];
        let both = ["2026-08-18T10:00:00Z", "2026-08-18T10:00:00.120Z"];
        if self.v0 && self.chance(0.5) {
            self.one_of(&up).into()
        } else {
            self.one_of(&both).into()
        }
    }

    fn status(&mut self) -> Value {
        let (v0, v1) = self.one_of(&STATES);
        let mut status = json!({"state": if self.v0 { v0 } else { v1 }});
        if !self.v0 && v0 == "unknown" {
            // Writers of ProtoJSON leave it out.
            status = json!({});
        }
        self.maybe(&mut status, "message", 0.4, Self::message);
        self.maybe(&mut status, "timestamp", 0.6, Self::time);
        self.other(&mut status);
        status
    }

    fn artifact(&mut self) -> Value {
        let mut artifact = json!({"artifactId": "a-1"});
        artifact["parts"] = self.few(3, Self::part);
        self.maybe(&mut artifact, "name", 0.4, Self::word);
        self.maybe(&mut artifact, "description", 0.4, Self::word);
        self.maybe(&mut artifact, "extensions", 0.2, |made| {
            made.few(2, Self::word)
        });
        self.metadata(&mut artifact);
        self.other(&mut artifact);
        artifact
    }

    pub(crate) fn task(&mut self) -> Value {
        let mut task = json!({"id": "t-1", "contextId": "c-1", "status": self.status()});
        if self.v0 {
            task["kind"] = "task".into();
        }
        self.maybe(&mut task, "artifacts", 0.6, |made| {
            made.few(3, Self::artifact)
        });
        self.maybe(&mut task, "history", 0.5, |made| made.few(3, Self::message));
        self.metadata(&mut task);
        self.other(&mut task);
        task
    }

    /// A result of a send, or with `updates` an event of a stream.
    pub(crate) fn result(&mut self, updates: bool) -> Value {
        let (kind, wrapper) = self.one_of(
            &[
                ("task", "task"),
                ("message", "message"),
                ("status-update", "statusUpdate"),
                ("artifact-update", "artifactUpdate"),
            ][..if updates { 4 } else { 2 }],
        );
        let mut result = match kind {
            "task" => self.task(),
            "message" => self.message(),
            "status-update" => {
                json!({"taskId": "t-1", "contextId": "c-1", "status": self.status()})
            }
            _ => json!({"taskId": "t-1", "contextId": "c-1", "artifact": self.artifact()}),
        };
        if kind == "artifact-update" {
            self.maybe(&mut result, "append", 0.5, |_| true.into());
            self.maybe(&mut result, "lastChunk", 0.5, |_| true.into());
        }
        if kind.ends_with("update") {
            self.metadata(&mut result);
            self.other(&mut result);
        }
        if !self.v0 {
            return json!({wrapper: result});
        }
        result["kind"] = kind.into();
        if kind == "status-update" {
            let state = result["status"]["state"].as_str().unwrap();
            let last = ["completed", "canceled", "failed", "rejected"].contains(&state);
            result["final"] = last.into();
        }
        result
    }

    /// Parameters of a send.
    pub(crate) fn send(&mut self) -> Value {
        let mut send = json!({"message": self.message()});
        if self.chance(0.6) {
            let mut configuration = json!({});
            self.maybe(&mut configuration, "acceptedOutputModes", 0.5, |made| {
                made.few(2, Self::word)
            });
            let length = self.rng.random_range(0..4);
            self.maybe(&mut configuration, "historyLength", 0.4, |_| length.into());
            let name = if self.v0 {
                "blocking"
            } else {
                "returnImmediately"
            };
            self.maybe(&mut configuration, name, 0.5, |made| {
                made.chance(0.5).into()
            });
            self.other(&mut configuration);
            send["configuration"] = configuration;
        }
        self.metadata(&mut send);
        send
    }

    /// Parameters of a get.
    pub(crate) fn get(&mut self) -> Value {
        let mut get = json!({"id": self.word()});
        let length = self.rng.random_range(0..4);
        self.maybe(&mut get, "historyLength", 0.5, |_| length.into());
        get
    }

    /// Parameters of a cancellation.
    pub(crate) fn cancel(&mut self) -> Value {
        let mut cancel = json!({"id": self.word()});
        self.metadata(&mut cancel);
        cancel
    }

    /// A push configuration with its task.
    pub(crate) fn push(&mut self) -> Value {
        let mut config = json!({"url": "http://hook/"});
        self.maybe(&mut config, "id", 0.7, |_| "p-1".into());
        self.maybe(&mut config, "token", 0.5, Self::word);
        if self.chance(0.5) {
            let mut authentication = if self.v0 {
                json!({"schemes": self.few(2, Self::word)})
            } else {
                json!({"scheme": self.word()})
            };
            self.maybe(&mut authentication, "credentials", 0.5, Self::word);
            config["authentication"] = authentication;
        }
        if self.v0 {
            return json!({"taskId": "t-1", "pushNotificationConfig": config});
        }
        config["taskId"] = "t-1".into();
        config
    }
}
