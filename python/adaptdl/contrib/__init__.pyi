from adaptdl.contrib.datasets import (
    CIFAR10 as CIFAR10, MNIST as MNIST, SyntheticImages as SyntheticImages, make_cifar10 as make_cifar10,
)
from adaptdl.contrib.layers import ResidualBlock as ResidualBlock
from adaptdl.contrib.transforms import (
    Compose as Compose, ImageToTensor as ImageToTensor, NormalizeImage as NormalizeImage,
)

__all__: list[str]
