#!/usr/bin/python3
"""A batch size that does not divide by the replicas: dealt out as evenly as can be, and gradients count by
examples, so that the result is that of one process."""

import ast

import harness
import pytest

PROGRAM = """
import os, torch
from torch.utils.data import TensorDataset
import adaptdl.torch as adl

adl.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.01)
inputs = torch.randn(50, 4)
data = TensorDataset(torch.arange(50), inputs, inputs.sum(1, keepdim=True).sin())
train = adl.AdaptiveDataLoader(data, batch_size=8, shuffle=True, num_workers={workers}, drop_last={drop_last})
model = adl.AdaptiveDataParallel(model, optimizer)
sizes, seen = [], []
for epoch in adl.remaining_epochs_until(3):
    for number, x, y in train:
        assert train.current_batch_size == 8
        sizes.append(len(number))
        seen += number.tolist()
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
result = [p for parameter in model.parameters() for p in parameter.flatten().tolist()]
print((sizes, seen, result, model.gns.sqr_avg(), model.gns.var_avg(), model.gns.accum_scale))
"""


def run(replicas, optimizer="SGD", workers=0, drop_last=False):
    code = PROGRAM.replace("{optimizer}", optimizer).replace("{workers}", str(workers))
    code = code.replace("{drop_last}", str(drop_last))
    return [ast.literal_eval(out) for out in harness.replicas(replicas, code, timeout=300)]


@pytest.mark.parametrize("optimizer, workers", [("SGD", 0), ("Adam", 1)])
def test_the_result_is_that_of_one_process(optimizer, workers):
    (one,), three = run(1, optimizer), run(3, optimizer, workers)
    assert one[0] == 3 * ([8] * 6 + [2])
    # The rest of 2 goes to the first two; the third has one example that does not count.
    assert [replica[0] for replica in three] == [3 * ([size] * 6 + [1]) for size in (3, 3, 2)]
    counted = three[0][1] + three[1][1] + [n for i, n in enumerate(three[2][1]) if i % 13 != 12]
    assert sorted(counted) == sorted(3 * list(range(50)))
    for replica in three:
        assert replica[2] == pytest.approx(one[2], abs=2e-5)
        assert replica[3:] == three[0][3:] and replica[5] == 1.0


def test_a_rest_is_dropped_by_all():
    three = run(3, drop_last=True)
    assert [replica[0] for replica in three] == [3 * [size] * 6 for size in (3, 3, 2)]
    assert all(replica[2] == pytest.approx(three[0][2], abs=1e-7) for replica in three)


if __name__ == "__main__":
    harness.main(__file__)
