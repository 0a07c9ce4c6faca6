//! Where chained records wait while the database is away: files in a folder, read from the front and
//! written at the end, in segments so that what was read gives its room back.
//!
//! A process holds a lock while it has files here. What a killed one left is taken over by the next
//! gateway that looks. Blocks; called from threads that may.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::chain::Chained;
use super::record::Record;

/// A segment is closed when it has so many bytes.
const SEGMENT_BYTES: u64 = 4 * 1024 * 1024;

const SEGMENT: &str = "spool";
const LOCK: &str = "lock";

/// One file.
struct Segment {
    number: u32,
    bytes: u64,
}

/// The records of one chain that wait.
pub(super) struct Spool {
    folder: PathBuf,
    replica: String,
    bytes_max: u64,
    segments: VecDeque<Segment>,
    /// The last segment, while it is written to.
    open: Option<File>,
    /// How far the first segment has been read.
    read: u64,
    /// A line of it was no record.
    damaged: bool,
    /// Records that wait.
    records: u64,
    /// When the first of them was made.
    oldest: Option<i64>,
    /// Held while there are files.
    lock: Option<File>,
}

/// Records from the front, and where the next ones begin.
pub(super) struct Front {
    pub(super) records: Vec<Chained>,
    read: u64,
    /// The segment ends in half a line.
    torn: bool,
    /// Lines that are no records.
    pub(super) damaged: u64,
}

impl Spool {
    /// An empty one. Makes nothing yet.
    pub(super) fn new(folder: &Path, replica: &str, bytes_max: u64) -> Self {
        Self {
            folder: folder.to_owned(),
            replica: replica.to_owned(),
            bytes_max,
            segments: VecDeque::new(),
            open: None,
            read: 0,
            damaged: false,
            records: 0,
            oldest: None,
            lock: None,
        }
    }

    /// What processes left that are no more.
    pub(super) fn left(folder: &Path) -> Vec<Self> {
        let Ok(entries) = fs::read_dir(folder) else {
            return Vec::new();
        };
        // What is no plain file is none of ours, and may never end.
        let names = entries
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
            .filter_map(|entry| entry.file_name().into_string().ok());
        let mut found: Vec<(String, u32)> = names.filter_map(|name| segment(&name)).collect();
        found.sort();
        let mut left: Vec<Self> = Vec::new();
        for (replica, number) in found {
            if left.last().is_none_or(|spool| spool.replica != replica) {
                left.push(Self::new(folder, &replica, 0));
            }
            let Some(spool) = left.last_mut() else {
                continue;
            };
            let bytes = fs::metadata(spool.path(number)).map_or(0, |file| file.len());
            spool.segments.push_back(Segment { number, bytes });
        }
        left.retain_mut(|spool| spool.claim().is_ok());
        left
    }

    pub(super) fn replica(&self) -> &str {
        &self.replica
    }

    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Bytes that wait.
    pub(super) fn bytes(&self) -> u64 {
        let all: u64 = self.segments.iter().map(|segment| segment.bytes).sum();
        all.saturating_sub(self.read)
    }

    /// Bytes that there is room for.
    pub(super) fn room(&self) -> u64 {
        self.bytes_max.saturating_sub(self.bytes())
    }

    pub(super) fn records(&self) -> u64 {
        self.records
    }

    /// When the first record that waits was made, in milliseconds since 1970; about, while it is read.
    pub(super) fn oldest(&self) -> Option<i64> {
        self.oldest
    }

    /// Writes records to the end, all or none, and has the disk keep them.
    ///
    /// # Errors
    /// `StorageFull` when there is no room for them (`audit.spool_bytes`); else what the system says.
    pub(super) fn append<'a>(
        &mut self,
        records: impl Iterator<Item = &'a Chained>,
    ) -> io::Result<()> {
        let mut lines = String::new();
        let mut count = 0;
        let mut oldest = self.oldest;
        for record in records {
            oldest.get_or_insert(record.ms);
            lines.push_str(&record.line());
            count += 1;
        }
        let more = lines.len() as u64;
        if self.bytes() + more > self.bytes_max {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let before = self.writable()?;
        let Some(file) = &mut self.open else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let written = file
            .write_all(lines.as_bytes())
            .and_then(|()| file.sync_data());
        if let Err(error) = written {
            // Half a line would hide what comes after it.
            let _ = file
                .set_len(before)
                .and_then(|()| file.seek(SeekFrom::End(0)));
            return Err(error);
        }
        if let Some(segment) = self.segments.back_mut() {
            segment.bytes += more;
        }
        self.records += count;
        self.oldest = oldest;
        Ok(())
    }

    /// Writes as many of `records` as there is room for, and says how many these were.
    pub(super) fn append_some(&mut self, records: &[Chained]) -> usize {
        let mut room = self.room();
        let fits = records.iter().take_while(|record| {
            let bytes = record.line().len() as u64;
            let fits = bytes <= room;
            room = room.saturating_sub(bytes);
            fits
        });
        let fits = fits.count();
        self.append(records[..fits].iter()).map_or(0, |()| fits)
    }

    fn make_folder(&self) -> io::Result<()> {
        let mut folder = fs::DirBuilder::new();
        folder.recursive(true).mode(0o700).create(&self.folder)
    }

    /// Whether files can be made in the folder.
    ///
    /// # Errors
    /// What the system says when they cannot.
    pub(super) fn try_folder(&mut self) -> io::Result<()> {
        self.make_folder()?;
        if self.lock.is_none() {
            self.claim()?;
            self.unclaim();
        }
        Ok(())
    }

    fn unclaim(&mut self) {
        if self.lock.take().is_some() {
            let _ = fs::remove_file(self.lock_path());
        }
    }

    /// A segment to write to, and how long it is.
    fn writable(&mut self) -> io::Result<u64> {
        if let Some(last) = self.segments.back()
            && self.open.is_some()
            && last.bytes < SEGMENT_BYTES
        {
            return Ok(last.bytes);
        }
        self.make_folder()?;
        self.claim()?;
        let number = self.segments.back().map_or(1, |last| last.number + 1);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        self.open = Some(options.open(self.path(number))?);
        self.segments.push_back(Segment { number, bytes: 0 });
        Ok(0)
    }

    /// Takes the lock, which the system gives back when the process ends.
    fn claim(&mut self) -> io::Result<()> {
        if self.lock.is_some() {
            return Ok(());
        }
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let lock = options.open(self.lock_path())?;
        lock.try_lock().map_err(io::Error::from)?;
        self.lock = Some(lock);
        Ok(())
    }

    /// Reads up to `max` records from the front, which stay until [`Spool::drop_front`].
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn front(&mut self, max: usize) -> io::Result<Front> {
        let mut front = Front {
            records: Vec::new(),
            read: self.read,
            torn: false,
            damaged: 0,
        };
        let Some(segment) = self.segments.front() else {
            return Ok(front);
        };
        let mut file = BufReader::new(File::open(self.path(segment.number))?);
        file.seek(SeekFrom::Start(self.read))?;
        let mut line = Vec::new();
        loop {
            line.clear();
            if front.records.len() == max || file.read_until(b'\n', &mut line)? == 0 {
                break;
            }
            // A process that was killed may have left half a line: nothing was promised of it.
            let Some(whole) = line.strip_suffix(b"\n") else {
                front.torn = true;
                break;
            };
            match std::str::from_utf8(whole).ok().and_then(Chained::parse) {
                Some(record) => front.records.push(record),
                None => front.damaged += 1,
            }
            front.read += line.len() as u64;
        }
        Ok(front)
    }

    /// Forgets what was read.
    pub(super) fn drop_front(&mut self, front: &Front) {
        self.records = self.records.saturating_sub(front.records.len() as u64);
        self.read = front.read;
        self.oldest = front.records.last().map(|record| record.ms).or(self.oldest);
        self.damaged |= front.damaged > 0;
        // More may have been written to it since.
        let read = |segment: &Segment| front.torn || segment.bytes <= front.read;
        if !self.segments.front().is_some_and(read) {
            return;
        }
        if let Some(gone) = self.segments.pop_front() {
            let path = self.path(gone.number);
            let _ = if std::mem::take(&mut self.damaged) {
                fs::rename(&path, path.with_extension("damaged"))
            } else {
                fs::remove_file(path)
            };
        }
        self.read = 0;
        if self.segments.is_empty() {
            self.open = None;
            self.records = 0;
            self.oldest = None;
            self.unclaim();
        }
    }

    fn path(&self, number: u32) -> PathBuf {
        self.folder
            .join(format!("{}.{number:08}.{SEGMENT}", self.replica))
    }

    fn lock_path(&self) -> PathBuf {
        self.folder.join(format!("{}.{LOCK}", self.replica))
    }
}

/// The chain and the number of a segment, by its name.
fn segment(name: &str) -> Option<(String, u32)> {
    let (replica, number) = name
        .strip_suffix(SEGMENT)?
        .strip_suffix('.')?
        .rsplit_once('.')?;
    Some((replica.to_owned(), number.parse().ok()?))
}

impl Chained {
    /// As one line. The canonical form has no line ends.
    fn line(&self) -> String {
        format!("{} {} {}\n", self.ms, self.record.hash(), self.text)
    }

    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.splitn(3, ' ');
        let (ms, hash, text) = (parts.next()?, parts.next()?, parts.next()?);
        let mut record: Record = serde_json::from_str(text).ok()?;
        record.hash = Some(hash.to_owned());
        Some(Self {
            ms: ms.parse().ok()?,
            record,
            text: text.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::chain::Chain;
    use super::super::record::{Draft, EventType};
    use super::*;

    fn records(chain: &mut Chain, count: usize) -> Vec<Chained> {
        let draft = |_| Draft::new(EventType::A2aCall);
        (0..count)
            .map(draft)
            .map(|draft| chain.push(draft))
            .collect()
    }

    fn numbers(records: &[Chained]) -> Vec<i64> {
        records.iter().map(|one| one.record.seq).collect()
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
            let front = spool.front(777).unwrap();
            seen.extend(numbers(&front.records));
            spool.drop_front(&front);
        }
        assert_eq!(seen, (1..=20_000).collect::<Vec<i64>>());
        assert_eq!((spool.bytes(), spool.records()), (0, 0));
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
        assert_eq!(numbers(&spool.front(10).unwrap().records), [1, 2, 3]);
    }

    #[test]
    fn what_is_no_record_any_more_is_counted_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let mut chain = Chain::new("here");
        let mut spool = Spool::new(folder.path(), "here", 1 << 20);
        spool.append(records(&mut chain, 2).iter()).unwrap();
        let path = spool.path(1);
        drop(spool);
        let mut bytes = fs::read(&path).unwrap();
        bytes.extend(b"\xff\xfe\nno record\n");
        fs::write(&path, bytes).unwrap();
        let mut left = Spool::left(folder.path());
        let front = left[0].front(100).unwrap();
        assert_eq!((front.records.len(), front.damaged), (2, 2));
        left[0].drop_front(&front);
        assert!(left[0].is_empty());
        assert!(path.with_extension("damaged").exists());
        // A folder of the name of a segment, and what only looks like one.
        fs::create_dir(folder.path().join("other.00000001.spool")).unwrap();
        assert!(Spool::left(folder.path()).is_empty());
    }

    #[test]
    fn what_a_killed_process_left_is_taken_over_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut chain = Chain::new("gone");
        let mut spool = Spool::new(folder.path(), "gone", 1 << 20);
        spool.append(records(&mut chain, 5).iter()).unwrap();
        assert!(Spool::left(folder.path()).is_empty(), "it lives");
        let half = spool.path(1);
        drop(spool);
        let mut file = OpenOptions::new().append(true).open(half).unwrap();
        file.write_all(b"123 6 abc {\"half").unwrap();
        let mut left = Spool::left(folder.path());
        assert!(Spool::left(folder.path()).is_empty(), "taken");
        let front = left[0].front(100).unwrap();
        assert_eq!(numbers(&front.records), [1, 2, 3, 4, 5]);
        left[0].drop_front(&front);
        assert!(left[0].is_empty());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
