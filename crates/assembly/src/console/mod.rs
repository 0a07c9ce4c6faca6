//! The feed of the operators' console: outlines of workspaces and the traffic of all replicas, once a second.
//! Never content.
//!
//! Without readers it costs an exchange one load, and an open stream one entry in a map. With readers, each
//! replica counts and sends a sample per second to the replicas that have them; there the samples are merged
//! once for all readers, who are bounded in number and disconnected when they fall behind.

mod hub;
mod reader;
mod rows;
mod sample;
mod tally;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::timeout;

use self::hub::Hub;
use self::rows::Changes;
use self::sample::{Sample, SampleFlaw, UNKNOWN};
use self::tally::Tally;
use access::workspace::{Timestamp, Workspaces};
use kernel::deadline::ticks;
use kernel::drain::Drain;
use kernel::ids::{ReplicaId, WorkspaceId};
use kernel::metrics::{LostSample, Metrics};
use kernel::telemetry::Chain;
use stores::coherence::Coherence;
use stores::db::Db;
use stores::shared::{Notice, Shared};

pub use self::reader::{FeedOverrun, READERS_MAX, Reader};
pub use self::rows::ROWS_MAX;
pub use self::tally::{ExchangeParties, ExchangeSummary, OpenStream};

/// The channel on which replicas exchange samples and announce readers.
const CHANNEL: &str = "gw:console";

/// On the channel: the prefix of a replica that has readers.
const WATCHING: &str = "watching:";

/// Interval of samples.
const EVERY: Duration = Duration::from_secs(1);

/// Seconds after which all open streams are sent, instead of those that changed.
const STREAMS_EVERY: u32 = 15;

/// Time limit of the last sample.
const GOODBYE_MAX: Duration = Duration::from_millis(500);

/// Interval of health checks of the stores.
const HEALTH_EVERY: Duration = Duration::from_secs(5);

/// Counts traffic and feeds the console's readers.
pub struct Console {
    metrics: Arc<Metrics>,
    db: Db,
    shared: Shared,
    workspaces: Workspaces,
    coherence: Arc<Coherence>,
    drain: Arc<Drain>,
    replica: ReplicaId,
    started: Timestamp,
    tally: Arc<Tally>,
    changes: Arc<Changes>,
    hub: Hub,
    sql_answers: AtomicBool,
    shared_answers: AtomicBool,
    /// True once the last sample was sent.
    gone: AtomicBool,
}

impl Console {
    /// Creates it; does not touch the stores.
    pub fn new(
        (db, shared, workspaces): (Db, Shared, Workspaces),
        coherence: &Arc<Coherence>,
        (drain, metrics, replica): (Arc<Drain>, Arc<Metrics>, ReplicaId),
    ) -> Arc<Self> {
        let changes = Arc::<Changes>::default();
        let noted = Arc::clone(&changes);
        coherence.on_invalidation(move |what| {
            noted.record_invalidation(&what);
            std::future::ready(())
        });
        Arc::new(Self {
            metrics,
            db,
            shared,
            workspaces,
            coherence: Arc::clone(coherence),
            drain,
            replica,
            started: Timestamp::now(),
            tally: Arc::default(),
            changes,
            hub: Hub::default(),
            sql_answers: AtomicBool::new(true),
            shared_answers: AtomicBool::new(true),
            gone: AtomicBool::new(false),
        })
    }

    /// Counts an exchange that has ended, if there is a reader. `tell` returns its details, and is called only
    /// then.
    pub fn count_exchange(
        &self,
        ends: ExchangeParties<'_>,
        refused: bool,
        tell: impl FnOnce() -> ExchangeSummary,
    ) {
        if self.changes.audience.had_readers() {
            self.tally.count_exchange(ends, refused, tell);
        }
    }

    /// Counts a stream of `target` for as long as the value lives.
    pub fn open_stream(&self, target: &WorkspaceId) -> OpenStream {
        OpenStream::new(&self.tally, target)
    }

    /// Counts and publishes, as long as there are readers. A background task; runs until it is dropped.
    pub async fn run(self: &Arc<Self>) {
        tokio::join!(
            self.run_ticks(),
            self.receive_samples(),
            self.announce_readers(),
            self.follow_rows(),
            self.check_stores(),
        );
    }

    async fn run_ticks(&self) {
        let mut tick = ticks(EVERY);
        let mut seconds: u32 = 0;
        loop {
            tick.tick().await;
            let audience = &self.changes.audience;
            if !audience.refresh_presence() {
                if seconds > 0 {
                    self.hub.clear();
                    self.tally.take_second();
                }
                seconds = 0;
                continue;
            }
            let sample = self.take_sample(seconds.is_multiple_of(STREAMS_EVERY));
            seconds = seconds.wrapping_add(1).max(1);
            if audience.is_announced() && !self.gone.load(Ordering::Acquire) {
                self.publish_sample(sample.clone()).await;
            }
            if audience.is_here() {
                self.hub.add_own_sample(sample);
                let known = |id: &str| self.changes.is_known(id);
                self.hub.send_tick(Timestamp::now(), known);
            }
        }
    }

    async fn publish_sample(&self, sample: Sample) {
        let (text, left_out) = sample.encode();
        if left_out {
            self.count_lost_sample(LostSample::Cut);
        }
        if let Err(error) = self.shared.publish(CHANNEL, &text).await {
            tracing::debug!(error = %Chain(&error), "failed to publish a console sample to other replicas");
        }
    }

    /// Notifies replicas with readers that this one shuts down, so that its state is no longer shown.
    pub async fn send_goodbye(&self) {
        self.gone.store(true, Ordering::Release);
        if !self.shared.is_embedded() && self.changes.audience.is_announced() {
            let goodbye = self.publish_sample(self.take_sample(true).into_last());
            let _ = timeout(GOODBYE_MAX, goodbye).await;
        }
    }

    fn count_lost_sample(&self, why: LostSample) {
        self.metrics.queues.samples_lost[why].inc();
    }

    /// Returns the sample since the last call.
    fn take_sample(&self, all_streams: bool) -> Sample {
        let second = self.tally.take_second();
        let counts = second.counts.into_iter();
        let counts = counts.map(|(id, counts)| (id.as_str().to_owned(), counts));
        let others = (second.others.0 > 0).then(|| (UNKNOWN.to_owned(), second.others));
        let counts = counts
            .chain(others)
            .map(|(id, (exchanges, refusals))| (id, exchanges, refusals));
        let sent = second.sent.into_iter();
        let streams = self.tally.stream_counts(all_streams).into_iter();
        Sample {
            replica: self.replica.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: self.started.0,
            at: Timestamp::now().0,
            sql: self.sql_answers.load(Ordering::Relaxed),
            shared: self.shared_answers.load(Ordering::Relaxed),
            draining: self.drain.is_leaving(),
            gone: false,
            open: self.metrics.open_exchanges.get(),
            counts: counts.collect(),
            sent: sent
                .map(|(id, exchanges)| (id.as_str().to_owned(), exchanges))
                .collect(),
            streams: streams
                .map(|(id, open)| (id.as_str().to_owned(), open))
                .collect(),
            all_streams,
            told: second.told,
            more: second.more,
        }
    }

    /// Receives samples and announcements of other replicas.
    async fn receive_samples(&self) {
        if self.shared.is_embedded() {
            return;
        }
        let mut told = self.shared.subscribe(CHANNEL);
        loop {
            let Notice::Message(text) = told.next().await else {
                // Without a link samples are missed, as on a replica without readers.
                continue;
            };
            if let Some(replica) = text.strip_prefix(WATCHING) {
                if replica != self.replica.as_str() {
                    self.changes.audience.record_announcement();
                }
            } else if self.changes.audience.is_here() {
                match Sample::parse(&text) {
                    Ok(sample) if sample.replica == self.replica.as_str() => {}
                    Ok(sample) => {
                        if !self.hub.add_sample(sample) {
                            self.count_lost_sample(LostSample::Full);
                        }
                    }
                    Err(flaw) => {
                        tracing::debug!(
                            ?flaw,
                            bytes = text.len(),
                            "console sample of another replica discarded"
                        );
                        self.count_lost_sample(match flaw {
                            SampleFlaw::TooLong => LostSample::TooLong,
                            SampleFlaw::Malformed => LostSample::Malformed,
                        });
                    }
                }
            }
        }
    }

    /// Announces readers of this replica to all other replicas, at once and then regularly.
    async fn announce_readers(&self) {
        if self.shared.is_embedded() {
            return;
        }
        let announcement = format!("{WATCHING}{}", self.replica);
        let audience = &self.changes.audience;
        audience
            .announce_readers(&self.shared, CHANNEL, &announcement)
            .await;
    }

    async fn check_stores(&self) {
        let mut tick = ticks(HEALTH_EVERY);
        loop {
            tick.tick().await;
            if self.changes.audience.had_readers() {
                let (sql, shared) = tokio::join!(self.db.ping(), self.shared.ping());
                self.sql_answers.store(sql.is_ok(), Ordering::Relaxed);
                self.shared_answers.store(shared.is_ok(), Ordering::Relaxed);
            }
        }
    }
}
