"""Ray's cluster and what its jobs report, in the form that the policies take (docs/snapshots.md). Nothing is
computed here: amounts are written down, the C library decides."""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Optional, Sequence

import adaptdl.policy

__all__ = ["Job", "Node", "check_hints", "fits", "make_snapshot", "ray_nodes", "request_of"]

# Ray's amounts are fractions, the policies' are whole: thousandths, as in Kubernetes.
_UNIT = 1000
# Resources that Ray makes up; nobody asks for them.
_NOT_RESOURCES = ("node:", "bundle_group", "accelerator_type:")

_MODEL_FIELDS = {"initBatchSize", "maxBatchSize", "gradientAccumulation", "perfParams", "gradParams"}


@dataclasses.dataclass
class Node:
    """A machine: its name and what it has."""
    name: str
    resources: Mapping[str, float]
    drained: bool = False


@dataclasses.dataclass
class Job:
    """A trial or job as the policies see it."""
    name: str
    request: Mapping[str, float]
    min_replicas: int = 0
    max_replicas: int = 1
    nodes: Sequence[str] = ()
    submitted: float = 0.0
    last_change: float = 0.0
    run_seconds: float = 0.0
    replica_seconds: float = 0.0
    restarts: int = 0
    restart_cost: float = 0.0
    hints: Optional[Mapping[str, Any]] = None


def ray_nodes(skip: Sequence[str] = ()) -> list[Node]:
    """The nodes of the Ray cluster that are alive, but for those named."""
    import ray
    return [Node(node["NodeID"], {name: amount for name, amount in node["Resources"].items()
                                  if not name.startswith(_NOT_RESOURCES)})
            for node in ray.nodes() if node["Alive"] and node["NodeID"] not in skip]


def request_of(cpus: float, gpus: float, more: Optional[Mapping[str, float]] = None) -> dict[str, float]:
    """What one replica takes, as Ray names it."""
    request = {"CPU": cpus, "GPU": gpus, **(more or {})}
    return {name: amount for name, amount in request.items() if amount}


def fits(resources: Mapping[str, float], request: Mapping[str, float]) -> int:
    """How often the request fits into the resources."""
    return int(min(resources.get(name, 0) // amount for name, amount in request.items()))


def _thousandths(amount: float) -> int:
    return round(amount * _UNIT)


def _model(hints: Mapping[str, Any], max_replicas: int) -> Optional[dict[str, Any]]:
    """A report's model, as a snapshot has it; None: the report has none yet."""
    if not (hints.get("perfParams") and hints.get("gradParams") and hints.get("initBatchSize")):
        return None
    model = {name: hints[name] for name in _MODEL_FIELDS if hints.get(name) is not None}
    model.setdefault("maxBatchSize", model["initBatchSize"])
    if hints.get("localBszBounds"):
        model["minLocalBsz"], model["maxLocalBsz"] = hints["localBszBounds"]
    model["profile"] = [{**point, "type": 0} for point in hints.get("profile") or ()]
    return {"maxReplicas": max_replicas, "types": [model]}


def _job(job: Job, resources: Sequence[str], places: Mapping[str, int]) -> dict[str, Any]:
    hints = job.hints or {}
    most = adaptdl.policy.most_replicas(hints, job.min_replicas, job.max_replicas)
    allocation = sorted(places[name] for name in job.nodes if name in places)
    out = {
        "name": job.name, "request": [_thousandths(job.request.get(name, 0)) for name in resources],
        "minReplicas": job.min_replicas, "maxReplicas": most, "preemptible": True, "allocation": allocation,
        "submitted": job.submitted, "lastChange": job.last_change, "runSeconds": job.run_seconds,
        "deviceSeconds": job.replica_seconds, "restarts": job.restarts, "restartCost": job.restart_cost,
        "maxProfiledReplicas": hints.get("maxProfiledReplicas") or 0, "progress": hints.get("progress") or 0,
    }
    epoch = hints.get("iterationsPerEpoch") or 0
    if epoch:
        out["epochWork"], out["totalWork"] = epoch, epoch * (hints.get("targetEpochs") or 0)
    model = _model(hints, max(most, len(allocation)))
    if model:
        out["model"] = model
    return out


def make_snapshot(nodes: Sequence[Node], jobs: Sequence[Job], now: float, policy: str,
                  parameters: Optional[Mapping[str, float]] = None) -> dict[str, Any]:
    """What ``adaptdl.policy.decide`` takes."""
    resources = sorted({name for job in jobs for name in job.request} or {"CPU"})
    places = {node.name: index for index, node in enumerate(nodes)}
    snapshot = {
        "version": 1, "policy": policy, "now": now, "seed": "1", "resources": resources,
        "nodes": [{"name": node.name,
                   "capacity": [0 if node.drained else _thousandths(node.resources.get(name, 0))
                                for name in resources]} for node in nodes],
        "jobs": [_job(job, resources, places) for job in jobs],
    }
    if parameters:
        snapshot["parameters"] = dict(parameters)
    return snapshot


def check_hints(hints: Any) -> None:
    """ValueError: the policies could not compute with this report."""
    if not isinstance(hints, dict):
        raise ValueError("a report must be a JSON object")
    job = Job("check", {"CPU": 1}, 0, 2, hints=hints)
    try:
        adaptdl.policy.decide(make_snapshot([Node("check", {"CPU": 1})], [job], 0.0, "rank"))
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not a report: {error}") from None
