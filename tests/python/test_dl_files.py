#!/usr/bin/python3
"""What a run writes: CSV, TensorBoard, the console, models; what is read again."""

import io
import json
import os
import pathlib

import harness

import pytest

torch = pytest.importorskip("torch")

from adaptdl import dl  # noqa: E402
from adaptdl.dl.checkpoint import load_checkpoint  # noqa: E402
from dl_common import RIGHT, events, loaders, losses, near, network, parts, rows, scripted, train  # noqa: E402


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


def test_a_callback_resumes_a_model(tmp_path):
    first = train(logdir=tmp_path, num_epochs=2)
    path = str(tmp_path / "checkpoints" / "model.last.pth")
    second = train(num_epochs=0, callbacks=[dl.CheckpointCallback(tmp_path / "more", resume_model=path)])
    assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), second.model.parameters()))


def test_the_last_and_the_best_can_be_left_out(tmp_path):
    for folder, more, files in (("last", {"save_best": False}, {"model.last.pth"}),
                                ("best", {"save_last": False}, {"model.best.pth"})):
        train(callbacks=[dl.CheckpointCallback(tmp_path / folder, "valid", "loss", True, **more)], num_epochs=1)
        assert {path.name for path in (tmp_path / folder).glob("*.pth")} == files | {"model.0001.pth"}


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


if __name__ == "__main__":
    harness.main(__file__)
