"""The worker actors of a trial, as one thing that is started, watched and stopped."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Optional

import ray
from adaptdl_ray import _groups, _supervisor
from adaptdl_ray.tune._worker import Worker
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

__all__ = ["Group"]

_ANSWER_S = 30


class Group(_groups.Workers):
    """One worker for each bundle of the placement group that this actor runs in."""

    def __init__(self, replicas: int, request: Mapping[str, float], options: Mapping[str, Any]) -> None:
        super().__init__()
        self._options = options
        self._report: Optional[ray.ObjectRef] = None
        placement = ray.util.get_current_placement_group()
        self._workers = [self._worker(placement, index, request) for index in range(replicas)]

    @staticmethod
    def _worker(placement: Optional[PlacementGroup], index: int, request: Mapping[str, float]) -> Any:
        more = {name: amount for name, amount in request.items() if name not in ("CPU", "GPU")}
        strategy = PlacementGroupSchedulingStrategy(placement, placement_group_bundle_index=index) \
            if placement else "DEFAULT"
        return ray.remote(Worker).options(
            num_cpus=request.get("CPU", 0), num_gpus=request.get("GPU", 0), resources=more or None,
            max_concurrency=6, scheduling_strategy=strategy).remote()

    def start(self, function: Callable, config: Mapping[str, Any], supervisor: _supervisor.Supervisor, restarts: int,
              facts: Mapping[str, Any], checkpoint: Optional[bytes], program: Optional[bytes]) -> None:
        """All replicas train from here on."""
        places = self.places()
        supervisor.set_group(restarts, [place["address"] for place in places])
        secret = _groups.new_secret()
        states = ray.put((checkpoint, program))
        shared = ray.put((function, dict(config), facts))
        self._runs = [worker.run.remote(
            shared, _groups.replica_environment(rank, places, restarts, supervisor.job, supervisor.url,
                                                places[rank]["checkpoints"], self._options["checkpoint_interval_s"],
                                                secret),
            self._options["backend"], states) for rank, worker in enumerate(self._workers)]
        self._joined = [worker.joined.remote() for worker in self._workers]

    def poll(self) -> Optional[tuple]:
        """The next result of rank 0, when there is one."""
        if self._report is None:
            self._report = self._workers[0].next_report.remote(1.0)
        if not ray.wait([self._report], timeout=0)[0]:
            return None
        report, self._report = self._report, None
        try:
            return ray.get(report)
        except RayError:
            return None  # rank 0 is gone: outcome() says so

    def drain(self) -> list[tuple]:
        """The results of rank 0 that nobody has seen yet."""
        events = []
        while True:
            report, self._report = self._report or self._workers[0].next_report.remote(0), None
            try:
                event = ray.get(report, timeout=_ANSWER_S)
            except (RayError, GetTimeoutError):
                return events
            if event is None:
                return events
            events.append(event)
