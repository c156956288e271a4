from typing import Any, Union

import torch

from adaptdl.dl.checkpoint import load_checkpoint as load_checkpoint
from adaptdl.dl.engine import Engine
from adaptdl.dl.runner import set_global_seed as set_global_seed

__all__: list[str]

def any2device(value: Any, device: Any) -> Any: ...
def get_available_engine(cpu: bool = False, fp16: Union[bool, str] = False, ddp: bool = False,
                         amp: Union[bool, str] = False, apex: bool = False) -> Engine: ...
def get_device() -> torch.device: ...
