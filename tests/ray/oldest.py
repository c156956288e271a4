#!/usr/bin/env python3
"""What must also hold on the oldest Ray that is supported: a search whose trial is resized, and a launched job."""

import pathlib
import shutil

import ray
import rayharness
import test_launcher
import test_tune


def test_this_is_the_oldest():
    from adaptdl_ray import _requirements
    assert _requirements.version_tuple(ray.__version__)[:2] == _requirements.LEAST_RAY


test_grow_when_alone_and_shrink_when_another_comes = test_tune.test_grow_when_alone_and_shrink_when_another_comes


def test_launched_job(tmp_path):
    for name in ("ledger_job.py", "ledger_helper.py"):
        shutil.copy(pathlib.Path(__file__).resolve().parent / name, tmp_path)
    with rayharness.cluster({"num_cpus": 2}) as found:
        reader = test_launcher.Reader(test_launcher.launch(found, tmp_path, "--steps", 30, "--exit", 3))
        reader.wait_for(r"END whole=True helper=beside")
        assert reader.end() == 3


if __name__ == "__main__":
    rayharness.main(__file__)
