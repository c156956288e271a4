#!/usr/bin/python3
"""Programs of the runner that are grown, shrunk and killed, and go on in place: under `adaptdl run` and on a local cluster,
without a restart, with the metrics, rows, events and models of a run that nothing happened to."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import harness

import pytest

torch = pytest.importorskip("torch")
from dl_common import BIN, WAIT_S, Lines, end, events, program, rows, run, start  # noqa: E402
from test_cluster_torch import Cluster  # noqa: E402
from test_core_report import curves_of  # noqa: E402

PROGRAM = pathlib.Path(__file__).with_name("runner_program.py")

pytestmark = pytest.mark.skipif(not (BIN / "adaptdl").exists(), reason=f"{BIN}/adaptdl was not built")


class Processes:
    """Processes of the program, by what they say in its directory of where they are."""

    def __init__(self, directory):
        self.directory = directory

    def runs(self):
        """Are there some still?"""
        return True

    def said(self):
        """What they have printed."""
        return ""

    def find(self, wanted):
        """The first process of whose rank, epoch, loader, batches and whether it waits that is true."""
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until and self.runs():
            for path in self.directory.glob("at-*"):
                words = path.read_text().split()
                alive = pathlib.Path(f"/proc/{path.name[3:]}").exists()
                if alive and len(words) == 5 and wanted(int(words[0]), int(words[1]), words[2], int(words[3]), words[4]):
                    return int(path.name[3:])
            time.sleep(0.01)
        raise AssertionError(f"no such process\n{self.said()}")

    def kill_one(self, rank, loader, replicas):
        """The replica of that rank, in the middle of a loop over that loader; its number."""
        slowly, pid = self.directory / "slowly", None
        while pid is None:
            self.find(lambda r, _, key, step, what: r == rank and key == loader and 2 <= step // replicas <= 6)
            slowly.touch()  # they stop in the middle of a batch
            pid = self.find(lambda r, _, key, step, what: r == rank and what == "waits")
            if (self.directory / f"at-{pid}").read_text().split()[2:3] != [loader]:  # it had come further
                slowly.unlink()
                pid = None
        os.kill(pid, signal.SIGKILL)
        slowly.unlink(missing_ok=True)
        return pid


class Training(Processes):
    """One `adaptdl run` of the program."""

    def __init__(self, directory, replicas, **options):
        super().__init__(directory)
        self.place = 0
        self.process = start(BIN / "adaptdl", "run", "-v", "-n", replicas, "--checkpoint", directory / "checkpoint",
                             "--max-restarts", "20", "--", sys.executable, PROGRAM, directory,
                             *(f"{name}={value}" for name, value in options.items()),
                             ADAPTDL_PEER_TIMEOUT=2, ADAPTDL_CHECKPOINT_INTERVAL=2)
        self.lines = Lines(self.process)

    def __enter__(self):
        self.until("started")
        self.name = re.search(r"adaptdl run: (\S+): started", self.lines.text())[1]
        return self

    def __exit__(self, *_):
        end(self.process)
        self.lines.thread.join()

    def runs(self):
        return self.process.poll() is None

    def said(self):
        return self.lines.text()

    def until(self, pattern):
        """A line that has it, after the one that was waited for last."""
        self.place = self.lines.wait_for(pattern, self.place)

    def scale(self, replicas):
        run(BIN / "adaptdl", "scale", self.name, replicas)

    def grow(self, replicas):
        """The others wait in a batch while the new process comes up, however long that takes."""
        (self.directory / "slowly").touch()
        self.scale(replicas)
        self.grown(replicas)

    def shrink(self):
        """To one; the others wait until that was said."""
        (self.directory / "slowly").touch()
        self.scale(1)
        (self.directory / "slowly").unlink()
        self.until("1 replica now")

    def grown(self, replicas):
        self.until(f"{replicas} replicas now")
        (self.directory / "slowly").unlink(missing_ok=True)

    def kill(self, rank, loader, replicas):
        """The replica of that rank, in the middle of a loop over that loader; it is replaced."""
        self.kill_one(rank, loader, replicas)
        self.until("going on without it")
        (self.directory / "slowly").touch()
        self.grown(replicas)

    def end(self):
        (self.directory / "hurry").touch()
        assert self.process.wait(WAIT_S) == 0, self.lines.text()
        self.lines.thread.join()
        text = self.lines.text()
        assert "restarting" not in text and "Traceback" not in text, text
        print("info - " + " ".join(line.split(": ", 2)[-1] for line in self.lines.lines if "paused" in line))
        return json.loads((self.directory / "result").read_text())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The files and the result of one process that nothing happens to, by its options."""
    known = {}

    def learn(**options):
        key = tuple(sorted(options.items()))
        if key not in known:
            directory = tmp_path_factory.mktemp("plain")
            words = [f"{name}={value}" for name, value in options.items()]
            done = subprocess.run([sys.executable, PROGRAM, directory, *words, "step_ms=0"],
                                  env=harness.environment(ADAPTDL_CHECKPOINT_PATH=directory / "checkpoint"),
                                  capture_output=True, text=True, timeout=WAIT_S)
            assert done.returncode == 0, done.stdout + done.stderr
            known[key] = directory, json.loads((directory / "result").read_text())
        return known[key]
    return learn


def same(directory, result, whole, plain):
    """As if nothing had happened."""
    assert result["seen"] == pytest.approx(plain["seen"], abs=1e-3)
    for name in ("epochs", "schedule", "sample_step"):
        assert result[name] == plain[name], name
    for mine, wanted in zip(result["weights"], plain["weights"]):
        assert mine == pytest.approx(wanted, abs=2e-3)
    for key in ("train", "valid", "_epoch_"):
        a, b = (rows(folder / "logs" / "csv_logger" / f"{key}.csv") for folder in (whole, directory))
        assert [row["step"] for row in b] == [row["step"] for row in a]
        for x, y in zip(a, b):
            assert {k: float(v) for k, v in y.items() if "/std" not in k} == pytest.approx(
                {k: float(v) for k, v in x.items() if "/std" not in k}, abs=2e-3), key
            if key == "valid":  # each example once
                assert float(y["number/std"]) == pytest.approx(float(x["number/std"]), abs=1e-6)
        epochs, wanted = ([event[:2] for event in events(folder / "logs" / "tensorboard" / key)
                           if event[1].endswith("/epoch")] for folder in (directory, whole))
        assert epochs == wanted
        batches, wanted = ([event[0] for event in events(folder / "logs" / "tensorboard" / key)
                            if event[1] == "loss/batch"] for folder in (directory, whole))
        assert batches == wanted, key  # none of them is missing, or twice
    check_models(directory)


def check_models(directory):
    folder = directory / "logs" / "checkpoints"
    losses = {int(row["step"]): float(row["loss"]) for row in rows(directory / "logs" / "csv_logger" / "valid.csv")}
    best = sorted(losses, key=losses.get)[:2]
    listed = json.loads((folder / "model.storage.json").read_text())["storage"]
    assert [os.path.basename(item["logpath"]) for item in listed] == [f"model.{epoch:04d}.pth" for epoch in best]
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [f"model.{epoch:04d}.pth" for epoch in best] + ["model.best.pth", "model.last.pth", "model.storage.json"])
    a, b = (torch.load(folder / name) for name in (f"model.{best[0]:04d}.pth", "model.best.pth"))
    assert all(torch.equal(a[key], b[key]) for key in a)


def test_grow_and_shrink(tmp_path, undisturbed):
    """And calls of the program's own in events of loaders that are over, which whoever joins does not make."""
    with Training(tmp_path, 1, step_ms=200, calls=1) as training:
        training.find(lambda rank, epoch, key, step, what: key == "valid")
        training.grow(2)
        training.grow(3)
        training.find(lambda rank, epoch, key, step, what: rank == 2)
        training.shrink()
        result = training.end()
        same(tmp_path, result, *undisturbed())


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("loader", ["train", "valid"])
def test_a_death(tmp_path, undisturbed, rank, loader):
    with Training(tmp_path, 2, step_ms=100) as training:
        training.kill(rank, loader, 2)
        result = training.end()
        same(tmp_path, result, *undisturbed())
        seen = [line.split() for line in (tmp_path / "batches").read_text().splitlines()]
        assert len({pid for _, _, pid in seen}) == 1 + (rank == 0)  # whoever is rank 0 logs, and nobody else


def test_a_death_on_a_cluster(undisturbed):
    """The job has grown to two by itself; one of them is killed, rank 0 at that. It is a failure, and no restart."""
    if not (BIN / "adaptdl-sched").exists():
        pytest.skip(f"{BIN}/adaptdl-sched is not built")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="adl-die-", dir="/tmp"))  # short: a socket's path is limited
    cluster = Cluster(folder)
    try:
        cluster.submit("learns", [sys.executable, str(PROGRAM), str(folder), "step_ms=1000"],
                       {"maxReplicas": 2, "maxRetries": 3})
        cluster.wait("learns", "Running", [1], trained=1)
        (folder / "slowly").touch()  # until the new process is up, which takes that away
        cluster.wait("learns", "Running", [2], trained=2)
        processes = Processes(folder)
        first = processes.kill_one(0, "train", 2)
        processes.find(lambda rank, epoch, key, step, what: rank == 0)  # another one has its place, and goes on
        (folder / "hurry").touch()
        job = cluster.wait("learns", "Succeeded", [0])
        assert (job["failures"], job["restarts"]) == (1, 0), json.dumps(job)
        whole, plain = undisturbed()
        same(folder, json.loads((folder / "result").read_text()), whole, plain)
        told = curves_of(cluster, "learns")["valid/loss"]
        assert [step for step, _ in told] == plain["epochs"]
        assert [value for _, value in told] == pytest.approx(
            [float(row["loss"]) for row in rows(folder / "logs" / "csv_logger" / "valid.csv")])
        seen = [line.split()[2] for line in (folder / "batches").read_text().splitlines()]
        assert seen[0] == str(first) != seen[-1]
    finally:
        cluster.close()
        shutil.rmtree(folder)


def test_rank_0_dies_before_the_first_batch_of_one_that_has_joined(tmp_path, undisturbed):
    with Training(tmp_path, 1, step_ms=100) as training:
        training.find(lambda rank, epoch, key, step, what: key == "train" and step > 3)
        for name in ("slowly", "late"):  # the new process takes that away, when it is up
            (tmp_path / name).touch()
        training.scale(2)
        first = training.find(lambda rank, epoch, key, step, what: rank == 0)
        training.find(lambda rank, epoch, key, step, what: what == "joined")
        os.kill(first, signal.SIGKILL)
        training.until("going on without it")
        same(tmp_path, training.end(), *undisturbed())


OFFICE = """
class Moves(dl.ElasticEngine):
    main, then = (word == "rank0" for word in sys.argv[2:4])
    is_main_process = property(lambda self: self.main)


class Move(dl.Callback):
    def on_batch_end(self, runner):
        if f"{runner.epoch_step}.{runner.loader_key}.{runner.loader_batch_step}" == sys.argv[4]:
            Moves.main = Moves.then


dl.SupervisedRunner().train(
    **parts(), loaders=loaders(), num_epochs=3, logdir=sys.argv[1], engine=Moves(), callbacks=[Move()], **RIGHT,
    loggers={"tensorboard": dl.TensorboardLogger(sys.argv[1], True, log_batch_metrics=True)})
"""


@pytest.mark.parametrize("place", ["2.train.3", "2.valid.1", "2.valid.3"])
def test_rank_0_is_another(tmp_path, place):
    """One process is rank 0 up to there, another from there on: its files are those of one that always was."""
    path = program(tmp_path, OFFICE)
    run(sys.executable, path, tmp_path / "whole", "rank0", "rank0", "")
    first = run(sys.executable, path, tmp_path / "logs", "rank0", "other", place)
    second = run(sys.executable, path, tmp_path / "logs", "other", "rank0", place)
    for epoch in range(1, 4):
        for key in ("train", "valid"):
            assert len(re.findall(rf"^{key} \({epoch}/3\)", first + second, re.MULTILINE)) == 1, first + second
    for key in ("train", "valid", "_epoch_"):
        a, b = (tmp_path / name / "csv_logger" / f"{key}.csv" for name in ("whole", "logs"))
        assert a.read_text() == b.read_text()
        assert events(tmp_path / "whole" / "tensorboard" / key) == events(tmp_path / "logs" / "tensorboard" / key)
    names = [sorted(found.name for found in (tmp_path / name / "checkpoints").iterdir()) for name in ("whole", "logs")]
    assert names[0] == names[1]
    a, b = (torch.load(tmp_path / name / "checkpoints" / "model.best.pth") for name in ("whole", "logs"))
    assert all(torch.equal(a[key], b[key]) for key in a)


def test_in_the_second_stage(tmp_path, undisturbed):
    """Who joins then has the first behind it."""
    with Training(tmp_path, 1, step_ms=200, stages=1) as training:
        training.find(lambda rank, epoch, key, step, what: epoch >= 2 and key == "train" and step > 3)
        training.grow(2)
        result = training.end()
        plain = undisturbed(stages=1)[1]
        assert result["seen"] == pytest.approx(plain["seen"], abs=1e-3)
        assert result["sample_step"] == plain["sample_step"] and result["epochs"] == plain["epochs"]


def test_accumulated_gradients(tmp_path, undisturbed):
    """Every second batch makes a step; who joins in between has the gradients that wait for it."""
    with Training(tmp_path, 1, step_ms=200, accumulate=2) as training:
        training.find(lambda rank, epoch, key, step, what: key == "train" and step > 2)
        training.grow(2)
        training.shrink()
        result = training.end()
        plain = undisturbed(accumulate=2)[1]
        assert result["seen"] == pytest.approx(plain["seen"], abs=1e-3)
        for mine, wanted in zip(result["weights"], plain["weights"]):
            assert mine == pytest.approx(wanted, abs=2e-3)


if __name__ == "__main__":
    harness.main(__file__)
