#!/usr/bin/python3
"""Each callback of the runner."""

import io
import json
import os

import harness

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402

from adaptdl import dl  # noqa: E402
from dl_common import RIGHT, data, loaders, parts, scripted, train  # noqa: E402


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


if __name__ == "__main__":
    harness.main(__file__)
