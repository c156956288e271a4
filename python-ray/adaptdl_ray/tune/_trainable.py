"""The trainable of an elastic trial: it owns the trial's worker actors. Where the function can, it is resized while it
trains: workers come or go, each beyond those that Tune made room for in a placement group of its own. Otherwise by a pause:
Tune asks for a checkpoint, gives the trial a placement group of another size, and restores it there."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import queue
import shutil
import tempfile
import threading
import time
from typing import Any, Callable, ClassVar, Mapping, Optional

import ray
import ray.tune
from adaptdl_ray import _files, _groups, _snapshot, _supervisor
from adaptdl_ray.tune._group import Group
from ray import cloudpickle
from ray.tune.result import RESULT_DUPLICATE, SHOULD_CHECKPOINT

__all__ = ["AdaptDLTrainable"]

_POLL_S = 0.2
_STATE = "adaptdl.json"
_PENDING = "pending.pickle"
# Replicas that die again and again without a result or a checkpoint between are not worth a further try.
_LOSSES_IN_A_ROW = 5


async def _in_thread(function: Callable, *args: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, functools.partial(function, *args))


class AdaptDLTrainable(ray.tune.Trainable):
    """Base of what :func:`DistributedTrainableCreator` makes; not used as it is. Its class attributes are that
    function's arguments.

    train() and its like are coroutines, which makes the actor one that answers others meanwhile: the scheduler's
    questions, and save(), which ends the train() that waits for a result."""

    function: ClassVar[Callable]
    options: ClassVar[Mapping[str, Any]]

    # ---- Tune's side ----

    def setup(self, config: dict) -> None:
        # Ray warns of calls that wait in actors with coroutines; those here wait in threads of their own.
        worker_module = ray._private.worker
        worker_module.blocking_get_inside_async_warned = worker_module.blocking_wait_inside_async_warned = True
        self._lock = threading.RLock()
        self._group: Optional[Group] = None
        self._restarts = 0
        self._ledger = {"runSeconds": 0.0, "replicaSeconds": 0.0}
        self._checkpoint: Optional[bytes] = None  # what the next group starts from
        self._program: Optional[bytes] = None
        self._pending: queue.SimpleQueue = queue.SimpleQueue()
        self._saved: Any = None  # as Tune knows it, of a checkpoint that Tune did not ask for
        self._name: Optional[str] = None
        self._losses = 0
        self._parked = self._closed = self._finished = False
        self._keep_running = False
        self._asked: Optional[tuple[int, list[str]]] = None  # another size, and where
        self._supervisor = _supervisor.Supervisor(ray.util.get_node_ip_address(), f"tune/{self.trial_id}")

    async def train(self) -> dict:  # type: ignore[override]
        return await _in_thread(super().train)

    async def save(self, checkpoint_dir: Optional[str] = None) -> Any:  # type: ignore[override]
        return await _in_thread(super().save, checkpoint_dir)

    async def restore(self, checkpoint_path: Any) -> None:  # type: ignore[override]
        await _in_thread(super().restore, checkpoint_path)
        # A trial that is paused again before its next result has had that many results all the same.
        self._last_result = dict(getattr(checkpoint_path, "metrics", None) or {}) or None

    async def stop(self) -> None:  # type: ignore[override]
        await _in_thread(super().stop)

    def step(self) -> dict:
        with self._lock:
            self._parked = False
        while True:
            with self._lock:
                if self._closed or self._parked:
                    break
                result = self._advance()
                if result is not None:
                    return result
            if self._group is not None:
                self._group.wait(_POLL_S)
        # A save() took the group away while this waited. Tune drops this call when it has the checkpoint, and must
        # not get an answer before: any would be taken for a result.
        while not self._closed:
            time.sleep(_POLL_S)
        return {RESULT_DUPLICATE: True}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        with self._lock:
            keep, self._keep_running = self._keep_running, False
            if self._group is not None and not keep:
                self._parked = True
                self._stop_group()
            self._write(checkpoint_dir)

    def load_checkpoint(self, checkpoint_dir: Any) -> None:
        with self._lock:
            with open(os.path.join(checkpoint_dir, _STATE)) as file:
                state = json.load(file)
            self._restarts = state["restarts"] + 1
            self._ledger = state["ledger"]
            for name, field in (("adaptdl", "_checkpoint"), ("program", "_program")):
                folder = os.path.join(checkpoint_dir, name)
                setattr(self, field, _files.pack(folder) if os.path.isdir(folder) else None)
            self._name = _files.newest_checkpoint(os.path.join(checkpoint_dir, "adaptdl"))
            with open(os.path.join(checkpoint_dir, _PENDING), "rb") as file:
                for event in cloudpickle.load(file):
                    self._pending.put(event)

    def cleanup(self) -> None:
        with self._lock:
            self._closed = True
            if self._group is not None:
                self._group.kill()
                self._group = None
        self._supervisor.close()

    @classmethod
    def default_resource_request(cls, config: dict) -> ray.tune.PlacementGroupFactory:
        return cls.resources_for(cls.options["num_workers"])

    @classmethod
    def replica_request(cls) -> dict[str, float]:
        """What one replica takes: GPUs where the cluster has any, else CPUs."""
        gpus = cls.options["num_gpus_per_worker"]
        if gpus is None:
            gpus = 1 if ray.is_initialized() and ray.cluster_resources().get("GPU", 0) >= 1 else 0
        request = {"CPU": cls.options["num_cpus_per_worker"], "GPU": gpus}
        return {name: amount for name, amount in request.items() if amount}

    @classmethod
    def resources_for(cls, replicas: int, device_type: str = "") -> ray.tune.PlacementGroupFactory:
        """A bundle for each replica, on nodes of one type when it is named; the trainable itself, which only waits,
        takes nothing."""
        bundle = {**cls.replica_request(), **_snapshot.type_resource(device_type)}
        return ray.tune.PlacementGroupFactory([{}] + [bundle] * replicas)

    # ---- the scheduler's side ----

    def adaptdl_status(self) -> dict[str, Any]:
        """What the scheduler wants to know of a running trial. Does not wait."""
        group = self._group
        return {"hints": self._supervisor.hints(), "models": self._supervisor.models(), "restarts": self._restarts,
                "saved": self._saved, "deviceType": group.device_type if group else "",
                "nodes": list(group.nodes) if group else [], "ready": bool(group and group.ready),
                "startSeconds": group.start_s if group and group.ready else 0.0,
                "pids": list(group.pids) if group else [], "ledger": self._accounts(),
                "able": bool(group and group.able), "cannot": group.cannot if group and not self._asked else None,
                "changes": bool(self._asked or (group and (group.target is not None or not group.settled))),
                "pauseSeconds": group.pause_s if group else 0.0, "wentOn": group.went_on if group else 0}

    def adaptdl_resize(self, replicas: int, nodes: list[str]) -> None:
        """Another size while it trains, on these nodes where that can be. Does not wait; the status says what becomes
        of it: "changes" until it is there, "cannot" when it takes a restart."""
        self._asked = replicas, list(nodes)

    def _accounts(self) -> dict[str, float]:
        """Seconds of training, and those of all replicas together, over all groups."""
        group, out = self._group, dict(self._ledger)
        if group is not None:
            for name, seconds in group.accounts().items():
                out[name] += seconds
        return out

    # ---- the workers' side; all under the lock ----

    def _advance(self) -> Optional[dict]:
        """One look at the group: a result when there is one."""
        if not self._pending.empty():
            return self._result(self._pending.get())
        if self._finished:
            return {RESULT_DUPLICATE: True} if self._last_result else self._never_reported()
        if self._group is None:
            self._start_group()
        group = self._group
        if self._asked is not None:
            (replicas, nodes), self._asked = self._asked, None
            group.resize(replicas, nodes)
        event = group.poll()
        try:
            if event is not None:
                self._losses = 0
                group.tend()
                return self._result(event)
            outcome = group.outcome()
        except _groups.Lost as lost:
            return self._recover(lost)
        self._keep_newest(final=outcome is not None)
        if outcome is None:
            return None
        for event in group.drain():  # what it reported last may still be on its way
            self._pending.put(event)
        if outcome[0] == "failed":
            self._end_group()
            raise _groups.TrainingError(f"the training function failed:\n{outcome[1]}")
        self._end_group()
        if outcome[0] == "stopped":  # by a signal from elsewhere, with a checkpoint: goes on
            self._restarts += 1
        else:
            self._finished = True
        return None

    def _never_reported(self) -> dict:
        raise _groups.TrainingError(
            "the training function returned without a result: it must call tune.report at least once")

    def _result(self, event: tuple) -> dict:
        metrics, program = event
        result = dict(metrics)
        if program is not None:
            self._program = program
            self._keep_running = True
            if self._group is not None:
                self._group.keep_program(program)
            result[SHOULD_CHECKPOINT] = True
        return result

    def _start_group(self) -> None:
        options = self.options
        request = self.trial_resources
        replicas = len(request.bundles) if request else options["num_workers"]
        facts = {"trial_id": self.trial_id, "trial_name": self.trial_name, "trial_dir": self.logdir,
                 "experiment_name": getattr(self._storage, "experiment_dir_name", None),
                 "trial_resources": request, "storage": self._storage}
        self._asked = None
        self._group = Group(replicas, self.replica_request_here(), options)
        self._group.start(type(self).function, self.config, self._supervisor, self._restarts, facts,
                          self._checkpoint, self._program, self._name)

    def replica_request_here(self) -> dict[str, float]:
        """Of a running trial: what its bundles are."""
        request = self.trial_resources
        return dict(request.bundles[0]) if request else self.replica_request()

    def _stop_group(self) -> None:
        """Ends the group with a checkpoint; results that Tune has not seen yet are kept for later."""
        group = self._group
        outcome = group.stop(self.options["stop_timeout_s"])
        for event in group.drain():
            self._pending.put(event)
        self._keep_newest(final=True)
        self._end_group()
        if outcome and outcome[0] == "failed":
            raise _groups.TrainingError(f"the training function failed:\n{outcome[1]}")

    def _end_group(self) -> None:
        self._ledger = self._accounts()
        self._group.kill()
        self._group = None

    def _keep_newest(self, final: bool = False) -> None:
        """Takes over a checkpoint that rank 0 wrote, and gives it to Tune's storage unless Tune is about to ask."""
        found = self._group.newest(_groups.LAST_S if final else 0)
        if found is None:
            return
        self._name, self._checkpoint = found
        self._losses = 0
        if not final:
            self._persist()

    def _persist(self) -> None:
        folder = tempfile.mkdtemp(prefix="adaptdl-save-")
        try:
            self._write(folder)
            self._saved = self._report_class_trainable_checkpoint(folder, None)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _recover(self, lost: _groups.Lost) -> None:
        """Workers died without a word. In place when their bundles still have machines, else by Tune."""
        for event in self._group.drain():
            self._pending.put(event)
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        gone = [node for node in self._group.nodes if node not in alive]
        self._end_group()
        self._losses += 1
        if gone:
            raise _groups.WorkersLost(f"{len(gone)} of the trial's replicas were lost with their machine", self._saved)
        if self._losses > _LOSSES_IN_A_ROW:
            raise _groups.TrainingError(f"replicas died {self._losses} times in a row, without a result or a "
                                        f"checkpoint between; the last time: {lost}")
        self._restarts += 1
        print(f"adaptdl: a replica died ({lost}); going on from the last checkpoint", flush=True)

    def _write(self, folder: str) -> None:
        for data, name in ((self._checkpoint, "adaptdl"), (self._program, "program")):
            if data is not None:
                _files.unpack(data, os.path.join(folder, name))
        events = []
        while not self._pending.empty():
            events.append(self._pending.get())
        for event in events:
            self._pending.put(event)
        with open(os.path.join(folder, _PENDING), "wb") as file:
            cloudpickle.dump(events, file)
        with open(os.path.join(folder, _STATE), "w") as file:
            json.dump({"restarts": self._restarts, "ledger": self._accounts()}, file)
