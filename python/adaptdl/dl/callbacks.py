"""The callbacks that come with the runner."""

import functools
import math
import time

import torch

from adaptdl.dl.callback import (
    Callback, CallbackOrder, IBackwardCallback, ICriterionCallback, IMetricCallback, IOptimizerCallback,
    ISchedulerCallback, callback_is, inner_of,
)
from adaptdl.dl.loaders import BatchLimitLoader

__all__ = [
    "AccuracyCallback", "BackwardCallback", "BatchOverfitCallback", "CheckRunCallback", "CriterionCallback",
    "EarlyStoppingCallback", "FunctionalMetricCallback", "MetricAggregationCallback", "OptimizerCallback",
    "PeriodicLoaderCallback", "ProfilerCallback", "SchedulerCallback", "TimerCallback",
]


def _names(keys):
    return ", ".join(sorted(map(str, keys))) or "none"


def batch_value(runner, key, who):
    """``runner.batch[key]``; a KeyError that says what there is instead."""
    batch = runner.batch
    if not isinstance(batch, dict):
        raise TypeError(f"{who}: runner.batch must be a dict to have {key!r}, not {type(batch).__name__}; "
                        "handle_batch() makes it")
    if key not in batch:
        raise KeyError(f"{who}: the batch has no {key!r}; there are: {_names(batch)}")
    return batch[key]


def metric_value(metrics, key, who, where):
    """A metric by its key, or the key of one that it is short for (accuracy: accuracy01); a KeyError that
    says what there is instead."""
    for name in (key, f"{key}01"):
        if name in metrics:
            return metrics[name]
    raise KeyError(f"{who}: nobody computes the metric {key!r} of {where}; there are: {_names(metrics)}")


def epoch_metric(runner, loader_key, metric_key, who):
    """A metric of the epoch, of a loader or (None) of the epoch itself."""
    key = loader_key if loader_key is not None else "_epoch_"
    if key not in runner.epoch_metrics:
        raise KeyError(f"{who}: there is no loader {key!r} in this epoch; there are: "
                       f"{_names(name for name in runner.epoch_metrics if name != '_epoch_')}")
    return metric_value(runner.epoch_metrics[key], metric_key, who, f"loader {key!r}")


def part_of(value, key, what, who):
    """One of several models, optimizers, criteria or schedules in a dict; or the only one."""
    if value is None:
        raise ValueError(f"{who}: the runner has no {what}")
    if key is None and not isinstance(value, dict):
        return value
    if not isinstance(value, dict):
        raise KeyError(f"{who}: the runner has one {what}, not several by key; {key!r} was asked for")
    if key not in value:
        raise KeyError(f"{who}: the runner has no {what} {key!r}; there are: {_names(value)}")
    return value[key]


def first_of(runner, value, count):
    """The first examples of a batch's tensor; what has no place for each example is as it is."""
    whole = isinstance(value, torch.Tensor) and value.dim() > 0 and len(value) == runner.batch_size
    return value[:count] if whole else value


# ---- metrics ----

class FunctionalMetricCallback(IMetricCallback):
    """A metric that a function makes of a model's output and a target. In a loader's metrics it is the mean
    over all examples of all replicas, also as ``<key>/mean``, and its deviation over batches as ``<key>/std``.

    Args:
        metric_fn (Callable): ``metric_fn(output, target)`` gives a number.
        metric_key (str): Its key in ``runner.batch_metrics``.
        input_key (str): The output's key in ``runner.batch``; or a list of keys or dict {key: argument},
            given by name.
        target_key (str): The target's, likewise.
        log_on_batch (bool): Whether it is in the metrics of batches, too.
        prefix, suffix (str): Put before and after the key.
    """

    def __init__(self, input_key, target_key, metric_fn, metric_key, log_on_batch=True, prefix=None, suffix=None,
                 compute_on_call=True):
        super().__init__()
        self.input_key, self.target_key = input_key, target_key
        self.metric_fn = metric_fn
        self.metric_key = f"{prefix or ''}{metric_key}{suffix or ''}"
        self.log_on_batch = log_on_batch

    def _arguments(self, runner):
        who = type(self).__name__
        if isinstance(self.input_key, str) and isinstance(self.target_key, str):
            return [batch_value(runner, key, who) for key in (self.input_key, self.target_key)], {}
        named = {}
        for keys in (self.input_key, self.target_key):
            pairs = keys.items() if isinstance(keys, dict) else \
                ((key, key) for key in ([keys] if isinstance(keys, str) else keys))
            named.update((name, batch_value(runner, key, who)) for key, name in pairs)
        return [], named

    def compute(self, runner, count=None):
        """The metric of the present batch, or of its first so many examples."""
        args, kwargs = self._arguments(runner)
        if count is not None:
            args = [first_of(runner, value, count) for value in args]
            kwargs = {key: first_of(runner, value, count) for key, value in kwargs.items()}
        with runner.engine.autocast():
            return self.metric_fn(*args, **kwargs)

    def _into_mean(self, runner, value):
        """Into the loader's mean: examples that another process has too count there."""
        own = runner.batch_size - runner.batch_extra
        if runner.batch_extra and own > 0:
            with torch.no_grad():
                value = self.compute(runner, own)
        if own > 0:
            runner.meter.add(self.metric_key, value, own)

    def on_batch_end(self, runner):
        """Computes it."""
        value = self.compute(runner)
        self._into_mean(runner, value)
        if self.log_on_batch:
            runner.batch_metrics[self.metric_key] = value

    def on_loader_end(self, runner):
        """The loader's mean and deviation."""
        mean, std = runner.loader_moments(self.metric_key)
        runner.loader_metrics.update({self.metric_key: mean, f"{self.metric_key}/mean": mean,
                                      f"{self.metric_key}/std": std})


class CriterionCallback(FunctionalMetricCallback, ICriterionCallback):
    """Computes the loss, with ``runner.criterion``.

    Args:
        input_key, target_key (str or list or dict): Of output and target in ``runner.batch``.
        metric_key (str): The loss's key in ``runner.batch_metrics``.
        criterion_key (str): Which criterion, when the runner has several.
        prefix, suffix (str): Put before and after the key.
    """

    def __init__(self, input_key, target_key, metric_key, criterion_key=None, prefix=None, suffix=None):
        super().__init__(input_key, target_key, None, metric_key, prefix=prefix, suffix=suffix)
        self.criterion_key = criterion_key

    def on_stage_start(self, runner):
        """Takes the runner's criterion."""
        self.metric_fn = part_of(runner.criterion, self.criterion_key, "criterion", type(self).__name__)


def accuracy(outputs, targets, topk=(1,)):
    """For each k, the share of examples whose target is among the k likeliest classes.

    Args:
        outputs (Tensor): Scores [examples, classes]; of one class or one dimension: the answer itself.
        targets (Tensor): Classes [examples].
        topk (tuple): The numbers k.

    Returns:
        list: A tensor of one element for each k.
    """
    targets = targets.view(-1, 1)
    if outputs.dim() == 1 or outputs.size(1) == 1:
        right = outputs.view(-1, 1).eq(targets)
    else:
        if max(topk) > outputs.size(1):
            raise ValueError(f"accuracy: topk has {max(topk)}, and there are {outputs.size(1)} classes")
        right = outputs.topk(max(topk), dim=1).indices.eq(targets)
    return [right[:, :k].any(dim=1).float().mean().view(1) for k in topk]


class AccuracyCallback(IMetricCallback):
    """The share of right answers among the k likeliest: ``accuracy01``, ``accuracy03`` ..., in loaders' metrics
    with the deviation over batches, ``accuracy01/std``. Where a metric's key is asked for, ``accuracy`` stands
    for ``accuracy01``.

    Args:
        input_key, target_key (str): Of scores and classes in ``runner.batch``.
        topk (Iterable): The numbers k (``topk_args`` is another name); by default 1, with more than 3 classes
            3, and with more than 5 also 5.
        num_classes (int): How many classes, for that default.
        log_on_batch (bool): Whether it is in the metrics of batches, too.
        prefix, suffix (str): Put before and after the keys.
    """

    def __init__(self, input_key, target_key, topk=None, num_classes=None, log_on_batch=True, prefix=None,
                 suffix=None, topk_args=None):
        super().__init__()
        self.input_key, self.target_key = input_key, target_key
        chosen = topk if topk is not None else topk_args
        if chosen is None:
            chosen = [1] + [k for k in (3, 5) if num_classes is not None and num_classes > k]
        self.topk = (chosen,) if isinstance(chosen, int) else tuple(chosen)
        if not self.topk or any(not isinstance(k, int) or k < 1 for k in self.topk):
            raise ValueError(f"topk must be numbers of at least 1, not {chosen!r}")
        self.keys = [f"{prefix or ''}accuracy{k:02d}{suffix or ''}" for k in self.topk]
        self.log_on_batch = log_on_batch

    def _values(self, outputs, targets):
        with torch.no_grad():
            values = torch.cat(accuracy(outputs, targets, self.topk))
        return values.unbind() if values.is_cuda else values.tolist()  # whoever wants numbers of a GPU waits for it

    def on_batch_end(self, runner):
        """Counts the right answers."""
        who = type(self).__name__
        outputs, targets = (batch_value(runner, key, who) for key in (self.input_key, self.target_key))
        values = self._values(outputs, targets)
        if self.log_on_batch:
            runner.batch_metrics.update(zip(self.keys, values))
        if runner.batch_extra and len(targets) == runner.batch_size:  # what another process has too counts there
            own = runner.batch_size - runner.batch_extra
            outputs, targets = outputs[:own], targets[:own]
            values = self._values(outputs, targets) if own else []
        for key, value in zip(self.keys, values):
            runner.meter.add(key, value, len(targets))

    def on_loader_end(self, runner):
        """The loader's shares."""
        found = [runner.loader_moments(key) for key in self.keys]
        runner.loader_metrics.update({key: mean for key, (mean, _) in zip(self.keys, found)})
        runner.loader_metrics.update({f"{key}/std": std for key, (_, std) in zip(self.keys, found)})


class MetricAggregationCallback(Callback):
    """A metric made of others.

    Args:
        metric_key (str): Its key.
        metrics (list or dict): The keys of the others, None for all; for weighted modes {key: weight}.
        mode (str or Callable): "sum", "mean", "weighted_sum", "weighted_mean", or a function of
            (metrics, runner).
        scope (str): "batch": of each batch, and of loaders too; "loader": of loaders only.
        multiplier (float): What it is multiplied with.
    """

    def __init__(self, metric_key, metrics=None, mode="mean", scope="batch", multiplier=1.0):
        super().__init__(order=CallbackOrder.MetricAggregation)
        if not isinstance(metric_key, str):
            raise ValueError(f"metric_key must be a str, not {metric_key!r}")
        if isinstance(metrics, str):
            metrics = [metrics]
        if mode in ("weighted_sum", "weighted_mean"):
            if not isinstance(metrics, dict):
                raise ValueError(f"mode {mode!r} needs metrics as a dict {{key: weight}}, not {metrics!r}")
        elif mode in ("sum", "mean"):
            if metrics is not None and not isinstance(metrics, list):
                raise ValueError(f"mode {mode!r} needs metrics as a list of keys, or None, not {metrics!r}")
        elif not callable(mode):
            raise ValueError(f"mode must be 'sum', 'mean', 'weighted_sum', 'weighted_mean' or a function, not {mode!r}")
        if scope not in ("batch", "loader"):
            raise ValueError(f"scope must be 'batch' or 'loader', not {scope!r}")
        self.metric_key, self.metrics, self.mode = metric_key, metrics, mode
        self.scope, self.multiplier = scope, multiplier

    def _aggregate(self, metrics, runner, where):
        if callable(self.mode):
            return self.mode(metrics, runner) * self.multiplier
        keys = list(self.metrics) if self.metrics is not None else list(metrics)
        values = [metric_value(metrics, key, type(self).__name__, where) for key in keys]
        weights = [self.metrics[key] for key in keys] if isinstance(self.metrics, dict) else [1.0] * len(keys)
        total = sum(value * weight for value, weight in zip(values, weights))
        if self.mode in ("mean", "weighted_mean"):
            total = total / sum(weights)
        return total * self.multiplier

    def on_batch_end(self, runner):
        """The batch's."""
        if self.scope == "batch":
            runner.batch_metrics[self.metric_key] = self._aggregate(runner.batch_metrics, runner, "the batch")

    def on_loader_end(self, runner):
        """The loader's."""
        where = f"loader {runner.loader_key!r}"
        runner.loader_metrics[self.metric_key] = float(self._aggregate(runner.loader_metrics, runner, where))


# ---- steps ----

def _clipping(function, params):
    """The clipping function, by name or itself, with its parameters."""
    if isinstance(function, str):
        if not hasattr(torch.nn.utils, function):
            raise ValueError(f"grad_clip_fn: torch.nn.utils has no {function!r}")
        function = getattr(torch.nn.utils, function)
    if function is None:
        if params:
            raise ValueError("grad_clip_params without grad_clip_fn")
        return None
    return functools.partial(function, **params) if params else function


def _parameters(model):
    models = model.values() if isinstance(model, dict) else [model]
    return [param for part in models for param in part.parameters() if param.requires_grad]


class BackwardCallback(IBackwardCallback):
    """Makes the backward pass of a loss, and clips gradients before each step.

    Args:
        metric_key (str): The loss's key in ``runner.batch_metrics``.
        grad_clip_fn (Callable or str): ``grad_clip_fn(parameters, ...)``, or its name in ``torch.nn.utils``.
        grad_clip_params (dict): Its further arguments.
        log_gradient (bool): Whether the clipping function's result, the norm, is in the metrics of batches.
    """

    def __init__(self, metric_key, grad_clip_fn=None, grad_clip_params=None, log_gradient=False):
        super().__init__()
        self.metric_key = metric_key
        self.grad_clip_fn = _clipping(grad_clip_fn, grad_clip_params)
        self._log_gradient = log_gradient

    def on_batch_end(self, runner):
        """The backward pass, in training."""
        if not runner.is_train_loader:
            return
        runner.engine.backward(metric_value(runner.batch_metrics, self.metric_key, type(self).__name__, "the batch"))
        if self.grad_clip_fn is not None and _step_is_due(runner):
            norm = clip(runner, self.grad_clip_fn)
            if self._log_gradient and norm is not None:
                runner.batch_metrics[f"gradient/{self.metric_key}/norm"] = norm


def _step_is_due(runner):
    """Does this batch end in a step? With accumulated gradients only then they may be clipped."""
    return all(callback.step_is_due() for callback in map(inner_of, runner.callbacks.values())
               if isinstance(callback, OptimizerCallback))


def clip(runner, function):
    """Clips the gradients of the runner's models; what the function returns."""
    optimizers = runner.optimizer.values() if isinstance(runner.optimizer, dict) else [runner.optimizer]
    for optimizer in optimizers:
        if optimizer is not None:
            runner.engine.unscale_gradients(optimizer)
    return function(_parameters(runner.model))


def _rates(optimizer, key):
    """Learning rate and momentum, as metrics; key: the optimizer's or the schedule's, when there are several."""
    group, suffix = optimizer.param_groups[0], f"/{key}" if key is not None else ""
    momentum = group["betas"][0] if "betas" in group else group.get("momentum")
    rates = {f"lr{suffix}": group["lr"]}
    if momentum is not None:
        rates[f"momentum{suffix}"] = momentum
    return rates


class OptimizerCallback(IOptimizerCallback):
    """Makes the optimizer's step, and adds its learning rate and momentum to the metrics. Where no callback and
    no program makes the backward pass, it does.

    Args:
        metric_key (str): The loss's key in ``runner.batch_metrics``.
        optimizer_key (str): Which optimizer, when the runner has several.
        accumulation_steps (int): Every how many batches there is a step.
        grad_clip_fn, grad_clip_params: As for :class:`BackwardCallback`.
    """

    def __init__(self, metric_key, optimizer_key=None, accumulation_steps=1, grad_clip_fn=None,
                 grad_clip_params=None, model_key=None):
        super().__init__()
        if isinstance(accumulation_steps, bool) or not isinstance(accumulation_steps, int) or accumulation_steps < 1:
            raise ValueError(f"accumulation_steps must be an int of at least 1, not {accumulation_steps!r}")
        self.metric_key, self.optimizer_key = metric_key, optimizer_key
        self.accumulation_steps, self._count = accumulation_steps, 0
        self.grad_clip_fn = _clipping(grad_clip_fn, grad_clip_params)
        self.optimizer = self._kept = None

    def state_dict(self):
        """What is to survive restarts; the engine keeps the gradients themselves."""
        return {"count": self._count}

    def load_state_dict(self, state):
        """After a restart."""
        self._count = state["count"]

    def mark(self):
        """What :meth:`back` takes to undo a batch that comes again, as a process died; None: there is nothing to undo."""
        if self.accumulation_steps == 1:
            return None
        return self._count, self._kept and self._kept.mark()

    def back(self, mark):
        """To what :meth:`mark` gave."""
        self._count, grads = mark
        if self._kept is not None:
            self._kept.back(grads)

    def step_is_due(self):
        """Will the next batch end in a step?"""
        return (self._count + 1) % self.accumulation_steps == 0

    def on_stage_start(self, runner):
        """Takes the runner's optimizer."""
        self.optimizer = part_of(runner.optimizer, self.optimizer_key, "optimizer", type(self).__name__)
        self._alone = not any(callback_is(callback, IBackwardCallback) for callback in runner.callbacks.values())
        if self.accumulation_steps > 1:
            self._kept = runner.engine.keep_gradients(self.optimizer_key, self.optimizer,
                                                      lambda: self._count % self.accumulation_steps != 0)

    def on_stage_end(self, runner):
        """Its optimizer is the stage's."""
        if self._kept is not None:
            self._kept.forget()
            self._kept = None

    def on_batch_end(self, runner):
        """The step, in training."""
        if runner.is_train_loader:
            if self._alone and not runner.did_backward:
                loss = metric_value(runner.batch_metrics, self.metric_key, type(self).__name__, "the batch")
                runner.engine.backward(loss)
            due = self.step_is_due()
            self._count += 1
            if due:
                if self.grad_clip_fn is not None:
                    clip(runner, self.grad_clip_fn)
                runner.engine.optimizer_step(self.optimizer)
                runner.engine.zero_grad(self.optimizer)
        runner.batch_metrics.update(_rates(self.optimizer, self.optimizer_key))

    def on_loader_end(self, runner):
        """Learning rate and momentum."""
        runner.loader_metrics.update(_rates(self.optimizer, self.optimizer_key))


class SchedulerCallback(ISchedulerCallback):
    """Makes the learning-rate schedule's step.

    Args:
        scheduler_key (str): Which schedule, when the runner has several.
        mode (str): "epoch" (None is the same) or "batch": when.
        loader_key, metric_key (str): The metric that ``ReduceLROnPlateau`` goes by.
    """

    def __init__(self, scheduler_key=None, mode=None, loader_key=None, metric_key=None):
        super().__init__()
        if (loader_key is None) != (metric_key is None):
            raise ValueError(f"loader_key and metric_key go together; loader_key is {loader_key!r}, metric_key "
                             f"{metric_key!r}")
        if mode not in ("batch", "epoch", None):
            raise ValueError(f"mode must be 'batch' or 'epoch', not {mode!r}")
        self.scheduler_key, self.mode = scheduler_key, mode or "epoch"
        self.loader_key, self.metric_key = loader_key, metric_key
        self.scheduler = None

    def on_stage_start(self, runner):
        """Takes the runner's schedule."""
        self.scheduler = part_of(runner.scheduler, self.scheduler_key, "scheduler", type(self).__name__)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
        if isinstance(self.scheduler, plateau) and self.loader_key is None:
            raise ValueError("SchedulerCallback: ReduceLROnPlateau needs loader_key and metric_key "
                             "(valid_loader= and valid_metric= of train)")

    def _step(self, metrics, value=None):
        if isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            self.scheduler.step(value)
        else:
            self.scheduler.step()
        metrics.update(_rates(self.scheduler.optimizer, self.scheduler_key))

    def on_batch_end(self, runner):
        """The step of mode "batch", in training."""
        if self.mode == "batch" and runner.is_train_loader:
            self._step(runner.batch_metrics)

    def on_epoch_end(self, runner):
        """The step of mode "epoch"."""
        if self.mode != "epoch":
            return
        value = None
        if self.loader_key is not None:
            value = epoch_metric(runner, self.loader_key, self.metric_key, type(self).__name__)
        self._step(runner.epoch_metrics["_epoch_"], value)


# ---- what else ----

class EarlyStoppingCallback(Callback):
    """Ends the run when a metric has not become better for some epochs.

    Args:
        patience (int): How many.
        loader_key, metric_key (str): The metric.
        minimize (bool): Whether less is better.
        min_delta (float): By how much it has to be better to count.
    """

    def __init__(self, patience, loader_key, metric_key, minimize, min_delta=1e-6):
        super().__init__(order=CallbackOrder.External)
        self.patience, self.loader_key, self.metric_key = patience, loader_key, metric_key
        self.minimize, self.min_delta = minimize, min_delta
        self.best_score, self.num_no_improvement_epochs = None, 0

    def state_dict(self):
        """What is to survive restarts."""
        return {"best": self.best_score, "bad": self.num_no_improvement_epochs}

    def load_state_dict(self, state):
        """After a restart."""
        self.best_score, self.num_no_improvement_epochs = state["best"], state["bad"]

    def on_experiment_start(self, runner):
        """Begins anew."""
        self.best_score, self.num_no_improvement_epochs = None, 0

    def on_epoch_end(self, runner):
        """Is it better?"""
        score = epoch_metric(runner, self.loader_key, self.metric_key, type(self).__name__)
        better = not math.isnan(score) and (
            self.best_score is None or (score < self.best_score - self.min_delta if self.minimize
                                        else score > self.best_score + self.min_delta))
        if better:
            self.best_score, self.num_no_improvement_epochs = score, 0
            return
        self.num_no_improvement_epochs += 1
        if self.num_no_improvement_epochs >= self.patience:
            runner.need_early_stop = True


class TimerCallback(Callback):
    """Adds the times of each batch to its metrics: ``_timer/data_time``, ``_timer/model_time``,
    ``_timer/batch_time`` in seconds, and ``_timer/_fps``, examples per second; and their means to the
    loader's."""

    KEYS = ("_timer/data_time", "_timer/model_time", "_timer/batch_time", "_timer/_fps")

    def __init__(self):
        super().__init__(order=CallbackOrder.External)  # after backward pass and step
        self._begin = self._batch = 0.0

    def on_loader_start(self, runner):
        """Waiting for data begins."""
        self._begin = time.monotonic()

    def on_batch_start(self, runner):
        """The data is there."""
        self._batch = time.monotonic()

    def on_batch_end(self, runner):
        """The batch was handled."""
        now = time.monotonic()
        values = (self._batch - self._begin, now - self._batch, now - self._begin,
                  runner.batch_size / max(now - self._begin, 1e-9))
        for key, value in zip(self.KEYS, values):
            runner.batch_metrics[key] = value
            runner.meter.add(key, value, 1)
        self._begin = now

    def on_loader_end(self, runner):
        """The means over the loader's batches."""
        runner.loader_metrics.update({key: runner.loader_moments(key)[0] for key in self.KEYS})


class CheckRunCallback(Callback):
    """Only a few batches of a few epochs, to see that everything works.

    Args:
        num_batch_steps (int): How many batches of each loader, over all processes.
        num_epoch_steps (int): How many epochs.
    """

    def __init__(self, num_batch_steps=3, num_epoch_steps=3):
        super().__init__(order=CallbackOrder.External)
        self.num_batch_steps, self.num_epoch_steps = num_batch_steps, num_epoch_steps

    def on_batch_end(self, runner):
        """Enough batches?"""
        if runner.loader_batch_step >= self.num_batch_steps:
            runner.need_early_stop = True

    def on_epoch_end(self, runner):
        """Enough epochs?"""
        if runner.epoch_step >= self.num_epoch_steps:
            runner.need_early_stop = True


class BatchOverfitCallback(Callback):
    """The same few batches in every epoch, to see that the model can learn them by heart.

    Args:
        **kwargs: For each loader's key how many batches, an int, or which share of them, a float; one batch
            by default.
    """

    def __init__(self, **kwargs):
        super().__init__(order=CallbackOrder.Internal)
        for key, count in kwargs.items():
            if isinstance(count, bool) or not isinstance(count, (int, float)):
                raise TypeError(f"BatchOverfitCallback: {key} must be a number of batches (int) or a share of them "
                                f"(float), not {count!r}")
        self.loader_batches = kwargs
        self._limited = {}

    def on_epoch_start(self, runner):
        """Puts limited loaders in the place of the runner's."""
        for key, loader in runner.loaders.items():
            if isinstance(loader, BatchLimitLoader):
                continue
            if key not in self._limited:
                count = self.loader_batches.get(key, 1)
                count = int(len(loader) * count) if isinstance(count, float) else count
                self._limited[key] = BatchLimitLoader(loader, count)
            runner.loaders[key] = self._limited[key]

    def on_epoch_end(self, runner):
        """Gives the runner its loaders back."""
        runner.loaders = {key: getattr(loader, "origin", loader) for key, loader in runner.loaders.items()}


class PeriodicLoaderCallback(Callback):
    """Loaders that are gone over in some epochs only. Where the loader of the valid metric is left out, the
    metric is the worst possible.

    Args:
        valid_loader_key, valid_metric_key (str): The metric by which models are chosen.
        minimize (bool): Whether less is better.
        **kwargs: For a loader's key its period in epochs; 0 for never.
    """

    def __init__(self, valid_loader_key, valid_metric_key, minimize, **kwargs):
        super().__init__(order=CallbackOrder.Internal)
        for key, period in kwargs.items():
            if isinstance(period, bool) or not isinstance(period, (int, float)):
                raise TypeError(f"PeriodicLoaderCallback: the period of {key} must be a number, not {period!r}")
            if period < 0:
                raise ValueError(f"PeriodicLoaderCallback: the period of {key} must not be negative, {period}")
        self.valid_loader_key, self.valid_metric_key = valid_loader_key, valid_metric_key
        self.minimize, self.periods = minimize, {key: int(period) for key, period in kwargs.items()}
        self.loaders = {}

    def _of(self, epoch):
        return {key: loader for key, loader in self.loaders.items()
                if self.periods.get(key, 1) > 0 and epoch % self.periods.get(key, 1) == 0}

    def on_stage_start(self, runner):
        """Remembers the loaders."""
        self.loaders = dict(runner.loaders)
        unknown = set(self.periods) - set(self.loaders)
        if unknown:
            raise ValueError(f"PeriodicLoaderCallback: there is no loader {_names(unknown)}; there are: "
                             f"{_names(self.loaders)}")
        if self.periods.get(self.valid_loader_key, 1) < 1:
            raise ValueError(f"PeriodicLoaderCallback: the period of {self.valid_loader_key!r}, the loader of the valid "
                             "metric, must be above 0")
        for epoch in range(1, runner.num_epochs + 1):
            if not self._of(epoch):
                raise ValueError(f"PeriodicLoaderCallback: epoch {epoch} has no loader at all")

    def on_epoch_start(self, runner):
        """The loaders of this epoch."""
        runner.loaders = self._of(runner.epoch_step)

    def on_epoch_end(self, runner):
        """The metric of an epoch without its loader."""
        if self.valid_loader_key not in runner.loaders:
            worst = float("inf") if self.minimize else float("-inf")
            runner.epoch_metrics[self.valid_loader_key] = {self.valid_metric_key: worst}
        runner.loaders = dict(self.loaders)


class ProfilerCallback(Callback):
    """Runs PyTorch's profiler over one loop, prints what took longest, and writes a trace.

    Args:
        loader_key (str): Which loader; None: the first.
        epoch (int): In which epoch.
        num_batches (int): How many batches; None: all.
        logdir (str): Where the trace goes, for TensorBoard or Chrome's trace viewer; None: nowhere.
        profiler_kwargs (dict): For ``torch.profiler.profile``.
    """

    def __init__(self, loader_key=None, epoch=1, num_batches=None, logdir=None, profiler_kwargs=None):
        super().__init__(order=CallbackOrder.Internal)
        self.loader_key, self.epoch, self.num_batches = loader_key, epoch, num_batches
        self.logdir, self.profiler_kwargs = logdir, dict(profiler_kwargs or {})
        self.profiler, self.stats, self._count = None, None, 0

    def on_loader_start(self, runner):
        """Begins, if this is the loop."""
        wanted = self.loader_key or next(iter(runner.loaders))
        if runner.epoch_step != self.epoch or runner.loader_key != wanted or self.stats is not None \
                or not runner.engine.is_main_process:
            return
        kwargs = dict(self.profiler_kwargs)
        if self.logdir is not None:
            kwargs.setdefault("on_trace_ready", torch.profiler.tensorboard_trace_handler(self.logdir))
        self.profiler = torch.profiler.profile(**kwargs)
        self.profiler.__enter__()
        self._count = 0

    def on_batch_end(self, runner):
        """Ends after enough batches."""
        self._count += 1
        if self.num_batches is not None and self._count >= self.num_batches:
            self._finish()

    def on_loader_end(self, runner):
        """Ends with the loop."""
        self._finish()

    def _finish(self):
        if self.profiler is None:
            return
        self.profiler.__exit__(None, None, None)
        self.stats = self.profiler.key_averages().table(sort_by="cpu_time_total", row_limit=20)
        self.profiler = None
        print(self.stats, flush=True)
