"""Layers."""

from torch import nn

__all__ = ["ResidualBlock"]


class ResidualBlock(nn.Module):
    """``x + block(x)``.

    Args:
        block (torch.nn.Module): What is added; its output is of its input's shape.
    """

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        """The sum.

        Args:
            x (Tensor): The input.
        """
        return x + self.block(x)
