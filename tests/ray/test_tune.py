#!/usr/bin/env python3
"""Elastic trials: real Ray, real Tune, and a ledger in every trial that shows whether a resize lost or repeated
anything."""

import argparse
import json
import os
import pathlib
import re
import signal
import time

import pytest
import ray
import rayharness
import tune_trials
from ray import tune

from adaptdl_ray import _board, command
from adaptdl_ray.tune import AdaptDLScheduler, DistributedTrainableCreator
from adaptdl_ray.tune.adaptdl_trial_sched import AdaptDLScheduler as OriginalPath

# Restarts cost nothing in the eyes of the policy, so that the tests see many.
EAGER = {"rs": 0.0, "dw": 0.0, "hy": 0.0, "shy": 0.0}
NAME = re.compile(r"AdaptDLTrainable_(\d+)_(\d+)_(\w+)")


def scheduler(**more):
    return AdaptDLScheduler(interval_s=2, parameters=EAGER, **more)


def trainable(function=tune_trials.ledger_trial, **more):
    return DistributedTrainableCreator(function, backend="none", checkpoint_interval_s=0, **more)


def search(tmp_path, cls, config, samples=1, watch=None, **more):
    return tune.run(cls, config=config, num_samples=samples, storage_path=str(tmp_path), verbose=0,
                    callbacks=[tune_trials.Watch(watch)] if watch else None, **more)


def check_ledger(trial):
    """The state was never lost: no step is missing or double, and no result either."""
    result = trial.last_result
    assert trial.status == "TERMINATED" and result["whole"] and result["steps"] >= trial.config["steps"]
    assert result["training_iteration"] == result["reports"] == result["steps"] // 20
    assert NAME.fullmatch(str(trial)), str(trial)


def test_grow_when_alone_and_shrink_when_another_comes(tmp_path):
    """The whole life of a search: alone, the first trial gets all; it makes room for the second."""
    late = tune_trials.Late(4, str(tmp_path / "end"))
    names = set()
    with rayharness.shared(4):
        analysis = search(tmp_path, trainable(), {}, samples=2, search_alg=late, scheduler=scheduler(),
                          watch=lambda trial, result: names.add(str(trial)))
    first, second = analysis.trials
    for trial in (first, second):
        check_ledger(trial)
    seen = late.seen[first.trial_id]
    assert 4 in seen and any(size < 4 for size in seen[seen.index(4):]), seen
    named = [NAME.fullmatch(name).groups() for name in sorted(names)]
    assert {group[2] for group in named} == {first.trial_id, second.trial_id}
    assert any(group[0] == "4" and int(group[1]) >= 1 for group in named), named
    assert int(NAME.fullmatch(str(first)).group(2)) >= 2


def check_in_place(trial):
    """Nothing missing or double over the whole search, and never a restart."""
    result = trial.last_result
    assert trial.status == "TERMINATED" and result["whole"] and result["restarts"] == 0, result
    assert result["training_iteration"] == result["reports"], result
    assert NAME.fullmatch(str(trial)).group(2) == "0", str(trial)


def grow_and_shrink(tmp_path, function, then=lambda trial, result: True, **more):
    """A trial that is alone gets all; it makes room for a second one, once then() says so. Both while they train. Returns
    the sizes of the first, and the names that trials had."""
    names, ready = set(), []
    late = tune_trials.Late(4, str(tmp_path / "end"), lambda: bool(ready))

    def watch(trial, result):
        names.add(str(trial))
        if then(trial, result):
            ready.append(True)

    with rayharness.shared(4):
        analysis = search(tmp_path, DistributedTrainableCreator(function, **more), {}, samples=2, search_alg=late,
                          scheduler=scheduler(), watch=watch)
    for trial in analysis.trials:
        check_in_place(trial)
    seen = late.seen[analysis.trials[0].trial_id]
    assert 4 in seen and any(size < 4 for size in seen[seen.index(4):]), seen
    return seen, {NAME.fullmatch(name).groups() for name in names}


def test_in_place(tmp_path):
    """Sizes change while trials train, and their names with them; nobody is restarted."""
    seen, names = grow_and_shrink(tmp_path, tune_trials.loop_trial, backend="none")
    assert {group[1] for group in names} == {"0"} and {"1", "4"} <= {group[0] for group in names}, names


def test_it_may_end_while_another_joins(tmp_path):
    """The newcomer is not waited for: it would wait for the others for ever."""
    began = time.monotonic()
    with rayharness.shared(4):
        analysis = search(tmp_path, DistributedTrainableCreator(tune_trials.ends_first_trial, backend="none"),
                          {"until": str(tmp_path / "end")}, scheduler=scheduler(), time_budget_s=rayharness.LONG_S)
    check_in_place(analysis.trials[0])
    assert time.monotonic() - began < rayharness.LONG_S, "it ended because nobody wanted to wait any longer"


def test_whole_search(tmp_path, capsys):
    """Four trials on four slots. Those that are left grow when others end, and the ledger of each is whole. The cluster's
    board says why each has what it has, while they run."""
    end = str(tmp_path / "end")

    def watch(trial, result):
        if result["replicas"] > 1 and not os.path.exists(end):
            open(end, "w").close()
            command._trials(argparse.Namespace(json=False))

    with rayharness.shared(4):
        analysis = search(tmp_path, trainable(), {
            "steps": tune.grid_search([20, 40, 60, 80]),
            "until": tune.sample_from(lambda spec: end if spec.config.steps > 40 else None)},
            scheduler=scheduler(), watch=watch)
        assert _board.read() == {}
    shown = capsys.readouterr().out
    assert re.search(r"^AdaptDLTrainable_\S+, \d+ s ago$", shown, re.M), shown
    assert re.search(r"^  AdaptDLTrainable_[12]_\d+_\w+ +[A-Z]+ +[a-z].* \(\d\.\d\dx\)", shown, re.M), shown
    for trial in analysis.trials:
        check_ledger(trial)
    sizes = sorted(int(NAME.fullmatch(str(trial)).group(1)) for trial in analysis.trials)
    assert len(sizes) == 4 and sizes[0] == 1 and sizes[-1] > 1, sizes



def test_killed_worker_costs_a_restart_at_most(tmp_path):
    killed = []
    end = tmp_path / "end"

    def kill_once(trial, result):
        if not killed and result["steps"] >= 60:
            killed.append(result["worker"])
            os.kill(result["worker"], signal.SIGKILL)
        elif killed and result["started"] > 0:
            end.write_text("")

    with rayharness.shared(4):
        analysis = search(tmp_path, trainable(max_replicas=1), {"steps": 100, "until": str(end)},
                          scheduler=OriginalPath(), watch=kill_once)
    trial, = analysis.trials
    assert killed and trial.status == "TERMINATED" and trial.last_result["whole"]
    assert trial.last_result["started"] >= 20  # it went on from a checkpoint, not from the beginning
    assert str(trial).startswith("AdaptDLTrainable_1_1_")



def stored_steps(trial):
    """How far the trial was in the checkpoint that Tune would start it from; 0: there is none yet."""
    found = list(pathlib.Path(trial.checkpoint.path).glob("adaptdl/*/ledger.state")) if trial.checkpoint else []
    return len(json.loads(b"[[" + found[0].read_bytes().rpartition(b"[[")[2])[0]) if found else 0  # behind its header


def lose_trainable(tmp_path, lose):
    """A search of one trial; lose(trial, result) ends the process that owns the trial's workers, once a checkpoint is in
    the storage. The trial starts again from there, and it is no failure of its own."""
    end = tmp_path / "end"
    stored = []

    def watch(trial, result):
        if not stored and stored_steps(trial):
            stored.append(stored_steps(trial))
            lose(trial, result)
        elif stored and result["started"] > 0:
            end.write_text("")

    trial, = search(tmp_path, trainable(max_replicas=1), {"steps": 100, "until": str(end)}, scheduler=scheduler(),
                    watch=watch, max_failures=0).trials
    result = trial.last_result
    assert stored and trial.status == "TERMINATED" and result["whole"], (stored, result)
    assert result["started"] >= stored[0], (stored, result)
    assert trial.run_metadata.num_failures == 0 and trial.adaptdl_lost == 1
    assert str(trial).startswith("AdaptDLTrainable_1_1_"), str(trial)


def test_killed_trainable_costs_a_restart_at_most(tmp_path):
    with rayharness.shared(4):
        lose_trainable(tmp_path, lambda trial, result: os.kill(result["pid"], signal.SIGKILL))


def test_a_checkpoint_of_the_functions_own(tmp_path):
    with rayharness.shared(4):
        analysis = search(tmp_path, trainable(tune_trials.own_checkpoint_trial, max_replicas=1), {}, scheduler=scheduler())
    trial, = analysis.trials
    assert trial.status == "TERMINATED" and trial.last_result["word"] == "kept" and trial.last_result["same"]
    assert str(trial).startswith("AdaptDLTrainable_1_1_")


@pytest.mark.long
def test_tuner_with_asha(tmp_path):
    """Early stopping by another scheduler, on Ray's present API, and sizes by another policy."""
    from ray.tune.schedulers import ASHAScheduler
    with rayharness.shared(4):
        tuner = tune.Tuner(
            trainable(max_replicas=1), param_space={"steps": tune.grid_search([200, 40])},
            tune_config=tune.TuneConfig(
                metric="steps", mode="max", reuse_actors=False,
                scheduler=AdaptDLScheduler(base_scheduler=ASHAScheduler(time_attr="training_iteration", max_t=5),
                                           policy="pollux", interval_s=2)),
            run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0)
            if hasattr(tune, "RunConfig") else ray.train.RunConfig(storage_path=str(tmp_path), verbose=0))
        grid = tuner.fit()
    assert not grid.errors
    assert sorted(result.metrics["training_iteration"] for result in grid) == [2, 5]
    assert all(result.metrics["whole"] for result in grid)


def test_bad_input(tmp_path):
    """One clear error each."""
    with rayharness.shared(4):
        with pytest.raises(ValueError, match="reuse_actors must be off"):
            search(tmp_path, trainable(), {"steps": 1}, scheduler=scheduler(), reuse_actors=True)
        with pytest.raises(ValueError, match="must be made by adaptdl_ray.tune.DistributedTrainableCreator"):
            tune.run(lambda config: None, scheduler=scheduler(), storage_path=str(tmp_path), verbose=0)
        with pytest.raises(ValueError, match=r"no node of the Ray cluster has what one replica takes \(64 CPU\)"):
            search(tmp_path, trainable(num_cpus_per_worker=64), {"steps": 1}, scheduler=scheduler())
        for function, words in ((tune_trials.failing_trial, "this function fails on purpose"),
                                (tune_trials.silent_trial, "it must call tune.report at least once")):
            analysis = search(tmp_path, trainable(function), {}, scheduler=scheduler(), raise_on_failed_trial=False)
            trial, = analysis.trials
            assert trial.status == "ERROR"
            assert words in open(trial.error_file).read()


@pytest.mark.parametrize("arguments, words", [
    ({"func": 3}, "func must be a function"),
    ({"func": lambda: None}, "must take the trial's config"),
    ({"func": print, "num_workers": 0}, "num_workers must be a whole number"),
    ({"func": print, "num_workers": 4, "max_replicas": 2}, "num_workers=4 must be from"),
    ({"func": print, "num_cpus_per_worker": 0, "num_gpus_per_worker": 0}, "a replica must take some CPU or GPU"),
])
def test_bad_arguments(arguments, words):
    with pytest.raises((TypeError, ValueError), match=words):
        DistributedTrainableCreator(**arguments)


def test_bad_scheduler_arguments():
    with pytest.raises(ValueError, match="interval_s must be positive"):
        AdaptDLScheduler(interval_s=0)
    with pytest.raises(ValueError, match="no-such-policy"):
        AdaptDLScheduler(policy="no-such-policy")


def test_gpus_first_and_of_one_type(tmp_path):
    """Made-up GPUs of two types on two nodes: two replicas fit only on the one with two."""
    end = tmp_path / "end"
    kinds = [{"num_cpus": 2, "num_gpus": 1, "resources": {"accelerator_type:T4": 1}},
             {"num_cpus": 2, "num_gpus": 2, "resources": {"accelerator_type:A100": 1}}]
    seen = set()

    def watch(trial, result):
        seen.add((result["replicas"], result["device"]))
        if result["replicas"] == 2:
            end.write_text("")

    with rayharness.cluster(*kinds) as found:
        rule = scheduler()
        analysis = search(tmp_path, trainable(), {"steps": 40, "until": str(end)}, scheduler=rule, watch=watch)
        trial, = analysis.trials
        bundle = trial.placement_group_factory.bundles[0]
    check_ledger(trial)
    assert (2, "A100") in seen and seen <= {(1, "T4"), (1, "A100"), (2, "A100")}, seen
    assert bundle["GPU"] == 1 and bundle["accelerator_type:A100"] > 0, bundle
    assert "on A100" in rule.explain()[trial.trial_id]


@pytest.mark.long
def test_lost_node_costs_a_restart_at_most(tmp_path):
    """The node of one of two replicas dies: the trial goes on with one."""
    end = tmp_path / "end"
    with rayharness.cluster({"num_cpus": 1, "resources": {"first": 1}}, {"num_cpus": 1, "resources": {"other": 1}}) as found:
        lost = []

        def lose_once(trial, result):
            if not lost and result["steps"] >= 60:
                lost.append(True)
                found.remove_node(found.workers[1], allow_graceful=False)
            elif lost and result["replicas"] == 1 and result["started"] > 0:
                end.write_text("")

        analysis = search(tmp_path, trainable(num_workers=2), {"steps": 100, "until": str(end)}, scheduler=scheduler(),
                          watch=lose_once)
        trial, = analysis.trials
    assert lost and trial.status == "TERMINATED" and trial.last_result["whole"], trial.last_result
    assert trial.last_result["started"] >= 20 and trial.last_result["replicas"] == 1
    assert NAME.fullmatch(str(trial)).group(1) == "1" and int(NAME.fullmatch(str(trial)).group(2)) >= 1


@pytest.mark.long
def test_lost_node_of_the_trainable_costs_a_restart_at_most(tmp_path):
    """The machine with all that the trial has dies: it starts again on the other one, from Tune's storage."""
    with rayharness.cluster({"num_cpus": 1}, {"num_cpus": 1}) as found:
        def lose(trial, result):
            owner = trial.temporary_state.ray_actor
            status = ray.get(owner.adaptdl_status.remote())
            name = ray._private.state.actors(owner._actor_id.hex())["Address"]["NodeID"]
            assert status["nodes"] == [name]
            node, = (node for node in found.workers if node.node_id == name)
            found.remove_node(node, allow_graceful=False)

        lose_trainable(tmp_path, lose)


if __name__ == "__main__":
    rayharness.main(__file__)
