//! Circuit breaker: refuses calls after failures, and lets one call try after a while. Failures of two parties open it
//! for all callers; those of one open it for that one alone. Pure: it has no clock.

use std::time::Duration;

use tokio::time::Instant;

use crate::config;
use crate::shares::{Account, RecentCallers};

/// Maximum circuits. A new one takes the place of one that is closed, else of the oldest.
const CIRCUITS_MAX: usize = 16;

/// Time for which a party lets others try that wait, after a call of its own tried and did not close it.
const GIVES_WAY: Duration = Duration::from_secs(5);

/// Number of the circuit of all callers.
const ALL: u64 = u64::MAX;

/// Account of a server's probes: their failures count as those of one more caller.
pub const PROBE: Account = Account::without_group(ALL - 1);

/// Change of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerChange {
    /// Calls are refused from now on.
    Opened,
    /// Calls of one caller, or of the users of one org, are refused from now on; those of others pass.
    OpenedAlone,
    /// Calls pass again.
    Closed,
}

/// A call that the breaker admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Number of changes before it.
    began: u32,
    /// True for the one call that tries.
    pub tries: bool,
}

/// Breaker of one server; `Cause`: the kind of its failures.
#[derive(Debug)]
pub struct Breaker<Cause> {
    /// First that of all callers; then those of accounts, and groups of them, that failed while others did not.
    circuits: Vec<(u64, Circuit<Cause>)>,
    /// Number of changes of all circuits so far.
    changes: u32,
    accounts: RecentCallers,
    parties: RecentCallers,
    /// The party of the call that tried last, and whether calls of others were refused since.
    last_try: Option<(u64, bool)>,
}

impl<Cause: Copy> Breaker<Cause> {
    /// Creates a closed one.
    pub fn new(now: Instant) -> Self {
        Self {
            circuits: vec![(ALL, Circuit::new(0, now))],
            changes: 0,
            accounts: RecentCallers::default(),
            parties: RecentCallers::default(),
            last_try: None,
        }
    }

    /// Returns the first circuit that is not closed, of all callers and of those with the numbers that are asked for.
    fn open_one(&self, is_asked: impl Fn(u64) -> bool) -> Option<&Circuit<Cause>> {
        let mut asked = (self.circuits.iter()).filter(|(n, _)| *n == ALL || is_asked(*n));
        let found = asked.find(|(_, circuit)| circuit.phase != Phase::Closed);
        found.map(|(_, circuit)| circuit)
    }

    /// Returns the circuit that stands for the server: that of all callers, or of the only one lately. `to`: if there
    /// is one that refuses calls of this caller, that one.
    pub fn reported_circuit(&self, to: Option<Account>) -> &Circuit<Cause> {
        let only = [self.accounts.sole_caller(), self.parties.sole_caller()];
        let own = self.open_one(|n| to.is_some_and(|to| to.is_counted_as(n)));
        let open = own.or_else(|| self.open_one(|n| only.contains(&Some(n))));
        open.unwrap_or(&self.circuits[0].1)
    }

    /// True unless calls of all callers pass.
    pub fn is_open_to_any(&self) -> bool {
        self.open_one(|_| true).is_some()
    }

    /// Checks without a change whether it would admit a call of `account`.
    ///
    /// # Errors
    /// The time after which a call may be admitted.
    pub fn check(&self, account: Account, now: Instant) -> Result<(), Duration> {
        let mut its = self
            .circuits
            .iter()
            .filter(|(n, _)| applies_to(account, *n));
        its.try_for_each(|(_, circuit)| circuit.check(now))
    }

    /// Admits a call while it is closed to its caller.
    pub fn admit_closed(&self) -> Admission {
        Admission {
            began: self.changes,
            tries: false,
        }
    }

    /// Admits a call. One that tries has `patience`; after that it tells nothing any more, and another one tries. The
    /// clock is read only where it matters.
    ///
    /// # Errors
    /// The time after which a call may be admitted.
    pub fn admit(
        &mut self,
        account: Account,
        patience: Duration,
        clock: impl FnOnce() -> Instant,
    ) -> Result<Admission, Duration> {
        let open = self.open_one(|n| account.is_counted_as(n));
        let Some(phase) = open.map(|circuit| circuit.phase) else {
            return Ok(self.admit_closed());
        };
        let now = clock();
        let mut looked = self.check(account, now);
        match (&mut self.last_try, phase) {
            (Some((party, others_wait)), _) if *party != account.party_number() => {
                *others_wait |= looked.is_err();
            }
            (Some((_, true)), Phase::Open(until)) if until + GIVES_WAY > now => {
                looked = Err(until + GIVES_WAY - now);
            }
            _ => {}
        }
        looked?;
        self.last_try = Some((account.party_number(), false));
        self.changes += 1;
        for (number, circuit) in &mut self.circuits {
            if circuit.phase != Phase::Closed && applies_to(account, *number) {
                circuit.phase = Phase::Trying(Some(now + patience));
                circuit.changed = self.changes;
            }
        }
        Ok(Admission {
            began: self.changes,
            tries: true,
        })
    }

    /// Counts the outcome of an admitted call; `failure`: its failure, if it failed.
    pub fn record_outcome(
        &mut self,
        (admission, account): (Admission, Account),
        failure: Option<Cause>,
        config: &config::Breaker,
        now: Instant,
    ) -> Option<BreakerChange> {
        let (before, changes) = (self.reported_circuit(None).phase, self.changes);
        let party = account.party_number();
        if account != PROBE {
            self.accounts.add(account.own, config.window, now);
            self.parties.add(party, config.window, now);
            if failure.is_some() && self.circuits[0].1.phase == Phase::Closed {
                self.add_circuit(account.own, now);
                self.add_circuit(party, now);
            }
        }
        let (mut is_late, mut opened) = (false, false);
        for (number, circuit) in self.circuits.iter_mut().rev() {
            if !applies_to(account, *number) || (is_late && *number == ALL) {
                continue;
            }
            // What fails after its caller's own circuit opened is of that caller alone.
            is_late |= failure.is_some() && admission.began < circuit.changed;
            let who = if *number == ALL { party } else { account.own };
            let outcome = (admission, failure, (who != *number).then_some(who));
            opened |= circuit.record_outcome(outcome, config, now, &mut self.changes);
        }
        if self.circuits[0].1.phase != Phase::Closed {
            self.circuits.truncate(1);
        }
        let after = self.reported_circuit(None);
        match after.phase {
            Phase::Closed if before != Phase::Closed => Some(BreakerChange::Closed),
            Phase::Open(_) if before == Phase::Closed || after.changed > changes => {
                Some(BreakerChange::Opened)
            }
            _ => opened.then_some(BreakerChange::OpenedAlone),
        }
    }

    /// Frees the place of an admitted call without an outcome: its caller left.
    pub fn release(&mut self, (admission, account): (Admission, Account), now: Instant) {
        for (number, circuit) in &mut self.circuits {
            if applies_to(account, *number) && circuit.is_tried_by(admission) {
                circuit.phase = Phase::Open(now);
            }
        }
    }

    /// Lets the next call try where it is open since before `began`: then the server gave a sign of life.
    pub fn allow_trial(&mut self, began: Instant) {
        for (_, circuit) in &mut self.circuits {
            let is_older = circuit.why.is_some_and(|(_, opened)| opened <= began);
            if matches!(circuit.phase, Phase::Open(_)) && is_older {
                circuit.phase = Phase::Trying(None);
            }
        }
    }

    /// Lets calls pass.
    pub fn close(&mut self, now: Instant) -> BreakerChange {
        self.circuits.truncate(1);
        self.circuits[0].1.close(&mut self.changes, now);
        BreakerChange::Closed
    }

    /// Makes a circuit of an account or a group.
    fn add_circuit(&mut self, number: u64, now: Instant) {
        if self.circuits.iter().any(|(known, _)| *known == number) {
            return;
        }
        if self.circuits.len() >= CIRCUITS_MAX {
            let mut others = self.circuits.iter().skip(1);
            let closed = others.position(|(_, one)| one.phase == Phase::Closed);
            self.circuits.remove(1 + closed.unwrap_or(0));
        }
        let all = &self.circuits[0].1;
        // The calls of the only caller are all that there were.
        let circuit = match self.accounts.sole_caller() == Some(number) {
            true => all.clone(),
            false => Circuit::new(all.changed, now),
        };
        self.circuits.push((number, circuit));
    }
}

/// True of the circuits that calls of `account` pass.
fn applies_to(account: Account, number: u64) -> bool {
    number == ALL || account.is_counted_as(number)
}

/// Parts of the window that are forgotten one by one.
const PARTS: usize = 10;

/// Minimum calls in the window before their ratio counts.
const CALLS_MIN: u32 = 20;

/// State of a circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Calls pass.
    Closed,
    /// Calls are refused until then.
    Open(Instant),
    /// One call tries, at most until then; the others are refused. `None`: the next call is the one.
    Trying(Option<Instant>),
}

/// One circuit of a breaker.
#[derive(Clone, Debug)]
pub struct Circuit<Cause> {
    /// Its state.
    pub phase: Phase,
    /// The failure that opened it, and the time at which it opened.
    pub why: Option<(Cause, Instant)>,
    /// Number of its last change. The outcome of a call from before it does not count.
    pub(super) changed: u32,
    failures_in_a_row: u32,
    /// Those of the failures in a row, and of the failures in the window.
    in_row: RecentCallers,
    in_window: RecentCallers,
    window: Window,
    /// Time for which it was open last.
    period: Duration,
    /// The last failure, and its time, if no call succeeded since.
    last_failure: Option<(Cause, Instant)>,
}

impl<Cause: Copy> Circuit<Cause> {
    pub(super) fn new(changed: u32, now: Instant) -> Self {
        Self {
            phase: Phase::Closed,
            changed,
            failures_in_a_row: 0,
            in_row: RecentCallers::default(),
            in_window: RecentCallers::default(),
            window: Window::new(now),
            period: Duration::ZERO,
            why: None,
            last_failure: None,
        }
    }

    /// Returns the number of failures since the last call that succeeded, with the last failure and its time; `None`
    /// without one.
    pub fn failures_in_a_row(&self) -> Option<(u32, Cause, Instant)> {
        let (cause, at) = self.last_failure?;
        Some((self.failures_in_a_row, cause, at))
    }

    pub(super) fn check(&self, now: Instant) -> Result<(), Duration> {
        match self.phase {
            Phase::Closed | Phase::Trying(None) => Ok(()),
            Phase::Open(until) | Phase::Trying(Some(until)) if until <= now => Ok(()),
            Phase::Open(until) => Err(until - now),
            Phase::Trying(Some(_)) => Err(Duration::ZERO),
        }
    }

    pub(super) fn is_tried_by(&self, admission: Admission) -> bool {
        let is_tried = matches!(self.phase, Phase::Trying(Some(_)));
        is_tried && admission.tries && admission.began == self.changed
    }

    /// Counts an outcome. `who`: a caller or a party; failures of two open it. `None`: it has one caller. Returns
    /// true if it opened.
    pub(super) fn record_outcome(
        &mut self,
        (admission, failure, who): (Admission, Option<Cause>, Option<u64>),
        config: &config::Breaker,
        now: Instant,
        changes: &mut u32,
    ) -> bool {
        let tries = self.is_tried_by(admission);
        if admission.began < self.changed || !(tries || self.phase == Phase::Closed) {
            return false;
        }
        self.window
            .record_call(failure.is_some(), config.window, now);
        let Some(cause) = failure else {
            self.failures_in_a_row = 0;
            self.in_row = RecentCallers::default();
            self.last_failure = None;
            if tries {
                self.close(changes, now);
            }
            return false;
        };
        self.failures_in_a_row += 1;
        self.last_failure = Some((cause, now));
        let in_row = who.is_none_or(|who| self.in_row.add(who, Duration::MAX, now));
        let in_window = who.is_none_or(|who| self.in_window.add(who, config.window, now));
        let too_many = config.failures > 0 && self.failures_in_a_row >= config.failures;
        let fails =
            (in_row && too_many) || (in_window && self.window.exceeds_ratio(config.ratio.0));
        if config.is_off() || !(tries || fails) {
            return false;
        }
        let doubled = self.period.saturating_mul(2).min(config.open_max);
        self.period = if tries {
            doubled.max(config.open)
        } else {
            config.open
        };
        *changes += 1;
        self.changed = *changes;
        self.phase = Phase::Open(now + self.period);
        self.why = Some((cause, now));
        true
    }

    pub(super) fn close(&mut self, changes: &mut u32, now: Instant) {
        *changes += 1;
        *self = Self::new(*changes, now);
    }
}

/// Calls and failures of the last while, in parts.
#[derive(Clone, Debug)]
struct Window {
    /// Calls, and failed ones.
    parts: [(u32, u32); PARTS],
    current: usize,
    /// Beginning of the current part.
    began: Instant,
}

impl Window {
    fn new(now: Instant) -> Self {
        Self {
            parts: [(0, 0); PARTS],
            current: 0,
            began: now,
        }
    }

    fn record_call(&mut self, failed: bool, length: Duration, now: Instant) {
        #[expect(clippy::cast_possible_truncation, reason = "ten")]
        let part = (length / PARTS as u32).max(Duration::from_millis(1));
        for _ in 0..PARTS {
            if now.saturating_duration_since(self.began) < part {
                break;
            }
            self.current = (self.current + 1) % PARTS;
            self.parts[self.current] = (0, 0);
            self.began += part;
        }
        if now.saturating_duration_since(self.began) >= part {
            // All parts were forgotten.
            self.began = now;
        }
        let (calls, failures) = &mut self.parts[self.current];
        *calls = calls.saturating_add(1);
        *failures = failures.saturating_add(u32::from(failed));
    }

    /// True if so many of at least [`CALLS_MIN`] calls failed. A ratio of 0 counts nothing.
    fn exceeds_ratio(&self, ratio: f64) -> bool {
        let calls: u32 = self.parts.iter().map(|(calls, _)| calls).sum();
        let failures: u32 = self.parts.iter().map(|(_, failures)| failures).sum();
        ratio > 0.0 && calls >= CALLS_MIN && f64::from(failures) >= ratio * f64::from(calls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::metrics::AgentFailure;

    /// Plays calls, by the letter of the caller: small ones fail, one that is refused is passed over. Those after `[`
    /// end together at `]`, or tell nothing by `!`. `.`, `:` and `|` are 1, 5 and 10 seconds, `+` is a sign of life,
    /// `-` an older one, `p` a failing probe. Returns what the last one turned, and the callers that are refused then.
    fn play(calls: &str) -> (Option<BreakerChange>, String) {
        let config: Config = toml::from_str(include_str!("../../../config/default.toml")).unwrap();
        let mut now = Instant::now();
        let mut breaker = Breaker::<AgentFailure>::new(now);
        let (mut pending, mut waits, mut turned) = (Vec::new(), false, None);
        for one in calls.chars() {
            turned = None;
            match one {
                '.' => now += Duration::from_secs(1),
                ':' => now += Duration::from_secs(5),
                '|' => now += Duration::from_secs(10),
                '+' => breaker.allow_trial(now),
                '-' => breaker.allow_trial(now.checked_sub(GIVES_WAY).unwrap()),
                '[' | ']' => waits = one == '[',
                '!' => (pending.drain(..)).for_each(|(call, _)| breaker.release(call, now)),
                'p' => pending.push(((breaker.admit_closed(), PROBE), true)),
                one => {
                    let admitted = breaker.admit(named(one), 6 * GIVES_WAY, || now);
                    let call = admitted.map(|call| ((call, named(one)), one.is_lowercase()));
                    pending.extend(call);
                }
            }
            for (call, failed) in pending.drain(..(if waits { 0 } else { pending.len() })) {
                let failure = failed.then_some(AgentFailure::Connect);
                turned = breaker.record_outcome(call, failure, &config.breaker, now);
            }
            assert!(breaker.circuits.len() <= CIRCUITS_MAX);
        }
        let is_refused = |of: &char| breaker.check(named(*of), now).is_err();
        (turned, "abcxyz".chars().filter(is_refused).collect())
    }

    /// `x`, `y` and `z` are users of one org.
    fn named(letter: char) -> Account {
        let own = letter.to_ascii_lowercase().into();
        let group = if own >= 'x'.into() { 9 } else { 0 };
        Account { own, group }
    }

    #[test]
    fn failures_of_two_open_it_for_all_and_those_of_one_for_that_one_alone() {
        let (opened, alone) = (
            Some(BreakerChange::Opened),
            Some(BreakerChange::OpenedAlone),
        );
        let (closed, all) = (Some(BreakerChange::Closed), "abcxyz");
        for (calls, turned, refused) in [
            ("aaaa", None, ""),
            ("aaaaAaaaa", None, ""),
            ("aaaaa", opened, "a"),
            ("Baaaaa", alone, "a"),
            // Another one succeeds, or fails, where there was one.
            ("aaaaaB", closed, "a"),
            ("aaaaab", opened, all),
            ("aabba", opened, all),
            // A success of another one ends the row of all, not that of the one.
            ("aaabBaa", alone, "a"),
            ("aBaBaBaBa", alone, "a"),
            // The users of an org are one party to others, and several among themselves.
            ("Axxxxx", alone, "x"),
            ("Axyxyx", alone, "xyz"),
            ("xyxyx", opened, "xyz"),
            ("xxxxb", opened, all),
            // A probe counts as one.
            ("ppppp", None, ""),
            ("aaaap", opened, all),
            ("Bpppap", opened, all),
            // Half of 20 calls in the window.
            ("aAaAaAaAaAaAaAaAaAa", None, ""),
            ("aAaAaAaAaAaAaAaAaAaAa", opened, "a"),
            ("BaAaAaAaAaAaAaAaAaAaAa", alone, "a"),
            ("aAbBaAbBaAbBaAbBaAbBa", opened, all),
            ("aAAbBBaAAbBBaAAbBBaAAbBBaAAbBBaAAbBB", None, ""),
            ("aAbBaAbBaAbBaAbB|||aAbBa", None, ""),
            // What fails together with what opened it for its caller counts for others no more.
            ("BBBB[aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa]BbBb", None, "a"),
            (
                "BBBaaaaaBBdBBeBBfBBgBBhBBiBBjBBkBBlBBmBBnBBoBBqBBrBBsBBtBBuBBvB",
                None,
                "a",
            ),
            // One call tries. What fails doubles the time.
            ("aaaaa....", None, "a"),
            ("aaaaa:[a", None, "a"),
            ("aaaaa:A", closed, ""),
            ("Baaaaa:A", None, ""),
            ("aaaab:[c", None, all),
            ("aaaab:c:....", None, all),
            ("aaaab:c|C", closed, ""),
            ("aaaab:c|C|||aaaaa:", None, ""),
            ("aaaaa:a|a||a||||a||||||a|||||:....", None, "a"),
            ("aaaaa:a|a||a||||a||||||a||||||", None, ""),
            // One that takes too long tells nothing.
            ("aaaaa:[a||:....", None, "a"),
            ("aaaaa:[a|||", None, ""),
            ("aaaaa:[a|||A]", closed, ""),
            // After a sign of life one tries, and another one after a caller that left.
            ("aaaab-", None, all),
            ("aaaab+", None, ""),
            ("Baaaaa+", None, ""),
            ("aaaab+[a", None, all),
            ("aaaab+[a!", None, ""),
            ("[a]aaaab+[a!]A", closed, ""),
            // One that fails or leaves each time lets others try that wait.
            ("aaaab:[ab]|a", None, ""),
            ("aaaab:[ab]|a....a.a", opened, all),
            ("aaaab:[ab!]a", None, ""),
            ("aaaab:[ab!]aB", closed, ""),
        ] {
            assert_eq!(play(calls), (turned, refused.to_owned()), "{calls}");
        }
    }
}
