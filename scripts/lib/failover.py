"""Stores that fail over, with the shape of `stores.Stores`, for the soak and for benchmarks: Redis with sentinels and
PostgreSQL with a synchronous standby; Redis Cluster, and PostgreSQL behind PgBouncer."""

import os
import re
import shutil
import signal
import subprocess
import time

import harness
import stores

# Milliseconds without an answer after which sentinels and nodes hold a server for dead.
DEAD_AFTER = 1000
# Seconds that servers may take to agree, on a busy machine.
PATIENCE = 60

# A replica copies its master at once, without a pause for others that may want the same.
REPLICATED = ("--repl-diskless-sync-delay", "0")


def until(what, holds):
    deadline = time.monotonic() + PATIENCE
    while not (found := holds()):
        if time.monotonic() > deadline:
            raise SystemExit(f"not in {PATIENCE} s: {what}")
        time.sleep(0.05)
    return found


def redis_cli(port, *words):
    """The lines that redis-cli prints; none if the server does not answer."""
    try:
        command = ["redis-cli", "-p", str(port), *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=2)
    except subprocess.TimeoutExpired:
        return []
    return done.stdout.strip().splitlines() if done.returncode == 0 else []


def follows(port, master):
    """Whether a server is a replica that is linked with that master."""
    said = redis_cli(port, "INFO", "replication")
    return {"role:slave", f"master_port:{master}", "master_link_status:up"} <= set(said)


class Sentinels(stores.Stores):
    """Redis with a replica and three sentinels, PostgreSQL with a synchronous standby. `redis` and `redis_port` are
    those of the master, `postgres` and `sql_port` those of the primary, whichever that is."""

    SERVICE = "main"
    # A standby whose primary was away is back at once: until then commits wait.
    # No socket in the folder that is copied.
    SETTINGS = ("wal_retrieve_retry_interval=200ms", "wal_keep_size=1GB", "unix_socket_directories=")

    def __init__(self, folder):
        super().__init__(folder)
        self.other_sql_port, other, *self.sentinel_ports = harness.free_ports(5)
        # By port: both servers of Redis, and the sentinels.
        self.servers, self.sentinels = {self.redis_port: None, other: None}, {}
        self.sql_url = f"postgres://postgres@127.0.0.1:{self.sql_port},127.0.0.1:{self.other_sql_port}/postgres"
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.sentinel_ports)
        self.redis_url = f"redis+sentinel://{hosts}/{self.SERVICE}"
        self.standby = None

    def _start(self):
        super()._start()
        self.other_data = f"{self.folder}/standby"
        self.add_standby()

    def _ends(self):
        redis = [(child, signal.SIGTERM) for child in (*self.sentinels.values(), *self.servers.values())]
        return [*redis, (self.postgres, signal.SIGQUIT), (self.standby, signal.SIGQUIT)]

    def start_redis(self):
        for port in self.servers:
            self.start_server(port)
        master, replica = self.servers
        redis_cli(replica, "REPLICAOF", "127.0.0.1", master)
        until("the replica follows", lambda: follows(replica, master))
        for port in self.sentinel_ports:
            folder = f"{self.folder}/sentinel-{port}"
            os.mkdir(folder)
            with open(f"{folder}/sentinel.conf", "w") as config:
                config.write(f"port {port}\nbind 127.0.0.1\ndir {folder}\nlogfile {folder}/log\n"
                             f"sentinel monitor {self.SERVICE} 127.0.0.1 {master} 2\n"
                             f"sentinel down-after-milliseconds {self.SERVICE} {DEAD_AFTER}\n"
                             f"sentinel failover-timeout {self.SERVICE} 3000\n")
            self.sentinels[port] = subprocess.Popen(
                ["redis-server", f"{folder}/sentinel.conf", "--sentinel"], stdout=subprocess.DEVNULL)
            harness.await_port(port)
        self.await_whole()

    def start_server(self, port):
        """Empty, and a master until the sentinels tell it otherwise."""
        self.servers[port] = stores.run_redis(f"{self.folder}/redis-{port}", port, *REPLICATED)

    def await_master(self, besides=None):
        """Until all sentinels name one master, which takes writes. It is `redis` then."""
        def named():
            ask = "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.SERVICE
            said = [redis_cli(port, *ask) for port in self.sentinel_ports]
            ports = {int(lines[1]) if len(lines) > 1 else None for lines in said}
            port = ports.pop()
            return not ports and port not in (None, besides) and redis_cli(port, "ROLE")[:1] == ["master"] and port
        self.redis_port = until("the sentinels name another master", named)
        self.redis = self.servers[self.redis_port]

    def await_whole(self):
        """Until the other server follows the master, and the sentinels know each other and both."""
        def whole():
            replica = next(port for port in self.servers if port != self.redis_port)
            for port in self.sentinel_ports:
                said = redis_cli(port, "SENTINEL", "MASTER", self.SERVICE)
                known = dict(zip(said[::2], said[1::2]))
                told = known.get("flags"), known.get("num-other-sentinels"), known.get("num-slaves")
                if told != ("master", "2", "1"):
                    return False
            return follows(replica, self.redis_port)
        self.await_master()
        until("the replica follows the master", whole)

    def fail_over(self):
        """Has the sentinels make the replica the master though the master is well."""
        before = self.redis_port
        ask = self.sentinel_ports[0], "SENTINEL", "FAILOVER", self.SERVICE
        until("a failover begins", lambda: redis_cli(*ask) == ["OK"])
        self.await_master(besides=before)

    def add_standby(self):
        """A copy of the primary follows it. Returns when no commit is acknowledged before both have it."""
        shutil.rmtree(self.other_data, ignore_errors=True)
        self._own_folder(os.path.basename(self.other_data))
        subprocess.run(
            [*stores.AS_POSTGRES, f"{stores.BIN}/pg_basebackup", "-h", "127.0.0.1", "-p", str(self.sql_port),
             "-U", "postgres", "-D", self.other_data, "-R", "-X", "stream", "-c", "fast", "--no-sync"], check=True)
        self.standby = stores.run_postgres(
            self.other_data, self.other_sql_port, f"{self.folder}/postgres.log", self.SETTINGS)
        # Not before the copy: a promoted server has no standby, and its commits would wait for one.
        self.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.sql("SELECT pg_reload_conf()")
        until("commits wait for the standby", self.has_standby)

    def has_standby(self):
        return self.sql("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == "1"

    def promote(self):
        """Makes the standby the primary, in place of one that has ended. Returns when it takes writes."""
        self.postgres, self.standby = self.standby, None
        self.sql_port, self.other_sql_port = self.other_sql_port, self.sql_port
        self.data, self.other_data = self.other_data, self.data
        if self.sql("SELECT pg_promote()") != "t":
            raise SystemExit("the standby is not promoted")


class Node:
    """A line of `CLUSTER NODES`, in words."""

    def __init__(self, words):
        self.port = int(re.search(r":(\d+)@", words[1])[1])
        self.name, self.flags, self.slots = words[0], words[2].split(","), set()
        for first, *rest in (one.split("-") for one in words[8:] if not one.startswith("[")):
            self.slots.update(range(int(first), int(rest[0] if rest else first) + 1))


class Cluster(stores.Stores):
    """Redis Cluster: three masters with a replica each. PostgreSQL behind PgBouncer, in transaction mode. `redis` is
    none: there are `nodes`."""

    def __init__(self, folder):
        super().__init__(folder)
        self.pooler_port, *ports = harness.free_ports(13)
        # By port: the server, and the port on which it talks to the others.
        self.nodes, self.bus = dict.fromkeys(ports[:6]), dict(zip(ports[:6], ports[6:]))
        self.sql_url = f"postgres://postgres@127.0.0.1:{self.pooler_port}/postgres"
        self.redis_url = "redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port in ports[:3])
        self.pooler = None

    def _start(self):
        super()._start()
        folder = self._own_folder("pooler")
        self.pooler_config = f"{folder}/pgbouncer.ini"
        with open(self.pooler_config, "w") as config:
            config.write(f"[databases]\n* = host=127.0.0.1 port={self.sql_port} user=postgres\n[pgbouncer]\n"
                         f"listen_addr = 127.0.0.1\nlisten_port = {self.pooler_port}\nunix_socket_dir =\n"
                         "auth_type = any\npool_mode = transaction\nignore_startup_parameters = extra_float_digits\n"
                         "default_pool_size = 20\nmax_client_conn = 200\nserver_login_retry = 1\n")
        self.start_pooler()

    def _ends(self):
        nodes = [(child, signal.SIGTERM) for child in self.nodes.values()]
        return [(self.pooler, signal.SIGQUIT), (self.postgres, signal.SIGQUIT), *nodes]

    def start_pooler(self):
        command = shutil.which("pgbouncer", path=os.environ["PATH"] + ":/usr/sbin")
        with open(f"{self.folder}/pgbouncer.log", "a") as log:
            self.pooler = subprocess.Popen(
                [*stores.AS_POSTGRES, command, self.pooler_config], stdout=subprocess.DEVNULL, stderr=log)
        harness.await_port(self.pooler_port)

    def start_redis(self):
        for port in self.nodes:
            self.start_node(port)
        hosts = [f"127.0.0.1:{port}" for port in self.nodes]
        subprocess.run(["redis-cli", "--cluster", "create", *hosts, "--cluster-replicas", "1", "--cluster-yes"],
                       check=True, stdout=subprocess.DEVNULL)
        self.await_whole()

    def start_node(self, port):
        """It knows its place from its folder."""
        self.nodes[port] = stores.run_redis(
            f"{self.folder}/node-{port}", port, *REPLICATED, "--cluster-enabled", "yes",
            "--cluster-port", str(self.bus[port]), "--cluster-node-timeout", str(DEAD_AFTER),
            "--cluster-replica-validity-factor", "0",
            # A master that gave its slots away stays one.
            "--cluster-allow-replica-migration", "no")

    def seen(self, port):
        """The nodes as one of them sees them; none if it does not answer."""
        return [Node(line.split(" ")) for line in redis_cli(port, "CLUSTER", "NODES")]

    def owner(self, slot, besides=None):
        """The master of a slot on which all nodes that run agree; `None` if they do not, or if it is `besides`."""
        views = [self.seen(port) for port, child in self.nodes.items() if child.poll() is None and port != besides]
        owners = {next((node.port for node in view if slot in node.slots), None) for view in views}
        owner = owners.pop()
        return None if owners or owner in (None, besides) or redis_cli(owner, "ROLE")[:1] != ["master"] else owner

    def slot(self, key):
        return int(redis_cli(next(iter(self.nodes)), "CLUSTER", "KEYSLOT", key)[0])

    def await_whole(self):
        """Until all nodes are up, see the cluster so, and each replica follows its master."""
        def whole():
            roles = []
            for port in self.nodes:
                if "cluster_state:ok" not in redis_cli(port, "CLUSTER", "INFO"):
                    return False
                said = redis_cli(port, "ROLE")
                roles.append(said[:1])
                if said[:1] != ["master"] and "connected" not in said:
                    return False
                if any(flag in ("fail", "fail?") for node in self.seen(port) for flag in node.flags):
                    return False
            return roles.count(["master"]) == 3
        until("the cluster is whole", whole)

    def move_slots(self, slot):
        """Moves a slot, and those of its master before it, with their keys to another master, as an operator does.
        Answers how many."""
        owner = until("one node owns the slot", lambda: self.owner(slot))
        masters = [node for node in self.seen(owner) if "master" in node.flags]
        source = next(node for node in masters if node.port == owner)
        other = next(node for node in masters if node.port != owner)
        # redis-cli takes the lowest first.
        count = sum(one <= slot for one in source.slots)
        with open(f"{self.folder}/reshard.log", "a") as log:
            subprocess.run(
                ["redis-cli", "--cluster", "reshard", f"127.0.0.1:{owner}", "--cluster-from", source.name,
                 "--cluster-to", other.name, "--cluster-slots", str(count), "--cluster-yes"],
                check=True, stdout=log, stderr=log)
        return count
