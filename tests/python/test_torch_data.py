#!/usr/bin/python3
"""Loops over epochs and data: what they yield, what they refuse, and that they are clean after whatever
happened inside them."""

import math
import os
import pathlib
import sys
import tempfile
import types

import harness
import pytest
import torch_fork
from torch_fork import on, one

import torch
from torch.utils.data import TensorDataset

import adaptdl.torch as adl
from adaptdl import _core, collective, env
from adaptdl.torch.data import AdaptiveDataLoaderHelper, AdaptiveDataLoaderMixin
from adaptdl.torch.iterator import AdaptiveBPTTIterator


def numbers(n):
    return TensorDataset(torch.arange(n))


# ---- epochs ----

@one
def test_epochs():
    assert adl.current_epoch() is None and adl.finished_epochs() == 0
    seen = []
    for epoch in adl.remaining_epochs_until(3):
        assert adl.current_epoch() == adl.finished_epochs() == epoch
        with pytest.raises(RuntimeError, match="overlapping"):
            adl.remaining_epochs_until(5)
        seen.append(epoch)
        if epoch == 1:
            break
    assert adl.current_epoch() is None and adl.finished_epochs() == 2
    seen += list(adl.remaining_epochs_until(5))
    assert seen == [0, 1, 2, 3, 4] and list(adl.remaining_epochs_until(5)) == []
    with pytest.raises(TypeError):
        adl.remaining_epochs_until("5")


@one
def test_epochs_left_by_an_exception():
    with pytest.raises(KeyError):
        for _ in adl.remaining_epochs_until(3):
            raise KeyError
    assert adl.current_epoch() is None and adl.finished_epochs() == 1
    early, late = adl.remaining_epochs_until(3), adl.remaining_epochs_until(3)
    next(early)
    with pytest.raises(RuntimeError, match="overlapping"):
        next(late)
    early.close()
    assert adl.current_epoch() is None


# ---- loaders ----

@one
def test_loader_refusals():
    data = numbers(10)
    for wrong in ({"sampler": [1]}, {"batch_sampler": [[1]]}):
        with pytest.raises(ValueError, match="sampler"):
            adl.AdaptiveDataLoader(data, **wrong)
    for size in (0, -1, 2.0, None, True, "8"):
        with pytest.raises(ValueError, match="batch_size"):
            adl.AdaptiveDataLoader(data, batch_size=size)

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(range(3))

    with pytest.raises(ValueError, match="length"):
        adl.AdaptiveDataLoader(Stream())
    loader = adl.AdaptiveDataLoader(data, batch_size=4)
    for bounds in ((3,), (8, (5, 8)), (8, (1, 3)), (8, (5, 2)), (4.5,), (None,), (8, (0, 8)), (2**40,)):
        with pytest.raises(ValueError):
            loader.autoscale_batch_size(*bounds)
    assert adl.current_dataloader() is None


@one
def test_loader_attributes():
    loader = adl.AdaptiveDataLoader(numbers(10), batch_size=4, shuffle=True)
    elastic = loader._elastic
    assert loader.batch_size == 4 and elastic.max_batch_size is None and len(loader) == 3
    assert elastic.local_bsz_bounds is None and elastic.current_index is None
    loader.autoscale_batch_size(8, local_bsz_bounds=(2, 6), gradient_accumulation=True)
    assert elastic.max_batch_size == 8 and elastic.local_bsz_bounds == (2, 6)
    loader.autoscale_batch_size(8, local_bsz_bounds=(None, 6))
    assert elastic.local_bsz_bounds == (None, 6)
    loader.autoscale_batch_size(16)
    assert elastic.local_bsz_bounds is None and elastic.future_exit is None
    assert loader.training  # by its batch size that adapts
    other = adl.AdaptiveDataLoader(numbers(10), batch_size=4)
    assert not other.training
    for each in (loader, other):  # the one that is trained on last
        for batch in other:
            each._elastic.train()
        assert other.training == (each is other)


@one
def test_one_pass_in_order():
    loader = adl.AdaptiveDataLoader(numbers(10), batch_size=4)
    for _ in adl.remaining_epochs_until(1):
        batches = []
        for (batch,) in loader:
            assert adl.current_dataloader() is loader._elastic
            assert loader._elastic.current_index == 4 * len(batches)
            assert loader.current_batch_size == loader.current_local_bsz == 4
            assert loader._elastic.is_optim_step() and not loader._elastic.is_accum_step()
            batches.append(batch.tolist())
        assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert adl.current_dataloader() is None
        assert [b.tolist() for (b,) in loader] == batches  # another loop of the same epoch


@one
def test_drop_last_and_tiny_and_empty_data():
    sizes = lambda *args, **kwargs: [len(b) for (b,) in adl.AdaptiveDataLoader(*args, **kwargs)]
    for _ in adl.remaining_epochs_until(1):
        assert sizes(numbers(10), batch_size=4, drop_last=True) == [4, 4]
        assert sizes(numbers(3), batch_size=4, drop_last=True) == [3]
        assert sizes(numbers(1), batch_size=4) == [1]
        assert sizes(numbers(0), batch_size=4) == []


@one
def test_shuffling_differs_by_epoch_and_not_by_run():
    loader = adl.AdaptiveDataLoader(numbers(50), batch_size=50, shuffle=True)
    orders = [next(iter(loader))[0].tolist() for _ in adl.remaining_epochs_until(3)]
    assert orders[0] != orders[1] != orders[2]
    assert all(sorted(order) == list(range(50)) for order in orders)
    sampler = adl.ElasticSampler(numbers(50))
    for epoch, order in enumerate(orders):
        sampler.set_epoch(epoch)
        assert list(sampler) == order and len(sampler) == 50
    sampler.set_epoch(0, 30)
    assert list(sampler) == orders[0][30:] and len(sampler) == 20
    sampler.set_epoch(0, 50)
    assert sorted(sampler) == list(range(50)) and list(sampler) != orders[0]
    with pytest.raises((ValueError, OverflowError, TypeError)):
        sampler.set_epoch(0, -1)


@on(3)
def test_replicas_divide_the_data():
    adl.init_process_group("gloo")
    loader = adl.AdaptiveDataLoader(numbers(20), batch_size=6, shuffle=True)
    assert len(loader) == 4
    for _ in adl.remaining_epochs_until(2):
        own = [x for (batch,) in loader for x in batch.tolist()]
        assert len(own) == 7
        everybody = collective.allreduce(own)
        assert len(everybody) == 21 and sorted(set(everybody)) == list(range(20))


@one
def test_loops_are_clean_after_exceptions_and_breaks():
    first, second = (adl.AdaptiveDataLoader(numbers(10), batch_size=2) for _ in range(2))
    for _ in adl.remaining_epochs_until(1):
        with pytest.raises(RuntimeError, match="overlapping"):
            for _ in first:
                for _ in second:
                    pass
        assert adl.current_dataloader() is None
        with pytest.raises(ZeroDivisionError):
            for _ in first:
                1 / 0
        for _ in first:
            break
        held = iter(first)
        next(held)
        with pytest.raises(RuntimeError, match="overlapping"):
            next(iter(second))
        held.close()
        assert len(list(second)) == 5
    try:
        for _ in adl.remaining_epochs_until(2):
            for _ in first:
                raise KeyError
    except KeyError:
        trace = sys.exc_info()[2]  # as a notebook keeps it
    assert adl.current_epoch() is None and adl.current_dataloader() is None
    assert [len(list(first)) for _ in adl.remaining_epochs_until(3)] == [5] and trace


@one
def test_failing_data_sets():
    class Broken(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, i):
            if i == 5:
                raise OSError("bad sector")
            return i

    for workers in (0, 1):
        loader = adl.AdaptiveDataLoader(Broken(), batch_size=2, num_workers=workers)
        seen = []
        for _ in adl.remaining_epochs_until(10):
            with pytest.raises(OSError, match="bad sector"):
                for batch in loader:
                    seen.append(len(batch))
            break
        assert seen == [2, 2] and adl.current_dataloader() is None


class Draw(torch.utils.data.Dataset):
    """Draws a random number in the worker."""

    def __len__(self):
        return 8

    def __getitem__(self, i):
        return torch.randint(2**60, ()), torch.utils.data.get_worker_info().id


def draw(start_method):
    torch.manual_seed(1)
    adl.init_process_group("gloo")
    loader = adl.AdaptiveDataLoader(Draw(), batch_size=2 * env.num_replicas(), num_workers=2,
                                    multiprocessing_context=start_method,
                                    persistent_workers=start_method == "spawn")
    drawn = []
    for _ in adl.remaining_epochs_until(2):
        for values, workers in loader:
            drawn += values.tolist()
    everybody = collective.allreduce(drawn)
    assert len(everybody) == 16 and len(set(everybody)) == 16


def test_workers_by_fork_have_seeds_of_their_own():
    torch_fork.replicas(2, draw, "fork")


def test_workers_by_spawn_have_seeds_of_their_own():
    code = "import sys; sys.path.insert(0, {!r}); sys.argv = ['x']; import test_torch_data; " \
           "test_torch_data.draw('spawn')".format(os.path.dirname(os.path.abspath(__file__)))
    harness.replicas(2, code)


class Pids(torch.utils.data.Dataset):
    """The worker that loads it."""

    def __len__(self):
        return 64

    def __getitem__(self, i):
        return os.getpid()


def signalled(start_method):
    """Whoever signals all processes of a job stops the program, which needs its workers until it has saved."""
    adl.init_process_group("gloo")
    loader = adl.AdaptiveDataLoader(Pids(), batch_size=2, num_workers=2, multiprocessing_context=start_method)
    seen, told = [], False
    for _ in adl.remaining_epochs_until(1):
        for batch in loader:
            seen += batch.tolist()
            if len(set(seen)) == 2 and not told:
                pids = " ".join(map(str, set(seen)))
                assert os.system(f"kill -TERM {pids} && kill -INT {pids}") == 0
                told = True
    assert told and len(seen) == 64 and len(set(seen)) == 2, (told, seen)


def test_workers_by_fork_ignore_signals():
    torch_fork.replicas(1, signalled, "fork")


def test_workers_by_spawn_ignore_signals():
    code = "import sys; sys.path.insert(0, {!r}); sys.argv = ['x']; import test_torch_data; " \
           "test_torch_data.signalled('spawn')".format(os.path.dirname(os.path.abspath(__file__)))
    harness.replicas(1, code)


@one
def test_custom_loader():
    class Windows(AdaptiveDataLoaderMixin):
        """Pairs of neighbours, the way the module's text shows."""

        def __init__(self, data, batch_size):
            AdaptiveDataLoaderMixin.__init__(self, batch_size)
            self.data = data

        def __iter__(self):
            with self._elastic.context():
                if self._elastic.skipdone():
                    return
                size = self._elastic._sync_local_bsz()
                while self._elastic.current_index < len(self.data):
                    with self._elastic.profile(self.training):
                        first = self._elastic.current_index
                        yield self.data[first:first + size]
                        self._elastic.current_index += size

    loader = Windows(list(range(7)), 3)
    for _ in adl.remaining_epochs_until(2):
        assert list(loader) == [[0, 1, 2], [3, 4, 5], [6]]
    loader._elastic.current_index = 3  # outside a loop: nothing
    assert loader._elastic.current_index is None


# ---- batch sizes ----

GROWS = """
import sys, time, types
import torch
import adaptdl.torch as adl
from adaptdl.torch.iterator import AdaptiveBPTTIterator
adl.init_process_group("gloo")
torch.manual_seed(1)
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
model = adl.AdaptiveDataParallel(net, optimizer)
SIZE, MOST = 8, 64

def learn(rows, change):  # nothing but noise, so that large batches are worth it; and steps that take as long at any size
    optimizer.zero_grad()
    (model(torch.randn(rows, 4)) * torch.randn(rows, 1)).mean().backward()
    optimizer.step()
    if not change:
        time.sleep(0.02)
"""


def test_the_size_of_batches_changes_in_the_middle_of_a_pass():
    """Every example is there once all the same. (An epoch may go on with another pass.)"""
    out = harness.script(GROWS + """
COUNT = 12000
loader = adl.AdaptiveDataLoader(torch.utils.data.TensorDataset(torch.arange(COUNT)), batch_size=SIZE, shuffle=True)
loader.autoscale_batch_size(MOST, local_bsz_bounds=(4, MOST))
seen, sizes = [], []
for epoch in adl.remaining_epochs_until(1):
    for numbers, in loader:
        learn(len(numbers), len(set(sizes)) > 1)
        if len(seen) < COUNT:
            seen += numbers.tolist()
            sizes.append(loader._elastic.current_local_bsz)
assert len(seen) == COUNT and sorted(seen) == list(range(COUNT)), len(seen)
assert sizes[0] == SIZE and sizes[-1] > SIZE, sizes
print("changed at", sizes.index(next(size for size in sizes if size != SIZE)))
""", timeout=1200, ADAPTDL_BATCH_STEPS=20)
    assert int(out.split()[-1]) % 20 == 0, out


def test_the_number_of_streams_changes_in_the_middle_of_a_text():
    """It goes on at the same share of the text, and ends with it."""
    harness.script(GROWS + """
COUNT, LENGTH = 60000, 5
loader = AdaptiveBPTTIterator(torch.arange(COUNT), SIZE, LENGTH, max_batch_size=MOST, local_bsz_bounds=(4, MOST))
pieces = []
for epoch in adl.remaining_epochs_until(1):
    for piece in loader:
        assert torch.equal(piece.target[:, 0], piece.text[:, 0] + 1)
        learn(piece.batch_size, len({size for size, _, _ in pieces}) > 1)
        first, length = piece.text[0, 0].item(), len(piece.text)
        if not pieces or first > pieces[-1][1] or piece.batch_size != pieces[-1][0]:  # not of another pass
            pieces.append((piece.batch_size, first, length))
        else:
            break
assert pieces[0][0] == SIZE and pieces[-1][0] > SIZE, pieces
tokens = sum(size * length for size, _, length in pieces)
changes = 0
for (size, first, length), (next_size, next_first, _) in zip(pieces, pieces[1:]):
    if size == next_size:
        assert next_first == first + length, (size, first, next_first)
    else:
        changes += 1
        apart = next_first * next_size - (first + length) * size
        assert abs(apart) <= next_size + size, (size, first, length, next_size, next_first)
assert abs(tokens - COUNT) <= 2 * MOST * (changes + 1), (tokens, changes)
""", timeout=1200, ADAPTDL_BATCH_STEPS=20)


# ---- text ----

@one
def test_bptt():
    text = torch.arange(21)
    loader = AdaptiveBPTTIterator(text, 2, 4)
    for _ in adl.remaining_epochs_until(1):
        pieces = list(loader)
    streams = torch.cat([p.text for p in pieces])
    assert streams.shape == (10, 2)  # 11 tokens in each stream, the last one only a target
    assert streams[:, 0].tolist() == list(range(10)) and streams[:, 1].tolist() == list(range(11, 21))
    assert [p.text.shape[0] for p in pieces] == [4, 4, 2] and pieces[0].batch_size == 2
    assert torch.equal(pieces[0].target, pieces[0].text + 1)
    first = AdaptiveBPTTIterator(text, 2, 4, batch_first=True, train=True, device="cpu")
    for _ in adl.remaining_epochs_until(2):
        assert next(iter(first)).text.shape == (2, 4)
    with pytest.raises(ValueError):
        AdaptiveBPTTIterator(text, 2, 0)
    with pytest.raises(TypeError):
        AdaptiveBPTTIterator(text, 2, 4, color="red")
    with pytest.raises(ValueError):
        AdaptiveBPTTIterator(text, 2, 4, max_batch_size=1)


@one
def test_bptt_of_torchtext():
    class Field:
        pad_token, batch_first = "<pad>", False

        def numericalize(self, rows, device=None):
            return torch.tensor([[-1 if t == "<pad>" else int(t) for t in row] for row in rows]).t()

    class Data(list):
        fields = {"text": Field()}

    data = Data([types.SimpleNamespace(text=[str(i) for i in range(9)])])
    for _ in adl.remaining_epochs_until(1):
        pieces = list(AdaptiveBPTTIterator(data, 2, 3, repeat=False))
    assert torch.cat([p.target for p in pieces])[:, 1].tolist() == [6, 7, 8, -1]


@on(2)
def test_bptt_replicas_take_turns():
    adl.init_process_group("gloo")
    loader = AdaptiveBPTTIterator(torch.arange(42), 2, 4)
    for _ in adl.remaining_epochs_until(1):
        own = [piece.text[:, 0].tolist() for piece in loader]
    everybody = collective.allreduce(own)
    assert len(own) == 5 and sum(sorted(everybody), []) == list(range(40))


def bptt_part(stop_after):
    adl.init_process_group("gloo")
    loader = AdaptiveBPTTIterator(torch.arange(200), 4, 3)
    seen = []
    for _ in adl.remaining_epochs_until(1):
        for piece in loader:
            if len(seen) == stop_after:
                _core.stop_soon()
            seen.append(piece.text[0, 0].item())
            pathlib.Path(os.environ["SEEN"]).write_text(repr(seen))
    return seen


def test_bptt_resumes_with_another_shape():
    with tempfile.TemporaryDirectory() as folder:
        seen = os.path.join(folder, "seen")
        os.environ["SEEN"] = seen
        torch_fork.replicas(1, bptt_part, 8, status=143, ADAPTDL_CHECKPOINT_PATH=folder)
        first = eval(pathlib.Path(seen).read_text())
        both = torch_fork.replicas(2, bptt_part, -1, ADAPTDL_CHECKPOINT_PATH=folder)
        # 9 pieces of 3 of 4 streams of 50 were seen; 2 streams on each of 2 replicas are 100 long.
        assert first == list(range(0, 27, 3))
        assert min(both[0]) == 27 * 100 // 50 and min(both[1]) == min(both[0]) + 3


if __name__ == "__main__":
    harness.main(__file__)
