#!/usr/bin/python3
"""Replicas that are not at the same step are told so, by name, instead of averaging gradients of different
epochs."""

import harness

PROGRAM = """
import os, sys, torch
from torch.utils.data import TensorDataset
import adaptdl.torch as adl

adl.init_process_group("gloo")
torch.manual_seed(0)
rank = int(os.environ["ADAPTDL_REPLICA_RANK"])
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(400, 4), torch.randn(400, 1))
train = adl.AdaptiveDataLoader(data, batch_size=8, shuffle=True)
valid = adl.AdaptiveDataLoader(data, batch_size=8)
model = adl.AdaptiveDataParallel(model, optimizer)
steps = 0
try:
    for epoch in adl.remaining_epochs_until(3):
        for x, y in train:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            steps += 1
            if rank == 1 and steps == 5:
                break
        for x, y in (valid if {evaluate} else ()):
            model(x)
except BaseException as error:
    print(steps, type(error).__name__, error)
    sys.exit(1)
"""


def test_a_replica_in_another_epoch_is_named():
    for out in harness.replicas(2, PROGRAM.replace("{evaluate}", "False"), status=1):
        # At the step after the one that was mixed; or in it, when the other one was told before.
        assert out[:2] in ("5 ", "6 "), out
        assert out[2:].startswith("RuntimeError the replicas have run apart: rank 0 is in epoch 0, "), out
        assert " at 40, rank 1 is in epoch 1, " in out, out


def test_a_replica_that_evaluates_is_named():
    """The others wait for its gradients; they learn why there are none."""
    for out in harness.replicas(2, PROGRAM.replace("{evaluate}", "True"), status=1):
        assert "5 RuntimeError" in out and "the replicas have run apart" in out, out
        assert "rank 1 is in epoch 0, in loop 1 over loader-1 at 0" in out, out


if __name__ == "__main__":
    harness.main(__file__)
