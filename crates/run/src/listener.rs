//! The process that listens at the agent's port, as `/proc` shows it: another one would pass for the agent.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;

use regex::Regex;

/// Returns the id of a process outside the process group `group` that takes connections to `port` of 127.0.0.1.
///
/// # Errors
/// The system does not show sockets and processes.
pub(super) fn find_stranger(port: u16, group: &str) -> io::Result<Option<String>> {
    let (mut sockets, mut other) = (listening_sockets(port)?, "hidden".to_owned());
    for entry in fs::read_dir("/proc")?.flatten() {
        let Ok(about) = fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        // Behind the command's name, which may have any sign: the state, the parent and the process group.
        let behind = about.rsplit(')').next().unwrap_or_default();
        let is_own = behind.split(' ').nth(3) == Some(group);
        let files: Vec<String> = open_files(&entry.path()).collect();
        if is_own {
            sockets.retain(|socket| !files.contains(socket));
        } else if files.iter().any(|file| sockets.contains(file)) {
            other = entry.file_name().display().to_string();
        }
    }
    // Some may have been closed meanwhile.
    let is_taken = !sockets.is_empty() && !sockets.is_disjoint(&listening_sockets(port)?);
    Ok(is_taken.then_some(other))
}

/// Returns the sockets that take connections to `port` of 127.0.0.1, as links in `/proc/PID/fd` name them.
fn listening_sockets(port: u16) -> io::Result<HashSet<String>> {
    // A system without IPv6 has no second table.
    let of_six = fs::read_to_string("/proc/net/tcp6").unwrap_or_default();
    let table = fs::read_to_string("/proc/net/tcp")? + &of_six;
    // The local address is any or that of loopback, also at the end of one of IPv6; 0A is a socket that listens.
    let loopback = u32::from_ne_bytes([127, 0, 0, 1]);
    let line = format!(r": (?:0+|\w*{loopback:08X}):{port:04X} \S+ 0A (?:\S+ +){{5}}(\d+)");
    let line = Regex::new(&line).map_err(io::Error::other)?;
    let socket = |line: regex::Captures<'_>| format!("socket:[{}]", &line[1]);
    Ok(line.captures_iter(&table).map(socket).collect())
}

/// Returns the open files of a process, as their links name them; none where the system hides them.
fn open_files(process: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(process.join("fd")).into_iter().flatten();
    let links = entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    links.filter_map(|link| link.into_os_string().into_string().ok())
}
