"""Sums over all replicas and over restarts, for losses, accuracies and other statistics."""

import collections
import contextlib
import numbers
import weakref
from collections.abc import Mapping, MutableMapping

from adaptdl import _core, env
from adaptdl.torch.epoch import current_epoch

__all__ = ["Accumulator"]

_made = collections.Counter()  # accumulators by epoch, for their names
_bound = []  # (epoch, weak reference, library's sums)


def _forget_finished():
    """Accumulators of epochs that are over, which nobody has any more, leave the checkpoint. Those of the
    present epoch stay: a restart in it runs their code again."""
    epoch = current_epoch()
    for entry in list(_bound):
        if entry[0] != epoch and entry[0] is not None and entry[1]() is None:
            entry[2].free()
            _bound.remove(entry)


def _name_of(key):
    """A key as the library knows it: with its type."""
    if isinstance(key, str):
        return "s" + key
    if isinstance(key, int):
        return "n" + str(int(key))
    raise TypeError(f"keys of an Accumulator are str or int, not {type(key).__name__}")


def _key_of(name):
    return name[1:] if name[0] == "s" else int(name[1:])


def _number(value):
    """A number's kind, "i" or "f", and its value."""
    if isinstance(value, numbers.Integral):
        return "i", int(value)
    if hasattr(value, "item") and not isinstance(value, numbers.Number):  # NumPy, torch
        return _number(value.item())
    if isinstance(value, numbers.Real):
        return "f", float(value)
    raise TypeError(f"an Accumulator sums numbers, not {type(value).__name__}; "
                    "for tensors use .item(), or torch.distributed")


class _Update:
    """What ``accum[key]`` is while accumulating: something to be added to, and not to be read."""

    def __init__(self, key):
        self.key = key
        self.changes = []

    def __iadd__(self, value):
        kind, amount = _number(value)
        self.changes.append((kind, amount))
        return self

    def __isub__(self, value):
        kind, amount = _number(value)
        self.changes.append((kind, -amount))
        return self

    def _unreadable(self, *_):
        raise TypeError(f"accum[{self.key!r}] can be read inside accum.synchronized(); outside there are "
                        "only += and -=")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _unreadable
    __float__ = __int__ = __lt__ = __le__ = __gt__ = __ge__ = __format__ = _unreadable


class Accumulator(MutableMapping):
    """A dict of numbers that are summed over all replicas, and kept over restarts. It has two modes.

    *Accumulating*, at first: each replica makes its own updates, ``accum["loss"] += value`` or
    ``accum.update(loss=value)``. Reading finds an empty dict.

    *Synchronized*, in ``with accum.synchronized():``. On entering, the updates of all replicas are added
    up; then it is an ordinary dict, with the same contents on every replica. Do the same with it on all
    of them::

        accum = Accumulator()
        for epoch in remaining_epochs_until(60):
            for batch in valid_loader:
                ...
                accum["loss_sum"] += loss.item()
                accum["total"] += len(batch)
            with accum.synchronized():
                print("Loss:", accum["loss_sum"] / accum["total"])
                accum.clear()

    After a restart in an epoch, code of that epoch runs again; what it sees in ``synchronized()`` are the
    numbers that it saw before. Sums of ints are ints (exact up to 2**53), other sums are floats.

    Args:
        *args, **kwargs: Initial contents, as for dict; the same on every replica.
    """

    def __init__(self, *args, **kwargs):
        self._initial = {_name_of(key): _number(value)
                         for key, value in dict(*args, **kwargs).items()}
        epoch = current_epoch()
        ordinal = _made[epoch]
        _made[epoch] += 1
        self._name = "stats-{}".format(ordinal) if epoch is None \
            else "stats-epoch{}-{}".format(epoch, ordinal)
        self._epoch = epoch
        self._sums = None
        self._depth = 0

    def _bind(self):
        """The library's sums. Made when they are needed first: an accumulator may be made before the
        process group."""
        if self._sums is None or not self._sums.alive:
            _forget_finished()
            self._sums = sums = _core.Sums(self._name)
            self._depth = 0
            _bound.append((self._epoch, weakref.ref(self), sums))
            # Of values that all replicas have, one may count; and none that the checkpoint has too.
            if not sums.restored and env.replica_rank() == 0:
                for name, (kind, value) in self._initial.items():
                    sums.add(kind + name, value)
        return self._sums

    def _contents(self):
        """{library's name: number} of the synchronized mode; empty while accumulating."""
        if not self._depth:
            return {}
        items = self._sums.items()
        contents = {}
        for name, value in items.items():
            if name[0] == "f":
                contents[name[1:]] = value + items.get("i" + name[1:], 0.0)
            elif "f" + name[1:] not in items:
                contents[name[1:]] = int(value)
        return contents

    @contextlib.contextmanager
    def synchronized(self):
        """The synchronized mode, for ``with``. All replicas enter it at the same place of the program, and
        wait there for each other."""
        sums = self._bind()
        sums.enter()
        self._depth += 1
        try:
            yield self
        finally:
            self._depth -= 1
            sums.leave()

    def _apply(self, sign, args, kwargs):
        if len(args) > 1:
            raise TypeError(f"expected at most 1 positional argument, got {len(args)}")
        changes = []
        for source in args + (kwargs,):
            pairs = source.items() if isinstance(source, Mapping) else source
            changes += [(_name_of(key), _number(value)) for key, value in pairs]
        sums = self._bind()
        for name, (kind, value) in changes:
            sums.add(kind + name, sign * value)

    def update(self, *args, **kwargs):
        """Add to the sums. Unlike ``dict.update`` this adds, in both modes.

        Args:
            *args, **kwargs: As for ``dict.update``: a mapping, or an iterable of pairs, of amounts.
        """
        self._apply(1, args, kwargs)

    def subtract(self, *args, **kwargs):
        """Subtract from the sums.

        Args:
            *args, **kwargs: As for :meth:`update`.
        """
        self._apply(-1, args, kwargs)

    def __iadd__(self, other):
        """``accum += {key: amount}``, the same as :meth:`update`."""
        self.update(other)
        return self

    def __isub__(self, other):
        """``accum -= {key: amount}``, the same as :meth:`subtract`."""
        self.subtract(other)
        return self

    def __getitem__(self, key):
        """``accum[key]``: the number, synchronized; while accumulating something for ``+=`` and ``-=``."""
        if not self._depth:
            _name_of(key)
            return _Update(key)
        try:
            return self._contents()[_name_of(key)]
        except KeyError:
            raise KeyError(key) from None

    def __setitem__(self, key, value):
        name = _name_of(key)
        if isinstance(value, _Update):
            if value.key != key:
                raise TypeError(f"updates of {value.key!r} assigned to {key!r}")
            sums = self._bind()
            for kind, amount in value.changes:
                sums.add(kind + name, amount)
            return
        if not self._depth:
            raise TypeError("an Accumulator is assigned to inside synchronized(); outside there are only "
                            "+= and -=")
        kind, number = _number(value)
        self._sums.remove(("f" if kind == "i" else "i") + name)
        self._sums.set(kind + name, number)

    def __delitem__(self, key):
        if key not in self:
            raise KeyError(key)
        for kind in "if":
            self._sums.remove(kind + _name_of(key))

    def __contains__(self, key):
        return bool(self._depth) and isinstance(key, (str, int)) and _name_of(key) in self._contents()

    def get(self, key, default=None):
        """The number, or ``default`` when there is none; while accumulating there is none."""
        return self[key] if key in self else default

    def __iter__(self):
        return iter([_key_of(name) for name in self._contents()])

    def __len__(self):
        return len(self._contents())

    def __repr__(self):
        if not self._depth:
            return "<Accumulator, accumulating>"
        return "Accumulator({!r})".format(dict(self))
