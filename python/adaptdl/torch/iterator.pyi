from collections.abc import Iterator
from typing import Any

from adaptdl.torch.data import AdaptiveDataLoaderMixin

__all__: list[str]

class AdaptiveBPTTIterator(AdaptiveDataLoaderMixin):
    dataset: Any
    batch_size: int
    bptt_len: int
    device: Any
    repeat: bool
    batch_first: bool
    def __init__(self, dataset: Any, batch_size: int, bptt_len: int, **kwargs: Any) -> None: ...
    def __iter__(self) -> Iterator[Any]: ...
