#!/usr/bin/env python3
"""Tune trials of PyTorch: the tutorial's program as a user runs it, and passes over data that end early."""

import os
import re
import signal
import subprocess
import sys

import pytest
import ray
import rayharness
import test_tune
import tune_trials
from ray import tune

from adaptdl_ray.tune import AdaptDLScheduler, DistributedTrainableCreator


def test_hyperopt_example(tmp_path):
    """Four trials by HyperOpt, the table of their names, the best configuration."""
    environment = {**os.environ, "AIR_VERBOSITY": "1", "HOME": str(tmp_path)}
    del environment["ADAPTDL_HINTS_INTERVAL"]
    out = subprocess.run([sys.executable, str(rayharness.ROOT / "examples/ray/hyperopt_example.py"), "--cpus", "2",
                          "--epochs", "2"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
                         cwd=tmp_path, timeout=2 * rayharness.LONG_S)
    assert out.returncode == 0, out.stdout[-4000:]
    table = out.stdout[out.stdout.rindex("Trial name"):]
    rows = re.findall(r"AdaptDLTrainable_(\d+)_(\d+)_(\w+) +TERMINATED +([\d.]+) +(\d+)", table)
    assert len(rows) == 4 == len({row[2] for row in rows}) and all(row[4] == "2" for row in rows), table
    assert re.search(r"Best trial config: {'bs': \d+, .*'lr': [\d.]+, 'momentum': [\d.]+}", table)
    best = float(re.search(r"Best trial mean_accuracy: ([\d.]+)", table).group(1))
    assert abs(best - max(float(row[3]) for row in rows)) < 1e-4


@pytest.mark.long
def test_whole_search_in_place(tmp_path):
    """A trial grows, loses a replica, loses rank 0, grows again, and makes room for another one, all while it trains: every
    example of every epoch was applied once, and no result is missing."""
    stage = []

    def trouble(trial, result):
        if result["replicas"] < 4 or len(stage) > 2:
            return len(stage) > 2
        status = ray.get(trial.temporary_state.ray_actor.adaptdl_status.remote())
        if status["wentOn"] < len(stage):
            return False
        stage.append(result)
        if len(stage) <= 2:
            with open(tmp_path / "die", "w") as file:
                file.write("3" if len(stage) == 1 else "0")
            os.rename(tmp_path / "die", tmp_path / "end.die")
        return False

    test_tune.grow_and_shrink(tmp_path, tune_trials.torch_trial, trouble)
    assert len(stage) == 3 and stage[0]["worker"] == stage[1]["worker"] != stage[2]["worker"]


def test_a_pass_that_returns_early_is_resumed(tmp_path):
    """The trial is stopped in the middle of its second pass: it goes on there, with no example twice in a pass, and none of
    the passes missing."""
    asked = []

    def stop_once(trial, result):
        if not asked:
            asked.append(result["worker"])
            os.kill(result["worker"], signal.SIGTERM)  # as when the trial is to be resized

    with rayharness.shared(4):
        analysis = tune.run(DistributedTrainableCreator(tune_trials.early_trial), config={"epochs": 4},
                            scheduler=AdaptDLScheduler(), storage_path=str(tmp_path), verbose=0,
                            callbacks=[tune_trials.Watch(stop_once)])
    trial, = analysis.trials
    result = trial.last_result
    assert trial.status == "TERMINATED" and result["training_iteration"] == 4 and result["restarts"] >= 1
    seen = [tuple(pair) for pair in result["seen"]]
    assert len(seen) == len(set(seen)) and [epoch for epoch, _ in seen] == sorted(epoch for epoch, _ in seen)
    passes = [sum(epoch == number for epoch, _ in seen) for number in range(4)]
    assert passes[0] == passes[2] == passes[3] == 40 and 40 <= passes[1] <= 64, passes


@pytest.mark.long
def test_a_trial_of_the_runner(tmp_path):
    """The runner's epochs are the trial's results, each once, over a stop in the second one."""
    told = []

    def stop_once(trial, result):
        told.append(result["epoch"])
        if len(told) == 1:
            os.kill(result["worker"], signal.SIGTERM)

    with rayharness.shared(4):
        analysis = tune.run(DistributedTrainableCreator(tune_trials.runner_trial, num_workers=2, min_replicas=2, max_replicas=2),
                            config={"epochs": 6}, scheduler=AdaptDLScheduler(), storage_path=str(tmp_path), verbose=0,
                            callbacks=[tune_trials.Watch(stop_once)])
    trial, = analysis.trials
    result = trial.last_result
    assert trial.status == "TERMINATED" and result["replicas"] == 2 and result["restarts"] >= 1
    assert told == [1, 2, 3, 4, 5, 6], told
    assert result["train/loss"] < 0.5


if __name__ == "__main__":
    rayharness.main(__file__)
