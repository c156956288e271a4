"""What a job has measured of itself, and reports to its scheduler. The training loop measures and reports without
being asked; these functions are for programs that look at the numbers, or measure on their own."""

import collections
import time
from collections.abc import Mapping

from adaptdl import _core, env, sched_hints
from adaptdl.goodput import GoodputFunction, GradParams, PerfParams

_begun = None  # the step under way: [batch size, start, time spent waiting for gradients]
_gradients = {}  # statistics of several wrappers


def profile_step_start(atomic_bsz):
    """A step of so many examples on each replica begins."""
    global _begun
    _begun = [atomic_bsz, time.perf_counter(), 0.0]


def profile_sync_time(sync_time):
    """So many seconds of the step were spent waiting for gradients."""
    _begun[2] += sync_time


def profile_step_commit(accumulation_step=False):
    """The step is over, and counts.

    Args:
        accumulation_step (bool): Whether its gradient was only accumulated.
    """
    global _begun
    bsz, start, waited = _begun
    _begun = None
    # Waiting is part of a step, however it was measured.
    took = max(time.perf_counter() - start, waited)
    _core.metrics_step(env.num_nodes(), env.num_replicas(), bsz, not accumulation_step, took,
                       0.0 if accumulation_step else waited)


def update_grad_params(edp_key, grad_norm_sqr, grad_variance):
    """Statistics of the gradients of one wrapper; those of all are added up."""
    _gradients[edp_key] = grad_norm_sqr, grad_variance
    sqr, var = map(sum, zip(*_gradients.values()))
    _core.metrics_gradient(sqr, var, True, get_progress())


def update_progress(progress):
    """Set what :func:`get_progress` returns."""
    grad = _metrics_state().grad_params
    _core.metrics_gradient(*(grad or (0.0, 0.0)), grad is not None, progress)


def get_progress():
    """How many steps at the initial batch size the training so far is worth."""
    return _core.metrics_look()[2]


def set_batch_size(init_batch_size, max_batch_size, local_bsz_bounds, gradient_accumulation):
    """What is reported of the batch size; the training loop does this."""
    low, high = local_bsz_bounds or (None, None)
    _core.metrics_sizes(init_batch_size, max_batch_size or 0, low or 0, high or 0,
                        bool(gradient_accumulation))


def get_goodput_fn():
    """The job's model of goodput.

    Returns:
        GoodputFunction or None: None until steps and gradients were measured.
    """
    state = _metrics_state()
    if state.perf_params is None or state.grad_params is None or not state.init_batch_size:
        return None
    return GoodputFunction(state.perf_params, state.grad_params, state.init_batch_size)


def _fit_perf_params():
    _core.metrics_fit()


def _get_sched_hints():
    """The measurements, fitted; None when there are none."""
    if not _core.metrics_profile():
        return None
    _fit_perf_params()
    return _metrics_state()


def _report_sched_hints():
    """Report to the supervisor now."""
    state = _metrics_state()
    hints = dict(sched_hints.SCHED_HINTS)
    if state.perf_params is not None:
        hints["perfParams"] = dict(zip(sched_hints.PERF_PARAMS, state.perf_params))
    if state.grad_params is not None:
        hints["gradParams"] = dict(zip(("norm", "var"), state.grad_params))
    hints.update(initBatchSize=state.init_batch_size, maxBatchSize=state.max_batch_size,
                 localBszBounds=state.local_bsz_bounds, maxProfiledReplicas=_core.metrics_look()[4],
                 gradientAccumulation=state.gradient_accumulation, loneReplicaGrows=_core.metrics_look()[3][5])
    sched_hints.post_sched_hints(hints, env.job_id())


class _Profile(Mapping):
    """{(nodes, replicas, batch size): Counter of times and steps}, as it is whenever it is looked at."""

    def __getitem__(self, key):
        return collections.Counter(_core.metrics_profile().get(key, {}))

    def __iter__(self):
        return iter(_core.metrics_profile())

    def __len__(self):
        return len(_core.metrics_profile())

    def __contains__(self, key):
        return key in _core.metrics_profile()


class _MetricsState:
    """The measurements, as they are whenever they are looked at."""

    profile = _Profile()

    @property
    def perf_params(self):
        perf = _core.metrics_look()[0]
        return perf if perf is None else PerfParams(*perf)

    @property
    def grad_params(self):
        grad = _core.metrics_look()[1]
        return grad if grad is None else GradParams(*grad)

    @property
    def progress(self):
        return get_progress()

    @property
    def init_batch_size(self):
        return _core.metrics_look()[3][0] or None

    @property
    def max_batch_size(self):
        return _core.metrics_look()[3][1] or None

    @property
    def local_bsz_bounds(self):
        low, high = _core.metrics_look()[3][2:4]
        return (low or None, high or None) if low or high else None

    @property
    def gradient_accumulation(self):
        return _core.metrics_look()[3][4]


def _metrics_state():
    return _STATE


_STATE = _MetricsState()
