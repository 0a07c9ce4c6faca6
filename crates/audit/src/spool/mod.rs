//! The on-disk queue of chained records while the database is down. Records are read from the front and
//! appended at the end, in segment files, so that a segment is deleted once it is read.
//!
//! A process holds a lock file while it has segments. The spool of a killed process is adopted by the next
//! gateway that finds it. All calls block; run them on blocking threads.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::chain::ChainedRecord;
use super::pace::Pace;
use kernel::config::open_regular;

/// Size in bytes at which a segment is closed.
const SEGMENT_BYTES: u64 = 4 * 1024 * 1024;

/// The mode bit of files that every user can write. No gateway creates such a file.
const WRITABLE_BY_ALL: u32 = 0o002;

const SEGMENT: &str = "spool";
const LOCK: &str = "lock";

/// One segment file.
struct Segment {
    number: u32,
    bytes: u64,
    /// Records that this process wrote to it.
    records: u64,
}

/// The queued records of one chain.
#[derive(Default)]
pub(super) struct Spool {
    folder: PathBuf,
    pub(super) replica: String,
    bytes_max: u64,
    segments: VecDeque<Segment>,
    /// The last segment, while it is being written.
    open: Option<File>,
    /// Offset in the first segment up to which it has been read.
    read: u64,
    /// Records that were read from the first segment.
    taken: u64,
    /// True if the first segment has a line that is not a record.
    damaged: bool,
    /// Records in the queue.
    pub(super) records: u64,
    /// The time of the oldest queued record, in milliseconds since 1970. It is approximate while the spool is read.
    pub(super) oldest: Option<i64>,
    /// The lock, held while there are segments.
    lock: Option<File>,
}

/// Records from the front, and the offset of the next one.
pub(super) struct Front {
    pub(super) records: Arc<Vec<ChainedRecord>>,
    read: u64,
    /// Lines that are not records, and records that were removed with their file or cut off.
    pub(super) damaged: u64,
}

impl Spool {
    /// Creates an empty spool, without I/O.
    pub(super) fn new(folder: &Path, replica: &str, bytes_max: u64) -> Self {
        Self {
            folder: folder.to_owned(),
            replica: replica.to_owned(),
            bytes_max,
            ..Self::default()
        }
    }

    /// Returns the spools of processes that no longer run, with their locks held.
    pub(super) fn find_abandoned(folder: &Path) -> Vec<Self> {
        let Ok(entries) = fs::read_dir(folder) else {
            return Vec::new();
        };
        // Anything but a regular file was not created by a gateway, and reading it may block.
        let names = entries
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
            .filter_map(|entry| entry.file_name().into_string().ok());
        let mut found: Vec<(String, u32)> =
            names.filter_map(|name| parse_segment_name(&name)).collect();
        found.sort();
        let mut left: Vec<Self> = Vec::new();
        for (replica, number) in found {
            if left.last().is_none_or(|spool| spool.replica != replica) {
                left.push(Self::new(folder, &replica, 0));
            }
            let Some(spool) = left.last_mut() else {
                continue;
            };
            // The lock is taken first, since the owner may be emptying the spool.
            if spool.take_lock().is_err() {
                continue;
            }
            let path = spool.segment_path(number);
            if let Ok(file) = fs::metadata(&path) {
                if file.mode() & WRITABLE_BY_ALL != 0 {
                    let path = path.display();
                    tracing::error!(%path, "file of audit records is writable by every user; its records are not signed (chmod 600 if they are genuine)");
                    continue;
                }
                spool.segments.push_back(Segment {
                    number,
                    bytes: file.len(),
                    records: 0,
                });
            }
        }
        for spool in left.iter_mut().filter(|spool| spool.is_empty()) {
            spool.release_lock();
        }
        left.retain(|spool| !spool.is_empty());
        left
    }

    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Returns the bytes in the queue.
    pub(super) fn byte_count(&self) -> u64 {
        let all: u64 = self.segments.iter().map(|segment| segment.bytes).sum();
        all.saturating_sub(self.read)
    }

    /// Returns the bytes that can still be appended.
    pub(super) fn free_bytes(&self) -> u64 {
        self.bytes_max.saturating_sub(self.byte_count())
    }

    /// Appends records, all or none, and syncs them to disk.
    ///
    /// # Errors
    /// `StorageFull` when `audit.spool_bytes` is reached; otherwise the error of the system.
    pub(super) fn append<'a>(
        &mut self,
        records: impl Iterator<Item = &'a ChainedRecord>,
    ) -> io::Result<()> {
        let mut lines = String::new();
        let mut count = 0;
        let mut oldest = self.oldest;
        let mut pace = Pace::new(self.records);
        for record in pace.pieces(records) {
            oldest.get_or_insert(record.ms);
            lines.push_str(&record.to_spool_line());
            count += 1;
        }
        let more = lines.len() as u64;
        if self.byte_count() + more > self.bytes_max {
            return Err(full_spool_error());
        }
        let before = self.open_segment()?;
        let Some(file) = &mut self.open else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let written = file
            .write_all(lines.as_bytes())
            .and_then(|()| file.sync_data());
        if let Err(error) = written {
            // A partial line would corrupt the next record.
            let _ = file
                .set_len(before)
                .and_then(|()| file.seek(SeekFrom::End(0)));
            return Err(error);
        }
        if let Some(segment) = self.segments.back_mut() {
            segment.bytes += more;
            segment.records += count;
        }
        self.records += count;
        self.oldest = oldest;
        Ok(())
    }

    /// Appends as many of `records` as fit, and returns their number.
    pub(super) fn append_fitting(&mut self, records: &[ChainedRecord]) -> usize {
        let mut room = self.free_bytes();
        let fits = records.iter().take_while(|record| {
            let bytes = record.to_spool_line().len() as u64;
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

    /// Checks that files can be created in the folder.
    ///
    /// # Errors
    /// The error of the system.
    pub(super) fn check_folder(&mut self) -> io::Result<()> {
        self.make_folder()?;
        if self.lock.is_none() {
            self.take_lock()?;
            self.release_lock();
        }
        Ok(())
    }

    fn release_lock(&mut self) {
        if self.lock.take().is_some() {
            let _ = fs::remove_file(self.lock_path());
        }
    }

    /// Returns the length of the open segment. Opens a new one if needed.
    fn open_segment(&mut self) -> io::Result<u64> {
        if let Some(last) = self.segments.back()
            && self.open.is_some()
            && last.bytes < SEGMENT_BYTES
        {
            return Ok(last.bytes);
        }
        self.make_folder()?;
        self.take_lock()?;
        let number = self.segments.back().map_or(1, |last| last.number + 1);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        self.open = Some(options.open(self.segment_path(number))?);
        self.segments.push_back(Segment {
            number,
            bytes: 0,
            records: 0,
        });
        Ok(0)
    }

    /// Takes the lock. The system releases it when the process exits.
    fn take_lock(&mut self) -> io::Result<()> {
        if self.lock.is_some() {
            return Ok(());
        }
        let path = self.lock_path();
        // Opening anything but a regular file may block.
        if fs::symlink_metadata(&path).is_ok_and(|lock| !lock.is_file()) {
            return Err(io::Error::other("the lock is not a regular file"));
        }
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let lock = options.open(path)?;
        lock.try_lock().map_err(io::Error::from)?;
        self.lock = Some(lock);
        Ok(())
    }

    /// Reads up to `max` records from the front. They stay queued until [`Spool::drop_front`].
    ///
    /// # Errors
    /// The error of the system.
    pub(super) fn read_front(&mut self, max: usize) -> io::Result<Front> {
        let mut front = Front {
            records: Arc::default(),
            read: self.read,
            damaged: 0,
        };
        let Some(segment) = self.segments.front() else {
            return Ok(front);
        };
        let file = match open_regular(&self.segment_path(segment.number)) {
            Ok(file) => file,
            // The segment was removed and will not come back, so the next ones must not wait for it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                front.read = segment.bytes;
                front.damaged = segment.records.saturating_sub(self.taken).max(1);
                return Ok(front);
            }
            Err(error) => return Err(error),
        };
        let mut file = BufReader::new(file);
        file.seek(SeekFrom::Start(self.read))?;
        let mut line = Vec::new();
        let mut pace = Pace::new(self.records);
        while front.records.len() < max {
            line.clear();
            file.read_until(b'\n', &mut line)?;
            // A killed process may have left a partial line, which it never acknowledged. Records that this
            // process wrote were complete: they are counted as damaged, and later segments must not wait
            // for them.
            let Some(whole) = line.strip_suffix(b"\n") else {
                let met = self.taken + front.records.len() as u64 + front.damaged;
                front.damaged += segment.records.saturating_sub(met);
                front.read = front.read.max(segment.bytes);
                break;
            };
            let text = std::str::from_utf8(whole).ok();
            match text.and_then(|text| ChainedRecord::from_spool_line(text, &self.replica)) {
                Some(record) => Arc::make_mut(&mut front.records).push(record),
                None => front.damaged += 1,
            }
            front.read += line.len() as u64;
            pace.step();
        }
        Ok(front)
    }

    /// Removes the records that were read.
    pub(super) fn drop_front(&mut self, front: &Front) {
        let taken = front.records.len() as u64 + front.damaged;
        self.records = self.records.saturating_sub(taken);
        self.taken += taken;
        self.read = front.read;
        self.oldest = front.records.last().map(|record| record.ms).or(self.oldest);
        self.damaged |= front.damaged > 0;
        // The segment may have grown since.
        let read = |segment: &Segment| segment.bytes <= front.read;
        if !self.segments.front().is_some_and(read) {
            return;
        }
        if let Some(gone) = self.segments.pop_front() {
            let path = self.segment_path(gone.number);
            let _ = if std::mem::take(&mut self.damaged) {
                fs::rename(&path, path.with_extension("damaged"))
            } else {
                fs::remove_file(path)
            };
        }
        (self.read, self.taken) = (0, 0);
        if self.segments.is_empty() {
            self.open = None;
            self.records = 0;
            self.oldest = None;
            self.release_lock();
        }
    }

    fn segment_path(&self, number: u32) -> PathBuf {
        self.folder
            .join(format!("{}.{number:08}.{SEGMENT}", self.replica))
    }

    fn lock_path(&self) -> PathBuf {
        self.folder.join(format!("{}.{LOCK}", self.replica))
    }
}

/// Parses the chain and the number of a segment from its file name.
fn parse_segment_name(name: &str) -> Option<(String, u32)> {
    let (replica, number) = name
        .strip_suffix(SEGMENT)?
        .strip_suffix('.')?
        .rsplit_once('.')?;
    Some((replica.to_owned(), number.parse().ok()?))
}

/// Returns the error of a full spool.
pub(super) fn full_spool_error() -> io::Error {
    io::Error::new(
        io::ErrorKind::StorageFull,
        "audit.spool_bytes leaves no room",
    )
}

impl ChainedRecord {
    /// Serializes the record as one line. The canonical form contains no line breaks.
    fn to_spool_line(&self) -> String {
        let (hash, text) = (hex::encode(self.hash), self.record.canonical_text());
        format!("{} {hash} {text}\n", self.ms)
    }

    fn from_spool_line(line: &str, replica: &str) -> Option<Self> {
        let mut parts = line.splitn(3, ' ');
        let (ms, hash, text) = (parts.next()?, parts.next()?, parts.next()?);
        Self::from_canonical(replica, ms.parse().ok()?, hash, text)
    }
}

#[cfg(test)]
mod tests;
