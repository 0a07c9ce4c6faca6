//! `a2a-gateway audit`: verifies and exports the records in the database, also while gateways write them, or in
//! a file.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};

use access::workspace::Timestamp;
use audit::{
    AnchorUse, Filter, Records, Scope, Verifier, anchored_statements, filter_values, format_report,
    verify_file,
};
use ctl::{ConfigFlags, Failure, OrFail as _, print, print_note, records};
use kernel::config::{AuditAnchor, Config, open_regular};
use kernel::metrics::Metrics;
use stores::db::Db;
use trust::{self, KeySet};

/// Replaces `stores.timeout`: a page of records may take longer, and no caller waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

/// The store does not answer.
const UNREAD: &str = "the records cannot be read";

/// Largest JWKS that is read, in bytes.
const JWKS_BYTES_MAX: u64 = 1024 * 1024;

/// `a2a-gateway audit list|chain|verify|export`.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List records of a running gateway, the newest last; needs no files
    List {
        #[command(flatten)]
        choice: Box<records::ListArguments>,
        /// Only those about this: A2A_CALL, TOKEN_REVOKED, …
        #[arg(long, value_name = "WORD")]
        event_type: Option<String>,
    },
    /// Show the calls of a request's run as a tree of delegation; needs no files
    Chain(records::ChainArguments),
    /// Check that no record was changed, removed, put in or reordered
    ///
    /// Reads every chain in the database, or in the file of an export, and names the first record of each
    /// that is not as it was written. Exit status: 0 all is as it was written, 1 something is not, could not
    /// be read, or there is nothing to prove. Writes nothing, and may run while gateways do.
    Verify(Box<VerifyArguments>),
    /// Write records to standard output, one JSON object a line, chain by chain
    ///
    /// Without a choice the export is whole: behind the records stands what is signed of each chain, so that
    /// `audit verify FILE --jwks FILE` proves it elsewhere. With one it is an excerpt.
    Export {
        #[command(flatten)]
        choice: Box<FilterArguments>,
        #[command(flatten)]
        place: ConfigFlags,
    },
}

/// `a2a-gateway audit verify`.
#[derive(Args, Debug)]
pub(super) struct VerifyArguments {
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
    /// The file holds an excerpt: chains may begin and end anywhere, but each needs a signed checkpoint behind its
    /// first record
    #[arg(long, requires = "file")]
    partial: bool,
    #[command(flatten)]
    place: ConfigFlags,
}

/// Which records.
#[derive(Args, Debug)]
pub(super) struct FilterArguments {
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
    /// Of this run of a root
    #[arg(long, value_name = "ID", value_parser = filter_values::parse_text)]
    txn: Option<String>,
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
            txn: self.txn,
            replica: self.replica,
            since: self.since,
            until: self.until,
        }
    }
}

/// The replica, number and hash of a known record, which must be in the chain.
type ExpectedRecord = (String, i64, String);

fn parse_expected(text: &str) -> Result<ExpectedRecord, &'static str> {
    let parts: Vec<_> = text.rsplitn(3, ':').collect();
    let [hash, seq, replica] = parts[..] else {
        return Err("write REPLICA:SEQ:HASH");
    };
    let seq = seq.parse().ok().filter(|seq| *seq > 0);
    let seq = seq.ok_or("SEQ is the number of a record, from 1")?;
    Ok((replica.to_owned(), seq, hash.to_owned()))
}

fn parse_time(text: &str) -> Result<Timestamp, &'static str> {
    Timestamp::parse(text).ok_or("write a time by RFC 3339, such as 2026-11-21T10:00:00Z")
}

pub(super) async fn run(command: Command) -> Result<String, Failure> {
    match command {
        Command::List { choice, event_type } => records::run_audit_list(&choice, &event_type).await,
        Command::Chain(arguments) => records::run_audit_chain(&arguments).await,
        Command::Verify(arguments) => verify_records(*arguments).await,
        Command::Export { choice, place } => {
            let records = open_records(place.load()?.config)?;
            let filter = choice.into_filter();
            let mut exported = records.start_export(&filter).await.or_fail(UNREAD)?;
            let mut is_empty = true;
            loop {
                let lines = exported.next().await.or_fail(UNREAD)?;
                if lines.is_empty() {
                    break;
                }
                is_empty = false;
                print_part(&lines)?;
            }
            if is_empty {
                print_note("there is no record that fits");
            }
            Ok(String::new())
        }
    }
}

/// Verifies the records of a file or the database, prints the report, and fails unless they are intact.
async fn verify_records(arguments: VerifyArguments) -> Result<String, Failure> {
    let config = arguments.place.load()?.config;
    let scope = match (&arguments.file, arguments.partial) {
        (None, _) => Scope::Database,
        (Some(_), true) => Scope::Excerpt,
        (Some(_), false) => Scope::Export,
    };
    let keys = load_keys(&arguments.jwks, scope, &config)?;
    let mut verifier = Verifier::new(&keys, scope);
    for (replica, seq, hash) in arguments.expect {
        verifier.expect_record(&replica, seq, hash);
    }
    let kept = config.audit.retention;
    let oldest = (!kept.is_zero()).then(|| Timestamp::now().before(kept));
    let mut anchors = arguments.anchor;
    if let (Some(AuditAnchor::File(path)), true) = (&config.audit.anchor, anchors.is_empty())
        && scope == Scope::Database
    {
        anchors.push(path.clone());
    }
    let anchors = anchors.into_iter();
    let used = anchors.map(|path| read_anchor(path, &mut verifier, oldest));
    let used = used.collect::<Result<Vec<_>, _>>()?;
    let started = Instant::now();
    let (report, ends) = match &arguments.file {
        Some(path) => verify_file(path, verifier)?,
        None => {
            let verified = open_records(config)?.verify_chains(verifier).await;
            (verified.or_fail(UNREAD)?, true)
        }
    };
    let took = started.elapsed();
    if !ends && scope == Scope::Export && !report.problems.is_empty() {
        print_part(
            "The file does not say where its chains begin and end, so it is read as one that was cut. An excerpt by time \
             or by replica is read with --partial.\n",
        )?;
    }
    print_part(&format_report(&report, &used, took))?;
    Err(Failure::quiet(u8::from(!report.is_proven())))
}

/// Prints a part of the result. A reader that closes the pipe has not seen all of it.
fn print_part(text: &str) -> Result<(), Failure> {
    print(text).map_err(|error| Failure::from(error).with_status(1))
}

/// Opens the records of an existing database; creates none.
fn open_records(mut config: Config) -> Result<Records, Failure> {
    use secrecy::ExposeSecret as _;
    let url = config.stores.sql.expose_secret();
    if let Some(path) = url.strip_prefix("sqlite:")
        && !Path::new(path.strip_prefix("//").unwrap_or(path)).is_file()
    {
        return Err(Failure::new(format!(
            "{path} is no database of a gateway: --config or --set stores.sql=… says where it is"
        )));
    }
    config.stores.timeout = config.stores.timeout.max(PATIENCE);
    let db = Db::open(&config.stores, Arc::new(Metrics::new()));
    let db = db.or_fail("stores.sql cannot be used")?;
    db.accept_schema();
    Ok(Records::new(db))
}

fn load_keys(jwks: &[PathBuf], scope: Scope, config: &Config) -> Result<KeySet, Failure> {
    if jwks.is_empty() {
        let own = trust::read_published_keys(&config.keys.dir);
        return match scope {
            Scope::Database => Ok(own?),
            Scope::Export | Scope::Excerpt => own.or_fail(
                "without --jwks the keys of this machine's gateway count: give the ones that it publishes (/.well-known/jwks.json) with --jwks",
            ),
        };
    }
    let mut keys = jwks.iter().map(|path| read_jwks(path));
    keys.try_fold(KeySet::default(), |all, keys| Ok(all.union(keys?)))
}

/// Requires that the chain heads in a file are in the chains.
fn read_anchor(
    path: PathBuf,
    verifier: &mut Verifier<'_>,
    oldest: Option<Timestamp>,
) -> Result<AnchorUse, Failure> {
    let shown = path.display();
    let text = std::fs::read(&path).or_fail(format_args!(
        "cannot read the anchor {shown} (--anchor, or audit.anchor, which begins at the working directory)"
    ))?;
    let statements = anchored_statements(&String::from_utf8_lossy(&text));
    if statements.is_empty() {
        return Err(Failure::new(format!(
            "{shown} names no signed end of a chain: give what audit.anchor kept"
        )));
    }
    let (mut checked, mut old) = (0, 0);
    for statement in statements {
        match verifier.add_anchor(&statement, oldest) {
            Ok(true) => checked += 1,
            Ok(false) => old += 1,
            Err(why) => return Err(Failure::new(format!("{shown}: {why}"))),
        }
    }
    Ok(AnchorUse { path, checked, old })
}

fn read_jwks(path: &Path) -> Result<KeySet, Failure> {
    let shown = path.display();
    let mut body = Vec::new();
    let file = open_regular(path);
    let read = file.and_then(|file| file.take(JWKS_BYTES_MAX).read_to_end(&mut body));
    read.or_fail(format_args!("cannot read {shown}"))?;
    KeySet::parse(&body).map_err(|why| Failure::new(format!("{shown} is {why}")))
}
