"""What the programs of this folder share: a small network for images of 32 x 32 pixels, and their options."""

import argparse

from torch import nn

from adaptdl.contrib import CIFAR10, Compose, ImageToTensor, NormalizeImage, ResidualBlock, make_cifar10


def conv_block(inputs, outputs, pool=False):
    """A convolution, with half the size after it if ``pool``."""
    layers = [nn.Conv2d(inputs, outputs, kernel_size=3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, *([nn.MaxPool2d(2)] if pool else []))


def resnet9(classes=10, width=16):
    """Nine layers, two blocks of them with what came in added to what goes out."""
    return nn.Sequential(
        conv_block(3, width),
        conv_block(width, 2 * width, pool=True),
        ResidualBlock(nn.Sequential(conv_block(2 * width, 2 * width), conv_block(2 * width, 2 * width))),
        conv_block(2 * width, 4 * width, pool=True),
        conv_block(4 * width, 8 * width, pool=True),
        ResidualBlock(nn.Sequential(conv_block(8 * width, 8 * width), conv_block(8 * width, 8 * width))),
        nn.MaxPool2d(4), nn.Flatten(), nn.Dropout(0.2), nn.Linear(8 * width, classes))


def options(description):
    """The command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", default="data", help="directory of CIFAR-10's binary files")
    parser.add_argument("--generate", type=int, default=0, help="write so many generated images there first")
    parser.add_argument("--logdir", default="logs")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()
    if args.generate:
        make_cifar10(args.data, args.generate, args.generate // 4)
    return args


def images(folder, train):
    """CIFAR-10 as tensors from -1 to 1."""
    transform = Compose([ImageToTensor(), NormalizeImage((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))])
    return CIFAR10(folder, train=train, download=True, transform=transform)
