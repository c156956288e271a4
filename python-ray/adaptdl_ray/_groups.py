"""The replicas of one training job as Ray actors: what Tune's trials and the launcher's jobs have in common.

A group is started as a whole, on the world that its environment describes, and ends as a whole: done, stopped
(with a checkpoint), failed by the program, or lost with a process or machine. Between, members come and go, where the
program can go on with others: who is started, and who trains with whom, is decided by the library's state machine
(``_core.Worlds``), the same that AdaptDL's launcher and scheduler have; here is what it decides upon, and what becomes
of it."""

from __future__ import annotations

import dataclasses
import secrets
import time
from typing import Any, Mapping, Optional, Sequence

import ray
from adaptdl import _core
from adaptdl_ray import _snapshot, _supervisor
from ray.exceptions import GetTimeoutError, RayError

__all__ = ["LAST_S", "Lost", "Member", "TrainingError", "Workers", "WorkersLost", "replica_environment"]

_LOOK_S = 1.0  # how often rank 0 is asked for a new checkpoint
_REST_S = 30  # how long, after one replica failed, the others may take to say why
_START_S = 600  # how long a worker process may take to come up on a busy machine
_PORT_S = 10  # how long one may take to name a port; it is asked again
LAST_S = 600  # how long the last checkpoint of a group that has ended may be on its way

# How a process is gone, by what its run() returned.
_ENDS = {"done": "ended", "failed": "ended", "stopped": "left", "lost": "killed"}


class TrainingError(RuntimeError):
    """The training program failed: an exception, or an exit status. Its text says which."""


class WorkersLost(RuntimeError):
    """Replicas died without a word, with their process or machine, and cannot be started again in place.

    Attributes:
        checkpoint: What to go on from, as Tune knows it; None: the last one that Tune has.
    """

    def __init__(self, message: str, checkpoint: Any = None) -> None:
        super().__init__(message, checkpoint)
        self.checkpoint = checkpoint

    def __str__(self) -> str:
        return str(self.args[0])


class Lost(Exception):
    """A worker is gone: its process or its machine."""


def replica_environment(rank: int, places: Sequence[Mapping[str, Any]], restarts: int, job: str, url: str,
                        checkpoints: str, interval_s: Optional[int] = None,
                        secret: Optional[str] = None, device_type: str = "", member: Optional[int] = None,
                        joins: bool = False) -> dict[str, str]:
    """The ADAPTDL_* variables of one replica. places: of all replicas in rank order, each with "node" and
    "address", the first also with "port". device_type: what they all run on. member: its number, where replicas may
    come and go; joins: it is to join others that train already."""
    variables = {
        "ADAPTDL_MASTER_ADDR": places[0]["address"],
        "ADAPTDL_MASTER_PORT": str(places[0]["port"]),
        "ADAPTDL_REPLICA_RANK": str(rank),
        "ADAPTDL_NUM_REPLICAS": str(len(places)),
        "ADAPTDL_NUM_NODES": str(len({place["node"] for place in places})),
        "ADAPTDL_NUM_RESTARTS": str(restarts),
        "ADAPTDL_JOB_ID": job,
        "ADAPTDL_SUPERVISOR_URL": url,
        "ADAPTDL_CHECKPOINT_PATH": checkpoints,
        "ADAPTDL_JOB_SECRET": secret or "",
        "ADAPTDL_DEVICE_TYPE": device_type,
    }
    if interval_s is not None:
        variables["ADAPTDL_CHECKPOINT_INTERVAL"] = str(interval_s)
    if member is not None:
        variables.update(ADAPTDL_MEMBER=str(member), ADAPTDL_JOIN=str(int(joins)))
    return variables


def new_secret() -> str:
    """What only the replicas of one group know: they talk to nobody else."""
    return secrets.token_hex(16)


@dataclasses.dataclass
class Member:
    """One process of a group. number: never used again in it; room: where it is, a number of the group's owner; facts:
    what its place() said; outcome: what its run() returned, or ("lost", why)."""
    number: int
    room: int
    worker: Any
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    rank: int = 0                              # of one that joins: about the one that it will have
    asked: Optional[ray.ObjectRef] = None      # place(), of one that is just starting
    run: Optional[ray.ObjectRef] = None
    outcome: Optional[tuple] = None


class Workers:
    """The worker actors of a group. An actor has place(), port(), run(), joined(), stop(), newest() and close(); run()
    returns ("done",), ("stopped",) or ("failed", text, order), where the lowest order is the cause of the others.

    A subclass says how an actor is made in a room (:meth:`_hire`), how it is set to work (:meth:`_send`), and what is to
    be done when a room is not needed any more (:meth:`_vacate`).

    Attributes:
        nodes: The nodes of the replicas, in rank order.
        device_type: What all of them run on, where the cluster has several types of it; else empty.
        pids: Their processes.
        began: When they were asked for (monotonic).
        since: Since when all of them train, or are as many as now.
        pause_s: How long nobody trained when the size changed last, in place; 0: it never did.
        went_on: How often the others went on when one had died.
    """

    def __init__(self, request: Mapping[str, float], interval_s: Optional[int] = None) -> None:
        self.nodes: list[str] = []
        self.device_type = ""
        self.pids: list[int] = []
        self.began = time.monotonic()
        self.since = self.start_s = 0.0
        self.pause_s, self.went_on = 0.0, 0
        self._request, self._interval_s = request, interval_s
        self._ready = False
        self._secret = new_secret()
        self._members: dict[int, Member] = {}
        self._ranks: list[int] = []  # members of the present world, in rank order
        self._wanted: list[int] = []  # rooms
        self._worlds: Optional[_core.Worlds] = None
        self._supervisor: Optional[_supervisor.Supervisor] = None
        self._restarts = 0
        self._joined: list[ray.ObjectRef] = []
        self._look: Optional[ray.ObjectRef] = None
        self._looked = 0.0
        self._writer = 0  # the member whose checkpoints were looked at last,
        self._known: Optional[str] = None  # and the newest of them
        self._seconds = {"runSeconds": 0.0, "replicaSeconds": 0.0}  # until `since`

    # ---- the subclass's ----

    def _hire(self, room: int) -> Any:
        """A new actor in that room. It need not be up when this returns."""
        raise NotImplementedError

    def _send(self, member: Member, environment: dict[str, str], joins: bool) -> ray.ObjectRef:
        """The member's run() with this environment."""
        raise NotImplementedError

    def _vacate(self, room: int) -> None:
        """Nobody is there any more, and nobody is to be."""

    def _part(self, member: Member) -> None:
        """It has left; the last chance to ask it something."""

    def _note(self, word: str, member: int, seconds: float, text: str) -> None:
        """What people should know (``_core.Worlds.act``)."""

    # ---- start ----

    def _launch(self, rooms: Sequence[int], supervisor: _supervisor.Supervisor, restarts: int,
                known: Optional[str]) -> None:
        """One actor in each room; all train from here on, from the known checkpoint. WorkersLost: they do not come
        up."""
        self._known = known
        hired = [(room, self._hire(room)) for room in rooms]
        places = self._come_up([worker for _, worker in hired])
        order = sorted(range(len(places)), key=lambda index: places[index]["node"])  # of one machine side by side
        for number, index in enumerate(order):
            self._members[number] = Member(number, *hired[index], places[index])
        self._supervisor, self._restarts = supervisor, restarts
        self._wanted = [member.room for member in self._members.values()]
        facts = [member.facts for member in self._members.values()]
        self._worlds = _core.Worlds(f"{restarts}-{secrets.token_hex(8)}", restarts, self._wanted,
                                    len({place["node"] for place in facts}))
        self._follow()
        for member in self._members.values():
            member.run = self._send(member, self._environment(member.number, facts, member, False), False)
        self._joined = [member.worker.joined.remote() for member in self._members.values()]

    def _come_up(self, workers: list[Any]) -> list[dict[str, Any]]:
        try:
            return ray.get([worker.place.remote() for worker in workers], timeout=_START_S)
        except (GetTimeoutError, RayError) as error:
            for worker in workers:
                ray.kill(worker)
            self.kill()
            why = f" within {_START_S} s" if isinstance(error, GetTimeoutError) else f": {error}"
            raise WorkersLost(f"{len(workers)} workers did not start{why}") from None

    def _environment(self, rank: int, places: Sequence[Mapping[str, Any]], member: Member, joins: bool) -> dict[str, str]:
        return replica_environment(rank, places, self._restarts, self._supervisor.job, self._supervisor.url,
                                   member.facts["checkpoints"], self._interval_s, self._secret, self.device_type,
                                   member.number, joins)

    def _common_type(self) -> str:
        nodes = _snapshot.ray_nodes()
        types = _snapshot.device_types(nodes, self._request)
        found = {node.device_type for node in nodes if node.name in self.nodes}
        return found.pop() if types and len(found) == 1 else ""

    @property
    def ready(self) -> bool:
        """All of them are up and training."""
        if self._joined and not ray.wait(self._joined, num_returns=len(self._joined), timeout=0)[1]:
            self._joined, self._ready = [], True
            self.since = time.monotonic()
            self.start_s = self.since - self.began
        return self._ready

    # ---- while it runs ----

    @property
    def able(self) -> bool:
        """Can it change its size while it runs?"""
        return self._worlds is not None and self._worlds.able

    @property
    def settled(self) -> bool:
        """Are those there that should be?"""
        return self._worlds is not None and self._worlds.settled

    def _want(self, rooms: Sequence[int]) -> None:
        self._wanted = list(rooms)
        self._worlds.want(self._wanted)

    def save(self) -> None:
        """Asks for a checkpoint, while it goes on; :meth:`newest` has it when it is there."""
        self._worlds.save()
        self._supervisor.changed()

    def tend(self) -> None:
        """Looks after the processes, and does what is to be done about sizes and deaths."""
        self._see()
        start, end, opened, notes = self._worlds.act(time.monotonic())
        for number, rank, room in start:
            member = self._members[number] = Member(number, room, self._hire(room), rank=rank)
            member.asked = member.worker.place.remote()
        for number in end:
            self._dismiss(self._members[number])
        if opened:
            self._meet(opened)
        self._receive()
        self._follow()
        for word, number, seconds, text in notes:
            self._heed(word, number, seconds, text)
        self._supervisor.changed()

    def _see(self) -> None:
        """Ends of processes."""
        runs = {member.asked if member.run is None else member.run: member for member in self._members.values()
                if member.outcome is None}
        if not runs:
            return
        for ref in ray.wait(list(runs), num_returns=len(runs), timeout=0)[0]:
            member = runs[ref]
            outcome = self._result(ref)
            if member.run is None and outcome[0] != "lost":
                continue  # one that starts has come up
            member.outcome = outcome
            word = _ENDS[outcome[0]]
            if word == "killed" and member.facts.get("node") not in {node.name for node in _snapshot.ray_nodes()}:
                word = "taken"
            self._worlds.see(member.number, word)

    @staticmethod
    def _result(ref: ray.ObjectRef) -> tuple:
        try:
            found = ray.get(ref)
            return found if isinstance(found, tuple) else ("up",)
        except RayError as error:
            return ("lost", str(error).splitlines()[0])

    def _receive(self) -> None:
        """Those that have come up are sent to join the others."""
        for member in self._members.values():
            if member.asked is None or member.outcome is not None or not ray.wait([member.asked], timeout=0)[0]:
                continue
            try:
                member.facts, member.asked = ray.get(member.asked), None
            except RayError:
                continue  # the next look says so
            count = max(len(self._wanted), member.rank + 1)
            member.run = self._send(member, self._environment(member.rank, [member.facts] * count, member, True), True)

    def _meet(self, members: Sequence[int]) -> None:
        """The next world needs a port where its rank 0 is. No answer: the next turn asks again."""
        found = [self._members[number] for number in members]
        try:
            port = ray.get(found[0].worker.port.remote(), timeout=_PORT_S)
        except (RayError, GetTimeoutError):
            return
        self._worlds.meet(found[0].facts["address"], port, len({member.facts["node"] for member in found}))

    def _dismiss(self, member: Member) -> None:
        """Ends a process, at once. What becomes of it is seen at the next look, if it had begun."""
        ray.kill(member.worker)
        if member.run is None and member.outcome is None:
            member.outcome = ("lost", "not needed any more")
            self._worlds.see(member.number, "unwanted")

    def _follow(self) -> None:
        """Who is who now, and which rooms are empty."""
        ranks = [number for number, _ in self._worlds.members]
        if ranks != self._ranks:
            self._seconds = self.accounts()
            self.since = time.monotonic()
            self._ranks = ranks
            present = [self._members[number] for number in ranks]
            self.nodes = [member.facts["node"] for member in present]
            self.pids = [member.facts["pid"] for member in present]
            self.device_type = self._common_type()
            self._supervisor.set_group(self._restarts, [member.facts["address"] for member in present],
                                       self.device_type, self._worlds)
        for member in [one for one in self._members.values() if one.outcome is not None and one.number not in ranks]:
            self._part(member)
            del self._members[member.number]
            ray.wait([member.worker.close.remote()], timeout=1)
            ray.kill(member.worker)
            if member.room not in self._wanted and not any(one.room == member.room for one in self._members.values()):
                self._vacate(member.room)

    def _heed(self, word: str, number: int, seconds: float, text: str) -> None:
        if word == "resized":
            self.pause_s = (self.pause_s + seconds) / 2 if self.pause_s else seconds
        elif word == "went on":
            self.went_on += 1
        elif word == "gave up" or (word == "restart" and not self._worlds.broken):  # as it is, it trains
            self._want([room for _, room in self._worlds.members])
            for member in [one for one in self._members.values() if one.number not in self._ranks and one.outcome is None]:
                self._dismiss(member)
        self._note(word, number, seconds, text)

    def accounts(self) -> dict[str, float]:
        """Seconds of training, and those of all replicas together."""
        out = dict(self._seconds)
        if self.ready:
            seconds = time.monotonic() - self.since
            out["runSeconds"] += seconds
            out["replicaSeconds"] += seconds * len(self.nodes)
        return out

    # ---- the end ----

    def wait(self, timeout_s: float) -> None:
        """Until there may be something to look at."""
        runs = [member.run for member in self._members.values() if member.run is not None]
        ray.wait(runs, num_returns=len(runs), timeout=timeout_s) if runs else time.sleep(timeout_s)

    def outcome(self) -> Optional[tuple]:
        """How the group ended; None: it runs. Lost: a worker is gone, and the others cannot go on without it."""
        self.tend()
        ended = [one for one in self._members.values() if one.outcome is not None and not self._worlds.handles(one.number)]
        if not ended:
            if self._worlds.broken and self._worlds.refused:
                raise Lost("a replica died, and the others cannot go on without it")
            return None
        outcomes = [member.outcome for member in ended]
        running = [member.run for member in map(self._members.get, self._ranks)  # who was still to join does not count
                   if member is not None and member.outcome is None and member.run is not None]
        if all(outcome[0] == "done" for outcome in outcomes) and running:
            return None  # the others will be
        if running:  # what one says may be the consequence of what another did
            outcomes += map(self._result, ray.wait(running, num_returns=len(running), timeout=_REST_S)[0])
        if any(outcome[0] == "lost" for outcome in outcomes):
            raise Lost(next(outcome[1] for outcome in outcomes if outcome[0] == "lost"))
        failed = sorted((outcome for outcome in outcomes if outcome[0] == "failed"), key=lambda outcome: outcome[2])
        return failed[0] if failed else outcomes[0]

    def stop(self, timeout_s: float) -> Optional[tuple]:
        """Asks for a checkpoint and the end, and waits for it; None: it did not come in time."""
        self._worlds.stop()
        for member in list(self._members.values()):
            if member.run is not None:
                member.worker.stop.remote()
            else:
                self._dismiss(member)
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                outcome = self.outcome()
            except Lost:
                return None
            if outcome is not None:
                return outcome
            self.wait(min(1.0, timeout_s))
        return None

    def first(self) -> Member:
        """Rank 0."""
        return self._members[self._ranks[0]]

    def newest(self, wait_s: float = 0) -> Optional[tuple[str, bytes]]:
        """A checkpoint of rank 0 that was not seen yet. wait_s: look now, and wait for the answer."""
        first = self.first()
        if first.number != self._writer:  # it counts its own
            self._writer, self._known, self._look = first.number, None, None
        if self._look is None:
            if not wait_s and time.monotonic() - self._looked < _LOOK_S:
                return None
            self._looked = time.monotonic()
            self._look = first.worker.newest.remote(self._known)
        if wait_s:  # what is on its way may be older than what there is now
            self._look = first.worker.newest.remote(self._known)
        if not ray.wait([self._look], timeout=wait_s)[0]:
            return None
        look, self._look = self._look, None
        try:
            found = ray.get(look)
        except RayError:
            return None
        if found is not None:
            self._known = found[0]
        return found

    def kill(self) -> None:
        """Ends whatever is left of it, at once."""
        members = list(self._members.values())
        if members:
            ray.wait([member.worker.close.remote() for member in members], num_returns=len(members), timeout=1)
        for member in members:
            ray.kill(member.worker)
        for room in {member.room for member in members} | set(self._wanted):
            self._vacate(room)
        self._members.clear()
