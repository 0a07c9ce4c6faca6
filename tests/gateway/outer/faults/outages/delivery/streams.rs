//! Streams that break off while Redis dies, and are taken up at the other gateway.

use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::time::timeout;

use super::work::call;
use super::{ANSWERED_WITHIN, Client};
use crate::harness::{
    Agent, Answer, Connection, LAST_CHUNK, Request, SSE_HEAD, Step, chunk, ok_json, unnumbered,
};
use crate::jobs;

/// Events of one stream.
const EVENTS: usize = 30;

/// Between two of them.
const EVENT_PAUSE: Duration = Duration::from_millis(25);

/// Whoever has a stream and is gone is missed after 8 s.
const OVER_WITHIN: Duration = Duration::from_secs(60);

/// How a stream was taken up at the other gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Whole,
    /// With an event that says so.
    Gap,
    /// It broke off, and its last event says so.
    Lost,
    /// There it was not known any more; where it ran it was whole.
    Unknown,
}

/// Answers a call by its text, and streams where it is asked to.
pub(super) async fn agent() -> Agent {
    Agent::scripted(|request| {
        let call: Value = serde_json::from_slice(&request.body).unwrap();
        if call["method"] == "message/stream" {
            let mut steps = vec![Step::write(SSE_HEAD)];
            for event in events() {
                steps.push(Step::Write(chunk(event)));
                steps.push(Step::Wait(EVENT_PAUSE));
            }
            steps.push(Step::write(LAST_CHUNK));
            return steps;
        }
        let answer = ok_json(&jobs::answer(request).to_string());
        vec![Step::Wait(Duration::from_millis(5)), Step::Write(answer)]
    })
    .await
}

fn events() -> impl Iterator<Item = String> {
    (1..=EVENTS).map(|n| format!("data: {n}\n\n"))
}

impl Client {
    /// Begins streams at one gateway, leaves them anywhere, and takes them up at the other.
    pub(super) async fn take_up_streams(self) {
        while self.goes_on() {
            let (which, leave) = uuid::Uuid::new_v4().as_u64_pair();
            let first = usize::from(which % 2 == 0);
            let leave = 1 + usize::try_from(leave % (EVENTS as u64 - 1)).unwrap();
            if let Some(taken) = self.taken_up_elsewhere(first, leave).await {
                self.told.streams.lock().unwrap().push(taken);
            }
        }
    }

    /// Begins a stream at one gateway, leaves it after so many events, and takes it up at the other. `None`:
    /// refused.
    pub(super) async fn taken_up_elsewhere(&self, first: usize, leave: usize) -> Option<Taken> {
        let seen = self.begun(first, leave).await?;
        let stream = unnumbered(&seen).1;
        let had = seen.matches("data: ").count();
        if let Some(rest) = self.taken_up(1 - first, &stream, had).await {
            return Some(judge(&seen, &rest));
        }
        let here = self.taken_up(first, &stream, had).await;
        let here = here.expect("where it runs, nothing but the gateway is asked");
        assert_eq!(judge(&seen, &here), Taken::Whole, "{here}");
        Some(Taken::Unknown)
    }

    /// The first events of a new stream. `None`: refused.
    async fn begun(&self, gateway: usize, leave: usize) -> Option<String> {
        let text = self.text("stream");
        let request = call("target", "message/stream", &text).bearer(&self.token);
        let mut connection = Connection::open(self.gateways[gateway]).await;
        connection.ask(&request).await;
        let head = timeout(ANSWERED_WITHIN, connection.read_head()).await;
        let head = head.expect("a head in time").expect("a head");
        if head.status != 200 {
            let answer = connection.read_body(head).await;
            answer.refuses(503, "store_unavailable");
            return None;
        }
        let mut seen = String::new();
        while seen.matches("data: ").count() < leave {
            // No event waits for a store.
            let chunk = timeout(ANSWERED_WITHIN, connection.next_chunk()).await;
            let chunk = chunk.expect("an event in time").expect("an event");
            seen.push_str(std::str::from_utf8(&chunk).unwrap());
        }
        Some(seen)
    }

    /// What comes of it after an event. `None`: it is not known there.
    async fn taken_up(&self, gateway: usize, stream: &str, had: usize) -> Option<String> {
        let request = Request::get(format!("/workspaces/target/streams/{stream}"))
            .field("Last-Event-ID", format!("{stream}-{had}"))
            .bearer(&self.token);
        let began = Instant::now();
        loop {
            let mut connection = Connection::open(self.gateways[gateway]).await;
            let answer = timeout(OVER_WITHIN, connection.call(&request)).await;
            let answer: Answer = answer.unwrap_or_else(|_| panic!("{stream} never ends"));
            if matches!(answer.status, 200 | 404) {
                let is_there = answer.status == 200;
                assert!(!is_there || answer.whole, "cut off: {}", answer.text());
                return is_there.then(|| answer.text());
            }
            assert_eq!(answer.reason(), "store_unavailable", "{}", answer.text());
            assert!(began.elapsed() < OVER_WITHIN, "refused for ever");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// What the two parts of a stream are together. Anything else than what may be fails.
fn judge(seen: &str, rest: &str) -> Taken {
    let whole = format!("{seen}{rest}");
    if rest.contains("event: gap\n") {
        let numbers = numbers(&whole);
        assert!(numbers.is_sorted_by(|a, b| a < b), "{whole}");
        let number = |text: &str| text[..text.find('}').unwrap()].parse::<usize>().unwrap();
        let missed: usize = rest.split("{\"missed\":").skip(1).map(number).sum();
        let lost = rest.contains("AGENT_PROTOCOL_ERROR");
        assert!(lost || missed + numbers.len() == EVENTS, "{whole}");
        return Taken::Gap;
    }
    if rest.contains("AGENT_PROTOCOL_ERROR") {
        assert!(rest.contains("\"delivered\":\"unknown\""), "{rest}");
        let numbers = numbers(&whole);
        assert!(numbers.iter().copied().eq(1..=numbers.len()), "{whole}");
        return Taken::Lost;
    }
    assert_eq!(unnumbered(&whole).0, events().collect::<String>());
    Taken::Whole
}

/// The numbers that the agent sent, as far as they came.
fn numbers(text: &str) -> Vec<usize> {
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter_map(|data| data.parse().ok()).collect()
}
