//! SIGKILL at any moment, under load: what was acknowledged is there afterwards, and no agent ran a call with a key
//! twice, whichever generation its caller speaks. `A2A_GATEWAY_KILLS=200 cargo test --test gateway -- kills::
//! --nocapture` prints what became of it.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "how often, and what became of it, is for whoever runs it by hand"
)]

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::net::TcpStream;

use super::{inbox, runs};
use crate::harness::{
    Agent, Answer, Builder, Connection, Pair, Request, Step, card, card_1_0, ok_json, until_found,
    until_holds,
};
use crate::jobs;
use crate::on_both_pairs;

/// How often the gateway is killed, if nothing else is asked for.
const KILLS: usize = 8;

/// Of each kind of work so many go on at once.
const AT_ONCE: usize = 4;

/// So many ask again at once when nobody kills any more: each may wait for the lease of one that is dead.
const ASKING_AT_ONCE: usize = 32;

/// How long it may take until it is known what became of a call with a key.
const KNOWN_WITHIN: Duration = Duration::from_secs(120);

/// What was acknowledged, and what became of calls with a key.
#[derive(Default)]
struct Told {
    messages: Mutex<Vec<String>>,
    delegations: Mutex<Vec<(String, String)>>,
    /// By the text of the call: whether it was answered; else its outcome was said to be unknown.
    keyed: Mutex<HashMap<String, bool>>,
    /// Calls with a key whose answer nobody got.
    unanswered: Mutex<VecDeque<String>>,
    /// How many of them were asked about again.
    asked_again: AtomicUsize,
    next: AtomicUsize,
    over: AtomicBool,
}

/// Who works, and where.
#[derive(Clone)]
struct Client {
    to: SocketAddr,
    token: String,
    told: Arc<Told>,
}

impl Client {
    /// One request; `None` where the connection broke before the answer was whole.
    async fn call(&self, request: Request) -> Option<Answer> {
        let mut connection = Connection::over(self.connect().await);
        let wire = request.bearer(&self.token).wire(&self.to.to_string());
        connection.try_send(&wire).await.ok()?;
        connection.try_answer().await.filter(|answer| answer.whole)
    }

    /// Waits for a gateway that listens: what never left is no case.
    async fn connect(&self) -> TcpStream {
        let deadline = Instant::now() + KNOWN_WITHIN;
        loop {
            match TcpStream::connect(self.to).await {
                Ok(stream) => return stream,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn text(&self, kind: &str) -> String {
        format!("{kind}-{}", self.told.next.fetch_add(1, Ordering::Relaxed))
    }

    fn goes_on(&self) -> bool {
        !self.told.over.load(Ordering::Relaxed)
    }

    async fn send_messages(self) {
        while self.goes_on() {
            let request = message("poller", &self.text("message"));
            if let Some(answer) = self.call(request).await
                && answer.status == 200
            {
                let id = answer.json()["activity_id"].as_str().unwrap().to_owned();
                self.told.messages.lock().unwrap().push(id);
            }
        }
    }

    async fn delegate(self) {
        while self.goes_on() {
            let text = self.text("delegation");
            let body = json!({"target_id": "target", "task": text, "idempotency_key": text});
            let request = Request::post("/workspaces/caller/delegate", body.to_string());
            if let Some(answer) = self.call(request).await
                && answer.status == 202
            {
                let id = answer.json()["delegation_id"].as_str().unwrap().to_owned();
                self.told.delegations.lock().unwrap().push((id, text));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Sends calls with a key. Whose answer does not come is left for those who ask again: at a store that
    /// others may share, the next one to hear what became of it waits for the lease of the dead.
    async fn call_with_keys(self) {
        while self.goes_on() {
            let text = self.text("keyed");
            match self.ask(&text).await {
                Some(answered) => self.known(text, answered),
                None => self.unanswered().push_back(text),
            }
        }
    }

    /// Asks again what became of calls, as often as the gateway dies over it.
    async fn ask_again(self) {
        while self.goes_on() {
            tokio::time::sleep(Duration::from_millis(10)).await;
            let Some(text) = self.unanswered().pop_front() else {
                continue;
            };
            self.told.asked_again.fetch_add(1, Ordering::Relaxed);
            match self.ask(&text).await {
                Some(answered) => self.known(text, answered),
                None => self.unanswered().push_back(text),
            }
        }
    }

    /// Asks until nothing is left, and then once more: what was said stays.
    async fn ask_to_the_end(self) {
        let deadline = Instant::now() + KNOWN_WITHIN;
        while let Some(text) = self.take_unanswered() {
            self.told.asked_again.fetch_add(1, Ordering::Relaxed);
            let answered = loop {
                assert!(
                    Instant::now() < deadline,
                    "nobody says what became of {text}"
                );
                if let Some(answered) = self.ask(&text).await {
                    break answered;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            };
            assert_eq!(self.ask(&text).await, Some(answered), "{text}");
            self.known(text, answered);
        }
    }

    /// Whether a call with a key was answered, or is said to be unknown; `None`: nobody said.
    async fn ask(&self, text: &str) -> Option<bool> {
        let request = message("target", text).field("Idempotency-Key", text);
        let answer = self.call(request).await?;
        let delivered = || answer.fact("delivered");
        match answer.status {
            200 => Some(true),
            502 if delivered().as_deref() == Some("unknown") => Some(false),
            503 => None,
            _ => panic!("{text}: {} {}", answer.status, answer.text()),
        }
    }

    fn known(&self, text: String, answered: bool) {
        self.told.keyed.lock().unwrap().insert(text, answered);
    }

    fn unanswered(&self) -> MutexGuard<'_, VecDeque<String>> {
        self.told.unanswered.lock().unwrap()
    }

    fn take_unanswered(&self) -> Option<String> {
        self.unanswered().pop_front()
    }
}

/// A message, in a generation that its text decides: the same for the same text.
fn message(target: &str, text: &str) -> Request {
    let (method, params) = if text.ends_with(['0', '2', '4', '6', '8']) {
        let parts = json!([{"kind": "text", "text": text}]);
        let message = json!({"kind": "message", "messageId": text, "role": "user", "parts": parts});
        ("message/send", json!({"message": message}))
    } else {
        let message = json!({"messageId": text, "role": "ROLE_USER", "parts": [{"text": text}]});
        // Without it a call of 1.0 waits for the reply of an agent that polls.
        let configuration = json!({"returnImmediately": true});
        let params = json!({"message": message, "configuration": configuration});
        ("SendMessage", params)
    };
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    Request::post(format!("/workspaces/{target}/a2a"), call.to_string())
}

on_both_pairs! {
    async fn what_was_acknowledged_is_there_and_no_agent_runs_a_call_with_a_key_twice(pair: Pair) {
        let kills = std::env::var("A2A_GATEWAY_KILLS").ok();
        let kills = kills.map_or(KILLS, |text| text.parse().expect("a number"));
        let builder = Builder::new(pair).process();
        let builder = builder.sets("inbox.max_messages=10000000 delegation.max_pending=100000");
        let mut gateway = builder.sets("limits.target_concurrency=64").start().await;
        let caller = gateway.seat("caller", "", Agent::json("{}").await).await;
        let agent = || {
            Agent::scripted(|request| {
                let answer = ok_json(&jobs::answer(request).to_string());
                vec![Step::Wait(Duration::from_millis(3)), Step::Write(answer)]
            })
        };
        // Half of the calls are translated: callers speak both generations.
        let card = match pair {
            Pair::Embedded => card("target"),
            Pair::External => card_1_0("target"),
        };
        let target = gateway.seat_of(card, "", agent().await).await;
        let mut instances = vec![target.agent];
        // Nobody beats while this goes on.
        for id in ["caller", "target"] {
            gateway.patch(id, json!({"liveness": "assumed"})).await;
        }
        if let Pair::External = pair {
            instances.extend([agent().await, agent().await]);
            let urls: Vec<_> = instances.iter().map(Agent::url).collect();
            gateway.patch("target", json!({"urls": urls})).await.has(200);
        }
        let poller = gateway.poller("poller").await;
        let told = Arc::new(Told::default());
        let client = Client { to: gateway.public, token: caller.token.clone(), told: Arc::clone(&told) };
        let mut work = tokio::task::JoinSet::new();
        for _ in 0..AT_ONCE {
            work.spawn(client.clone().send_messages());
            work.spawn(client.clone().delegate());
            work.spawn(client.clone().call_with_keys());
            work.spawn(client.clone().ask_again());
        }
        for _ in 0..kills {
            let (spread, _) = uuid::Uuid::new_v4().as_u64_pair();
            tokio::time::sleep(Duration::from_millis(20 + spread % 400)).await;
            // Kills, and starts it again.
            gateway.restart().await;
        }
        let is_acknowledged = async || {
            !told.messages.lock().unwrap().is_empty() && !told.delegations.lock().unwrap().is_empty()
        };
        until_holds("something is acknowledged", is_acknowledged).await;
        told.over.store(true, Ordering::Relaxed);
        while let Some(ended) = work.join_next().await {
            ended.expect("no client fails");
        }
        for _ in 0..ASKING_AT_ONCE {
            work.spawn(client.clone().ask_to_the_end());
        }
        while let Some(ended) = work.join_next().await {
            ended.expect("it is said what became of each");
        }
        let messages = std::mem::take(&mut *told.messages.lock().unwrap());
        let poller = Client { token: poller, ..client.clone() };
        let inbox = inbox(async |request| poller.call(request).await.expect("an answer")).await;
        let there: HashSet<&str> = inbox.iter().filter_map(|item| item["id"].as_str()).collect();
        let lost = messages.iter().filter(|id| !there.contains(id.as_str())).count();
        assert_eq!(lost, 0, "of {} messages", messages.len());
        let delegations = std::mem::take(&mut *told.delegations.lock().unwrap());
        let states = states(&client, &delegations).await;
        let runs = runs(&instances);
        for (text, count) in &runs {
            assert!(*count <= 1, "{text} ran {count} times");
        }
        for (id, text) in &delegations {
            let completed = states[id] == "completed";
            let ran = runs.get(text).copied().unwrap_or_default();
            assert!(ran == 1 || !completed, "{text} is completed and did not run");
        }
        let keyed = std::mem::take(&mut *told.keyed.lock().unwrap());
        for (text, answered) in &keyed {
            let ran = runs.get(text).copied().unwrap_or_default();
            assert!(ran == 1 || !answered, "{text} was answered and ran {ran} times");
        }
        let unknown = keyed.values().filter(|answered| !**answered).count();
        let of = |state: &str| states.values().filter(|one| *one == state).count();
        println!(
            "{pair:?}: {kills} kills; {} messages acknowledged, {lost} lost, {} in the inbox; {} delegations accepted: {} completed, \
             {} failed, none ran twice; {} calls with a key: {} answered, {unknown} said to be unknown, \
             none ran twice, {} times one was asked about again",
            messages.len(), inbox.len(), delegations.len(), of("completed"), of("failed"), keyed.len(), keyed.len() - unknown,
            told.asked_again.load(Ordering::Relaxed),
        );
        assert!(!messages.is_empty() && !delegations.is_empty() && !keyed.is_empty());
    }
}

/// What became of each delegation, waited for.
async fn states(client: &Client, delegations: &[(String, String)]) -> HashMap<String, String> {
    let mut states = HashMap::new();
    for (id, _) in delegations {
        let path = format!("/workspaces/caller/delegations/{id}");
        let ends = format!("{id} ends");
        let state = until_found(&ends, async || {
            let answer = client.call(Request::get(&*path)).await;
            let json = answer.expect("an answer").has(200).json();
            let state = json["status"].as_str().unwrap().to_owned();
            (!matches!(&*state, "pending" | "dispatched")).then_some(state)
        });
        states.insert(id.clone(), state.await);
    }
    states
}
