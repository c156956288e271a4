"""Runs one file of tests with pytest and prints the project's result lines, so that tests/run can add them
up beside the tests in C. Each tests/python/test_*.py is a program:

    if __name__ == "__main__":
        harness.main(__file__)

Tests run in the process of the file; what must not touch it (process groups, signals, crashes) runs in
children: see script and replicas."""

import os
import pathlib
import socket
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = os.environ.get("ADL_PYTHON_LIB", str(ROOT / "build" / "python" / "lib"))
SHARED = pathlib.Path(os.environ.get("ADAPTDL_SHARED", ROOT.parent / "shared"))
if LIBRARY not in sys.path:
    sys.path.insert(0, LIBRARY)


class _Lines:
    """The pytest plugin: one line a test, and what a failing test said, instead of pytest's own report."""

    def pytest_sessionstart(self, session):
        session.config.pluginmanager.unregister(name="terminalreporter")

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.split("::", 1)[-1]
        if report.when == "call":
            for line in report.capstdout.splitlines():
                if line.startswith("info - "):
                    print(line, file=sys.__stdout__)
        if report.skipped:
            why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self._say(f"skip - {name}: {why.replace('Skipped: ', '')}")
        elif report.failed:
            self._say(str(report.longrepr))
            why = [line[1:].strip() for line in str(report.longrepr).splitlines() if line.startswith("E ")]
            self._say(f"not ok - {name}: {report.when}: {(why or ['failed'])[0]}")
        elif report.when == "call":
            self._say(f"ok - {name}")

    def pytest_collectreport(self, report):
        if report.failed:
            self._say(str(report.longrepr))
            self._say(f"not ok - {report.nodeid}: cannot be collected")

    @staticmethod
    def _say(line):
        print(line, file=sys.__stdout__, flush=True)


def main(path):
    import pytest
    options = ["-p", "no:cacheprovider", "--rootdir", str(ROOT)]
    sys.exit(int(pytest.main(options + sys.argv[1:] + [path], plugins=[_Lines()])))


def environment(**variables):
    """The environment without ADAPTDL_*, then with these; None removes one. Without PYTHONUNBUFFERED a line that is
    printed is written at once, and those of several processes are not torn."""
    env = {name: value for name, value in os.environ.items()
           if not name.startswith("ADAPTDL_") and name != "PYTHONUNBUFFERED"}
    env["PYTHONPATH"] = LIBRARY
    for name, value in variables.items():
        env.pop(name, None)
        if value is not None:
            env[name] = str(value)
    return env


def start(code, **variables):
    """A Python process that runs the code; stdout and stderr are text pipes."""
    return subprocess.Popen([sys.executable, "-c", code], env=environment(**variables),
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def script(code, status=0, timeout=400, **variables):
    """Runs the code in a process of its own, checks its exit status, and returns what it printed."""
    return _ended(start(code, **variables), status, timeout)[0]


def replicas(count, code, status=0, timeout=400, **variables):
    """The same on several replicas of one job, at once; the list of what each printed. status may be a
    list."""
    port = free_port()
    processes = [start(code, ADAPTDL_MASTER_ADDR="127.0.0.1", ADAPTDL_MASTER_PORT=port,
                       ADAPTDL_NUM_REPLICAS=count, ADAPTDL_REPLICA_RANK=rank, **variables)
                 for rank in range(count)]
    wanted = status if isinstance(status, list) else [status] * count
    try:
        return [_ended(process, code, timeout)[0] for process, code in zip(processes, wanted)]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _ended(process, status, timeout):
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"still running after {timeout} s\n{out}\n{err}") from None
    assert process.returncode == status, f"exit status {process.returncode}, not {status}\n{out}\n{err}"
    return out, err


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
