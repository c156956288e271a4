#!/usr/bin/python3
"""The runner in several processes and over restarts: processes of ddp=True, adaptive batch sizes, and runs that are
stopped at chosen places, which must end as those that were not."""

import json
import os
import re
import sys

import harness

import pytest

torch = pytest.importorskip("torch")
from dl_common import events, program, rows, run  # noqa: E402

# ---- processes of ddp=True ----

DDP = """
class See(dl.Callback):
    def on_loader_end(self, runner):
        print(f"seen {runner.engine.process_index} {runner.loader_key} {runner.loader_sample_step}", flush=True)

if __name__ == "__main__":
    made = parts()
    runner = dl.SupervisedRunner()
    runner.train(**made, loaders=loaders(96, 42), num_epochs=2, ddp=True, logdir=sys.argv[1], callbacks=[
        dl.AccuracyCallback("logits", "targets"), See()], **RIGHT)
    print("parent", json.dumps(runner.experiment_metrics))
    saved = torch.load(sys.argv[1] + "/checkpoints/model.last.pth")
    assert all(torch.equal(saved[key], value) for key, value in made["model"].state_dict().items())
    metrics = runner.evaluate_loader(loaders(96, 42)["valid"], [dl.AccuracyCallback("logits", "targets")],
                                     engine=dl.CPUEngine())
    print("alone", metrics["accuracy01"])
"""


def test_ddp_starts_processes_and_brings_the_model_back(tmp_path):
    text = run(sys.executable, program(tmp_path, DDP), tmp_path / "logs")
    assert sorted(re.findall(r"^seen (\d) (train|valid) (\d+)", text, re.MULTILINE)) == sorted(
        [(rank, key, count) for rank in "01" for key, count in (("train", "96"), ("valid", "42"))] * 2), text
    metrics = json.loads(re.search(r"^parent (.*)$", text, re.MULTILINE)[1])
    table = rows(tmp_path / "logs" / "csv_logger" / "valid.csv")
    assert [float(row["loss"]) for row in table] == [metrics[key]["valid"]["loss"] for key in ("1", "2")]
    # Weighted by examples over both processes, it is what one process finds on all of them.
    alone = float(re.search(r"^alone (.*)$", text, re.MULTILINE)[1])
    assert metrics["2"]["valid"]["accuracy01"] == pytest.approx(alone, abs=1e-6)
    assert len(re.findall(r"^train \(1/2\)", text, re.MULTILINE)) == 1  # only rank 0 logs


DDP_WRONG = {
    "unguarded": ("runner = dl.SupervisedRunner()\nrunner.train(**parts(), loaders=loaders(), ddp=True)\n",
                  'put the training under  if __name__ == "__main__":'),
    "unpicklable": ("if __name__ == '__main__':\n"
                    "    class Local(dl.Callback): pass\n"
                    "    made = Local(); made.f = lambda: 0\n"
                    "    dl.SupervisedRunner().train(**parts(), loaders=loaders(), ddp=True, callbacks=[made])\n",
                    "TypeError: ddp=True: the runner cannot be sent to its processes"),
    "failing": ("class Bad(dl.Callback):\n"
                "    def on_epoch_end(self, runner):\n"
                "        from adaptdl.dl.metrics import AdditiveMetric\n"
                "        metric = AdditiveMetric()\n"
                "        if runner.engine.process_index == 1: metric.update(3.0, 2)\n"
                "        print('mean', metric.compute()[0], flush=True)\n"  # rank 0 had nothing to add
                "        if runner.engine.process_index == 1: raise ZeroDivisionError('of rank 1')\n"
                "    def on_exception(self, runner):\n"
                "        print('told', runner.engine.process_index, type(runner.exception).__name__, flush=True)\n"
                "if __name__ == '__main__':\n"
                "    dl.SupervisedRunner().train(**parts(), loaders=loaders(), ddp=True, callbacks=[Bad()])\n",
                "ZeroDivisionError: of rank 1"),
}


@pytest.mark.parametrize("name", DDP_WRONG)
def test_ddp_says_what_is_wrong(name, tmp_path):
    code, wanted = DDP_WRONG[name]
    text = run(sys.executable, program(tmp_path, code), status=1)
    assert wanted in text, text
    if name == "failing":
        assert "ddp=True: the process of rank 1 has failed" in text
        assert "told 1 ZeroDivisionError" in text and text.count("mean 3.0") == 2, text


def test_ddp_with_mixed_precision(tmp_path):
    code = """
class See(dl.Callback):
    def on_loader_end(self, runner):
        print("seen", runner.engine.process_index, runner.engine.num_processes, runner.batch["logits"].dtype, flush=True)

if __name__ == "__main__":
    engine = dl.DistributedDataParallelAMPEngine(world_size=2, cpu=True)
    dl.SupervisedRunner().train(**parts(), loaders={"train": loaders()["train"]}, num_epochs=1, engine=engine,
                                callbacks=[See()])
"""
    text = run(sys.executable, program(tmp_path, code))
    assert all(f"seen {rank} 2 torch.bfloat16" in text for rank in range(2)), text


def test_ddp_with_adaptive_batch_sizes(tmp_path):
    code = """
class See(dl.Callback):
    def on_loader_start(self, runner):
        if runner.is_train_loader:
            helper = runner.loader._elastic
            print("sizes", runner.engine.num_processes, helper.max_batch_size, helper.local_bsz_bounds, flush=True)

if __name__ == "__main__":
    dl.SupervisedRunner().train(**parts(), loaders=loaders(), num_epochs=1, ddp=True, max_batch_size=64,
                                local_bsz_bounds=(4, 32), callbacks=[See()])
"""
    text = run(sys.executable, program(tmp_path, code))
    assert text.count("sizes 2 64 (4, 32)") == 2, text


def test_adaptive_batch_sizes_alone(tmp_path):
    code = """
class See(dl.Callback):
    sizes = set()
    def on_batch_end(self, runner):
        if runner.is_train_loader:
            self.sizes.add(runner.loader.current_batch_size)

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
x = torch.randn(2048, 8)
noisy = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True) + 3 * torch.randn(2048, 1))
runner = dl.SupervisedRunner()
runner.train(model=model, criterion=nn.MSELoss(), optimizer=torch.optim.SGD(model.parameters(), lr=0.01), num_epochs=4,
             loaders={"train": DataLoader(noisy, batch_size=16, shuffle=True, drop_last=True)},
             max_batch_size=256, local_bsz_bounds=(8, 128), gradient_accumulation=True, callbacks=[See()])
print("engine", type(runner.engine).__name__, min(See.sizes), max(See.sizes))
"""
    text = run(sys.executable, program(tmp_path, code))
    low, high = map(int, re.search(r"engine ElasticEngine (\d+) (\d+)", text).groups())
    assert low == 16 and 16 < high <= 256, text


# ---- interrupted and started again ----

STOPPED = """
class Stop(dl.Callback):
    def on_batch_end(self, runner):
        place = f"{runner.epoch_step}.{runner.loader_key}.{runner.loader_batch_step}"
        if place == sys.argv[2]:
            os.kill(os.getpid(), signal.SIGTERM)

made = parts()
made["scheduler"] = torch.optim.lr_scheduler.StepLR(made["optimizer"], 1, gamma=0.5)
runner = dl.SupervisedRunner()
runner.train(**made, loaders=loaders(), num_epochs=4, logdir=sys.argv[1], load_best_on_end=True, callbacks=[
    dl.AccuracyCallback("logits", "targets"), Stop(),
    dl.EarlyStoppingCallback(2, "valid", "loss", minimize=False)], **RIGHT)
torch.save(made["model"].state_dict(), sys.argv[1] + "/model.pth")
print("steps", runner.batch_step, runner.sample_step)
"""


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    text = run(sys.executable, program(folder, STOPPED), folder / "logs", "", ADAPTDL_CHECKPOINT_PATH=folder / "ck")
    return folder / "logs", re.search("steps .*", text)[0]


@pytest.mark.parametrize("place", ["2.train.3", "2.valid.1", "2.train.6", "2.valid.3"])
def test_what_was_interrupted_equals_what_was_not(place, uninterrupted, tmp_path):
    """In the middle of training, of validation, and after the last batch of either."""
    whole, steps = uninterrupted
    path, logs = program(tmp_path, STOPPED), tmp_path / "logs"
    first = run(sys.executable, path, logs, place, status=143, ADAPTDL_CHECKPOINT_PATH=tmp_path / "ck")
    second = run(sys.executable, path, logs, "", ADAPTDL_CHECKPOINT_PATH=tmp_path / "ck")
    assert re.search("steps .*", second)[0] == steps
    for key in ("train", "valid", "_epoch_"):
        a, b = (rows(folder / "csv_logger" / f"{key}.csv") for folder in (whole, logs))
        assert [row["step"] for row in b] == [row["step"] for row in a] and list(a[0]) == list(b[0])
        for x, y in zip(a, b):
            assert {k: float(v) for k, v in y.items()} == pytest.approx({k: float(v) for k, v in x.items()}, abs=1e-9)
        found, wanted = (events(folder / "tensorboard" / key) for folder in (logs, whole))
        assert [event[:2] for event in found] == [event[:2] for event in wanted]
        assert [event[2] for event in found] == pytest.approx([event[2] for event in wanted])
    a, b = (torch.load(folder / "model.pth") for folder in (whole, logs))
    assert all(torch.equal(a[key], b[key]) for key in a)
    lists = [json.loads((folder / "checkpoints" / "model.storage.json").read_text()) for folder in (whole, logs)]
    assert [os.path.basename(item["logpath"]) for item in lists[0]["storage"]] == \
        [os.path.basename(item["logpath"]) for item in lists[1]["storage"]]
    both = first + second
    for epoch in range(1, len(rows(logs / "csv_logger" / "train.csv")) + 1):  # each line once, over both
        for key in ("train", "valid"):
            assert len(re.findall(rf"^{key} \({epoch}/4\)", both, re.MULTILINE)) == 1, both


def test_a_finished_run_is_not_run_again(tmp_path):
    """Nor is a second one of the same program."""
    code = """
runner = dl.SupervisedRunner()
runner.train(**parts(), loaders=loaders(), num_epochs=2, logdir=sys.argv[1], **RIGHT)
epochs = sorted(runner.experiment_metrics)
metrics = runner.evaluate_loader(loaders()["valid"], [dl.AccuracyCallback("logits", "targets")])
print("epochs", epochs, sorted(runner.experiment_metrics), "accuracy", runner.experiment_metrics[1]["valid"]["accuracy01"],
      "metrics", metrics["accuracy01"], sorted(metrics), runner.loader_metrics == metrics, runner.epoch_metrics)
"""
    path = program(tmp_path, code)
    first, second = (run(sys.executable, path, tmp_path / "logs", ADAPTDL_CHECKPOINT_PATH=tmp_path / "ck")
                     for _ in range(2))
    assert re.search(r"epochs \[1, 2\] \[1\] accuracy .*", first)[0] == re.search("epochs .*", second)[0]
    assert "valid (" in first and "valid (" not in second
    assert [row["step"] for row in rows(tmp_path / "logs" / "csv_logger" / "train.csv")] == ["1", "2"]


def test_two_trainings_in_one_program(tmp_path):
    """Interrupted in the second, the first is not run again."""
    code = """
class Stop(dl.Callback):
    def on_batch_end(self, runner):
        if sys.argv[1] == "stop" and (runner.epoch_step, runner.loader_batch_step) == (2, 3):
            os.kill(os.getpid(), signal.SIGTERM)

first, second = dl.SupervisedRunner(), dl.SupervisedRunner()
first.train(**parts(), loaders=loaders(), num_epochs=2)
second.train(**parts(), loaders=loaders(), num_epochs=3, callbacks=[Stop()])
print("epochs", sorted(first.experiment_metrics), sorted(second.experiment_metrics))
print("losses", second.experiment_metrics[3]["valid"]["loss"])
"""
    path = program(tmp_path, code)
    whole = run(sys.executable, path, "go", ADAPTDL_CHECKPOINT_PATH=tmp_path / "whole")
    run(sys.executable, path, "stop", status=143, ADAPTDL_CHECKPOINT_PATH=tmp_path / "ck")
    text = run(sys.executable, path, "go", ADAPTDL_CHECKPOINT_PATH=tmp_path / "ck")
    assert "epochs [1, 2] [1, 2, 3]" in text and "train (1/2)" not in text and "train (3/3)" in text, text
    assert re.search("losses .*", text)[0] == re.search("losses .*", whole)[0]


if __name__ == "__main__":
    harness.main(__file__)
