#!/usr/bin/python3
"""The runner in one process: what it computes, writes and calls, each callback, each engine that needs no GPU, and
what it says about wrong input."""

import io
import json
import os
import pathlib
import random

import harness

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, RandomSampler, TensorDataset  # noqa: E402

from adaptdl import contrib, dl  # noqa: E402
from adaptdl.dl.checkpoint import load_checkpoint  # noqa: E402
from adaptdl.dl.elastic import ElasticEngine  # noqa: E402
from dl_common import data, events, loaders, network, parts, rows  # noqa: E402

RIGHT = dict(valid_loader="valid", valid_metric="loss", minimize_valid_metric=True)


def train(runner=None, **kwargs):
    runner = runner or dl.SupervisedRunner()
    runner.train(**{**parts(), "loaders": loaders(), "num_epochs": 2, **kwargs})
    return runner


# ---- what it computes ----

def by_hand(epochs, clip=None, accumulate=1):
    """The same training as a loop: per epoch the mean losses of train and valid, weighted by examples."""
    made, found = parts(), []
    model, criterion, optimizer = made["model"], made["criterion"], made["optimizer"]
    for epoch in range(epochs):
        sums = {}
        for key, loader in loaders().items():
            total = count = 0
            for number, (x, y) in enumerate(loader):
                with torch.set_grad_enabled(key == "train"):
                    loss = criterion(model(x), y)
                if key == "train":
                    loss.backward()
                    if (number + 1) % accumulate == 0:
                        if clip:
                            nn.utils.clip_grad_norm_(model.parameters(), clip)
                        optimizer.step()
                        optimizer.zero_grad()
                total, count = total + loss.item() * len(x), count + len(x)
            sums[key] = total / count
        found.append(sums)
    return found


def losses(runner):
    return [{key: metrics[key]["loss"] for key in ("train", "valid")}
            for _, metrics in sorted(runner.experiment_metrics.items())]


def near(found, wanted):
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted):
        assert a == pytest.approx(b, abs=1e-6)


def test_it_is_the_loop_that_one_writes_by_hand():
    runner = train(num_epochs=3)
    near(losses(runner), by_hand(3))
    assert runner.epoch_step == 3 and runner.batch_step == 3 * 9 and runner.sample_step == 3 * 136
    deviation = runner.experiment_metrics[3]["valid"]["loss/std"]
    values = [nn.functional.cross_entropy(runner.model(x), y) for x, y in loaders()["valid"]]
    weights = [16, 16, 8]
    mean = sum(w * v.item() for w, v in zip(weights, values)) / 40
    assert deviation == pytest.approx((sum(w * (v.item() - mean) ** 2 for w, v in zip(weights, values)) / 39) ** 0.5,
                                      rel=1e-4)


@pytest.mark.parametrize("callbacks", [
    lambda: [dl.BackwardCallback("loss", grad_clip_fn=nn.utils.clip_grad_norm_, grad_clip_params={"max_norm": 0.5})],
    lambda: [dl.OptimizerCallback("loss", grad_clip_fn="clip_grad_norm_", grad_clip_params={"max_norm": 0.5})],
])
def test_gradients_are_clipped(callbacks):
    near(losses(train(callbacks=callbacks())), by_hand(2, clip=0.5))
    assert losses(train())[1]["train"] != pytest.approx(by_hand(2, clip=0.5)[1]["train"], abs=1e-6)


def test_gradients_are_accumulated_and_clipped_once():
    callbacks = [dl.BackwardCallback("loss", grad_clip_fn="clip_grad_norm_", grad_clip_params={"max_norm": 0.5},
                                     log_gradient=True),
                 dl.OptimizerCallback("loss", accumulation_steps=3)]
    runner = train(callbacks=callbacks)
    near(losses(runner), by_hand(2, clip=0.5, accumulate=3))


def test_the_optimizer_makes_the_backward_pass_where_nobody_does():
    class Older(dl.Runner):
        def handle_batch(self, batch):
            x, y = batch
            self.batch = {"logits": self.model(x), "targets": y}

    callbacks = {"criterion": dl.CriterionCallback("logits", "targets", "loss"),
                 "optimizer": dl.OptimizerCallback("loss")}
    near(losses(train(Older(), callbacks=callbacks)), by_hand(2))


def test_a_program_that_does_it_all_itself():
    class Own(dl.Runner):
        def predict_batch(self, batch):
            return self.model(batch[0])

        def handle_batch(self, batch):
            x, y = batch
            loss = nn.functional.cross_entropy(self.model(x), y)
            self.batch_metrics["loss"] = loss
            self.meter.add("loss", loss.item(), self.batch_size)
            if self.is_train_loader:
                self.engine.backward(loss)
                self.optimizer.step()
                self.optimizer.zero_grad()

        def on_loader_end(self, runner):
            self.loader_metrics["loss"] = self.loader_moments("loss")[0]
            super().on_loader_end(runner)

    runner = train(Own())
    near(losses(runner), by_hand(2))
    answers = list(runner.predict_loader(loader=loaders()["valid"]))
    assert [tuple(answer.shape) for answer in answers] == [(16, 4), (16, 4), (8, 4)]
    assert not answers[0].requires_grad


def test_no_gradients_outside_training():
    class Watch(dl.Callback):
        seen = []

        def on_batch_end(self, runner):
            self.seen.append((runner.loader_key, runner.batch["logits"].requires_grad, runner.model.training))

    train(callbacks=[Watch()], num_epochs=1)
    assert set(Watch.seen) == {("train", True, True), ("valid", False, False)}


def test_seeds():
    """seed + epoch at each loader: what is random in a run does not depend on what was before."""
    class Draw(dl.Callback):
        def __init__(self):
            super().__init__()
            self.drawn = []

        def on_loader_start(self, runner):
            self.drawn.append(torch.rand(1).item())

    first, second = Draw(), Draw()
    train(callbacks=[first], seed=7)
    torch.rand(100)
    train(callbacks=[second], seed=7)
    assert first.drawn == second.drawn
    wanted = []
    for epoch in (1, 2):
        torch.manual_seed(7 + epoch)
        wanted += [torch.rand(1).item()] * 2
    assert first.drawn == wanted


# ---- events, stages ----

def recorder(log, order):
    class Record(dl.Callback):
        def __init__(self):
            super().__init__(order=order)
    for event in dl.callback.EVENTS:
        setattr(Record, event, lambda self, runner, event=event: log.append((event, order)))
    return Record()


def test_events_and_their_order():
    log = []
    train(loaders={"train": DataLoader(data(16), batch_size=16)}, num_epochs=1,
          callbacks=[recorder(log, 100), recorder(log, 5)])
    nested = ["on_experiment_start", "on_stage_start", "on_epoch_start", "on_loader_start", "on_batch_start",
              "on_batch_end", "on_loader_end", "on_epoch_end", "on_stage_end", "on_experiment_end"]
    assert log == [(event, order) for event in nested for order in (5, 100)]


def test_callbacks_are_called_by_their_numbers():
    names = {"Internal": 0, "Metric": 10, "MetricAggregation": 20, "Backward": 30, "Optimizer": 40, "Scheduler": 50,
             "Checkpoint": 50, "External": 100}
    assert {name: int(getattr(dl.CallbackOrder, name)) for name in names} == names
    kinds = [dl.TqdmCallback(), dl.CheckpointCallback("x"), dl.OptimizerCallback("loss"), dl.BackwardCallback("loss"),
             dl.MetricAggregationCallback("m"), dl.CriterionCallback("a", "b", "loss"), dl.BatchOverfitCallback()]
    assert [callback.order for callback in dl.callback.sort_callbacks(kinds).values()] == [0, 10, 20, 30, 40, 50, 100]


def test_a_callback_can_be_switched_off():
    log = []
    train(callbacks=[dl.CallbackWrapper(recorder(log, 1), enable_callback=False)], num_epochs=1)
    assert log == []
    train(callbacks=[dl.CallbackWrapper(recorder(log, 1))], num_epochs=1)
    assert log


def test_an_exception_goes_through_the_callbacks():
    class Bad(dl.Callback):
        told = None

        def on_batch_end(self, runner):
            raise ZeroDivisionError("of the callback")

        def on_exception(self, runner):
            Bad.told = runner.exception

    with pytest.raises(ZeroDivisionError, match="of the callback"):
        train(callbacks=[Bad()])
    assert isinstance(Bad.told, ZeroDivisionError)


class Staged(dl.IRunner):
    """Everything said by methods, with stages."""

    stages = ["train_first", "train_second"]

    def __init__(self):
        super().__init__()
        self.log = []

    def get_engine(self):
        return dl.CPUEngine()

    def get_stage_len(self, stage):
        return {"train_first": 2, "train_second": 1}[stage]

    def get_loaders(self, stage):
        self.log.append(stage)
        return loaders()

    def get_model(self, stage):
        return self.model if self.model is not None else network()

    def get_criterion(self):
        return nn.CrossEntropyLoss()

    def get_optimizer(self, stage, model):
        return torch.optim.SGD(model.parameters(), lr=0.1 if stage == "train_first" else 0.01)

    def get_callbacks(self, stage):
        return {"criterion": dl.CriterionCallback("logits", "targets", "loss"),
                "backward": dl.BackwardCallback("loss"), "optimizer": dl.OptimizerCallback("loss")}

    def handle_batch(self, batch):
        x, y = batch
        self.batch = {"logits": self.model(x), "targets": y}

    def on_loader_end(self, runner):
        super().on_loader_end(runner)
        self.log.append((self.stage_key, self.epoch_step, self.num_epochs, self.loader_key,
                         self.loader_metrics["lr"]))


def test_stages_with_and_without_the_argument():
    runner = Staged().run()
    assert [item for item in runner.log if item[-2:] != "" and "valid" not in item] == [
        "train_first", ("train_first", 1, 2, "train", 0.1), ("train_first", 2, 2, "train", 0.1),
        "train_second", ("train_second", 1, 1, "train", 0.01)]


# ---- files ----

def test_files(tmp_path):
    train(logdir=tmp_path, num_epochs=3, hparams={"lr": 0.05}, verbose=False, **RIGHT)
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    fixed = {name for name in files if "tfevents" not in name}
    best = json.loads((tmp_path / "checkpoints" / "model.storage.json").read_text())["storage"][0]["logpath"]
    assert fixed == {"csv_logger/train.csv", "csv_logger/valid.csv", "csv_logger/_epoch_.csv",
                     "csv_logger/hparams.json", "checkpoints/model.last.pth", "checkpoints/model.best.pth",
                     "checkpoints/model.storage.json", str(pathlib.Path(best).relative_to(tmp_path))}
    assert sorted(os.path.dirname(name) for name in files - fixed) == [
        "tensorboard/_epoch_", "tensorboard/train", "tensorboard/valid"] or \
        sorted(os.path.dirname(name) for name in files - fixed) == ["tensorboard/train", "tensorboard/valid"]
    assert json.loads((tmp_path / "csv_logger" / "hparams.json").read_text()) == {"lr": 0.05}


def test_csv_and_tensorboard_say_the_same(tmp_path):
    runner = train(logdir=tmp_path, num_epochs=3)
    table = rows(tmp_path / "csv_logger" / "valid.csv")
    assert list(table[0]) == ["step", "loss", "loss/mean", "loss/std", "lr", "momentum"]
    assert [float(row["loss"]) for row in table] == [item["valid"] for item in losses(runner)]
    found = [(step, value) for step, tag, value in events(tmp_path / "tensorboard" / "valid") if tag == "loss/epoch"]
    assert [step for step, _ in found] == [1, 2, 3]
    assert [value for _, value in found] == pytest.approx([float(row["loss"]) for row in table], rel=1e-6)


def test_a_second_run_in_the_same_place_repeats_no_header_and_no_epoch(tmp_path):
    train(logdir=tmp_path, num_epochs=3)
    train(logdir=tmp_path, num_epochs=2)
    text = (tmp_path / "csv_logger" / "train.csv").read_text()
    assert text.count("step") == 1 and [row["step"] for row in rows(tmp_path / "csv_logger" / "train.csv")] == ["1", "2"]
    steps = [step for step, tag, _ in events(tmp_path / "tensorboard" / "train") if tag == "loss/epoch"]
    assert steps == [1, 2]


def test_metrics_of_batches_in_tensorboard(tmp_path):
    logger = dl.TensorboardLogger(tmp_path, log_batch_metrics=True)
    train(loggers={"board": logger}, num_epochs=1)
    found = [step for step, tag, _ in events(tmp_path / "train") if tag == "loss/batch"]
    assert found == [16, 32, 48, 64, 80, 96]


def test_loggers_that_are_given_a_directory_write_there(tmp_path):
    train(loggers={"csv": dl.CSVLogger(tmp_path / "own")}, logdir=tmp_path / "logs", num_epochs=1)
    assert (tmp_path / "own" / "train.csv").exists() and not (tmp_path / "logs" / "csv_logger").exists()


def test_a_column_that_comes_later(tmp_path):
    class Late(dl.Callback):
        def on_epoch_end(self, runner):
            if runner.epoch_step == 2:
                runner.epoch_metrics["_epoch_"]["late"] = 1.0

    train(logdir=tmp_path, callbacks=[Late()], num_epochs=3, scheduler=None)
    table = rows(tmp_path / "csv_logger" / "_epoch_.csv")
    assert [row["late"] for row in table] == ["", "1.0", ""]


def test_console(capsys):
    train(num_epochs=2, hparams={"a": 1})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" loss")[0] for line in lines[:2]] == ["train (1/2)", "valid (1/2)"]
    assert lines[2].startswith("* Epoch (1/2)") and " | lr: 0.05 | momentum: 0.9" in lines[0]


def test_metrics_reach_a_function():
    told = []
    train(loggers={"report": dl.ReportLogger(lambda metrics, step: told.append((step, metrics)))})
    assert [step for step, _ in told] == [1, 2] and told[0][1]["valid/loss"] > 0
    with pytest.raises(TypeError, match="report must be a function, not int"):
        dl.ReportLogger(3)

    def fails(metrics, step):
        raise OSError("no route")
    train(loggers={"report": dl.ReportLogger(fails)})


# ---- checkpoints ----

def scripted(values):
    """A metric with given values in the epochs."""
    class Scripted(dl.Callback):
        def on_epoch_end(self, runner):
            runner.epoch_metrics["valid"]["m"] = values[runner.epoch_step - 1]
    return Scripted(order=dl.CallbackOrder.Internal)


def test_the_best_epochs_are_kept(tmp_path, capsys):
    save = dl.CheckpointCallback(tmp_path, "valid", "m", minimize=False, topk=2)
    keep = {}

    class Keep(dl.Callback):
        def on_epoch_end(self, runner):
            keep[runner.epoch_step] = {key: value.clone() for key, value in runner.model.state_dict().items()}

    train(callbacks=[scripted([0.5, 0.9, 0.1, 0.7]), save, Keep()], num_epochs=4)
    assert {path.name for path in tmp_path.iterdir()} == {
        "model.0002.pth", "model.0004.pth", "model.best.pth", "model.last.pth", "model.storage.json"}
    listed = json.loads((tmp_path / "model.storage.json").read_text())["storage"]
    assert [(os.path.basename(item["logpath"]), item["metric"]) for item in listed] == [
        ("model.0002.pth", 0.9), ("model.0004.pth", 0.7)]
    for name, epoch in (("best", 2), ("last", 4), ("0002", 2), ("0004", 4)):
        saved = torch.load(tmp_path / f"model.{name}.pth")
        assert all(torch.equal(saved[key], keep[epoch][key]) for key in saved), name
    assert "Top models:\n" in capsys.readouterr().out


def test_the_best_is_loaded_at_the_end(tmp_path):
    best = {}

    class Keep(dl.Callback):
        def on_epoch_end(self, runner):
            best.setdefault(runner.epoch_step, [p.clone() for p in runner.model.parameters()])

    runner = train(callbacks=[scripted([0.5, 0.1, 0.9]), Keep()], logdir=tmp_path, num_epochs=3, valid_loader="valid",
                   valid_metric="m", minimize_valid_metric=True, load_best_on_end=True)
    assert all(torch.equal(a, b) for a, b in zip(runner.model.parameters(), best[2]))


def test_without_a_metric_the_last_epochs_are_kept(tmp_path):
    train(callbacks=[dl.CheckpointCallback(tmp_path, topk=2)], num_epochs=3)
    assert {path.name for path in tmp_path.glob("*.pth")} == {"model.0002.pth", "model.0003.pth", "model.last.pth"}


def test_accuracy_is_short_for_accuracy01(tmp_path):
    train(callbacks=[dl.AccuracyCallback("logits", "targets", topk=(1, 3)),
                     dl.CheckpointCallback(tmp_path, "valid", "accuracy", minimize=False)], num_epochs=1)
    stored = json.loads((tmp_path / "model.storage.json").read_text())["storage"][0]
    assert 0 < stored["metric"] <= 1


@pytest.mark.parametrize("how", ["argument", "callback"])
def test_resuming_everything_equals_not_stopping(how, tmp_path):
    whole = train(num_epochs=4)
    train(num_epochs=2, callbacks=[dl.CheckpointCallback(tmp_path, mode="runner")], logdir=tmp_path / "logs")
    path = str(tmp_path / "runner.last.pth")
    more = {"resume": path} if how == "argument" else \
        {"callbacks": [dl.CheckpointCallback(tmp_path / "more", mode="runner", resume_runner=path)]}
    parted = train(num_epochs=4, logdir=tmp_path / "logs", **more)
    assert sorted(parted.experiment_metrics) == [3, 4]
    near(losses(parted), losses(whole)[2:])
    assert parted.sample_step == whole.sample_step
    assert [row["step"] for row in rows(tmp_path / "logs" / "csv_logger" / "train.csv")] == ["1", "2", "3", "4"]
    steps = [step for step, tag, _ in events(tmp_path / "logs" / "tensorboard" / "train") if tag == "loss/epoch"]
    assert steps == [1, 2, 3, 4]


def test_resuming_with_a_schedule_that_has_functions(tmp_path):
    made = parts()
    schedule = torch.optim.lr_scheduler.OneCycleLR(made["optimizer"], 0.1, total_steps=9)
    save = dl.CheckpointCallback(tmp_path, mode="runner")
    dl.SupervisedRunner().train(**made, scheduler=schedule, loaders=loaders(), num_epochs=2, callbacks=[save])
    made = parts()
    again = torch.optim.lr_scheduler.OneCycleLR(made["optimizer"], 0.1, total_steps=9)
    dl.SupervisedRunner().train(**made, scheduler=again, loaders=loaders(), num_epochs=2,
                                resume=str(tmp_path / "runner.last.pth"))
    saved = load_checkpoint(tmp_path / "runner.last.pth")["scheduler_state_dict"]
    assert again.last_epoch == saved["last_epoch"] > 0


def test_resuming_a_model(tmp_path):
    first = train(logdir=tmp_path, num_epochs=2, **RIGHT)
    second = train(num_epochs=0, resume=str(tmp_path / "checkpoints" / "model.last.pth"))
    assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), second.model.parameters()))
    with pytest.raises(FileNotFoundError, match="checkpoint nowhere.pth"):
        train(resume="nowhere.pth")


def test_predicting_with_a_checkpoint(tmp_path):
    first = train(logdir=tmp_path, num_epochs=1)
    runner = dl.SupervisedRunner(model=network(5))
    path = str(tmp_path / "checkpoints" / "model.last.pth")
    answer = next(iter(runner.predict_loader(loader=loaders()["valid"], resume=path)))
    x = next(iter(loaders()["valid"]))[0]
    assert torch.equal(answer["logits"], first.model.eval()(x))


def test_evaluating():
    runner = train()
    metrics = runner.evaluate_loader(loaders()["valid"], callbacks=[dl.AccuracyCallback("logits", "targets")])
    right = sum((runner.model(x).argmax(1) == y).sum().item() for x, y in loaders()["valid"]) / 40
    assert metrics["accuracy01"] == pytest.approx(right)
    with pytest.raises(dl.RunnerError, match="evaluate_loader: callback 0 is a CheckpointCallback"):
        runner.evaluate_loader(loaders()["valid"], callbacks=[dl.CheckpointCallback("x")])


# ---- each callback ----

def test_accuracy():
    scores = torch.tensor([[0.1, 0.9, 0.5, 0.2], [0.9, 0.1, 0.3, 0.2], [0.4, 0.3, 0.2, 0.1]])
    targets = torch.tensor([1, 2, 3])
    assert [value.item() for value in dl.accuracy(scores, targets, (1, 2, 4))] == pytest.approx([1 / 3, 2 / 3, 1])
    assert dl.AccuracyCallback("a", "b", num_classes=6).keys == ["accuracy01", "accuracy03", "accuracy05"]
    assert dl.AccuracyCallback("a", "b", topk_args=(1, 2), prefix="p_").keys == ["p_accuracy01", "p_accuracy02"]


def test_schedules():
    def rates(**kwargs):
        made = parts()
        made["scheduler"] = kwargs.pop("make")(made["optimizer"])
        seen = []

        class See(dl.Callback):
            def on_epoch_end(self, runner):
                seen.append(runner.optimizer.param_groups[0]["lr"])

        dl.SupervisedRunner().train(**made, loaders=loaders(), num_epochs=3, **{**kwargs, "callbacks": [
            See(), *kwargs.get("callbacks", [])]})
        return seen

    step = lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)  # noqa: E731
    assert rates(make=step) == pytest.approx([5e-3, 5e-4, 5e-5])
    batches = [dl.SchedulerCallback(mode="batch")]
    halves = lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)  # noqa: E731
    assert rates(make=halves, callbacks=batches)[0] == pytest.approx(0.05 * 0.5 ** 6)
    plateau = lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.1)  # noqa: E731
    found = rates(make=plateau, callbacks=[scripted([0.5, 0.6, 0.7])], valid_loader="valid", valid_metric="m")
    assert found == pytest.approx([0.05, 5e-3, 5e-4])
    with pytest.raises(ValueError, match="ReduceLROnPlateau needs loader_key and metric_key"):
        rates(make=plateau)


def test_what_is_no_number_is_never_the_best(tmp_path):
    for minimize in (True, False):
        save = dl.CheckpointCallback(tmp_path, "valid", "m", minimize=minimize, topk=3)
        train(callbacks=[scripted([float("nan"), 0.5, 0.6]), save], num_epochs=3)
        text = (tmp_path / "model.storage.json").read_text()
        assert [item["metric"] for item in json.loads(text)["storage"]] == sorted([0.5, 0.6], reverse=not minimize) + [None]
        assert "NaN" not in text
    stop = dl.EarlyStoppingCallback(patience=2, loader_key="valid", metric_key="m", minimize=True)
    runner = train(num_epochs=9, callbacks=[scripted([float("nan"), 0.5, float("nan"), 0.4] + [float("nan")] * 5), stop])
    assert sorted(runner.experiment_metrics) == [1, 2, 3, 4, 5, 6] and stop.best_score == 0.4


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_checkpoint_executes_nothing(tmp_path):
    path, made = str(tmp_path / "model.pth"), str(tmp_path / "made")
    torch.save({"model_state_dict": {}, "x": Evil(made)}, path)
    for load in (load_checkpoint, lambda path: train(resume=path)):
        with pytest.raises(ValueError, match=r"model.pth: it names \w+\.mkdir.*trusted=True"):
            load(path)
    assert not os.path.exists(made)
    load_checkpoint(path, trusted=True)
    assert os.path.exists(made)


def test_schedules_with_functions_of_their_own_are_saved_without():
    from adaptdl import _original
    from adaptdl.torch.parallel import _State
    states = []
    for steps in (3, 0):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9)
        for _ in range(steps):
            optimizer.step()
            schedule.step()
        states.append(_State(f"one-cycle-{steps}", model, optimizer, schedule))
    file = io.BytesIO()
    states[0].save(file)
    assert _original.read_torch(io.BytesIO(file.getvalue()))["lr_scheduler"]["last_epoch"] == 3
    states[1].load(io.BytesIO(file.getvalue()))
    rates = []
    for state in states:
        state.optimizer.step()
        state.lr_scheduler.step()
        rates.append(state.lr_scheduler.get_last_lr())
    assert rates[0] == rates[1] and states[1].lr_scheduler.last_epoch == 4
    evil = io.BytesIO()
    torch.save({"model": Evil("nowhere/at/all")}, evil)
    with pytest.raises(ValueError, match=r"one-cycle-0: it names \w+\.mkdir.*trusted=True"):
        states[1].load(io.BytesIO(evil.getvalue()))


def test_the_engine_of_the_constructor_is_kept_and_others_are_not():
    mine = dl.CPUEngine()
    runner = dl.SupervisedRunner(engine=mine)
    train(runner)
    assert runner.engine is mine
    runner = dl.SupervisedRunner()
    train(runner, cpu=True)
    train(runner, cpu=True, amp="bf16")
    assert runner.engine.amp is torch.bfloat16
    elastic = ElasticEngine(device="cpu")
    runner = dl.SupervisedRunner(engine=elastic)
    runner.run = lambda: None
    train(runner)
    assert runner.get_engine() is elastic


def test_a_runner_remembers_numbers_of_any_kind():
    from adaptdl.dl.elastic import RunnerState
    numpy = pytest.importorskip("numpy")
    metrics = {"a": torch.tensor(1.5), "b": numpy.float32(2.5), "c": numpy.arange(2), "d": torch.tensor(3)}

    class Fake:
        def _state(self):
            return metrics

    state, file = RunnerState(Fake()), io.BytesIO()
    state.save(file)
    state.load(io.BytesIO(file.getvalue()))
    assert state.saved == {"a": 1.5, "b": 2.5, "c": [0, 1], "d": 3}
    metrics["e"] = object()
    with pytest.raises(TypeError, match="has a object in it"):
        state.save(io.BytesIO())


def test_early_stopping():
    stop = dl.EarlyStoppingCallback(patience=2, loader_key="valid", metric_key="m", minimize=True)
    runner = train(num_epochs=9, callbacks=[scripted([0.5, 0.4, 0.4, 0.6, 0.1]), stop])
    assert sorted(runner.experiment_metrics) == [1, 2, 3, 4]


def test_checking(capsys):
    class Count(dl.Callback):
        batches = []

        def on_batch_end(self, runner):
            self.batches.append((runner.epoch_step, runner.loader_key))

    train(num_epochs=9, check=True, callbacks=[Count()])
    assert Count.batches == [(epoch, key) for epoch in (1, 2, 3) for key in ("train", "valid") for _ in range(3)]


def test_overfitting():
    class See(dl.Callback):
        seen = []

        def on_batch_start(self, runner):
            self.seen.append((runner.loader_key, runner.batch["features"].sum().item()))

    shuffled = {"train": DataLoader(data(), batch_size=16, shuffle=True), "valid": loaders()["valid"]}
    runner = train(loaders=shuffled, num_epochs=40, overfit=True, callbacks=[See()])
    assert len(See.seen) == 80 and len(set(See.seen)) == 2
    assert runner.experiment_metrics[40]["train"]["loss"] < 0.5 * runner.experiment_metrics[1]["train"]["loss"]
    See.seen.clear()
    train(loaders=shuffled, num_epochs=1, callbacks=[See(), dl.BatchOverfitCallback(train=2, valid=0.7)])
    assert [key for key, _ in See.seen] == ["train", "train", "valid", "valid"]
    with pytest.raises(TypeError, match="train must be a number of batches"):
        dl.BatchOverfitCallback(train="all")


def test_loaders_of_some_epochs(tmp_path):
    periodic = dl.PeriodicLoaderCallback("valid", "loss", True, valid=2)
    runner = train(num_epochs=4, callbacks=[periodic], logdir=tmp_path, **RIGHT)
    assert [metrics["valid"]["loss"] == float("inf") for _, metrics in sorted(runner.experiment_metrics.items())] == [
        True, False, True, False]
    storage = json.loads((tmp_path / "checkpoints" / "model.storage.json").read_text())["storage"]
    assert os.path.basename(storage[0]["logpath"]) in ("model.0002.pth", "model.0004.pth")
    for kwargs, text in (({"valid": 0}, "the loader of the valid metric, must be above 0"),
                         ({"test": 2}, "there is no loader test; there are: train, valid"),
                         ({"train": 2, "valid": 2}, "epoch 1 has no loader at all")):
        with pytest.raises(ValueError, match=text):
            train(callbacks=[dl.PeriodicLoaderCallback("valid", "loss", True, **kwargs)])


def test_metrics_made_of_others():
    def zero(logits, targets):
        return (logits ** 2).mean()

    class See(dl.Callback):
        seen = []

        def on_batch_end(self, runner):
            self.seen.append({key: float(value) for key, value in runner.batch_metrics.items()})

    callbacks = [dl.FunctionalMetricCallback("logits", "targets", zero, "square"),
                 dl.CriterionCallback("logits", "targets", "cross"),
                 dl.MetricAggregationCallback("loss", {"cross": 1.0, "square": 0.5}, mode="weighted_sum"),
                 dl.MetricAggregationCallback("mean", ["cross", "square"]),
                 dl.MetricAggregationCallback("wmean", {"cross": 3.0, "square": 1.0}, mode="weighted_mean"),
                 dl.MetricAggregationCallback("own", mode=lambda metrics, runner: metrics["cross"] * 2),
                 dl.MetricAggregationCallback("late", ["cross", "square"], mode="sum", scope="loader"), See()]
    runner = train(callbacks=callbacks, num_epochs=1)
    for found in (See.seen[0], runner.loader_metrics):
        assert found["loss"] == pytest.approx(found["cross"] + 0.5 * found["square"])
        assert found["mean"] == pytest.approx((found["cross"] + found["square"]) / 2)
        assert found["wmean"] == pytest.approx((3 * found["cross"] + found["square"]) / 4)
        assert found["own"] == pytest.approx(2 * found["cross"])
    assert "late" not in See.seen[0] and runner.loader_metrics["late"] == pytest.approx(2 * runner.loader_metrics["mean"])
    for kwargs, text in (({"mode": "weighted_sum", "metrics": ["a"]}, "needs metrics as a dict"),
                         ({"mode": "median"}, "mode must be 'sum'"), ({"scope": "epoch"}, "scope must be")):
        with pytest.raises(ValueError, match=text):
            dl.MetricAggregationCallback("m", **kwargs)


def test_the_time_of_the_backward_pass_is_the_models():
    kinds = [type(callback) for callback in train(timeit=True).callbacks.values()]
    assert kinds.index(dl.TimerCallback) > max(kinds.index(dl.BackwardCallback), kinds.index(dl.OptimizerCallback))


def test_times():
    runner = train(timeit=True, num_epochs=1)
    found = runner.experiment_metrics[1]["train"]
    assert found["_timer/batch_time"] == pytest.approx(found["_timer/data_time"] + found["_timer/model_time"])
    assert found["_timer/_fps"] > 0


def test_the_profiler(tmp_path, capsys):
    train(profile=True, logdir=tmp_path, num_epochs=2)
    assert len(list((tmp_path / "tb_profile").glob("*.json"))) == 1
    assert capsys.readouterr().out.count("aten::addmm") >= 1


def test_progress_in_a_file_and_on_a_terminal():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    plain, terminal = io.StringIO(), Terminal()
    train(callbacks=[dl.TqdmCallback(file=plain)], num_epochs=1)
    lines = plain.getvalue().splitlines()
    assert len(lines) == 2 and "\r" not in plain.getvalue()
    assert lines[0].startswith("1/1 * Epoch (train): 100% 6/6 [") and "it/s, loss=" in lines[0]
    train(callbacks=[dl.TqdmCallback(file=terminal)], num_epochs=1)
    assert terminal.getvalue().count("\n") == 2 and "\r1/1 * Epoch (valid): 100%|####" in terminal.getvalue()


def test_several_models_and_optimizers():
    class Pair(dl.Runner):
        def handle_batch(self, batch):
            x, y = batch
            for key in ("a", "b"):
                self.batch_metrics[key] = nn.functional.cross_entropy(self.model[key](x), y)

    models = {"a": network(1), "b": network(2)}
    optimizers = {key: torch.optim.SGD(model.parameters(), lr=0.1 if key == "a" else 0.0)
                  for key, model in models.items()}
    before = {key: [p.clone() for p in model.parameters()] for key, model in models.items()}
    callbacks = [dl.BackwardCallback("a"), dl.OptimizerCallback("a", optimizer_key="a"),
                 dl.BackwardCallback("b"), dl.OptimizerCallback("b", optimizer_key="b")]
    runner = Pair()
    runner.train(model=models, optimizer=optimizers, loaders=loaders(), callbacks=callbacks)
    moved = {key: not all(torch.equal(p, q) for p, q in zip(before[key], model.parameters()))
             for key, model in models.items()}
    assert moved == {"a": True, "b": False}
    assert runner.loader_metrics["lr/a"] == 0.1 and runner.loader_metrics["lr/b"] == 0.0


# ---- engines ----

def test_the_default_engine():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU; gpu_runner_check.py looks at it")
    assert type(train(num_epochs=1).engine) is dl.CPUEngine
    from adaptdl.dl.utils import get_available_engine
    engine = get_available_engine(ddp=True)
    assert type(engine) is dl.DistributedDataParallelEngine and engine.num_processes == 2 and engine.backend == "gloo"


def test_bfloat16_on_the_processor():
    class See(dl.Callback):
        seen = set()

        def on_batch_end(self, runner):
            self.seen.add(runner.batch["logits"].dtype)

    runner = train(amp=True, callbacks=[See()], cpu=True)
    assert See.seen == {torch.bfloat16} and runner.engine.amp is torch.bfloat16
    near_to = by_hand(2)
    assert losses(runner)[1]["train"] == pytest.approx(near_to[1]["train"], rel=0.05)
    with pytest.raises(ValueError, match="amp must be True, False, 'fp16' or 'bf16', not 'int8'"):
        train(amp="int8")


def test_engines_that_need_a_gpu_say_so():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    for kind in (dl.GPUEngine, dl.DataParallelEngine, dl.GPUAMPEngine, dl.DataParallelAMPEngine):
        with pytest.raises(RuntimeError, match=f"{kind.__name__}: there is no GPU"):
            train(engine=kind())


def test_sizes_of_distributed_engines():
    engine = dl.DistributedDataParallelEngine(world_size=4, num_node_workers=2, workers_dist_rank=2, port=1234)
    assert (engine.world_size, engine.process_index, engine.is_ddp, engine.is_main_process) == (4, 2, True, False)
    for kwargs, text in (({"world_size": 0}, "must be an int of at least 1"), ({"world_size": "2"}, "not '2'"),
                         ({"world_size": 2, "workers_dist_rank": 1, "num_node_workers": 2}, "do not fit"),
                         ({"world_size": 4, "num_node_workers": 2}, "port must be given")):
        with pytest.raises(ValueError, match=text):
            dl.DistributedDataParallelEngine(**kwargs)


# ---- wrong input ----

class Triples(TensorDataset):
    def __getitem__(self, index):
        return (*super().__getitem__(index), 0)


WRONG = {
    "key": (dict(loaders={"test": loaders()["valid"]}), ValueError,
            "loader key 'test': keys start with 'train', 'valid' or 'infer'; there are 'test'"),
    "no dict": (dict(loaders=[1]), TypeError, "loaders must be a dict of DataLoaders, not list"),
    "none": (dict(loaders=None), ValueError, "loaders is None"),
    "empty dict": (dict(loaders={}), ValueError, "loaders is empty"),
    "no loader": (dict(loaders={"train": 3}), TypeError, "loader 'train' must be a DataLoader .* not int"),
    "empty": (dict(loaders={"train": DataLoader(data(8), batch_size=16, drop_last=True)}), dl.RunnerError,
              "loader 'train' is empty"),
    "valid loader": (dict(valid_loader="dev", valid_metric="loss"), ValueError,
                     "valid_loader 'dev' is none of the loaders: 'train', 'valid'"),
    "metric": (dict(callbacks=[dl.CheckpointCallback("nowhere", "valid", "f1", minimize=False)]), KeyError,
               "nobody computes the metric 'f1' of loader 'valid'; there are: loss, loss/mean, loss/std, lr, momentum"),
    "metric of no loader": (dict(callbacks=[dl.EarlyStoppingCallback(1, "dev", "loss", True)]), KeyError,
                            "there is no loader 'dev' in this epoch; there are: train, valid"),
    "callback": (dict(callbacks=[print]), TypeError, "callback 0 must be a Callback, not builtin_function_or_method"),
    "callback class": (dict(callbacks={"tqdm": dl.TqdmCallback}), TypeError,
                       "callback 'tqdm' is the class TqdmCallback; it must be an object"),
    "callbacks": (dict(callbacks=dl.TimerCallback()), TypeError, "callbacks must be a list or a dict"),
    "logger": (dict(loggers={"csv": "here"}), TypeError, "logger 'csv' must be an ILogger, not str"),
    "triple": (dict(loaders={"train": DataLoader(Triples(*data().tensors), batch_size=16)}), dl.RunnerError,
               r"loader 'train': a batch must be a pair \(input, target\) or a dict, and is 3 things"),
    "single": (dict(loaders={"train": DataLoader(torch.zeros(8, 8), batch_size=4)}), dl.RunnerError,
               "a batch must be a pair .* and is a Tensor"),
    "accuracy key": (dict(callbacks=[dl.AccuracyCallback("scores", "targets")]), KeyError,
                     "AccuracyCallback: the batch has no 'scores'; there are: features, logits, targets"),
    "topk": (dict(callbacks=[dl.AccuracyCallback("logits", "targets", topk=(1, 9))]), ValueError,
             "topk has 9, and there are 4 classes"),
    "optimizer key": (dict(callbacks=[dl.OptimizerCallback("loss", optimizer_key="b")]), KeyError,
                      "the runner has one optimizer, not several by key; 'b' was asked for"),
    "no criterion": (dict(criterion=None), KeyError, "BackwardCallback: nobody computes the metric 'loss' of the batch; "
                                                     "there are: none"),
    "model": (dict(model=lambda x: x), TypeError, "model must be a torch.nn.Module, or a dict of them, not function"),
    "engine": (dict(engine="cpu"), TypeError, "engine must be an Engine of adaptdl.dl, not str"),
    "epochs": (dict(num_epochs=-1), ValueError, "num_epochs must be an int of at least 0, not -1"),
    "bounds": (dict(local_bsz_bounds=(1, 2)), ValueError, "need max_batch_size"),
    "best": (dict(load_best_on_end=True), ValueError, "load_best_on_end needs logdir"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_named(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kwargs, kind, text = WRONG[name]
    with pytest.raises(kind, match=text):
        train(**kwargs)


def test_wrong_keys_of_dicts():
    class Named(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return {"image": torch.zeros(8), "targets": 1}

    batches = {"train": DataLoader(Named(), batch_size=4)}
    with pytest.raises(dl.RunnerError, match=r"the batch has no 'features' \(input_key\); there are: image, targets"):
        train(loaders=batches)
    train(dl.SupervisedRunner(input_key="image"), loaders=batches)
    with pytest.raises(KeyError, match="CriterionCallback: the batch has no 'labels'; there are: image, logits, targets"):
        train(dl.SupervisedRunner(input_key="image", target_key="labels"), loaders=batches)
    with pytest.raises(dl.RunnerError, match="the model gives 4 outputs, and output_key has 2: a, b"):
        train(dl.SupervisedRunner(input_key="image", output_key=["a", "b"]), loaders=batches, criterion=None)
    with pytest.raises(TypeError, match="input_key must be a str, a list of them, or None, not 3"):
        dl.SupervisedRunner(input_key=3)


@pytest.mark.parametrize("make, text", [
    (lambda: dl.OptimizerCallback("loss", accumulation_steps=0), "accumulation_steps must be an int of at least 1, not 0"),
    (lambda: dl.BackwardCallback("loss", grad_clip_fn="clip_all"), "torch.nn.utils has no 'clip_all'"),
    (lambda: dl.BackwardCallback("loss", grad_clip_params={"a": 1}), "grad_clip_params without grad_clip_fn"),
    (lambda: dl.SchedulerCallback(loader_key="valid"), "loader_key and metric_key go together"),
    (lambda: dl.SchedulerCallback(mode="step"), "mode must be 'batch' or 'epoch', not 'step'"),
    (lambda: dl.CheckpointCallback("x", topk=0), "topk must be an int of at least 1, not 0"),
    (lambda: dl.CheckpointCallback("x", mode="all"), "mode must be 'model' or 'runner', not 'all'"),
    (lambda: dl.CheckpointCallback("x", minimize=True), "minimize needs metric_key"),
    (lambda: dl.AccuracyCallback("a", "b", topk=()), "topk must be numbers of at least 1"),
])
def test_wrong_arguments_of_callbacks(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_the_training_sampler_in_the_validation_loader():
    """Its numbers would be out of range."""
    train_set, valid_set = data(96), data(40, 1)
    sampler = RandomSampler(train_set)
    both = {"train": DataLoader(train_set, batch_size=16, sampler=sampler),
            "valid": DataLoader(valid_set, batch_size=16, sampler=sampler)}
    with pytest.warns(UserWarning, match="loader 'valid': its RandomSampler belongs to another data set"):
        runner = train(loaders=both, num_epochs=1)
    assert runner.loader_sample_step == 40


# ---- loaders of elastic runs and of several processes ----

def test_loaders_become_elastic():
    from adaptdl.dl.loaders import elastic_loader
    from adaptdl.torch import AdaptiveDataLoader
    from torch.utils.data.distributed import DistributedSampler
    whole = data(50)
    for kwargs, shuffle in (({"shuffle": True}, True), ({}, False),
                            ({"sampler": DistributedSampler(whole, 2, 0, shuffle=False)}, False),
                            ({"sampler": DistributedSampler(whole, 2, 0, shuffle=True)}, True)):
        made = elastic_loader("train", DataLoader(whole, batch_size=8, drop_last=True, **kwargs), 1)
        assert type(made) is AdaptiveDataLoader and made.sampler.shuffle is shuffle
        assert made._elastic.batch_size == 8 and made.drop_last
        assert elastic_loader("train", made, 1) is made


def test_samplers_of_other_kinds_are_drawn_from():
    from adaptdl.dl.loaders import elastic_loader
    weights = [1.0] * 25 + [0.0] * 25
    sampler = torch.utils.data.WeightedRandomSampler(weights, 50)
    drawn = [elastic_loader("train", DataLoader(data(50), batch_size=8, sampler=sampler), 1).dataset for _ in range(2)]
    places = []
    for epoch in (0, 0, 1):
        for dataset in drawn:
            torch.rand(epoch + 1)
            dataset.draw(epoch)
            places.append(tuple(dataset.places))
    assert len(set(places)) == 2 and places[0] == places[3] and places[4] == places[5]  # by the epoch alone
    assert len(drawn[0]) == 50 and max(places[0]) < 25
    assert torch.equal(drawn[0][3][0], data(50)[places[4][3]][0])


def test_workers_do_not_keep_the_first_draw():
    from adaptdl.dl.loaders import elastic_loader
    loader = DataLoader(torch.arange(9), batch_size=4, sampler=Shuffled("random"), num_workers=1, persistent_workers=True)
    assert not elastic_loader("train", loader, 1).persistent_workers


class Shuffled(torch.utils.data.Sampler):
    """A sampler whose random numbers are not PyTorch's."""

    def __init__(self, how):
        self.how = how

    def __len__(self):
        return 9

    def __iter__(self):
        places = list(range(9))
        if self.how == "random":
            random.shuffle(places)
        else:
            pytest.importorskip("numpy").random.shuffle(places)
        return iter(places)


@pytest.mark.parametrize("how", ["random", "numpy"])
def test_all_processes_draw_the_same(how):
    from adaptdl.dl.loaders import distributed_loader, elastic_loader
    pytest.importorskip("numpy")
    made, shares = [], []
    for rank in range(2):
        random.seed(rank)
        before = random.getstate()
        loader = DataLoader(torch.arange(9), batch_size=4, sampler=Shuffled(how))
        drawn = elastic_loader("train", loader, 1).dataset
        drawn.draw(3)
        made.append(drawn.places)
        share = distributed_loader("train", loader, rank, 2, 1)
        share.sampler.set_epoch(3)
        shares += torch.cat(list(share)).tolist()
        assert random.getstate() == before
        share.sampler.set_epoch(4)
        assert torch.cat(list(share)).tolist() != shares[-5:]
    assert made[0] == made[1] and sorted(set(shares)) == list(range(9)) and len(shares) == 10


def test_processes_share_what_a_sampler_draws():
    """A part of the data stays a part, weights stay weights, and a number of examples stays that."""
    from adaptdl.dl.loaders import _Drawn, distributed_loader, elastic_loader
    kinds = torch.utils.data
    for sampler, count in ((kinds.SubsetRandomSampler(range(10, 20)), 10),
                           (kinds.WeightedRandomSampler([0.0] * 10 + [1.0] * 10 + [0.0] * 10, 30), 30),
                           (kinds.RandomSampler(range(10, 20), num_samples=4), 4),
                           (type("Mine", (kinds.SequentialSampler,), {})(range(6)), 6)):
        loader = DataLoader(torch.arange(30), batch_size=4, sampler=sampler)
        seen = [torch.cat(list(distributed_loader("valid", loader, rank, 2))).tolist() for rank in range(2)]
        assert len(seen[0]) == len(seen[1]) == count // 2
        assert {place // 10 for share in seen for place in share} == {0 if count < 10 else 1}
        assert isinstance(elastic_loader("valid", loader, 1).dataset, _Drawn)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([])

    def __len__(self):
        return 8


def test_loaders_that_cannot_be_divided_are_named():
    from adaptdl.dl.loaders import distributed_loader, elastic_loader

    class Own(torch.utils.data.BatchSampler):
        pass

    batches = DataLoader(data(8), batch_sampler=Own(RandomSampler(data(8)), 4, False))
    for make, what in ((lambda loader: elastic_loader("train", loader, 1), "elastic training"),
                       (lambda loader: distributed_loader("train", loader, 0, 2), "2 processes")):
        for loader in (DataLoader(Stream(), batch_size=4), batches):
            with pytest.raises(ValueError, match="loader 'train': .*" + what):
                make(loader)
    with pytest.raises(TypeError, match="loader 'train' must be a DataLoader or an AdaptiveDataLoader"):
        elastic_loader("train", [1, 2], 1)


def test_keys_of_models_and_optimizers_that_do_not_fit():
    models = {"a": network(1), "b": network(2)}
    one = torch.optim.SGD(models["a"].parameters(), lr=0.1)
    for model, optimizer, text in ((models, one, r"the models' keys \(a, b\), not SGD"),
                                   (models, {"c": one}, r"the models' keys \(a, b\), not a dict of c"),
                                   (models["a"], {"a": one}, "one model needs one optimizer, not a dict of a")):
        with pytest.raises(ValueError, match=text):
            dl.ElasticEngine("cpu").prepare_all(model, optimizer, None, None)


# ---- contrib ----

def test_images(tmp_path):
    transform = contrib.Compose([contrib.ImageToTensor(), contrib.NormalizeImage((0.5,) * 3, (0.5,) * 3)])
    contrib.make_cifar10(tmp_path, train=10, test=4)
    for train_part, count in ((True, 10), (False, 4)):
        found = contrib.CIFAR10(str(tmp_path), train=train_part, download=True, transform=transform)
        image, target = found[0]
        assert len(found) == count and image.shape == (3, 32, 32) and -1 <= image.min() and image.max() <= 1
        assert 0 <= target <= 9
        raw = found.data[0]
        assert image[2, 5, 7].item() == pytest.approx((raw[5, 7, 2] / 255 - 0.5) / 0.5, abs=1e-6)
    block = contrib.ResidualBlock(nn.Identity())
    assert torch.equal(block(torch.ones(2)), torch.full((2,), 2.0))


def test_wrong_image_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no data_batch_1.bin in .*; download=True gets it"):
        contrib.CIFAR10(str(tmp_path))
    folder = pathlib.Path(contrib.make_cifar10(tmp_path, train=10, test=4))
    (folder / "test_batch.bin").write_bytes(b"12345")
    with pytest.raises(ValueError, match="test_batch.bin: 5 bytes are no whole number of images"):
        contrib.CIFAR10(str(tmp_path), train=False)
    (folder / "test_batch.bin").write_bytes(b"\x0b" * 3073)
    with pytest.raises(ValueError, match="an image of class 11"):
        contrib.CIFAR10(str(tmp_path), train=False)
    with pytest.raises(ValueError, match="shape .2, 4, 4., with 3 channels"):
        contrib.NormalizeImage((0, 0, 0), (1, 1, 1))(torch.zeros(2, 4, 4))


def test_downloads_are_checked(tmp_path, monkeypatch):
    source = tmp_path / "source.tar.gz"
    source.write_bytes(b"not it")
    monkeypatch.setattr(contrib.CIFAR10, "URL", source.as_uri())
    with pytest.raises(RuntimeError, match="its md5 is .* not c32a1d4ab5d03f1284b67883e8d87530"):
        contrib.CIFAR10(str(tmp_path / "data"), download=True)
    monkeypatch.setattr(contrib.CIFAR10, "URL", (tmp_path / "gone.tar.gz").as_uri())
    with pytest.raises(RuntimeError, match="gone.tar.gz could not be downloaded .*; put the file into"):
        contrib.CIFAR10(str(tmp_path / "data"), download=True)
    assert not [name for name in os.listdir(tmp_path / "data") if name.startswith(".part")]


def test_mnist(tmp_path):
    images, labels = bytes(range(0, 2 * 28 * 28 % 256)), bytes([3, 7])
    raw = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (2, 28, 28)) + bytes(2 * 784)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(raw)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + (2).to_bytes(4, "big") + labels)
    found = contrib.MNIST(str(tmp_path), transform=contrib.ImageToTensor())
    assert len(found) == 2 and found[1][1] == 7 and found[0][0].shape == (1, 28, 28) and images is not None
    (tmp_path / "train-images-idx3-ubyte").write_bytes(raw[:-1])
    with pytest.raises(ValueError, match="train-images-idx3-ubyte: not a file of MNIST, or not all of it"):
        contrib.MNIST(str(tmp_path))
    with pytest.raises(FileNotFoundError, match="there is no t10k-images-idx3-ubyte"):
        contrib.MNIST(str(tmp_path), train=False)


if __name__ == "__main__":
    harness.main(__file__)
