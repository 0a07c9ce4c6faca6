//! CanCommunicate: the rule alone, on lines of realistic depth. `cargo bench --bench hierarchy`.
#![expect(missing_docs, reason = "criterion's macros make public items")]

use std::hint::black_box;

use a2a_gateway::config::LineageReach;
use a2a_gateway::hierarchy::{Lineage, decide};
use a2a_gateway::ids::WorkspaceId;
use criterion::{Criterion, criterion_group, criterion_main};

fn id(text: &str) -> WorkspaceId {
    WorkspaceId::parse(text).expect("ids of this file are well-formed")
}

/// `name` below `depth` ancestors, which all lines share.
fn place(name: &str, depth: usize) -> Lineage {
    Lineage {
        id: id(name),
        org: Some("acme".to_owned()),
        ancestors: (0..depth)
            .rev()
            .map(|i| id(&format!("level-{i}")))
            .collect(),
        removed: false,
        paused: false,
        cyclic: false,
        generation: 0,
        born_at: 0,
    }
}

fn rule(c: &mut Criterion) {
    let mut group = c.benchmark_group("decide");
    for (name, caller, target, reach) in [
        (
            "parent",
            place("level-3", 3),
            place("a", 4),
            LineageReach::Direct,
        ),
        (
            "sibling",
            place("a", 4),
            place("b", 4),
            LineageReach::Direct,
        ),
        (
            "root_sibling",
            place("a", 0),
            place("b", 0),
            LineageReach::Direct,
        ),
        (
            "ancestor_of_63",
            place("level-0", 0),
            place("a", 63),
            LineageReach::Any,
        ),
        ("unrelated", place("a", 8), place("b", 5), LineageReach::Any),
    ] {
        group.bench_function(name, |b| {
            b.iter(|| decide(black_box(&caller), black_box(&target), reach));
        });
    }
    group.finish();
}

criterion_group!(benches, rule);
criterion_main!(benches);
