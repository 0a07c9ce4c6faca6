//! Statements of a policy about who may reach whom, proven for all pairs, or refuted by a pair.

use serde::Serialize;

use super::document::Problems;
use super::world::World;
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};

/// Statements of one document at most: each is proven over all workspaces.
pub(super) const STATEMENTS_MAX: usize = 200;

/// What is proven of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    /// No caller reaches a target.
    Never,
    /// Each caller reaches each target.
    Always,
    /// No other workspace reaches a target.
    Only,
}

/// Workspaces that a statement names.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Side {
    All,
    Org(String),
    Subtree(WorkspaceId),
    One(WorkspaceId),
}

/// A statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Statement {
    text: String,
    claim: Claim,
    callers: Vec<Side>,
    targets: Side,
}

const FORMS: &str = "a statement is \"never: A -> B\", \"always: A -> B\" or \"only: A, A2 -> B\", where each side is a \
                     workspace's id, `org:NAME`, `subtree:ID` or `*`";

fn wrong(message: impl Into<String>) -> Rejection {
    Rejection::new(Reason::InvalidParams, message.into())
}

impl Statement {
    /// Reads a statement.
    ///
    /// # Errors
    /// `invalid_params`.
    fn parse(text: &str) -> Result<Self, Rejection> {
        let (claim, rest) = text.split_once(':').ok_or_else(|| wrong(FORMS))?;
        let claim = match claim.trim() {
            "never" => Claim::Never,
            "always" => Claim::Always,
            "only" => Claim::Only,
            _ => return Err(wrong(FORMS)),
        };
        let (callers, targets) = rest.rsplit_once("->").ok_or_else(|| wrong(FORMS))?;
        let callers = match claim {
            Claim::Only => callers.split(',').map(Side::parse).collect(),
            _ => Side::parse(callers).map(|side| vec![side]),
        };
        Ok(Self {
            text: text.trim().to_owned(),
            claim,
            callers: callers?,
            targets: Side::parse(targets)?,
        })
    }
}

impl Side {
    fn parse(text: &str) -> Result<Self, Rejection> {
        let id = |text: &str| WorkspaceId::parse(text.trim()).map_err(|_| wrong(FORMS));
        match text.trim().split_once(':') {
            Some(("org", name)) if !name.trim().is_empty() => Ok(Self::Org(name.trim().to_owned())),
            Some(("subtree", root)) => id(root).map(Self::Subtree),
            None if text.trim() == "*" => Ok(Self::All),
            None => id(text).map(Self::One),
            Some(_) => Err(wrong(FORMS)),
        }
    }

    /// Marks the workspaces that it names. A name that is not there would make a statement hold that proves nothing;
    /// an org may come later.
    ///
    /// # Errors
    /// `invalid_params` if there is no such workspace.
    fn mark(&self, world: &World, visible: &[bool], marks: &mut [bool]) -> Result<(), Rejection> {
        if let Self::Subtree(id) | Self::One(id) = self {
            let number = world.number(id);
            if number.is_none_or(|n| visible.get(n) != Some(&true)) {
                return Err(wrong(format!("there is no workspace `{id}`")));
            }
        }
        let places = world.places().iter().zip(visible);
        for ((place, visible), mark) in places.zip(marks) {
            *mark |= *visible
                && match self {
                    Self::All => true,
                    Self::Org(org) => place.org.as_ref() == Some(org),
                    Self::One(id) => place.id == *id,
                    Self::Subtree(root) => place.id == *root || place.ancestors.contains(root),
                };
        }
        Ok(())
    }
}

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PathStep {
    /// The caller.
    pub caller: String,
    /// The target.
    pub target: String,
    /// The rule that permits it.
    pub rule: &'static str,
}

/// A statement that does not hold, with a pair that shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BrokenStatement {
    /// The statement.
    pub statement: String,
    /// The caller of the counter-example.
    pub caller: String,
    /// Its target.
    pub target: String,
    /// The rules by which the caller reaches the target, in order; empty if it does not, as `always` would have it.
    pub path: Vec<PathStep>,
    /// Why the caller does not reach the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denied: Option<String>,
}

impl std::fmt::Display for BrokenStatement {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            statement, caller, ..
        } = self;
        write!(to, "`{statement}` does not hold: {caller}")?;
        for step in &self.path {
            write!(to, " -[{}]-> {}", step.rule, step.target)?;
        }
        match &self.denied {
            Some(why) => write!(to, " may not reach {}: {why}", self.target),
            None => Ok(()),
        }
    }
}

/// Reads statements; what is wrong with one is noted with its place.
pub(super) fn read_statements(said: &[String], problems: &mut Problems) -> Vec<(usize, Statement)> {
    if said.len() > STATEMENTS_MAX {
        let message = format!("a policy has at most {STATEMENTS_MAX} statements");
        problems.add("statements", &wrong(message));
        return Vec::new();
    }
    let mut read = Vec::with_capacity(said.len());
    for (n, text) in said.iter().enumerate() {
        match Statement::parse(text) {
            Ok(statement) => read.push((n, statement)),
            Err(why) => problems.add(&format!("statements[{n}]"), &why),
        }
    }
    read
}

/// Proves statements. Returns those that do not hold, each with its number; what cannot be proven is noted.
/// `sees` selects the workspaces that count.
pub(super) fn prove_statements(
    world: &World,
    statements: &[(usize, Statement)],
    sees: impl Fn(&access::hierarchy::Lineage) -> bool,
    problems: &mut Problems,
) -> Vec<(usize, BrokenStatement)> {
    let visible: Vec<bool> = world.places().iter().map(sees).collect();
    let open: Vec<bool> = (0..visible.len()).map(|n| world.is_open(n)).collect();
    let prover = Prover { world, open };
    let mut broken = Vec::new();
    for (n, statement) in statements {
        match prover.refute(statement, &visible) {
            Ok(found) => broken.extend(found.map(|found| (*n, found))),
            Err(why) => problems.add(&format!("statements[{n}]"), &why),
        }
    }
    broken
}

struct Prover<'a> {
    world: &'a World,
    /// True for those that no stop closes for all calls.
    open: Vec<bool>,
}

impl Prover<'_> {
    /// Returns a counter-example, if there is one.
    fn refute(
        &self,
        statement: &Statement,
        visible: &[bool],
    ) -> Result<Option<BrokenStatement>, Rejection> {
        let [mut callers, mut targets] = [vec![false; visible.len()], vec![false; visible.len()]];
        for side in &statement.callers {
            side.mark(self.world, visible, &mut callers)?;
        }
        statement.targets.mark(self.world, visible, &mut targets)?;
        let found = match statement.claim {
            Claim::Always => self.find_refused(&callers, &targets),
            Claim::Never => self.find_permitted(&callers, &targets),
            Claim::Only => {
                let others = callers.iter().zip(visible);
                let others: Vec<bool> = others.map(|(named, sees)| *sees && !named).collect();
                self.find_permitted(&others, &targets)
            }
        };
        Ok(found.map(|pair| self.describe(statement, pair)))
    }

    fn describe(&self, statement: &Statement, (from, to): (usize, usize)) -> BrokenStatement {
        let [caller, target] = [from, to].map(|n| self.world.place(n).id.to_string());
        let judged = self.world.permit(from, to);
        let step = judged.as_ref().ok().map(|rule| PathStep {
            caller: caller.clone(),
            target: target.clone(),
            rule: rule.as_str(),
        });
        BrokenStatement {
            statement: statement.text.clone(),
            caller,
            target,
            path: step.into_iter().collect(),
            denied: judged.err().map(|why| why.to_string()),
        }
    }

    /// Returns a pair of two workspaces that is permitted.
    fn find_permitted(&self, callers: &[bool], targets: &[bool]) -> Option<(usize, usize)> {
        let leaks = |caller: usize, target: usize| {
            caller != target && self.world.permit(caller, target).is_ok()
        };
        for caller in self.open_of(callers) {
            let mut near = self.world.neighbours(caller).into_iter();
            let leak = near.find(|target| is_marked(targets, *target) && leaks(caller, *target));
            if let Some(target) = leak {
                return Some((caller, target));
            }
        }
        for members in self.world.groups().values() {
            let of = |marks: &[bool]| -> Vec<usize> {
                let members = members.iter().copied();
                let chosen = members.filter(|n| is_marked(marks, *n) && is_marked(&self.open, *n));
                chosen.collect()
            };
            let (from, to) = (of(callers), of(targets));
            // All pairs are permitted but those of a workspace with itself, and those that a stop of the pair has.
            for caller in from {
                if let Some(target) = to.iter().find(|target| leaks(caller, **target)) {
                    return Some((caller, *target));
                }
            }
        }
        None
    }

    /// Returns a pair that is refused.
    fn find_refused(&self, callers: &[bool], targets: &[bool]) -> Option<(usize, usize)> {
        let wanted = targets.iter().filter(|marked| **marked).count();
        if wanted == 0 {
            return None;
        }
        let mut in_group = vec![0; callers.len()];
        for members in self.world.groups().values() {
            let counts = |n: &&usize| is_marked(targets, **n) && is_marked(&self.open, **n);
            let count = members.iter().filter(counts).count();
            for member in members {
                if let Some(place) = in_group.get_mut(*member) {
                    *place = count;
                }
            }
        }
        let marked = (0..callers.len()).filter(|n| is_marked(callers, *n));
        for caller in marked {
            let grouped = in_group.get(caller).copied().unwrap_or_default();
            if self.count_permitted(caller, targets, grouped) < wanted {
                let refused = (0..targets.len())
                    .filter(|target| is_marked(targets, *target))
                    .find(|target| self.world.permit(caller, *target).is_err());
                return refused.map(|target| (caller, target));
            }
        }
        None
    }

    /// Counts the targets that a caller reaches. `grouped`: those of its group that are open.
    fn count_permitted(&self, caller: usize, targets: &[bool], grouped: usize) -> usize {
        if !is_marked(&self.open, caller) {
            return 0;
        }
        let stopped = self.world.stopped_targets(caller).iter();
        let stopped = stopped.filter(|target| {
            let same = self.world.is_same_group(caller, **target);
            same && is_marked(targets, **target)
                && is_marked(&self.open, **target)
                && self.world.permit(caller, **target).is_err()
        });
        let outside = self.world.neighbours(caller).into_iter().filter(|target| {
            let outside = !self.world.is_same_group(caller, *target);
            outside && is_marked(targets, *target) && self.world.permit(caller, *target).is_ok()
        });
        outside.count() + grouped - stopped.count()
    }

    fn open_of<'s>(&'s self, marks: &'s [bool]) -> impl Iterator<Item = usize> + 's {
        let all = 0..marks.len();
        all.filter(move |n| is_marked(marks, *n) && is_marked(&self.open, *n))
    }
}

fn is_marked(marks: &[bool], n: usize) -> bool {
    marks.get(n) == Some(&true)
}

#[cfg(test)]
mod tests {
    use access::hierarchy::Rule;
    use directory::stops::{Mode, NewStop, Scope};
    use kernel::config::LineageReach;
    use proptest::prelude::*;

    use super::super::tree::{Tree, TreeNode};
    use super::*;

    fn id(n: usize) -> WorkspaceId {
        WorkspaceId::parse(&format!("w{n}")).unwrap()
    }

    fn stop(scope: Scope) -> directory::stops::Stop {
        let new = NewStop {
            scope,
            org: None,
            by_org: None,
            by_subtree: None,
            mode: Mode::New,
            reason: "a loop".to_owned(),
            created_by: "operator".to_owned(),
            operator: None,
            expires_at: None,
            cancel_tasks: false,
        };
        new.to_stop("s")
    }

    /// A workspace: its parent (at or beyond its own number: none or a cycle), its org, and if it was removed.
    type Node = (usize, u8, bool);

    fn world_of(
        nodes: &[Node],
        grants: &[(usize, usize)],
        stops: &[(u8, usize, usize)],
        reach: LineageReach,
    ) -> World {
        let mut tree = Tree::default();
        for (n, (parent, org, removed)) in nodes.iter().enumerate() {
            let place = TreeNode {
                parent: (*parent < nodes.len() && *parent != n).then(|| id(*parent)),
                org: (*org > 0).then(|| format!("o{org}")),
                removed: *removed,
            };
            tree.insert(&id(n), place);
        }
        tree.index_children();
        let granted: Vec<_> = grants.iter().map(|(a, b)| (id(*a), id(*b))).collect();
        let stops = stops.iter().map(|(kind, a, b)| {
            stop(match kind % 8 {
                0 => Scope::Workspace(id(*a)),
                1 => Scope::Subtree(id(*a)),
                2 => Scope::Org(format!("o{}", a % 3)),
                _ => Scope::Pair(id(*a), id(*b)),
            })
        });
        World::new(&tree, granted.iter(), stops.collect(), reach)
    }

    /// The second implementation: every pair, with sides by their definition.
    fn holds_naively(world: &World, statement: &Statement) -> bool {
        let is_in = |side: &Side, n: usize| {
            let place = world.place(n);
            match side {
                Side::All => true,
                Side::Org(org) => place.org.as_ref() == Some(org),
                Side::One(id) => place.id == *id,
                Side::Subtree(id) => place.id == *id || place.ancestors.contains(id),
            }
        };
        let count = world.places().len();
        (0..count).all(|from| {
            (0..count).all(|to| {
                let named = statement.callers.iter().any(|side| is_in(side, from));
                let reaches = world.permit(from, to).is_ok();
                !is_in(&statement.targets, to)
                    || match statement.claim {
                        Claim::Never => !named || from == to || !reaches,
                        Claim::Always => !named || reaches,
                        Claim::Only => named || from == to || !reaches,
                    }
            })
        })
    }

    fn side(count: usize) -> impl Strategy<Value = String> {
        prop_oneof![
            Just("*".to_owned()),
            (1..4_u8).prop_map(|org| format!("org:o{org}")),
            (0..count).prop_map(|n| format!("subtree:w{n}")),
            (0..count).prop_map(|n| format!("w{n}")),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]
        #[test]
        fn proofs_are_those_of_a_walk_over_all_pairs(
            nodes in prop::collection::vec((0..24_usize, 0..3_u8, prop::bool::weighted(0.1)), 12),
            grants in prop::collection::vec((0..12_usize, 0..12_usize), 0..8),
            stops in prop::collection::vec((any::<u8>(), 0..12_usize, 0..12_usize), 0..4),
            any_line in any::<bool>(),
            sides in prop::collection::vec((side(12), side(12), side(12)), 3),
        ) {
            let reach = if any_line { LineageReach::Any } else { LineageReach::Direct };
            let world = world_of(&nodes, &grants, &stops, reach);
            for (one, two, three) in sides {
                for text in [format!("never: {one} -> {two}"), format!("always: {one} -> {two}"),
                    format!("only: {one}, {three} -> {two}")] {
                    let statement = Statement::parse(&text).unwrap();
                    let mut problems = Problems::default();
                    let said = [(0, statement.clone())];
                    let broken = prove_statements(&world, &said, |_| true, &mut problems);
                    if problems.into_result().is_err() {
                        continue;
                    }
                    prop_assert_eq!(broken.is_empty(), holds_naively(&world, &statement), "{}", text);
                    for (_, found) in broken {
                        let [from, to] = [&found.caller, &found.target]
                            .map(|id| world.number(&WorkspaceId::parse(id).unwrap()).unwrap());
                        let permitted = world.permit(from, to).is_ok();
                        prop_assert_eq!(permitted, statement.claim != Claim::Always, "{}", found);
                    }
                }
            }
        }

        #[test]
        fn the_matrix_has_each_pair_once(
            nodes in prop::collection::vec((0..24_usize, 0..3_u8, prop::bool::weighted(0.1)), 12),
            grants in prop::collection::vec((0..12_usize, 0..12_usize), 0..8),
            stops in prop::collection::vec((any::<u8>(), 0..12_usize, 0..12_usize), 0..4),
            any_line in any::<bool>(),
        ) {
            let reach = if any_line { LineageReach::Any } else { LineageReach::Direct };
            let world = world_of(&nodes, &grants, &stops, reach);
            let mut told = Vec::new();
            for row in super::super::matrix::list_rows(&world) {
                told.extend(row.caller.zip(row.target).map(|(from, to)| (from, to, row.rule)));
                let group = row.group.unwrap_or_default();
                for from in &group {
                    let others = group.iter().filter(|to| *to != from);
                    told.extend(others.map(|to| (from.clone(), to.clone(), row.rule)));
                }
            }
            told.sort();
            let mut expected = Vec::new();
            let count = world.places().len();
            for (from, to) in (0..count).flat_map(|from| (0..count).map(move |to| (from, to))) {
                if let (true, Ok(rule)) = (from != to, world.permit(from, to)) {
                    let [from, to] = [from, to].map(|n| world.place(n).id.to_string());
                    expected.push((from, to, rule.as_str()));
                }
            }
            expected.sort();
            prop_assert_eq!(told, expected);
        }
    }

    #[test]
    fn a_planted_grant_is_found_among_ten_thousand_workspaces() {
        // Two orgs, each a root with 4,999 children, and one grant across.
        let of = |n: usize| {
            (
                if n < 2 { 99_999 } else { n % 2 },
                u8::try_from(n % 2 + 1).unwrap(),
                false,
            )
        };
        let nodes: Vec<Node> = (0..10_000).map(of).collect();
        let prove = |grants: &[(usize, usize)], said: &[&str]| {
            let world = world_of(&nodes, grants, &[], LineageReach::Direct);
            let mut problems = Problems::default();
            let said: Vec<String> = said.iter().map(|&text| text.to_owned()).collect();
            let read = read_statements(&said, &mut problems);
            let broken = prove_statements(&world, &read, |_| true, &mut problems);
            problems.into_result().unwrap();
            broken
        };
        let said = [
            "never: org:o1 -> org:o2",
            "always: org:o1 -> org:o1",
            "only: org:o2 -> org:o2",
        ];
        assert_eq!(prove(&[], &said), []);
        let broken = prove(&[(7_772, 4_443)], &said);
        let expected = PathStep {
            caller: "w7772".to_owned(),
            target: "w4443".to_owned(),
            rule: Rule::Grant.as_str(),
        };
        let paths: Vec<_> = broken.iter().map(|(n, found)| (*n, &*found.path)).collect();
        assert_eq!(paths, [(0, &[expected.clone()][..]), (2, &[expected][..])]);
        assert_eq!(
            broken[0].1.to_string(),
            "`never: org:o1 -> org:o2` does not hold: w7772 -[grant]-> w4443"
        );
    }

    #[test]
    fn a_statement_that_names_nothing_is_refused_and_does_not_hold_for_want_of_a_pair() {
        let world = world_of(
            &[(9, 1, false), (9, 1, true)],
            &[],
            &[],
            LineageReach::Direct,
        );
        for (text, fine) in [
            ("never: w0 -> *", true),
            ("never: w7 -> *", false),
            ("never: w1 -> *", false),
            ("never: * -> subtree:w7", false),
            ("never: org:later -> *", true),
            ("never: w0 -> team:x", false),
            ("never: w0, w1 -> *", false),
            ("maybe: w0 -> *", false),
            ("never w0 -> *", false),
            ("never: org: -> *", false),
            ("never: w0 *", false),
        ] {
            let mut problems = Problems::default();
            let read = read_statements(&[text.to_owned()], &mut problems);
            prove_statements(&world, &read, |_| true, &mut problems);
            assert_eq!(problems.into_result().is_ok(), fine, "{text}");
        }
    }
}
