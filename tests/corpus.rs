//! The fuzz targets without the fuzzer: every input of their corpus, and a short round of inputs made
//! of it. `scripts/fuzz` goes on from there for as long as it is given.

#![expect(
    clippy::unwrap_used,
    reason = "a corpus that cannot be read fails the test"
)]

#[path = "../fuzz/src/lib.rs"]
#[expect(unreachable_pub, reason = "it is a library to the fuzzer")]
mod targets;

use std::fs;
use std::panic::catch_unwind;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::sample::Index;

use self::targets::{TARGETS, Target};

/// All of it, in bytes: a corpus is read by people, too.
const CORPUS_BYTES_MAX: usize = 200_000;

/// Longest that one input may take. Far more than any does, on a machine under load.
const RUN_MAX: Duration = Duration::from_secs(5);

/// The inputs of a target, by name.
fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let files = fs::read_dir(folder.join(target)).unwrap();
    let mut inputs: Vec<_> = files
        .map(|file| file.unwrap().path())
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect();
    inputs.sort();
    assert!(inputs.len() >= 8, "{target} has hardly a corpus");
    inputs
}

fn hold(target: Target, input: &[u8], what: &str) {
    let begun = Instant::now();
    let ended = catch_unwind(|| target(input));
    assert!(ended.is_ok(), "{what} breaks a promise (above): {input:?}");
    assert!(
        begun.elapsed() < RUN_MAX,
        "{what} takes too long: {input:?}"
    );
}

#[test]
fn every_input_of_the_corpus_holds() {
    let mut bytes = 0;
    for (name, target) in TARGETS {
        for (path, input) in corpus(name) {
            hold(target, &input, &path.display().to_string());
            bytes += input.len();
        }
    }
    assert!(bytes < CORPUS_BYTES_MAX, "{bytes} bytes of corpus");
}

/// One change of an input.
#[derive(Clone, Debug)]
enum Edit {
    Flip(Index, u8),
    Insert(Index, u8),
    Remove(Index, Index),
    Repeat(Index, Index),
    /// A piece of another input.
    Splice(Index, Index, Index, Index),
}

fn edit() -> impl Strategy<Value = Edit> {
    let byte = prop_oneof![
        3 => prop::sample::select(b"{}[]\",:\\/.@#%?-+0179aftnx \r\n\t\0\x7f\xff".to_vec()),
        1 => any::<u8>(),
    ];
    let at = any::<Index>;
    prop_oneof![
        (at(), byte.clone()).prop_map(|(at, byte)| Edit::Flip(at, byte)),
        (at(), byte).prop_map(|(at, byte)| Edit::Insert(at, byte)),
        (at(), at()).prop_map(|(from, to)| Edit::Remove(from, to)),
        (at(), at()).prop_map(|(from, to)| Edit::Repeat(from, to)),
        (at(), at(), at(), at()).prop_map(|(at, of, from, to)| Edit::Splice(at, of, from, to)),
    ]
}

fn range(bytes: &[u8], from: Index, to: Index) -> std::ops::Range<usize> {
    let (from, to) = (from.index(bytes.len() + 1), to.index(bytes.len() + 1));
    from.min(to)..from.max(to)
}

fn edited(inputs: &[(PathBuf, Vec<u8>)], of: Index, edits: &[Edit]) -> Vec<u8> {
    let mut bytes = of.get(inputs).1.clone();
    for edit in edits {
        match *edit {
            Edit::Flip(at, byte) if !bytes.is_empty() => *at.get_mut(&mut bytes) = byte,
            Edit::Insert(at, byte) | Edit::Flip(at, byte) => {
                bytes.insert(at.index(bytes.len() + 1), byte);
            }
            Edit::Remove(from, to) => drop(bytes.drain(range(&bytes, from, to))),
            Edit::Repeat(from, to) => {
                let range = range(&bytes, from, to);
                let piece = bytes[range.clone()].to_vec();
                bytes.splice(range.end..range.end, piece);
            }
            Edit::Splice(at, of, from, to) => {
                let other = &of.get(inputs).1;
                let at = at.index(bytes.len() + 1);
                bytes.splice(at..at, other[range(other, from, to)].to_vec());
            }
        }
    }
    bytes
}

#[test]
fn what_is_made_of_the_corpus_holds() {
    for (name, target) in TARGETS {
        let inputs = corpus(name);
        let made = (any::<Index>(), prop::collection::vec(edit(), 1..5));
        proptest!(ProptestConfig::with_cases(512), |((of, edits) in made)| {
            hold(target, &edited(&inputs, of, &edits), name);
        });
    }
}
