from collections.abc import Iterator
from os import PathLike
from typing import Any, Optional, Union

from adaptdl.dl.callback import Callbacks
from adaptdl.dl.engine import Engine
from adaptdl.dl.runner import IRunner

__all__: list[str]

class Runner(IRunner):
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def train(self, *, loaders: Any = None, model: Any = None, engine: Optional[Engine] = None, criterion: Any = None,
              optimizer: Any = None, scheduler: Any = None, callbacks: Callbacks = None,
              loggers: Optional[dict[str, Any]] = None, seed: int = 42, hparams: Optional[dict[str, Any]] = None,
              num_epochs: int = 1, logdir: Optional[Union[str, PathLike[str]]] = None, resume: Optional[str] = None,
              valid_loader: Optional[str] = None, valid_metric: Optional[str] = None,
              minimize_valid_metric: Optional[bool] = None, verbose: bool = False, timeit: bool = False,
              check: bool = False, overfit: bool = False, profile: bool = False, load_best_on_end: bool = False,
              cpu: bool = False, fp16: Union[bool, str] = False, ddp: bool = False, amp: Union[bool, str] = False,
              apex: bool = False, trial: Any = None, max_batch_size: Optional[int] = None,
              local_bsz_bounds: Optional[tuple[Optional[int], Optional[int]]] = None,
              gradient_accumulation: bool = False) -> None: ...
    def predict_batch(self, batch: Any, **kwargs: Any) -> Any: ...
    def predict_loader(self, *, loader: Any, model: Any = None, engine: Optional[Engine] = None, seed: int = 42,
                       resume: Optional[str] = None, cpu: bool = False, fp16: Union[bool, str] = False,
                       amp: Union[bool, str] = False) -> Iterator[Any]: ...
    def evaluate_loader(self, loader: Any, callbacks: Callbacks = None, model: Any = None,
                        engine: Optional[Engine] = None, seed: int = 42, verbose: bool = False) -> dict[str, Any]: ...

_Key = Union[None, str, list[str], tuple[str, ...]]

class ISupervisedRunner(Runner):
    def __init__(self, input_key: _Key = "features", output_key: _Key = "logits", target_key: str = "targets",
                 loss_key: str = "loss", **kwargs: Any) -> None: ...
    def forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]: ...

class SupervisedRunner(ISupervisedRunner):
    def __init__(self, model: Any = None, engine: Optional[Engine] = None, input_key: _Key = "features",
                 output_key: _Key = "logits", target_key: str = "targets", loss_key: str = "loss") -> None: ...
