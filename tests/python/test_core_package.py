#!/usr/bin/python3
"""The package as it is shipped: sdist and wheel, built without a network, in clean environments."""

import glob
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import harness
import pytest

VERSION = (harness.ROOT / "VERSION").read_text().strip()
MODULES = {"__init__", "__main__", "checkpoint", "collective", "env", "goodput", "reducer", "sched_hints", "utils"}


def run(*command, **options):
    env = harness.environment(PYTHONPATH=None, PIP_NO_INDEX="1", PIP_DISABLE_PIP_VERSION_CHECK="1", CCACHE_NOHASHDIR="1")
    if shutil.which("ccache"):
        env["CC"] = "ccache gcc"
    result = subprocess.run([str(part) for part in command], env=env, capture_output=True, text=True, timeout=300, **options)
    assert result.returncode == 0, f"{command}\n{result.stdout[-3000:]}\n{result.stderr[-3000:]}"
    return result.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The files that git would give to somebody else: no build folders, nothing ignored."""
    folder = tmp_path_factory.mktemp("source")
    listed = run("git", "-c", "safe.directory=*", "ls-files", "-co", "--exclude-standard", "-z", cwd=harness.ROOT)
    for name in filter(None, listed.split("\0")):
        if (harness.ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(harness.ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def sdist(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-c", f"from setuptools import build_meta; build_meta.build_sdist({str(out)!r})", cwd=source)
    archive, = out.iterdir()
    return archive


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """Built from the unpacked sdist, so that the sdist is known to be complete."""
    out = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(out)
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", out / "dist", out / f"adaptdl-{VERSION}")
    built, = (out / "dist").iterdir()
    return built


@pytest.fixture(scope="module")
def library(wheel, tmp_path_factory):
    with zipfile.ZipFile(wheel) as archive:
        return pathlib.Path(archive.extract("adaptdl/_core.abi3.so", tmp_path_factory.mktemp("library")))


def test_the_sdist_has_what_building_needs_and_no_more(sdist):
    assert sdist.name == f"adaptdl-{VERSION}.tar.gz"
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"VERSION", "LICENSE", "setup.py", "pyproject.toml", "src/base/status.c", "include/adaptdl/context.h",
            "python/src/core.c", "python/src/core.h", "python/adaptdl/py.typed"} <= names
    assert not [name for name in names if re.search(r"\.(so|o|pyc)$|^(build|tests|data)/", name)]


def test_the_wheel_is_for_every_python_from_3_9_on(wheel):
    name, version, python, abi, platform = wheel.stem.split("-")
    assert (name, version, python, abi) == ("adaptdl", VERSION, "cp39", "abi3")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(f"adaptdl-{VERSION}.dist-info/METADATA").decode()
        tags = archive.read(f"adaptdl-{VERSION}.dist-info/WHEEL").decode()
    assert "Requires-Python: >=3.9" in metadata
    assert f"Tag: cp39-abi3-{platform}" in tags and "Root-Is-Purelib: false" in tags
    for module in MODULES:
        assert f"adaptdl/{module}.py" in names
        assert module == "__main__" or f"adaptdl/{module}.pyi" in names
    assert {"adaptdl/py.typed", "adaptdl/_core.abi3.so"} <= names
    assert not [name for name in names if name.endswith((".c", ".h"))]


def test_the_platform_tag_names_the_newest_c_library_it_needs(wheel, library):
    needed = {tuple(map(int, match)) for match in
              re.findall(r"GLIBC_(\d+)\.(\d+)", run("objdump", "-T", library))}
    match = re.fullmatch(r"manylinux_(\d+)_(\d+)_x86_64", wheel.stem.split("-")[-1]) or pytest.skip("not x86_64 with glibc")
    assert max(needed) == (int(match[1]), int(match[2]))


def test_the_extension_needs_the_c_library_only(library):
    names = {line.split()[0].rsplit("/", 1)[-1] for line in run("ldd", library).splitlines()}
    assert all(re.match(r"(linux-vdso|libc|libm|libpthread|libdl|librt|ld-linux[-\w]*|ld64?)\.so", name)
               for name in names), names


def test_nothing_is_missing(library):
    """What the linker let through: every name is the interpreter's or, with a version, the C library's."""
    missing = [line.split()[-1] for line in run("nm", "-D", "--undefined-only", library).splitlines() if " U " in line]
    assert missing and not [name for name in missing if "@" not in name and not re.match(r"_?Py", name)]


def test_the_extension_exports_its_start_only(library):
    symbols = [line.split()[-1] for line in run("nm", "-D", "--defined-only", library).splitlines()]
    assert symbols == ["PyInit__core"]


def test_the_extension_uses_the_stable_interface_only(library):
    """What hides behind the limited API's headers: macros cannot, functions of other names would."""
    used = {line.split()[-1] for line in run("nm", "-D", "--undefined-only", library).splitlines()}
    python = {name for name in used if re.match(r"_?Py", name)}
    assert "PyModule_Create2" in python
    # Names of the stable ABI with an underscore; everything else of that kind is private.
    allowed = {"_Py_Dealloc", "_Py_NoneStruct", "_Py_TrueStruct", "_Py_FalseStruct", "_Py_EllipsisObject",
               "_PyObject_New", "_Py_NotImplementedStruct", "_PyArg_ParseTuple_SizeT", "_Py_BuildValue_SizeT",
               "_PyArg_ParseTupleAndKeywords_SizeT", "_PyObject_CallMethod_SizeT", "_PyObject_CallFunction_SizeT"}
    assert {name for name in python if name.startswith("_")} <= allowed
    # Part of the stable ABI later than 3.9.
    later = {"PyObject_GetBuffer", "PyBuffer_Release", "PyUnicode_AsUTF8AndSize", "PyModule_AddObjectRef", "PyModule_AddType",
             "Py_NewRef", "PyObject_CallNoArgs", "PyObject_CallOneArg", "PyObject_Vectorcall", "PyErr_GetRaisedException",
             "PyType_GetName", "PyIter_Send"}
    assert not python & later


CHECK = """
import sys, os
import adaptdl, importlib.util
from adaptdl import checkpoint, collective, env, goodput, reducer, sched_hints, utils
assert adaptdl.__version__ == VERSION
assert PREFIX in adaptdl.__file__, adaptdl.__file__
f = goodput.GoodputFunction(goodput.PerfParams(0.1, 0.01, 0.2, 0.02, 0.1, 0.01, 1.5), goodput.GradParams(1.0, 2.0), 64)
assert len(f.evaluate(1, [1, 2], 64, 0)) == 2
class State(checkpoint.State):
    def save(self, f): f.write(b"x")
    def load(self, f): self.got = f.read()
state = State("s")
checkpoint.save_all_states()
assert checkpoint.load_state(state) and state.got == b"x"
pid = os.fork()
r = reducer.Reducer(0 if pid else 1, 2, "127.0.0.1", PORT)
assert r.allreduce([1]) == [1, 1] and r.broadcast(pid > 0) is True
r.close()
if not pid:
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
collective.initialize()
assert collective.allreduce(2**70) == 2**70
collective.teardown()
print(sys.version_info[:2], importlib.util.find_spec("torch") is not None, importlib.util.find_spec("numpy") is not None)
"""


def interpreters():
    """This one, and the others of the machine: one wheel must do for all."""
    names = ["python3"] + [f"python3.{minor}" for minor in range(9, 20)]
    paths = [os.path.join(folder, name) for folder in os.environ["PATH"].split(os.pathsep) for name in names]
    paths += sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/*/bin/python3")))
    found = {os.path.realpath(sys.executable): sys.executable}
    for path in filter(os.path.exists, paths):
        asked = subprocess.run([path, "-c", "import sys, venv; print(sys.executable if sys.version_info >= (3, 9) else '')"],
                               capture_output=True, text=True)
        if asked.returncode == 0 and asked.stdout.strip():
            found.setdefault(os.path.realpath(asked.stdout.strip()), asked.stdout.strip())
    return list(found.values())


@pytest.mark.parametrize("interpreter", interpreters(), ids=lambda path: os.path.basename(os.path.realpath(path)))
def test_the_wheel_works_in_a_clean_environment(interpreter, wheel, tmp_path):
    run(interpreter, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--no-deps", wheel)
    code = f"VERSION, PREFIX, PORT = {VERSION!r}, {str(tmp_path)!r}, {harness.free_port()}\n" + CHECK
    env = harness.environment(PYTHONPATH=None, ADAPTDL_CHECKPOINT_PATH=tmp_path / "ck")
    done = subprocess.run([python, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    print("info - Python, torch, numpy:", done.stdout.strip())
    assert f"adaptdl   {VERSION}" in run(python, "-m", "adaptdl")
    without = subprocess.run([python, "-c", "import adaptdl.torch"], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert without.returncode == 1 and "ModuleNotFoundError" in without.stderr


def test_pip_installs_from_the_checkout(source, tmp_path):
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--target", tmp_path, source)
    env = harness.environment(PYTHONPATH=tmp_path)
    said = subprocess.run([sys.executable, "-m", "adaptdl"], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert f"adaptdl   {VERSION}" in said.stdout, said.stderr


if __name__ == "__main__":
    harness.main(__file__)
