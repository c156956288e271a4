from typing import Any, Optional, Union

import torch

from adaptdl import checkpoint
from adaptdl.dl.engine import Engine
from adaptdl.dl.runner import IRunner

__all__: list[str]

def launched() -> bool: ...

class RunnerState(checkpoint.State):
    def __init__(self, runner: IRunner) -> None: ...
    def finish(self) -> None: ...

class ElasticEngine(Engine):
    autoscale: Optional[tuple[Any, ...]]
    def __init__(self, device: Optional[str] = None, amp: Union[None, bool, str, torch.dtype] = None,
                 backend: Optional[str] = None, scaling_rule: Any = None,
                 ddp_kwargs: Optional[dict[str, Any]] = None) -> None: ...
    @classmethod
    def like(cls, engine: Engine) -> ElasticEngine: ...
    @property
    def backend(self) -> str: ...
    def used(self, count: int) -> None: ...
