"""The controller of a launched job: an actor on the head node that decides on how many machines the job runs, and
carries it out. What is decided is the policies' decision; here is only who is started and stopped when."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from typing import Any, Mapping, Optional

import adaptdl.policy
import ray
from adaptdl_ray import _files, _groups, _snapshot, _supervisor
from adaptdl_ray.aws import spot
from adaptdl_ray.aws.worker import ScriptWorker
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

__all__ = ["Controller", "JobSpec"]

_HEAD = "node:__internal_head__"
_POLL_S = 0.5
_LOG_MAX = 100000
_LOSSES_IN_A_ROW = 10


@dataclasses.dataclass
class JobSpec:
    """What is to be run, and on what."""
    name: str
    command: list[str]                # the program below the packed folder, and its arguments
    max_workers: int
    request: Mapping[str, float]      # of one worker, as Ray names it
    port_offset: int = 0
    checkpoint_timeout_s: float = 120.0
    rescale_timeout_s: float = 300.0
    interval_s: float = 60.0
    checkpoint_dir: Optional[str] = None
    checkpoint_interval_s: Optional[int] = None
    metadata_url: str = spot.DEFAULT_URL
    spot_interval_s: float = 5.0
    parameters: Mapping[str, float] = dataclasses.field(default_factory=dict)  # of the policy
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


class _ScriptGroup(_groups.Workers):
    """The workers of one start of the job."""

    def __init__(self, nodes: list[str], spec: JobSpec) -> None:
        super().__init__()
        self._spec = spec
        self._read: Optional[ray.ObjectRef] = None
        more = {name: amount for name, amount in spec.request.items() if name not in ("CPU", "GPU")}
        self._workers = [ray.remote(ScriptWorker).options(
            num_cpus=spec.request.get("CPU", 0), num_gpus=spec.request.get("GPU", 0), resources=more or None,
            max_concurrency=6, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        ).remote(spec.port_offset) for node in nodes]

    def start(self, files: ray.ObjectRef, supervisor: _supervisor.Supervisor, restarts: int,
              checkpoint: Optional[ray.ObjectRef]) -> None:
        places = self.places()
        supervisor.set_group(restarts, [place["address"] for place in places])
        secret = _groups.new_secret()
        self._runs = [worker.run.remote(files, self._spec.command, {
            **self._spec.environment, **_groups.replica_environment(
                rank, places, restarts, supervisor.job, supervisor.url, places[rank]["checkpoints"],
                self._spec.checkpoint_interval_s, secret)}, checkpoint)
            for rank, worker in enumerate(self._workers)]
        self._joined = [worker.joined.remote() for worker in self._workers]

    def output(self, last: bool = False) -> list[str]:
        """What rank 0 has printed since the last call."""
        lines: list[str] = []
        while True:
            if self._read is None:
                self._read = self._workers[0].read.remote(0 if last else 1.0)
            if not ray.wait([self._read], timeout=10 if last else 0)[0]:
                return lines
            read, self._read = self._read, None
            try:
                more = ray.get(read)
            except RayError:
                return lines
            lines += more
            if not last or not more:
                return lines


class Controller:
    """The actor. run() runs the job to its end; the others may be called meanwhile.

    Args:
        spec: The job.
        files: Its working directory, packed.
    """

    def __init__(self, spec: JobSpec, files: bytes) -> None:
        self.spec = spec
        self._files = ray.put(files)
        self._lock = threading.Condition()
        self._log: list[str] = []
        self._dropped = 0
        self._status: Optional[int] = None
        self._stop = False
        self._supervisor = _supervisor.Supervisor(ray.util.get_node_ip_address(), f"ray/{spec.name}")
        self._policy = adaptdl.policy.Policy("rank", dict(spec.parameters))
        self._head = ray.get_runtime_context().get_node_id()
        self._group: Optional[_ScriptGroup] = None
        self._restarts = -1
        self._losses = 0
        self._checkpoint: Optional[ray.ObjectRef] = None
        self._name: Optional[str] = None
        self._leaving: dict[str, spot.Notice] = {}
        self._listeners: dict[str, Any] = {}
        self._questions: dict[str, ray.ObjectRef] = {}
        self._began = self._changed = time.time()
        self._decided = 0.0
        self._requested: Optional[int] = None
        self._decision: dict[str, Any] = {}
        self._events: list[str] = []

    # ---- what the launcher calls ----

    def run(self) -> int:
        """Runs the job; returns its exit status."""
        try:
            self._load_directory()
            status = self._run()
        except _groups.TrainingError as error:
            self._say(f"adaptdl: {error}")
            status = 1
        except Exception as error:  # the launcher must hear of it, or it would wait for ever
            self._say(f"adaptdl: the controller failed: {type(error).__name__}: {error}")
            status = 1
        finally:
            self._end_group()
            self._release()
        with self._lock:
            self._status = status
            self._lock.notify_all()
        return status

    def output(self, offset: int, timeout_s: float = 1.0) -> tuple[list[str], int, Optional[int]]:
        """Lines from that offset on, the next offset, and the exit status once the job has ended."""
        with self._lock:
            self._lock.wait_for(lambda: self._dropped + len(self._log) > offset or self._status is not None, timeout_s)
            lines = self._log[max(offset - self._dropped, 0):]
            return lines, self._dropped + len(self._log), self._status

    def stop(self) -> None:
        """Ends the job, with a checkpoint; run() returns 143."""
        with self._lock:
            self._stop = True
            self._lock.notify_all()

    def status(self) -> dict[str, Any]:
        """How the job stands."""
        group = self._group
        jobs = self._decision.get("jobs") or [{}]
        return {"name": self.spec.name, "status": self._status, "replicas": len(group.nodes) if group else 0,
                "nodes": list(group.nodes) if group else [], "restarts": max(self._restarts, 0),
                "pids": list(group.pids) if group else [], "requested": self._requested, "checkpoint": self._name,
                "leaving": {node: notice.kind for node, notice in self._leaving.items()},
                "explain": jobs[0].get("text", ""), "events": list(self._events)}

    # ---- the job ----

    def _run(self) -> int:
        while not self._stop:
            nodes = self._wait_for_nodes()
            if not nodes:
                break
            try:
                self._start_group(nodes)
                status = self._watch()
            except (_groups.Lost, _groups.WorkersLost) as lost:
                self._end_group()
                self._losses += 1
                if self._losses > _LOSSES_IN_A_ROW:
                    raise _groups.TrainingError(f"workers died {self._losses} times in a row: {lost}") from None
                self._event(f"lost a worker ({lost}); going on from "
                            f"{self._name or 'the beginning, there was no checkpoint yet'}")
                continue
            if status is not None:
                return status
        return 143

    def _watch(self) -> Optional[int]:
        """Until the job ends (its exit status) or is to be started elsewhere (None)."""
        group = self._group
        while True:
            group.wait(_POLL_S)
            self._say(*group.output())
            self._keep_newest()
            outcome = group.outcome()
            if outcome is not None:
                return self._ended(outcome)
            why = self._why_move()
            if why:
                self._event(why)
                return self._stop_group()

    def _ended(self, outcome: tuple) -> Optional[int]:
        self._say(*self._group.output(last=True))
        self._keep_newest(final=True)
        self._end_group()
        if outcome[0] == "stopped":
            return None  # by somebody on the machine: it goes on
        if outcome[0] == "failed":
            self._event(f"the program failed: {outcome[1]}")
            return outcome[3]
        return 0

    def _why_move(self) -> str:
        """Why the group must stop now; empty: it need not."""
        if self._stop:
            return "asked to stop"
        self._hear()
        leaving = [node for node in self._group.nodes if node in self._leaving]
        if leaving:
            return f"{len(leaving)} of its machines is going to be taken away ({self._leaving[leaving[0]].kind})"
        now = time.time()
        if now - self._decided < self.spec.interval_s and not self._nodes_changed():
            return ""
        nodes = self._decide(now)
        self._ask_for_machines(now)
        if nodes and len(nodes) != len(self._group.nodes):
            return f"goes from {len(self._group.nodes)} to {len(nodes)} workers"
        return ""

    # ---- machines ----

    def _worker_nodes(self) -> list[_snapshot.Node]:
        """All that are there, but the head and those that are going."""
        return _snapshot.ray_nodes(skip=[self._head, *self._leaving])

    def _nodes_changed(self) -> bool:
        names = sorted(node.name for node in self._worker_nodes())
        changed, self._names = names != getattr(self, "_names", None), names
        return changed

    def _job(self, most: Optional[int] = None) -> _snapshot.Job:
        group = self._group
        ready = group is not None and group.ready
        return _snapshot.Job(self.spec.name, self.spec.request, 1, most or self.spec.max_workers,
                             group.nodes if group else (), self._began, self._changed,
                             time.monotonic() - group.since if ready else 0.0, 0.0, max(self._restarts, 0), 0.0,
                             self._supervisor.hints())

    def _decide(self, now: float) -> list[str]:
        """The nodes that the policy gives the job, one for each worker, of those that are there."""
        nodes = self._worker_nodes()
        self._decided = now
        self._names = sorted(node.name for node in nodes)
        if not any(_snapshot.fits(node.resources, self.spec.request) for node in nodes):
            return []
        self._decision = self._policy.decide(_snapshot.make_snapshot(nodes, [self._job()], now, "rank", self.spec.parameters))
        return [nodes[index].name for index in self._decision["jobs"][0]["nodes"]]

    def _ask_for_machines(self, now: float) -> int:
        """Tells the autoscaler how many workers the policy would use if there were machines for all of them."""
        job = self._job()
        made_up = [_snapshot.Node(f"new-{index}", self.spec.request) for index in range(self.spec.max_workers)]
        nodes = self._worker_nodes() + made_up
        decision = adaptdl.policy.decide(_snapshot.make_snapshot(nodes, [job], now, "rank", self.spec.parameters))
        wanted = max(len(decision["jobs"][0]["nodes"]), 1)
        if wanted != self._requested:
            from ray.autoscaler import sdk
            sdk.request_resources(bundles=[dict(self.spec.request)] * wanted)
            self._requested = wanted
            self._event(f"asked the autoscaler for room for {wanted} workers")
        return wanted

    def _wait_for_nodes(self) -> list[str]:
        """Where to start: what the policy wants, or after the time-out what there is. TrainingError: nothing."""
        deadline = time.monotonic() + self.spec.rescale_timeout_s
        while not self._stop:
            self._listen()
            self._hear()
            now = time.time()
            wanted = self._ask_for_machines(now)
            nodes = self._decide(now)
            if len(nodes) >= wanted or (nodes and time.monotonic() >= deadline):
                return nodes
            if time.monotonic() >= deadline:
                raise _groups.TrainingError(self._nothing_fits())
            with self._lock:
                self._lock.wait_for(lambda: self._stop, _POLL_S)
        return []

    def _nothing_fits(self) -> str:
        nodes = self._worker_nodes()
        wants = ", ".join(f"{amount:g} {name}" for name, amount in self.spec.request.items())
        most = ", ".join(f"{max((node.resources.get(name, 0) for node in nodes), default=0):g} {name}"
                         for name in self.spec.request)
        return (f"no node has what one worker takes ({wants}); beside the head there are {len(nodes)} nodes, the most "
                f"that one has is {most}; waited {self.spec.rescale_timeout_s:g} s for others")

    # ---- notices ----

    def _listen(self) -> None:
        """Every worker node has a listener."""
        alive = {node.name for node in _snapshot.ray_nodes(skip=[self._head])}
        for node in alive - self._listeners.keys():
            listener = ray.remote(spot.SpotListener).options(
                num_cpus=0, max_concurrency=2,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            ).remote(self.spec.metadata_url, node, self.spec.spot_interval_s)
            self._listeners[node] = listener
            self._questions[node] = listener.wait.remote()
        for node in self._listeners.keys() - alive:
            self._listeners.pop(node, None)
            self._questions.pop(node, None)
            self._leaving.pop(node, None)

    def _hear(self) -> None:
        """Takes note of what the listeners have heard."""
        self._listen()
        if not self._questions:
            return
        names = {question: node for node, question in self._questions.items()}
        for question in ray.wait(list(names), num_returns=len(names), timeout=0)[0]:
            node = names[question]
            del self._questions[node]
            try:
                notice = ray.get(question)
            except RayError:
                continue  # gone already: the group says so
            if notice is not None:
                self._leaving[node] = notice
                self._requested = None  # what was asked for counted this machine
                self._event(f"node {node[:8]}: {notice.kind} notice: {notice.text}")

    # ---- groups and checkpoints ----

    def _start_group(self, nodes: list[str]) -> None:
        self._restarts += 1
        self._changed = time.time()
        self._event(f"starts on {len(nodes)} workers on {len(set(nodes))} nodes")
        self._group = _ScriptGroup(nodes, self.spec)
        self._group.start(self._files, self._supervisor, self._restarts, self._checkpoint)

    def _stop_group(self) -> Optional[int]:
        group = self._group
        outcome = group.stop(self.spec.checkpoint_timeout_s)
        self._say(*group.output(last=True))
        if outcome is None:
            self._event(f"no checkpoint within {self.spec.checkpoint_timeout_s:g} s: goes on from the previous one")
        self._keep_newest(final=outcome is not None)
        self._end_group()
        if outcome and outcome[0] == "failed":
            self._event(f"the program failed: {outcome[1]}")
            return outcome[3]
        return 0 if outcome and outcome[0] == "done" else None

    def _end_group(self) -> None:
        if self._group is not None:
            self._group.kill()
            self._group = None

    def _keep_newest(self, final: bool = False) -> None:
        found = self._group.newest(self._name, final)
        if found is None:
            return
        self._name, data = found
        self._losses = 0
        self._checkpoint = ray.put(data)  # owned by this actor: it outlives the worker's machine
        if self.spec.checkpoint_dir:
            _files.unpack_beside(data, self.spec.checkpoint_dir, self._name)

    def _load_directory(self) -> None:
        if self.spec.checkpoint_dir and os.path.isdir(self.spec.checkpoint_dir):
            found = _files.pack_newest(self.spec.checkpoint_dir, None)
            if found is not None:
                self._name, data = found
                self._checkpoint = ray.put(data)

    def _release(self) -> None:
        """Nothing is wanted of the autoscaler any more."""
        for listener in self._listeners.values():
            ray.kill(listener)
        from ray.autoscaler import sdk
        sdk.request_resources(bundles=[])
        self._supervisor.close()

    # ---- words ----

    def _say(self, *lines: str) -> None:
        if not lines:
            return
        with self._lock:
            self._log += [line if line.endswith("\n") else line + "\n" for line in lines]
            extra = len(self._log) - _LOG_MAX
            if extra > 0:
                del self._log[:extra]
                self._dropped += extra
            self._lock.notify_all()

    def _event(self, text: str) -> None:
        self._events.append(text)
        self._say(f"adaptdl: {text}")
