//! The sample of one second that replicas exchange: bounded when it is sent, and validated when it is
//! received, since any writer to the store can send one.

use serde::{Deserialize, Serialize};

use super::tally::{ExchangeSummary, TOLD_ALL_MAX};
use access::workspace::Timestamp;
use kernel::ids::WorkspaceId;

/// Bytes of one at most.
pub(super) const BYTES_MAX: usize = 1 << 20;

/// Characters of a text in one: the longest is a caller, as records name them.
const WORD_MAX: usize = 512;

/// Difference of another replica's clock at most, in milliseconds: a day.
const CLOCKS_APART_MAX: u64 = 24 * 60 * 60 * 1000;

/// Stands in counts for all ids that no workspace has. No workspace can have this id.
pub(super) const UNKNOWN: &str = "unknown:";

/// The sample of one second of a replica.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Sample {
    pub(super) replica: String,
    pub(super) version: String,
    /// Time of its start, in milliseconds since 1970.
    pub(super) started: i64,
    /// Its clock.
    pub(super) at: i64,
    /// True if SQL answers.
    pub(super) sql: bool,
    pub(super) shared: bool,
    pub(super) draining: bool,
    /// True for the last sample: the replica shuts down.
    #[serde(default)]
    pub(super) gone: bool,
    /// Exchanges in progress.
    pub(super) open: i64,
    /// Exchanges and refusals by workspace that was called.
    pub(super) counts: Vec<(String, u32, u32)>,
    /// Exchanges by workspace that called.
    #[serde(default)]
    pub(super) sent: Vec<(String, u32)>,
    /// Open streams by workspace: those that changed, or all.
    pub(super) streams: Vec<(String, u32)>,
    pub(super) all_streams: bool,
    pub(super) told: Vec<ExchangeSummary>,
    pub(super) more: u64,
}

/// The reason why a sample is discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SampleFlaw {
    TooLong,
    Malformed,
}

impl Sample {
    /// Parses a sample of another replica.
    ///
    /// # Errors
    /// When it is longer than samples of this release are, or not of their form.
    pub(super) fn parse(text: &str) -> Result<Self, SampleFlaw> {
        if text.len() > BYTES_MAX {
            return Err(SampleFlaw::TooLong);
        }
        let sample: Self = serde_json::from_str(text).map_err(|_| SampleFlaw::Malformed)?;
        if sample.is_sound() {
            Ok(sample)
        } else {
            Err(SampleFlaw::Malformed)
        }
    }

    fn is_sound(&self) -> bool {
        let is_id = |id: &str| WorkspaceId::parse(id).is_ok();
        is_id(&self.replica)
            && self.version.len() <= WORD_MAX
            && self.told.len() <= TOLD_ALL_MAX
            && is_near(self.at)
            // A replica may run for years, but its start is not in the future.
            && 0 <= self.started
            && (self.started < self.at || is_near(self.started))
            && self.told.iter().all(|told| is_short(told) && is_near(told.at))
            && self.streams.iter().all(|(id, _)| is_id(id))
            && self.sent.iter().all(|(id, _)| is_id(id))
            && self
                .counts
                .iter()
                .all(|(id, ..)| id == UNKNOWN || is_id(id))
    }

    /// Returns the sample as text, and whether something was left out to make it short enough.
    pub(super) fn encode(mut self) -> (String, bool) {
        let mut left_out = false;
        loop {
            // Strings, numbers and booleans: serialization cannot fail.
            let text = serde_json::to_string(&self).unwrap_or_default();
            if text.len() <= BYTES_MAX {
                return (text, left_out);
            }
            left_out = true;
            let kept = self.told.len() / 2;
            self.more = self.more.saturating_add((self.told.len() - kept) as u64);
            self.told.truncate(kept);
            self.counts.truncate(self.counts.len() / 2);
            self.sent.truncate(self.sent.len() / 2);
            self.streams.truncate(self.streams.len() / 2);
        }
    }

    /// Returns the sample as the last one of this replica.
    pub(super) fn into_last(self) -> Self {
        Self {
            gone: true,
            // An older release, which does not know `gone`, at least drops the streams.
            streams: Vec::new(),
            all_streams: true,
            ..self
        }
    }
}

/// True if a time, in milliseconds since 1970, is about now.
fn is_near(at: i64) -> bool {
    Timestamp::now().0.abs_diff(at) <= CLOCKS_APART_MAX
}

fn is_short(passed: &ExchangeSummary) -> bool {
    let words = [
        Some(&passed.id),
        passed.caller.as_ref(),
        passed.target.as_ref(),
        Some(&passed.method),
        passed.rule.as_ref(),
        passed.bridged.as_ref(),
        Some(&passed.outcome),
    ];
    words
        .into_iter()
        .flatten()
        .all(|word| word.len() <= WORD_MAX)
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::tally::tests::passed;
    use super::*;

    pub(in crate::console) fn sample(replica: &str) -> Sample {
        Sample {
            replica: replica.to_owned(),
            version: "1".to_owned(),
            started: 1,
            at: Timestamp::now().0,
            sql: true,
            shared: true,
            draining: false,
            gone: false,
            open: 1,
            counts: vec![("a".to_owned(), 2, 1)],
            sent: vec![("b".to_owned(), 2)],
            streams: vec![("a".to_owned(), 1)],
            all_streams: true,
            told: vec![passed(false)],
            more: 3,
        }
    }

    #[test]
    fn what_replicas_tell_comes_back_and_nothing_else_does() {
        let (text, left_out) = sample("x").encode();
        assert!(!left_out);
        assert_eq!(Sample::parse(&text).unwrap().counts, sample("x").counts);
        let older = text.replace(r#""gone":false,"#, "");
        assert!(!Sample::parse(&older).unwrap().gone, "an older replica's");
        let flaw = |change: &dyn Fn(&mut Sample)| {
            let mut sample = sample("x");
            change(&mut sample);
            Sample::parse(&serde_json::to_string(&sample).unwrap()).unwrap_err()
        };
        let long = "a".repeat(WORD_MAX + 1);
        let days = |n: i64| Timestamp::now().0 + n * 24 * 60 * 60 * 1000;
        let changes: [&dyn Fn(&mut Sample); 15] = [
            &|sample| sample.told[0].at = days(2),
            &|sample| sample.told[0].at = days(-2),
            &|sample| sample.told[0].at = i64::MIN,
            &|sample| sample.at = i64::MAX,
            &|sample| sample.at = days(-2),
            &|sample| sample.started = days(2),
            &|sample| sample.started = -1,
            &|sample| sample.replica = "a b".to_owned(),
            &|sample| sample.version.clone_from(&long),
            &|sample| sample.counts[0].0 = "a/b".to_owned(),
            &|sample| sample.streams[0].0 = UNKNOWN.to_owned(),
            &|sample| sample.told[0].id.clone_from(&long),
            &|sample| sample.told[0].caller = Some(long.clone()),
            &|sample| sample.told[0].bridged = Some(long.clone()),
            &|sample| sample.told = vec![passed(true); TOLD_ALL_MAX + 1],
        ];
        for (n, change) in changes.into_iter().enumerate() {
            assert_eq!(flaw(change), SampleFlaw::Malformed, "{n}");
        }
        for text in [
            "",
            "{}",
            "[]",
            "null",
            &text.replace(r#"["a",2,1]"#, r#"["a",-2,1]"#),
        ] {
            assert_eq!(
                Sample::parse(text).unwrap_err(),
                SampleFlaw::Malformed,
                "{text}"
            );
        }
        let long = format!("{text}{}", " ".repeat(BYTES_MAX));
        assert_eq!(Sample::parse(&long).unwrap_err(), SampleFlaw::TooLong);
    }

    #[test]
    fn what_would_be_too_long_is_cut() {
        let counts = (0..10_000).map(|n| (format!("{n:0128}"), 1, 0));
        let (text, left_out) = Sample {
            counts: counts.collect(),
            ..sample("x")
        }
        .encode();
        assert!(left_out && text.len() <= BYTES_MAX);
        assert!(Sample::parse(&text).unwrap().counts.len() >= 2_500);
    }
}
