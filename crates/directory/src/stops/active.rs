//! The stops in force, by what they name: finding the one that covers a call takes a look-up for each workspace of both
//! lines, however many there are.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Cancel, End, Mode, Scope, Stop};
use kernel::ids::WorkspaceId;
use kernel::time::Timestamp;

/// The stops in force at one time. Immutable.
#[derive(Default)]
pub struct ActiveStops {
    pub(super) count: usize,
    all: Vec<Arc<Stop>>,
    orgs: HashMap<String, Vec<Arc<Stop>>>,
    /// Of a workspace, of a subtree and of pairs, by the workspace, the root and the caller.
    named: HashMap<WorkspaceId, Vec<Arc<Stop>>>,
    has_subtrees: bool,
    /// The first expiry.
    pub(super) expires_at: Option<Timestamp>,
    /// True if tasks of one may have to be canceled.
    pub(super) may_cancel: bool,
}

impl ActiveStops {
    /// Indexes the stops that are in force at `now`.
    pub fn new(stops: Vec<Stop>, now: Timestamp) -> Self {
        let mut in_force = Self::default();
        for stop in stops {
            // One that has expired is still to be removed.
            let expiries = [in_force.expires_at, stop.expires_at];
            in_force.expires_at = expiries.into_iter().flatten().min();
            if !stop.is_active_at(now) {
                continue;
            }
            in_force.count += 1;
            in_force.may_cancel |= matches!(stop.cancel, Cancel::Wanted | Cancel::Listed);
            let stop = Arc::new(stop);
            match &stop.scope {
                Scope::All => in_force.all.push(stop),
                Scope::Org(org) => in_force.orgs.entry(org.clone()).or_default().push(stop),
                Scope::Workspace(id) | Scope::Subtree(id) | Scope::Pair(id, _) => {
                    in_force.has_subtrees |= matches!(stop.scope, Scope::Subtree(_));
                    in_force.named.entry(id.clone()).or_default().push(stop);
                }
            }
        }
        in_force
    }

    /// Returns a stop that covers a call between these ends; `running`: one that ends calls under way. One that does is
    /// preferred.
    pub fn find(&self, ends: &[End<'_>; 2], running: bool) -> Option<Arc<Stop>> {
        let now = Timestamp::now();
        let mut found: Option<&Arc<Stop>> = None;
        for stop in self.find_candidates(ends) {
            let ends_running = stop.mode == Mode::Running;
            if (running && !ends_running) || !stop.is_active_at(now) || !stop.covers_call(ends) {
                continue;
            }
            if ends_running {
                return Some(Arc::clone(stop));
            }
            found = found.or(Some(stop));
        }
        found.cloned()
    }

    /// True if a message between these ends, of which the second has the inbox, waits there.
    pub(super) fn holds_back(&self, ends: &[End<'_>; 2]) -> bool {
        let now = Timestamp::now();
        let mut candidates = self.find_candidates(ends);
        candidates
            .any(|stop| stop.is_over(&ends[1]) && stop.is_active_at(now) && stop.covers_call(ends))
    }

    fn find_candidates<'s>(&'s self, ends: &[End<'s>; 2]) -> impl Iterator<Item = &'s Arc<Stop>> {
        let of_end = |end: End<'s>| {
            let org = end.org.and_then(|org| self.orgs.get(org));
            let above = if self.has_subtrees {
                end.ancestors
            } else {
                &[]
            };
            let lines = end.id.into_iter().chain(above);
            let named = lines.filter_map(|id| self.named.get(id));
            org.into_iter().chain(named).flatten()
        };
        let [caller, target] = *ends;
        self.all.iter().chain(of_end(caller)).chain(of_end(target))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> WorkspaceId {
        WorkspaceId::parse(text).unwrap()
    }

    fn stop(scope: Scope, mode: Mode) -> Stop {
        Stop {
            id: format!("stop-{mode:?}"),
            scope,
            org: None,
            by_org: None,
            by_subtree: None,
            mode,
            reason: "a loop".to_owned(),
            created_by: "operator".to_owned(),
            operator: None,
            created_at: Timestamp(1),
            expires_at: None,
            cancel: Cancel::None,
            fence: 0,
        }
    }

    /// Calls of `a` (below `top`, in acme) to `b` (in beta), and back.
    fn covered(stop: Stop) -> [bool; 2] {
        let (a, b, above) = (id("a"), id("b"), [id("team"), id("top")]);
        let one = End {
            id: Some(&a),
            org: Some("acme"),
            ancestors: &above,
        };
        let other = End {
            id: Some(&b),
            org: Some("beta"),
            ancestors: &[],
        };
        let in_force = ActiveStops::new(vec![stop], Timestamp::now());
        [[one, other], [other, one]].map(|ends| in_force.find(&ends, false).is_some())
    }

    #[test]
    fn a_scope_covers_calls_from_and_to_it_and_a_pair_one_way() {
        let both = [true, true];
        for (scope, expected) in [
            (Scope::All, both),
            (Scope::Org("acme".to_owned()), both),
            (Scope::Org("beta".to_owned()), both),
            (Scope::Org("other".to_owned()), [false, false]),
            (Scope::Workspace(id("a")), both),
            (Scope::Workspace(id("b")), both),
            (Scope::Workspace(id("top")), [false, false]),
            (Scope::Subtree(id("top")), both),
            (Scope::Subtree(id("a")), both),
            (Scope::Subtree(id("other")), [false, false]),
            (Scope::Pair(id("a"), id("b")), [true, false]),
            (Scope::Pair(id("b"), id("a")), [false, true]),
        ] {
            assert_eq!(
                covered(stop(scope.clone(), Mode::New)),
                expected,
                "{scope:?}"
            );
        }
        let of_org = |by: &str, scope: Scope| Stop {
            by_org: Some(by.to_owned()),
            ..stop(scope, Mode::New)
        };
        for scope in [Scope::Subtree(id("top")), Scope::Workspace(id("a"))] {
            assert_eq!(covered(of_org("acme", scope.clone())), both);
            assert_eq!(
                covered(of_org("beta", scope)),
                [false, false],
                "of another org"
            );
        }
        let pair = of_org("acme", Scope::Pair(id("a"), id("b")));
        assert_eq!(covered(pair), [false, false], "one end is in another org");
    }

    #[test]
    fn a_stop_of_the_callers_org_holds_no_message_back_in_another_one() {
        let (a, b) = (id("a"), id("b"));
        let end = |id, org| End {
            id: Some(id),
            org: Some(org),
            ancestors: &[],
        };
        let ends = [end(&a, "acme"), end(&b, "beta")];
        let held = |by_org: Option<&str>| {
            let stop = Stop {
                by_org: by_org.map(str::to_owned),
                ..stop(Scope::Workspace(id("a")), Mode::New)
            };
            ActiveStops::new(vec![stop], Timestamp::now()).holds_back(&ends)
        };
        assert_eq!([held(None), held(Some("acme"))], [true, false]);
    }

    #[test]
    fn one_that_ends_calls_under_way_is_preferred_and_an_expired_one_is_not_found() {
        let a = id("a");
        let ends = [End::of_org(None), End::at_workspace(&a, None)];
        let new = stop(Scope::All, Mode::New);
        let running = stop(Scope::Workspace(id("a")), Mode::Running);
        let both = ActiveStops::new(vec![new.clone(), running], Timestamp::now());
        assert_eq!(both.count, 2);
        for running in [false, true] {
            let found = both.find(&ends, running).unwrap();
            assert_eq!(found.mode, Mode::Running);
        }
        let only_new = ActiveStops::new(vec![new.clone()], Timestamp::now());
        assert!(only_new.find(&ends, true).is_none());
        let expired = Stop {
            expires_at: Some(Timestamp(5)),
            ..new
        };
        let expired = ActiveStops::new(vec![expired], Timestamp::now());
        assert_eq!((expired.count, expired.expires_at), (0, Some(Timestamp(5))));
        assert!(expired.find(&ends, false).is_none());
    }
}
