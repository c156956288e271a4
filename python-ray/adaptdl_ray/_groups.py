"""The replicas of one training job as Ray actors: what Tune's trials and the launcher's jobs have in common.

A group is started as a whole, on the world that its environment describes, and ends as a whole: done, stopped
(with a checkpoint), failed by the program, or lost with a process or machine."""

from __future__ import annotations

import secrets
import time
from typing import Any, Mapping, Optional, Sequence

import ray
from ray.exceptions import GetTimeoutError, RayError

__all__ = ["Lost", "TrainingError", "Workers", "WorkersLost", "replica_environment"]

_LOOK_S = 1.0  # how often rank 0 is asked for a new checkpoint
_REST_S = 30  # how long, after one replica failed, the others may take to say why
_START_S = 600  # how long a worker process may take to come up on a busy machine


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
                        secret: Optional[str] = None) -> dict[str, str]:
    """The ADAPTDL_* variables of one replica. places: of all replicas in rank order, each with "node" and
    "address", the first also with "port"."""
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
    }
    if interval_s is not None:
        variables["ADAPTDL_CHECKPOINT_INTERVAL"] = str(interval_s)
    return variables


def new_secret() -> str:
    """What only the replicas of one group know: they talk to nobody else."""
    return secrets.token_hex(16)


class Workers:
    """The worker actors of a group, in rank order once :meth:`places` was called. An actor has place(), run(), joined(),
    stop(), newest() and close(); run() returns ("done",), ("stopped",) or ("failed", text, order), where the lowest
    order is the cause of the others.

    Attributes:
        nodes: The nodes of the replicas, in rank order.
        pids: Their processes.
        since: Since when all of them train (monotonic).
    """

    def __init__(self) -> None:
        self.nodes: list[str] = []
        self.pids: list[int] = []
        self.since = 0.0
        self._ready = False
        self._workers: list[Any] = []
        self._runs: list[ray.ObjectRef] = []
        self._joined: list[ray.ObjectRef] = []
        self._look: Optional[ray.ObjectRef] = None
        self._looked = 0.0

    def places(self) -> list[dict[str, Any]]:
        """Waits for the actors and numbers them, those of one machine side by side. WorkersLost: they do not
        come up."""
        try:
            places = ray.get([worker.place.remote() for worker in self._workers], timeout=_START_S)
        except GetTimeoutError:
            self.kill()
            raise WorkersLost(f"{len(self._workers)} workers did not start within {_START_S} s") from None
        except RayError as error:
            self.kill()
            raise WorkersLost(f"workers did not start: {error}") from None
        order = sorted(range(len(places)), key=lambda index: places[index]["node"])
        self._workers = [self._workers[index] for index in order]
        places = [places[index] for index in order]
        self.nodes = [place["node"] for place in places]
        self.pids = [place["pid"] for place in places]
        return places

    @property
    def ready(self) -> bool:
        """All of them are up and training."""
        if self._joined and not ray.wait(self._joined, num_returns=len(self._joined), timeout=0)[1]:
            self._joined, self._ready = [], True
            self.since = time.monotonic()
        return self._ready

    def wait(self, timeout_s: float) -> None:
        """Until there may be something to look at."""
        ray.wait(self._runs, num_returns=len(self._runs), timeout=timeout_s)

    def outcome(self) -> Optional[tuple]:
        """How the group ended; None: it runs. Lost: a worker is gone."""
        ended, running = ray.wait(self._runs, num_returns=len(self._runs), timeout=0)
        if not ended:
            return None
        outcomes = self._results(ended)
        if all(outcome[0] == "done" for outcome in outcomes) and running:
            return None  # the others will be
        if running:  # what one says may be the consequence of what another did
            outcomes += self._results(ray.wait(running, num_returns=len(running), timeout=_REST_S)[0])
        if any(outcome[0] == "lost" for outcome in outcomes):
            raise Lost(next(outcome[1] for outcome in outcomes if outcome[0] == "lost"))
        failed = sorted((outcome for outcome in outcomes if outcome[0] == "failed"), key=lambda outcome: outcome[2])
        if failed:
            return failed[0]
        return outcomes[0]

    @staticmethod
    def _results(refs: list) -> list[tuple]:
        found = []
        for ref in refs:
            try:
                found.append(ray.get(ref))
            except RayError as error:
                found.append(("lost", str(error).splitlines()[0]))
        return found

    def stop(self, timeout_s: float) -> Optional[tuple]:
        """Asks for a checkpoint and the end, and waits for it; None: it did not come in time."""
        for worker in self._workers:
            worker.stop.remote()
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

    def newest(self, known: Optional[str], wait: bool) -> Optional[tuple[str, bytes]]:
        """A checkpoint of rank 0 that is newer than the known one. wait: look now, and wait for the answer."""
        if self._look is None:
            if not wait and time.monotonic() - self._looked < _LOOK_S:
                return None
            self._looked = time.monotonic()
            self._look = self._workers[0].newest.remote(known)
        if wait:  # what is on its way may be older than what there is now
            self._look = self._workers[0].newest.remote(known)
        if not ray.wait([self._look], timeout=_START_S if wait else 0)[0]:
            return None
        look, self._look = self._look, None
        try:
            return ray.get(look)
        except RayError:
            return None

    def kill(self) -> None:
        """Ends whatever is left of it, at once."""
        ray.wait([worker.close.remote() for worker in self._workers], num_returns=len(self._workers), timeout=1)
        for worker in self._workers:
            ray.kill(worker)
