from typing import Any, Callable, Optional

import torch
from torch.nn.parallel import DistributedDataParallel

from adaptdl.torch.gradient_noise_scale import GradientNoiseScale
from adaptdl.torch.scaling_rules import ScalingRuleBase

__all__: list[str]

class AdaptiveDataParallel(DistributedDataParallel):
    name: str
    gns: GradientNoiseScale
    scaling_rule: ScalingRuleBase
    training: bool
    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: Any = None,
        mp_scaler: Any = None,
        scaling_rule: Optional[ScalingRuleBase] = None,
        name: str = "adaptdl-dataparallel",
        **kwargs: Any,
    ) -> None: ...
    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None: ...
    def forward(self, *args: Any, **kwargs: Any) -> Any: ...
    def zero_grad(self, *args: Any, **kwargs: Any) -> None: ...
    @property
    def gain(self) -> float: ...
    def to_tensorboard(self, writer: Any, global_step: int, tag_prefix: str = "") -> None: ...
