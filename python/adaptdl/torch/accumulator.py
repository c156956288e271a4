"""Sums over all replicas and over restarts, for losses, accuracies and other statistics."""

import collections
import contextlib
import weakref
from collections.abc import Mapping, MutableMapping

from adaptdl import _core, _original
from adaptdl.torch.epoch import current_epoch

__all__ = ["Accumulator"]

_made = collections.Counter()  # accumulators by epoch, for their names
_bound = []  # (epoch, weak reference, library's sums)
_unbound = []  # weak references to those made before the process group


def bind_all():
    """The process group is there."""
    for reference in _unbound:
        accum = reference()
        if accum is not None:
            accum._bind()
    _unbound.clear()


def _forget_finished():
    """Accumulators of epochs that are over, which nobody has any more, leave the checkpoint. Those of the
    present epoch stay: a restart in it runs their code again."""
    epoch = current_epoch()
    for entry in list(_bound):
        if entry[0] != epoch and entry[0] is not None and entry[1]() is None:
            entry[2].free()
            _bound.remove(entry)


class _Update:
    """What ``accum[key]`` is while accumulating: something to be added to, and not to be read."""

    __array_ufunc__ = None  # NumPy leaves the adding to this class

    def __init__(self, accum, key, changes=()):
        self._accum, self._key, self._changes = accum, key, tuple(changes)

    def _with(self, value, minus):
        if isinstance(value, _Update):
            self._unreadable()
        return _Update(self._accum, self._key, self._changes + ((value, minus),))

    def __add__(self, value):
        return self._with(value, False)

    def __sub__(self, value):
        return self._with(value, True)

    __iadd__ = __radd__ = __add__
    __isub__ = __sub__

    def _unreadable(self, *_):
        raise TypeError(f"accum[{self._key!r}] can be read inside accum.synchronized(); outside there are "
                        "only += and -=")

    __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __floordiv__ = __pow__ = _unreadable
    __neg__ = __abs__ = __round__ = __bool__ = __float__ = __int__ = __complex__ = __index__ = _unreadable
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _unreadable
    __len__ = __iter__ = __getitem__ = __contains__ = __format__ = __str__ = __repr__ = _unreadable


class Accumulator(MutableMapping):
    """A dict of values that are summed over all replicas, and kept over restarts. It has two modes.

    *Accumulating*, at first: each replica makes its own updates, ``accum["loss"] += value`` or
    ``accum.update(loss=value)``. Otherwise it is like an empty dict; reading ``accum["loss"]`` is a TypeError.

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

    What is summed are numbers, NumPy arrays, tensors, and whatever else has a ``+`` and can be sent to other
    replicas (:mod:`adaptdl.collective`). After a restart in an epoch, code of that epoch runs again; what it
    sees in ``synchronized()`` are the values that it saw before.

    Args:
        args, kwargs: Initial contents, as for dict; the same on every replica.
    """

    def __init__(self, *args, **kwargs):
        self._initial = dict(*args, **kwargs)
        epoch = current_epoch()
        self._order = _made[epoch]
        _made[epoch] += 1
        self._name = "stats-{}".format(self._order) if epoch is None \
            else "stats-epoch{}-{}".format(epoch, self._order)
        self._epoch = epoch
        self._sums = None
        self._contents = None  # the dict, while synchronized
        if _core.context_state() == "started":
            self._bind()
        else:
            _unbound.append(weakref.ref(self))

    def _bind(self):
        """The library's sums: an accumulator may be made before the process group. All replicas have them from the
        same place of the program on."""
        if self._sums is None or not self._sums.alive:
            _forget_finished()
            self._sums = sums = _core.Sums(self._name, self._initial, -1 if self._epoch is None else self._epoch)
            _original.restore_accumulator(sums, self._epoch, self._order)
            self._contents = None
            _bound.append((self._epoch, weakref.ref(self), sums))
        return self._sums

    @contextlib.contextmanager
    def synchronized(self):
        """The synchronized mode, for ``with``. All replicas enter it at the same place of the program, and
        wait there for each other."""
        sums, outer = self._bind(), self._contents
        self._contents = sums.enter()
        try:
            yield self
        finally:
            self._contents = outer
            sums.leave()

    def _apply(self, minus, args, kwargs):
        changes = list(dict(*args).items()) if args and isinstance(args[0], Mapping) else \
            [pair for pairs in args for pair in pairs]
        if len(args) > 1:
            raise TypeError(f"expected at most 1 positional argument, got {len(args)}")
        sums = self._bind()
        for key, value in changes + list(kwargs.items()):
            sums.add(key, value, minus)

    def update(self, *args, **kwargs):
        """Add to the sums. Unlike ``dict.update`` this adds, in both modes.

        Args:
            args, kwargs: As for ``dict.update``: a mapping, or an iterable of pairs, of amounts.
        """
        self._apply(False, args, kwargs)

    def subtract(self, *args, **kwargs):
        """Subtract from the sums.

        Args:
            args, kwargs: As for :meth:`update`.
        """
        self._apply(True, args, kwargs)

    def __iadd__(self, other):
        """``accum += {key: amount}``, the same as :meth:`update`."""
        self.update(other)
        return self

    def __isub__(self, other):
        """``accum -= {key: amount}``, the same as :meth:`subtract`."""
        self.subtract(other)
        return self

    def __getitem__(self, key):
        """``accum[key]``: the value, synchronized; while accumulating something for ``+=`` and ``-=``."""
        return _Update(self, key) if self._contents is None else self._contents[key]

    def __setitem__(self, key, value):
        if self._contents is not None:
            self._contents[key] = value
            return
        if not isinstance(value, _Update):
            raise TypeError("an Accumulator is assigned to inside synchronized(); outside there are only "
                            "+= and -=")
        if value._accum is not self or value._key != key:
            raise ValueError(f"updates of accum[{value._key!r}] assigned to something else")
        sums = self._bind()
        for amount, minus in value._changes:
            sums.add(key, amount, minus)

    def _dict(self):
        return {} if self._contents is None else self._contents

    def __delitem__(self, key):
        del self._dict()[key]

    def __contains__(self, key):
        return key in self._dict()

    def get(self, key, default=None):
        """The value, or ``default`` when there is none; while accumulating there is none."""
        return self._dict().get(key, default)

    def __iter__(self):
        return iter(self._dict())

    def __len__(self):
        return len(self._dict())

    def __repr__(self):
        return repr(self._dict())
