"""One replica of a launched job: a Ray actor that runs the program in a process of its own, as ``python3 code.py``
would, and passes its output on."""

from __future__ import annotations

import collections
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Mapping, Optional, Sequence

import ray
from adaptdl_ray import _files, _supervisor

__all__ = ["ScriptWorker"]

_STOPPED = 143
_LINES_MAX = 10000
_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """In the child: a worker that is killed takes its program along."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class ScriptWorker:
    """The actor. run() is called once; the others while it runs.

    Args:
        port_offset: Where to look for a free port; 0: any.
    """

    def __init__(self, port_offset: int = 0) -> None:
        self._lock = threading.Condition()
        self._lines: collections.deque = collections.deque(maxlen=_LINES_MAX)
        self._process: Optional[subprocess.Popen] = None
        self._stopping = self._ended = False
        self._port_offset = port_offset
        self._folder = tempfile.mkdtemp(prefix="adaptdl-job-")

    def place(self) -> dict[str, Any]:
        """Where it is, and a port that is free there."""
        return {"node": ray.get_runtime_context().get_node_id(), "address": ray.util.get_node_ip_address(),
                "port": _supervisor.free_port(self._port_offset), "pid": os.getpid(),
                "checkpoints": self._path("adaptdl")}

    def port(self) -> int:
        """Another free one."""
        return _supervisor.free_port(self._port_offset)

    def run(self, files: bytes, command: Sequence[str], environment: Mapping[str, str],
            checkpoint: Optional[bytes]) -> tuple:
        """Runs the program in the files that were packed, from the checkpoint when there is one."""
        _files.unpack(files, self._path("files"))
        os.makedirs(self._path("adaptdl"), exist_ok=True)
        if checkpoint is not None:
            _files.unpack(checkpoint, self._path("adaptdl"))
        with self._lock:
            if self._stopping:
                return ("stopped",)
            self._process = subprocess.Popen(
                [sys.executable, "-u", *command], cwd=self._path("files"), stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                env={**os.environ, **environment}, preexec_fn=_die_with_parent)
            self._lock.notify_all()
        for line in self._process.stdout:
            with self._lock:
                self._lines.append(line)
                self._lock.notify_all()
        status = self._process.wait()
        with self._lock:
            self._ended = True
            self._lock.notify_all()
        if status == 0:
            return ("done",)
        if status == _STOPPED or (status == -signal.SIGTERM and self._stopping):
            return ("stopped",)
        return ("failed", f"exit status {status}" if status >= 0 else f"killed by signal {-status}", time.time(),
                status if status >= 0 else 128 - status)

    def joined(self) -> None:
        """Returns when the program runs, or has ended."""
        with self._lock:
            self._lock.wait_for(lambda: self._process is not None or self._ended)

    def read(self, timeout_s: float) -> list[str]:
        """The lines that the program has printed since the last call."""
        with self._lock:
            self._lock.wait_for(lambda: self._lines or self._ended, timeout_s)
            lines = list(self._lines)
            self._lines.clear()
            return lines

    def stop(self) -> None:
        """Asks for a checkpoint and the end; run() returns when it is there."""
        with self._lock:
            self._stopping = True
            if self._process is not None and not self._ended:
                self._process.send_signal(signal.SIGTERM)

    def newest(self, known: Optional[str]) -> Optional[tuple[str, bytes]]:
        """The newest checkpoint (name, bytes), when it is another than the known one."""
        return _files.pack_newest(self._path("adaptdl"), known)

    def close(self) -> None:
        with self._lock:
            if self._process is not None and not self._ended:
                self._process.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)
