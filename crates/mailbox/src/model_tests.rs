//! A model of the mailbox: gateways that crash, or stall until their leases are over, at any step. Nothing that was
//! acknowledged is lost, nothing is sent twice, and an outcome that was read stays.
//!
//! Faults that it must find, each planted alone:
//! - `jobs::PUT_BACK` without `fence = $2`: a stalled holder makes a call due that was sent. Sent twice.
//! - `Jobs::record_dispatch` that returns true without its statement: sent again once the lease is over. Sent twice.
//! - `mailbox::SETTLE` without `fence = $2`: a late answer takes the place of another call's with the key; without the
//!   states as well: a stalled holder replaces an outcome. Another outcome.
//! - `Jobs::accept` that returns before `Jobs::insert`, or `Inbox::write_batch` that answers before the commit and
//!   loses its batch: an acknowledged item is missing.
//! - `calls::UNKNOWN` that deletes the row: the key of a crashed gateway is claimed again. Sent twice.
//! - `calls::CLAIM` without its `WHERE`: two gateways that find a key free both claim it. Sent twice.
//! - `jobs::Claim` without the state or the lease in its conditions: a job is claimed that a live gateway has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::value::RawValue;

use super::calls::{Answer, Calls, Claim, Key, KeyStatus, Outcome, Source, call_hash};
use super::inbox::{Filter, Inbox, NewActivity, Source as Sender, Start};
use super::jobs::{Call, Content, Ending, Job, Jobs, NewJob, State};
use super::mailbox::{Mailbox, query};
use directory::events::Events;
use kernel::config::{self, Config, Live};
use kernel::ids::WorkspaceId;
use kernel::metrics::Metrics;
use kernel::rejection::{Delivery, Reason, Rejection};
use stores::coherence::Coherence;
use stores::db::Db;
use stores::shared::Shared;

/// Different keys of keyed calls.
const KEYS: u8 = 3;

/// One thing that happens. Numbers choose one of those that there are.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A caller has a call deferred.
    Accept,
    /// A gateway claims what is due.
    Claim,
    /// A gateway takes the next step with its job: records that it leaves, sends it, writes its end.
    Advance(u8),
    /// A gateway could not connect.
    PutBack(u8),
    /// A gateway is gone, with all that it had not written.
    Crash(u8),
    /// All leases are over. Their holders may only stall, and go on later.
    EndLeases,
    /// All leases are over, and a gateway claims what others have, which go on later.
    Overtake,
    /// A gateway gives up what was sent by one that is gone.
    GiveUpLost,
    /// A caller cancels a job.
    Cancel(u8),
    /// A caller makes a call with a key, which is sent if the key is free.
    CallKeyed(u8),
    /// The agent answers the call with that key.
    AnswerKeyed(u8),
    /// The process with all calls with keys is killed, and starts again.
    Restart,
    /// All keys lapse: calls with them are others. Their gateways only stall, and go on later.
    Lapse,
    /// The agent answers a call of a gateway that stalled.
    AnswerStalled(u8),
    /// A message for an agent that polls.
    Put,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        2 => Just(Event::Accept),
        3 => Just(Event::Claim),
        6 => any::<u8>().prop_map(Event::Advance),
        4 => any::<u8>().prop_map(Event::PutBack),
        1 => any::<u8>().prop_map(Event::Crash),
        2 => Just(Event::EndLeases),
        4 => Just(Event::Overtake),
        1 => Just(Event::GiveUpLost),
        1 => any::<u8>().prop_map(Event::Cancel),
        2 => (0..KEYS).prop_map(Event::CallKeyed),
        1 => (0..KEYS).prop_map(Event::AnswerKeyed),
        1 => Just(Event::Restart),
        1 => Just(Event::Lapse),
        2 => any::<u8>().prop_map(Event::AnswerStalled),
        1 => Just(Event::Put),
    ];
    prop::collection::vec(event, 1..60)
}

/// How far a gateway is with a job.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Claimed,
    Dispatched,
    Sent,
}

/// The gateways on one database, and what their callers and agents know.
struct World {
    folder: tempfile::TempDir,
    mailbox: Arc<Mailbox>,
    inbox: Arc<Inbox>,
    jobs: Arc<Jobs>,
    calls: Arc<Calls>,
    workers: Vec<(Job, Stage)>,
    /// Jobs whose lease is not over, of gateways that are gone as well.
    leased: BTreeSet<String>,
    claims: BTreeMap<u8, Claim>,
    /// Claims of keys that lapsed.
    stalled: Vec<(u8, Claim)>,
    /// Acknowledged jobs.
    accepted: Vec<String>,
    canceled: BTreeSet<String>,
    /// How often an agent got each job.
    sent: BTreeMap<String, u32>,
    /// The outcomes that callers were shown.
    outcomes: BTreeMap<String, (State, Option<String>)>,
    /// How often an agent got the call of each key.
    keyed: BTreeMap<u8, u32>,
    /// The answers that callers of each key got.
    answers: BTreeMap<u8, String>,
    /// Acknowledged messages, by id.
    messages: Vec<String>,
}

fn open_mailbox(folder: &tempfile::TempDir) -> Arc<Mailbox> {
    let mut config: Config = toml::from_str(config::load::DEFAULT).unwrap();
    let sql = format!("sqlite:{}", folder.path().join("gateway.db").display());
    config.stores.sql = sql.into();
    config.stores.shared = "memory".to_owned().into();
    config.stores.timeout = Duration::from_secs(60);
    let metrics = Arc::new(Metrics::new());
    let db = Db::open(&config.stores, Arc::clone(&metrics)).unwrap();
    let shared = Shared::open(&config.stores, Arc::clone(&metrics)).unwrap();
    Mailbox::new(Live::from(config), (db, shared), metrics)
}

fn target() -> WorkspaceId {
    WorkspaceId::parse("target").unwrap()
}

fn answer_of(text: &str) -> Answer {
    Answer {
        status: 200,
        fields: http::HeaderMap::new(),
        body: text.to_owned().into(),
        kept: true,
    }
}

fn key(number: u8) -> Key {
    let name = number.to_string();
    let call = call_hash("message/send", name.as_bytes());
    Key::new(("pm", "target"), (Source::Field, &name), call)
}

impl World {
    async fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mailbox = open_mailbox(&folder);
        mailbox.db.migrate().await.unwrap();
        let (shared, metrics) = (mailbox.shared.clone(), Arc::clone(&mailbox.metrics));
        let events = Events::new(mailbox.config.clone(), shared.clone(), Arc::clone(&metrics));
        let coherence = Coherence::new(shared, true, metrics);
        let inbox = Inbox::new(Arc::clone(&mailbox), Arc::clone(&events));
        let writes = Arc::clone(&inbox);
        tokio::spawn(async move { writes.run().await });
        Self {
            jobs: Jobs::new(Arc::clone(&mailbox), Arc::clone(&inbox), events, &coherence),
            calls: Calls::new(Arc::clone(&mailbox)),
            folder,
            mailbox,
            inbox,
            workers: Vec::new(),
            leased: BTreeSet::new(),
            claims: BTreeMap::new(),
            stalled: Vec::new(),
            accepted: Vec::new(),
            canceled: BTreeSet::new(),
            sent: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            keyed: BTreeMap::new(),
            answers: BTreeMap::new(),
            messages: Vec::new(),
        }
    }

    async fn apply(&mut self, event: Event) {
        let chosen = |number: u8, of: usize| (of > 0).then(|| usize::from(number) % of);
        match event {
            Event::Accept => self.accept().await,
            Event::Claim => self.claim().await,
            Event::Advance(number) => {
                if let Some(at) = chosen(number, self.workers.len()) {
                    self.advance(at).await;
                }
            }
            Event::PutBack(number) => {
                if let Some(at) = chosen(number, self.workers.len())
                    && self.workers[at].1 != Stage::Sent
                {
                    let (job, _) = self.workers.remove(at);
                    let row = self.jobs.find(&job.id).await.unwrap().unwrap();
                    if row.fence == job.fence {
                        self.leased.remove(&job.id);
                    }
                    self.jobs.put_back(&job, Duration::ZERO, true, 1).await;
                }
            }
            Event::Crash(number) => {
                if let Some(at) = chosen(number, self.workers.len()) {
                    self.workers.remove(at);
                }
            }
            Event::EndLeases => self.end_leases().await,
            Event::Overtake => {
                self.end_leases().await;
                self.claim().await;
            }
            Event::GiveUpLost => self.give_up_lost().await,
            Event::Cancel(number) => {
                if let Some(at) = chosen(number, self.accepted.len()) {
                    let id = &self.accepted[at];
                    if self.jobs.cancel(id).await.unwrap().is_some() {
                        self.canceled.insert(id.clone());
                    }
                }
            }
            Event::CallKeyed(number) => self.call_keyed(number).await,
            Event::AnswerKeyed(number) => self.answer_keyed(number).await,
            Event::Restart => self.restart(),
            Event::Lapse => self.lapse().await,
            Event::AnswerStalled(number) => {
                if let Some(at) = chosen(number, self.stalled.len()) {
                    let (number, claim) = self.stalled.remove(at);
                    let text = "late".to_owned();
                    if claim.record_answer(answer_of(&text), None).await {
                        let is_taken = self.keyed.contains_key(&number);
                        assert!(!is_taken, "a late answer took the place of another call's");
                        self.answers.insert(number, text);
                    }
                }
            }
            Event::Put => {
                let (text, from) = ("{}".to_owned(), "pm".to_owned());
                let new =
                    NewActivity::message(&target(), Sender::Canvas, from, "message/send", text);
                self.messages.push(self.inbox.put(new).await.unwrap().id);
            }
        }
    }

    async fn accept(&mut self) {
        let call = Call {
            body: self.accepted.len().to_string(),
            method: None,
            version_1_0: false,
            fields: Vec::new(),
            client: [127, 0, 0, 1].into(),
            hops: 1,
        };
        let new = NewJob {
            owner: "pm".into(),
            caller: String::new(),
            source: None,
            target: target(),
            content: Content::Call(Box::new(call)),
            idempotency_key: None,
            priority: 50,
            patience: Duration::from_secs(3600),
        };
        self.accepted.push(self.jobs.accept(&new).await.unwrap().id);
    }

    async fn claim(&mut self) {
        let claimed = self.jobs.claim_due(2).await.unwrap();
        for job in claimed {
            let is_free = self.leased.insert(job.id.clone());
            assert!(is_free, "{} was claimed during a lease", job.id);
            assert_eq!(job.state, State::Pending, "{} was claimed", job.id);
            self.workers.push((job, Stage::Claimed));
        }
    }

    /// Takes the next step with a job, as `data-plane/src/dispatch.rs` does.
    async fn advance(&mut self, at: usize) {
        let (job, stage) = self.workers.remove(at);
        match stage {
            Stage::Claimed => {
                if self.jobs.record_dispatch(&job).await.unwrap() {
                    self.leased.insert(job.id.clone());
                    self.workers.push((job, Stage::Dispatched));
                }
            }
            Stage::Dispatched => {
                *self.sent.entry(job.id.clone()).or_default() += 1;
                self.workers.push((job, Stage::Sent));
            }
            Stage::Sent => {
                let text = format!("\"{}\"", job.id);
                let result = RawValue::from_string(text).unwrap();
                self.jobs.finish_job(&job, &Ending::Result(result)).await;
            }
        }
    }

    async fn end_leases(&mut self) {
        self.leased.clear();
        let end = query!("UPDATE mailbox_items SET leased_until = 0 WHERE kind <> 'keyed'");
        self.mailbox.change("job_end_leases", end).await.unwrap();
    }

    async fn give_up_lost(&self) {
        for job in self.jobs.claim_lost(8).await.unwrap() {
            let is_leased = self.leased.contains(&job.id);
            assert!(!is_leased, "{} was given up during a lease", job.id);
            assert_eq!(job.state, State::Dispatched, "{} was given up", job.id);
            let why = Rejection::new(Reason::AgentProtocolError, "lost");
            let why = why.with_delivery(Delivery::Unknown);
            self.jobs.finish_job(&job, &Ending::Failed(why)).await;
        }
    }

    async fn call_keyed(&mut self, number: u8) {
        match self.calls.look_up(&key(number)).await {
            Ok(KeyStatus::Unclaimed(unclaimed)) => {
                // Another gateway finds the key free at the same moment.
                let other = Calls::new(Arc::clone(&self.mailbox));
                let also = other.look_up(&key(number)).await;
                let mut claimed = vec![self.calls.claim(unclaimed).await.unwrap()];
                if let Ok(KeyStatus::Unclaimed(also)) = also {
                    claimed.push(other.claim(also).await.unwrap());
                }
                for (claim, _) in claimed.into_iter().flatten() {
                    *self.keyed.entry(number).or_default() += 1;
                    self.claims.insert(number, claim);
                }
            }
            Ok(KeyStatus::Settled(Outcome::Whole(answer))) => {
                let text = String::from_utf8(answer.body.to_vec()).unwrap();
                assert_eq!(Some(&text), self.answers.get(&number), "another answer");
            }
            Ok(KeyStatus::Settled(Outcome::Refused(_)) | KeyStatus::Wait(_)) => {
                assert!(!self.answers.contains_key(&number), "an answer is lost");
            }
            Ok(KeyStatus::Settled(_)) | Err(_) => panic!("no outcome of this model"),
        }
    }

    async fn answer_keyed(&mut self, number: u8) {
        let Some(claim) = self.claims.remove(&number) else {
            return;
        };
        let text = format!("answer {number}");
        if claim.record_answer(answer_of(&text), None).await {
            self.answers.insert(number, text);
        }
    }

    fn restart(&mut self) {
        // Dropped, they would still write their end.
        std::mem::take(&mut self.claims)
            .into_values()
            .for_each(std::mem::forget);
        let mailbox = open_mailbox(&self.folder);
        mailbox.db.accept_schema();
        self.calls = Calls::new(mailbox);
    }

    async fn lapse(&mut self) {
        let lapse = query!("UPDATE mailbox_items SET expires_at = 0 WHERE kind = 'keyed'");
        self.mailbox.change("call_lapse", lapse).await.unwrap();
        self.stalled.extend(std::mem::take(&mut self.claims));
        self.keyed.clear();
        self.answers.clear();
        self.calls = Calls::new(Arc::clone(&self.mailbox));
    }

    async fn check(&mut self) {
        for id in &self.accepted {
            let job = self.jobs.find(id).await.unwrap();
            let job = job.unwrap_or_else(|| panic!("{id} was acknowledged and is lost"));
            let sent = self.sent.get(id).copied().unwrap_or_default();
            assert!(sent <= 1, "{id} was sent {sent} times");
            assert!(
                sent == 0 || !self.canceled.contains(id),
                "{id} was canceled and sent"
            );
            if job.state.is_final() {
                let answer = job
                    .result()
                    .or(job.error())
                    .map(|text| text.get().to_owned());
                let now = (job.state, answer);
                let before = self
                    .outcomes
                    .entry(id.clone())
                    .or_insert_with(|| now.clone());
                assert_eq!(*before, now, "the outcome of {id} changed");
                assert!(
                    job.state != State::Completed || sent == 1,
                    "{id} was never sent"
                );
            } else {
                assert!(!self.outcomes.contains_key(id), "{id} is open again");
            }
        }
        for (key, sent) in &self.keyed {
            assert_eq!(*sent, 1, "the call with key {key} was sent again");
        }
        let workspace = target();
        let page = self
            .inbox
            .read_page(&workspace, Filter::default(), Start::After(0), 500);
        let found: Vec<String> = page
            .await
            .unwrap()
            .items
            .into_iter()
            .map(|item| item.id)
            .collect();
        assert_eq!(found, self.messages, "the inbox is another");
    }

    /// Lets live gateways end everything. Each job has an outcome then.
    async fn end(&mut self) {
        self.workers.clear();
        while self.outcomes.len() < self.accepted.len() {
            self.end_leases().await;
            self.give_up_lost().await;
            self.claim().await;
            while !self.workers.is_empty() {
                self.advance(0).await;
            }
            self.check().await;
        }
        self.restart();
        for number in 0..KEYS {
            self.call_keyed(number).await;
        }
        self.check().await;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_crashes_nothing_acknowledged_is_lost_and_nothing_runs_twice(events in events()) {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        runtime.worker_threads(2).enable_all();
        runtime.build().unwrap().block_on(async {
            let mut world = World::open().await;
            for event in events {
                world.apply(event).await;
                world.check().await;
            }
            world.end().await;
        });
    }
}
