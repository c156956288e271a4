#!/usr/bin/python3
"""Checkpoints in the original package's format: taken over, or refused by name; nothing in them is executed."""

import collections
import io
import logging
import os
import pickle
import tempfile
import zipfile

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


def hostile(*parts):
    """A pickle by hand: bytes as they are, other things as they are pickled."""
    return b"".join(part if isinstance(part, bytes) else pickle.dumps(part, 2)[2:-1] for part in parts) + b"."


OBJECTS = (3, "|", None, None, None, -1, -1, 63)  # a type whose elements are pointers
ARRAY = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
HOSTILE = {
    "a type of pointers": hostile(ARRAY, (0,), b"C\x01b", b"\x87R(K\x01K\x01\x85",
                                  b"cnumpy\ndtype\n", "O8", b"\x85R\x89", b"C\x08AAAAAAAAtb"),
    "a type that becomes one": hostile(b"cnumpy\ndtype\n", "V8", b"\x85R", OBJECTS, b"b"),
    "a type with fields": hostile(b"cnumpy\ndtype\n", "i8", b"\x85R",
                                  (3, "<", None, ("a",), {"a": 0}, 8, 1, 63), b"b"),
    "too few bytes": hostile(ARRAY, (0,), "b", b"\x87R(K\x01M\x00\x10\x85",
            b"cnumpy\ndtype\n", "i8", b"\x85R\x89", b"C\x08AAAAAAAAtb"),
    "a class is changed": hostile(b"ccollections\nCounter\n", (None, {"update": []}), b"b"),
    "a function is changed": hostile(b"cbuiltins\nlist\n", (None, {"__defaults__": ()}), b"b"),
    "an object is changed": hostile(b"ccollections\nOrderedDict\n)R", {"items": 1}, b"b"),
    "many bytes": hostile(b"cbuiltins\nbytes\n", 2**40, b"\x85R"),
    "a big bytearray": hostile(b"cbuiltins\nbytearray\n", 2**40, b"\x85R"),
    "another big bytearray": b"\x80\x05\x96" + (2**40).to_bytes(8, "little") + b".",
    "a range": hostile(b"cbuiltins\nlist\ncbuiltins\nrange\n", 2**40, b"\x85R\x85R"),
    "a slice": hostile(b"cbuiltins\nslice\n", 1, b"\x85R"),
    "many copies": hostile([1] * 1000, b"q\x01", b"0(" + b"cbuiltins\nlist\nh\x01\x85R" * 1000, b"l"),
    "a deep key": b"\x80\x02})" + b"\x85" * 200000 + b"K\x01s.",
    "an object by its class": hostile(b"ccollections\nOrderedDict\n)\x81"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_pickle_does_no_harm(what, tmp_path):
    """It is refused by both readers: no crash, no memory, and the classes of this process stay as they are."""
    pytest.importorskip("numpy")
    before = dict(vars(collections.Counter)), dict(vars(collections.OrderedDict))
    with pytest.raises((pickle.UnpicklingError, TypeError, ValueError)):
        _original._load(io.BytesIO(HOSTILE[what]))
    with pytest.raises(ValueError, match="cannot be taken over"):
        _original._torch["w"] = "file"
        _original.read_wrapper("w", io.BytesIO(archive(HOSTILE[what])))
    assert before == (dict(vars(collections.Counter)), dict(vars(collections.OrderedDict)))


def archive(data, storage=b"", compression=zipfile.ZIP_STORED):
    """A file like torch.save's."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", compression) as file:
        file.writestr("archive/data.pkl", data)
        file.writestr("archive/data/0", storage)
    return made.getvalue()


def tensor(count, stride):
    return hostile(b"ctorch._utils\n_rebuild_tensor_v2\n((", "storage", b"ctorch\nFloatStorage\n", "0", "cpu", 2,
                   b"tQ", 0, (count,), (stride,), False, b"tR")


def test_tensors_are_no_larger_than_their_storage():
    read = _original._TensorUnpickler
    assert read(archive(tensor(2, 1), bytes(8))).load().tolist() == [0, 0]
    for count, stride in ((2**40, 0), (3, 0), (3, 1), (2, 2), (-1, 1), (2, -1)):
        with pytest.raises((pickle.UnpicklingError, RuntimeError)):
            read(archive(tensor(count, stride), bytes(8))).load()
    with pytest.raises(pickle.UnpicklingError, match="compressed"):
        read(archive(tensor(2, 1), bytes(8), zipfile.ZIP_DEFLATED)).load()


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_plain_data_is_read(protocol):
    numpy = pytest.importorskip("numpy")
    defaults = collections.defaultdict(list, {1: [2]})
    array = numpy.arange(6, dtype=">i4").reshape(2, 3)
    whole = [defaults, collections.Counter("aab"), collections.deque([1], 3), collections.OrderedDict(a=1), {1, 2},
             frozenset([3]), 1 + 2j, b"\xff", bytearray(b"x"), numpy.float32(1.5), {("a", numpy.int64(1)): None}, True]
    read = _original._load(io.BytesIO(pickle.dumps([whole, array, array, array.T, numpy.ones((2, 0))], protocol)))
    assert read[0] == whole and [type(part) for part in read[0]] == [type(part) for part in whole]
    assert read[0][0][5] == [] and type(read[1]) is numpy.ndarray and read[1] is read[2]
    assert read[1].tolist() == array.tolist() and read[1].dtype == array.dtype and read[3].tolist() == array.T.tolist()
    assert read[4].shape == (2, 0)
    read[1][0, 0] = 7  # its own memory


if __name__ == "__main__":
    harness.main(__file__)
