"""Metrics for programs that compute them themselves."""

from adaptdl import _core
from adaptdl.dl.callbacks import accuracy

__all__ = ["AdditiveMetric", "accuracy"]

_made = 0


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
