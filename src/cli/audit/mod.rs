//! `a2a-gateway audit`: verifies and exports the records in the database, also while gateways write them, or in
//! a file.

mod report;

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};

use self::report::{AnchorUse, format_report};
use super::{USAGE, block_on, print, print_error, print_note};
use crate::audit::{
    Filter, Line, Records, Report, Scope, Verifier, anchored_statements, filter_values,
};
use crate::config::load::{Layers, load};
use crate::config::{AuditAnchor, Config, open_regular};
use crate::db::Db;
use crate::metrics::Metrics;
use crate::store::{InvalidUrl, Unavailable};
use crate::trust::{self, KeyError, KeySet, KeySetError};
use crate::workspace::Timestamp;

/// Replaces `stores.timeout`: a page of records may take longer, and no caller waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Largest JWKS that is read, in bytes.
const JWKS_BYTES_MAX: u64 = 1024 * 1024;

const EXAMPLES: &str = "\
Examples:
  a2a-gateway audit verify --config gateway.toml
  a2a-gateway audit export --caller acme-dev --config gateway.toml";

const VERIFY_EXAMPLES: &str = "\
Examples:
  a2a-gateway audit verify --config gateway.toml
  a2a-gateway audit verify records.jsonl --jwks jwks.json        an export, elsewhere";

const EXPORT_EXAMPLES: &str = "\
Examples:
  a2a-gateway audit export --config gateway.toml > records.jsonl
  a2a-gateway audit export --workspace acme-dev --since 2026-11-28T00:00:00Z --config gateway.toml";

/// `a2a-gateway audit verify|export`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check that no record was changed, removed, put in or reordered
    ///
    /// Reads every chain in the database, or in the file of an export, and names the first record of each
    /// that is not as it was written. Exit status: 0 all is as it was written, 1 something is not, could not
    /// be read, or there is nothing to prove. Writes nothing, and may run while gateways do.
    #[command(after_help = VERIFY_EXAMPLES)]
    Verify {
        /// The file of an export, or - for standard input; without it: the database of stores.sql
        file: Option<PathBuf>,
        /// A file with the public keys that gateways publish (/.well-known/jwks.json), once for each that you
        /// kept; without it: keys.dir
        #[arg(long, value_name = "FILE")]
        jwks: Vec<PathBuf>,
        /// A record that must be there: REPLICA:SEQ:HASH of an `Audit checkpoint` line in a log that was kept
        #[arg(long, value_name = "CHECKPOINT", value_parser = parse_expected)]
        expect: Vec<ExpectedRecord>,
        /// What audit.anchor kept: its file, the log, or what a receiver of it wrote down, one JSON object a line. The ends
        /// that it names must be there. Without it, for the database: the file of audit.anchor, if that is "file:…"
        #[arg(long, value_name = "FILE")]
        anchor: Vec<PathBuf>,
        /// The file holds an excerpt: chains may begin and end anywhere, but each needs a signed checkpoint behind its first record
        #[arg(long, requires = "file")]
        partial: bool,
        #[command(flatten)]
        place: ConfigArguments,
    },
    /// Write records to standard output, one JSON object a line, chain by chain
    ///
    /// Without a choice the export is whole: behind the records stands what is signed of each chain, so that
    /// `audit verify FILE --jwks FILE` proves it elsewhere. With one it is an excerpt.
    #[command(after_help = EXPORT_EXAMPLES)]
    Export {
        #[command(flatten)]
        choice: Box<FilterArguments>,
        #[command(flatten)]
        place: ConfigArguments,
    },
}

/// Where the records and the keys are.
#[derive(Args, Debug)]
struct ConfigArguments {
    /// Read settings from this TOML file, as `serve --config` does: stores.sql, keys.dir, audit.anchor and audit.retention
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set one setting, such as --set stores.sql=sqlite:/var/lib/a2a-gateway/gateway.db
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// Which records.
#[derive(Args, Debug)]
struct FilterArguments {
    /// Not before this time (RFC 3339)
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    since: Option<Timestamp>,
    /// Before this time (RFC 3339)
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    until: Option<Timestamp>,
    /// With this workspace as caller or target
    #[arg(long, value_name = "ID", value_parser = filter_values::parse_text)]
    workspace: Option<String>,
    /// By this caller, as records name callers; `operator` for every operator
    #[arg(long, value_name = "CALLER", value_parser = filter_values::parse_text)]
    caller: Option<String>,
    /// To this workspace
    #[arg(long, value_name = "ID", value_parser = filter_values::parse_text)]
    target: Option<String>,
    /// That ended so: answered, done, caller_left, or the reason of a refusal
    #[arg(long, value_name = "WORD", value_parser = filter_values::parse_outcome)]
    outcome: Option<String>,
    /// By this method: send_message, get_task, …, or a name of it in any version of A2A
    #[arg(long, value_name = "WORD", value_parser = filter_values::parse_method)]
    method: Option<String>,
    /// About this: A2A_CALL, TOKEN_REVOKED, …
    #[arg(long, value_name = "WORD", value_parser = filter_values::parse_event_type)]
    event_type: Option<String>,
    /// Of this request
    #[arg(long, value_name = "ID", value_parser = filter_values::parse_text)]
    request_id: Option<String>,
    /// Of this replica's chain
    #[arg(long, value_name = "NAME", value_parser = filter_values::parse_text)]
    replica: Option<String>,
}

impl FilterArguments {
    fn into_filter(self) -> Filter {
        Filter {
            workspace: self.workspace,
            caller: self.caller.as_deref().map(filter_values::parse_caller),
            target: self.target,
            outcome: self.outcome,
            event_type: self.event_type,
            method: self.method,
            request_id: self.request_id,
            replica: self.replica,
            since: self.since,
            until: self.until,
        }
    }
}

/// A known record, which must be in the chain.
#[derive(Clone, Debug)]
struct ExpectedRecord {
    replica: String,
    seq: i64,
    hash: String,
}

fn parse_expected(text: &str) -> Result<ExpectedRecord, &'static str> {
    let mut parts = text.rsplitn(3, ':');
    let parts = (parts.next(), parts.next(), parts.next());
    let (Some(hash), Some(seq), Some(replica)) = parts else {
        return Err("write REPLICA:SEQ:HASH");
    };
    let seq = seq.parse().ok().filter(|seq| *seq > 0);
    let seq = seq.ok_or("SEQ is the number of a record, from 1")?;
    Ok(ExpectedRecord {
        replica: replica.to_owned(),
        seq,
        hash: hash.to_owned(),
    })
}

fn parse_time(text: &str) -> Result<Timestamp, &'static str> {
    Timestamp::parse(text).ok_or("write a time by RFC 3339, such as 2026-11-21T10:00:00Z")
}

#[derive(Debug, thiserror::Error)]
enum AuditError {
    #[error("stores.sql cannot be used")]
    Url(#[from] InvalidUrl),
    #[error("the records cannot be read")]
    Store(#[from] Unavailable),
    #[error("{} is no database of a gateway: --config or --set stores.sql=… says where it is", .0)]
    NoDatabase(String),
    #[error(transparent)]
    Keys(#[from] KeyError),
    #[error(
        "without --jwks the keys of this machine's gateway count: give the ones that it publishes (/.well-known/jwks.json) with --jwks"
    )]
    NoKeys(#[source] KeyError),
    #[error("cannot read {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is {why}", path.display())]
    Jwks { path: PathBuf, why: KeySetError },
    #[error(
        "cannot read the anchor {} (--anchor, or audit.anchor, which begins at the working directory)",
        path.display()
    )]
    AnchorFile {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} names no signed end of a chain: give what audit.anchor kept", .0.display())]
    NoAnchor(PathBuf),
    #[error("{}: {why}", path.display())]
    Anchor { path: PathBuf, why: String },
    #[error("line {line} of {} is no line of an export: {source}", path.display())]
    Line {
        path: PathBuf,
        line: usize,
        source: serde_json::Error,
    },
    #[error("cannot print")]
    Output(#[from] io::Error),
}

pub(super) fn run(arguments: Arguments) -> ExitCode {
    let place = match &arguments.command {
        Command::Verify { place, .. } | Command::Export { place, .. } => place,
    };
    let layers = Layers::of_this_process(place.config.clone(), place.set.clone());
    let config = match load(&layers) {
        Ok(loaded) => loaded.config,
        Err(error) => {
            print_error(&error);
            return ExitCode::from(USAGE);
        }
    };
    match block_on(run_command(arguments.command, config)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // The reader has closed the pipe.
        Err(AuditError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::FAILURE
        }
        Err(error) => {
            print_error(&error);
            ExitCode::FAILURE
        }
    }
}

/// Runs the command. True if the records are intact.
async fn run_command(command: Command, config: Config) -> Result<bool, AuditError> {
    match command {
        Command::Verify {
            file,
            jwks,
            expect,
            anchor,
            partial,
            ..
        } => {
            let scope = match &file {
                None => Scope::Database,
                Some(_) => {
                    if partial {
                        Scope::Excerpt
                    } else {
                        Scope::Export
                    }
                }
            };
            let keys = load_keys(&jwks, scope, &config)?;
            let mut verifier = Verifier::new(&keys, scope);
            for ExpectedRecord { replica, seq, hash } in expect {
                verifier.expect_record(&replica, seq, hash);
            }
            let kept = config.audit.retention;
            let oldest = (!kept.is_zero()).then(|| Timestamp::now().before(kept));
            let mut used = Vec::new();
            for path in list_anchors(anchor, scope, &config) {
                used.push(read_anchor(path, &mut verifier, oldest)?);
            }
            let started = Instant::now();
            let (report, ends) = match &file {
                Some(path) => verify_file(path, verifier)?,
                None => (
                    open_records(config).await?.verify_chains(verifier).await?,
                    true,
                ),
            };
            let took = started.elapsed();
            if !ends && scope == Scope::Export && !report.problems.is_empty() {
                print(
                    "The file does not say where its chains begin and end, so it is read as one that was cut. An excerpt by time \
                     or by replica is read with --partial.\n",
                )?;
            }
            print(&format_report(&report, &used, took))?;
            Ok(report.is_proven())
        }
        Command::Export { choice, .. } => {
            let (records, filter) = (open_records(config).await?, choice.into_filter());
            let mut exported = records.start_export(&filter).await?;
            let mut nothing = true;
            loop {
                let lines = exported.next().await?;
                if lines.is_empty() {
                    break;
                }
                nothing = false;
                print(&lines)?;
            }
            if nothing {
                print_note("there is no record that fits");
            }
            Ok(true)
        }
    }
}

/// Opens the records of an existing database; creates none.
async fn open_records(mut config: Config) -> Result<Records, AuditError> {
    use secrecy::ExposeSecret as _;
    let url = config.stores.sql.expose_secret();
    if let Some(path) = url.strip_prefix("sqlite:")
        && !Path::new(path.strip_prefix("//").unwrap_or(path)).is_file()
    {
        return Err(AuditError::NoDatabase(path.to_owned()));
    }
    config.stores.timeout = config.stores.timeout.max(PATIENCE);
    let db = Db::open(&config.stores, Arc::new(Metrics::new()))?;
    db.accept_schema();
    Ok(Records::new(db))
}

fn load_keys(jwks: &[PathBuf], scope: Scope, config: &Config) -> Result<KeySet, AuditError> {
    let mut keys = KeySet::default();
    if jwks.is_empty() {
        let own = trust::read_published_keys(&config.keys.dir);
        return own.map_err(|error| match scope {
            Scope::Database => error.into(),
            Scope::Export | Scope::Excerpt => AuditError::NoKeys(error),
        });
    }
    for path in jwks {
        keys = keys.union(read_jwks(path)?);
    }
    Ok(keys)
}

/// Returns the anchor files: those that were named, else that of the configuration, beside its database.
fn list_anchors(named: Vec<PathBuf>, scope: Scope, config: &Config) -> Vec<PathBuf> {
    match &config.audit.anchor {
        Some(AuditAnchor::File(path)) if named.is_empty() && scope == Scope::Database => {
            vec![path.clone()]
        }
        _ => named,
    }
}

/// Requires that the chain heads in a file are in the chains.
fn read_anchor(
    path: PathBuf,
    verifier: &mut Verifier<'_>,
    oldest: Option<Timestamp>,
) -> Result<AnchorUse, AuditError> {
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(source) => return Err(AuditError::AnchorFile { path, source }),
    };
    let statements = anchored_statements(&String::from_utf8_lossy(&text));
    if statements.is_empty() {
        return Err(AuditError::NoAnchor(path));
    }
    let (mut checked, mut old) = (0, 0);
    for statement in statements {
        match verifier.add_anchor(&statement, oldest) {
            Ok(true) => checked += 1,
            Ok(false) => old += 1,
            Err(why) => return Err(AuditError::Anchor { path, why }),
        }
    }
    Ok(AnchorUse { path, checked, old })
}

fn open_file(path: &Path) -> Result<File, AuditError> {
    File::open(path).map_err(|source| AuditError::File {
        path: path.to_owned(),
        source,
    })
}

fn read_jwks(path: &Path) -> Result<KeySet, AuditError> {
    let failed = |source| AuditError::File {
        path: path.to_owned(),
        source,
    };
    let mut body = Vec::new();
    let file = open_regular(path).map_err(failed)?;
    file.take(JWKS_BYTES_MAX)
        .read_to_end(&mut body)
        .map_err(failed)?;
    KeySet::parse(&body).map_err(|why| AuditError::Jwks {
        path: path.to_owned(),
        why,
    })
}

/// Verifies the file in two passes: the references between chains come first. A pipe is buffered in memory.
/// Also returns true if the file has the chain heads.
fn verify_file(path: &Path, mut verifier: Verifier<'_>) -> Result<(Report, bool), AuditError> {
    let mut kept = None;
    // A pipe can be read once.
    if path == Path::new("-") {
        let mut text = Vec::new();
        io::stdin().lock().read_to_end(&mut text)?;
        kept = Some(text);
    } else if !std::fs::metadata(path).is_ok_and(|file| file.is_file()) {
        let mut text = Vec::new();
        let read = open_file(path)?.read_to_end(&mut text);
        read.map_err(|source| AuditError::File {
            path: path.to_owned(),
            source,
        })?;
        kept = Some(text);
    }
    let mut chains = Vec::new();
    each_line(path, kept.as_deref(), |line| match line {
        Line::Record(record) => verifier.add_checkpoint(&record),
        Line::Chain(chain) => chains.push(chain.into_row()),
    })?;
    chains.iter().for_each(|chain| verifier.add_chain(chain));
    each_line(path, kept.as_deref(), |line| {
        if let Line::Record(record) = line {
            verifier.verify_record(&record);
        }
    })?;
    Ok((verifier.finish(&chains), !chains.is_empty()))
}

fn each_line(
    path: &Path,
    kept: Option<&[u8]>,
    mut look: impl FnMut(Line),
) -> Result<(), AuditError> {
    let failed = |source| AuditError::File {
        path: path.to_owned(),
        source,
    };
    let mut lines: Box<dyn io::BufRead + '_> = match kept {
        Some(text) => Box::new(text),
        None => Box::new(BufReader::new(open_file(path)?)),
    };
    let (mut text, mut number) = (String::new(), 0);
    loop {
        text.clear();
        number += 1;
        if lines.read_line(&mut text).map_err(failed)? == 0 {
            return Ok(());
        }
        if text.trim().is_empty() {
            continue;
        }
        look(Line::parse(&text).map_err(|source| AuditError::Line {
            path: path.to_owned(),
            line: number,
            source,
        })?);
    }
}
