from collections.abc import Callable
from typing import Any, Optional

from torch.utils.data import Dataset

__all__: list[str]

_Transform = Optional[Callable[[Any], Any]]

class _Images(Dataset[Any]):
    data: Any
    targets: Any
    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> tuple[Any, Any]: ...

class CIFAR10(_Images):
    def __init__(self, root: str, train: bool = True, transform: _Transform = None,
                 target_transform: _Transform = None, download: bool = False) -> None: ...

class MNIST(_Images):
    def __init__(self, root: str, train: bool = True, transform: _Transform = None,
                 target_transform: _Transform = None, download: bool = False) -> None: ...

class SyntheticImages(_Images):
    def __init__(self, count: int, size: int = 32, channels: int = 3, num_classes: int = 10, seed: int = 0,
                 transform: _Transform = None) -> None: ...

def make_cifar10(root: Any, train: int = 1000, test: int = 200) -> str: ...
