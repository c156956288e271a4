from torch import Tensor, nn

__all__: list[str]

class ResidualBlock(nn.Module):
    block: nn.Module
    def __init__(self, block: nn.Module) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...
