"""The worker actors of a trial, as one thing that is started, watched, resized and stopped.

The trial's own placement group, which Tune makes, has a bundle for each replica that it starts with. Every replica beyond
those gets a placement group of one bundle, so that it can be given back alone."""

from __future__ import annotations

import time
from typing import Any, Callable, Mapping, Optional, Sequence

import ray
from adaptdl_ray import _groups, _snapshot, _supervisor
from adaptdl_ray.tune._worker import Worker
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

__all__ = ["Group"]

_ANSWER_S = 30
# How long to wait for room that somebody else has still to give back.
_ROOM_S = 20.0


class Group(_groups.Workers):
    """At first one worker for each bundle of the placement group that this actor runs in.

    Attributes:
        target: How many replicas it is to have; None: as many as it has.
        cannot: How many it was to have, and cannot without a restart; None: nothing of the kind.
    """

    def __init__(self, replicas: int, request: Mapping[str, float], options: Mapping[str, Any]) -> None:
        super().__init__(request, options["checkpoint_interval_s"])
        self.target: Optional[int] = None
        self.cannot: Optional[int] = None
        self._hints: list[str] = []  # nodes where the policy would have it
        self._options = options
        self._report: Optional[ray.ObjectRef] = None
        self._reporter = 0  # the member that was asked,
        self._after = (-1, 0)  # and the last result that was taken
        self._placement = ray.util.get_current_placement_group()
        self._given = list(range(replicas))  # rooms in the trial's own placement group
        self._rooms: dict[int, PlacementGroup] = {}  # and those beyond
        self._making: dict[int, PlacementGroup] = {}
        self._made_by = 0.0
        self._next_room = replicas
        self._task: Optional[ray.ObjectRef] = None
        self._program: Optional[ray.ObjectRef] = None

    # ---- start ----

    def start(self, function: Callable, config: Mapping[str, Any], supervisor: _supervisor.Supervisor, restarts: int,
              facts: Mapping[str, Any], checkpoint: Optional[bytes], program: Optional[bytes],
              known: Optional[str]) -> None:
        """All replicas train from here on."""
        self._task = ray.put((function, dict(config), facts))
        self._states = ray.put((checkpoint, program))
        self._program = ray.put((None, program))
        self._launch(self._given, supervisor, restarts, known)

    def keep_program(self, program: bytes) -> None:
        """What the function itself saved last, for those who join later."""
        self._program = ray.put((None, program))

    def _hire(self, room: int) -> Any:
        request = self._request
        more = {name: amount for name, amount in request.items() if name not in ("CPU", "GPU")}
        if room in self._rooms:
            strategy: Any = PlacementGroupSchedulingStrategy(self._rooms[room], placement_group_bundle_index=0)
        elif self._placement:
            strategy = PlacementGroupSchedulingStrategy(self._placement, placement_group_bundle_index=room)
        else:
            strategy = "DEFAULT"
        return ray.remote(Worker).options(
            num_cpus=request.get("CPU", 0), num_gpus=request.get("GPU", 0), resources=more or None,
            max_concurrency=6, scheduling_strategy=strategy).remote()

    def _send(self, member: _groups.Member, environment: dict[str, str], joins: bool) -> ray.ObjectRef:
        return member.worker.run.remote(self._task, environment, self._options["backend"],
                                        self._program if joins else self._states)

    # ---- sizes ----

    def resize(self, replicas: int, nodes: Sequence[str]) -> bool:
        """Begins to get there, on these nodes where that can be; False: not without a restart."""
        self.cannot = None
        if not self.able or replicas < max(len(self._given), 1):
            self.cannot = replicas
            return False
        self.target, self._hints = replicas, list(nodes)
        self._drop(list(self._making))
        rooms = self._given + [room for room in self._wanted if room in self._rooms]
        if len(rooms) >= replicas:
            self._want(self._worth_keeping(rooms, replicas))
            return True
        hints = list(self._hints)
        for node in self.nodes:
            if node in hints:
                hints.remove(node)
        for index in range(replicas - len(rooms)):
            self._making[self._next_room] = self._reserve(hints[index] if index < len(hints) else None)
            self._next_room += 1
        self._made_by = time.monotonic() + _ROOM_S
        return True

    def _reserve(self, node: Optional[str]) -> PlacementGroup:
        return ray.util.placement_group([dict(self._request)], strategy="STRICT_PACK", _soft_target_node_id=node)

    def _worth_keeping(self, rooms: Sequence[int], count: int) -> list[int]:
        """Of the rooms that there are: first those that cannot be given back, then those on nodes that the policy has
        named, then the oldest."""
        where = {member.room: member.facts.get("node") for member in self._members.values()}
        hints = list(self._hints)

        def cost(room: int) -> tuple:
            node = where.get(room)
            named = node in hints
            if named:
                hints.remove(node)
            return (room not in self._given, not named, room)

        return sorted(sorted(rooms), key=cost)[:count]

    def _make_room(self) -> None:
        """The rooms that were asked for are taken when all are there; after a while, those that are."""
        if not self._making:
            return
        there = [room for room, placement in self._making.items()
                 if ray.util.placement_group_table(placement).get("state") == "CREATED"]
        if len(there) < len(self._making) and time.monotonic() < self._made_by:
            return
        for room in there:
            self._rooms[room] = self._making.pop(room)
        self._drop(list(self._making))
        rooms = self._given + [room for room in self._wanted if room in self._rooms] + there
        self.target = len(rooms)
        self._want(rooms)

    def _drop(self, rooms: Sequence[int]) -> None:
        for room in rooms:
            ray.util.remove_placement_group(self._making.pop(room))

    def tend(self) -> None:
        self._make_room()
        super().tend()
        if self.target is not None and (self.settled and not self._making or not self.able and not self._worlds.broken):
            self.target = None

    def _vacate(self, room: int) -> None:
        placement = self._rooms.pop(room, None)
        if placement is not None:
            ray.util.remove_placement_group(placement)

    def _note(self, word: str, member: int, seconds: float, text: str) -> None:
        if word == "died":
            print(f"adaptdl: replica {self._ranks.index(member) if member in self._ranks else '?'} died; the others go on",
                  flush=True)
        elif word == "went on":  # how many it is to have now is for the scheduler to say
            alive = {node.name for node in _snapshot.ray_nodes()}
            present = [room for number, room in self._worlds.members if self._members[number].facts["node"] in alive]
            gone = [room for room in self._wanted if room not in present and room not in self._given]
            self._want(self._given + [room for room in present if room not in self._given])
            for room in gone:
                self._vacate(room)
        elif word == "restart":
            self.cannot, self.target = self.target, None
            print(f"adaptdl: {text}: it takes a restart", flush=True)

    def kill(self) -> None:
        self._drop(list(self._making))
        super().kill()

    # ---- results ----

    def poll(self) -> Optional[tuple]:
        """The next result of rank 0, when there is one."""
        first = self.first()
        if self._report is None or first.number != self._reporter:
            self._reporter = first.number
            self._report = first.worker.next_report.remote(self._after, 1.0)
        if not ray.wait([self._report], timeout=0)[0]:
            return None
        report, self._report = self._report, None
        try:
            return self._taken(ray.get(report))
        except RayError:
            return None  # rank 0 is gone: outcome() says so

    def _taken(self, event: Optional[tuple]) -> Optional[tuple]:
        if event is None:
            return None
        self._after, metrics, program = event
        return metrics, program

    def drain(self) -> list[tuple]:
        """The results of rank 0 that nobody has seen yet."""
        events = []
        self._report = None
        while True:
            try:
                event = self._taken(ray.get(self.first().worker.next_report.remote(self._after, 0), timeout=_ANSWER_S))
            except (RayError, GetTimeoutError):
                return events
            if event is None:
                return events
            events.append(event)
