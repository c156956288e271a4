#!/usr/bin/env python3
"""What the policies are told of a Ray cluster, and that they take it: reports with and without device types."""

import pytest
import rayharness

import adaptdl.policy  # noqa: E402  (rayharness knows where it is)

from adaptdl_ray import _snapshot
from adaptdl_ray._snapshot import Job, Node

REQUEST = {"CPU": 1, "GPU": 1}


def report(step_s, *points):
    """Of a program that computes for so long; points: (replicas, device type)."""
    return {"initBatchSize": 64, "maxBatchSize": 6400, "localBszBounds": [32, 64], "gradientAccumulation": False,
            "maxProfiledReplicas": 8, "gradParams": {"norm": 1.0, "var": 1000.0}, "progress": 1.0,
            "perfParams": {"alpha_c": step_s, "beta_c": 0.01 * step_s, "alpha_n": 1e-4, "beta_n": 1e-5, "alpha_r": 1e-4,
                           "beta_r": 1e-5, "gamma": 1.5},
            "profile": [{"nodes": 1, "replicas": replicas, "localBsz": 64, "accumTime": 1.64 * step_s,
                         "optimTime": 1.65 * step_s, **({"deviceType": kind} if kind else {})}
                        for replicas, kind in points]}


def nodes(*kinds):
    return [Node(f"node-{index}", {"CPU": 8, "GPU": 2}, kind) for index, kind in enumerate(kinds)]


def decide(cluster, *jobs):
    return adaptdl.policy.decide(_snapshot.make_snapshot(cluster, jobs, 1e5, "rank"))


def test_reports_that_name_their_type_are_taken():
    """With one type or none there is no choice, and the name in the report is no reason to refuse it."""
    hints = report(0.1, (1, "T4"), (2, None))
    _snapshot.check_hints(hints)
    for kinds in (("T4", "T4"), ("", "")):
        snapshot = _snapshot.make_snapshot(nodes(*kinds), [Job("a", REQUEST, 0, 8, hints=hints)], 1e5, "rank")
        assert snapshot["version"] == 1 and "deviceTypes" not in snapshot
        assert [point["type"] for point in snapshot["jobs"][0]["model"]["types"][0]["profile"]] == [0, 0]
        assert len(adaptdl.policy.decide(snapshot)["jobs"][0]["nodes"]) == 4


def test_a_program_whose_single_replica_grows_is_described_as_one():
    hints = {**report(0.1, (1, None)), "loneReplicaGrows": True}
    snapshot = _snapshot.make_snapshot(nodes(""), [Job("a", REQUEST, 0, 2, hints=hints)], 1e5, "rank")
    assert snapshot["version"] == 3 and snapshot["jobs"][0]["model"]["types"][0]["loneReplicaGrows"] is True
    assert adaptdl.policy.decide(snapshot)["jobs"][0]["nodes"]
    with pytest.raises(ValueError, match="loneReplicaGrows"):
        _snapshot.check_hints({**hints, "loneReplicaGrows": "yes"})


def test_each_trial_goes_where_it_is_fast():
    """Measured on both types: the decision is the library's, by the models that were reported from each."""
    cluster = nodes("T4", "A100")
    slow, fast = report(0.4, (1, "T4"), (2, "T4")), report(0.1, (1, "A100"), (2, "A100"))
    job, = decide(cluster, Job("a", REQUEST, 0, 2, hints=fast, models={"T4": slow, "A100": fast}))["jobs"]
    assert job["nodes"] == [1, 1] and job["deviceType"] == "A100" and "on A100" in job["text"]
    job, = decide(cluster, Job("a", REQUEST, 0, 2, hints=slow, models={"T4": fast, "A100": slow}))["jobs"]
    assert job["nodes"] == [0, 0] and job["deviceType"] == "T4"


def test_a_type_that_nobody_tried_is_possible():
    hints = report(0.1, (1, None))
    job, other = decide(nodes("T4", "A100"), *(Job(name, REQUEST, 0, 2, hints=hints, models={"T4": hints})
                                               for name in ("a", "b")))["jobs"]
    assert sorted((job["deviceType"], other["deviceType"])) == ["A100", "T4"]


def test_points_of_a_type_that_is_gone():
    hints = report(0.1, (1, "T4"), (1, "K80"))
    snapshot = _snapshot.make_snapshot(nodes("T4", "A100"), [Job("a", REQUEST, 0, 2, hints=hints, models={"T4": hints})],
                                       1e5, "rank")
    assert snapshot["deviceTypes"] == ["A100", "T4"]
    assert [point["type"] for point in snapshot["jobs"][0]["model"]["types"][1]["profile"]] == [1]
    adaptdl.policy.decide(snapshot)


def test_types_do_not_matter_to_a_job_on_cpus():
    assert _snapshot.device_types(nodes("T4", "A100"), {"CPU": 1}) == []


def test_rays_own_resources_are_not_asked_for():
    node = _snapshot._node("n", {"CPU": 4.0, "GPU": 1.0, "accelerator_type:T4": 1.0, "node:10.0.0.1": 1.0})
    assert node == Node("n", {"CPU": 4.0, "GPU": 1.0}, "T4")


@pytest.mark.parametrize("hints, words", [
    ([], "must be a JSON object"),
    ({**report(0.1), "gradParams": {"norm": "x", "var": 1}}, "norm"),
    ({**report(0.1), "profile": [{"nodes": 0}]}, "profile"),
    ({**report(0.1), "profile": 3}, "not a report"),
    ({**report(0.1), "localBszBounds": [1]}, "localBszBounds must be"),
    ({**report(0.1), "perfParams": {"alpha_c": 1}}, "perfParams"),
])
def test_a_bad_report_is_refused(hints, words):
    with pytest.raises(ValueError, match=words):
        _snapshot.check_hints(hints)


if __name__ == "__main__":
    rayharness.main(__file__)
