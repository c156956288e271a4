"""Ray's cluster and what its jobs report, in the form that the policies take (docs/snapshots.md). Nothing is
computed here: amounts are written down, the C library decides."""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Optional, Sequence

import adaptdl.policy

__all__ = ["Job", "Node", "check_hints", "device_types", "fits", "make_snapshot", "ray_nodes", "type_resource"]

# Ray's amounts are fractions, the policies' are whole: thousandths, as in Kubernetes.
_UNIT = 1000
# Resources that Ray makes up; nobody asks for them.
_TYPE = "accelerator_type:"
_NOT_RESOURCES = ("node:", "bundle_group", _TYPE)
_DEVICE = "GPU"  # what a device type is of

_MODEL_FIELDS = {"initBatchSize", "maxBatchSize", "gradientAccumulation", "loneReplicaGrows", "perfParams",
                 "gradParams"}


@dataclasses.dataclass
class Node:
    """A machine: its name, what it has, and the type of its GPUs."""
    name: str
    resources: Mapping[str, float]
    device_type: str = ""


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
    # the last report from each device type that it was on; None: hints is from the only one there is
    models: Optional[Mapping[str, Mapping[str, Any]]] = None
    resize_cost: float = 0.0  # of a change of size while it trains; 0: it takes a restart


def ray_nodes(skip: Sequence[str] = ()) -> list[Node]:
    """The nodes of the Ray cluster that are alive, but for those named."""
    import ray
    return [_node(node["NodeID"], node["Resources"])
            for node in ray.nodes() if node["Alive"] and node["NodeID"] not in skip]


def _node(name: str, resources: Mapping[str, float]) -> Node:
    return Node(name, {key: amount for key, amount in resources.items() if not key.startswith(_NOT_RESOURCES)},
                next((key[len(_TYPE):] for key in sorted(resources) if key.startswith(_TYPE)), ""))


def device_types(nodes: Sequence[Node], request: Mapping[str, float]) -> list[str]:
    """The types of device that the request could be on; empty: it does not matter, there are no two."""
    if not request.get(_DEVICE):
        return []
    found = sorted({node.device_type for node in nodes if node.resources.get(_DEVICE)})
    return found if len(found) > 1 else []


def type_resource(device_type: str) -> dict[str, float]:
    """What to ask of Ray so that a replica gets on a node of that type; a type without a name cannot be asked for."""
    return {_TYPE + device_type: 0.001} if device_type else {}


def fits(resources: Mapping[str, float], request: Mapping[str, float]) -> int:
    """How often the request fits into the resources."""
    return int(min(resources.get(name, 0) // amount for name, amount in request.items()))


def _thousandths(amount: float) -> int:
    return round(amount * _UNIT)


def _model(hints: Mapping[str, Any], types: Sequence[str], here: str) -> Optional[dict[str, Any]]:
    """A report's model of the device type that it came from, as a snapshot has it; None: the report has none yet."""
    if not (hints.get("perfParams") and hints.get("gradParams") and hints.get("initBatchSize")):
        return None
    model = {name: hints[name] for name in _MODEL_FIELDS if hints.get(name) is not None}
    model.setdefault("maxBatchSize", model["initBatchSize"])
    bounds = hints.get("localBszBounds")
    if bounds:
        if len(bounds) != 2:
            raise ValueError(f"localBszBounds must be [low, high], not {bounds!r}")
        model["minLocalBsz"], model["maxLocalBsz"] = bounds
    model["profile"] = []
    for point in hints.get("profile") or ():
        point = dict(point)
        name = point.pop("deviceType", None) or here
        if not types or name in types:  # of a type that is gone nothing needs to be known
            model["profile"].append({**point, "type": types.index(name) if types else 0})
    return model


def _models(job: Job, types: Sequence[str], most: int) -> Optional[dict[str, Any]]:
    """Its model on every type. Where it was not measured it counts as equally fast: nobody has tried."""
    if not types:
        model = _model(job.hints or {}, types, "")
        return {"maxReplicas": most, "types": [model]} if model else None
    known = {name: _model((job.models or {}).get(name) or {}, types, name) for name in types}
    if not any(known.values()):
        return None
    return {"maxReplicas": most, "types": [{"speed": 1, **(known[name] or {})} for name in types]}


def _job(job: Job, resources: Sequence[str], places: Mapping[str, int], types: Sequence[str]) -> dict[str, Any]:
    hints = job.hints or {}
    most = adaptdl.policy.most_replicas(hints, job.min_replicas, job.max_replicas)
    allocation = sorted(places[name] for name in job.nodes if name in places)
    out = {
        "name": job.name, "request": [_thousandths(job.request.get(name, 0)) for name in resources],
        "minReplicas": job.min_replicas, "maxReplicas": most, "preemptible": True, "allocation": allocation,
        "submitted": job.submitted, "lastChange": job.last_change, "runSeconds": job.run_seconds,
        "deviceSeconds": job.replica_seconds, "restarts": job.restarts, "restartCost": job.restart_cost,
        "resizeCost": job.resize_cost, "maxProfiledReplicas": hints.get("maxProfiledReplicas") or 0,
        "progress": hints.get("progress") or 0,
    }
    epoch = hints.get("iterationsPerEpoch") or 0
    if epoch:
        out["epochWork"], out["totalWork"] = epoch, epoch * (hints.get("targetEpochs") or 0)
    model = _models(job, types, max(most, len(allocation)))
    if model:
        out["model"] = model
    return out


def _version(jobs: Sequence[Mapping[str, Any]], types: Sequence[str]) -> int:
    """The first version of snapshots that has all these fields."""
    if any("loneReplicaGrows" in model for job in jobs for model in job.get("model", {}).get("types", ())):
        return 3
    return 2 if types else 1


def make_snapshot(nodes: Sequence[Node], jobs: Sequence[Job], now: float, policy: str,
                  parameters: Optional[Mapping[str, float]] = None) -> dict[str, Any]:
    """What ``adaptdl.policy.decide`` takes."""
    resources = sorted({name for job in jobs for name in job.request} or {"CPU"})
    places = {node.name: index for index, node in enumerate(nodes)}
    types = next(filter(None, (device_types(nodes, job.request) for job in jobs)), [])
    jobs_out = [_job(job, resources, places, types) for job in jobs]
    snapshot = {
        "version": _version(jobs_out, types), "policy": policy, "now": now, "seed": "1", "resources": resources,
        "nodes": [{"name": node.name, "deviceType": node.device_type if types else "",
                   "capacity": [_thousandths(node.resources.get(name, 0)) for name in resources]} for node in nodes],
        "jobs": jobs_out,
    }
    if types:
        snapshot["deviceTypes"] = types
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
