"""Values of many kinds in collectives and accumulators, and what an accumulator shows outside synchronized()."""
import collections
import dataclasses

import adaptdl.collective
import adaptdl.env
from common import adl, begin, result

Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Moments:
    count: int = 0
    total: float = 0.0

    def __add__(self, other):
        return Moments(self.count + other.count, self.total + other.total) if other else self

    __radd__ = __add__


def both(a, b):
    return Pair(a.left + b.left, max(a.right, b.right))


def merged(a, b):
    for key, values in b.items():
        a[key] += values
    return a


begin()
rank = adaptdl.env.replica_rank()
pair = adaptdl.collective.allreduce(Pair(1, rank), both)
result("namedtuple", (type(pair).__name__, tuple(pair)))
words = adaptdl.collective.allreduce(collections.defaultdict(list, {"all": [rank], rank: [1]}), merged)
result("defaultdict", (type(words).__name__, sorted(map(repr, words.items())), words["absent"]))
moments = adaptdl.collective.allreduce(Moments(1, rank + 0.5))
result("dataclass", (type(moments).__name__, moments.count, moments.total))
told = adaptdl.collective.broadcast(Moments(rank, 2.0))
result("broadcast", (type(told).__name__, told.count, told.total))

accum = adl.Accumulator()
for epoch in adl.remaining_epochs_until(2):
    for i in range(3):
        accum["moments"] += Moments(1, i + rank)
        accum["sum"] += i
    # Shown outside, or by get(), a sum is some object there and a TypeError or absent here; what computes with it is a
    # TypeError on both.
    refused = []
    for name, read in (("float", lambda: float(accum["sum"])), ("product", lambda: accum["sum"] * 2),
                       ("ratio", lambda: accum["sum"] / 2), ("order", lambda: accum["sum"] > 1),
                       ("set", lambda: accum.__setitem__("sum", 3)), ("other", lambda: accum["sum"] + accum["sum"])):
        try:
            read()
            refused.append((name, "read"))
        except TypeError:
            refused.append((name, "TypeError"))
    result(f"outside{epoch}", refused)
    result(f"empty{epoch}", (len(accum), list(accum), "sum" in accum, str(accum)))
    with accum.synchronized():
        result(f"sums{epoch}", (type(accum["moments"]).__name__, accum["moments"].count, accum["moments"].total,
                                accum["sum"]))
        accum.clear()
        accum["pair"], accum["default"] = Pair(1, {2}), collections.defaultdict(int, a=1)
    with accum.synchronized():
        accum["default"]["b"] += 2
        result(f"kept{epoch}", (type(accum["pair"]).__name__, tuple(accum["pair"]), type(accum["default"]).__name__,
                                dict(accum["default"]), sorted(accum)))
        accum.clear()
