"""Rules for the learning rate at other batch sizes than the initial one. A rule's factors multiply the
learning rates for one step, and are taken back after it, so that schedules need not know of them.

Rules of your own are subclasses of :class:`ScalingRuleBase` with a :meth:`~ScalingRuleBase.scale_lr`.
"""

import functools
import types

import torch

from adaptdl import _core
from adaptdl.torch.data import current_dataloader

__all__ = ["ScalingRuleBase", "AdaScale", "AdamScale", "LinearScale", "SqrtScale", "LEGWScale"]


class ScalingRuleBase:
    """A rule for the learning rate. It is handed to ``AdaptiveDataParallel``, which patches the optimizer::

        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        model = AdaptiveDataParallel(model, optimizer, scaling_rule=MyRule())
        for epoch in ...:
            for batch in ...:
                optimizer.zero_grad()
                ...
                loss.backward()
                optimizer.step()  # with MyRule's learning rate

    In :meth:`scale_lr`, ``self.adp.gns`` has the gradient statistics.
    """

    def __init__(self):
        self.adp = None
        self._optimizer = None
        self._orig_step = None
        self._orig_zero_grad = None
        self._factors = None
        self._tie = None  # what the attributes above are for the wrapper at work

    def scale_lr(self, scale):
        """The factors on the learning rates, for one step.

        Args:
            scale (float): The step's batch size by the initial one.

        Returns:
            float, or a sequence of float: One for all parameter groups, or one for each.
        """
        raise NotImplementedError("a scaling rule needs a method scale_lr(self, scale)")

    def zero_grad(self, *args, **kwargs):
        """Zero the gradients by the optimizer's ``zero_grad``. Gradients that are being accumulated are kept
        elsewhere and stay.

        Args:
            *args, **kwargs: As for the optimizer's.
        """
        self.adp.gns.zeroed()
        return self._orig_zero_grad(*args, **kwargs)

    def step(self, *args, **kwargs):
        """Take one step of the optimizer, learning rates scaled. After a batch whose gradient is only
        accumulated, does nothing.

        Args:
            *args, **kwargs: As for the optimizer's ``step``.

        Returns:
            As the optimizer's ``step``.
        """
        gns = self.adp.gns
        if gns.accumulating():
            return None
        scale = gns.begin_step()
        if scale is None:  # a replica was lost: the batch comes again
            return None
        groups = self._optimizer.param_groups
        self._factors = _spread(self.scale_lr(scale), len(groups))
        before = [_scale(group, factor) for group, factor in zip(groups, self._factors)]
        try:
            result = self._orig_step(*args, **kwargs)
        finally:
            for group, lr in zip(groups, before):
                _restore(group, lr)
        gns.end_step()
        return result

    def initialize(self, adp, optimizer, patch_optimizer=False):
        """Tie the rule to a wrapper and its optimizer. ``AdaptiveDataParallel`` calls this. A rule may be
        handed to several wrappers: while one's optimizer steps, :attr:`adp` is that one.

        Args:
            adp (AdaptiveDataParallel): Whose statistics the rule goes by.
            optimizer (torch.optim.Optimizer): Whose learning rates it scales.
            patch_optimizer (bool): Whether the optimizer's ``step`` and ``zero_grad`` become the rule's.
        """
        tie = {"adp": adp, "_optimizer": optimizer, "_orig_step": optimizer.step,
               "_orig_zero_grad": optimizer.zero_grad, "_factors": None}
        self.__dict__.update(tie)
        self._tie = tie
        if patch_optimizer:
            self._patch(optimizer, "step", self._tied(tie, self.step))
            self._patch(optimizer, "zero_grad", self._tied(tie, self.zero_grad))

    def _tied(self, tie, method):
        """The method, for one of the wrappers that the rule was handed to."""
        def call(*args, **kwargs):
            if self._tie is not tie:
                self._tie["_factors"] = self._factors
                self.__dict__.update(tie)
                self._tie = tie
            return method(*args, **kwargs)
        return call

    @staticmethod
    def _patch(optimizer, name, method):
        """Learning-rate schedules look at optimizer.step: it stays a method, with the marks it had."""
        original = getattr(optimizer, name)

        @functools.wraps(original)
        def call(_self, *args, **kwargs):
            return method(*args, **kwargs)

        call.__dict__.update(getattr(original, "__dict__", {}))
        call.__dict__.pop("__wrapped__", None)
        setattr(optimizer, name, types.MethodType(call, optimizer))

    @property
    def lr_factor(self):
        """The factor of the last step on the first parameter group; 1 before."""
        return self._factors[0] if self._factors else 1.0


def _spread(factors, count):
    """A factor for each parameter group."""
    try:
        values = [float(factor) for factor in factors]
    except TypeError:
        values = [float(factors)] * count
    if len(values) == 1:
        values *= count
    if len(values) != count:
        raise ValueError(f"scale_lr returned {len(values)} factors for {count} parameter groups")
    return values


def _scale(group, factor):
    """Multiplies a group's rate; what to put back, None when nothing was changed."""
    lr = group["lr"] if factor != 1.0 else None
    if isinstance(lr, torch.Tensor):
        before = lr.clone()
        lr.mul_(factor)
        return before
    if lr is not None:
        group["lr"] = lr * factor
    return lr


def _restore(group, lr):
    if isinstance(lr, torch.Tensor) and isinstance(group["lr"], torch.Tensor):
        group["lr"].copy_(lr)
    elif lr is not None:
        group["lr"] = lr


class _LibraryRule(ScalingRuleBase):
    """A rule that the library knows by name."""

    _rule = None

    def _numbers(self):
        return ()

    def scale_lr(self, scale):
        return self._factors_at(scale, *self._numbers())

    def _factors_at(self, scale, *numbers):
        gns = self.adp.gns
        meter = getattr(gns, "_meter", None)
        if isinstance(meter, _core.Meter):
            return meter.factors(self._rule, scale, *numbers)
        return _core.scaling_factors(self._rule, scale, *self._statistics(gns), *numbers)

    def _statistics(self, gns):
        """Of a ``gns`` of the program's own: squared norms, variances, progress, initial batch size."""
        return 0.0, 0.0, 0.0, 1.0


class AdaScale(_LibraryRule):
    """Multiplies by the gain of the larger batch: how many steps at the initial batch size it is worth, by
    the statistics of each parameter group. The default. Johnson et al., "AdaScale SGD", 2020."""

    _rule = "adascale"

    def _statistics(self, gns):
        return gns.raw_sqr_avg, gns.raw_var_avg, 0.0, 1.0

    def scale_lr(self, scale):
        """The gain of each parameter group at that scale."""
        return super().scale_lr(scale)


class AdamScale(AdaScale):
    """AdaScale for Adam and AdamW, their default: the gain to a power.

    Args:
        power (float): The power.
    """

    _rule = "adamscale"

    def __init__(self, power=0.5):
        super().__init__()
        if not power > 0:
            raise ValueError(f"power must be above 0, not {power!r}")
        self._power = float(power)

    def scale_lr(self, scale, power=None):
        """The gain of each parameter group at that scale, to the power.

        Args:
            scale (float): The step's batch size by the initial one.
            power (float): The power; None: the rule's.
        """
        return self._factors_at(scale, self._power if power is None else float(power))


class LinearScale(_LibraryRule):
    """Multiplies by the scale."""

    _rule = "linear"

    def scale_lr(self, scale):
        """The scale."""
        return super().scale_lr(scale)


class SqrtScale(_LibraryRule):
    """Multiplies by the square root of the scale."""

    _rule = "sqrt"

    def scale_lr(self, scale):
        """The scale's square root."""
        return super().scale_lr(scale)


class LEGWScale(_LibraryRule):
    """Multiplies by the square root of the scale, after a warm-up that is longer at larger scales: over
    ``base_warmup_epochs * scale`` epochs of progress the factor rises from 0. You et al.,
    "Large-batch training for LSTM and beyond", 2019.

    Args:
        base_warmup_epochs (float): Epochs of warm-up at the initial batch size.
        data_size (int): How many examples the data set has.
    """

    _rule = "legw"

    def __init__(self, base_warmup_epochs, data_size):
        super().__init__()
        if not base_warmup_epochs >= 0 or not data_size > 0:
            raise ValueError("base_warmup_epochs must be at least 0 and data_size above 0")
        self._base_warmup_epochs, self._data_size = float(base_warmup_epochs), float(data_size)

    def _numbers(self):
        return 0.0, self._base_warmup_epochs, self._data_size

    def _statistics(self, gns):
        loader = current_dataloader()
        return 0.0, 0.0, gns.get_progress(), loader.batch_size if loader else 1.0

    def scale_lr(self, scale):
        """``sqrt(scale) * min(progress / warm-up, 1)``."""
        return super().scale_lr(scale)
