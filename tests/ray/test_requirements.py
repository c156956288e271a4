#!/usr/bin/env python3
"""No Ray, an old Ray, or something else of that name: one clear error each. And the package itself: what its wheel has,
and that help() has something to say. And that these tests do not fail for a raylet that dies at its start."""

import importlib
import inspect
import os
import pydoc
import subprocess
import sys
import zipfile

import pytest
import rayharness


def run_import(tmp_path, path):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path), rayharness.PACKAGE])}
    return subprocess.run([sys.executable, "-S", "-c", "import adaptdl_ray"], env=env, cwd=tmp_path, text=True,
                          stderr=subprocess.PIPE, timeout=rayharness.LONG_S).stderr.splitlines()[-1]


def test_no_ray(tmp_path):
    assert "adaptdl_ray needs Ray 2.40 or later, and there is none" in run_import(tmp_path, tmp_path)


def test_old_ray(tmp_path):
    (tmp_path / "ray.py").write_text("__version__ = '2.9.3'\n")
    assert "adaptdl_ray needs Ray 2.40 or later, this is 2.9.3" in run_import(tmp_path, tmp_path)


def test_a_folder_called_ray(tmp_path):
    (tmp_path / "ray").mkdir()
    assert "what is called ray here is not Ray" in run_import(tmp_path, tmp_path)


def test_wheel(tmp_path):
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", tmp_path,
                    rayharness.PACKAGE], check=True, timeout=rayharness.LONG_S)
    wheel, = tmp_path.glob("adaptdl_ray-*-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "adaptdl_ray/tune/__init__.py" in names and "adaptdl_ray/py.typed" in names
    scripts = next(name for name in names if name.endswith("entry_points.txt"))
    assert "adaptdl_on_ray_aws = adaptdl_ray.launcher:main" in zipfile.ZipFile(wheel).read(scripts).decode()
    version = (rayharness.ROOT / "VERSION").read_text().strip()
    assert wheel.name.startswith(f"adaptdl_ray-{version}-")


@pytest.mark.parametrize("name, words", [
    ("adaptdl_ray.tune.AdaptDLScheduler", "A Tune scheduler that shares the cluster among the trials"),
    ("adaptdl_ray.tune.DistributedTrainableCreator", "max_replicas: It never has more"),
    ("adaptdl_ray.launcher", "runs one elastic training job on a Ray cluster"),
])
def test_help(name, words):
    assert words in pydoc.plain(pydoc.render_doc(name))


@pytest.mark.parametrize("module", ["adaptdl_ray.tune", "adaptdl_ray.launcher", "adaptdl_ray.command", "adaptdl_ray.aws",
                                    "adaptdl_ray.aws.spot"])
def test_type_hints(module):
    """Everything that is public says what it takes and returns."""
    found = importlib.import_module(module)
    for name in found.__all__:
        one = getattr(found, name)
        members = [member for key, member in vars(one).items() if inspect.isfunction(member) and (
            key == "__init__" or not key.startswith("_"))] if isinstance(one, type) else [one]
        for function in filter(inspect.isfunction, members):
            signature = inspect.signature(function)
            hinted = [parameter.annotation for parameter in signature.parameters.values() if parameter.name != "self"]
            assert inspect.Signature.empty not in [*hinted, signature.return_annotation], f"{module}.{function.__qualname__}"


def test_a_raylet_that_dies_at_its_start_is_tried_again(monkeypatch):
    import ray
    from ray._private import node
    rayharness._be_patient()
    begin, died = node.Node.start_ray_processes, []

    def dies_once(self):
        begin(self)
        if not died:
            died.append(self)
            raylet = self.all_processes["raylet"][0].process
            raylet.kill()
            raylet.wait()  # one that is still going is connected to: then Ray ends this process

    monkeypatch.setattr(node.Node, "start_ray_processes", dies_once)
    with rayharness.local(1):
        assert died and ray.cluster_resources()["CPU"] == 1


if __name__ == "__main__":
    rayharness.main(__file__)
