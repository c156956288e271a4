from typing import Any, Optional

import torch

__all__: list[str]

class AdaptDLTorchTrainer:
    def __init__(
        self,
        batch_size: int,
        max_batch_size: Optional[int] = None,
        local_bsz_bounds: Optional[tuple[Optional[int], Optional[int]]] = None,
    ) -> None: ...
    def program_reentry(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, lr_scheduler: Any = None
    ) -> Any: ...
    def get_local_bsz(self) -> int: ...
    def step(self, epoch: int, *args: Any, **kwargs: Any) -> None: ...
