//! The rule as tables, and property tests of it over random forests.

use proptest::prelude::*;

use super::*;

/// Roots `pm` and `ops`; `pm` has `dev` and `qa`, `dev` has `bot`, which has `sub`; `ext` is elsewhere.
fn at(id: &str) -> Lineage {
    let ancestors: &[&str] = match id {
        "dev" | "qa" => &["pm"],
        "bot" => &["dev", "pm"],
        "sub" => &["bot", "dev", "pm"],
        _ => &[],
    };
    let org = if id == "ext" { "other" } else { "acme" };
    lineage_of(id, Some(org), ancestors)
}

#[test]
fn the_rule_is_the_contracts_table() {
    use LineageReach::{Any, Direct};
    for (caller, target, direct, any) in [
        ("dev", "dev", Ok(Rule::SelfRule), Ok(Rule::SelfRule)),
        ("pm", "dev", Ok(Rule::Parent), Ok(Rule::Parent)),
        ("dev", "pm", Ok(Rule::Child), Ok(Rule::Child)),
        ("dev", "qa", Ok(Rule::Sibling), Ok(Rule::Sibling)),
        ("pm", "ops", Ok(Rule::RootSibling), Ok(Rule::RootSibling)),
        ("pm", "bot", Err(Denial::FurtherUp), Ok(Rule::Ancestor)),
        ("pm", "sub", Err(Denial::FurtherUp), Ok(Rule::Ancestor)),
        ("sub", "pm", Err(Denial::FurtherUp), Ok(Rule::Descendant)),
        ("qa", "bot", Err(Denial::Unrelated), Err(Denial::Unrelated)),
        ("ops", "dev", Err(Denial::Unrelated), Err(Denial::Unrelated)),
        ("pm", "ext", Err(Denial::OtherOrg), Err(Denial::OtherOrg)),
        ("ext", "dev", Err(Denial::OtherOrg), Err(Denial::OtherOrg)),
    ] {
        for (reach, expected) in [(Direct, direct), (Any, any)] {
            let said = decide(&at(caller), &at(target), reach);
            assert_eq!(said, expected, "{caller} to {target}, {reach:?}");
        }
    }
}

#[test]
fn no_org_is_one_org() {
    let free = |id| lineage_of(id, None, &[]);
    let said = decide(&free("a"), &free("b"), LineageReach::Direct);
    assert_eq!(said, Ok(Rule::RootSibling));
    let said = decide(&free("a"), &at("pm"), LineageReach::Direct);
    assert_eq!(said, Err(Denial::OtherOrg));
}

#[test]
fn a_parent_in_another_org_is_no_relation() {
    let child = lineage_of("c", Some("acme"), &["p"]);
    let parent = lineage_of("p", Some("other"), &[]);
    let sibling = lineage_of("s", Some("other"), &["p"]);
    for reach in [LineageReach::Direct, LineageReach::Any] {
        assert_eq!(decide(&parent, &child, reach), Err(Denial::OtherOrg));
        assert_eq!(decide(&child, &parent, reach), Err(Denial::OtherOrg));
        assert_eq!(decide(&child, &sibling, reach), Err(Denial::OtherOrg));
    }
}

#[test]
fn a_removed_workspace_is_in_no_relation_and_its_children_keep_one_another() {
    let gone = Lineage {
        removed: true,
        ..at("pm")
    };
    for other in ["pm", "dev", "ops"] {
        let said = decide(&gone, &at(other), LineageReach::Any);
        assert_eq!(said, Err(Denial::Removed), "{other}");
        let said = decide(&at(other), &gone, LineageReach::Any);
        assert_eq!(said, Err(Denial::Removed), "{other}");
    }
    assert_eq!(
        decide(&at("dev"), &at("qa"), LineageReach::Direct),
        Ok(Rule::Sibling)
    );
    // They are not roots: their parent was removed, not absent.
    assert_eq!(
        decide(&at("dev"), &at("ops"), LineageReach::Direct),
        Err(Denial::Unrelated)
    );
}

#[test]
fn a_cycle_denies_even_oneself() {
    let looped = Lineage {
        cyclic: true,
        ..at("dev")
    };
    for other in ["dev", "pm", "qa"] {
        let said = decide(&looped, &at(other), LineageReach::Any);
        assert_eq!(said, Err(Denial::Cyclic), "{other}");
    }
}

#[test]
fn every_rule_has_its_own_word() {
    let words = [
        (Rule::SelfRule, "self"),
        (Rule::RootSibling, "root_sibling"),
        (Rule::Grant, "grant"),
        (Rule::Operator, "operator"),
    ];
    for (rule, word) in words {
        assert_eq!(rule.as_str(), word);
    }
}

/// A forest of up to twelve workspaces: each hangs below an earlier one or is a root, in one of two
/// orgs or none, and some were removed.
fn forest() -> impl Strategy<Value = Vec<Lineage>> {
    let one = (
        any::<Option<prop::sample::Index>>(),
        0..3_u8,
        prop::bool::weighted(0.15),
    );
    prop::collection::vec(one, 2..12).prop_map(|all| {
        let mut forest: Vec<Lineage> = Vec::new();
        for (i, (parent, org, removed)) in all.into_iter().enumerate() {
            let above = parent.filter(|_| i > 0).map(|p| &forest[p.index(i)]);
            let ancestors = above.map_or_else(Vec::new, |parent| {
                let beyond = if parent.removed {
                    &[][..]
                } else {
                    &parent.ancestors
                };
                let mut line = vec![parent.id.clone()];
                line.extend_from_slice(beyond);
                line
            });
            let mut lineage = lineage_of(
                &format!("w{i}"),
                [None, Some("a"), Some("b")][usize::from(org)],
                &[],
            );
            lineage.ancestors = ancestors;
            lineage.removed = removed;
            forest.push(lineage);
        }
        forest
    })
}

/// Returns the relation of the target to the caller.
fn mirrored(rule: Rule) -> Rule {
    match rule {
        Rule::Parent => Rule::Child,
        Rule::Child => Rule::Parent,
        Rule::Ancestor => Rule::Descendant,
        Rule::Descendant => Rule::Ancestor,
        same => same,
    }
}

proptest! {
    #[test]
    fn the_rule_is_symmetric_keeps_to_its_org_and_shuns_the_removed(forest in forest()) {
        for caller in &forest {
            for target in &forest {
                let direct = decide(caller, target, LineageReach::Direct);
                let any = decide(caller, target, LineageReach::Any);
                prop_assert_eq!(
                    decide(target, caller, LineageReach::Any).map(mirrored),
                    any,
                    "{:?} {:?}", caller, target
                );
                if let Ok(rule) = direct {
                    prop_assert_eq!(any, Ok(rule));
                }
                if any.is_ok() {
                    prop_assert_eq!(&caller.org, &target.org);
                    prop_assert!(!caller.removed && !target.removed);
                }
            }
        }
    }

    #[test]
    fn siblings_and_roots_know_each_other_and_strangers_do_not(forest in forest()) {
        for caller in forest.iter().filter(|w| !w.removed) {
            for target in forest.iter().filter(|w| !w.removed) {
                let related = caller.id == target.id
                    || caller.parent() == target.parent()
                    || caller.parent() == Some(&target.id)
                    || target.parent() == Some(&caller.id);
                let said = decide(caller, target, LineageReach::Direct).is_ok();
                prop_assert_eq!(said, related && caller.org == target.org);
            }
        }
    }
}
