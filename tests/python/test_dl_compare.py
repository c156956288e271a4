#!/usr/bin/python3
"""The same small training by the package catalyst, of both generations, and by ours: equal metrics in every epoch,
equal columns, the same files. The package comes from the registry that pip is set up for, into an environment of
its own under build/; where it cannot be had the tests are skipped."""

import os
import pathlib
import re
import subprocess
import sys

import harness

import pytest

pytest.importorskip("torch")
from dl_common import events, rows  # noqa: E402

WAIT_S = 400
EPOCHS = 3
NEAR = 1e-5
# What it needs beside PyTorch, in versions of its time.
BESIDE = ["tensorboardX==2.6.2.2", "hydra-slayer==0.4.0", "accelerate==0.20.3", "protobuf==3.20.3", "tqdm"]

TRAINING = """
import sys
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
from {package} import dl

kind, logdir = sys.argv[1:3]
torch.manual_seed(0)
x = torch.randn(300, 8)
data = TensorDataset(x, (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long())
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))
optimizer, scheduler = {{
    "adam": lambda: (lambda o: (o, optim.lr_scheduler.MultiStepLR(o, [2], gamma=0.3)))(
        optim.Adam(model.parameters(), lr=0.01)),
    "sgd": lambda: (lambda o: (o, optim.lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=0)))(
        optim.SGD(model.parameters(), lr=0.5, momentum=0.9)),
}}[kind]()
runner = dl.SupervisedRunner()
runner.train(
    model=model, criterion=nn.CrossEntropyLoss(), optimizer=optimizer, scheduler=scheduler, seed=7,
    loaders={{"train": DataLoader(data, batch_size=32), "valid": DataLoader(data, batch_size=64)}},
    logdir=logdir, num_epochs={epochs}, valid_loader="valid", valid_metric="loss", minimize_valid_metric=True,
    callbacks=[dl.AccuracyCallback("logits", "targets", {topk}=(1, 3))],
)
"""


def environment(version):
    """The Python of an environment with that version, made once."""
    folder = harness.ROOT / "build" / f"catalyst-{version}"
    python, mark = folder / "bin" / "python", folder / "complete"
    if mark.exists():
        return python
    env = harness.environment(PYTHONPATH=None)
    steps = [[sys.executable, "-m", "venv", "--clear", "--system-site-packages", str(folder)],
             [str(python), "-m", "pip", "install", "-q", "--no-deps", f"catalyst=={version}", *BESIDE]]
    for step in steps:
        try:
            done = subprocess.run(step, env=env, timeout=WAIT_S, text=True, capture_output=True)
        except (OSError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"catalyst {version} cannot be had: {error}")
        if done.returncode != 0:
            pytest.skip(f"catalyst {version} cannot be had: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    mark.touch()
    return python


def train(python, folder, kind, package, topk, **variables):
    folder.mkdir()
    (folder / "training.py").write_text(TRAINING.format(package=package, epochs=EPOCHS, topk=topk))
    env = harness.environment(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", **variables)
    done = subprocess.run([str(python), "training.py", kind, "logs"], cwd=folder, env=env, timeout=WAIT_S, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    return folder / "logs", done.stdout


def files(folder):
    """The files below, without what differs from run to run in their names."""
    return {re.sub(r"tfevents\..*", "tfevents", str(path.relative_to(folder)))
            for path in pathlib.Path(folder).rglob("*") if path.is_file()}


def same_metrics(theirs, ours, folder):
    for key in ("train", "valid", "_epoch_"):
        a, b = rows(theirs / folder / f"{key}.csv"), rows(ours / "csv_logger" / f"{key}.csv")
        assert len(a) == len(b) == EPOCHS and list(a[0]) == list(b[0])
        for x, y in zip(a, b):
            assert {k: float(v) for k, v in y.items()} == pytest.approx({k: float(v) for k, v in x.items()}, abs=NEAR)
        a, b = (sorted(events(place / "tensorboard" / key)) for place in (theirs, ours))
        assert [event[:2] for event in a] == [event[:2] for event in b]
        assert [event[2] for event in b] == pytest.approx([event[2] for event in a], abs=NEAR)


def console(text):
    """The lines of loaders and epochs without their numbers."""
    return [re.sub(r": [^|]+", ": ", line) for line in text.splitlines() if re.match(r"(train|valid|\* Epoch) \(", line)]


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_the_later_generation(kind, tmp_path):
    theirs, said = train(environment("22.4"), tmp_path / "theirs", kind, "catalyst", "topk", PYTHONPATH=None)
    ours, we_say = train(sys.executable, tmp_path / "ours", kind, "adaptdl", "topk")
    same_metrics(theirs, ours, "csv_logger")
    assert files(ours) == files(theirs)
    assert console(we_say) == console(said) and len(console(said)) == 3 * EPOCHS
    import json
    a, b = (json.loads((place / "checkpoints" / "model.storage.json").read_text()) for place in (theirs, ours))
    assert set(a) == set(b) and [item["logpath"] for item in a["storage"]] == [item["logpath"] for item in b["storage"]]
    assert b["storage"][0]["metric"] == pytest.approx(a["storage"][0]["metric"], abs=NEAR)
    import torch
    for name in ("last", "0003" if "0003" in b["storage"][0]["logpath"] else "last"):
        x, y = (torch.load(place / "checkpoints" / f"model.{name}.pth") for place in (theirs, ours))
        assert list(x) == list(y) and all(torch.allclose(x[key], y[key], atol=NEAR) for key in x)


@pytest.mark.parametrize("kind", ["adam"])
def test_the_earlier_generation(kind, tmp_path):
    """Its files have other names: logs/ for csv_logger/, and checkpoints named after stages."""
    theirs, said = train(environment("21.12"), tmp_path / "theirs", kind, "catalyst", "topk_args", PYTHONPATH=None)
    ours, we_say = train(sys.executable, tmp_path / "ours", kind, "adaptdl", "topk_args")
    same_metrics(theirs, ours, "logs")
    assert console(we_say) == console(said)
    kept = {name.replace("logs/", "csv_logger/").replace(".yml", ".json") for name in files(theirs)
            if not name.startswith("checkpoints/")}
    assert kept == {name for name in files(ours) if not name.startswith("checkpoints/")}


if __name__ == "__main__":
    harness.main(__file__)
