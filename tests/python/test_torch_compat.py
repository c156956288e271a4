#!/usr/bin/python3
"""What programs written for the original package do that a stricter one would forbid."""

import collections
import copy
import dataclasses
import io
import os
import signal
import tempfile

import harness
import pytest
import torch
import torch_fork
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset
from torch_fork import on, one

import adaptdl._signal
import adaptdl.torch as adl
from adaptdl import checkpoint, env
from adaptdl.torch import _metrics
from adaptdl.torch.iterator import AdaptiveBPTTIterator
from adaptdl.torch.scaling_rules import AdamScale, AdaScale, LinearScale


def numbers(count):
    return TensorDataset(torch.arange(count))


def small(rule=None, name="adaptdl-dataparallel", kind=torch.optim.SGD, lr=0.1):
    torch.manual_seed(1)
    net = nn.Linear(1, 1)
    optimizer = kind(net.parameters(), lr=lr)
    return adl.AdaptiveDataParallel(net, optimizer, scaling_rule=rule, name=name), optimizer


def train_on(loader, model, optimizer):
    """One loop; the examples seen."""
    seen = []
    for (batch,) in loader:
        optimizer.zero_grad()
        F.mse_loss(model(batch.float().unsqueeze(1)), batch.float().unsqueeze(1)).backward()
        optimizer.step()
        seen += batch.tolist()
    return seen


# ---- loops outside the epochs ----

def outside(stop_in, stop_at):
    """A first evaluation, two epochs, a final test; what each loop saw, and what the accumulator says."""
    adl.init_process_group("gloo")
    first, last = adl.AdaptiveDataLoader(numbers(12), batch_size=2), adl.AdaptiveDataLoader(numbers(12), batch_size=2)
    stats, seen = adl.Accumulator(), []

    def loop(name, loader, key):
        some = []
        for i, (batch,) in enumerate(loader):
            if (name, i) == (stop_in, stop_at):
                os.kill(os.getpid(), signal.SIGTERM)
            stats[key] += batch.sum().item()
            some += batch.tolist()
        seen.append((name, some))

    try:
        loop("before", first, "before")
        for epoch in adl.remaining_epochs_until(2):
            loop(f"epoch{epoch}", first, "inside")
        loop("after", last, "after")
        loop("again", last, "after")
        with stats.synchronized():
            return seen, dict(stats)
    finally:
        with open(os.environ["SEEN"], "w") as file:
            file.write(repr(seen))


@pytest.mark.parametrize("place", [None, "before", "epoch1", "after", "again"])
def test_loops_outside_the_epochs_keep_their_place(place):
    with tempfile.TemporaryDirectory() as folder:
        variables = {"ADAPTDL_CHECKPOINT_PATH": os.path.join(folder, "ck"), "SEEN": os.path.join(folder, "seen")}
        if place:
            torch_fork.replicas(1, outside, place, 2, status=143, **variables)
        (seen, sums), = torch_fork.replicas(1, outside, None, 0, **variables)
    assert sums == {"before": 66, "inside": 132, "after": 132}
    names = [name for name, _ in seen]
    whole = list(range(12))
    done = {None: 0, "before": 0, "epoch1": 1, "after": 1, "again": 2}[place]
    skipped = [name for name, some in seen if not some]
    assert names[0] == "before" and names[-2:] == ["after", "again"]
    assert len(skipped) == done
    if place:  # goes on behind the batch in which the signal came
        assert dict(seen)[place] == whole[6:]
    assert all(some in ([], whole) for name, some in seen if name != place)


@on(2)
def test_range_epochs_on_two_replicas():
    adl.init_process_group("gloo")
    loader = adl.AdaptiveDataLoader(numbers(8), batch_size=4, shuffle=True)
    model, optimizer = small(lr=0.001)
    orders = []
    for _ in range(3):
        seen = train_on(loader, model, optimizer)
        both = adl.collective.allreduce(seen)
        assert sorted(both) == list(range(8))
        orders.append(both)
    assert orders[0] != orders[1] or orders[1] != orders[2]
    assert adl.finished_epochs() == 0 and adl.current_epoch() is None


@one
def test_an_adaptive_loader_outside_the_epochs_makes_one_pass():
    adl.init_process_group("gloo")
    loader = adl.AdaptiveDataLoader(numbers(8), batch_size=4)
    loader.autoscale_batch_size(16)
    model, optimizer = small(lr=0.001)
    assert train_on(loader, model, optimizer) == list(range(8))
    assert [len(batch) for (batch,) in loader] == [4, 4]


# ---- loaders that come and go ----

def anew(stop_epoch, stop_at):
    adl.init_process_group("gloo")
    model, optimizer = small(lr=0.0)
    seen = []
    try:
        for epoch in adl.remaining_epochs_until(5):
            for part in range(2):
                loader = adl.AdaptiveDataLoader(numbers(6 + 2 * epoch), batch_size=2)
                for i, (batch,) in enumerate(loader):
                    if (epoch, part, i) == (stop_epoch, 1, stop_at):
                        os.kill(os.getpid(), signal.SIGTERM)
                    optimizer.zero_grad()
                    model(batch.float().unsqueeze(1)).sum().backward()
                    optimizer.step()
                    seen.append((epoch, part, batch.tolist()))
            names = [entry[2] for entry in adl.data._loops]
            assert len(names) <= 5, "old loaders stay in the checkpoint"
    finally:
        with open(os.environ["SEEN"], "w") as file:
            file.write(repr(seen))
    return seen


def test_a_training_loader_in_each_epoch():
    with tempfile.TemporaryDirectory() as folder:
        variables = {"ADAPTDL_CHECKPOINT_PATH": os.path.join(folder, "ck"), "SEEN": os.path.join(folder, "seen")}
        torch_fork.replicas(1, anew, 2, 1, status=143, **variables)
        before = eval(open(variables["SEEN"]).read())
        after, = torch_fork.replicas(1, anew, None, 0, **variables)
    wanted = [(epoch, part, [i, i + 1]) for epoch in range(5) for part in range(2)
              for i in range(0, 6 + 2 * epoch, 2)]
    assert before + after == wanted


class Growing(Dataset):
    def __init__(self):
        self.length = 4

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.tensor(float(index)),


@one
def test_data_that_grows_and_shrinks():
    adl.init_process_group("gloo")
    data = Growing()
    loader = adl.AdaptiveDataLoader(data, batch_size=2, shuffle=True)
    model, optimizer = small(lr=0.0)
    for epoch in adl.remaining_epochs_until(4):
        data.length = (4, 10, 3, 6)[epoch]
        assert len(loader) == -(-data.length // 2)
        assert sorted(train_on(loader, model, optimizer)) == list(range(data.length))


@one
def test_progress_is_due_by_what_each_epoch_had():
    """Epochs of an adaptive batch size end by progress: that of the data that there was in each."""
    adl.init_process_group("gloo")
    data = Growing()
    model, optimizer = small(lr=1e-6)
    due = 0
    for epoch in adl.remaining_epochs_until(4):
        data.length = (64, 256, 32, 64)[epoch]
        loader = adl.AdaptiveDataLoader(data, batch_size=4)
        loader.autoscale_batch_size(8, local_bsz_bounds=(2, 8))
        train_on(loader, model, optimizer)
        due += data.length / 4
        assert due <= model.gns.get_progress() < due + 2


def resized(stop, length):
    adl.init_process_group("gloo")
    loader, seen = adl.AdaptiveDataLoader(numbers(length), batch_size=2), []
    for _ in adl.remaining_epochs_until(1):
        for i, (batch,) in enumerate(loader):
            seen += batch.tolist()
            if i == stop:
                os.kill(os.getpid(), signal.SIGTERM)
    return seen


def test_data_of_another_length_after_a_restart_is_taken():
    with tempfile.TemporaryDirectory() as folder:
        torch_fork.replicas(1, resized, 1, 12, status=143, ADAPTDL_CHECKPOINT_PATH=folder)
        assert torch_fork.replicas(1, resized, -1, 8, ADAPTDL_CHECKPOINT_PATH=folder) == [[4, 5, 6, 7]]


# ---- accumulators ----

Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Moments:
    count: int = 0
    total: float = 0.0

    def __add__(self, other):
        return Moments(self.count + other.count, self.total + other.total)


class Words:
    def __init__(self, text):
        self.text = text

    def __add__(self, other):
        return Words(self.text + other.text)


def kinds():
    """Values of many kinds, added on each replica; what all see, as text."""
    numpy = pytest.importorskip("numpy")
    adl.collective.register(Words)
    accum = adl.Accumulator(start=1)
    adl.init_process_group("gloo")
    rank = env.replica_rank()
    confusion = numpy.zeros((2, 2), dtype=numpy.int64)
    for i in range(3):
        accum["zebra"] += 1
        accum["matrix"] += torch.full((2, 1, 3), float(i), requires_grad=True)
        confusion[rank, i % 2] += 1
        accum["confusion"] = accum["confusion"] + confusion
        accum["confusion"] -= numpy.ones((2, 2), dtype=numpy.int64)
        accum[("class", rank)] += 1
        accum["apple"] = 0.5 + accum["apple"]
        accum["list"] += [i]
        accum["counter"] += collections.Counter({f"r{rank}": 2})
        accum["moments"] += Moments(1, 2.0)
        accum["words"] += Words(str(rank))
    with accum.synchronized():
        accum["any"] = [None, "text", Pair(1, {2})]
        accum["groups"] = collections.defaultdict(list, {"a": [1]})
        accum["pair"] = Pair("x", (1, 2))
    with accum.synchronized():
        accum["groups"]["new"].append(7)
        assert type(accum["counter"]) is collections.Counter and type(accum["words"]) is Words
        assert type(accum["pair"]) is Pair and isinstance(accum["confusion"], numpy.ndarray)
        assert not accum["matrix"].requires_grad
        accum["words"] = accum["words"].text
        accum["matrix"] = accum["matrix"].tolist()
        accum["confusion"] = accum["confusion"].tolist()
        return repr(accum), list(accum)


@pytest.mark.parametrize("replicas", [1, 2])
def test_values_of_any_kind(replicas):
    results = torch_fork.replicas(replicas, kinds)
    assert all(result == results[0] for result in results)
    text, keys = results[0]
    assert keys[:4] == ["start", "zebra", "matrix", "confusion"]
    assert keys[-3:] == ["any", "groups", "pair"]
    assert f"'zebra': {3 * replicas}" in text and f"'apple': {1.5 * replicas}" in text
    assert f"[[[{3.0 * replicas}, {3.0 * replicas}, {3.0 * replicas}]]" in text
    # 1 + 1 + 2 and 0 + 1 + 1 in the row of each replica, less 3 for each.
    one = {1: "[[1, -1], [-3, -3]]", 2: "[[-2, -4], [-2, -4]]"}[replicas]
    assert f"'confusion': {one}" in text
    assert "('class', 0): 3" in text and (replicas == 1 or "('class', 1): 3" in text)
    assert f"Moments(count={3 * replicas}, total={6.0 * replicas})" in text
    assert "Counter({'r0': 6" in text and f"'list': {[0, 1, 2] * replicas}" in text
    assert "'new': [7]" in text and "Pair(left='x', right=(1, 2))" in text
    assert f"'words': '{'000' if replicas == 1 else '000111'}'" in text


def kept(stop):
    accum = adl.Accumulator(Pair=Pair(0, 0))
    adl.init_process_group("gloo")
    for epoch in adl.remaining_epochs_until(1):
        for i, (batch,) in enumerate(adl.AdaptiveDataLoader(numbers(8), batch_size=2)):
            accum["sum"] += batch
            accum["seen", epoch] += collections.Counter(batch.tolist())
            if i == stop:
                os.kill(os.getpid(), signal.SIGTERM)
        with accum.synchronized():
            return accum["sum"].tolist(), accum["seen", 0], accum["Pair"]


def test_values_of_any_kind_survive_a_restart():
    with tempfile.TemporaryDirectory() as folder:
        torch_fork.replicas(1, kept, 1, status=143, ADAPTDL_CHECKPOINT_PATH=folder)
        found, = torch_fork.replicas(1, kept, -1, ADAPTDL_CHECKPOINT_PATH=folder)
    assert found == ([12, 16], collections.Counter(range(8)), Pair(0, 0))
    assert type(found[1]) is collections.Counter and type(found[2]) is Pair


@on(2)
def test_what_cannot_be_summed_is_told():
    adl.init_process_group("gloo")
    accum = adl.Accumulator()
    if env.replica_rank() == 0:
        accum["a"] += 1
    else:
        accum["a"] += "text"
    with pytest.raises((TypeError, ValueError), match="unsupported operand"):
        with accum.synchronized():
            pass
    with pytest.raises(TypeError, match="register"):
        adl.collective.allreduce(Words("a"), lambda a, b: a)
    os._exit(0)


# ---- models ----

@one
def test_copies_of_a_model():
    adl.init_process_group("gloo")
    model, optimizer = small()
    loader = adl.AdaptiveDataLoader(numbers(8), batch_size=4)
    for epoch in adl.remaining_epochs_until(2):
        train_on(loader, model, optimizer)
        if epoch == 0:
            best = copy.deepcopy(model)
            at_best = {name: value.clone() for name, value in model.state_dict().items()}
            file = io.BytesIO()
            torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, **({"weights_only": False} if torch.__version__ >= "2" else {}))
    for other in (best, loaded):
        assert type(other) is adl.AdaptiveDataParallel and other.gain == 1.0
        assert all(torch.equal(at_best[name], value) for name, value in other.state_dict().items())
        assert torch.equal(other(torch.ones(1, 1)), F.linear(torch.ones(1, 1), *[
            at_best["module." + name] for name in ("weight", "bias")]))
    assert not torch.equal(model.module.weight, best.module.weight)
    state = model._state
    assert state.model is model.module and state.optimizer is optimizer and state.lr_scheduler is None
    assert state.gain == model.gain and state.lr_factor == 1.0


@one
def test_one_rule_for_two_models():
    adl.init_process_group("gloo")
    rule = LinearScale()
    one, first = small(rule, "one")
    two, second = small(rule, "two", lr=0.5)
    loader = adl.AdaptiveDataLoader(numbers(4), batch_size=2)
    for _ in adl.remaining_epochs_until(1):
        for (batch,) in loader:
            for model, optimizer, lr in ((one, first, 0.1), (two, second, 0.5)):
                before = model.module.weight.detach().clone()
                optimizer.zero_grad()
                model(batch.float().unsqueeze(1)).sum().backward()
                gradient = model.module.weight.grad.clone()
                optimizer.step()
                assert rule.adp is model
                assert torch.allclose(model.module.weight, before - lr * gradient)


@one
def test_adamscale_is_an_adascale():
    adl.init_process_group("gloo")
    rule = AdamScale()
    assert isinstance(rule, AdaScale)
    small(rule, kind=torch.optim.Adam)
    assert rule.scale_lr(4.0, power=1.0)[0] == pytest.approx(rule.scale_lr(4.0)[0] ** 2)
    assert rule.scale_lr(scale=4.0, power=0.5) == rule.scale_lr(4.0)


# ---- names and numbers ----

@one
def test_names_that_programs_import():
    assert checkpoint.CKPT_DIR_PREFIX == "checkpoint-"
    assert adl.version_check("1.2.3") and adl.version_check("1.0.0-rc.1+build")
    assert not any(map(adl.version_check, ("0.0.0", "1.2", "v1.2.3", "01.2.3", None)))
    assert adaptdl._signal.get_exit_flag() is False and adaptdl._signal.EXIT_FLAG is False
    assert _metrics.get_progress() == 0.0 and _metrics.get_goodput_fn() is None
    assert len(_metrics._metrics_state().profile) == 0 and _metrics._get_sched_hints() is None


@one
def test_metrics_of_a_training():
    adl.init_process_group("gloo")
    model, optimizer = small(lr=1e-6)
    loader = adl.AdaptiveDataLoader(numbers(64), batch_size=4)
    loader.autoscale_batch_size(8, local_bsz_bounds=(2, 8))
    for _ in adl.remaining_epochs_until(1):
        train_on(loader, model, optimizer)
    state = _metrics._get_sched_hints()
    assert state.init_batch_size == 4 and state.max_batch_size == 8 and state.local_bsz_bounds == (2, 8)
    assert _metrics.get_progress() == model.gns.get_progress() >= 16
    assert (1, 1, 4) in state.profile and state.profile[1, 1, 4]["optim_count"] >= 1
    assert state.profile[9, 9, 9]["optim_count"] == 0
    goodput = _metrics.get_goodput_fn()
    assert goodput.efficiency(4) == 1.0 and goodput.throughput(1, 1, 4, 0) > 0
    _metrics.update_progress(100.0)
    assert _metrics.get_progress() == 100.0
    sent = []
    _metrics.sched_hints.post_sched_hints = lambda hints, job: sent.append(hints)
    _metrics._report_sched_hints()
    assert sent[0]["initBatchSize"] == 4 and sent[0]["loneReplicaGrows"] is True


@one
def test_the_exit_flag():
    adl.init_process_group("gloo")
    for i, batch in enumerate(adl.AdaptiveDataLoader(numbers(8), batch_size=4)):
        assert not adaptdl._signal.get_exit_flag()
        os.kill(os.getpid(), signal.SIGTERM)
        assert adaptdl._signal.get_exit_flag() and adaptdl._signal.EXIT_FLAG
        break


@on(2)
def test_reads_before_the_replicas_meet():
    assert adl.finished_epochs() == 0 and adl.current_epoch() is None
    assert env.num_replicas() == 2
    loader, stats = adl.AdaptiveDataLoader(numbers(8), batch_size=4), adl.Accumulator()
    assert loader.current_batch_size is None and loader.current_local_bsz is None
    assert loader.accumulation_steps == 0 and not loader.training and len(loader) == 2
    assert len(stats) == 0
    with pytest.raises(RuntimeError, match="not initialized"):
        next(iter(loader))
    adl.init_process_group("gloo")
    assert [batch.tolist() for (batch,) in loader] == [[i, i + 2] for i in (env.replica_rank(), 4 + env.replica_rank())]


@one
def test_bounds_of_other_kinds():
    numpy = pytest.importorskip("numpy")
    adl.init_process_group("gloo")
    for big, bounds, wanted in ((numpy.int64(64), (numpy.int32(4), numpy.float64(16.5)), (4, 16)),
                                (64.0, (3.2, 32.0), (4, 32)), (numpy.float32(64), (None, 16.0), (None, 16))):
        loader = adl.AdaptiveDataLoader(numbers(8), batch_size=numpy.int64(8))
        loader.autoscale_batch_size(big, local_bsz_bounds=bounds)
        assert loader._elastic.max_batch_size == 64 and loader._elastic.local_bsz_bounds == wanted
        assert [len(batch) for (batch,) in loader] == [8]


@one
def test_a_sampler_for_any_replica():
    sampler = adl.ElasticSampler(numbers(10))
    assert (sampler.rank, sampler.num_replicas) == (0, 1)
    whole = list(sampler)
    sampler.num_replicas = 3
    parts = []
    for rank in range(3):
        sampler.rank = rank
        assert len(sampler) == 4
        parts.append(list(sampler))
    assert [parts[i % 3][i // 3] for i in range(10)] == whole
    other = iter(sampler)
    sampler.rank = 0
    assert list(zip(other, sampler)) == list(zip(parts[2], parts[0]))


@one
def test_bptt_length_and_splits():
    train, test = AdaptiveBPTTIterator.splits((torch.arange(100), torch.arange(30)), batch_size=4, bptt_len=5)
    assert len(train) == 5 and len(test) == 2  # ceil((25 - 1) / 5), ceil((7.5 - 1) / 5)
    assert [len(list(train)), len(list(test))] == [5, 2]
    one, two = AdaptiveBPTTIterator.splits((torch.arange(100), torch.arange(30)), (2, 3), bptt_len=5)
    assert (one.batch_size, two.batch_size) == (2, 3)


if __name__ == "__main__":
    harness.main(__file__)
