"""Processes that follow each other in place: how we hear of the next one, and how we wait for a child of a child."""

import asyncio
import ctypes
import os
import signal
import socket

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans(on):
    """Who was started by a child of ours becomes ours when that one ends: its exit status is for us to read. Only for so
    long as wanted: orphans of PostgreSQL are nobody's here."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


class Adopted:
    """What `subprocess.Popen` is to a child, for a process that our child started."""

    def __init__(self, pid):
        self.pid, self.returncode = pid, None

    def poll(self):
        if self.returncode is not None:
            return self.returncode
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            # Still the other one's child, or gone without a word to us.
            if not os.path.exists(f"/proc/{self.pid}"):
                self.returncode = -1
            return self.returncode
        if pid:
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self):
        while self.poll() is None:
            # Only after a kill: it takes no time worth a loop that others could use.
            os.sched_yield()
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


class Notified:
    """The end of a supervisor: hears which process serves (`sd_notify(3)`), as systemd does. Has to be read all the time:
    the system keeps some ten messages, and who has another one to say waits for us."""

    def __init__(self, path):
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(path)
        self.socket.setblocking(False)
        # The last process that said that it serves.
        self.serving = None

    def listen(self):
        """From now on, on the loop that runs."""
        asyncio.get_running_loop().add_reader(self.socket, self._hear)

    def _hear(self):
        for line in self.socket.recv(4096).decode().splitlines():
            if line.startswith("MAINPID="):
                self.serving = int(line.removeprefix("MAINPID="))
