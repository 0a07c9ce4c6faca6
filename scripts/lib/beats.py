"""Heartbeats of very many workspaces on one core's worth of gateway. Started by `scripts/bench beats`.

PostgreSQL and Redis are real, the workspaces and their tokens are seeded in SQL. Each beats once, under
a long TTL, so that caches hold; then, under the usual one, each once more, and half of them twice, so
that what SQL has to hear of them comes evenly; and only then it counts. Requests come at a steady
rate, whether or not answers come in time.
"""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request

import harness
import results
import stores
import usage

WORKSPACES, RATE, SECONDS, DISCOVER_RATE = usage.GIVEN.values()
TEAM = 10
ADDRESS = f"127.0.0.1:{harness.GATEWAY}"
# One core's worth of gateway: it has the first core for itself, the stores and the load the others.
CORES = sorted(os.sched_getaffinity(0))
PINNED = ["taskset", "-c", str(CORES[0])] if harness.THREADS == 1 and len(CORES) > 1 else []


def rss_mib(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


def metrics(store):
    """Operations of one store so far, by name."""
    text = urllib.request.urlopen(f"http://127.0.0.1:{harness.CONTROL}/metrics", timeout=30).read().decode()
    counts = re.findall(rf'^a2a_gateway_store_seconds_count\{{operation="(\w+)",store="{store}"\}} (\d+)', text, re.M)
    return {name: int(count) for name, count in counts}


def children_cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def growth(before, after):
    return {name: after[name] - before.get(name, 0) for name in after if after[name] > before.get(name, 0)}


def most(counts):
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda one: -one[1])[:8]) or "none"


def set_ttl(folder, ttl):
    with open(f"{folder}/gateway.toml", "w") as config:
        config.write(f'registry.heartbeat_ttl = "{ttl}"\n')


def start(servers, folder):
    # Hearing all of them for the first time takes longer than the usual TTL.
    set_ttl(folder, "1h")
    sets = {
        "server.listen": ADDRESS,
        "admin.listen": f"127.0.0.1:{harness.CONTROL}",
        "server.threads": harness.THREADS,
        "stores.sql": servers.sql_url,
        "stores.shared": servers.redis_url,
        "keys.dir": f"{folder}/keys",
        "directory.cache_entries": WORKSPACES + WORKSPACES // 3,
        "telemetry.log": "info,access=off",
    }
    environment = {**os.environ, "A2A_GATEWAY_ADMIN_TOKEN": harness.ADMIN}
    gateway = subprocess.Popen(
        [*PINNED, f"{harness.BIN}/a2a-gateway", "serve", f"--config={folder}/gateway.toml", *[f"--set={key}={value}" for key, value in sets.items()]],
        env=environment, stderr=open(f"{folder}/log", "w"))
    try:
        await_ready()
    except BaseException:
        harness.end(gateway)
        raise
    return gateway


def await_ready():
    harness.await_port(harness.GATEWAY)
    deadline = time.time() + 30
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{harness.CONTROL}/readyz", timeout=5)
            return
        except OSError:
            if time.time() > deadline:
                raise
            time.sleep(0.1)


def seed(servers):
    """Teams of `TEAM` below a parent each, all online, with a token and a lease each."""
    now = int(time.time() * 1000)
    card = json.dumps({
        "name": "bench", "description": "an agent of the benchmark", "version": "1", "protocolVersion": "0.3.0",
        "url": "http://127.0.0.1:9/", "capabilities": {"streaming": True}, "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{"id": "s", "name": "s", "description": "d", "tags": ["t"]}]})
    last = WORKSPACES - 1
    servers.sql(
        "INSERT INTO workspaces (id, name, status, delivery_mode, liveness, created_at, updated_at)"
        f" SELECT 'team-' || n, 'team', 'provisioning', 'push', 'heartbeat', {now}, {now}"
        f" FROM generate_series(0::bigint, {last // TEAM}) n")
    servers.sql(
        "INSERT INTO workspaces (id, name, parent_id, status, delivery_mode, liveness, url, agent_card, active_tasks,"
        " current_task, last_seen, created_at, updated_at)"
        f" SELECT 'ws-' || n, 'ws-' || n, 'team-' || n / {TEAM}, 'online', 'push', 'heartbeat', 'http://127.0.0.1:9/',"
        f" '{card}', 1, 'bench', {now}, {now}, {now} FROM generate_series(0::bigint, {last}) n")
    servers.sql(
        "INSERT INTO workspace_auth_tokens (id, workspace_id, token_hash, prefix, created_at, last_used_at)"
        " SELECT 't-' || n, 'ws-' || n, encode(sha256(('a2aw_' || lpad(n::text, 43, '0'))::bytea), 'hex'), 'a2aw_000',"
        f" {now}, {now} FROM generate_series(0::bigint, {last}) n")
    servers.redis_says("EVAL", f"for n = 0, {last} do"
                       f" redis.call('SET', 'workspace:ws-' .. n .. ':heartbeat', '{now}', 'PX', 3600000)"
                       " redis.call('SET', 'ws:ws-' .. n .. ':url', 'http://127.0.0.1:9/', 'PX', 3600000)"
                       " end return 1", "0")
    # Before any of the gateway's statements are planned for empty tables.
    servers.sql("VACUUM ANALYZE")


def load(rate, seconds, discover_rate, workspaces=WORKSPACES):
    command = [f"{harness.BIN}/examples/load", "beats", ADDRESS, *map(str, (workspaces, rate, seconds, discover_rate))]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(run.stdout)


def tell_discoveries(what, them):
    print(f"  {what:12} {them['ok']} answered, {them['refused']} refused;"
          f" p50 {them['p50_ms']} ms  p99 {them['p99_ms']} ms  max {them['max_ms']} ms", flush=True)


def measure(servers, gateway, name):
    before = (metrics("sql"), metrics("shared"), servers.rows_written(), servers.redis_commands(), servers.cpu_seconds())
    with open("/proc/loadavg") as average:
        busy = average.read().split()[0]
    cpu, own_cpu = harness.cpu_seconds(gateway.pid), children_cpu_seconds()
    done = load(RATE, SECONDS, DISCOVER_RATE)
    cpu, own_cpu = harness.cpu_seconds(gateway.pid) - cpu, children_cpu_seconds() - own_cpu
    after = (metrics("sql"), metrics("shared"), servers.rows_written(), servers.redis_commands(), servers.cpu_seconds())
    beats, again, first = done["beats"], done["discoveries"], done["first_discoveries"]
    requests = beats["ok"] + again["ok"] + first["ok"]
    sql, shared, rows, commands = (growth(*pair) for pair in list(zip(before, after))[:4])
    sql_cpu, redis_cpu = (b - a for a, b in zip(before[4], after[4]))
    print(f"{name}: {WORKSPACES} workspaces, {RATE} heartbeats/s asked for {SECONDS} s, {DISCOVER_RATE} discoveries/s,"
          f" {harness.THREADS} proxy thread(s), load average before {busy}")
    print(f"  heartbeats   {beats['ok'] / done['seconds']:.0f}/s answered, {beats['refused']} refused,"
          f" {done['unanswered']} unanswered, {done['dropped']} dropped;"
          f" p50 {beats['p50_ms']} ms  p99 {beats['p99_ms']} ms  max {beats['max_ms']} ms")
    tell_discoveries("discover", again)
    tell_discoveries("  at first", first)
    print(f"  gateway CPU  {cpu:.1f} s in {done['seconds']:.1f} s ({cpu / done['seconds']:.2f} cores),"
          f" {1e6 * cpu / max(1, requests):.1f} us/request; RSS {rss_mib(gateway.pid):.0f} MiB;"
          f" load generator {own_cpu:.1f} s")
    print(f"  SQL          {sum(sql.values())} statements ({most(sql)}); {sum(rows.values())} rows written"
          f" ({most(rows)}); PostgreSQL CPU {sql_cpu:.1f} s")
    print(f"  Redis        {sum(commands.values())} commands ({most(commands)}); Redis CPU {redis_cpu:.1f} s")
    return {**done, "gateway_cpu_s": cpu, "cpu_us": 1e6 * cpu / max(1, requests), "load_cpu_s": own_cpu,
            "rss_mib": rss_mib(gateway.pid), "sql": sql, "rows": rows, "sql_cpu_s": sql_cpu,
            "redis": commands, "redis_cpu_s": redis_cpu, "gateway_shared": shared}


def main():
    if PINNED:
        os.sched_setaffinity(0, CORES[1:])
    folder = tempfile.mkdtemp(prefix="a2a-bench-")
    gateway = None
    try:
        with stores.Stores(folder) as servers:
            gateway = start(servers, folder)
            harness.progress(f"{WORKSPACES} workspaces are seeded")
            began = time.time()
            seed(servers)
            seeded = time.time()
            print(f"seeded in {seeded - began:.0f} s", flush=True)
            harness.progress("each beats once")
            cpu = harness.cpu_seconds(gateway.pid)
            load(0, 0, 0)
            cold, cpu = time.time() - seeded, harness.cpu_seconds(gateway.pid) - cpu
            print(f"first heartbeats in {cold:.0f} s, {WORKSPACES / cold:.0f} workspaces/s, as fast as answers come;"
                  f" gateway CPU {cpu / cold:.2f} cores", flush=True)
            set_ttl(folder, "90s")
            gateway.send_signal(signal.SIGHUP)
            settle = WORKSPACES // RATE
            harness.progress(f"each once more, half of them twice: {2 * settle} s")
            load(RATE // 2, settle, DISCOVER_RATE, WORKSPACES // 2)
            load(RATE, settle, DISCOVER_RATE)
            # What the machine is good for without any heartbeats.
            harness.progress("discoveries alone, 10 s")
            alone = load(1, 10, DISCOVER_RATE)["discoveries"]
            tell_discoveries("alone", alone)
            harness.progress(f"what counts, {SECONDS} s")
            steady = measure(servers, gateway, "steady")
            if os.environ.get("PERF"):
                profile(gateway)
            offline = servers.sql("SELECT COUNT(*) FROM workspaces WHERE status = 'offline'")
            print(f"  declared offline meanwhile: {offline}")
            results.write("beats", {"workspaces": WORKSPACES, "rate": RATE, "first_beats_s": cold, "first_beats_cpu_s": cpu,
                                    "discoveries_alone": alone, "steady": steady, "declared_offline": offline})
            gateway.send_signal(signal.SIGKILL)
            gateway.wait()
            gateway = None
    finally:
        if gateway:
            gateway.kill()
            gateway.wait()
        shutil.rmtree(folder)


def profile(gateway):
    """`PERF=FILE`: records the gateway under the same load for 10 s."""
    perf = subprocess.Popen(["perf", "record", "-q", "-F", "499", "-g", "-o", os.environ["PERF"], "-p", str(gateway.pid), "--", "sleep", "10"])
    load(RATE, 12, DISCOVER_RATE)
    perf.wait()


if __name__ == "__main__":
    harness.end_well()
    main()
