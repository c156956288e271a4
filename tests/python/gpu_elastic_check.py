#!/usr/bin/env python3
"""Resizing in place on a GPU, with the PyTorch that is installed there: python3 tests/python/gpu_elastic_check.py
[NAME...]. Needs the built package (ADL_PYTHON_LIB, or build/python/lib: tools/build-python), the programs (ADAPTDL_BIN;
tools/bundle makes ones that run elsewhere) and one GPU, which all replicas share; no pytest, no network. NCCL takes
that for a mistake unless they seem to be on several hosts (NCCL_HOSTID): then it connects them by sockets.
A line for each check, again at the end, and exit status 0 when all pass."""

import os
import pathlib
import signal
import sys
import tempfile
import time

from elastic_common import Run, check, learn_undisturbed

import torch

EPOCHS, EXAMPLES = 6, 1200


def run(directory, replicas, **options):
    return Run(directory, replicas, epochs=EPOCHS, examples=EXAMPLES, cuda=1, **options)


def finish(one, plain, amp=0):
    result = one.end()
    check(one, result, plain[amp], EPOCHS, EXAMPLES, tolerance=3e-2 if amp else 2e-3)
    return result


def pauses(one):
    return " ".join(line.split(": ", 2)[-1] for line in one.log().splitlines() if "paused" in line)


def restarts(one):
    return one.log().count(": restart ")


def kill(one, which, count):
    """One of them dies; the others go on without it, and its place is filled."""
    now = one.log().count("replicas now")
    one.trains()  # in a loop that only adds to an Accumulator a death is a restart
    os.kill(one.members()[which], signal.SIGKILL)
    one.until("going on without it", count=count)
    one.until("replicas now", count=now + 1)


def in_place(plain, directory, **options):
    """Grows, loses its youngest, then rank 0, and shrinks: none of it by a restart."""
    with run(directory, 1, step_ms=60, **options) as one:
        one.trains()
        one.scale(2)
        one.until("2 replicas now")
        kill(one, -1, 1)
        kill(one, 0, 2)
        one.scale(1)
        one.until("1 replica now")
        finish(one, plain, options.get("amp", 0))
        assert not restarts(one) and "Traceback" not in one.log(), one.log()
        return pauses(one)


def alone(plain, directory, **options):
    """The only one is killed: nobody has its state, so it is started again from the last checkpoint."""
    with run(directory, 1, step_ms=30, **options) as one:
        one.trains()
        time.sleep(3)  # a checkpoint is made every two
        os.kill(one.members()[0], signal.SIGKILL)
        one.until(": restart ")
        finish(one, plain)
        return f"{restarts(one)} restart"


def stopped(plain, directory, **options):
    """Rank 0 does not answer for longer than it is waited for, and is then lost; then so does the younger one."""
    with run(directory, 2, step_ms=100, **options) as one:
        for count, which in ((1, one.rank_0), (2, lambda: one.members()[-1])):
            one.trains()
            pid, now = which(), one.log().count("replicas now")
            os.kill(pid, signal.SIGSTOP)
            one.until("going on without it", count=count)
            one.signal(pid, signal.SIGCONT)
            one.until("2 replicas now", count=now + 1)
        finish(one, plain)
        assert not restarts(one), one.log()
        return pauses(one)


CHECKS = {
    "gloo": lambda plain, place: in_place(plain, place),
    "gloo-amp": lambda plain, place: in_place(plain, place, amp=1),
    "gloo-accumulated-workers": lambda plain, place: in_place(plain, place, accumulate=1, workers=2),
    "gloo-stopped": lambda plain, place: stopped(plain, place),
    "nccl-alone": lambda plain, place: alone(plain, place, nccl=1),
    "nccl": lambda plain, place: in_place(plain, place, nccl=1),
    "nccl-amp": lambda plain, place: in_place(plain, place, nccl=1, amp=1),
    "nccl-stopped": lambda plain, place: stopped(plain, place, nccl=1),
}


def main():
    if not torch.cuda.is_available():
        sys.exit("gpu_elastic_check: there is no GPU")
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, NCCL {torch.cuda.nccl.version()}", flush=True)
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        plain = []
        for amp in (0, 1):
            (folder / f"plain{amp}").mkdir()
            plain.append(learn_undisturbed(folder / f"plain{amp}", epochs=EPOCHS, examples=EXAMPLES, amp=amp, cuda=1))
        for name in sys.argv[1:] or CHECKS:
            place, begin = folder / name, time.monotonic()
            place.mkdir()
            try:
                said = CHECKS[name](plain, place)
                lines.append(f"ok - {name} ({time.monotonic() - begin:.1f} s): {said}")
            except Exception as error:
                print(f"{name}: {type(error).__name__}: {error}", flush=True)
                lines.append(f"not ok - {name} ({time.monotonic() - begin:.1f} s): {type(error).__name__}, see above")
            print(lines[-1], flush=True)
    print("all:", *lines, sep="\n", flush=True)
    sys.exit(any(line.startswith("not ok") for line in lines))


if __name__ == "__main__":
    main()
