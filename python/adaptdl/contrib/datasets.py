"""Data sets of images, read from the files that their authors gave out."""

import functools
import gzip
import hashlib
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request

import numpy
import torch
from torch.utils.data import Dataset

from adaptdl import _core
from adaptdl.dl.loggers import write_whole

__all__ = ["CIFAR10", "MNIST", "SyntheticImages", "make_cifar10"]

_TIMEOUT_S = 60


def _fetch(url, path, digest, kind="md5"):
    """Downloads a file, whole and with the right checksum, or raises RuntimeError that says why not."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    hasher = hashlib.new(kind)
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(path), prefix=".part-", delete=False) as part:
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as source:
                while block := source.read(1 << 20):
                    hasher.update(block)
                    part.write(block)
        except (urllib.error.URLError, OSError, TimeoutError) as error:
            os.unlink(part.name)
            raise RuntimeError(f"{_core.masked(url)} could not be downloaded ({error}); put the file into "
                               f"{os.path.dirname(path)} yourself") from error
    if hasher.hexdigest() != digest:
        os.unlink(part.name)
        raise RuntimeError(f"{_core.masked(url)}: its {kind} is {hasher.hexdigest()}, not {digest}")
    os.replace(part.name, path)


class _Images(Dataset):
    """Images [count, height, width(, channels)] of bytes, with classes."""

    def __init__(self, images, targets, transform, target_transform=None):
        self.data, self.targets = images, targets
        self.transform, self.target_transform = transform, target_transform

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        image, target = self.data[index], int(self.targets[index])
        if self.transform is not None:
            image = self.transform(image)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return image, target


class CIFAR10(_Images):
    """CIFAR-10, from its binary files: ``root`` or ``root/cifar-10-batches-bin`` has ``data_batch_1.bin`` to
    ``data_batch_5.bin`` and ``test_batch.bin``, or ``root`` has ``cifar-10-binary.tar.gz``. An example is an
    image [32, 32, 3] of bytes (an array, before ``transform``) and its class from 0 to 9.

    Args:
        root (str): The directory.
        train (bool): The training images, or those for testing.
        transform (Callable): What to make of an image.
        target_transform (Callable): What to make of a class.
        download (bool): Whether to download the archive when no files are there.

    Raises:
        FileNotFoundError: If there are no files and nothing is to be downloaded.
        RuntimeError: If the download fails.
        ValueError: If a file is damaged.
    """

    URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
    MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
    FOLDER = "cifar-10-batches-bin"
    TRAIN, TEST = tuple(f"data_batch_{number}.bin" for number in range(1, 6)), ("test_batch.bin",)
    _RECORD = 1 + 32 * 32 * 3

    def __init__(self, root, train=True, transform=None, target_transform=None, download=False):
        self.root, self.train = os.path.expanduser(root), train
        folder = self._folder(download)
        found = [self._read(os.path.join(folder, name)) for name in (self.TRAIN if train else self.TEST)
                 if os.path.exists(os.path.join(folder, name))]
        records = numpy.concatenate(found)
        images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        super().__init__(numpy.ascontiguousarray(images), records[:, 0].astype("int64"), transform, target_transform)

    def _missing(self, folder):
        """Which of the files is the first that is not there; None: all are."""
        names = self.TRAIN if self.train else self.TEST
        return next((name for name in names if not os.path.exists(os.path.join(folder, name))), None)

    def _folder(self, download):
        places = [self.root, os.path.join(self.root, self.FOLDER)]
        missing = [self._missing(place) for place in places]
        if None in missing:
            return places[missing.index(None)]
        archive = os.path.join(self.root, os.path.basename(self.URL))
        if not os.path.exists(archive):
            if not download:
                raise FileNotFoundError(f"CIFAR10: there is no {max(missing)} in {' or '.join(places)}; "
                                        "download=True gets it")
            _fetch(self.URL, archive, self.MD5)
        self._unpack(archive)
        return places[1]

    def _unpack(self, archive):
        """The files that belong to it, and no others."""
        os.makedirs(os.path.join(self.root, self.FOLDER), exist_ok=True)
        with tarfile.open(archive) as packed:
            for name in self.TRAIN + self.TEST:
                source = packed.extractfile(f"{self.FOLDER}/{name}")
                write_whole(os.path.join(self.root, self.FOLDER, name), functools.partial(shutil.copyfileobj, source), "wb")

    def _read(self, path):
        raw = numpy.fromfile(path, dtype="uint8")
        if len(raw) == 0 or len(raw) % self._RECORD:
            raise ValueError(f"{path}: {len(raw)} bytes are no whole number of images of {self._RECORD}; not a file of "
                             "CIFAR-10, or not all of it")
        records = raw.reshape(-1, self._RECORD)
        if records[:, 0].max() > 9:
            raise ValueError(f"{path}: an image of class {records[:, 0].max()}; there are 0 to 9")
        return records


class MNIST(_Images):
    """MNIST, from its IDX files, packed (``.gz``) or not, in ``root``, ``root/mnist`` or ``root/MNIST/raw``. An
    example is an image [28, 28] of bytes (an array, before ``transform``) and its class from 0 to 9.

    Args:
        root (str): The directory.
        train (bool): The training images, or those for testing.
        transform (Callable): What to make of an image.
        target_transform (Callable): What to make of a class.
        download (bool): Whether to download the files when they are not there.

    Raises:
        FileNotFoundError, RuntimeError, ValueError: As for :class:`CIFAR10`.
    """

    URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
    MD5 = {"train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
           "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
           "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
           "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c"}

    def __init__(self, root, train=True, transform=None, target_transform=None, download=False):
        self.root, self.train = os.path.expanduser(root), train
        kind = "train" if train else "t10k"
        images = self._read(f"{kind}-images-idx3-ubyte", 3, download)
        targets = self._read(f"{kind}-labels-idx1-ubyte", 1, download)
        if len(images) != len(targets):
            raise ValueError(f"MNIST in {self.root}: {len(images)} images and {len(targets)} labels")
        super().__init__(images, targets.astype("int64"), transform, target_transform)

    def _read(self, name, dimensions, download):
        places = [os.path.join(self.root, *parts) for parts in ((), ("mnist",), ("MNIST", "raw"))]
        for path in (os.path.join(place, name + end) for place in places for end in ("", ".gz")):
            if os.path.exists(path):
                return self._parse(path, dimensions)
        if not download:
            raise FileNotFoundError(f"MNIST: there is no {name} in {', '.join(places)}; download=True gets it")
        path = os.path.join(places[2], f"{name}.gz")
        _fetch(self.URL + name + ".gz", path, self.MD5[name])
        return self._parse(path, dimensions)

    @staticmethod
    def _parse(path, dimensions):
        with (gzip.open(path) if path.endswith(".gz") else open(path, "rb")) as file:
            raw = file.read()
        head = 4 + 4 * dimensions
        shape = [int.from_bytes(raw[place:place + 4], "big") for place in range(4, head, 4)]
        size = 1
        for length in shape:
            size *= length
        if raw[:4] != bytes([0, 0, 8, dimensions]) or len(raw) != head + size:
            raise ValueError(f"{path}: not a file of MNIST, or not all of it")
        return numpy.frombuffer(raw, dtype="uint8", offset=head).reshape(shape)


class SyntheticImages(_Images):
    """Generated images with classes that can be learned: each class has a coarse pattern of its own, with noise
    over it.

    Args:
        count (int): How many.
        size (int): Height and width.
        channels (int): How many channels.
        num_classes (int): How many classes.
        seed (int): Another one makes other noise, and the same patterns.
        transform (Callable): What to make of an image.
    """

    def __init__(self, count, size=32, channels=3, num_classes=10, seed=0, transform=None):
        coarse = torch.rand(num_classes, channels, 2, 2, generator=torch.Generator().manual_seed(20))
        patterns = torch.nn.functional.interpolate(coarse, (size, size)).permute(0, 2, 3, 1)
        generator = torch.Generator().manual_seed(seed)
        targets = torch.randint(num_classes, (count,), generator=generator)
        noise = torch.rand(count, size, size, channels, generator=generator)
        images = patterns[targets].mul(128).add_(noise, alpha=127).to(torch.uint8)
        super().__init__(images.numpy(), targets.numpy(), transform)


def make_cifar10(root, train=1000, test=200):
    """Writes generated images as files of CIFAR-10, in ``root/cifar-10-batches-bin``. Files that are there are
    left as they are.

    Args:
        root (str): The directory.
        train (int): How many images for training, in five files.
        test (int): How many for testing.

    Returns:
        str: The directory of the files.
    """
    folder = os.path.join(root, CIFAR10.FOLDER)
    os.makedirs(folder, exist_ok=True)
    parts = [(name, -(-train // 5), number) for number, name in enumerate(CIFAR10.TRAIN)] + [(CIFAR10.TEST[0], test, 5)]
    for name, count, seed in parts:
        path = os.path.join(folder, name)
        if not os.path.exists(path):
            images = SyntheticImages(count, seed=seed)
            planes = images.data.transpose(0, 3, 1, 2).reshape(count, -1)
            data = numpy.concatenate([images.targets.astype("uint8")[:, None], planes], axis=1)
            write_whole(path, data.tofile, "wb")
    return folder
