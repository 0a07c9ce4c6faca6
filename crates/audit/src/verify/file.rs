//! Verification of a file: an export, or an excerpt of one.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::Path;

use super::super::export::Line;
use super::{Report, Verifier};

/// A file that cannot be verified.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read {0}")]
    Read(String, #[source] io::Error),
    /// One of its lines, by its number, is none of an export.
    #[error("line {1} of {0} is no line of an export")]
    Line(String, u64, #[source] serde_json::Error),
}

/// Verifies a file, or standard input for `-`, in two passes: the references between chains come first. A pipe is
/// buffered in memory. Also returns true if the file has the chain heads.
///
/// # Errors
/// [`FileError`].
pub fn verify_file(path: &Path, mut verifier: Verifier<'_>) -> Result<(Report, bool), FileError> {
    let unread = |error| FileError::Read(path.display().to_string(), error);
    // A pipe can be read once.
    let is_input = path == Path::new("-");
    let is_file = !is_input && fs::metadata(path).is_ok_and(|file| file.is_file());
    let mut text = Vec::new();
    if is_input {
        io::stdin().lock().read_to_end(&mut text).map_err(unread)?;
    } else if !is_file {
        let read = File::open(path).and_then(|mut file| file.read_to_end(&mut text));
        read.map_err(unread)?;
    }
    let each_line = |look: &mut dyn FnMut(Line)| {
        let mut lines: Box<dyn BufRead + '_> = match is_file {
            true => Box::new(BufReader::new(File::open(path).map_err(unread)?)),
            false => Box::new(text.as_slice()),
        };
        let mut line = String::new();
        for number in 1.. {
            line.clear();
            if lines.read_line(&mut line).map_err(unread)? == 0 {
                break;
            }
            if !line.trim().is_empty() {
                let wrong = |error| FileError::Line(path.display().to_string(), number, error);
                look(Line::parse(&line).map_err(wrong)?);
            }
        }
        Ok::<_, FileError>(())
    };
    let mut chains = Vec::new();
    each_line(&mut |line| match line {
        Line::Record(record) => verifier.add_checkpoint(&record),
        Line::Chain(chain) => chains.push(chain),
    })?;
    chains.iter().for_each(|chain| verifier.add_chain(chain));
    each_line(&mut |line| {
        if let Line::Record(record) = line {
            verifier.verify_record(&record);
        }
    })?;
    Ok((verifier.finish(&chains), !chains.is_empty()))
}
