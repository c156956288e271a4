"""Data sets, transforms and layers for examples and first steps.

Data sets read files that are there; ``download=True`` gets them where they can be had, and checks them.
:func:`make_cifar10` writes generated images in CIFAR-10's format, so that a program can be tried without
a download."""

from adaptdl.contrib.datasets import CIFAR10, MNIST, SyntheticImages, make_cifar10
from adaptdl.contrib.layers import ResidualBlock
from adaptdl.contrib.transforms import Compose, ImageToTensor, NormalizeImage

__all__ = ["CIFAR10", "Compose", "ImageToTensor", "MNIST", "NormalizeImage", "ResidualBlock", "SyntheticImages",
           "make_cifar10"]
