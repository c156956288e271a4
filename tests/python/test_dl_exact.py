#!/usr/bin/python3
"""What must come out exactly: examples counted once on any number of processes, gradients that wait for a step when a
run is interrupted, one loss scaler for several optimizers, checkpoints of the state after the schedule's step."""

import json
import re
import sys

import harness

import pytest

torch = pytest.importorskip("torch")
from dl_common import loaders, network, parts, program, run  # noqa: E402
from test_cluster_torch import BIN  # noqa: E402

from adaptdl import dl  # noqa: E402

# ---- examples that fill up shares ----

COUNTED = """
if __name__ == "__main__":
    made = parts(lr=0.0)
    runner = dl.SupervisedRunner()
    runner.train(**made, loaders=loaders(41, 23, 8), num_epochs=1, ddp=len(sys.argv) > 1,
                 callbacks=[dl.AccuracyCallback("logits", "targets", topk=(1, 3))])
    if runner.engine.process_index == 0:
        print("metrics", json.dumps(runner.epoch_metrics))
"""


def metrics_in(text):
    found = json.loads(re.search(r"^(?:\[0\] )?metrics (.*)$", text, re.MULTILINE)[1])
    return {(key, name): value for key in ("train", "valid") for name, value in found[key].items()
            if not name.endswith("std")}


def test_examples_count_once(tmp_path):
    """41 and 23 examples on two processes, elastic or not: each process has one more than its share, and the metrics
    are those of one process."""
    path = program(tmp_path, COUNTED)
    alone = metrics_in(run(sys.executable, path))
    assert ("train", "accuracy03") in alone
    own = metrics_in(run(sys.executable, path, "ddp"))
    assert own == pytest.approx(alone, abs=1e-6)
    elastic = metrics_in(run(BIN / "adaptdl", "run", "-n", "2", "--", sys.executable, path))
    assert elastic == pytest.approx(alone, abs=1e-6)


# ---- accumulated gradients ----

WAITING = """
class Stop(dl.Callback):
    def on_batch_end(self, runner):
        if f"{runner.epoch_step}.{runner.loader_key}.{runner.loader_batch_step}" == sys.argv[2]:
            os.kill(os.getpid(), signal.SIGTERM)

made = parts()
dl.SupervisedRunner().train(**made, loaders=loaders(), num_epochs=2, callbacks=[
    dl.OptimizerCallback("loss", accumulation_steps=4, grad_clip_fn="clip_grad_norm_",
                         grad_clip_params={"max_norm": 0.5}), Stop()])
torch.save(made["model"].state_dict(), sys.argv[1])
"""


@pytest.mark.parametrize("place", ["1.train.2", "1.valid.1", "2.train.1"])
def test_gradients_that_wait_survive(place, tmp_path):
    """Six batches an epoch, a step every four: two wait in the middle of training, and at the epoch's end."""
    path = program(tmp_path, WAITING)
    run(sys.executable, path, tmp_path / "whole.pth", "", ADAPTDL_CHECKPOINT_PATH=tmp_path / "ck-whole")
    run(sys.executable, path, tmp_path / "a.pth", place, status=143, ADAPTDL_CHECKPOINT_PATH=tmp_path / "ck")
    run(sys.executable, path, tmp_path / "a.pth", "", ADAPTDL_CHECKPOINT_PATH=tmp_path / "ck")
    whole, again = torch.load(tmp_path / "whole.pth"), torch.load(tmp_path / "a.pth")
    assert all(torch.equal(whole[key], again[key]) for key in whole)
    assert not torch.equal(whole["0.weight"], network().state_dict()["0.weight"])


# ---- one loss scaler, two optimizers ----

class Scaler:
    """As GradScaler is on a GPU: unscales once between updates, and its factor changes with each."""

    def __init__(self):
        self.factor, self.unscaled, self.updates = 4.0, set(), 0

    def scale(self, loss):
        return loss * self.factor

    def unscale_(self, optimizer):
        if id(optimizer) in self.unscaled:
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update().")
        self.unscaled.add(id(optimizer))
        for group in optimizer.param_groups:
            for param in group["params"]:
                param.grad /= self.factor

    def step(self, optimizer):
        if id(optimizer) not in self.unscaled:
            self.unscale_(optimizer)
        optimizer.step()

    def update(self):
        self.factor, self.unscaled = self.factor * 2, set()
        self.updates += 1


class Two(dl.Runner):
    """Two models, each with an optimizer; one loss is both's."""

    def handle_batch(self, batch):
        x, y = batch
        logits = self.model["a"](x) + self.model["b"](x)
        self.batch_metrics["loss"] = torch.nn.functional.cross_entropy(logits, y)


def train_two(scaler, clipped):
    models = {"a": network(0), "b": network(1)}
    optimizers = {key: torch.optim.SGD(model.parameters(), lr=0.1) for key, model in models.items()}
    engine = dl.CPUEngine()
    engine._scaler = scaler
    clip = dict(grad_clip_fn="clip_grad_norm_", grad_clip_params={"max_norm": 0.3}) if clipped else {}
    callbacks = [dl.BackwardCallback("loss", **clip), dl.OptimizerCallback("loss", optimizer_key="a"),
                 dl.OptimizerCallback("loss", optimizer_key="b")]
    Two().train(model=models, optimizer=optimizers, engine=engine, loaders={"train": loaders()["train"]},
                callbacks=callbacks, num_epochs=1)
    return {f"{key}.{name}": value for key, model in models.items() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("clipped", [False, True])
def test_two_optimizers_and_one_scaler(clipped):
    """The steps are those without a scaler, and it is updated once for both."""
    scaler = Scaler()
    with_it, without = train_two(scaler, clipped), train_two(None, clipped)
    assert scaler.updates == 6
    for key in without:
        assert torch.allclose(with_it[key], without[key], atol=1e-7), key


def test_optimizers_in_turns_and_one_scaler():
    """A backward pass after each one's step, as in adversarial training: each has its update."""
    engine, scaler = dl.CPUEngine(), Scaler()
    engine._scaler = scaler
    weights = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    optimizers = {key: torch.optim.SGD([weight], lr=1.0) for key, weight in zip("ab", weights)}
    engine.prepare_all(torch.nn.Linear(1, 1), optimizers, None, None)
    for _ in range(3):
        for weight, optimizer in zip(weights, optimizers.values()):
            engine.zero_grad(optimizer)
            engine.backward(0.125 * weight.sum())
            engine.optimizer_step(optimizer)
    assert [float(weight) for weight in weights] == [1 - 3 * 0.125] * 2
    assert scaler.updates == 5  # the sixth comes with the next backward pass, or both's steps


# ---- the schedule's step is in the checkpoint ----

def test_checkpoints_of_a_run_are_after_the_schedules_step(tmp_path):
    made = parts(lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(made["optimizer"], 1, gamma=0.5)
    rates = []

    class See(dl.Callback):
        def on_loader_start(self, runner):
            rates.append((runner.epoch_step, runner.optimizer.param_groups[0]["lr"]))

    def train(made, schedule, epochs, **more):
        dl.SupervisedRunner().train(**made, scheduler=schedule, loaders={"train": loaders()["train"]}, num_epochs=epochs,
                                    callbacks=[dl.CheckpointCallback(tmp_path, mode="runner"), See()], **more)

    train(made, schedule, 2)
    saved = torch.load(tmp_path / "runner.last.pth")
    assert saved["scheduler_state_dict"]["last_epoch"] == 2
    made = parts(lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(made["optimizer"], 1, gamma=0.5)
    train(made, schedule, 3, resume=str(tmp_path / "runner.last.pth"))
    assert [epoch for epoch, _ in rates] == [1, 2, 3]
    assert [rate for _, rate in rates] == pytest.approx([0.1, 0.05, 0.025])


if __name__ == "__main__":
    harness.main(__file__)
