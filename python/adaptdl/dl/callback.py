"""What a callback is: an object with methods for the events of a run, and its place among the others."""

from enum import IntFlag

__all__ = [
    "Callback", "CallbackOrder", "CallbackWrapper", "IBackwardCallback", "ICallback", "ICheckpointCallback",
    "ICriterionCallback", "IMetricCallback", "IOptimizerCallback", "ISchedulerCallback", "callback_is", "inner_of",
    "sort_callbacks",
]

EVENTS = tuple(f"on_{scope}_{edge}" for scope in ("experiment", "stage", "epoch", "loader", "batch")
               for edge in ("start", "end")) + ("on_exception",)


class CallbackOrder(IntFlag):
    """Callbacks of an event are called in this order; of two with the same number the one that was given
    first."""

    Internal = internal = 0
    Metric = metric = 10
    MetricAggregation = metric_aggregation = 20
    Backward = backward = 30
    Optimizer = optimizer = 40
    Scheduler = scheduler = 50
    Checkpoint = checkpoint = 50
    External = external = 100


class ICallback:
    """The events of a run, from the outside in. Each method does nothing here."""

    def on_experiment_start(self, runner):
        """The run begins; the runner's parts are there."""

    def on_stage_start(self, runner):
        """A stage begins."""

    def on_epoch_start(self, runner):
        """An epoch begins."""

    def on_loader_start(self, runner):
        """A loop over data begins."""

    def on_batch_start(self, runner):
        """A batch is there and not yet handled."""

    def on_batch_end(self, runner):
        """A batch was handled: losses, backward passes and steps are taken here."""

    def on_loader_end(self, runner):
        """A loop over data is over; its metrics are made here."""

    def on_epoch_end(self, runner):
        """An epoch is over."""

    def on_stage_end(self, runner):
        """A stage is over."""

    def on_experiment_end(self, runner):
        """The run is over."""

    def on_exception(self, runner):
        """``runner.exception`` ends the run."""


class Callback(ICallback):
    """An addition to a run: subclass it and override methods of events.

    A callback whose state is to survive the restarts of an elastic run has ``state_dict()``, which
    returns what JSON can hold, and ``load_state_dict(state)``.

    Args:
        order (int): Its place among the callbacks, see :class:`CallbackOrder`.
    """

    def __init__(self, order=CallbackOrder.External):
        self.order = order


class _Placed(Callback):
    place = CallbackOrder.External

    def __init__(self):
        super().__init__(order=self.place)


class IMetricCallback(_Placed):
    """A callback that computes metrics."""
    place = CallbackOrder.Metric


class ICriterionCallback(IMetricCallback):
    """A callback that computes a loss."""


class IBackwardCallback(_Placed):
    """A callback that makes the backward pass."""
    place = CallbackOrder.Backward


class IOptimizerCallback(_Placed):
    """A callback that makes the optimizer's step."""
    place = CallbackOrder.Optimizer


class ISchedulerCallback(_Placed):
    """A callback that makes the learning-rate schedule's step."""
    place = CallbackOrder.Scheduler


class ICheckpointCallback(_Placed):
    """A callback that saves models."""
    place = CallbackOrder.Checkpoint


class CallbackWrapper(Callback):
    """A callback that can be switched off.

    Args:
        base_callback (Callback): What to call.
        enable_callback (bool): Whether to call it.
    """

    def __init__(self, base_callback, enable_callback=True):
        if not isinstance(base_callback, ICallback):
            raise TypeError(f"base_callback must be a Callback, not {type(base_callback).__name__}")
        super().__init__(order=base_callback.order)
        self.callback = base_callback
        self._is_enabled = enable_callback


def _forward(event):
    def method(self, runner):
        if self._is_enabled:
            getattr(self.callback, event)(runner)
    method.__name__ = event
    method.__doc__ = f"The wrapped callback's ``{event}``, if it is enabled."
    return method


for _event in EVENTS:
    setattr(CallbackWrapper, _event, _forward(_event))


def inner_of(callback):
    """The callback inside its wrappers."""
    while isinstance(callback, CallbackWrapper):
        callback = callback.callback
    return callback


def callback_is(callback, kinds):
    """isinstance of the callback inside its wrappers."""
    return isinstance(inner_of(callback), kinds)


def sort_callbacks(callbacks):
    """Callbacks by name in the order of their calls.

    Args:
        callbacks (dict or list or None): Callbacks; those of a list are named by their places.

    Returns:
        dict: A new one.

    Raises:
        TypeError: If one of them is no callback; the text names it.
    """
    if callbacks is None:
        return {}
    if isinstance(callbacks, dict):
        named = list(callbacks.items())
    elif isinstance(callbacks, (list, tuple)):
        named = list(enumerate(callbacks))
    else:
        raise TypeError("callbacks must be a list or a dict of Callback objects, not "
                        f"{type(callbacks).__name__}")
    for name, callback in named:
        if isinstance(callback, type) and issubclass(callback, ICallback):
            raise TypeError(f"callback {name!r} is the class {callback.__name__}; it must be an object: "
                            f"{callback.__name__}(...)")
        if not isinstance(callback, ICallback):
            raise TypeError(f"callback {name!r} must be a Callback, not {type(callback).__name__}")
    # Of equal order: what is saved is the state after everything, the schedule's step too.
    return dict(sorted(named, key=lambda pair: (getattr(pair[1], "order", CallbackOrder.External),
                                                callback_is(pair[1], ICheckpointCallback))))
