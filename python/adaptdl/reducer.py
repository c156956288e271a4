"""Reductions of Python values over replicas, without a process group: each :class:`Reducer` is a group
of its own. ``adaptdl.collective`` offers the same over the process group."""

import operator

from adaptdl import _core

__all__ = ["Future", "Reducer", "default_reduce_fn"]


def default_reduce_fn(a, b):
    """The sum ``a + b``: adds numbers and arrays, joins texts and lists."""
    return operator.add(a, b)


class Future:
    """The result of an operation that may not have finished yet. Made by ``allreduce_async``.

    Args:
        reducer: Where the operation was started.
        key: The operation.
    """

    def __init__(self, reducer, key):
        self._reducer = reducer
        self._key = key

    def result(self):
        """Wait for the operation and return its result.

        Returns:
            object: The reduced value, the same on all replicas.

        Raises:
            ConnectionError: If a replica was lost meanwhile.
        """
        return self._key.result()


class Reducer:
    """Replicas that reduce values together. Blocks until all have arrived. All of them make the same calls
    in the same order.

    Values are None, bool, int, float, complex, str, bytes, list, tuple, dict, set, and NumPy arrays and
    tensors of numbers. They are never pickled: nothing that another process sends is executed.

    Args:
        rank (int): This replica's number, from 0 on.
        replicas (int): How many there are.
        root_host (str): Address of the replica of rank 0.
        root_port (int): A free port there, known to all; 0 is enough for a single replica.
    """

    def __init__(self, rank, replicas, root_host, root_port):
        self._group = _core.Group(rank, replicas, root_host, root_port)

    def allreduce(self, obj, reduce_fn=default_reduce_fn):
        """Reduce a value over all replicas. Blocks until all have called.

        Args:
            obj: This replica's value.
            reduce_fn (Callable): ``reduce_fn(a, b)`` gives the reduction of two values. Called on rank 0,
                in rank order, in a thread of its own.

        Returns:
            object: The reduced value, on every replica.
        """
        return self._group.allreduce(obj, reduce_fn)

    def allreduce_async(self, obj, reduce_fn=default_reduce_fn):
        """Start an :meth:`allreduce` and return at once.

        Returns:
            Future: Gives the result later.
        """
        return Future(self, self._group.allreduce_async(obj, reduce_fn))

    def broadcast(self, obj):
        """Rank 0's value for all replicas; that of the others is ignored.

        Returns:
            object: The value of rank 0.
        """
        return self._group.broadcast(obj)

    def close(self):
        """Leave the group. Blocks until all replicas do, at most half a minute."""
        self._group.close()
