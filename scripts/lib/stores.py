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


def run_postgres(data, port, log, settings):
    """Starts one on a folder of data, and waits until it answers."""
    settings = ["listen_addresses=127.0.0.1", "shared_buffers=256MB", "max_wal_size=4GB", *settings]
    with open(log, "a") as file:
        child = subprocess.Popen(
            [*AS_POSTGRES, f"{BIN}/postgres", "-D", data, "-k", data, "-p", str(port),
             *(word for setting in settings for word in ("-c", setting))], stdout=subprocess.DEVNULL, stderr=file)
    deadline = time.time() + 30
    ready = [f"{BIN}/pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
    while subprocess.run(ready).returncode != 0:
        if time.time() > deadline:
            raise SystemExit("PostgreSQL does not start")
        time.sleep(0.05)
    return child


def run_redis(folder, port, *arguments):
    """Starts one, empty, and waits until it answers."""
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/redis.log", "a") as log:
        child = subprocess.Popen(
            ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
             "--notify-keyspace-events", "Ex", "--dir", folder, *arguments], stdout=log)
    harness.await_port(port)
    return child


class Stores:
    """Both servers, with their defaults but for the place: commits reach the disk. Ends them when left."""

    # Of PostgreSQL, besides those that all have.
    SETTINGS = ()

    def __init__(self, folder):
        self.folder = folder
        self.sql_port, self.redis_port = harness.free_ports(2)
        self.sql_url = f"postgres://postgres@127.0.0.1:{self.sql_port}/postgres"
        self.redis_url = f"redis://127.0.0.1:{self.redis_port}"
        self.postgres = self.redis = None

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        ends = [(child, how) for child, how in self._ends() if child]
        for child, how in ends:
            child.send_signal(how)
            child.send_signal(signal.SIGCONT)
        for child, _ in ends:
            child.wait()

    def _start(self):
        self.data = self._own_folder("postgres")
        initdb = [f"{BIN}/initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C"]
        subprocess.run([*AS_POSTGRES, *initdb], check=True, stdout=subprocess.DEVNULL)
        self.start_postgres()
        self.start_redis()

    def _ends(self):
        """The children, and how each is ended. QUIT: PostgreSQL ends at once, with all its processes. Redis knows TERM.
        CONT, for all: who was stopped hears neither."""
        return [(self.postgres, signal.SIGQUIT), (self.redis, signal.SIGTERM)]

    def _own_folder(self, name):
        """A new and empty folder that belongs to PostgreSQL's user."""
        path = f"{self.folder}/{name}"
        os.mkdir(path, 0o700)
        if AS_POSTGRES:
            os.chmod(self.folder, 0o755)
            subprocess.run(["chown", "postgres:postgres", path], check=True)
        return path

    def start_postgres(self):
        """Starts it, and waits until it answers."""
        self.postgres = run_postgres(self.data, self.sql_port, f"{self.folder}/postgres.log", self.SETTINGS)

    def start_redis(self):
        """Starts it, empty, and waits until it answers."""
        self.redis = run_redis(self.folder, self.redis_port)

    def postgres_ids(self):
        """Process ids of PostgreSQL: the first one, then its children."""
        pid = self.postgres.pid
        with open(f"/proc/{pid}/task/{pid}/children") as children:
            return [pid, *map(int, children.read().split())]

    def sql(self, text, stdin=None):
        """Runs SQL with psql; answers what it prints, without decoration."""
        url = f"postgres://postgres@127.0.0.1:{self.sql_port}/postgres"
        command = ["psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", url, "-c", text]
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
