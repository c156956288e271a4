"""Builds adaptdl._core, the one extension module: the sources of the library's training half and of the
binding, with every third-party library linked in, so that the wheel needs nothing but the C library
(docs/adr/0081). With ADL_BUNDLE, the folder that tools/bundle made, the wheel brings the programs as well
(docs/adr/0201). The rest of the package's description is in pyproject.toml."""

import glob
import os
import re
import shlex
import shutil

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from wheel.bdist_wheel import bdist_wheel

MODULES = ("base", "model", "policy", "snapshot", "http", "comm", "measures", "train")
STATIC = ("jansson", "zstd", "xxhash", "ssl", "crypto")
# The same options as in the module's CMakeLists.txt, for the same reasons.
SPECIAL = {
    "src/comm/kernel.c": ["-O3"],
    "src/train/norms.c": ["-O3", "-ffp-contract=off"],
}


def sources():
    found = [path for module in MODULES for path in sorted(glob.glob(f"src/{module}/*.c"))]
    # Of the scheduler's half only what decides about processes that change while they run.
    return found + ["src/sched/worlds.c"] + sorted(glob.glob("python/src/*.c"))


class BuildCore(build_ext):
    """Writes the version's header, and gives some files options of their own."""

    def build_extension(self, ext):
        generated = os.path.join(self.build_temp, "generated")
        os.makedirs(generated, exist_ok=True)
        with open("VERSION") as file:
            version = file.read().strip()
        with open(os.path.join(generated, "adli_version.h"), "w") as file:
            file.write(f'#define ADLI_VERSION "{version}"\n')
        ext.include_dirs.append(generated)
        compile_one = self.compiler._compile

        def with_options(obj, src, cext, cc_args, extra, pp_opts):
            compile_one(obj, src, cext, cc_args, list(extra) + SPECIAL.get(src, []), pp_opts)

        self.compiler._compile = with_options
        try:
            super().build_extension(ext)
        finally:
            self.compiler._compile = compile_one


class BuildPackage(build_py):
    """Adds the programs."""

    def run(self):
        super().run()
        bundle, there = os.environ.get("ADL_BUNDLE"), os.path.join(self.build_lib, "adaptdl", "_bundle")
        shutil.rmtree(there, ignore_errors=True)
        if bundle:
            shutil.copytree(bundle, there)


class Wheel(bdist_wheel):
    """One wheel for every Python from 3.9 on. Its platform tag says which C library it was linked
    against: the newest symbol version that the extension or a program asks for."""

    def finalize_options(self):
        super().finalize_options()
        self.py_limited_api = "cp39"

    def get_tag(self):
        python, abi, tag = super().get_tag()
        package = os.path.join(self.bdist_dir or "", "adaptdl")
        newest = newest_glibc(glob.glob(f"{package}/_core*.so") + glob.glob(f"{package}/_bundle/bin/*")
                              + glob.glob(f"{package}/_bundle/lib/*"))
        if newest and tag.startswith("linux_"):
            tag = f"manylinux_{newest[0]}_{newest[1]}_{tag[len('linux_'):]}"
        return python, abi, tag


def newest_glibc(libraries):
    versions = []
    for library in libraries:
        with open(library, "rb") as file:
            versions += re.findall(rb"GLIBC_(\d+)\.(\d+)", file.read())
    return max(((int(major), int(minor)) for major, minor in versions), default=None)


core = Extension(
    "adaptdl._core",
    sources=sources(),
    depends=["setup.py"] + glob.glob("src/*/*.h") + glob.glob("include/adaptdl/*.h") + glob.glob("python/src/*.h")
    + ["python/src/exports.map"],
    include_dirs=["include", "src", "python/src"],
    define_macros=[("Py_LIMITED_API", "0x03090000"), ("_GNU_SOURCE", None)],
    extra_compile_args=["-std=c11", "-O2", "-g1", "-UNDEBUG", "-fvisibility=hidden", "-fno-math-errno",
                        "-fno-trapping-math", "-fno-semantic-interposition", "-Wall", "-Wextra"]
    + shlex.split(os.environ.get("ADL_PYTHON_CFLAGS", "")),
    # jansson's archive is not position-independent in one place, where json_loadf, which nobody calls,
    # compares with stdin: --wrap gives it a variable of our own instead (python/src/core.c).
    extra_link_args=[f"-l:lib{name}.a" for name in STATIC]
    + ["-lm", "-lpthread", "-Wl,--wrap=stdin", "-Wl,--exclude-libs,ALL", "-Wl,--gc-sections",
       "-Wl,--version-script=python/src/exports.map"]
    + shlex.split(os.environ.get("ADL_PYTHON_LDFLAGS", "")),
    py_limited_api=True,
)

setup(ext_modules=[core], cmdclass={"build_ext": BuildCore, "build_py": BuildPackage, "bdist_wheel": Wheel})
