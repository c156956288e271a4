"""What the tests of adaptdl.dl share: small data, a small model, programs in processes of their own, event files
read back."""

import csv
import glob
import os
import pathlib
import re
import signal
import struct
import subprocess
import threading

import harness

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

RIGHT = dict(valid_loader="valid", valid_metric="loss", minimize_valid_metric=True)


def data(count=96, seed=0):
    """Points with one of four classes."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 8, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long())


def loaders(train=96, valid=40, batch_size=16):
    return {"train": DataLoader(data(train), batch_size=batch_size),
            "valid": DataLoader(data(valid, 1), batch_size=batch_size)}


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def parts(lr=0.05):
    """Model, criterion and optimizer for train(**parts())."""
    model = network()
    return {"model": model, "criterion": nn.CrossEntropyLoss(),
            "optimizer": torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)}


def train(runner=None, **kwargs):
    """A small training, with what is given instead of its parts; the runner."""
    from adaptdl import dl
    runner = runner or dl.SupervisedRunner()
    runner.train(**{**parts(), "loaders": loaders(), "num_epochs": 2, **kwargs})
    return runner


def scripted(values):
    """A metric with given values in the epochs."""
    from adaptdl import dl

    class Scripted(dl.Callback):
        def on_epoch_end(self, runner):
            runner.epoch_metrics["valid"]["m"] = values[runner.epoch_step - 1]
    return Scripted(order=dl.CallbackOrder.Internal)


def losses(runner):
    """Per epoch the losses of train and valid."""
    return [{key: metrics[key]["loss"] for key in ("train", "valid")}
            for _, metrics in sorted(runner.experiment_metrics.items())]


def near(found, wanted):
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted):
        assert a == pytest.approx(b, abs=1e-6)


# ---- programs ----

WAIT_S = 350
BIN = pathlib.Path(os.environ.get("ADAPTDL_BIN", harness.ROOT / "build" / "release" / "bin"))

COMMON = f"""
import json, os, signal, sys, time
sys.path.insert(0, {str(pathlib.Path(__file__).resolve().parent)!r})
import torch
from torch import nn
from torch.utils.data import DataLoader
from adaptdl import dl
from dl_common import RIGHT, data, loaders, network, parts
"""


def program(folder, code):
    path = folder / "program.py"
    path.write_text(COMMON + code)
    return path


def start(*command, **variables):
    # Buffered: what print(..., flush=True) says is written at once, and not torn by other processes.
    env = harness.environment(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive", **variables)
    return subprocess.Popen([str(word) for word in command], env=env, text=True, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)


def run(*command, status=0, **variables):
    process = start(*command, **variables)
    try:
        text, _ = process.communicate(timeout=WAIT_S)
    finally:
        end(process)
    assert process.returncode == status, f"exit status {process.returncode}, not {status}\n{text}"
    return text


def end(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


class Lines:
    """A process's output, as it comes."""

    def __init__(self, process):
        self.process, self.lines, self.news = process, [], threading.Condition()
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self):
        for line in self.process.stdout:
            with self.news:
                self.lines.append(line.rstrip("\n"))
                self.news.notify_all()

    def wait_for(self, pattern, after=0):
        """Until a line after so many has it; how many lines there were then."""
        def found():
            return next((n + 1 for n, line in enumerate(self.lines) if n >= after and re.search(pattern, line)), None)
        with self.news:
            place = self.news.wait_for(lambda: found() or not self.thread.is_alive(), WAIT_S) and found()
        assert place, f"no line with {pattern!r}\n" + self.text()
        return place

    def text(self):
        return "\n".join(self.lines)


# ---- files ----

def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def _fields(data):
    """The fields of a message of Protocol Buffers: (number, value) with bytes for nested ones."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        if key & 7 == 0:
            value, place = _varint(data, place)
        else:
            size, place = {1: lambda: (8, place), 5: lambda: (4, place), 2: lambda: _varint(data, place)}[key & 7]()
            value, place = data[place:place + size], place + size
        yield key >> 3, value


def _varint(data, place):
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place


def events(folder):
    """[(step, tag, value)] of a directory's event files, in the order of files and of writing."""
    found = []
    for path in sorted(glob.glob(os.path.join(glob.escape(str(folder)), "events.out.tfevents.*")), key=os.path.getmtime):
        with open(path, "rb") as file:
            raw = file.read()
        place = 0
        while place < len(raw):
            size, = struct.unpack_from("<Q", raw, place)
            event = list(_fields(raw[place + 12:place + 12 + size]))
            place += 16 + size
            step = dict(event).get(2, 0)
            for number, summary in event:
                if number == 5:
                    found += [(step, *_scalar(value)) for _, value in _fields(summary)]
        assert place == len(raw), path
    return found


def _scalar(value):
    fields = dict(_fields(value))
    return fields[1].decode(), struct.unpack("<f", fields[2])[0] if 2 in fields else None
