#!/usr/bin/python3
"""AdaptiveDataParallel against plain PyTorch and against the library's numbers."""

import copy

import harness
import pytest
import torch_fork

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import adaptdl.torch as adl
from adaptdl import _core
from adaptdl.torch.data import AdaptiveDataLoaderMixin

STEPS = 100
OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-4),
    "adam": lambda params: torch.optim.Adam(params, lr=1e-3),
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-3),
    "adadelta": lambda params: torch.optim.Adadelta(params, lr=0.5),
}


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
                         nn.Linear(8 * 36, 24), nn.ReLU(), nn.Linear(24, 5))


def images(count):
    torch.manual_seed(4)
    return TensorDataset(torch.randn(count, 1, 8, 8), torch.randint(5, (count,)))


def parameters(model):
    return [p.detach().clone() for p in model.parameters()]


def norm_sqr(tensors):
    return sum(float(t.double().square().sum()) for t in tensors)


class Micro(AdaptiveDataLoaderMixin):
    """A loader that dictates its sizes: local batches of m, s of them accumulated before a step. It has
    the same rows on every replica count: row r of R takes m examples at r * m."""

    def __init__(self, data, batch_size, m, s):
        AdaptiveDataLoaderMixin.__init__(self, batch_size)
        self.data, self.m, self.s = data, m, s

    def __iter__(self):
        with self._elastic.context():
            assert not self._elastic.skipdone()
            self._elastic.sync_local_bsz()
            loop = self._elastic._bound()
            loop.set_sizes(self.m, self.s)
            rank, replicas = adl.env.replica_rank(), adl.env.num_replicas()
            stride = self.m * replicas
            for start in range(0, len(self.data) // stride * stride, stride):
                first = start + rank * self.m
                loop.step(self.m, False)
                yield [t[first:first + self.m] for t in self.data.tensors]
                loop.commit()


# ---- one replica is plain PyTorch, bit for bit ----

def train_and_compare(kind, clip, schedule):
    data = images(STEPS * 8)
    model, plain = network(), network()
    optimizer, plain_optimizer = (OPTIMIZERS[kind](m.parameters()) for m in (model, plain))
    make = lambda optim: torch.optim.lr_scheduler.StepLR(optim, 1, 0.7) if schedule else None
    scheduler, plain_scheduler = make(optimizer), make(plain_optimizer)
    adl.init_process_group("gloo")
    model = adl.AdaptiveDataParallel(model, optimizer, scheduler)
    loader = adl.AdaptiveDataLoader(data, batch_size=16, shuffle=True)
    steps = 0
    for epoch in adl.remaining_epochs_until(2):
        for x, y in loader:
            for m, o in ((model, optimizer), (plain, plain_optimizer)):
                o.zero_grad()
                F.cross_entropy(m(x), y).backward()
                if clip:
                    nn.utils.clip_grad_norm_(m.parameters(), 0.1)
                o.step()
            steps += 1
        if schedule:
            scheduler.step(), plain_scheduler.step()
    assert steps == STEPS
    for ours, theirs in zip(model.module.state_dict().values(), plain.state_dict().values()):
        assert torch.equal(ours, theirs)
    return model.gns.var_avg()


@pytest.mark.parametrize("kind", sorted(OPTIMIZERS))
def test_one_replica_is_plain_pytorch_bit_for_bit(kind):
    assert torch_fork.replicas(1, train_and_compare, kind, False, True)[0] > 1e-6


def test_clipping_composes_bit_for_bit():
    torch_fork.replicas(1, train_and_compare, "sgd", True, False)


# ---- several replicas are plain DistributedDataParallel ----

def compare_with_ddp(kind, clip, as_view):
    data = images(1600)
    model, plain = network(), network()
    optimizer, plain_optimizer = (OPTIMIZERS[kind](m.parameters()) for m in (model, plain))
    adl.init_process_group("gloo")
    model = adl.AdaptiveDataParallel(model, optimizer, gradient_as_bucket_view=as_view)
    plain = DistributedDataParallel(plain)
    loader = adl.AdaptiveDataLoader(data, batch_size=32, shuffle=True, drop_last=True)
    for epoch in adl.remaining_epochs_until(2):
        for x, y in loader:
            for m, o in ((model, optimizer), (plain, plain_optimizer)):
                o.zero_grad()
                F.cross_entropy(m(x), y).backward()
                if clip:
                    nn.utils.clip_grad_norm_(m.parameters(), 0.1)
                o.step()
    assert model.gns.var_avg() > 1e-6
    for ours, theirs in zip(model.module.state_dict().values(), plain.module.state_dict().values()):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    return parameters(model)


@pytest.mark.parametrize("kind,clip,as_view", [("sgd", False, False), ("adam", False, True),
                                               ("sgd", True, True)])
def test_two_replicas_are_plain_ddp(kind, clip, as_view):
    first, second = torch_fork.replicas(2, compare_with_ddp, kind, clip, as_view)
    assert all(torch.equal(a, b) for a, b in zip(first, second))


# ---- the statistics are the library's ----

def gradients(model, x, y):
    """This replica's gradient, found without the wrapper. BatchNorm would move: the model has none."""
    loss = F.cross_entropy(model.module(x), y)
    return torch.autograd.grad(loss, list(model.module.parameters()))


def measure(kind, m, s, groups, clip=False, dtype=torch.float32):
    """Trains on this many micro-batches, and hands norms found by hand to the library's estimator."""
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).to(dtype)
    if groups == 1:
        params = net.parameters()
    else:
        params = [{"params": [net[0].weight, net[2].bias]}, {"params": [net[0].bias, net[2].weight]}]
    optimizer = OPTIMIZERS[kind](params)
    adl.init_process_group("gloo")
    replicas = dist.get_world_size()
    model = adl.AdaptiveDataParallel(net, optimizer)
    data = TensorDataset(torch.randn(60 * m * (s + 1) * replicas, 6, dtype=dtype),
                         torch.randint(3, (60 * m * (s + 1) * replicas,)))
    loader = Micro(data, 8, m, s)
    group_of = {id(p): i for i, g in enumerate(optimizer.param_groups) for p in g["params"]}
    order = list(net.parameters())
    steps, micro, total, before, taken = [], [], None, None, 0
    count, scale = replicas * (s + 1), m * replicas * (s + 1) / 8

    def divided(grads):
        if kind not in ("adam", "adamw") or taken < 5:
            return list(grads)
        return [g / ((optimizer.state[p]["exp_avg_sq"] / (1 - 0.999 ** taken)).sqrt() + 1e-8)
                for p, g in zip(order, grads)]

    def by_group(grads):
        found = [0.0] * groups
        for p, g in zip(order, grads):
            found[group_of[id(p)]] += norm_sqr([g])
        return found

    for _ in adl.remaining_epochs_until(1):
        for x, y in loader:
            own = gradients(model, x, y)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            micro.append(own)
            if not adl.current_dataloader().is_optim_step():
                assert all(not p.grad.any() for p in order)
                optimizer.step()
                continue
            mean = [p.grad.clone() for p in order]
            expected = [sum(some) / len(micro) for some in zip(*micro)]
            for grad in expected:
                dist.all_reduce(grad)
                grad /= replicas
            assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-7) for a, b in zip(mean, expected))
            if count > 1:
                local = torch.tensor([by_group(divided(one)) for one in micro]).sum(0).double()
                dist.all_reduce(local)
                steps.append(((local / count).tolist(), by_group(divided(mean)), count, scale))
            elif taken == 0:
                pass  # DDP lays its buckets out anew after the first pass: pairs begin with the second
            elif before is None:
                before = [g.clone() for g in mean]
            else:
                g, h = divided(mean), divided(before)
                a, b = by_group(g), by_group(h)
                both = by_group([(p + q) / 2 for p, q in zip(g, h)])
                steps.append(([(p + q) / 2 for p, q in zip(a, b)], both, 1, scale))
                before = None
            micro = []
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            optimizer.step()
            taken += 1
    # Sums over replicas count one step later: the last step's are not in yet.
    known = _core.noise_of(groups, steps[:-1] if replicas > 1 else steps)
    return known, (model.gns.sqr_avg(), model.gns.var_avg()), taken


@pytest.mark.parametrize("replicas,kind,m,s,groups", [
    (1, "sgd", 8, 0, 1), (1, "sgd", 8, 0, 2), (1, "adam", 8, 0, 2), (1, "sgd", 4, 3, 1),
    (1, "adamw", 4, 1, 2), (2, "sgd", 4, 0, 1), (2, "sgd", 8, 0, 2), (2, "adam", 4, 0, 1),
    (2, "sgd", 4, 2, 2), (2, "adam", 4, 1, 1)])
def test_statistics_are_those_of_the_library(replicas, kind, m, s, groups):
    for known, found, taken in torch_fork.replicas(replicas, measure, kind, m, s, groups):
        assert taken == 60
        assert found == pytest.approx(known, rel=2e-4)
        assert found[1] > 1e-6


@pytest.mark.parametrize("replicas,kind,m,s,groups", [
    (1, "sgd", 8, 0, 1), (1, "adam", 8, 0, 2), (1, "adamw", 4, 1, 2), (2, "sgd", 4, 0, 1),
    (2, "adam", 4, 0, 2), (2, "sgd", 4, 2, 2)])
def test_the_same_by_the_kernels_of_devices(replicas, kind, m, s, groups):
    """Gradients in double precision are measured by PyTorch's kernels, as those on a GPU are."""
    for known, found, _ in torch_fork.replicas(replicas, measure, kind, m, s, groups, False,
                                               torch.float64):
        assert found == pytest.approx(known, rel=2e-4)
        assert found[1] > 1e-6


def test_clipping_does_not_touch_the_statistics():
    known, found, _ = torch_fork.replicas(2, measure, "sgd", 4, 0, 1, True)[0]
    assert found == pytest.approx(known, rel=2e-4)


def test_adam_is_preconditioned_by_default():
    raw = torch_fork.replicas(2, measure, "sgd", 4, 0, 1)[0][1]
    adam = torch_fork.replicas(2, measure, "adam", 4, 0, 1)[0][1]
    # Divided by sqrt(v), every one of the 163 gradients is of the order of 1.
    assert raw[1] < 10 < adam[1]


# ---- accumulation ----

def accumulate(m, s, clip, kind):
    torch.manual_seed(6)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = OPTIMIZERS[kind](net.parameters())
    adl.init_process_group("gloo")
    model = adl.AdaptiveDataParallel(net, optimizer, scaling_rule=adl.parallel.AdaScale())
    model.scaling_rule.scale_lr = lambda scale: 1.0
    torch.manual_seed(7)
    data = TensorDataset(torch.randn(1024, 6), torch.randint(3, (1024,)))
    steps = 0
    for _ in adl.remaining_epochs_until(1):
        for x, y in Micro(data, 32, m, s):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
            steps += adl.current_dataloader().is_optim_step()
    assert steps == 1024 // 32
    return parameters(net)


@pytest.mark.parametrize("replicas,m,s,clip,kind", [
    (1, 8, 3, False, "sgd"), (2, 8, 1, False, "adam"), (2, 4, 3, True, "sgd"), (4, 8, 0, False, "sgd")])
def test_accumulation_equals_the_larger_batch(replicas, m, s, clip, kind):
    whole = torch_fork.replicas(1, accumulate, 32, 0, clip, kind)[0]
    for parts in torch_fork.replicas(replicas, accumulate, m, s, clip, kind):
        for a, b in zip(parts, whole):
            assert torch.allclose(a, b, rtol=1e-4, atol=2e-5)


class Scaler:
    """A loss scaler that changes its mind after every third batch: in the middle of a step, too."""

    def __init__(self):
        self.factor, self.batches = 4.0, 0

    def is_enabled(self):
        return True

    def scale(self, tensor):
        return tensor * self.factor

    def get_scale(self):
        return self.factor

    def step(self, optimizer):
        for group in optimizer.param_groups:
            for param in group["params"]:
                param.grad /= self.factor
        optimizer.step()

    def update(self):
        self.batches += 1
        if self.batches % 3 == 0:
            self.factor = 64.0 / self.factor

    def state_dict(self):
        return dict(vars(self))

    def load_state_dict(self, state):
        vars(self).update(state)


def scaled(scaler, m, s):
    torch.manual_seed(6)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    adl.init_process_group("gloo")
    rule = adl.scaling_rules.LinearScale()
    model = adl.AdaptiveDataParallel(net, optimizer, mp_scaler=scaler, scaling_rule=rule)
    rule.scale_lr = lambda scale: 1.0
    torch.manual_seed(7)
    data = TensorDataset(torch.randn(1024, 6), torch.randint(3, (1024,)))
    for _ in adl.remaining_epochs_until(1):
        for x, y in Micro(data, 32, m, s):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            if scaler is None:
                loss.backward()
                optimizer.step()
            else:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
    return parameters(net), (model.gns.sqr_avg(), model.gns.var_avg())


@pytest.mark.parametrize("replicas,m,s", [(1, 32, 0), (1, 8, 3), (2, 16, 0), (2, 4, 3)])
def test_loss_scales_may_change_at_any_time(replicas, m, s):
    plain, known = torch_fork.replicas(replicas, scaled, None, m, s)[0]
    for parts, found in torch_fork.replicas(replicas, scaled, Scaler(), m, s):
        assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(parts, plain))
        assert found == pytest.approx(known, rel=1e-3, abs=1e-6)


# ---- several passes, several wrappers, hooks of one's own ----

def two_passes():
    """Two losses, two backward passes, one step; and two wrappers, one fed by the other."""
    nets = [nn.Linear(6, 6), nn.Linear(6, 1)]
    plain = [copy.deepcopy(net) for net in nets]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
    plain_optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in plain]
    adl.init_process_group("gloo")
    rules = [adl.parallel.AdaScale(), adl.parallel.AdaScale()]
    ours = [adl.AdaptiveDataParallel(net, o, name=n, scaling_rule=rule)
            for net, o, n, rule in zip(nets, optimizers, "gd", rules)]
    for rule in rules:
        rule.scale_lr = lambda scale: 1.0
    for net, copied in zip(ours, plain):
        copied.load_state_dict(net.module.state_dict())
    plain = [DistributedDataParallel(net) for net in plain]
    data = TensorDataset(torch.randn(320, 6))
    for _ in adl.remaining_epochs_until(1):
        for (x,) in adl.AdaptiveDataLoader(data, batch_size=16, shuffle=True):
            for (g, d), (og, od) in ((ours, optimizers), (plain, plain_optimizers)):
                od.zero_grad()
                F.softplus(-d(x)).mean().backward()
                F.softplus(d(g(x).detach())).mean().backward()
                od.step()
                og.zero_grad()
                F.softplus(-d(g(x))).mean().backward()
                og.step()
    for net, other in zip(ours, plain):
        for a, b in zip(net.module.parameters(), other.module.parameters()):
            assert torch.allclose(a, b, rtol=1e-4, atol=1e-6)
        assert net.gns.var_avg() > 1e-6
    return [p.detach() for net in ours for p in net.parameters()]


def test_several_passes_and_wrappers():
    first, second = torch_fork.replicas(2, two_passes)
    assert all(torch.equal(a, b) for a, b in zip(first, second))


def passes_are_unbiased():
    """Gradients of known statistics in two passes: G = (1, ..., 1) in each, noise of variance 4 per
    element in each, 64 elements. So |G + G|^2 = 256 and tr(Sigma) = 2 * 64 * 4 = 512."""
    adl.init_process_group("gloo")
    net = nn.Linear(64, 1, bias=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    model = adl.AdaptiveDataParallel(net, optimizer)
    torch.manual_seed(100 + dist.get_rank())
    data = TensorDataset(torch.zeros(4000, 1))
    for _ in adl.remaining_epochs_until(1):
        for _ in adl.AdaptiveDataLoader(data, batch_size=2):
            optimizer.zero_grad()
            for _ in range(2):
                model(1 + 2 * torch.randn(64)).sum().backward()
            optimizer.step()
    return model.gns.sqr_avg(), model.gns.var_avg()


def test_statistics_of_several_passes_are_unbiased():
    sqr, var = torch_fork.replicas(2, passes_are_unbiased)[0]
    # The initial batch is 2: its noise is half of a single example's.
    print(f"info - two passes: |G|^2 {sqr:.1f} (256), tr(Sigma) {var:.1f} (256)")
    assert sqr == pytest.approx(256, rel=0.1)
    assert var == pytest.approx(256, rel=0.1)


def own_hook():
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
    torch.manual_seed(8)
    net = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    adl.init_process_group("gloo")
    model = adl.AdaptiveDataParallel(net, optimizer)
    calls = []

    def hook(state, bucket):
        calls.append(state)
        return fp16_compress_hook(None, bucket)

    model.register_comm_hook("mine", hook)
    with pytest.raises(RuntimeError):
        model.register_comm_hook(None, hook)
    plain = DistributedDataParallel(copy.deepcopy(net))
    plain.register_comm_hook(None, fp16_compress_hook)
    data = TensorDataset(torch.randn(64, 6), torch.randint(3, (64,)))
    for _ in adl.remaining_epochs_until(1):
        for x, y in adl.AdaptiveDataLoader(data, batch_size=8):
            plain.load_state_dict({"module." + k: v for k, v in net.state_dict().items()})
            optimizer.zero_grad()
            plain.zero_grad()
            F.cross_entropy(model(x), y).backward()
            F.cross_entropy(plain(x), y).backward()
            assert all(torch.equal(a.grad, b.grad) for a, b in zip(net.parameters(), plain.parameters()))
            optimizer.step()
    assert calls and set(calls) == {"mine"}


def test_communication_hooks_of_the_program():
    torch_fork.replicas(2, own_hook)


def sparse(replicas):
    torch.manual_seed(9)
    net = nn.Sequential(nn.EmbeddingBag(20, 4, sparse=True), nn.Linear(4, 2))
    plain = copy.deepcopy(net)
    optimizer, plain_optimizer = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (net, plain))
    adl.init_process_group("gloo")
    model = adl.AdaptiveDataParallel(net, optimizer)
    other = DistributedDataParallel(plain)
    data = TensorDataset(torch.randint(20, (96, 3)), torch.randint(2, (96,)))
    for _ in adl.remaining_epochs_until(1):
        for x, y in adl.AdaptiveDataLoader(data, batch_size=8):
            for m, o in ((model, optimizer), (other, plain_optimizer)):
                o.zero_grad()
                F.cross_entropy(m(x), y).backward()
                o.step()
    for a, b in zip(net.parameters(), plain.parameters()):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("replicas", [1, 2])
def test_sparse_gradients(replicas):
    torch_fork.replicas(replicas, sparse, replicas)


# ---- rules of one's own, learning rates ----

def own_rule():
    class Cubic(adl.scaling_rules.ScalingRuleBase):
        def scale_lr(self, scale):
            assert self.adp.gns.raw_sqr_avg.shape == self.adp.gns.raw_var_avg.shape == (2,)
            return [scale ** 3, 1.0]

    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD([{"params": [net.weight]}, {"params": [net.bias], "lr": 0.25}], lr=0.5)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)
    seen = []
    inner = optimizer.step

    def watched(*args, **kwargs):
        seen.append([g["lr"] for g in optimizer.param_groups])
        return inner(*args, **kwargs)

    optimizer.step = watched
    adl.init_process_group("gloo")
    model = adl.AdaptiveDataParallel(net, optimizer, schedule, scaling_rule=Cubic())
    data = TensorDataset(torch.randn(64, 4))
    for _ in adl.remaining_epochs_until(1):
        for (x,) in Micro(data, 8, 16, 0):
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
            assert [g["lr"] for g in optimizer.param_groups] == [0.5, 0.25]
    assert seen == [[0.5 * 8, 0.25]] * 4
    assert model.gns.accum_scale == 2 and model.gns.accum_count == 1
    assert model.gns.gain(1.0) == 1.0 and 1 <= model.gain <= 2
    assert model.gns.get_progress() == pytest.approx(sum([model.gain] * 4), rel=0.9)
    model.gns.set_progress(7.5)
    assert model.gns.get_progress() == 7.5


def test_rules_of_the_program():
    torch_fork.replicas(1, own_rule)


def built_in_rules():
    from adaptdl.torch.scaling_rules import AdaScale, AdamScale, LEGWScale, LinearScale, SqrtScale
    adl.init_process_group("gloo")
    made = {}
    for i, rule in enumerate((AdaScale(), AdamScale(), LinearScale(), SqrtScale(), LEGWScale(2, 100))):
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        made[type(rule).__name__] = adl.AdaptiveDataParallel(
            net, optimizer, scaling_rule=rule, name=str(i)).scaling_rule
    assert made["LinearScale"].scale_lr(4.0) == [4.0]
    assert made["SqrtScale"].scale_lr(4.0) == [2.0]
    assert made["AdaScale"].scale_lr(4.0) == pytest.approx([1.0])  # nothing is known yet
    legw = made["LEGWScale"]
    loader = adl.AdaptiveDataLoader(TensorDataset(torch.zeros(100, 1)), batch_size=10)
    for _ in adl.remaining_epochs_until(1):
        for _ in loader:
            assert legw.scale_lr(4.0) == [0.0]
            legw.adp.gns.set_progress(40.0)  # half of 2 epochs * 4 * 100 / 10 steps
            assert legw.scale_lr(4.0) == pytest.approx([1.0])
            legw.adp.gns.set_progress(1000.0)
            assert legw.scale_lr(4.0) == pytest.approx([2.0])
            break
    legw.initialize(legw.adp, optimizer)  # one rule may serve several models
    with pytest.raises(ValueError):
        LEGWScale(1, 0)
    with pytest.raises(NotImplementedError):
        adl.scaling_rules.ScalingRuleBase().scale_lr(1.0)


def test_built_in_rules():
    torch_fork.replicas(1, built_in_rules)


if __name__ == "__main__":
    harness.main(__file__)
