from collections.abc import Iterator, Sequence
from typing import Any, Optional

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
    @classmethod
    def splits(
        cls, datasets: Sequence[Any], batch_sizes: Optional[Sequence[int]] = None, **kwargs: Any
    ) -> tuple[AdaptiveBPTTIterator, ...]: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
