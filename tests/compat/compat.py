#!/usr/bin/env python3
"""The programs of this folder on the original package and on this one, results compared; and the original's own unit
tests, from its wheel, on this one. tools/test-compat prepares the environment and calls this with
ADL_COMPAT_PYTHON (an interpreter that has the original), ADL_COMPAT_WHEEL, ADL_COMPAT_ADAPTDL (our command) and
ADL_PYTHON_LIB. Arguments name what is to be run: programs, "resized", "launched", "unit-tests"."""

import ast
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
PROGRAMS = ["linear_regression", "ncf", "bert", "dcgan", "transformer", "points", "models", "values", "bptt"]
# They reach into private internals: functions of the original's fit, and mocks in the place of wrappers.
INTERNAL = {"fit_test.py::test_fit_1", "fit_test.py::test_fit_2", "torch/gradient_noise_scale_test.py::test_object",
            "torch/gradient_noise_scale_test.py::test_nan"} | {
    f"torch/scaling_rules_test.py::test_{name}" for name in (
        "optimization_1", "optimization_2", "optimization_3", "gradient_accumulation_optimization_1",
        "gradient_accumulation_optimization_2")}
LIMIT_S = 900
failed = False


def tail(file, length=600):
    file.seek(0)
    text = file.read()
    return text if length is None else text[-length:]


def told(fine, name, why=""):
    global failed
    failed = failed or not fine
    print(f"ok - {name}" if fine else f"not ok - {name}: {why}", flush=True)


def results(output):
    return {m[1]: ast.literal_eval(m[2]) for m in re.finditer(r"^RESULT (.+?) (?=[-\d(\[{'\"TFN])(.*)$", output, re.M)}


def run(program, replicas, lib, folder=None, status=0, **variables):
    """What each replica printed as results; an error's text instead of a dict when one failed. folder: that of the
    checkpoints, status: what each is to exit with."""
    with socket.socket() as free, tempfile.TemporaryDirectory() as temporary:
        folder = folder or temporary
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        processes, files = [], []
        for rank in range(replicas):
            env = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, [lib, str(HERE)])), OMP_NUM_THREADS="1",
                       ADAPTDL_MASTER_ADDR="127.0.0.1", ADAPTDL_MASTER_PORT=str(port), ADAPTDL_JOB_ID="job",
                       ADAPTDL_REPLICA_RANK=str(rank), ADAPTDL_NUM_REPLICAS=str(replicas), ADAPTDL_NUM_NODES="1",
                       ADAPTDL_CHECKPOINT_PATH=folder, **variables)
            # Files, not pipes: a replica whose pipe is full while another one is read waits for ever, and all with it.
            files.append(open(pathlib.Path(temporary, f"output-{rank}"), "w+"))
            processes.append(subprocess.Popen([os.environ["ADL_COMPAT_PYTHON"], HERE / f"{program}.py"], env=env,
                                              stdout=files[rank], stderr=subprocess.STDOUT))
        try:
            for process in processes:
                process.wait(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            return f"not over after {LIMIT_S} s: " + " || ".join(tail(file) for file in files)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        outputs = [tail(file, None) for file in files]
    for process, output in zip(processes, outputs):
        if process.returncode != status:
            return f"exit status {process.returncode}: {output[-1500:]}"
    return [results(output) for output in outputs]


def near(a, b):
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(near, a, b))
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return abs(a - b) <= 1e-4 * max(1.0, abs(a), abs(b))
    return a == b


def differences(theirs, ours):
    differ = [f"{key}: {a.get(key)!r} is {b.get(key)!r}" for a, b in zip(theirs, ours) for key in a | b
              if key not in a or key not in b or not near(a[key], b[key])]
    if not theirs[0] or len(theirs) != len(ours):
        differ.append("no results")
    return differ


def compare(program, replicas):
    """On several replicas the original's first step is longer than it should be (docs/pytorch.md). Where that shows,
    ours must agree with the original whose first step was corrected: nothing else may differ."""
    name = f"{program} on {replicas} replicas"
    theirs, ours = run(program, replicas, None), run(program, replicas, os.environ["ADL_PYTHON_LIB"])
    for who, output in (("the original", theirs), ("ours", ours)):
        if isinstance(output, str):
            return told(False, name, f"{who} failed: " + output.replace("\n", " | "))
    differ = differences(theirs, ours)
    if differ and replicas > 1:
        theirs = run(program, replicas, None, ADL_COMPAT_FIRST_STEP="1")
        if isinstance(theirs, str):
            return told(False, name, "the corrected original failed: " + theirs.replace("\n", " | "))
        print(f"info - {name}: {len(differ)} results differ from the original's, whose first step is too long")
        differ = differences(theirs, ours)
        name += ", beside the original with its first step corrected"
    told(not differ, name, "; ".join(differ)[:800])


def taken_over(replicas):
    """What the original has saved, the original and ours go on from, to the same end."""
    name = f"a checkpoint of the original on {replicas} replicas"
    ends, corrected = [], {"ADL_COMPAT_FIRST_STEP": "1"}
    with tempfile.TemporaryDirectory() as folder:
        begun = run("checkpoint", replicas, None, folder, 143, ADL_COMPAT_STOP="14", **corrected)
        if isinstance(begun, str):
            return told(False, name, "it was not stopped as asked: " + begun.replace("\n", " | "))
        for lib, variables in ((None, corrected), (os.environ["ADL_PYTHON_LIB"], {})):
            copy = pathlib.Path(folder, "ours" if lib else "theirs")
            shutil.copytree(pathlib.Path(folder, "checkpoint-0"), copy / "checkpoint-0")
            ends.append(run("checkpoint", replicas, lib, copy, ADAPTDL_NUM_RESTARTS="1", **variables))
            if isinstance(ends[-1], str):
                return told(False, name, ("ours: " if lib else "the original: ") + ends[-1].replace("\n", " | "))
    differ = differences(*ends) + ["nothing was restored"] * (not ends[0][0].get("restored"))
    told(not differ, name, "; ".join(differ)[:800])


def resized(program):
    """Stopped on one replica after five pieces and gone on with two, each package with its own checkpoint. The original
    ends a piece after the one in which it is asked to."""
    name, ends = f"{program} stopped on 1 replica, resumed on 2", []
    for lib, stop in ((None, "4"), (os.environ["ADL_PYTHON_LIB"], "5")):
        with tempfile.TemporaryDirectory() as folder:
            begun = run(program, 1, lib, folder, 143, ADL_COMPAT_STOP=stop)
            end = run(program, 2, lib, folder, ADAPTDL_NUM_RESTARTS="1") if not isinstance(begun, str) else begun
        if isinstance(end, str):
            return told(False, name, ("ours: " if lib else "the original: ") + end.replace("\n", " | "))
        ends.append(begun + end)
    differ = differences(*ends)
    told(not differ, name, "; ".join(differ)[:800])


def launched(program, replicas):
    """The original package itself as a program of `adaptdl run`, beside the same replicas started by hand."""
    name = f"{program} with the original package under adaptdl run -n {replicas}"
    if not os.access(os.environ["ADL_COMPAT_ADAPTDL"], os.X_OK):
        return print(f"skip - {name}: {os.environ['ADL_COMPAT_ADAPTDL']} is not built")
    by_hand = run(program, replicas, None)
    if isinstance(by_hand, str):
        return told(False, name, "by hand: " + by_hand.replace("\n", " | "))
    env = {key: value for key, value in os.environ.items() if not key.startswith("ADAPTDL_") and key != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as folder:
        env.update(PYTHONPATH=str(HERE), OMP_NUM_THREADS="1", ADAPTDL_CHECKPOINT_PATH=folder)
        done = subprocess.run([os.environ["ADL_COMPAT_ADAPTDL"], "run", "-n", str(replicas), "--",
                               os.environ["ADL_COMPAT_PYTHON"], HERE / f"{program}.py"], env=env, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S)
    if done.returncode:
        return told(False, name, f"exit status {done.returncode}: " + done.stdout[-1500:].replace("\n", " | "))
    ranks = ["\n".join(re.findall(rf"^\[{rank}\] (.*)$", done.stdout, re.M)) for rank in range(replicas)]
    differ = differences(by_hand, [results(output) for output in ranks])
    told(not differ, name, "; ".join(differ)[:800])


def unit_tests():
    """The original's own, on a copy of our package beside which they lie."""
    with tempfile.TemporaryDirectory() as folder:
        package = pathlib.Path(folder, "adaptdl")
        subprocess.run(["cp", "-r", pathlib.Path(os.environ["ADL_PYTHON_LIB"], "adaptdl"), package], check=True)
        with zipfile.ZipFile(os.environ["ADL_COMPAT_WHEEL"]) as wheel:
            for entry in wheel.namelist():
                if entry.endswith(("_test.py", "conftest.py")):
                    wheel.extract(entry, folder)
        env = dict(os.environ, PYTHONPATH=folder)
        done = subprocess.run([os.environ["ADL_COMPAT_PYTHON"], "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", "-W",
                               "ignore", "adaptdl"], cwd=folder, env=env, capture_output=True, text=True, timeout=3600)
    wrong = set(re.findall(r"^(?:FAILED|ERROR) adaptdl/(\S+)", done.stdout, re.M))
    passed = re.search(r"(\d+) passed", done.stdout)
    print(f"info - the original's unit tests: {passed[1] if passed else 0} passed, {len(wrong)} did not, of which "
          f"{len(wrong & INTERNAL)} are of private internals")
    others = wrong - INTERNAL
    told(passed is not None and int(passed[1]) > 700 and not others, "the original's own unit tests",
         ", ".join(sorted(others)) or done.stdout[-400:].replace("\n", " | "))


for each in sys.argv[1:] or [*PROGRAMS, "checkpoint", "resized", "launched", "unit-tests"]:
    if each in ("resized", "launched", "unit-tests"):
        {"resized": lambda: resized("bptt"), "launched": lambda: launched("linear_regression", 2),
         "unit-tests": unit_tests}[each]()
        continue
    for count in (1, 2):
        taken_over(count) if each == "checkpoint" else compare(each, count)
sys.exit(1 if failed else 0)
