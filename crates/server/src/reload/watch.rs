//! Detects changes of files: written in place, replaced, or behind a link that now leads elsewhere (a
//! ConfigMap).
//!
//! Folders are watched instead of files, since a watch follows the inode and not the name. An event only
//! wakes the task; the files themselves show whether they changed. They are also checked every few seconds,
//! for file systems without events.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::{ErrorKind, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

/// Interval between two checks without events.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Time for which files must be unchanged before they are read.
const QUIET: Duration = Duration::from_millis(100);

/// Maximum time to wait for a file that is being written continuously.
const QUIET_WAIT_MAX: Duration = Duration::from_secs(2);

/// Maximum number of links that are followed: the limit of the system.
const LINKS_MAX: usize = 40;

/// The state of each file: inode, length and times.
type FileStamps = Vec<Option<[i64; 5]>>;

/// The watched files.
pub(super) struct Files {
    paths: Vec<PathBuf>,
    watcher: Option<RecommendedWatcher>,
    woken: Arc<Notify>,
    seen: FileStamps,
    /// True if the failure of the watch was logged.
    warned: bool,
}

impl Files {
    /// Begins to watch.
    pub(super) fn watch(paths: Vec<PathBuf>) -> Self {
        let woken = Arc::new(Notify::new());
        let wake = Arc::clone(&woken);
        let made = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // Read accesses, including those of this process, are not changes.
            if !matches!(&event, Ok(event) if matches!(event.kind, EventKind::Access(_))) {
                wake.notify_one();
            }
        });
        let mut files = Self {
            seen: read_stamps(&paths),
            paths,
            watcher: None,
            woken,
            warned: false,
        };
        match made {
            Ok(watcher) => files.watcher = Some(watcher),
            Err(error) => files.warn_once(&error),
        }
        files.watch_folders();
        files
    }

    /// Waits until a file differs from the last check and is written completely. Never resolves if there
    /// are no files.
    pub(super) async fn wait_for_change(&mut self) {
        if self.paths.is_empty() {
            return std::future::pending().await;
        }
        loop {
            tokio::select! {
                // Bounds the rate of checks if another file in the folder, such as a database, changes all
                // the time.
                () = self.woken.notified() => sleep(QUIET).await,
                () = sleep(LOOK_EVERY) => self.watch_folders(),
            }
            if read_stamps(&self.paths) != self.seen {
                self.seen = self.wait_until_settled().await;
                self.watch_folders();
                return;
            }
        }
    }

    /// Replaces the set of watched files. False if it is the same.
    pub(super) fn set_paths(&mut self, paths: Vec<PathBuf>) -> bool {
        let is_other = paths != self.paths;
        if is_other {
            self.paths = paths;
            self.accept_current();
            self.watch_folders();
        }
        is_other
    }

    /// Takes the current state of the files as unchanged.
    pub(super) fn accept_current(&mut self) {
        self.seen = read_stamps(&self.paths);
    }

    async fn wait_until_settled(&self) -> FileStamps {
        let deadline = Instant::now() + QUIET_WAIT_MAX;
        let mut before = read_stamps(&self.paths);
        loop {
            sleep(QUIET).await;
            let now = read_stamps(&self.paths);
            if now == before || Instant::now() >= deadline {
                return now;
            }
            before = now;
        }
    }

    /// Watches every folder on the path of each file. Repeated each time, since a folder may have been
    /// replaced by another of the same name.
    fn watch_folders(&mut self) {
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        let folders: BTreeSet<PathBuf> = self.paths.iter().flat_map(|p| folders_of(p)).collect();
        let mut failed = None;
        for folder in folders {
            match watcher.watch(&folder, RecursiveMode::NonRecursive) {
                Ok(()) => {}
                Err(error) if is_absent(&error) => {}
                Err(error) => failed = Some(error),
            }
        }
        if let Some(error) = failed {
            self.warn_once(&error);
        }
    }

    fn warn_once(&mut self, error: &notify::Error) {
        if !self.warned {
            self.warned = true;
            let every = humantime::format_duration(LOOK_EVERY);
            tracing::warn!(
                %error,
                "failed to watch the configuration files; they are checked every {every} instead, and SIGHUP reloads at once"
            );
        }
    }
}

fn is_absent(error: &notify::Error) -> bool {
    match &error.kind {
        ErrorKind::PathNotFound => true,
        ErrorKind::Io(error) => error.kind() == io::ErrorKind::NotFound,
        _ => false,
    }
}

fn read_stamps(paths: &[PathBuf]) -> FileStamps {
    let state = |path: &PathBuf| {
        let data = std::fs::metadata(path).ok()?;
        let inode = i64::from_ne_bytes(data.ino().to_ne_bytes());
        let length = i64::try_from(data.len()).unwrap_or(i64::MAX);
        let times = [data.ctime(), data.ctime_nsec()];
        Some([inode, length, times[0], times[1], data.mtime_nsec()])
    };
    paths.iter().map(state).collect()
}

/// Returns the folders of a file and of all its link targets.
fn folders_of(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let folder = match path.parent() {
            Some(folder) if folder.as_os_str().is_empty() => PathBuf::from("."),
            Some(folder) => folder.to_owned(),
            None => break,
        };
        found.push(folder.clone());
        match std::fs::read_link(&path) {
            Ok(target) => path = folder.join(target),
            Err(_) => break,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use tokio::time::timeout;

    use super::*;

    /// Well below [`LOOK_EVERY`], so the change was noticed by an event.
    const SOON: Duration = Duration::from_secs(4);

    #[test]
    fn the_folders_of_links_are_watched_too() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("a")).unwrap();
        symlink("../b/..data/file", at("a/file")).unwrap();
        assert_eq!(folders_of(&at("a/file")), [at("a"), at("a/../b/..data")]);
        assert_eq!(folders_of(Path::new("file")), [PathBuf::from(".")]);
    }

    #[tokio::test]
    async fn every_way_to_change_a_file_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for version in ["one", "two"] {
            fs::create_dir(at(version)).unwrap();
            fs::write(at(version).join("file"), version).unwrap();
        }
        symlink("one", at("..data")).unwrap();
        symlink("..data/file", at("linked")).unwrap();
        fs::write(at("plain"), "1").unwrap();
        let mut files = Files::watch(vec![at("plain"), at("linked")]);

        let other = timeout(Duration::from_millis(500), files.wait_for_change());
        fs::write(at("other"), "1").unwrap();
        other.await.expect_err("a file beside it is none of ours");

        let ways: [(&str, &dyn Fn()); 4] = [
            ("in place", &|| fs::write(at("plain"), "22").unwrap()),
            ("renamed over", &|| {
                fs::write(at("new"), "33").unwrap();
                fs::rename(at("new"), at("plain")).unwrap();
            }),
            ("deleted and made again", &|| {
                fs::remove_file(at("plain")).unwrap();
                fs::write(at("plain"), "44").unwrap();
            }),
            ("a link that leads elsewhere", &|| {
                symlink("two", at("..new")).unwrap();
                fs::rename(at("..new"), at("..data")).unwrap();
            }),
        ];
        for (way, change) in ways {
            change();
            timeout(SOON, files.wait_for_change()).await.expect(way);
        }
    }
}
