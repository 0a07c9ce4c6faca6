"""Very many workspaces: whether a gateway notices how many there are. Started by `scripts/bench scale [ROUNDS] [SECONDS]`.

Two gateways on stores of the same kind, one with 1,000 workspaces and one with a million (`WORKSPACES`), are asked by
turns over the same number of pairs. Rows are seeded in SQL, leases and URL keys in Redis: trees of a thousand, ten
children below each, an org for each tree, and two lines as deep as any may be. STORES=postgres,sqlite takes one kind of
stores; CASES some of what is measured. Half of the workspaces are of `assumed` liveness, and were last seen long ago.
"""

import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
import urllib.request

import harness
import loads
import peers
import results
import stores
import usage

FEW, MANY = 1000, usage.number("scale", "WORKSPACES")
# Distinct pairs of the warm load, and distinct callers of `callers`.
PAIRS, CALLERS = 1000, usage.number("scale", "CALLERS")
RATE = usage.number("scale", "RATE")
# First calls come slower, since each asks the stores.
COLD_RATE = 250
TREE, CHILDREN, LEVELS = 1000, 10, 64
CONNECTIONS = 32
NOW = int(time.time() * 1000)
URL = f"http://127.0.0.1:{harness.AGENT}/"
CARD = json.dumps({
    "name": "bench", "description": "an agent of the benchmark", "version": "1", "protocolVersion": "0.3.0",
    "url": URL, "capabilities": {"streaming": True}, "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"], "skills": [{"id": "s", "name": "s", "description": "d", "tags": ["t"]}]})
BODY = harness.body_of(300)
WORKSPACES = ("id", "name", "parent_id", "org", "status", "delivery_mode", "liveness", "url", "agent_card",
              "active_tasks", "last_seen", "created_at", "updated_at")
ORIGINS = ("origin", "slot", "workspace_id", "base")
TOKENS = ("id", "workspace_id", "token_hash", "prefix", "created_at", "last_used_at")
PINNED = ["taskset", "-c", str(harness.CORES[0])] if harness.THREADS == 1 and len(harness.CORES) > 1 else []


def name(n):
    """As long as the ids that the gateway makes."""
    return f"{n:08}-0000-7000-8000-{n:012}"


def parent(n):
    """Each thousand is a tree of its own."""
    place = n % TREE
    return n - place + (place - 1) // CHILDREN if place else None


def neighbor(n):
    """The next below the same parent; of a root its first child."""
    place, root = n % TREE, n - n % TREE
    if not place:
        return n + 1
    first = (place - 1) // CHILDREN * CHILDREN + 1
    last = min(first + CHILDREN, TREE) - 1
    return root + (place + 1 if place < last else first)


def deep():
    """Two lines below one root with `PAIRS` leaves each at the deepest level: names with their parents."""
    yield "deep", None
    for line in "ab":
        above = "deep"
        for level in range(2, LEVELS):
            yield f"deep-{line}-{level}", above
            above = f"deep-{line}-{level}"
        for leaf in range(PAIRS):
            yield f"deep-{line}-leaf-{leaf}", above


DEEP = {who: n for n, (who, _) in enumerate(deep())}


def everybody(count):
    """Id, parent, org and number of each."""
    for n in range(count):
        above = parent(n)
        yield name(n), above if above is None else name(above), f"org-{n // TREE}", n
    for n, (who, above) in enumerate(deep()):
        yield who, above, "org-deep", count + n


def workspace_rows(count, all_assumed):
    for who, above, org, n in everybody(count):
        # Whole trees are of one kind.
        beats = not all_assumed and n // TREE % 2 == 0
        seen = NOW if beats else NOW - 48 * 3600 * 1000
        yield (who, "bench", above, org, "online", "push", "heartbeat" if beats else "assumed", URL, CARD, 0, seen, NOW, NOW)


def token(n):
    return f"a2aw_{n:043}"


def token_rows(count):
    for who, _, _, n in everybody(count):
        yield f"t-{n}", who, hashlib.sha256(token(n).encode()).hexdigest(), "a2aw_000", NOW, NOW


def origin_rows(count):
    """The server of each agent, which all share: without them the gateway writes them after its start."""
    for who, _, _, _ in everybody(count):
        yield f"http 127.0.0.1:{harness.AGENT}", who, who, f"http://127.0.0.1:{harness.AGENT}"


class Site:
    """A gateway, its stores, and so many workspaces in them."""

    def __init__(self, folder, kind, count, exits):
        self.folder, self.kind, self.count = f"{folder}/{count}", kind, count
        os.mkdir(self.folder)
        os.chmod(folder, 0o755)
        self.port, self.control = harness.free_ports(2)
        self.gateway = self.servers = None
        if kind == "postgres":
            self.servers = exits.enter_context(stores.Stores(self.folder))
        exits.callback(self.stop)
        self.start()
        self.stop()
        self.seed()

    def start(self, **settings):
        """Seconds until it is ready."""
        began = time.monotonic()
        self.gateway = self.spawn(self.folder, self.port, self.control, **settings)
        self.side = harness.Side([self.gateway.pid], self.port)
        return time.monotonic() - began

    def spawn(self, folder, port, control, **settings):
        """A gateway on these stores, when it is ready."""
        if self.servers:
            pair = {"stores.sql": self.servers.sql_url, "stores.shared": self.servers.redis_url}
        else:
            pair = {"stores.sql": f"sqlite:{self.folder}/gateway.db"}
        sets = {
            "server.listen": f"127.0.0.1:{port}", "admin.listen": f"127.0.0.1:{control}",
            "server.threads": harness.THREADS, "keys.dir": f"{self.folder}/keys",
            "audit.spool_dir": f"{folder}/audit", "telemetry.log": "info,access=off",
            # Nobody beats here, and the refused have one address.
            "registry.heartbeat_ttl": "1h", "rate.failures_per_second": 0, **pair, **settings}
        began = time.monotonic()
        gateway = subprocess.Popen(
            [*PINNED, f"{harness.BIN}/a2a-gateway", "serve", *[f"--set={key}={value}" for key, value in sets.items()]],
            env={**os.environ, "A2A_GATEWAY_ADMIN_TOKEN": harness.ADMIN}, stderr=open(f"{folder}/log", "a"))
        while True:
            try:
                if is_ready(control):
                    return gateway
                if time.monotonic() - began > 60:
                    raise SystemExit(f"a gateway is not ready after 60 s: see {folder}/log")
                time.sleep(0.002)
            except BaseException:
                harness.end(gateway)
                raise

    def stop(self):
        if self.gateway:
            self.gateway.send_signal(signal.SIGTERM)
            try:
                self.gateway.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.gateway.kill()
                self.gateway.wait()
        self.gateway = None

    def restart(self, **settings):
        """Seconds until it is ready, and MiB when its links are up, as caches hold only then."""
        self.stop()
        took = self.start(**settings)
        time.sleep(2)
        return took, self.rss_mib()

    def seed(self):
        harness.progress(f"{self.kind}: {self.count} workspaces are seeded")
        began = time.monotonic()
        tables = (("workspaces", WORKSPACES, workspace_rows(self.count, not self.servers)),
                  ("workspace_auth_tokens", TOKENS, token_rows(self.count)),
                  ("agent_origins", ORIGINS, origin_rows(self.count)))
        if self.servers:
            for table, columns, rows in tables:
                copy(self.servers, table, columns, rows)
            self.lease()
            # Before any of the gateway's statements are planned for empty tables.
            self.servers.sql("VACUUM ANALYZE")
        else:
            with contextlib.closing(sqlite3.connect(f"{self.folder}/gateway.db")) as file, file:
                for table, columns, rows in tables:
                    places = ", ".join("?" * len(columns))
                    file.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})", rows)
        print(f"{self.kind}: {self.count} workspaces seeded in {time.monotonic() - began:.0f} s", flush=True)

    def lease(self):
        pipe = subprocess.Popen(["redis-cli", "-p", str(self.servers.redis_port), "--pipe"],
                                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        for who, _, _, n in everybody(self.count):
            if n // TREE % 2 == 0:
                pipe.stdin.write(f"SET workspace:{who}:heartbeat {NOW} PX 3600000\r\n")
            pipe.stdin.write(f"SET ws:{who}:url {URL} PX 3600000\r\n")
        pipe.stdin.close()
        if pipe.wait():
            raise SystemExit("Redis was not filled")

    def sizes(self):
        """Bytes of each workspace, with its indexes and its token, in the stores."""
        if not self.servers:
            file = os.path.getsize(f"{self.folder}/gateway.db")
            return {"sqlite_bytes_each": file / self.count}
        sql, redis = self.servers.sql, self.servers.redis_says("info", "memory")
        each = {table: int(sql(f"SELECT pg_total_relation_size('{table}')")) / self.count
                for table in ("workspaces", "workspace_auth_tokens")}
        return {"postgres_bytes_each": each, "redis_bytes_each": int(re.search(r"used_memory:(\d+)", redis)[1]) / self.count}

    def rss_mib(self):
        return self.side.memory_kib()["rss"] / 1024

    def counts(self):
        """Store operations and look-ups in caches so far, and what the processes used."""
        text = urllib.request.urlopen(f"http://127.0.0.1:{self.control}/metrics", timeout=30).read().decode()
        found = {}
        for label, value in re.findall(r"^a2a_gateway_store_seconds_(\w+\{.*\}) (\S+)", text, re.M):
            of = re.fullmatch(r'(count|sum)\{operation="(\w+)",store="(\w+)"\}', label)
            if of:
                found[" ".join((of[3], of[2], of[1]))] = float(value)
        for cache, result, value in re.findall(
                r'^a2a_gateway_cache_lookups_total\{cache="(\w+)",result="(\w+)"\} (\d+)', text, re.M):
            found[f"cache {cache} {result}"] = float(value)
        found["gateway cpu_s"] = self.side.cpu_seconds()
        if self.servers:
            found["postgres cpu_s"], found["redis cpu_s"] = self.servers.cpu_seconds()
        return found

    def request(self, n, target):
        """The call of the workspace with that number."""
        return (f"POST /workspaces/{target}/a2a HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token(n)}\r\n"
                f"Accept: application/json\r\nContent-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
                f"{BODY}").encode()

    def pairs(self, count):
        """Calls of so many callers, picked at random, to their neighbors."""
        return [self.request(n, name(neighbor(n))) for n in random.sample(range(self.count), count)]

    def deepest(self, caller, target):
        """Calls of the leaves of one line to the next leaf of the other, or of the same."""
        return [self.request(self.count + DEEP[f"deep-{caller}-leaf-{n}"], f"deep-{target}-leaf-{(n + 1) % PAIRS}")
                for n in range(PAIRS)]


def is_ready(control):
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{control}/readyz", timeout=5).read()
        return True
    except OSError:
        return False


def copy(servers, table, columns, rows):
    pipe = subprocess.Popen(
        ["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", servers.sql_url, "-c", f"COPY {table} ({', '.join(columns)}) FROM STDIN"],
        stdin=subprocess.PIPE, text=True)
    for row in rows:
        pipe.stdin.write("\t".join("\\N" if value is None else str(value) for value in row) + "\n")
    pipe.stdin.close()
    if pipe.wait():
        raise SystemExit(f"{table} was not filled")


def used(before, after, requests=1):
    """What was done in between, for each request: operations by store and name without the audit's, shares of hits."""
    grown = {key: after[key] - before.get(key, 0) for key in after}
    done = {key.removesuffix(" count"): value / requests for key, value in grown.items()
            if key.endswith(" count") and value and " audit" not in key}
    mean = {key: 1000 * grown[f"{key} sum"] / grown[f"{key} count"] for key in done}
    hits = {}
    for cache in {key.split()[1] for key in grown if key.startswith("cache ")}:
        hit, miss = (grown.get(f"cache {cache} {result}", 0) for result in ("hit", "miss"))
        if hit + miss:
            hits[cache] = hit / (hit + miss)
    cpu = {key.split()[0]: 1e6 * value / requests for key, value in grown.items() if key.endswith(" cpu_s")}
    return {"operations": done, "mean_ms": mean, "hits": hits, "cpu_us": cpu}


def told(of, unit=""):
    of = {key: value for key, value in of.items() if value > 0.0005}
    return ", ".join(f"{key} {value:.3g}{unit}" for key, value in sorted(of.items(), key=lambda one: -one[1])) or "none"


def each_once(site, requests, rate=0):
    """Each request once; what that took in the gateway and the stores."""
    before = site.counts()
    done = loads.paced(site.side, requests, rate, len(requests) // max(rate, 1), CONNECTIONS)
    return {**done, **used(before, site.counts(), len(requests)), "rss_mib": site.rss_mib()}


def refused(site, requests):
    """Each once, one after the other; all have to be refused."""
    before = site.counts()
    done = loads.refused(site.side, requests)
    return {**done, **used(before, site.counts(), len(requests))}


def start(sites):
    """Starts, memory, and the first call of each of the pairs."""
    rounds = {str(site.count): [] for site in sites}
    for number in range(peers.ROUNDS):
        harness.progress(f"round {number + 1} of {peers.ROUNDS}")
        for site in sites:
            took, rss = site.restart()
            cold = each_once(site, site.pairs(PAIRS), COLD_RATE)
            rounds[str(site.count)].append({"start_s": took, "start_rss_mib": rss, "cold": cold})
    for count, of in rounds.items():
        middle = peers.medians([{"start": one["start_s"], "rss": one["start_rss_mib"], "cpu": one["cold"]["cpu_us"]["gateway"],
                                 **{key: one["cold"][key] for key in ("p50_us", "p99_us", "rss_mib")}} for one in of])
        print(f"  {count:>8}  ready after {1000 * middle['start']:.0f} ms, {middle['rss']:.1f} MiB; first calls, {COLD_RATE}/s:"
              f" p50 {middle['p50_us']:.0f} us  p99 {middle['p99_us']:.0f} us, gateway CPU {middle['cpu']:.0f} us,"
              f" {middle['rss_mib']:.1f} MiB after {PAIRS}; each: {told(of[-1]['cold']['operations'])}", flush=True)
    return rounds


def warm(sites):
    """The same pairs again and again, at a pace: by turns at either gateway, and at the agent without one."""
    requests = {str(site.count): site.pairs(PAIRS) for site in sites}
    rows = {str(site.count): site.side for site in sites}
    requests["direct"], rows["direct"] = requests[str(FEW)], harness.Side([AGENT.pid], harness.AGENT)
    measured = peers.alternate(None, lambda row, side, seconds: loads.paced(
        side, requests[row], RATE, seconds, CONNECTIONS), rows)
    peers.tell(f"warm, {PAIRS} pairs, {RATE}/s", measured, str(FEW))
    few, many = (str(site.count) for site in sites)
    for key in ("p50_us", "p99_us", "p999_us"):
        print(f"  {key} of {many} against {few}: x {peers.ratio(measured, key, many, few):.3f}")
    memory = {str(site.count): site.rss_mib() for site in sites}
    print(f"  MiB: {told(memory)}", flush=True)
    return {"rounds": measured, "rss_mib": memory}


def deepest(sites):
    """Siblings at the deepest level, and the two leaves that are furthest apart, against a usual tree."""
    site = sites[-1]
    site.restart()
    near, far = site.deepest("a", "a"), site.deepest("a", "b")
    usual, strangers = site.pairs(PAIRS), [site.request(n, name(site.count - 1 - n)) for n in range(PAIRS)]
    done = {"usual cold": each_once(site, usual, COLD_RATE), "deepest cold": each_once(site, near, COLD_RATE)}
    for kind, of in done.items():
        print(f"  {kind}: p50 {of['p50_us']:.0f} us  p99 {of['p99_us']:.0f} us, gateway CPU {of['cpu_us']['gateway']:.0f} us;"
              f" each: {told(of['operations'])}; ms: {told(of['mean_ms'])}")
    wanted = {"usual": usual, "deepest": near}
    done["warm"] = peers.alternate(None, lambda row, side, seconds: loads.paced(
        side, wanted[row], RATE, seconds, CONNECTIONS), {row: site.side for row in wanted})
    peers.tell("warm", done["warm"], "usual")
    for kind, requests in (("strangers", strangers), ("furthest apart", far)):
        done[kind] = {"first": refused(site, requests), "again": [refused(site, requests) for _ in range(3)]}
        again = peers.medians([{"mean": one["mean_us"], "cpu": one["cpu_us"]["gateway"]} for one in done[kind]["again"]])
        print(f"  {kind} refused: {done[kind]['first']['mean_us']:.0f} us at first, each: {told(done[kind]['first']['operations'])};"
              f" {again['mean']:.0f} us again, CPU {again['cpu']:.0f} us", flush=True)
    return done


def idle(sites):
    """What is done while nobody asks."""
    seconds, done = 20, {}
    for site in sites:
        before = site.counts()
        time.sleep(seconds)
        of = done[str(site.count)] = used(before, site.counts(), seconds)
        print(f"  {site.count} idle: {sum(of['operations'].values()):.1f} operations/s ({told(of['operations'])});"
              f" mean ms: {told(of['mean_ms'])}; CPU us/s: {told(of['cpu_us'])}", flush=True)
    return done


def callers(sites):
    """So many distinct callers, each twice; then the same few pairs and ever other ones by turns."""
    site, done = sites[-1], {}
    _, rss = site.restart()
    print(f"  {CALLERS} callers: {rss:.1f} MiB before", flush=True)
    requests = site.pairs(CALLERS)
    for kind in ("first", "again", "third"):
        of = done[kind] = each_once(site, requests)
        print(f"  {kind}: {of['rate']:.0f}/s  p50 {of['p50_us']:.0f} us  p99 {of['p99_us']:.0f} us, CPU us: {told(of['cpu_us'])},"
              f" {of['rss_mib']:.1f} MiB; hits: {told(of['hits'])}; each: {told(of['operations'])}", flush=True)
    before = site.counts()
    same = site.pairs(PAIRS)
    wanted = {"the same": lambda: same, "any": lambda: site.pairs(RATE * peers.SECONDS)}
    # Half of that, since each asks the stores.
    done["any"] = peers.alternate(None, lambda row, side, seconds: loads.paced(
        side, wanted[row](), RATE // 2, seconds, CONNECTIONS), {row: site.side for row in wanted})
    peers.tell(f"{RATE // 2}/s, any of {site.count} beside the same {PAIRS}", done["any"], "the same")
    of = done["both"] = used(before, site.counts(), (peers.ROUNDS + 1) * 2 * peers.SECONDS * (RATE // 2))
    print(f"  each of both: {told(of['operations'])}; ms: {told(of['mean_ms'])}; hits: {told(of['hits'])}; {site.rss_mib():.1f} MiB")
    if site.servers:
        rows, size = (int(site.servers.sql(text)) for text in (
            "SELECT COUNT(*) FROM structure_events",
            "SELECT COALESCE(SUM(pg_total_relation_size(relid)), 0) FROM pg_partition_tree('structure_events')"))
        done["audit"] = {"records": rows, "bytes_each": size / max(1, rows)}
        print(f"  audit: {rows} records, {size / max(1, rows):.0f} bytes each", flush=True)
    return done


def caches(sites):
    """Memory after as many distinct callers, and what is asked when they call again, by the size of the caches."""
    site, done = sites[-1], {}
    requests = site.pairs(CALLERS)
    for entries in (CALLERS // 100, CALLERS // 10, CALLERS, CALLERS * 2, CALLERS * 10):
        _, before = site.restart(**{"directory.cache_entries": entries})
        first, again = each_once(site, requests), each_once(site, requests)
        done[entries] = {"start_rss_mib": before, "first": first, "again": again}
        print(f"  cache_entries {entries}: {before:.1f} MiB, {first['rss_mib']:.1f} after {CALLERS} callers, {again['rss_mib']:.1f}"
              f" when each called again: {again['cpu_us']['gateway']:.0f} us; hits: {told(again['hits'])}", flush=True)
    return done


def hearing(sites):
    """What a replica without calls of its own spends on hearing of those of another."""
    site = sites[-1]
    if not site.servers:
        return None
    site.restart()
    requests = site.pairs(20 * PAIRS)
    folder = f"{site.folder}/beside"
    os.mkdir(folder)
    beside = site.spawn(folder, *harness.free_ports(2))
    try:
        time.sleep(2)
        cpu = [harness.cpu_seconds(beside.pid)]
        time.sleep(20)
        cpu.append(harness.cpu_seconds(beside.pid))
        times = [time.monotonic()]
        # From memory, but the first time.
        for times_each in (1, 5):
            loads.paced(site.side, requests * times_each, 0, 0, CONNECTIONS)
            # What was taken is told within 50 ms.
            time.sleep(1)
            cpu.append(harness.cpu_seconds(beside.pid))
            times.append(time.monotonic())
    finally:
        harness.end(beside)
    alone = (cpu[1] - cpu[0]) / 20
    each = [1e6 * (after - before - alone * (end - begin)) / len(requests) / times_each
            for before, after, begin, end, times_each in zip(cpu[1:], cpu[2:], times, times[1:], (1, 5))]
    print(f"  a replica beside: {1000 * alone:.1f} ms/s of CPU alone; {', '.join(f'{one:.1f}' for one in each)} us"
          f" for each call of another, {len(requests)} distinct callers", flush=True)
    return {"alone": alone, "cpu_us": each}


CASES = {"start": start, "warm": warm, "deepest": deepest, "idle": idle, "callers": callers, "caches": caches, "hearing": hearing}


def main():
    global AGENT
    if PINNED:
        os.sched_setaffinity(0, harness.CORES[1:])
    wanted = usage.names("scale", "CASES")
    random.seed(1)
    AGENT = subprocess.Popen([f"{harness.BIN}/examples/upstream", f"127.0.0.1:{harness.AGENT}", "512"])
    try:
        for kind in usage.names("scale", "STORES"):
            folder, measured = tempfile.mkdtemp(prefix="a2a-bench-"), {}
            try:
                with contextlib.ExitStack() as exits:
                    sites = [Site(folder, kind, count, exits) for count in (FEW, MANY)]
                    sizes = sites[-1].sizes()
                    print(f"  bytes of each in the stores: {sizes}", flush=True)
                    for site in sites:
                        site.restart()
                    for case in wanted:
                        harness.progress(f"{kind}: {case}")
                        measured[case] = CASES[case](sites)
            finally:
                shutil.rmtree(folder)
                # Also what came before a failure.
                if measured:
                    results.write(f"scale-{kind}", {"workspaces": MANY, "pairs": PAIRS, "callers": CALLERS, "rate": RATE,
                                                    "cold_rate": COLD_RATE, "sizes": sizes, **measured})
    finally:
        harness.end(AGENT)


if __name__ == "__main__":
    harness.end_well()
    main()
