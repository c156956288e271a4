#!/usr/bin/python3
"""The runner in C beside the runner in Python: the same files, columns, tags and form of numbers."""

import os
import pathlib
import re

import harness

import pytest

torch = pytest.importorskip("torch")
from dl_common import RIGHT, events, loaders, parts, run  # noqa: E402

from adaptdl import dl  # noqa: E402

EXAMPLE = pathlib.Path(os.environ.get("ADAPTDL_BIN", harness.ROOT / "build" / "release" / "bin")).parent / "examples" \
    / "cifar10_resnet9"
EPOCHS = 3


def files(folder):
    """Without what differs: the time in names of event files, the epochs that were best, and the models' own form."""
    names = {re.sub(r"tfevents\..*", "tfevents", str(path.relative_to(folder))) for path in folder.rglob("*")
             if path.is_file()}
    return {re.sub(r"model\.\d{4}\.", "model.0000.", name).replace(".adl", ".pth") for name in names}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Adam with a schedule, two accuracies, the three best models: in C, and in Python."""
    if not EXAMPLE.exists():
        pytest.skip(f"{EXAMPLE} is not built")
    folder = tmp_path_factory.mktemp("languages")
    run(EXAMPLE, "--examples", 40, "--batch-size", 8, "--epochs", EPOCHS, "--threads", 1, "--logdir", folder / "c")
    made = parts()
    made["optimizer"] = torch.optim.Adam(made["model"].parameters(), lr=1e-3)
    made["scheduler"] = torch.optim.lr_scheduler.MultiStepLR(made["optimizer"], [5, 8], gamma=0.3)
    logdir = folder / "python"
    dl.SupervisedRunner().train(**made, loaders=loaders(), num_epochs=EPOCHS, logdir=logdir, callbacks=[
        dl.AccuracyCallback("logits", "targets", topk=(1, 3)),
        dl.CheckpointCallback(logdir / "checkpoints", "valid", "accuracy01", minimize=False, topk=3)], **RIGHT)
    return folder / "c", folder / "python"


def test_the_same_files(both):
    theirs, ours = map(files, both)
    assert theirs == ours - {"csv_logger/hparams.json"}  # the example has none


@pytest.mark.parametrize("key", ["train", "valid", "_epoch_"])
def test_csv_is_equal_in_form(key, both):
    tables = [(folder / "csv_logger" / f"{key}.csv").read_bytes().decode() for folder in both]
    ends = [set(re.findall(r"\r?\n", text)) for text in tables]
    heads = [text.splitlines()[0] for text in tables]
    assert ends[0] == ends[1] and heads[0] == heads[1]
    for text in tables:
        rows = [line.split(",") for line in text.splitlines()[1:]]
        assert [row[0] for row in rows] == [str(epoch) for epoch in range(1, EPOCHS + 1)]
        for row in rows:
            assert len(row) == len(heads[0].split(","))
            assert all(value == repr(float(value)) for value in row[1:]), row


@pytest.mark.parametrize("key", ["train", "valid", "_epoch_"])
def test_the_same_tags(key, both):
    found = [sorted(event[:2] for event in events(folder / "tensorboard" / key)) for folder in both]
    assert found[0] == found[1] and len(found[0]) > 0


if __name__ == "__main__":
    harness.main(__file__)
