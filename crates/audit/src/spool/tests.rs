//! Tests of the spool: records that it keeps, returns and counts as lost.

use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use super::*;
use crate::chain::Chain;
use crate::record::{Draft, EventType};

fn records(chain: &mut Chain, count: usize) -> Vec<ChainedRecord> {
    let draft = |_| Draft::new(EventType::A2aCall);
    (0..count)
        .map(draft)
        .map(|draft| chain.push(draft))
        .collect()
}

fn numbers(records: &[ChainedRecord]) -> Vec<i64> {
    records.iter().map(|one| one.seq).collect()
}

#[test]
fn records_come_out_in_the_order_in_which_they_went_in() {
    let folder = tempfile::tempdir().unwrap();
    let mut chain = Chain::new("here");
    let mut spool = Spool::new(folder.path(), "here", 1 << 30);
    // More than two segments.
    for _ in 0..20 {
        spool.append(records(&mut chain, 1000).iter()).unwrap();
    }
    assert!(spool.segments.len() > 2);
    let mut seen = Vec::new();
    while !spool.is_empty() {
        let front = spool.read_front(777).unwrap();
        seen.extend(numbers(&front.records));
        spool.drop_front(&front);
    }
    assert_eq!(seen, (1..=20_000).collect::<Vec<i64>>());
    assert_eq!((spool.byte_count(), spool.records), (0, 0));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_full_spool_takes_nothing_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut chain = Chain::new("here");
    let mut spool = Spool::new(folder.path(), "here", 10_000);
    spool.append(records(&mut chain, 3).iter()).unwrap();
    let refused = spool.append(records(&mut chain, 100).iter());
    assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!(numbers(&spool.read_front(10).unwrap().records), [1, 2, 3]);
}

/// Returns the spools of owners that have ended. A process that another test starts at this moment holds the locks of
/// this one until it is another program.
fn wait_for_abandoned(folder: &Path) -> Vec<Spool> {
    let begun = Instant::now();
    loop {
        let left = Spool::find_abandoned(folder);
        if !left.is_empty() || begun.elapsed() > Duration::from_secs(60) {
            return left;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_is_no_record_any_more_is_counted_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let mut chain = Chain::new("here");
    let mut spool = Spool::new(folder.path(), "here", 1 << 20);
    spool.append(records(&mut chain, 2).iter()).unwrap();
    let path = spool.segment_path(1);
    drop(spool);
    let mut bytes = fs::read(&path).unwrap();
    bytes.extend(b"\xff\xfe\nno record\n");
    fs::write(&path, bytes).unwrap();
    let mut left = wait_for_abandoned(folder.path());
    let front = left[0].read_front(100).unwrap();
    assert_eq!((front.records.len(), front.damaged), (2, 2));
    left[0].drop_front(&front);
    assert!(left[0].is_empty());
    assert!(path.with_extension("damaged").exists());
    // A folder with the name of a segment, and a file with a similar name.
    fs::create_dir(folder.path().join("other.00000001.spool")).unwrap();
    assert!(Spool::find_abandoned(folder.path()).is_empty());
}

/// Returns a spool of two segments, the second of 1000 records, of which 10 are taken, and the number of
/// records.
fn begun(folder: &Path) -> (Spool, u64) {
    let mut chain = Chain::new("here");
    let mut spool = Spool::new(folder, "here", 1 << 30);
    while spool.segments.len() < 2 {
        spool.append(records(&mut chain, 1000).iter()).unwrap();
    }
    let all = spool.records;
    let front = spool.read_front(10).unwrap();
    spool.drop_front(&front);
    (spool, all)
}

/// Takes all remaining records. Returns the number of records and of lost ones.
fn rest(spool: &mut Spool) -> (u64, u64) {
    let (mut taken, mut lost) = (0, 0);
    while !spool.is_empty() {
        let front = spool.read_front(1000).unwrap();
        taken += front.records.len() as u64;
        lost += front.damaged;
        spool.drop_front(&front);
    }
    (taken, lost)
}

#[test]
fn what_somebody_removed_is_counted_and_holds_up_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (mut spool, all) = begun(folder.path());
    fs::remove_file(spool.segment_path(1)).unwrap();
    let gone = spool.read_front(10).unwrap();
    assert_eq!((gone.records.len(), gone.damaged), (0, all - 1010));
    spool.drop_front(&gone);
    assert_eq!(spool.records, 1000);
    assert_eq!(rest(&mut spool), (1000, 0));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn what_somebody_cut_is_counted_and_holds_up_nothing() {
    // Within the part that was read, at the end of a line behind it, and within a line.
    for (whole, more) in [(5, 0), (20, 0), (30, 7)] {
        let folder = tempfile::tempdir().unwrap();
        let (mut spool, all) = begun(folder.path());
        let path = spool.segment_path(1);
        let text = fs::read_to_string(&path).unwrap();
        let kept: usize = text.lines().take(whole).map(|line| line.len() + 1).sum();
        fs::write(&path, &text[..kept + more]).unwrap();
        let left = whole.saturating_sub(10) as u64;
        let lost = all - 1010 - left;
        assert_eq!(rest(&mut spool), (1000 + left, lost), "{whole} and {more}");
        assert!(path.with_extension("damaged").exists());
    }
}

#[test]
fn what_a_killed_process_left_is_taken_over_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut chain = Chain::new("gone");
    let mut spool = Spool::new(folder.path(), "gone", 1 << 20);
    spool.append(records(&mut chain, 5).iter()).unwrap();
    assert!(Spool::find_abandoned(folder.path()).is_empty(), "it lives");
    let half = spool.segment_path(1);
    drop(spool);
    let mut file = OpenOptions::new().append(true).open(half).unwrap();
    file.write_all(b"123 6 abc {\"half").unwrap();
    let mut left = wait_for_abandoned(folder.path());
    assert!(Spool::find_abandoned(folder.path()).is_empty(), "taken");
    let front = left[0].read_front(100).unwrap();
    assert_eq!(numbers(&front.records), [1, 2, 3, 4, 5]);
    left[0].drop_front(&front);
    assert!(left[0].is_empty());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_line_that_no_gateway_wrote_is_no_record() {
    let folder = tempfile::tempdir().unwrap();
    let (mut here, mut other) = (Chain::new("here"), Chain::new("other"));
    let mut spool = Spool::new(folder.path(), "here", 1 << 20);
    let mut all = records(&mut here, 4);
    all.extend(records(&mut other, 1));
    spool.append(all.iter()).unwrap();
    let path = spool.segment_path(1);
    let text = fs::read_to_string(&path).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    // A record that no database accepts, with the old hash, and a record with another time than its row.
    lines[1] = lines[1].replace("\"A2A_CALL\"", "\"\\u0000A2A_\"");
    lines[2] = format!("999999999999999999 {}", lines[2].split_once(' ').unwrap().1);
    fs::write(&path, lines.join("\n") + "\n").unwrap();
    let front = spool.read_front(100).unwrap();
    assert_eq!((numbers(&front.records), front.damaged), (vec![1, 4], 3));
}

#[test]
fn what_others_could_have_written_and_what_is_no_file_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut chain = Chain::new("gone");
    let mut spool = Spool::new(folder.path(), "gone", 1 << 20);
    spool.append(records(&mut chain, 5).iter()).unwrap();
    let path = spool.segment_path(1);
    drop(spool);
    let allow = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    allow(0o606);
    assert!(Spool::find_abandoned(folder.path()).is_empty());
    assert!(!folder.path().join("gone.lock").exists());
    allow(0o660);
    assert_eq!(wait_for_abandoned(folder.path()).len(), 1);
    // Opening a pipe would block.
    let lock = folder.path().join("gone.lock");
    fs::remove_file(&lock).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&lock).status();
    assert!(made.unwrap().success());
    assert!(Spool::find_abandoned(folder.path()).is_empty());
}
