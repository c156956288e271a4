from os import PathLike
from typing import Any, Optional, Union

from adaptdl.dl.callback import ICheckpointCallback
from adaptdl.dl.runner import IRunner

__all__: list[str]

def load_checkpoint(path: str, trusted: bool = False) -> Any: ...
def pack_checkpoint(runner: IRunner) -> dict[str, Any]: ...
def unpack_checkpoint(runner: IRunner, checkpoint: Any, path: str, parts: tuple[str, ...] = ...) -> bool: ...

class CheckpointCallback(ICheckpointCallback):
    def __init__(self, logdir: Union[str, PathLike[str]], loader_key: Optional[str] = None,
                 metric_key: Optional[str] = None, minimize: Optional[bool] = None, topk: int = 1,
                 mode: str = "model", save_last: bool = True, save_best: bool = True,
                 resume_model: Optional[str] = None, resume_runner: Optional[str] = None,
                 load_best_on_end: bool = False) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...
