#!/usr/bin/python3
"""The runner on replicas that are scaled and killed, and as a job of a local cluster: every example is seen once, CSV and
TensorBoard have each epoch once, and the best and the last model are right."""

import json
import os
import pathlib
import re
import shutil
import signal
import sys
import tempfile

import harness

import pytest

torch = pytest.importorskip("torch")
from dl_common import BIN, WAIT_S, Lines, end, events, program, rows, run, start  # noqa: E402
from test_cluster_torch import Cluster  # noqa: E402
from test_core_report import curves_of  # noqa: E402

EPOCHS, EXAMPLES, BATCH = 6, 60, 6

LEDGER = """
from adaptdl import checkpoint, collective, env
logdir, place = sys.argv[1:3]
if os.environ.get("ADAPTDL_JOIN") and os.path.exists(os.path.join(place, "slowly")):
    os.unlink(os.path.join(place, "slowly"))
EPOCHS, EXAMPLES, BATCH = %d, %d, %d


class Ledger(checkpoint.State):
    def __init__(self):
        super().__init__("ledger")
        self.seen, self.pending = {}, {}

    def sync(self):
        for key, n in collective.allreduce(list(self.pending.items())):
            self.seen[key] = self.seen.get(key, 0) + n
        self.pending = {}

    def save(self, fileobj):
        fileobj.write(json.dumps(self.seen).encode())

    def load(self, fileobj):
        self.seen = json.loads(fileobj.read())


class Keep(dl.Callback):
    ledger = None

    def on_stage_start(self, runner):
        self.ledger = Ledger()
        checkpoint.load_state(self.ledger)
        with open(os.path.join(place, "starts"), "a") as file:
            file.write(f"{os.getpid()} {runner.engine.process_index} {runner.engine.num_processes}\\n")

    def on_loader_start(self, runner):
        self.place = 0

    def on_batch_end(self, runner):
        self.place += runner.batch_size
        own = runner.batch["number"].tolist()
        sampler = runner.loader.sampler
        if self.place == len(sampler) and sampler._order.padded:
            own.pop()  # goes to another replica too, so that all have equally many
        for number in own:
            key = f"{runner.loader_key}.{runner.epoch_step}.{number}"
            self.ledger.pending[key] = self.ledger.pending.get(key, 0) + 1
        until = time.monotonic() + 20
        while os.path.exists(os.path.join(place, "slowly")) and time.monotonic() < until:  # a process is on its way
            time.sleep(0.02)
        if not os.path.exists(os.path.join(place, "hurry")):
            time.sleep(float(sys.argv[3]))

    def on_experiment_end(self, runner):
        self.ledger.sync()
        if runner.engine.is_main_process:
            with open(os.path.join(place, "ledger"), "w") as file:
                json.dump(self.ledger.seen, file)


class Numbered(torch.utils.data.Dataset):
    def __init__(self):
        self.data = data(EXAMPLES)

    def __len__(self):
        return EXAMPLES

    def __getitem__(self, number):
        x, y = self.data[number]
        return {"features": x, "targets": y, "number": number}


loader = DataLoader(Numbered(), batch_size=BATCH, shuffle=True)
dl.SupervisedRunner().train(**parts(), loaders={"train": loader, "valid": loader}, num_epochs=EPOCHS, logdir=logdir,
                            verbose=True, callbacks=[Keep()], **RIGHT)
""" % (EPOCHS, EXAMPLES, BATCH)


def check_once(folder, place):
    """Every example once in every epoch, one row and one event for each, the best and the last model right."""
    seen = json.loads((place / "ledger").read_text())
    assert seen == {f"{key}.{epoch}.{number}": 1 for key in ("train", "valid") for epoch in range(1, EPOCHS + 1)
                    for number in range(EXAMPLES)}
    steps = [str(epoch) for epoch in range(1, EPOCHS + 1)]
    for key in ("train", "valid"):
        table = rows(folder / "csv_logger" / f"{key}.csv")
        assert [row["step"] for row in table] == steps
        found = [event for event in events(folder / "tensorboard" / key) if event[1] == "loss/epoch"]
        assert [str(event[0]) for event in found] == steps
        assert [event[2] for event in found] == pytest.approx([float(row["loss"]) for row in table], rel=1e-6)
    losses = [float(row["loss"]) for row in table]
    best = json.loads((folder / "checkpoints" / "model.storage.json").read_text())["storage"][0]
    assert best["metric"] == min(losses) and best["logpath"].endswith(f"model.{losses.index(min(losses)) + 1:04d}.pth")
    models = {name: torch.load(folder / "checkpoints" / f"model.{name}.pth") for name in ("best", "last")}
    wanted = torch.load(best["logpath"])
    assert all(torch.equal(models["best"][key], wanted[key]) for key in wanted)
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {
        "model.best.pth", "model.last.pth", "model.storage.json", os.path.basename(best["logpath"])}
    return losses


def test_scaled_and_killed(tmp_path):
    """Two replicas, then one, then two, in place; then one is killed. It has a part of the ledger that nobody else has, so
    that the job goes back to its checkpoint: the launcher starts both again."""
    if not (BIN / "adaptdl").exists():
        pytest.skip(f"{BIN}/adaptdl is not built")
    path = program(tmp_path, LEDGER)
    process = start(BIN / "adaptdl", "run", "-v", "-n", "2", "--max-restarts", "3", "--checkpoint", tmp_path / "ck", "--",
                    sys.executable, path, tmp_path / "logs", tmp_path, 0.1)
    lines = Lines(process)

    def scale(count):
        run(BIN / "adaptdl", "scale", name, count)

    try:
        place = lines.wait_for(r"adaptdl run: (\S+): started 2 replicas")
        name = re.search(r"adaptdl run: (\S+): started", lines.lines[place - 1])[1]
        place = lines.wait_for(r"Epoch \(1/6\)", place)
        scale(1)
        place = lines.wait_for("in place.* 1 replica now", place)
        (tmp_path / "slowly").touch()
        scale(2)
        place = lines.wait_for("in place.* 2 replicas now", place)
        (tmp_path / "slowly").unlink(missing_ok=True)
        pid, rank, count = (tmp_path / "starts").read_text().split()[-3:]
        os.kill(int(pid), signal.SIGKILL)
        place = lines.wait_for(r"initialized \(gloo, rank 0 of 2\)", place)
        (tmp_path / "hurry").touch()
        assert process.wait(WAIT_S) == 0, "\n".join(lines.lines)
    finally:
        end(process)
        lines.thread.join()
    starts = [line.split()[1:] for line in (tmp_path / "starts").read_text().splitlines()]
    assert sorted(starts) == sorted([["0", "2"]] * 2 + [["1", "2"]] * 3)
    losses = check_once(tmp_path / "logs", tmp_path)
    print(f"info - 2 -> 1 -> 2 -> killed -> 2 replicas: {2 * EPOCHS * EXAMPLES} samples exactly once, loss "
          f"{losses[0]:.3f} to {losses[-1]:.3f}")


@pytest.fixture
def cluster():
    if not (BIN / "adaptdl-sched").exists():
        pytest.skip(f"{BIN}/adaptdl-sched is not built")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="adl-dl-", dir="/tmp"))  # short: a socket's path is limited
    made = Cluster(folder)
    yield made
    made.close()
    shutil.rmtree(folder)


def test_as_a_job_of_a_cluster(cluster):
    """It begins on one replica, grows when its speed is known, in place, and is not told about either."""
    path, folder = program(cluster.folder, LEDGER), cluster.folder
    cluster.submit("learns", [sys.executable, str(path), str(folder / "logs"), str(folder), "1"], {"maxReplicas": 2})
    cluster.wait("learns", "Running", [1])
    cluster.wait("learns", "Running", [2], trained=2)
    (folder / "hurry").touch()
    job = cluster.wait("learns", "Succeeded", [0])
    assert job["failures"] == 0
    losses = check_once(folder / "logs", folder)
    told = curves_of(cluster, "learns")  # the scheduler has each epoch once, too
    assert [step for step, _ in told["valid/loss"]] == list(range(1, EPOCHS + 1))
    assert [value for _, value in told["valid/loss"]] == pytest.approx(losses)
    assert job["metrics"]["train/loss"]["step"] == EPOCHS and "train/lr" in job["metrics"]
    starts = [line.split()[2] for line in (folder / "starts").read_text().splitlines()]
    assert starts[0] == "1" and "2" in starts
    print(f"info - replicas {' '.join(starts)} (by start): loss {losses[0]:.3f} to {losses[-1]:.3f}")


if __name__ == "__main__":
    harness.main(__file__)
