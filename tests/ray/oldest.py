#!/usr/bin/env python3
"""What must also hold on the oldest Ray that is supported: searches whose trials are resized by a pause and while they
train, and a launched job."""

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
test_in_place = test_tune.test_in_place


def test_launched_job(tmp_path):
    for name in ("ledger_job.py", "ledger_helper.py"):
        shutil.copy(pathlib.Path(__file__).resolve().parent / name, tmp_path)
    port = test_launcher.free_port()
    with rayharness.cluster({"num_cpus": 1}, ray_client_server_port=port) as found:
        found.client = f"ray://127.0.0.1:{port}"
        reader = test_launcher.Reader(test_launcher.launch(found, tmp_path, "--steps", 30, "--exit", 3, most=1))
        reader.wait_for(r"END whole=True helper=beside")
        assert reader.end() == 3


if __name__ == "__main__":
    rayharness.main(__file__)
