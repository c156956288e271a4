"""Metrics for programs that compute them themselves."""

import torch

from adaptdl import _core
from adaptdl.dl.callbacks import accuracy

__all__ = ["AdditiveMetric", "LazyMeter", "accuracy"]

_made = 0


class LazyMeter:
    """``_core.Metrics`` for values that a GPU is still computing: they are fetched many at a time, so that the program
    does not wait for each.

    Args:
        name (str): Its name.
    """

    MOST = 64

    def __init__(self, name):
        self._sums, self._waiting = _core.Metrics(name), []

    def add(self, key, value, weight):
        """A value that stands for so many examples."""
        if not isinstance(value, torch.Tensor) or not value.is_cuda:
            self._sums.add(key, value, weight)
            return
        self._waiting.append((key, value.detach().reshape(()).to(torch.float32, copy=True), weight))
        if len(self._waiting) >= self.MOST:
            self._fetch()

    def _fetch(self):
        waiting, self._waiting = self._waiting, []
        values = torch.stack([value for _, value, _ in waiting]).tolist() if waiting else []
        for (key, _, weight), value in zip(waiting, values):
            self._sums.add(key, value, weight)

    def compute(self):
        """{key: (mean, deviation)}"""
        self._fetch()
        return self._sums.compute()

    def free(self):
        """Its loop is over."""
        self._waiting = []
        self._sums.free()


class AdditiveMetric:
    """Mean and deviation of values, each of which stands for some examples; over all processes when computed.

    Args:
        compute_on_call (bool): Whether calling it gives mean and deviation, or the value.
    """

    def __init__(self, compute_on_call=True):
        global _made
        _made += 1
        self._name, self.compute_on_call = f"additive-{_made}", compute_on_call
        self._sums = None

    def reset(self):
        """Nothing was added."""
        if self._sums is not None:
            self._sums.free()
            self._sums = None

    def update(self, value, num_samples):
        """Add a value.

        Args:
            value (float): The value.
            num_samples (int): How many examples it stands for.

        Returns:
            float: The value.
        """
        if self._sums is None:
            self._sums = _core.Metrics(self._name)
        self._sums.add("value", float(value), num_samples)
        return value

    def compute(self):
        """Mean and deviation. With several processes, all of them call it.

        Returns:
            tuple: (mean, deviation), (nan, nan) of nothing.
        """
        if self._sums is None:  # the others may have something, and wait
            self._sums = _core.Metrics(self._name)
        return self._sums.compute().get("value", (float("nan"), float("nan")))

    def __call__(self, value, num_samples):
        self.update(value, num_samples)
        return self.compute() if self.compute_on_call else value
