"""What the searches of a Ray cluster have decided, where everybody in the cluster can read it: Ray's own store of small
values. A search whose program was killed leaves its last word there, with its time."""

from __future__ import annotations

import json
from typing import Any, Mapping, Sequence

from ray.experimental import internal_kv

__all__ = ["read", "remove", "write"]

_SPACE = b"adaptdl-searches"


def write(search: str, now: float, trials: Sequence[Mapping[str, Any]]) -> None:
    """What there is to say of a search, instead of what was said before."""
    internal_kv._internal_kv_put(search.encode(), json.dumps({"time": now, "trials": list(trials)}).encode(),
                                 overwrite=True, namespace=_SPACE)


def remove(search: str) -> None:
    internal_kv._internal_kv_del(search.encode(), namespace=_SPACE)


def read() -> dict[str, dict[str, Any]]:
    """Of every search, by its name: "time", and "trials" with their "name", "status" and "explain"."""
    found = {}
    for key in internal_kv._internal_kv_list(b"", namespace=_SPACE):
        value = internal_kv._internal_kv_get(key, namespace=_SPACE)
        if value is not None:  # it may just have ended
            found[key.decode()] = json.loads(value)
    return found
