"""MNIST, or digits that look like it, as a PyTorch data set.

Reads the four IDX files of MNIST from a directory. `tools/get-mnist DIR` fetches the real ones,
`make_digits DIR` generates some.
"""

import os
import sys

import torch

_NAMES = {True: "train", False: "t10k"}
# Kind, magic number, bytes of the header, bytes of an item.
_FILES = (("images-idx3", 2051, 16, 28 * 28), ("labels-idx1", 2049, 8, 1))


def _read(directory, train, kind, magic, header, size):
    path = os.path.join(directory, "{}-{}-ubyte".format(_NAMES[train], kind))
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        sys.exit("{}: {} (tools/get-mnist fetches MNIST, make_digits generates digits)".format(
            path, error.strerror))
    count = int.from_bytes(data[4:8], "big")
    if int.from_bytes(data[:4], "big") != magic or len(data) != header + count * size:
        sys.exit("{}: not a file of MNIST, or not all of it".format(path))
    return torch.frombuffer(bytearray(data[header:]), dtype=torch.uint8), count


def mnist(directory, train):
    """The training or the test part: images normalised as usual, [n, 1, 28, 28], and labels."""
    (images, count), (labels, _) = (_read(directory, train, *file) for file in _FILES)
    images = images.reshape(count, 1, 28, 28).float().div_(255).sub_(0.1307).div_(0.3081)
    return torch.utils.data.TensorDataset(images, labels.long())
