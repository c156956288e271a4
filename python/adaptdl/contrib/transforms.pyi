from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

__all__: list[str]

class Compose:
    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None: ...
    def __call__(self, image: Any) -> Any: ...

class ImageToTensor:
    def __call__(self, image: Any) -> Tensor: ...

class NormalizeImage:
    def __init__(self, mean: Sequence[float], std: Sequence[float], inplace: bool = False) -> None: ...
    def __call__(self, image: Tensor) -> Tensor: ...
