"""The controller of a launched job: an actor on the head node that decides on how many machines the job runs, and
carries it out. What is decided is the policies' decision; here is only who is started and stopped when."""

from __future__ import annotations

import dataclasses
import math
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
_LOOK_S = 10
# How long workers may take to leave a machine that is going to be taken away; then they are stopped.
_NOTICE_S = 30
# How long they wait there, before, for a checkpoint to be safe.
_SAVE_S = 30


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
    """The workers of one start of the job; a room is one of them on a node. They may become others while they run."""

    def __init__(self, nodes: list[str], spec: JobSpec, files: ray.ObjectRef, checkpoint: Optional[ray.ObjectRef]) -> None:
        super().__init__(spec.request, spec.checkpoint_interval_s)
        self.refused = ""  # why the program cannot go on with other workers
        self._spec, self._files, self._checkpoint = spec, files, checkpoint
        self._where = dict(enumerate(nodes))
        self._read: Optional[ray.ObjectRef] = None
        self._reader = 0
        self._last_words: list[str] = []

    def start(self, supervisor: _supervisor.Supervisor, restarts: int, known: Optional[str]) -> None:
        self._launch(list(self._where), supervisor, restarts, known)

    def _hire(self, room: int) -> Any:
        request = self._request
        more = {name: amount for name, amount in request.items() if name not in ("CPU", "GPU")}
        return ray.remote(ScriptWorker).options(
            num_cpus=request.get("CPU", 0), num_gpus=request.get("GPU", 0), resources=more or None,
            max_concurrency=6, scheduling_strategy=NodeAffinitySchedulingStrategy(self._where[room], soft=False),
        ).remote(self._spec.port_offset)

    def _send(self, member: _groups.Member, environment: dict[str, str], joins: bool) -> ray.ObjectRef:
        return member.worker.run.remote(self._files, self._spec.command, {**self._spec.environment, **environment},
                                        None if joins else self._checkpoint)

    def wanted_nodes(self) -> list[str]:
        return [self._where[room] for room in self._wanted]

    def resize(self, nodes: list[str]) -> bool:
        """Begins to become one worker on each of these nodes; False: not without a restart."""
        left, kept = list(nodes), []
        for room in self._wanted:
            if self._where[room] in left:
                left.remove(self._where[room])
                kept.append(room)
        if not self.able or not kept:
            return False
        first = max(self._where) + 1
        more = {first + index: node for index, node in enumerate(left)}
        self._where.update(more)
        self._want(kept + list(more))
        return True

    def _note(self, word: str, member: int, seconds: float, text: str) -> None:
        if word == "went on":  # where others are to be is for the controller to say
            self._want([room for _, room in self._worlds.members])
        elif word == "restart":
            self.refused = text

    def _part(self, member: _groups.Member) -> None:
        if member.number == self._reader:
            self._last_words += self._rest(member.worker)

    @staticmethod
    def _lines(read: ray.ObjectRef, wait_s: float) -> Optional[list[str]]:
        try:
            return ray.get(read) if ray.wait([read], timeout=wait_s)[0] else None
        except RayError:
            return []

    def output(self, last: bool = False) -> list[str]:
        """What rank 0 has printed since the last call."""
        lines, self._last_words = self._last_words, []
        first = self.first()
        if first.number != self._reader:  # what it printed while it was another rank is not wanted
            self._reader, self._read = first.number, None
            self._lines(first.worker.read.remote(0), 10)
        if last:
            return lines + self._rest(first.worker)
        if self._read is None:
            self._read = first.worker.read.remote(1.0)
        more = self._lines(self._read, 0)
        if more is not None:
            self._read = None
        return lines + (more or [])

    def _rest(self, worker: Any) -> list[str]:
        """All that it has printed by now: an answer to an earlier question may be older than its last words."""
        earlier, self._read = self._read, None
        lines = (self._lines(earlier, 10) or []) if earlier is not None else []
        return lines + (self._lines(worker.read.remote(0), 10) or [])


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
        self._kept = 0  # checkpoints
        self._insured: set[str] = set()  # machines that go, for which a checkpoint was asked for,
        self._insured_by = (0, 0.0)      # and is there: with that one, or at this time it is not waited for any more
        self._leaving: dict[str, spot.Notice] = {}
        self._listeners: dict[str, Any] = {}
        self._questions: dict[str, ray.ObjectRef] = {}
        self._began = self._changed = time.time()
        self._decided = 0.0
        self._went_on = 0  # the group's, as far as it was heard of
        self._requested: Optional[int] = None
        self._replacing = 0
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
            why, nodes = self._why_move()
            if why:
                self._event(why)
                if not nodes or not group.resize(nodes):
                    return self._stop_group()
                self._changed = time.time()
                self._event("the others go on meanwhile")

    def _ended(self, outcome: tuple) -> Optional[int]:
        self._say(*self._group.output(last=True))
        self._keep_newest(_groups.LAST_S)
        self._end_group()
        if outcome[0] == "stopped":
            return None  # by somebody on the machine: it goes on
        if outcome[0] == "failed":
            self._event(f"the program failed: {outcome[1]}")
            return outcome[3]
        return 0

    def _why_move(self) -> tuple[str, list[str]]:
        """Why the group must not stay as it is, and where its workers should be; empty: it may. Nowhere: it must
        stop."""
        if self._stop:
            return "asked to stop", []
        self._hear()
        group, now = self._group, time.time()
        leaving = [node for node in group.wanted_nodes() if node in self._leaving]
        if leaving:
            self._ask_for_machines(now)  # a new one takes minutes to come
            if not self._insure(set(leaving), now):
                return "", []
            count = len(set(leaving))
            return (f"{count} of its machines {'is' if count == 1 else 'are'} going to be taken away "
                    f"({self._leaving[leaving[0]].kind})", self._decide(now))
        if not group.settled:
            going = any(node in self._leaving for node in group.nodes)
            if group.refused or now - self._changed > (_NOTICE_S if going else self.spec.checkpoint_timeout_s):
                return group.refused or "it did not change its size in time", []
            return "", []
        if group.went_on > self._went_on:
            self._went_on, self._decided = group.went_on, 0.0
            self._event(f"lost a worker; the others went on, {len(group.nodes)} now")
        if now - self._decided < self.spec.interval_s and not self._nodes_changed():
            return "", []
        nodes = self._decide(now)
        self._ask_for_machines(now)
        if nodes and len(nodes) != len(group.nodes):
            return f"goes from {len(group.nodes)} to {len(nodes)} workers", nodes
        kind = self._decision["jobs"][0].get("deviceType", "")
        if nodes and kind and kind != group.device_type:
            return f"goes from {group.device_type or 'several types of device'} to {kind}", []
        return "", []

    def _insure(self, leaving: set[str], now: float) -> bool:
        """The machine may be gone before its workers have left: first a checkpoint, while all go on. True: it is there,
        or is not waited for. Those who are going to be stopped make one then."""
        group = self._group
        if not group.able or not set(group.wanted_nodes()) - leaving:
            return True
        if leaving - self._insured:
            self._keep_newest(_LOOK_S)  # one from before is not meant
            self._insured |= leaving
            self._insured_by = self._kept + 1, now + _SAVE_S
            group.save()
            self._event("takes a checkpoint while it goes on")
        number, deadline = self._insured_by
        if self._kept >= number:
            self._event(f"{self._name} is safe")
        elif now >= deadline:
            self._event(f"no checkpoint within {_SAVE_S} s: goes on without")
        return self._kept >= number or now >= deadline

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
                             self._supervisor.hints(), self._supervisor.models())

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
        nodes = self._worker_nodes()
        kind = (self._group.device_type if self._group else "") or next(
            (node.device_type for node in nodes if _snapshot.fits(node.resources, self.spec.request)), "")
        nodes += [_snapshot.Node(f"new-{index}", self.spec.request, kind) for index in range(self.spec.max_workers)]
        decision = adaptdl.policy.decide(_snapshot.make_snapshot(nodes, [job], now, "rank", self.spec.parameters))
        wanted = max(len(decision["jobs"][0]["nodes"]), 1)
        # The autoscaler counts a machine until it is gone: what replaces it comes on top.
        going = sum(_snapshot.fits(node.resources, self.spec.request) for node in _snapshot.ray_nodes()
                    if node.name in self._leaving)
        if (wanted, going) != (self._requested, self._replacing):
            from ray.autoscaler import sdk
            bundle = {name: math.ceil(amount) for name, amount in self.spec.request.items()}  # Ray 2.40 takes only whole ones
            sdk.request_resources(bundles=[bundle] * (wanted + going))
            self._requested, self._replacing = wanted, going
            self._event(f"asked the autoscaler for room for {wanted} workers"
                        + (f", beside {going} on machines that go" if going else ""))
        return wanted

    def _wait_for_nodes(self) -> list[str]:
        """Where to start: what the policy wants, or after the time-out what there is; a job that ran already goes on at
        once on what there is, and grows when there is more. TrainingError: nothing."""
        deadline = time.monotonic() + self.spec.rescale_timeout_s
        while not self._stop:
            self._listen()
            self._hear()
            now = time.time()
            wanted = self._ask_for_machines(now)
            nodes = self._decide(now)
            if nodes and (len(nodes) >= wanted or self._restarts >= 0 or time.monotonic() >= deadline):
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
                self._event(f"node {node[:8]}: {notice.kind} notice: {notice.text}")

    # ---- groups and checkpoints ----

    def _start_group(self, nodes: list[str]) -> None:
        self._restarts += 1
        self._changed = time.time()
        self._event(f"starts on {len(nodes)} workers on {len(set(nodes))} nodes")
        self._went_on = 0
        self._group = _ScriptGroup(nodes, self.spec, self._files, self._checkpoint)
        self._group.start(self._supervisor, self._restarts, self._name)

    def _stop_group(self) -> Optional[int]:
        group = self._group
        outcome = group.stop(self.spec.checkpoint_timeout_s)
        self._say(*group.output(last=True))
        if outcome is None:
            self._event(f"no checkpoint within {self.spec.checkpoint_timeout_s:g} s: goes on from the previous one")
        self._keep_newest(_groups.LAST_S if outcome else _LOOK_S)  # one may have been made since the last look
        self._end_group()
        if outcome and outcome[0] == "failed":
            self._event(f"the program failed: {outcome[1]}")
            return outcome[3]
        return 0 if outcome and outcome[0] == "done" else None

    def _end_group(self) -> None:
        if self._group is not None:
            self._group.kill()
            self._group = None

    def _keep_newest(self, wait_s: float = 0) -> None:
        found = self._group.newest(wait_s)
        if found is None:
            return
        self._name, data = found
        self._losses = 0
        self._kept += 1
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
