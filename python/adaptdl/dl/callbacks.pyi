from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Optional, Union

from torch import Tensor

from adaptdl.dl.callback import (
    Callback, IBackwardCallback, ICriterionCallback, IMetricCallback, IOptimizerCallback, ISchedulerCallback,
)
from adaptdl.dl.runner import IRunner

__all__: list[str]

_Keys = Union[str, Sequence[str], Mapping[str, str]]
_Clip = Optional[Union[str, Callable[..., Any]]]

def accuracy(outputs: Tensor, targets: Tensor, topk: Sequence[int] = ...) -> list[Tensor]: ...
def batch_value(runner: IRunner, key: str, who: str) -> Any: ...
def metric_value(metrics: Mapping[str, Any], key: str, who: str, where: str) -> Any: ...
def epoch_metric(runner: IRunner, loader_key: Optional[str], metric_key: str, who: str) -> float: ...
def first_of(runner: IRunner, value: Any, count: int) -> Any: ...
def part_of(value: Any, key: Optional[str], what: str, who: str) -> Any: ...
def clip(runner: IRunner, function: Callable[..., Any]) -> Any: ...

class FunctionalMetricCallback(IMetricCallback):
    metric_key: str
    def __init__(self, input_key: _Keys, target_key: _Keys, metric_fn: Optional[Callable[..., Any]], metric_key: str,
                 log_on_batch: bool = True, prefix: Optional[str] = None, suffix: Optional[str] = None,
                 compute_on_call: bool = True) -> None: ...
    def compute(self, runner: IRunner, count: Optional[int] = None) -> Any: ...

class CriterionCallback(FunctionalMetricCallback, ICriterionCallback):
    def __init__(self, input_key: _Keys, target_key: _Keys, metric_key: str, criterion_key: Optional[str] = None,
                 prefix: Optional[str] = None, suffix: Optional[str] = None) -> None: ...

class AccuracyCallback(IMetricCallback):
    topk: tuple[int, ...]
    keys: list[str]
    def __init__(self, input_key: str, target_key: str, topk: Optional[Union[int, Iterable[int]]] = None,
                 num_classes: Optional[int] = None, log_on_batch: bool = True, prefix: Optional[str] = None,
                 suffix: Optional[str] = None, topk_args: Optional[Iterable[int]] = None) -> None: ...

class MetricAggregationCallback(Callback):
    def __init__(self, metric_key: str, metrics: Optional[Union[str, list[str], dict[str, float]]] = None,
                 mode: Union[str, Callable[..., Any]] = "mean", scope: str = "batch",
                 multiplier: float = 1.0) -> None: ...

class BackwardCallback(IBackwardCallback):
    def __init__(self, metric_key: str, grad_clip_fn: _Clip = None, grad_clip_params: Optional[dict[str, Any]] = None,
                 log_gradient: bool = False) -> None: ...

class OptimizerCallback(IOptimizerCallback):
    accumulation_steps: int
    def __init__(self, metric_key: str, optimizer_key: Optional[str] = None, accumulation_steps: int = 1,
                 grad_clip_fn: _Clip = None, grad_clip_params: Optional[dict[str, Any]] = None,
                 model_key: Optional[str] = None) -> None: ...
    def step_is_due(self) -> bool: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...

class SchedulerCallback(ISchedulerCallback):
    def __init__(self, scheduler_key: Optional[str] = None, mode: Optional[str] = None,
                 loader_key: Optional[str] = None, metric_key: Optional[str] = None) -> None: ...

class EarlyStoppingCallback(Callback):
    best_score: Optional[float]
    num_no_improvement_epochs: int
    def __init__(self, patience: int, loader_key: str, metric_key: str, minimize: bool,
                 min_delta: float = 1e-6) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...

class TimerCallback(Callback):
    KEYS: tuple[str, ...]
    def __init__(self) -> None: ...

class CheckRunCallback(Callback):
    def __init__(self, num_batch_steps: int = 3, num_epoch_steps: int = 3) -> None: ...

class BatchOverfitCallback(Callback):
    def __init__(self, **kwargs: Union[int, float]) -> None: ...

class PeriodicLoaderCallback(Callback):
    def __init__(self, valid_loader_key: str, valid_metric_key: str, minimize: bool,
                 **kwargs: Union[int, float]) -> None: ...

class ProfilerCallback(Callback):
    stats: Optional[str]
    def __init__(self, loader_key: Optional[str] = None, epoch: int = 1, num_batches: Optional[int] = None,
                 logdir: Optional[str] = None, profiler_kwargs: Optional[dict[str, Any]] = None) -> None: ...
