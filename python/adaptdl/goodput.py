"""The goodput model: how fast a job learns with a given number of nodes, replicas and batch size, and the
batch size with which it learns fastest.

Goodput is examples per second times what each example is worth. N nodes, R replicas, atomic batch size
m (examples of one replica in one pass) and s accumulation steps make a total batch size of
``R * m * (s + 1)``.

Arguments may be numbers, sequences or arrays, and are broadcast as NumPy does. Results are numbers when
all arguments are, else NumPy arrays (nested lists where NumPy is not installed).
"""

import collections

from adaptdl import _core

__all__ = ["GoodputFunction", "GradParams", "PerfParams", "fit_perf_params"]

PerfParams = collections.namedtuple(
    "PerfParams", ["alpha_c", "beta_c", "alpha_n", "beta_n", "alpha_r", "beta_r", "gamma"])
PerfParams.__doc__ = """Parameters of the step time, in seconds: a constant (alpha) and a slope (beta) for
computing (c, per example), for the network between nodes (n) and within a node (r, both per replica
beyond the second), and gamma from 1 (compute, then communicate) to 10 (both at once)."""

GradParams = collections.namedtuple("GradParams", ["sqr", "var"])
GradParams.__doc__ = """Statistics of the gradient at the initial batch size: squared norm of its mean, and
its variance."""


class GoodputFunction:
    """The goodput of one job, as a function of its resources and its batch size.

    Args:
        perf_params (PerfParams): How long steps take.
        grad_params (GradParams): How noisy gradients are.
        init_batch_size (int): The batch size for which the learning rate was chosen.

    Raises:
        ValueError: If a parameter is out of its range.
    """

    def __init__(self, perf_params, grad_params, init_batch_size):
        self._model = (tuple(perf_params), tuple(grad_params), init_batch_size)
        _core.goodput_check(self._model)

    def __call__(self, num_nodes, num_replicas, atomic_bsz, accum_steps):
        """Same as :meth:`evaluate`."""
        return self.evaluate(num_nodes, num_replicas, atomic_bsz, accum_steps)

    def evaluate(self, num_nodes, num_replicas, atomic_bsz, accum_steps):
        """Goodput: :meth:`throughput` times :meth:`efficiency`.

        Raises:
            ValueError: If a total batch size is smaller than the initial one, or there are more nodes
                than replicas.
        """
        return _core.goodput_evaluate(self._model, "g", num_nodes, num_replicas, atomic_bsz, accum_steps)

    def throughput(self, num_nodes, num_replicas, atomic_bsz, accum_steps):
        """Examples per second."""
        return _core.goodput_evaluate(self._model, "t", num_nodes, num_replicas, atomic_bsz, accum_steps)

    def efficiency(self, batch_size):
        """What an example is worth at this total batch size, compared with the initial one: 1 there, less
        above.

        Raises:
            ValueError: If a batch size is smaller than the initial one.
        """
        return _core.goodput_evaluate(self._model, "e", batch_size)

    def optimize(self, num_nodes, num_replicas, max_batch_size=None, atomic_bsz_range=None,
                 accumulation=False):
        """The best batch size for the given resources.

        Args:
            num_nodes: How many nodes.
            num_replicas: How many replicas.
            max_batch_size (int): The largest total batch size; None: the initial one.
            atomic_bsz_range (tuple): The smallest and the largest atomic batch size; None, also in one
                of the places: open.
            accumulation (bool): May gradients be accumulated over several passes?

        Returns:
            tuple: Goodput, atomic batch size, accumulation steps.

        Raises:
            ValueError: If the bounds leave no choice.
        """
        low, high = atomic_bsz_range or (None, None)
        return _core.goodput_optimize(self._model, num_nodes, num_replicas, max_batch_size or 0, low or 0,
                                      high or 0, accumulation)


def fit_perf_params(num_nodes, num_replicas, atomic_bsz, accum_step_time, optim_step_time):
    """Fit the step-time model to measurements.

    Args:
        num_nodes: Nodes of each measurement.
        num_replicas: Replicas of each.
        atomic_bsz: Atomic batch size of each.
        accum_step_time: Seconds of a pass that only accumulates gradients.
        optim_step_time: Seconds of a pass that ends in an optimizer step.

    Returns:
        PerfParams: The parameters. Where nothing was measured yet they are optimistic.

    Raises:
        ValueError: If no measurement can be used.
    """
    return PerfParams(*_core.goodput_fit(num_nodes, num_replicas, atomic_bsz, accum_step_time,
                                         optim_step_time))
