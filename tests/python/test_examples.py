#!/usr/bin/python3
"""The programs of examples/pytorch as a user runs them, for a few epochs on generated digits: the steps of the
tutorial, standalone training with CTRL-C, and the others on one and on two replicas."""

import importlib.util
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

import harness

import pytest

BIN = pathlib.Path(os.environ.get("ADAPTDL_BIN", harness.ROOT / "build" / "release" / "bin"))
EXAMPLES = harness.ROOT / "examples" / "pytorch"
EPOCHS = 5
RIGHT = 0.4  # chance is 0.1
FOREVER = 1000  # epochs of a run that is interrupted
WAIT_S = 300  # for anything at all; the machine may be busy


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A folder with files like those of MNIST."""
    program = BIN.parent / "examples" / "make_digits"
    assert program.exists(), f"{program} is missing: run make first"
    folder = tmp_path_factory.mktemp("digits")
    subprocess.run([program, folder, "600", "200"], check=True, capture_output=True, timeout=WAIT_S)
    return folder


class Running:
    """A program that runs, and the lines that it has printed. It has a process group of its own, to be
    interrupted as a terminal does it."""

    def __init__(self, command, **variables):
        env = harness.environment(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive", PYTHONUNBUFFERED="1", **variables)
        self.process = subprocess.Popen([str(word) for word in command], env=env, cwd=EXAMPLES, text=True,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        start_new_session=True)
        self.lines = []
        self.news = threading.Condition()
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self.news:
                self.lines.append(line.rstrip("\n"))
                self.news.notify_all()

    def text(self):
        return "\n".join(self.lines)

    def wait_for(self, pattern, first=0):
        """Until a line has it, from the first on; the number of the next line."""
        def look():
            return next((i + 1 for i, line in enumerate(self.lines) if i >= first and re.search(pattern, line)), 0)
        with self.news:
            found = self.news.wait_for(look, WAIT_S)
        assert found, f"no line with {pattern!r}\n{self.text()}"
        return found

    def interrupt(self):
        """CTRL-C: every process of the group gets it, workers too."""
        os.killpg(self.process.pid, signal.SIGINT)

    def ended(self, status=0):
        """Waits for its end, and returns what it printed."""
        try:
            code = self.process.wait(WAIT_S)
        finally:
            self.kill()
        assert code == status, f"exit status {code}, not {status}\n{self.text()}"
        return self.text()

    def kill(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.reader.join()


class Job:
    """One or more replicas of an example, by environment variables alone."""

    def __init__(self, name, *arguments, count=1, **variables):
        if count > 1:
            variables.update(ADAPTDL_MASTER_ADDR="127.0.0.1", ADAPTDL_MASTER_PORT=harness.free_port(),
                             ADAPTDL_NUM_REPLICAS=count)
        self.replicas = []
        for rank in range(count):
            ranked = dict(variables, ADAPTDL_REPLICA_RANK=rank) if count > 1 else variables
            self.replicas.append(Running([sys.executable, name + ".py", *arguments], **ranked))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for replica in self.replicas:
            replica.kill()

    def interrupt(self):
        for replica in self.replicas:
            replica.interrupt()

    def ended(self, status=0):
        """What each has printed."""
        return [replica.ended(status) for replica in self.replicas]


def run(name, *arguments, status=0, **variables):
    with Job(name, *arguments, **variables) as job:
        return job.ended(status)


def last(text):
    return text.rstrip().splitlines()[-1]


def accuracy(text):
    """The share of right answers in the last line, of all 200 test images."""
    found = re.search(r"Test set: Average loss: \d+\.\d{4}, Accuracy: (\d+)/200 \(\d+%\)$", last(text))
    assert found, text
    return int(found[1]) / 200


# ---- the tutorial ----

@pytest.mark.parametrize("name", ["mnist_original", "mnist_step_2", "mnist_step_3", "mnist_step_4", "mnist_step_5"])
def test_the_tutorial_learns(name, digits):
    text, = run(name, "--data", digits, "--epochs", EPOCHS)
    assert accuracy(text) > RIGHT, text
    assert text.count("Test set:") == EPOCHS
    print(f"info - {name}: {accuracy(text):.0%} right after {EPOCHS} epochs")


def test_the_first_step_says_what_is_missing(digits):
    text, = run("mnist_step_1", "--data", digits, status=1)
    assert re.search(r"RuntimeError: \S+: a backward pass outside a loop over data from an elastic loader", text), text


def test_the_steps_are_small():
    """Each step of the tutorial changes few lines of the one before, and says so in its first lines only."""
    before = None
    for name in ["mnist_original"] + [f"mnist_step_{i}" for i in range(1, 6)]:
        source = (EXAMPLES / f"{name}.py").read_text()
        lines = source[source.index('"""\n', 3) + 4:].splitlines()
        if before is not None:
            new = [line for line in lines if line not in before]
            assert 1 <= len(new) <= 9, (name, new)
        before = set(lines)


def test_tensorboard(digits, tmp_path):
    if importlib.util.find_spec("tensorboard") is None:
        pytest.skip("the package tensorboard is not installed, which torch.utils.tensorboard needs")
    text, = run("mnist_tensorboard", "--data", digits, "--epochs", 1, ADAPTDL_TENSORBOARD_LOGDIR=tmp_path,
                ADAPTDL_JOB_ID="default/digits")
    accuracy(text)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    events = EventAccumulator(str(tmp_path / "default" / "digits"))
    events.Reload()
    assert {"Test/Loss", "Test/Accuracy", "Train/Gain", "Train/Total_Batch_Size"} <= set(events.Tags()["scalars"])


def test_bad_data_is_named(digits, tmp_path):
    text, = run("mnist_step_5", "--data", tmp_path, status=1)
    assert last(text).startswith(f"{tmp_path}/train-images-idx3-ubyte: No such file or directory (tools/get-mnist")
    shutil.copytree(digits, tmp_path, dirs_exist_ok=True)
    images = tmp_path / "train-images-idx3-ubyte"
    images.write_bytes(images.read_bytes()[:-1])
    text, = run("mnist_step_5", "--data", tmp_path, status=1)
    assert last(text) == f"{images}: not a file of MNIST, or not all of it"


# ---- standalone training ----

def first_epoch(text):
    return int(re.search(r"INFO:adaptdl\.torch\.epoch:starting at epoch (\d+)$", text, re.MULTILINE)[1])


def saved_epoch(text):
    """Where CTRL-C came, by the last line but those of peers."""
    assert re.search(r"got SIGINT: .* checkpoint.*, then exiting", text), text
    return int(re.search(r"adaptdl: saved checkpoint-\S+ in \S+ \(epoch (\d+)\)$", text, re.MULTILINE)[1])


def test_interrupted_and_resumed_on_other_numbers_of_replicas(digits, tmp_path):
    """1, 2, then 1 again: each goes on in the epoch where CTRL-C stopped the one before."""
    options = dict(ADAPTDL_CHECKPOINT_PATH=tmp_path)
    epochs = [0]
    for count in (1, 2):
        with Job("mnist_step_5", "--data", digits, "--epochs", FOREVER, count=count, **options) as job:
            job.replicas[0].wait_for(rf"^Train Epoch: {epochs[-1] + 1} ")
            job.interrupt()
            texts = job.ended(143)
        assert [first_epoch(text) for text in texts] == [epochs[-1]] * count
        assert "Traceback" not in "".join(texts), texts
        epochs.append(saved_epoch(texts[0]))
        assert epochs[-1] > epochs[-2]
    text, = run("mnist_step_5", "--data", digits, "--epochs", max(EPOCHS, epochs[-1] + 1), **options)
    assert first_epoch(text) == epochs[-1]
    assert accuracy(text) > RIGHT, text
    print(f"info - interrupted in epochs {epochs[1]} and {epochs[2]}, {accuracy(text):.0%} right at the end")
    text, = run("mnist_step_5", "--data", digits, "--epochs", 1, **options)
    assert "starting at" not in text and "Epoch" not in text, text  # all is done


def test_interrupted_without_a_place_to_save(digits):
    with Job("mnist_step_5", "--data", digits, "--epochs", FOREVER) as job:
        job.replicas[0].wait_for("^Train Epoch: ")
        job.interrupt()
        text, = job.ended(143)
    assert "ADAPTDL_CHECKPOINT_PATH is not set: nothing is saved" in text and "Traceback" not in text, text


def test_two_replicas_by_hand(digits):
    texts = run("mnist_step_5", "--data", digits, "--epochs", EPOCHS, count=2)
    assert last(texts[0]) == last(texts[1]), texts  # sums over both
    assert accuracy(texts[0]) > RIGHT, texts
    assert "initialized (gloo, rank 1 of 2)" in texts[1], texts


def test_under_adaptdl_run(digits, tmp_path):
    def command(count, epochs):
        return Running([BIN / "adaptdl", "run", "-n", count, "--checkpoint", tmp_path, "--", sys.executable,
                        "mnist_step_5.py", "--data", digits, "--epochs", epochs])

    running = command(2, FOREVER)
    try:
        running.wait_for(r"^\[1\] Train Epoch: 1 ")
        running.interrupt()
        text = running.ended(143)
    finally:
        running.kill()
    epoch = int(re.search(r"saved checkpoint-\S+ in \S+ \(epoch (\d+)\)$", text, re.MULTILINE)[1])
    text = command(1, epoch + 1).ended()
    assert f"starting at epoch {epoch}" in text and accuracy(text) >= 0, text


def test_scaled_under_adaptdl_run(digits, tmp_path):
    """To two replicas and back, with the workers that the tutorial has."""
    running = Running([BIN / "adaptdl", "run", "--name", "digits", "--checkpoint", tmp_path / "ck", "--",
                       sys.executable, "mnist_step_5.py", "--data", digits, "--epochs", FOREVER],
                      XDG_RUNTIME_DIR=tmp_path)
    try:
        running.wait_for(r"^\[0\] Train Epoch: ")
        for count in (2, 1, 2):
            begin = len(running.lines)
            subprocess.run([BIN / "adaptdl", "scale", "digits", str(count)], check=True, timeout=WAIT_S,
                           capture_output=True, env=harness.environment(XDG_RUNTIME_DIR=tmp_path))
            begin = running.wait_for(rf"resized in place, paused .*; {count} replicas? now", begin)
            running.wait_for(r"^\[[1-9]\d*\] Train Epoch: " if count > 1 else r"^\[0\] Train Epoch: ", begin)
        running.interrupt()
        text = running.ended(143)
    finally:
        running.kill()
    assert "Traceback" not in text and "DataLoader worker" not in text, text


def test_submitted_to_a_cluster(digits):
    if not (BIN / "adaptdl-sched").exists():
        pytest.skip(f"{BIN}/adaptdl-sched is not built")
    with tempfile.TemporaryDirectory(prefix="adl") as state:  # short: a socket's path is limited
        # The job's python3 is the first one on the scheduler's PATH.
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
        env = harness.environment(ADAPTDL_STATE=state, PATH=path, OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive")

        def adaptdl(*words):
            return subprocess.run([BIN / "adaptdl", *map(str, words)], env=env, check=True, text=True,
                                  stdout=subprocess.PIPE, timeout=WAIT_S).stdout

        adaptdl("up", "--nodes", "1", "--slots", "1", "--listen", "none")
        try:
            text = adaptdl("submit", "--follow", EXAMPLES, "--", "--data", digits, "--epochs", 1)
            accuracy(text)
        finally:
            adaptdl("down")


# ---- the others, on one and on two replicas ----

def epochs_of(texts, pattern):
    """The groups of the pattern in rank 0's lines "Epoch N: ..."; the others must have the same lines."""
    lines = [[line for line in text.splitlines() if line.startswith("Epoch ")] for text in texts]
    assert all(other == lines[0] for other in lines), texts
    found = [re.fullmatch(pattern, line.partition(": ")[2]) for line in lines[0]]
    assert found and all(found), lines[0]
    return [match.groups() for match in found]


@pytest.mark.parametrize("count", [1, 2])
def test_transformer(count, tmp_path):
    path = tmp_path / "text"
    path.write_text("the quick brown fox jumps over the lazy dog. " * 400)
    texts = run("transformer", "--text", path, "--epochs", 3, "--width", 32, "--lr", 0.003, count=count)
    bits = [float(b) for b, _ in epochs_of(texts, r"(\d+\.\d+) bits per character, batch size (\d+)")]
    assert len(bits) == 3 and bits[2] < bits[0] and bits[2] < 3.5, bits  # the letters alone have 4.3
    print(f"info - {count} replicas: {bits[2]} bits per character")


@pytest.mark.parametrize("count", [1, 2])
def test_gan(count, digits):
    texts = run("gan", "--data", digits, "--epochs", 2, count=count)
    losses = epochs_of(texts, r"critic (\d+\.\d+), artist (\d+\.\d+)")
    assert len(losses) == 2 and float(losses[1][0]) < float(losses[0][0]), losses


@pytest.mark.parametrize("count", [1, 2])
def test_mixed_precision(count, digits):
    texts = run("mixed_precision", "--data", digits, "--epochs", 4, count=count)
    rows = epochs_of(texts, r"(\S+) % right, loss scale \S+, batch size (\d+), gain (\S+)")
    assert len(rows) == 4, rows
    # Batch sizes, and with them the number of steps, depend on how fast the machine is just now.
    assert max(float(row[0]) for row in rows) > 30, rows


def test_a_missing_text_is_named(tmp_path):
    text, = run("transformer", "--text", tmp_path / "none", status=1)
    assert last(text) == f"{tmp_path}/none: No such file or directory", text


if __name__ == "__main__":
    harness.main(__file__)
