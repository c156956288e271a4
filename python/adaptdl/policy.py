"""Scheduling decisions: a snapshot of a cluster in, an allocation for every job out, with reasons.

Snapshots are what docs/snapshots.md describes, as a dict or as JSON text; so are decisions, as a dict. Everything is
decided in the C library: the policies here are those of the scheduler and of the simulator."""

import json

from adaptdl import _core

__all__ = ["Policy", "decide", "names"]


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


def names():
    """The policies there are; the first is the default."""
    return _core.policy_list()
