"""A PostgreSQL and a Redis of our own on free ports, in a folder of their own, for benchmarks and the soak."""

import glob
import os
import signal
import subprocess
import time

import harness

BIN = max(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: int(path.split("/")[4]), default="")
# PostgreSQL refuses to run as root.
AS_POSTGRES = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []


class Stores:
    """Both servers, with their defaults but for the place: commits reach the disk. Ends them when left."""

    def __init__(self, folder):
        self.folder = folder
        self.sql_port, self.redis_port = harness.free_ports(2)
        self.sql_url = f"postgres://postgres@127.0.0.1:{self.sql_port}/postgres"
        self.redis_url = f"redis://127.0.0.1:{self.redis_port}"
        self.postgres = self.redis = None

    def __enter__(self):
        try:
            self._prepare()
            self.start_postgres()
            self.start_redis()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        # QUIT: PostgreSQL ends at once, with all its processes. Redis knows TERM. CONT: who was stopped hears neither.
        ends = [(self.postgres, signal.SIGQUIT), (self.redis, signal.SIGTERM)]
        for child, how in ends:
            if child:
                child.send_signal(how)
                child.send_signal(signal.SIGCONT)
        for child, _ in ends:
            if child:
                child.wait()

    def _prepare(self):
        self.data = f"{self.folder}/postgres"
        os.mkdir(self.data)
        if AS_POSTGRES:
            os.chmod(self.folder, 0o755)
            subprocess.run(["chown", "postgres:postgres", self.data], check=True)
        initdb = [f"{BIN}/initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C"]
        subprocess.run([*AS_POSTGRES, *initdb], check=True, stdout=subprocess.DEVNULL)

    def start_postgres(self):
        """Starts it, and waits until it answers."""
        self.postgres = subprocess.Popen(
            [*AS_POSTGRES, f"{BIN}/postgres", "-D", self.data, "-k", self.data, "-p", str(self.sql_port),
             "-c", "listen_addresses=127.0.0.1", "-c", "shared_buffers=256MB", "-c", "max_wal_size=4GB"],
            stdout=subprocess.DEVNULL, stderr=open(f"{self.folder}/postgres.log", "a"))
        deadline = time.time() + 30
        ready = [f"{BIN}/pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.sql_port)]
        while subprocess.run(ready).returncode != 0:
            if time.time() > deadline:
                raise SystemExit("PostgreSQL does not start")
            time.sleep(0.05)

    def start_redis(self):
        """Starts it, empty, and waits until it answers."""
        self.redis = subprocess.Popen(
            ["redis-server", "--port", str(self.redis_port), "--bind", "127.0.0.1", "--save", "",
             "--appendonly", "no", "--notify-keyspace-events", "Ex", "--dir", self.folder],
            stdout=subprocess.DEVNULL)
        harness.await_port(self.redis_port)

    def postgres_ids(self):
        """Process ids of PostgreSQL: the first one, then its children."""
        pid = self.postgres.pid
        with open(f"/proc/{pid}/task/{pid}/children") as children:
            return [pid, *map(int, children.read().split())]

    def sql(self, text, stdin=None):
        """Runs SQL with psql; answers what it prints, without decoration."""
        command = ["psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", self.sql_url, "-c", text]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=True).stdout.strip()

    def rows_written(self):
        """Rows inserted, updated and deleted in all tables so far. The server tells it with a delay of a second."""
        time.sleep(1.5)
        text = "SELECT relname, n_tup_ins + n_tup_upd + n_tup_del FROM pg_stat_user_tables"
        return {name: int(count) for name, count in (line.split("|") for line in self.sql(text).splitlines())}

    def redis_says(self, *command):
        """Runs a command of Redis; answers what redis-cli prints."""
        return subprocess.run(["redis-cli", "-p", str(self.redis_port), *command],
                              capture_output=True, text=True, check=True).stdout

    def redis_commands(self):
        """How often each command ran so far."""
        text = self.redis_says("info", "commandstats")
        found = {}
        for line in text.splitlines():
            if line.startswith("cmdstat_"):
                name, rest = line[len("cmdstat_"):].split(":", 1)
                found[name] = int(rest.split(",")[0].split("=")[1])
        return found

    def cpu_seconds(self):
        """Of PostgreSQL with its processes, and of Redis."""
        return sum(map(harness.cpu_seconds, self.postgres_ids())), harness.cpu_seconds(self.redis.pid)
