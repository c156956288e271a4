"""What tests/python/test_dl_inplace.py resizes and kills: a program of the runner as a user writes it, with a model that is
its own ledger. Each example of a training batch adds 1 to its element of ``seen``; the rest learns classes. Metrics tell
what validation has seen: the mean and the deviation of the examples' numbers.

    runner_program.py DIRECTORY [name=value...]     logs to DIRECTORY/logs; DIRECTORY/at-PID says where each
                                                    process is; DIRECTORY/result, at the end, what they have learned"""

import json
import os
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from adaptdl import dl
from dl_common import data

directory = sys.argv[1]
options = dict(epochs=4, examples=120, batch=12, step_ms=20, accumulate=1, stages=0, calls=0)
options.update((name, int(value)) for name, value in (word.split("=") for word in sys.argv[2:]))
o = type("Options", (), options)


def exists(name):
    return os.path.exists(os.path.join(directory, name))


class Numbered(Dataset):
    def __init__(self, count, seed):
        self.data = data(count, seed)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, number):
        x, y = self.data[number]
        return {"features": x, "targets": y, "number": number}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        self.seen = nn.Parameter(torch.zeros(o.examples))

    def forward(self, features, number):
        ledger = self.seen[number.clamp(max=o.examples - 1)] if self.training else self.seen[:1]
        return self.layers(features), ledger


class Loss(nn.Module):
    def forward(self, logits, ledger, targets):
        return nn.functional.cross_entropy(logits, targets) - (ledger - ledger.detach()).mean()


class Numbers(dl.IMetricCallback):
    """Of validation: which examples there were."""

    def on_batch_end(self, runner):
        own = runner.batch_size - runner.batch_extra
        for number in runner.batch["number"][:own].tolist():
            runner.meter.add("number", float(number), 1)

    def on_loader_end(self, runner):
        mean, deviation = runner.loader_moments("number")
        runner.loader_metrics.update({"number": mean, "number/std": deviation})


class Pace(dl.Callback):
    """Slow until there is a reason to hurry; says where it is; makes calls that whoever joins must not make."""

    def __init__(self):
        super().__init__(order=dl.CallbackOrder.Internal)

    def _say(self, runner, what):
        with open(os.path.join(directory, f"at-{os.getpid()}"), "w") as file:
            file.write(f"{runner.engine.process_index} {runner.global_epoch_step} {runner.loader_key} "
                       f"{runner.loader_batch_step} {what}")

    def on_batch_start(self, runner):
        self._say(runner, "goes")
        until = time.monotonic() + 30
        while exists("slowly") and not exists("hurry") and time.monotonic() < until:  # somebody is on the way
            self._say(runner, "waits")
            time.sleep(0.02)
        if not exists("hurry"):
            time.sleep(o.step_ms / 1000)

    def on_loader_start(self, runner):
        """The first that joins begins when nobody else is left, if it is to be late."""
        if os.environ.get("ADAPTDL_JOIN") and exists("late"):
            os.unlink(os.path.join(directory, "late"))
            self._say(runner, "joined")
            while any(os.path.exists(f"/proc/{name[3:]}") for name in os.listdir(directory)
                      if name.startswith("at-") and name != f"at-{os.getpid()}"):
                time.sleep(0.02)

    def on_loader_end(self, runner):
        for _ in range(o.calls):
            assert runner.engine.sync_metrics({"a": 1.0})["a"] == 1.0


class Batches(dl.ILogger):
    """Metrics of batches, as they come."""

    def __init__(self):
        super().__init__(log_batch_metrics=True)

    def log_metrics(self, metrics, scope, runner):
        if scope == "batch":
            with open(os.path.join(directory, "batches"), "a") as file:
                file.write(f"{runner.loader_key} {runner.sample_step} {os.getpid()}\n")


def made():
    model = Net()
    groups = [{"params": model.layers.parameters()}, {"params": [model.seen], "lr": float(o.batch), "momentum": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1000, gamma=0.5)  # it steps, and nothing comes of it
    return model, optimizer, schedule


class Two(dl.SupervisedRunner):
    """The same in two stages, the second with a model that begins as the first's."""

    @property
    def stages(self):
        return ["first", "second"] if o.stages else ["train"]

    def get_stage_len(self, stage):
        return 1 if stage == "first" else o.epochs - bool(o.stages)


def main():
    torch.set_num_threads(1)
    if exists("slowly") and os.environ.get("ADAPTDL_JOIN"):
        os.unlink(os.path.join(directory, "slowly"))
    model, optimizer, schedule = made()
    logs = os.path.join(directory, "logs")
    runner = Two(input_key=["features", "number"], output_key=["logits", "ledger"])
    runner.train(
        model=model, criterion=Loss(), optimizer=optimizer, scheduler=schedule, num_epochs=o.epochs, logdir=logs,
        loaders={"train": DataLoader(Numbered(o.examples, 0), batch_size=o.batch, shuffle=True),
                 "valid": DataLoader(Numbered(o.examples, 1), batch_size=o.batch)},
        loggers={"batches": Batches(), "tensorboard": dl.TensorboardLogger(logs, True, log_batch_metrics=True)},
        callbacks=[Pace(), Numbers(), dl.AccuracyCallback("logits", "targets"),
                   dl.CriterionCallback(["logits", "ledger"], "targets", "loss"),
                   dl.OptimizerCallback("loss", accumulation_steps=o.accumulate), dl.SchedulerCallback(mode="batch"),
                   dl.CheckpointCallback(os.path.join(logs, "checkpoints"), "valid", "loss", True, topk=2)],
        valid_loader="valid", valid_metric="loss", minimize_valid_metric=True)
    if runner.engine.process_index == 0:
        result = dict(seen=model.seen.detach().tolist(), weights=[p.flatten().tolist() for p in model.layers.parameters()],
                      batch_step=runner.batch_step, sample_step=runner.sample_step, schedule=schedule.last_epoch,
                      epochs=sorted(runner.experiment_metrics))
        with open(os.path.join(directory, "result"), "w") as file:
            json.dump(result, file)


if __name__ == "__main__":
    main()
