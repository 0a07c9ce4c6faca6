//! Streams that break off and are taken up again (contract §6.3).

mod lingering;
mod parting;
mod replicas;
mod resumed;

use std::time::Duration;

use crate::harness::{
    Agent, Answer, Builder, Connection, Gateway, LAST_CHUNK, Pair, Request, SSE_HEAD, Seat, Step,
    chunk, unnumbered,
};

/// An agent that streams `events`.
async fn streaming(events: Vec<String>, end: Step) -> Agent {
    pausing(events, Step::Wait(Duration::ZERO), end).await
}

/// The same, with `pause` where they say nothing.
async fn pausing(events: Vec<String>, pause: Step, end: Step) -> Agent {
    Agent::scripted(move |_| {
        let mut steps = vec![Step::write(SSE_HEAD)];
        for event in &events {
            if event.is_empty() {
                steps.push(pause.clone());
            } else {
                steps.push(Step::Write(chunk(event)));
            }
        }
        steps.push(end.clone());
        steps
    })
    .await
}

fn ended() -> Step {
    Step::write(LAST_CHUNK)
}

/// Numbered data, one event each.
fn plain(range: std::ops::RangeInclusive<usize>) -> Vec<String> {
    range.map(|n| format!("data: {n}\n\n")).collect()
}

/// A caller, a target that streams, and who calls.
struct Case {
    gateway: Gateway,
    caller: Seat,
    target: Seat,
}

impl Case {
    async fn new(builder: Builder, agent: Agent) -> Self {
        let gateway = builder.start().await;
        let (caller, target) = gateway.pair(agent).await;
        Self {
            gateway,
            caller,
            target,
        }
    }

    /// On the embedded stores, with settings as for [`Builder::sets`].
    async fn with(settings: &str, agent: Agent) -> Self {
        Self::new(Builder::new(Pair::Embedded).sets(settings), agent).await
    }

    fn request(&self) -> Request {
        self.caller.calls(&self.target)
    }

    /// The whole stream, and its name.
    async fn whole(&self) -> (String, String) {
        let text = self.gateway.call(&self.request()).await.has(200).text();
        let name = unnumbered(&text).1;
        (text, name)
    }

    /// Reads a stream until it holds `until`, and leaves.
    async fn left_behind(&self, until: &str) -> (String, String) {
        let (_, seen, name) = self.reading(until).await;
        (seen, name)
    }

    /// The same, and stays.
    async fn reading(&self, until: &str) -> (Connection, String, String) {
        let mut connection = Connection::open(self.gateway.public).await;
        connection.ask(&self.request()).await;
        let head = connection.read_head().await.expect("a head");
        assert_eq!(head.status, 200, "{head:?}");
        let mut seen = String::new();
        while !seen.contains(until) {
            let chunk = connection.next_chunk().await.expect("an event");
            seen.push_str(std::str::from_utf8(&chunk).unwrap());
        }
        let name = unnumbered(&seen).1;
        (connection, seen, name)
    }

    fn resume(&self, stream: &str) -> Request {
        resume(stream).bearer(&self.caller.token)
    }

    /// A reader of it at `gateway`.
    async fn follow(&self, gateway: &Gateway, stream: &str) -> Connection {
        let mut reader = Connection::open(gateway.public).await;
        reader.ask(&self.resume(stream)).await;
        assert_eq!(reader.read_head().await.expect("a head").status, 200);
        reader
    }

    async fn resumed(&self, stream: &str, after: usize) -> Answer {
        self.gateway.call(&self.behind(stream, after)).await
    }

    /// Takes a stream up behind an event.
    fn behind(&self, stream: &str, after: usize) -> Request {
        let request = self.resume(stream);
        request.field("Last-Event-ID", format!("{stream}-{after}"))
    }
}

/// All that a reader still gets.
async fn rest(reader: &mut Connection) -> String {
    let mut seen = Vec::new();
    while let Some(mut chunk) = reader.next_chunk().await {
        seen.append(&mut chunk);
    }
    String::from_utf8(seen).unwrap()
}

fn resume(stream: &str) -> Request {
    Request::get(format!("/workspaces/target/streams/{stream}"))
}

/// The offset behind each event of a numbered stream.
fn ends(text: &str, stream: &str) -> Vec<usize> {
    let number = format!("id: {stream}-");
    let behind_line = |at: usize| at + text[at..].find('\n').unwrap() + 1;
    let numbers = text.match_indices(&number);
    let ends = numbers.map(|(at, _)| behind_line(behind_line(at)));
    ends.collect()
}
