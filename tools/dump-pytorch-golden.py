#!/usr/bin/python3
"""Writes tests/golden/data/pytorch.bin: what PyTorch computes for the layers, losses, optimizers and
schedules of src/nn, for tests/unit/test_nn_pytorch.c and test_optim.c to compare with.

Made with Debian's python3-torch 1.13, one thread:  tools/dump-pytorch-golden.py
Inputs are not stored: both sides make them with fill() below, so the file holds results only.

File: "ADLGOLD1", then records: u32 length of name, name, u32 type (0 = float32, 1 = float64),
u32 count, count numbers. Little-endian.
"""
import os
import struct
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
records = []


def put(name, values):
    array = values.detach().numpy() if torch.is_tensor(values) else np.asarray(values)
    kind = 1 if array.dtype == np.float64 else 0
    data = np.ascontiguousarray(array, dtype=np.float64 if kind else np.float32).tobytes()
    encoded = name.encode()
    records.append(struct.pack("<I", len(encoded)) + encoded +
                   struct.pack("<II", kind, array.size) + data)


def fill(shape, seed, scale=1.0):
    """Numbers in [-scale, scale): a 32-bit hash of the element's place and the seed, 24 bits kept, so
    that C computes the very same floats."""
    count = int(np.prod(shape))
    x = (np.arange(count, dtype=np.uint64) + np.uint64(seed * 7919)) & 0xFFFFFFFF
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x ^= x >> np.uint64(shift)
        x = (x * np.uint64(factor)) & np.uint64(0xFFFFFFFF)
    x ^= x >> np.uint64(16)
    values = ((x >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1))
    return torch.from_numpy((values * np.float32(scale)).reshape(shape))


def set_params(module, seed, scale):
    """Parameter i (in PyTorch's order) gets fill(seed + i)."""
    for i, p in enumerate(module.parameters()):
        p.data = fill(p.shape, seed + i, scale)


def run(name, module, x, seed, grads=True):
    """Forward in training mode, backward from fill(): output, input gradient, parameter gradients."""
    x = x.clone().requires_grad_(True)
    y = module(x)
    put(name + ".y", y)
    y.backward(fill(y.shape, seed))
    put(name + ".dx", x.grad)
    if grads:
        for i, p in enumerate(module.parameters()):
            put("%s.grad%d" % (name, i), p.grad)


def layers():
    cases = [  # name, batch, in channels, height, width, out channels, kernel, stride, padding, bias
        ("conv_first", 3, 1, 9, 10, 8, 3, 1, 0, True),
        ("conv_wino", 2, 16, 10, 10, 32, 3, 1, 1, True),
        ("conv_stride", 2, 5, 11, 9, 7, 5, 2, 2, True),
        ("conv_1x1", 4, 6, 4, 5, 3, 1, 1, 0, False),
    ]
    for name, batch, c, h, w, out, k, stride, padding, bias in cases:
        m = nn.Conv2d(c, out, k, stride, padding, bias=bias)
        set_params(m, 10, 0.3)
        run(name, m, fill((batch, c, h, w), 1), 2)
    m = nn.Linear(37, 11)
    set_params(m, 10, 0.3)
    run("linear", m, fill((5, 37), 1), 2)

    m = nn.BatchNorm2d(6)
    set_params(m, 10, 1)
    run("norm", m, fill((3, 6, 4, 5), 1), 2)
    m(fill((3, 6, 4, 5), 3, 2.0))
    put("norm.mean", m.running_mean)
    put("norm.var", m.running_var)
    m.eval()
    put("norm.eval", m(fill((3, 6, 4, 5), 1)))

    run("relu", nn.ReLU(), fill((3, 4, 5, 5), 1), 2)
    run("pool2", nn.MaxPool2d(2), fill((3, 4, 7, 6), 1), 2)
    run("pool3", nn.MaxPool2d(3, 2), fill((3, 4, 7, 6), 1), 2)
    run("log_softmax", nn.LogSoftmax(dim=1), fill((4, 10), 1, 5.0), 2)


class Residual(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return x + self.block(x)


def conv_block(c, out, pool=False):
    block = [nn.Conv2d(c, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
    return nn.Sequential(*block, *([nn.MaxPool2d(2)] if pool else []))


def networks():
    # The tutorial's network without dropout, on smaller sizes.
    m = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 8, 3), nn.ReLU(), nn.MaxPool2d(2),
                      nn.Flatten(), nn.Linear(8 * 4 * 4, 16), nn.ReLU(), nn.Linear(16, 10),
                      nn.LogSoftmax(dim=1))
    set_params(m, 30, 0.2)
    run("mnist", m, fill((6, 1, 12, 12), 1), 2)

    s = 2
    m = nn.Sequential(conv_block(3, s), conv_block(s, 2 * s, True),
                      Residual(nn.Sequential(conv_block(2 * s, 2 * s), conv_block(2 * s, 2 * s))),
                      conv_block(2 * s, 4 * s, True), conv_block(4 * s, 8 * s, True),
                      Residual(nn.Sequential(conv_block(8 * s, 8 * s), conv_block(8 * s, 8 * s))),
                      nn.Sequential(nn.MaxPool2d(4), nn.Flatten(), nn.Linear(8 * s, 10)))
    set_params(m, 50, 0.5)
    run("resnet9", m, fill((4, 3, 32, 32), 1), 2)


def losses():
    x, labels = fill((7, 5), 1, 4.0), torch.tensor([0, 4, 2, 2, 1, 3, 0])
    target = fill((7, 5), 2)
    for reduction in ("mean", "sum"):
        for name, f in (("nll", lambda v: F.nll_loss(v, labels, reduction=reduction)),
                        ("ce", lambda v: F.cross_entropy(v, labels, reduction=reduction)),
                        ("mse", lambda v: F.mse_loss(v, target, reduction=reduction))):
            v = x.clone().requires_grad_(True)
            loss = f(v)
            loss.backward()
            put("loss.%s.%s" % (name, reduction), loss)
            put("loss.%s.%s.grad" % (name, reduction), v.grad)


STEPS = 20


def optimizers():
    """Two groups (37 and 5 elements, the second at a third of the rate); the parameters after each of
    20 steps whose gradients are fill() times a factor that changes from step to step."""
    cases = [
        ("sgd", torch.optim.SGD, dict(lr=0.1)),
        ("sgd_decay", torch.optim.SGD, dict(lr=0.1, weight_decay=0.01)),
        ("sgd_momentum", torch.optim.SGD,
         dict(lr=0.1, momentum=0.9, dampening=0.2, weight_decay=0.01)),
        ("sgd_nesterov", torch.optim.SGD, dict(lr=0.1, momentum=0.9, nesterov=True)),
        ("adam", torch.optim.Adam, dict(lr=0.01)),
        ("adam_decay", torch.optim.Adam, dict(lr=0.01, betas=(0.8, 0.99), weight_decay=0.05)),
        ("adamw", torch.optim.AdamW, dict(lr=0.01)),
        ("adamw_decay", torch.optim.AdamW, dict(lr=0.02, weight_decay=0.2)),
        ("adadelta", torch.optim.Adadelta, dict(lr=1.0)),
        ("adadelta_decay", torch.optim.Adadelta, dict(lr=0.7, rho=0.8, eps=1e-5, weight_decay=0.02)),
    ]
    for name, make, options in cases:
        a = nn.Parameter(fill((37,), 1))
        b = nn.Parameter(fill((5,), 2))
        small = dict(options, params=[b], lr=options["lr"] / 3)
        o = make([dict(options, params=[a]), small], lr=options["lr"])
        history = []
        for step in range(STEPS):
            scale = 0.5 + 0.25 * (step % 5)
            a.grad = fill((37,), 100 + step, scale)
            b.grad = fill((5,), 200 + step, scale)
            o.step()
            history += [a.detach().clone(), b.detach().clone()]
        put("optim." + name, torch.cat(history))
        if "adam" in name:
            group, state = o.param_groups[0], o.state[a]
            correction = 1 - group["betas"][1] ** int(state["step"])
            put("optim.%s.precondition" % name,
                (state["exp_avg_sq"].sqrt() / correction**0.5).add(group["eps"]))


def schedules():
    s = torch.optim.lr_scheduler
    cases = [
        ("step", lambda o: s.StepLR(o, 3, gamma=0.5)),
        ("multi_step", lambda o: s.MultiStepLR(o, [2, 5, 6], gamma=0.3)),
        ("exponential", lambda o: s.ExponentialLR(o, 0.9)),
        ("cosine", lambda o: s.CosineAnnealingLR(o, 8, eta_min=0.01)),
    ]
    for name, make in cases:
        o = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.4)
        schedule = make(o)
        rates = [o.param_groups[0]["lr"]]
        for _ in range(12):
            o.step()
            schedule.step()
            rates.append(o.param_groups[0]["lr"])
        put("schedule." + name, np.array(rates, dtype=np.float64))


def main():
    for part in (layers, networks, losses, optimizers, schedules):
        part()
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/golden/data/pytorch.bin")
    with open(path, "wb") as f:
        f.write(b"ADLGOLD1" + b"".join(records))
    print("%d records, %d bytes, torch %s" % (len(records), os.path.getsize(path), torch.__version__))


if __name__ == "__main__":
    sys.exit(main())
