"""Metrics of a job, for people."""

import numbers

from adaptdl import _core

__all__ = ["report"]


def report(metrics=None, *, step=None, **more):
    """Tell of what the job measures: ``adaptdl.report(loss=0.5, accuracy=0.9)``. On a cluster the values are in
    ``adaptdl describe``, ``adaptdl top``, the dashboard's curves, the HTTP API and the scheduler's ``/metrics``;
    elsewhere nothing happens.

    Values are sent together, every two seconds, by a thread of its own: a call takes microseconds and may stand in
    the training loop. What was told before the last checkpoint is never lost, and what a killed process told after
    it is taken back when training goes on from there, so that curves have neither gaps nor repetitions. Rank 0's
    values count. In a job of several replicas they do from ``init_process_group`` on.

    Args:
        metrics (dict): Values by name, for names that are no identifiers: ``{"valid/loss": 0.5}``. A name has at
            most 100 bytes, a job 64 names.
        step (int): Where on the curves; default: the optimizer steps so far, or in a program without a training
            loop of ours the number of the call. A step at or before a metric's last one takes back what was told
            from that step on.
        **more: Values by name. Numbers, or what ``float`` makes one of (a tensor with one element); those that are
            not finite are kept as "no number".
    """
    if metrics is not None and not isinstance(metrics, dict):
        raise TypeError(f"metrics must be a dict, not {type(metrics).__name__}")
    values = {name: _number(name, value) for name, value in {**(metrics or {}), **more}.items()}
    if step is not None and (not isinstance(step, numbers.Integral) or isinstance(step, bool) or step < 0):
        raise ValueError(f"step must be a whole number from 0 on, not {step!r}")
    _core.report(-1 if step is None else int(step), {name.encode(): value for name, value in values.items()})


def _number(name, value):
    if not isinstance(name, str):
        raise TypeError(f"the name of a metric must be a str, not {name!r}")
    if isinstance(value, (str, bytes)):
        raise TypeError(f"metric {name!r} must be a number, not {value!r}")
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: a tensor of several elements
        raise TypeError(f"metric {name!r} must be a number, not {type(value).__name__}: {error}") from None
