#!/usr/bin/python3
"""The wheel with the programs in it, as `make wheel` makes it: installed into an empty environment, it is a cluster."""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

import harness
import pytest
from test_core_package import source  # noqa: F401 (a fixture)

MB = 1 << 20
WAIT_S = 600
SUBMIT = """
from adaptdl import client
job = client.submit({"apiVersion": "adaptdl.petuum.com/v1", "kind": "AdaptDLJob", "metadata": {"name": "hello"},
    "spec": {"template": {"spec": {"containers": [{"name": "main", "command": ["python3", "-c",
        "import sys, adaptdl.env; print(sys.prefix, adaptdl.env.num_replicas())"]}]}}}})
print(*client.logs(job["name"], follow=True))
print(client.wait(job["name"], timeout=300)["phase"])
"""


def run(*command, **variables):
    env = harness.environment(PYTHONPATH=None, PIP_NO_INDEX="1", PIP_DISABLE_PIP_VERSION_CHECK="1", **variables)
    done = subprocess.run([str(part) for part in command], env=env, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):  # noqa: F811
    out = tmp_path_factory.mktemp("wheel")
    run(harness.ROOT / "tools" / "bundle")
    compiler = {"CC": "ccache gcc", "CCACHE_NOHASHDIR": "1"} if shutil.which("ccache") else {}
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", out, source,
        ADL_BUNDLE=harness.ROOT / "build" / "bundle" / "package", **compiler)
    built, = out.iterdir()
    return built


@pytest.fixture(scope="module")
def venv(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", folder)
    run(folder / "bin" / "pip", "install", wheel)
    return folder


@pytest.fixture(scope="module")
def bundle(venv):
    found, = venv.glob("lib/python3*/site-packages/adaptdl/_bundle")
    return found


def test_the_wheel_is_small_and_says_who_wrote_what(wheel):
    print(f"info - wheel with the programs: {wheel.stat().st_size / MB:.1f} MB, {wheel.name}")
    assert wheel.stat().st_size < 25 * MB
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    libraries = [name for name in names if "/_bundle/lib/" in name]
    assert len([name for name in names if "/_bundle/licenses/" in name]) > 10 and len(libraries) > 10
    assert not [name for name in libraries if re.search(r"/(libc|libm|libdl|libpthread|ld-linux[-\w]*)\.so", name)]


def test_the_tag_names_the_newest_c_library_that_any_part_needs(wheel, bundle):
    """By the linker's own list, not by looking for texts."""
    parts = [bundle / "bin" / "adaptdl", bundle / "bin" / "adaptdl-sched", *bundle.glob("lib/*"), *bundle.parent.glob("_core*.so")]
    needed = {tuple(map(int, match)) for part in parts
              for match in re.findall(r"GLIBC_(\d+)\.(\d+)", run("objdump", "-T", part))}
    match = re.search(r"manylinux_(\d+)_(\d+)_", wheel.name)
    assert max(needed) <= (int(match[1]), int(match[2]))
    assert max(needed) <= (2, 34), "README.md and docs/client.md say: Debian 12, Ubuntu 22.04 and later"


def test_the_programs_need_nothing_of_the_machine_but_the_c_library(bundle):
    own = re.compile(r"(linux-vdso|ld-linux[-\w]*|libc|libm|libdl|librt|libpthread|libresolv)\.so")
    for name in ("adaptdl", "adaptdl-sched"):
        lines = [line.split() for line in run("ldd", bundle / "bin" / name).splitlines()]
        others = [words for words in lines if not own.match(words[0].rsplit("/", 1)[-1])]
        assert others and all(pathlib.Path(words[2]).resolve().parent == (bundle / "lib").resolve() for words in others), others
    dynamic = subprocess.run(["ldd", bundle / "bin" / "adaptdl-keeper"], capture_output=True, text=True)
    assert "=>" not in dynamic.stdout


def test_pip_install_and_up_is_a_cluster(venv):
    home = tempfile.mkdtemp(prefix="adl-wheel-")  # paths of sockets must be short
    env = {"HOME": home, "PATH": f"{venv / 'bin'}:/usr/bin:/bin", "XDG_STATE_HOME": None, "XDG_RUNTIME_DIR": None}
    try:
        version = (harness.ROOT / "VERSION").read_text().strip()
        assert run(venv / "bin" / "adaptdl", "--version", **env).strip() == f"adaptdl {version}"
        assert "dashboard" in run(venv / "bin" / "adaptdl", "up", **env)
        try:
            printed = run(venv / "bin" / "python3", "-c", SUBMIT, **env).splitlines()
            assert printed == [f"{venv} 1", "Succeeded"]
            assert "hello" in run(venv / "bin" / "adaptdl", "ls", **env)
        finally:
            run(venv / "bin" / "adaptdl", "down", **env)
        assert run(venv / "bin" / "adaptdl", "run", "-q", "-n", "2", "--", "sh", "-c", "echo $ADAPTDL_NUM_REPLICAS",
                   **env).split() in (["[0]", "2", "[1]", "2"], ["[1]", "2", "[0]", "2"])
    finally:
        shutil.rmtree(home, ignore_errors=True)


def test_a_build_without_the_programs_says_so():
    done = subprocess.run([sys.executable, "-c", "from adaptdl import _programs; _programs.adaptdl()"],
                          env=harness.environment(), capture_output=True, text=True)
    assert done.returncode == 1 and "has no programs in it" in done.stderr


if __name__ == "__main__":
    harness.main(__file__)
