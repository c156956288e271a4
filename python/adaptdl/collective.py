"""Collective operations on small Python values: flags, counters, settings, statistics. For gradients and
other large tensors there are faster ways, such as ``torch.distributed``.

All replicas make the same calls in the same order. A replica that dies turns every pending and later
call into ``ConnectionError`` within seconds.

Values are None, bool, int, float, complex, str, bytes, list, tuple, dict, set, and NumPy arrays and
tensors of numbers; named tuples, dataclasses, Counter, defaultdict, OrderedDict, deque, Decimal, Fraction and
dates; and instances of classes that were registered. Anything else is a ``TypeError``. They are never pickled:
nothing that another process sends is executed.
"""

from adaptdl import _core, _values
from adaptdl.reducer import Future, default_reduce_fn

__all__ = ["allreduce", "allreduce_async", "broadcast", "initialize", "register", "teardown"]


def initialize(master_addr=None, master_port=None, replica_rank=None, num_replicas=None):
    """Meet the other replicas. Blocks until all have called. ``adaptdl.torch.init_process_group`` does this,
    too; a program calls one of them.

    Args:
        master_addr (str): Address of the replica of rank 0. Each argument that is None is taken from the
            environment (``adaptdl.env``).
        master_port (int): A free port there.
        replica_rank (int): This replica's rank.
        num_replicas (int): How many replicas there are.

    Raises:
        RuntimeError: If it was initialized before.
        TimeoutError: If the replicas did not come together.
    """
    _core.context_start(master_addr=master_addr, master_port=master_port, replica_rank=replica_rank,
                        num_replicas=num_replicas)


def teardown():
    """Leave the other replicas. Blocks until all have called, at most half a minute. Where there is a place
    for checkpoints, a last one is saved.

    Raises:
        RuntimeError: If it was not initialized, or the training has failed.
    """
    if _core.context_finish() == 1:
        raise RuntimeError("the process group failed, or its last checkpoint could not be saved; the "
                           "reason was printed to standard error")


def allreduce(value, reduce_fn=default_reduce_fn):
    """Reduce a value over all replicas. Blocks until all have called.

    Args:
        value: This replica's value.
        reduce_fn (Callable): ``reduce_fn(a, b)`` gives the reduction of two values; the sum by default.
            Called on rank 0, in rank order, in a thread of its own.

    Returns:
        object: The reduced value, the same on every replica.

    Raises:
        RuntimeError: If this module was not initialized.
    """
    return _core.allreduce(value, reduce_fn)


def allreduce_async(value, reduce_fn=default_reduce_fn):
    """Start an :func:`allreduce` and return at once.

    Args:
        value: This replica's value.
        reduce_fn (Callable): As for :func:`allreduce`.

    Returns:
        Future: Its ``result()`` waits for the reduced value.

    Raises:
        RuntimeError: If this module was not initialized.
    """
    return Future(None, _core.allreduce_async(value, reduce_fn))


def broadcast(value):
    """Give all replicas the value of rank 0. Blocks until all have called.

    Args:
        value: The value; ignored on all ranks but 0.

    Returns:
        object: The value of rank 0.

    Raises:
        RuntimeError: If this module was not initialized.
    """
    return _core.broadcast(value)


def register(cls, to_value=None, from_value=None):
    """Let instances of a class be sent to other replicas and kept in accumulators. All replicas register it,
    before the first is sent. Also a decorator::

        @adaptdl.collective.register
        class Histogram: ...

    Args:
        cls (type): The class.
        to_value (Callable): Gives a plain value for an instance; None: the dict of its attributes.
        from_value (Callable): Gives the instance back; None: one is made without its constructor.

    Returns:
        type: The class.
    """
    return _values.register(cls, to_value, from_value)
