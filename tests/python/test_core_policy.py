#!/usr/bin/python3
"""adaptdl.policy: decisions of the library's policies, from snapshots as dicts and as text."""

import json
import threading

import harness  # noqa: F401
import pytest

from adaptdl import _core, policy


def snapshot(jobs=3, **more):
    model = {
        "maxReplicas": 4,
        "types": [
            {
                "perfParams": {
                    "alpha_c": 0.1, "beta_c": 0.01, "alpha_n": 0.01, "beta_n": 0.001,
                    "alpha_r": 0.01, "beta_r": 0.001, "gamma": 1.5,
                },
                "gradParams": {"norm": 1.0, "var": 100.0},
                "initBatchSize": 64, "maxBatchSize": 1024, "maxLocalBsz": 64,
            }
        ],
    }
    return {
        "version": 1,
        "now": 1000.0,
        "seed": "1",
        "resources": ["gpu"],
        "nodes": [{"name": f"node-{n}", "capacity": [4]} for n in range(2)],
        "jobs": [
            {"name": f"trial-{j}", "request": [1], "maxReplicas": 4, "submitted": float(j), "maxProfiledReplicas": 2,
             "model": model}
            for j in range(jobs)
        ],
        **more,
    }


def used(decision):
    return [len(job["nodes"]) for job in decision["jobs"]]


@pytest.mark.parametrize("name", policy.names())
def test_every_policy_decides(name):
    given = snapshot()
    if name not in ("rank", "pollux"):
        for job in given["jobs"]:
            job["fixedReplicas"] = 2
    decision = policy.Policy(name).decide(given)
    assert [job["name"] for job in decision["jobs"]] == ["trial-0", "trial-1", "trial-2"]
    assert all(1 <= replicas <= 4 for replicas in used(decision)) and sum(used(decision)) <= 8
    assert all(job["reason"] == "started" and job["text"] for job in decision["jobs"])
    assert decision["desiredNodes"] == 2


@pytest.mark.parametrize("hints, limits, most", [
    ({}, (), 1),
    ({"maxProfiledReplicas": None, "localBszBounds": None, "maxBatchSize": None}, (0, 8), 1),
    ({"maxProfiledReplicas": 3}, (), 6),
    ({"maxProfiledReplicas": 3}, (0, 4), 4),
    ({"maxProfiledReplicas": 3, "maxBatchSize": 128, "localBszBounds": [32, 64]}, (0, 8), 4),
    ({"maxProfiledReplicas": 1, "maxBatchSize": 64, "localBszBounds": [64, 64]}, (3, 8), 3),
    ({"maxProfiledReplicas": 2000000000}, (0, 5), 5),
])
def test_growth_is_limited_by_what_was_measured(hints, limits, most):
    assert policy.most_replicas(hints, *limits) == most


def test_dict_text_and_bytes_are_alike():
    given = snapshot()
    decision = policy.decide(given)
    assert policy.decide(json.dumps(given)) == decision == policy.decide(json.dumps(given).encode())
    assert policy.Policy("rank").decide(given) == decision


def test_the_snapshot_names_its_policy_and_constants():
    assert policy.decide(snapshot(policy="fifo")) == policy.Policy("fifo").decide(snapshot())
    changed = policy.decide(snapshot(policy="rank", parameters={"p": 0.05}))
    assert changed == policy.Policy("rank", {"p": 0.05}).decide(snapshot())


def test_what_was_decided_can_be_fed_back():
    given = snapshot()
    decision = policy.decide(given)
    for job, decided in zip(given["jobs"], decision["jobs"]):
        job["allocation"] = decided["nodes"]
    given["now"] += 60
    again = policy.decide(given)
    assert [job["nodes"] for job in again["jobs"]] == [job["nodes"] for job in decision["jobs"]]
    assert all(job["reason"] == "kept" for job in again["jobs"])


def test_a_trial_that_reports_nothing_is_decided_too():
    given = snapshot()
    for job in given["jobs"]:
        del job["model"]
        job["maxReplicas"] = 1
    assert used(policy.decide(given)) == [1, 1, 1]


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="unknown policy \"chance\""):
        policy.Policy("chance")
    with pytest.raises(ValueError, match="nonsense"):
        policy.Policy("rank", {"nonsense": 1})
    with pytest.raises(TypeError):
        policy.Policy("rank", [1])
    with pytest.raises(TypeError):
        policy.Policy("rank", {"hep": "much"})
    with pytest.raises(ValueError, match="colour"):
        policy.decide(snapshot(colour="red"))
    with pytest.raises(ValueError, match="of version 4"):
        policy.decide(snapshot(version=4))
    with pytest.raises(ValueError, match="snapshot"):
        policy.decide("{")
    with pytest.raises(TypeError):
        _core.policy_decide(7)


def test_threads_have_policies_of_their_own():
    results = []

    def work():
        own = policy.Policy("rank")
        results.append([own.decide(snapshot(jobs=n)) for n in range(1, 20)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4 and all(result == results[0] for result in results)


if __name__ == "__main__":
    harness.main(__file__)
