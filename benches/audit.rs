//! The cost of an audit record in all threads, and its size on disk: records of calls pass the queue, the chain and
//! the writer into an SQLite file, at the rate of a busy proxy thread. Then queries for few of them, and for many.
//! `cargo bench --bench audit -- [RECORDS]`.

#![expect(clippy::print_stdout, reason = "the result of this program")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use a2a_gateway::audit::{Draft, EventType, Filter};
use a2a_gateway::config::{ClientAddress, Config};
use a2a_gateway::gateway::Gateway;
use a2a_gateway::identity::{NewCanvas, Proof};
use a2a_gateway::ids::{RequestId, WorkspaceId};
use a2a_gateway::metrics::Metrics;
use a2a_gateway::telemetry::MaskedAddress;
use a2a_gateway::time::Timestamp;
use secrecy::ExposeSecret;
use tokio::runtime::{Builder, Runtime};

#[cfg(all(feature = "jemalloc", not(target_env = "msvc")))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const WHY: &str = "the bench builds its own stores in a fresh folder";

/// Records if no number is given.
const RECORDS: usize = 300_000;

/// Callers, and targets.
const WORKSPACES: usize = 64;

/// Records that come at once, and the time between two such groups: 18,000 a second, and more where there are more.
const GROUP: usize = 180;
const PAUSE: Duration = Duration::from_millis(10);
const MANY: usize = 1_000_000;
const PAUSE_OF_MANY: Duration = Duration::from_millis(4);

/// One in so many records is of a rare caller, target and outcome.
const RARE: usize = 30_000;

/// A tick of `/proc/self/stat`.
const TICK: Duration = Duration::from_millis(10);

fn main() {
    let asked = std::env::args().find_map(|argument| argument.parse().ok());
    let records: usize = asked.unwrap_or(RECORDS);
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect(WHY);
    let folder = tempfile::tempdir().expect(WHY);
    let mut config: Config = toml::from_str(include_str!("../config/default.toml")).expect(WHY);
    config.stores.sql = format!("sqlite:{}", folder.path().join("gw.db").display()).into();
    config.keys.dir = folder.path().join("keys");
    config.audit.spool_dir = folder.path().join("spool");
    let gateway = Gateway::open(config.into(), Arc::new(Metrics::new())).expect(WHY);
    runtime.block_on(gateway.prepare()).expect(WHY);
    let callers: Vec<_> = (0..WORKSPACES)
        .map(|n| caller(&runtime, &gateway, n))
        .collect();
    let targets = (0..WORKSPACES).map(|n| format!("0199c7a2-5b1e-7cc3-98c4-dc0c0c07{n:04}"));
    let targets: Vec<_> = targets
        .map(|id| WorkspaceId::parse(&id).expect(WHY))
        .collect();
    let rare = caller(&runtime, &gateway, WORKSPACES);
    let audit = Arc::clone(&gateway.audit);
    runtime.spawn(async move { audit.run().await });
    std::thread::sleep(Duration::from_secs(1));
    let (before, begun) = (cpu(), Instant::now());
    let pause = if records >= MANY {
        PAUSE_OF_MANY
    } else {
        PAUSE
    };
    let mut ids = Vec::new();
    for n in 0..records {
        let mut draft = draft(&callers[n % WORKSPACES], &targets[n * 7 % WORKSPACES]);
        if n % RARE == RARE / 2 {
            draft.proof = Some(Arc::clone(&rare));
            draft.target = Some(WorkspaceId::parse("rare").expect(WHY));
            draft.outcome = "rate_limited";
            ids.push((draft.request_id.clone().expect(WHY), draft.time));
        }
        gateway.audit.record(draft);
        if n % GROUP == GROUP - 1 {
            let next = pause * u32::try_from(n / GROUP + 1).expect(WHY);
            std::thread::sleep(next.saturating_sub(begun.elapsed()));
        }
    }
    runtime.block_on(gateway.audit.flush());
    let spent = cpu() - before - made(records, &callers, &targets);
    checkpoint(&runtime, &gateway);
    let bytes = size(&folder.path().join("gw.db"));
    let each = |nanoseconds: u128| nanoseconds as f64 / records as f64;
    println!(
        "{records} records in {:.1} s: {:.2} us of CPU each, {:.0} bytes each",
        begun.elapsed().as_secs_f64(),
        each(spent.as_nanos()) / 1000.0,
        each(bytes.into()),
    );
    let (id, time) = &ids[ids.len() / 2];
    queries(&runtime, &gateway, &rare, id, *time);
}

/// Prints how long the first page of each query takes, and how many records it has.
fn queries(runtime: &Runtime, gateway: &Gateway, rare: &Proof, id: &RequestId, time: Timestamp) {
    let text = |text: &str| Some(text.to_owned());
    let filter = Filter::default;
    let second = Some(Timestamp(time.0 + 1000));
    #[rustfmt::skip]
    let filters = [
        ("all", filter()),
        ("caller", Filter { caller: text("canvas:5b1e-7cc3-98c4-dc0c0c073-0007"), ..filter() }),
        ("rare caller", Filter { caller: Some(rare.principal.to_string()), ..filter() }),
        ("target", Filter { target: text("0199c7a2-5b1e-7cc3-98c4-dc0c0c070007"), ..filter() }),
        ("rare target", Filter { target: text("rare"), ..filter() }),
        ("rare workspace", Filter { workspace: text("rare"), ..filter() }),
        ("caller of none", Filter { caller: text("none"), ..filter() }),
        ("outcome", Filter { outcome: text("answered"), ..filter() }),
        ("rare outcome", Filter { outcome: text("rate_limited"), ..filter() }),
        ("event", Filter { event_type: text("AUDIT_STARTED"), ..filter() }),
        ("request id", Filter { request_id: text(id.as_str()), ..filter() }),
        ("request id of none", Filter { request_id: text("none"), ..filter() }),
        ("a second", Filter { since: Some(time), until: second, ..filter() }),
        ("its rare target", Filter { target: text("rare"), since: Some(time), until: second, ..filter() }),
    ];
    for (name, filter) in filters {
        let begun = Instant::now();
        let page = runtime.block_on(gateway.audit.stored.read_page(&filter, None, 100));
        let page = page.expect(WHY);
        let count = page["records"].as_array().map_or(0, Vec::len);
        let ms = begun.elapsed().as_secs_f64() * 1000.0;
        println!("{name}: {count} records in {ms:.1} ms");
    }
}

/// A canvas user whose name makes it as long as the UUID of a workspace.
fn caller(runtime: &Runtime, gateway: &Gateway, n: usize) -> Arc<Proof> {
    let user = format!("5b1e-7cc3-98c4-dc0c0c073-{n:04}");
    let new = NewCanvas {
        user: &user,
        org: Some("acme"),
        workspaces: None,
        groups: &[],
        ttl: Duration::from_secs(3600),
        maker: None,
    };
    let issued = gateway.identity.signed.issue_canvas(&new).expect(WHY);
    let bearer = format!("Bearer {}", issued.token.expose_secret());
    let proof = gateway.identity.authenticate(Some(bearer.as_bytes()));
    runtime.block_on(proof).expect(WHY)
}

/// The draft of a call, as the end of an exchange makes it.
fn draft(caller: &Arc<Proof>, target: &WorkspaceId) -> Draft {
    Draft {
        request_id: Some(RequestId::random()),
        proof: Some(Arc::clone(caller)),
        client: MaskedAddress::mask([127, 0, 0, 1].into(), ClientAddress::Full),
        target: Some(target.clone()),
        org: None,
        rule: Some("sibling"),
        method: Some("send_message"),
        outcome: "answered",
        status: 200,
        request_bytes: 512,
        response_bytes: 640,
        duration_ms: 3,
        ..Draft::new(EventType::A2aCall)
    }
}

/// The CPU time that making the drafts and their request ids takes: an exchange has its id anyway.
fn made(records: usize, callers: &[Arc<Proof>], targets: &[WorkspaceId]) -> Duration {
    let before = cpu();
    for n in 0..records {
        let draft = draft(&callers[n % WORKSPACES], &targets[n * 7 % WORKSPACES]);
        drop(std::hint::black_box(draft));
    }
    cpu() - before
}

/// The CPU time of all threads of this process.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect(WHY);
    let fields = stat.rsplit(") ").next().expect(WHY).split(' ');
    let ticks = fields.skip(11).take(2).map(|field| field.parse::<u32>());
    TICK * ticks.map(|ticks| ticks.expect(WHY)).sum::<u32>()
}

fn checkpoint(runtime: &Runtime, gateway: &Gateway) {
    let checkpoint = sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)");
    runtime
        .block_on(checkpoint.execute(gateway.db.pool()))
        .expect(WHY);
}

fn size(file: &Path) -> u64 {
    std::fs::metadata(file).expect(WHY).len()
}
