#!/usr/bin/python3
"""Checkpoints in the original package's format: taken over, or refused by name; nothing in them is executed."""

import collections
import io
import logging
import os
import pickle
import tempfile

import harness
import pytest
import torch
import torch_fork
from torch import nn
from torch.utils.data import TensorDataset

import adaptdl.torch as adl
from adaptdl import _original, checkpoint


class Mine(checkpoint.State):
    value = None

    def load(self, fileobj):
        self.value = pickle.load(fileobj)

    def save(self, fileobj):
        pickle.dump(self.value, fileobj)


os.environ.setdefault("EVIL", os.path.join(tempfile.gettempdir(), f"adaptdl-executed-{os.getpid()}"))


class Evil:
    def __reduce__(self):
        return os.mkdir, (os.environ["EVIL"],)


def parts():
    torch.manual_seed(1)
    net = nn.Linear(1, 1)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    return net, optimizer, torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 9])


def write(folder, restarts=3, **changes):
    """A checkpoint as the original leaves it: in epoch 2 of a program with two loaders, the first one's loop done,
    the second's at example 4. Keywords replace a file's bytes; dashes are written as underscores."""
    numpy = pytest.importorskip("numpy")
    net, optimizer, schedule = parts()
    for _ in range(3):
        net(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        schedule.step()
    saved = optimizer.state_dict()
    saved["state"]["gns"] = {"progress": 12.5, "prev_scale": 1.0, "sqr_avg": numpy.ones(1),
                             "var_avg": numpy.zeros(1), "biased": True}
    directory = os.path.join(folder, f"checkpoint-{restarts}")
    os.mkdir(directory)
    os.mkdir(os.path.join(folder, "_checkpoint"))  # a save that was interrupted
    torch.save(([net.state_dict(), saved, schedule.state_dict(), None], 1.0, 1.0),
               os.path.join(directory, "adaptdl-dataparallel"))
    history = collections.defaultdict(list)
    history[2].append({"sum": 7})
    files = {".adaptdl-epoch": 2, "adaptdl-dataloader-epochNone-0": (0, 0, {0: 0, 1: 0, 2: 0}),
             "adaptdl-dataloader-epochNone-1": (4, 0, {0: 1, 1: 1}),
             "adaptdl-accumulator-epochNone-0": (history, {"sum": 100, ("a", 1): numpy.arange(3)}),
             "adaptdl-metrics": None, "mine": {"own": "state"}, "x" * 120: 5}
    for name, value in files.items():
        with open(os.path.join(directory, name), "wb") as file:
            pickle.dump(value, file)
    for name, data in changes.items():
        name = ".adaptdl-epoch" if name == "epoch" else name.replace("_", "-")
        with open(os.path.join(directory, name), "wb") as file:
            file.write(data)
    return {name: value.clone() for name, value in net.state_dict().items()}


def program(epochs):
    """What the original's program would do with it."""
    adl.init_process_group("gloo")
    net, optimizer, schedule = parts()
    model = adl.AdaptiveDataParallel(net, optimizer, schedule)
    mine, long = Mine("mine"), Mine("x" * 120)
    loaders = [adl.AdaptiveDataLoader(TensorDataset(torch.arange(count)), batch_size=2) for count in (6, 8)]
    accum, seen = adl.Accumulator(), []
    begin = {"weight": net.weight.item(), "epochs": adl.finished_epochs(), "lr": optimizer.param_groups[0]["lr"],
             "steps": [int(state["step"]) for state in optimizer.state.values()], "schedule": schedule.last_epoch,
             "mine": checkpoint.load_state(mine) and mine.value, "long": checkpoint.load_state(long) and long.value,
             "progress": model.gns.get_progress()}
    for epoch in adl.remaining_epochs_until(epochs):
        for loader in loaders:
            seen.append((epoch, [number for (batch,) in loader for number in batch.tolist()]))
        with accum.synchronized():
            seen.append(dict(accum))
        accum["sum"] += 1
        with accum.synchronized():
            seen.append(dict(accum))
    return begin, seen


def restore(folder, epochs=3, status=0, replicas=1):
    return torch_fork.replicas(replicas, program, epochs, status=status, ADAPTDL_CHECKPOINT_PATH=folder)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_checkpoint_is_taken_over(replicas):
    with tempfile.TemporaryDirectory() as folder:
        weights = write(folder)
        for rank, (begin, seen) in enumerate(restore(folder, replicas=replicas)):
            assert begin.pop("weight") == pytest.approx(weights["weight"].item()) and begin.pop("lr") == pytest.approx(0.001)
            assert begin == {"epochs": 2, "steps": [3, 3], "schedule": 3, "mine": {"own": "state"}, "long": 5,
                             "progress": 12.5}
            rest = [4, 5, 6, 7] if replicas == 1 else [4 + rank, 6 + rank]
            assert seen[:3] == [(2, []), (2, rest), {"sum": 7}]  # replayed
            assert seen[3]["sum"] == 100 + replicas and seen[3]["a", 1].tolist() == [0, 1, 2]
        # From now on the library's own counts.
        again, = restore(folder, epochs=4)
        assert again[0]["epochs"] == 3 and again[0]["mine"] == {"own": "state"} and again[0]["long"] == 5
        assert [some for some in again[1] if isinstance(some, tuple)] == [(3, list(range(6))), (3, list(range(8)))]
        assert os.path.isdir(os.path.join(folder, "checkpoint-3"))


def test_the_newest_counts():
    with tempfile.TemporaryDirectory() as folder:
        write(folder, restarts=9)
        os.rmdir(os.path.join(folder, "_checkpoint"))
        write(folder, restarts=10, epoch=pickle.dumps(1))
        assert _original.newest(folder).endswith("checkpoint-10")
        assert restore(folder, epochs=1)[0][0]["epochs"] == 1


def refused(folder):
    """The program ends; nothing was executed, and nothing is saved in its place."""
    status = torch_fork.status_of(torch_fork.fork(program, 3, ADAPTDL_CHECKPOINT_PATH=folder))
    assert status == 1 and not os.path.exists(os.environ["EVIL"])
    assert not [name for name in os.listdir(folder) if name.startswith("checkpoint-") and "." in name]


def evil_torch():
    file = tempfile.TemporaryFile()
    torch.save(([{}, {"state": Evil()}, None, None], 1.0, 1.0), file)
    file.seek(0)
    return file.read()


@pytest.mark.parametrize("file", ["epoch", "adaptdl_dataloader_epochNone_0", "adaptdl_accumulator_epochNone_0",
                                  "adaptdl_dataparallel"])
@pytest.mark.parametrize("kind", ["evil", "garbage", "empty", "other"])
def test_what_cannot_be_read_is_refused(file, kind):
    data = {"evil": evil_torch() if "parallel" in file else pickle.dumps(Evil()), "garbage": b"\x80\x04garbage",
            "empty": b"", "other": pickle.dumps(["no", "such"])}[kind]
    with tempfile.TemporaryDirectory() as folder:
        write(folder, **{file: data})
        refused(folder)


def test_the_refusal_names_file_and_class(tmp_path):
    write(str(tmp_path), epoch=pickle.dumps(Evil()))
    with pytest.raises(ValueError, match=r"checkpoint-3/.adaptdl-epoch: .*original.*names (posix|os|nt)\.mkdir"):
        _original.adopt(str(tmp_path), "")
    with pytest.raises(ValueError, match=r"names (posix|os|nt)\.mkdir"):
        _original._torch["w"] = "file"
        _original.read_wrapper("w", io.BytesIO(evil_torch()))
    assert not os.path.exists(os.environ["EVIL"])


def test_one_beside_our_own_is_mentioned(tmp_path, caplog):
    write(str(tmp_path))
    with caplog.at_level(logging.INFO):
        assert _original.adopt(str(tmp_path), "checkpoint-4.1") is None
    assert "checkpoint-3" in caplog.text and "not read" in caplog.text
    assert _original.adopt(str(tmp_path / "nowhere"), "") is None


def test_pickles_of_many_kinds_do_no_harm():
    """Every global that a pickle may name, but those of plain data, is refused."""
    for module, name in (("os", "system"), ("builtins", "eval"), ("builtins", "getattr"), ("builtins", "__import__"),
                         ("numpy", "load"), ("numpy.core.multiarray", "set_typeDict"), ("torch", "load"),
                         ("torch.hub", "load"), ("torch._utils", "_rebuild_qtensor"), ("collections", "namedtuple"),
                         ("subprocess", "Popen"), ("pickle", "loads"), ("_codecs", "lookup"), ("torch", "os"),
                         ("builtins.int", "x"), ("adaptdl.goodput", "collections")):
        with pytest.raises(pickle.UnpicklingError, match="not read from a checkpoint"):
            _original._load(io.BytesIO(f"c{module}\n{name}\n.".encode()))


if __name__ == "__main__":
    harness.main(__file__)
