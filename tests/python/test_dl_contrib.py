#!/usr/bin/python3
"""Data sets and transforms of adaptdl.contrib."""

import concurrent.futures
import os
import pathlib
import tarfile

import harness

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from adaptdl import contrib  # noqa: E402


def test_images(tmp_path):
    transform = contrib.Compose([contrib.ImageToTensor(), contrib.NormalizeImage((0.5,) * 3, (0.5,) * 3)])
    contrib.make_cifar10(tmp_path, train=10, test=4)
    for train_part, count in ((True, 10), (False, 4)):
        found = contrib.CIFAR10(str(tmp_path), train=train_part, download=True, transform=transform)
        image, target = found[0]
        assert len(found) == count and image.shape == (3, 32, 32) and -1 <= image.min() and image.max() <= 1
        assert 0 <= target <= 9
        raw = found.data[0]
        assert image[2, 5, 7].item() == pytest.approx((raw[5, 7, 2] / 255 - 0.5) / 0.5, abs=1e-6)
    block = contrib.ResidualBlock(nn.Identity())
    assert torch.equal(block(torch.ones(2)), torch.full((2,), 2.0))


def at_once(work, times=8):
    """What so many threads that do it together raise."""
    with concurrent.futures.ThreadPoolExecutor(times) as pool:
        done = [pool.submit(work) for _ in range(times)]
        return [error for error in (one.exception() for one in done) if error]


def test_replicas_make_the_files_together(tmp_path):
    """A replica finds files that another is making whole, or not at all."""
    size, damaged = 1000 * 3073, []

    def make(root):
        contrib.make_cifar10(root, train=5000, test=1000)
        damaged.extend(path for path in pathlib.Path(root).glob("*/*.bin") if path.stat().st_size != size)

    for attempt in range(10):
        assert not at_once(lambda: make(tmp_path / str(attempt)), 4)
    assert not damaged
    folder = tmp_path / "0" / contrib.CIFAR10.FOLDER
    assert sorted(os.listdir(folder)) == sorted(contrib.CIFAR10.TRAIN + contrib.CIFAR10.TEST)
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz", compresslevel=1) as packed:
        packed.add(folder, contrib.CIFAR10.FOLDER)
    assert not at_once(lambda: contrib.CIFAR10(str(tmp_path)))
    assert len(contrib.CIFAR10(str(tmp_path))) == 5000


def test_wrong_image_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no data_batch_1.bin in .*; download=True gets it"):
        contrib.CIFAR10(str(tmp_path))
    folder = pathlib.Path(contrib.make_cifar10(tmp_path, train=10, test=4))
    (folder / "test_batch.bin").write_bytes(b"12345")
    (folder / "data_batch_4.bin").unlink()
    with pytest.raises(FileNotFoundError, match="there is no data_batch_4.bin in .*; download=True gets it"):
        contrib.CIFAR10(str(tmp_path))
    with pytest.raises(ValueError, match="test_batch.bin: 5 bytes are no whole number of images"):
        contrib.CIFAR10(str(tmp_path), train=False)
    (folder / "test_batch.bin").write_bytes(b"\x0b" * 3073)
    with pytest.raises(ValueError, match="an image of class 11"):
        contrib.CIFAR10(str(tmp_path), train=False)
    with pytest.raises(ValueError, match="shape .2, 4, 4., with 3 channels"):
        contrib.NormalizeImage((0, 0, 0), (1, 1, 1))(torch.zeros(2, 4, 4))


def test_downloads_are_checked(tmp_path, monkeypatch):
    source = tmp_path / "source.tar.gz"
    source.write_bytes(b"not it")
    monkeypatch.setattr(contrib.CIFAR10, "URL", source.as_uri())
    with pytest.raises(RuntimeError, match="its md5 is .* not c32a1d4ab5d03f1284b67883e8d87530"):
        contrib.CIFAR10(str(tmp_path / "data"), download=True)
    monkeypatch.setattr(contrib.CIFAR10, "URL", (tmp_path / "gone.tar.gz").as_uri())
    with pytest.raises(RuntimeError, match="gone.tar.gz could not be downloaded .*; put the file into"):
        contrib.CIFAR10(str(tmp_path / "data"), download=True)
    assert not [name for name in os.listdir(tmp_path / "data") if name.startswith(".part")]


def test_mnist(tmp_path):
    images, labels = bytes(range(0, 2 * 28 * 28 % 256)), bytes([3, 7])
    raw = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (2, 28, 28)) + bytes(2 * 784)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(raw)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + (2).to_bytes(4, "big") + labels)
    found = contrib.MNIST(str(tmp_path), transform=contrib.ImageToTensor())
    assert len(found) == 2 and found[1][1] == 7 and found[0][0].shape == (1, 28, 28) and images is not None
    (tmp_path / "train-images-idx3-ubyte").write_bytes(raw[:-1])
    with pytest.raises(ValueError, match="train-images-idx3-ubyte: not a file of MNIST, or not all of it"):
        contrib.MNIST(str(tmp_path))
    with pytest.raises(FileNotFoundError, match="there is no t10k-images-idx3-ubyte"):
        contrib.MNIST(str(tmp_path), train=False)


if __name__ == "__main__":
    harness.main(__file__)
