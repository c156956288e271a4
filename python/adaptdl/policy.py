"""Scheduling decisions: a snapshot of a cluster in, an allocation for every job out, with reasons.

Snapshots are what docs/snapshots.md describes, as a dict or as JSON text; so are decisions, as a dict. Everything is
decided in the C library: the policies here are those of the scheduler and of the simulator."""

import json

from adaptdl import _core

__all__ = ["Policy", "decide", "most_replicas", "names"]


def _text(snapshot):
    return snapshot if isinstance(snapshot, (str, bytes)) else json.dumps(snapshot, allow_nan=False)


class Policy:
    """One policy, with what it remembers from decision to decision. parameters: its constants by name."""

    def __init__(self, name, parameters=None):
        self.name = name
        self._policy = _core.Policy(name, parameters)

    def decide(self, snapshot):
        """What every job gets. ValueError names what is wrong with the snapshot."""
        return json.loads(self._policy.decide(_text(snapshot)))


def decide(snapshot):
    """The decision of the policy that the snapshot names, with its parameters; of the default one if it names none."""
    return json.loads(_core.policy_decide(_text(snapshot)))


def most_replicas(hints, min_replicas=0, max_replicas=0):
    """What to put into a snapshot as a job's ``maxReplicas``: a job that has not been measured yet runs on one
    replica, then on at most twice what it was measured on, and never on more than its batch size can be cut into.

    Args:
        hints (dict): The job's last report (``adaptdl.sched_hints``); empty: there was none.
        min_replicas (int): Its own lower limit, which goes before the others.
        max_replicas (int): Its own upper limit; 0: none.
    """
    bounds = hints.get("localBszBounds") or (0, 0)
    return _core.policy_most(hints.get("maxProfiledReplicas") or 0, hints.get("maxBatchSize") or 0, bounds[0],
                             min_replicas, max_replicas)


def names():
    """The policies there are; the first is the default."""
    return _core.policy_list()
