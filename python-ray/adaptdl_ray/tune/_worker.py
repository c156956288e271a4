"""One replica of a trial: a Ray actor that runs the training function in a thread, so that it can be asked
meanwhile for results and checkpoints, and be asked to stop."""

from __future__ import annotations

import collections
import inspect
import os
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from typing import Any, Callable, Mapping, Optional

import ray
from adaptdl_ray import _files, _supervisor
from adaptdl_ray.tune import _session

__all__ = ["Outcome", "Worker"]

_STOPPED = 143  # the exit status of a training that stopped because it was asked to
_KEPT = 8  # results of a replica other than rank 0 that it keeps: it may have to say what rank 0 cannot any more


class Outcome(tuple):
    """How a replica ended: ("done",), ("stopped",) or ("failed", text, because_of_a_peer)."""


class Worker:
    """The actor. run() is called once; the others while it runs."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._events: collections.deque = collections.deque()  # ((world, number in it), metrics, checkpoint)
        self._world, self._reports = 0, 0
        self._stopping = self._started = self._ended = False
        self._folder = tempfile.mkdtemp(prefix="adaptdl-trial-")

    def place(self) -> dict[str, Any]:
        """Where it is, and a port that is free there."""
        return {"node": ray.get_runtime_context().get_node_id(), "address": ray.util.get_node_ip_address(),
                "port": _supervisor.free_port(), "pid": os.getpid(), "checkpoints": self._path("adaptdl")}

    def port(self) -> int:
        """Another free one."""
        return _supervisor.free_port()

    def run(self, task: tuple[Callable, dict, Mapping[str, Any]], environment: Mapping[str, str], backend: Optional[str],
            states: tuple[Optional[bytes], Optional[bytes]]) -> Outcome:
        """Trains. task: the function, its configuration, and what Tune says of the trial. states: the checkpoint
        to go on from, and what the function itself saved last."""
        (function, config, session), (checkpoint, program) = task, states
        if checkpoint is not None:
            _files.unpack(checkpoint, self._path("adaptdl"))
        if program is not None:
            _files.unpack(program, self._path("program"))
        os.environ.update(environment)
        given = self._path("program") if program is not None else None
        with _session.Session(session, given, self._report):
            outcome = self._train(function, dict(config), backend, given)
        with self._lock:
            self._ended = True
            self._lock.notify_all()
        return outcome

    def _train(self, function: Callable, config: dict, backend: Optional[str], given: Optional[str]) -> Outcome:
        from adaptdl import _core
        try:
            self._join(backend)
            takes = inspect.signature(function).parameters
            function(config, **({"checkpoint_dir": given} if "checkpoint_dir" in takes else {}))
            self._leave()
            return Outcome(("done",))
        except SystemExit as end:
            if end.code in (_STOPPED, None, 0):
                return Outcome(("stopped",) if end.code == _STOPPED else ("done",))
            return Outcome(("failed", f"the training function exited with status {end.code}", False))
        except BaseException as error:  # whatever it is, it is the trial's end, not the actor's
            text = traceback.format_exc()
            if _core.context_state() == "started":
                _core.context_abandon(f"the training function failed: {error}")
            return Outcome(("failed", text, isinstance(error, (ConnectionError, TimeoutError))))

    def _join(self, backend: Optional[str]) -> None:
        """Meets the other replicas. A function that does so itself, as a program would, finds it done."""
        if backend == "none":
            from adaptdl import _core
            _core.context_start(signals=True)
        else:
            import adaptdl.torch
            import torch
            adaptdl.torch.init_process_group(backend or ("nccl" if torch.cuda.is_available() else "gloo"))
            adaptdl.torch.init_process_group = lambda *args, **kwargs: None
        with self._lock:
            self._started = True
            self._lock.notify_all()
            if self._stopping:
                os.kill(os.getpid(), signal.SIGTERM)

    def joined(self) -> None:
        """Returns when it trains, or has ended."""
        with self._lock:
            self._lock.wait_for(lambda: self._started or self._ended)

    @staticmethod
    def _leave() -> None:
        from adaptdl import _core, collective
        if "torch" in sys.modules and sys.modules["torch"].distributed.is_initialized():
            sys.modules["torch"].distributed.destroy_process_group()
        if _core.context_state() == "started":  # the function may have left by itself
            collective.teardown()

    def _report(self, metrics: dict[str, Any], checkpoint: Any) -> None:
        """A result. That of rank 0 counts: it waits until the one before was taken, so that a function that reports
        faster than Tune looks is slowed down, as with Tune's own functions. The others keep theirs for a while: all
        replicas report alike, and one of them may be rank 0 next."""
        from adaptdl import _core
        if _core.joining():
            return  # the others have reported this long ago
        rank, _, world = _core.world()
        data = None
        if checkpoint is not None and rank == 0:
            with checkpoint.as_directory() as folder:
                data = _files.pack(folder)
        with self._lock:
            if world != self._world:
                self._world, self._reports = world, 0
            self._reports += 1
            self._events.append(((world, self._reports), metrics, data))
            self._lock.notify_all()
            if rank != 0:
                while len(self._events) > _KEPT:
                    self._events.popleft()
                return
            self._lock.wait_for(lambda: len(self._events) <= 1 or self._stopping)

    def next_report(self, after: tuple[int, int], timeout_s: float) -> Optional[tuple]:
        """The first result after that one, ((world, number in it), metrics, checkpoint of the function); None: there was
        none in that time. What comes before is forgotten: it was taken."""
        def fresh() -> bool:
            while self._events and self._events[0][0] <= tuple(after):
                self._events.popleft()
                self._lock.notify_all()
            return bool(self._events)

        with self._lock:
            self._lock.wait_for(lambda: fresh() or self._ended, timeout_s)
            return self._events[0] if self._events else None

    def stop(self) -> None:
        """Asks for a checkpoint and the end; run() returns when it is there."""
        with self._lock:
            self._stopping = True
            self._lock.notify_all()
            if self._started and not self._ended:
                os.kill(os.getpid(), signal.SIGTERM)

    def newest(self, known: Optional[str]) -> Optional[tuple[str, bytes]]:
        """The newest checkpoint (name, bytes), when it is another than the known one."""
        return _files.pack_newest(self._path("adaptdl"), known)

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)
