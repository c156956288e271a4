#!/usr/bin/python3
"""Resizing in place with PyTorch, as a user sees it: random histories of `adaptdl run` with real processes that are grown,
shrunk, moved, killed (rank 0 too, new ones while they join) and stopped by SIGSTOP, until elastic_program.py is finished.
Every example of every epoch was applied exactly once, the schedule stepped once for each step, and what was learned is
what an undisturbed run learns, within the order of sums.

ADL_ELASTIC_SEQUENCES (2) histories from ADL_ELASTIC_SEED (1) on; `make test-elastic` runs 200."""

import os
import random
import signal
import time

import harness
import pytest
from elastic_common import ADAPTDL, Run, check, learn_undisturbed

SEQUENCES = int(os.environ.get("ADL_ELASTIC_SEQUENCES", "2"))
SEED = int(os.environ.get("ADL_ELASTIC_SEED", "1"))

pytestmark = pytest.mark.skipif(not ADAPTDL.exists(), reason=f"{ADAPTDL} was not built")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What one replica learns, by epochs, examples and amp."""
    known = {}

    def learn(epochs, examples, amp=0):
        if (epochs, examples, amp) not in known:
            known[epochs, examples, amp] = learn_undisturbed(tmp_path_factory.mktemp("plain"), epochs=epochs,
                                                             examples=examples, amp=amp)
        return known[epochs, examples, amp]
    return learn


def test_grow_shrink_and_deaths_in_place(tmp_path, undisturbed):
    """Each kind once, and none of them by a restart: with workers, two wrappers, and calls that are replayed."""
    with Run(tmp_path, 1, epochs=6, examples=1200, step_ms=100, workers=2, calls=2) as run:
        run.trains()
        run.scale(3)
        run.until("3 replicas now")
        os.kill(run.members()[-1], signal.SIGKILL)  # it is refilled
        run.until("going on without it")
        run.until("3 replicas now", count=2)
        os.kill(run.members()[0], signal.SIGKILL)  # rank 0
        run.until("going on without it", "restart", count=2)
        run.until("3 replicas now", count=3)
        moved = run.members()
        run.wait(lambda: "is replaced" in run.replace(0), "rank 0 cannot be moved")
        run.until("3 replicas now", count=4)
        run.wait(lambda: len(set(moved) - set(run.members())) == 1, "nobody has left")
        run.scale(1)
        run.until("1 replica now")
        result = run.end()
        check(run, result, undisturbed(6, 1200), 6, 1200)
        assert "Traceback" not in run.log()
        assert result["files"] < 40, f"{result['files']} more open files at the end than at the start"
        print("info - " + " ".join(line.split(": ", 2)[-1] for line in run.log().splitlines() if "paused" in line))


def test_own_collectives_before_the_epochs_restart_a_job_that_grows(tmp_path, undisturbed):
    """A new process could not repeat them. Nobody has to when it shrinks."""
    with Run(tmp_path, 2, epochs=4, examples=600, step_ms=50, own=1) as run:
        run.trains()
        run.scale(3)
        run.until("cannot be resized in place (the program called torch.distributed before its epochs, nobody can join)")
        run.until("restart 1 on 3 replicas")
        assert "resized in place, paused" not in run.log()
        run.trains()
        run.scale(2)
        run.until("2 replicas now")
        check(run, run.end(), undisturbed(4, 600), 4, 600)
        assert "restart 2" not in run.log(), run.log()


def test_own_collectives_in_an_epoch_put_a_resize_off_to_the_next(tmp_path, undisturbed):
    (tmp_path / "hold").touch()
    with Run(tmp_path, 2, epochs=3, examples=480, step_ms=100, own=2) as run:
        run.wait((tmp_path / "waits").exists, "it does not come to its first batches")
        run.scale(3)
        run.until("ready to join")  # the next world is offered, 36 batches before the end of the epoch
        (tmp_path / "hold").unlink()
        run.until("3 replicas now")
        result = run.end()
        check(run, result, undisturbed(3, 480), 3, 480)
        assert result["replicas"][0] == [2] and result["replicas"][1][-1] == 3, result["replicas"]
        assert "restart" not in run.log(), run.log()


def test_a_world_that_stays_as_it_was_learns_the_same_to_the_bit(tmp_path):
    """A new replica is killed before it has joined, and then a growth is taken back."""
    options = dict(epochs=3, examples=480, step_ms=50)
    results = []
    for disturbed in range(2):
        directory = tmp_path / str(disturbed)
        directory.mkdir()
        (directory / "hold-new").touch()  # none joins
        with Run(directory, 2, **options) as run:
            run.trains()
            if disturbed:
                run.scale(3)
                run.wait(lambda: run.members(joining=True), "no new replica comes")
                os.kill(run.members(joining=True)[0], signal.SIGKILL)
                run.until("before it had joined")
                run.scale(2)
                run.wait(lambda: not run.members(joining=True), "the new replica stays")
            results.append(run.end())
            assert "replicas now" not in run.log() and "restart" not in run.log(), run.log()
    assert results[0]["wrong"] == [] and results[0]["weights"] == results[1]["weights"]


def test_what_hangs_says_where(tmp_path):
    with Run(tmp_path, 2, epochs=1, examples=1200, step_ms=200) as run:
        run.trains()
        stacks = run.stacks()
        assert stacks.count("in main") == 2 and stacks.count("\nprocess ") == 2, stacks


def disturb(run, draw):
    """One thing that happens to it, and what becomes of it, or not even that."""
    what = draw.choice(["scale", "scale", "scale", "move", "move", "kill", "kill", "kill-new", "stop"])
    members, before = run.members(), run.log().count("now\n")
    if what == "scale" or not members:
        run.scale(draw.randint(1, 3))
    elif what == "move":
        run.replace(draw.randrange(3))
    elif what == "kill-new":
        run.scale(3)
        time.sleep(draw.choice([0.5, 2, 4]))
        members = run.members(joining=True)
        if members:
            run.signal(members[-1], signal.SIGKILL)
    else:
        pid = draw.choice(members)
        run.signal(pid, signal.SIGSTOP if what == "stop" else signal.SIGKILL)
        if what == "stop":
            time.sleep(draw.choice([0.5, 6]))
            run.signal(pid, signal.SIGCONT)
    until = time.monotonic() + draw.choice([0, 1, 30])
    while run.process.poll() is None and time.monotonic() < until and run.log().count("now\n") == before:
        time.sleep(0.1)


@pytest.mark.parametrize("seed", range(SEED, SEED + SEQUENCES))
def test_random_history(tmp_path, undisturbed, seed):
    draw = random.Random(seed)
    epochs, examples = draw.choice([(4, 600), (8, 240)])
    options = dict(epochs=epochs, examples=examples, step_ms=draw.choice([50, 150]), calls=draw.randrange(3),
                   workers=draw.choice([0, 0, 2]), accumulate=draw.randrange(2), amp=draw.choice([0, 0, 1]))
    options["persistent"] = int(options["workers"] and draw.randrange(2))
    with Run(tmp_path, draw.choice([1, 2, 3]), **options) as run:
        run.trains()
        for _ in range(draw.randint(2, 5)):
            disturb(run, draw)
        result = run.end()
        tolerance = 3e-2 if options["amp"] else 2e-3  # the gradients of smaller batches are rounded, to 8 bits
        check(run, result, undisturbed(epochs, examples, options["amp"]), epochs, examples, tolerance)
        log = run.log()
        assert "Traceback" not in log or "restart" in log, log
        print(f"info - {options} {log.count('resized in place')} in place, {log.count('going on without it')} deaths "
              f"survived, {log.count('restarting')} restarts")


if __name__ == "__main__":
    harness.main(__file__)
