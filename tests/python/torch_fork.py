"""Replicas of PyTorch jobs for tests, cheaply: torch is imported once, and replicas are forks of the test,
made before anything is initialized in it. A replica runs a function and hands its result back."""

import faulthandler
import os
import pickle
import signal
import sys
import tempfile
import traceback

import harness

import torch

import adaptdl.torch
from adaptdl import _core

TIMEOUT_S = int(os.environ.get("ADL_FORK_TIMEOUT_S", 120))

torch.set_num_threads(1)


def finish():
    """What the interpreter does at exit."""
    adaptdl.torch._leave()
    _core.context_exit()


def _run(function, args, path):
    try:
        result = function(*args)
        if path is not None:
            with open(path, "wb") as file:
                pickle.dump(result, file)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.last_type = sys.exc_info()[0]
        traceback.print_exc()
        code = 1
    finish()
    return code


def fork(function, *args, path=None, timeout=TIMEOUT_S, **variables):
    """Starts a replica; its process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        # A hang becomes a failure, and says where.
        faulthandler.register(signal.SIGALRM, file=sys.__stderr__, chain=True)
        signal.alarm(timeout)
        for name in [name for name in os.environ if name.startswith("ADAPTDL_")]:
            del os.environ[name]
        for name, value in variables.items():
            if value is not None:
                os.environ[name] = str(value)
        code = _run(function, args, path)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def status_of(child):
    """Waits: the exit status, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def replicas(count, function, *args, status=0, **variables):
    """Runs function(*args) on that many replicas of one job; the list of their results (for status 0)."""
    port = harness.free_port() if count > 1 else 0
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, str(rank)) for rank in range(count)]
        children = [fork(function, *args, path=paths[rank], ADAPTDL_MASTER_ADDR="127.0.0.1",
                         ADAPTDL_MASTER_PORT=port, ADAPTDL_NUM_REPLICAS=count,
                         ADAPTDL_REPLICA_RANK=rank, **variables) for rank in range(count)]
        codes = [status_of(child) for child in children]
        wanted = status if isinstance(status, list) else [status] * count
        assert codes == wanted, f"exit statuses {codes}, not {wanted}"
        results = []
        for path in paths:
            if os.path.exists(path):
                with open(path, "rb") as file:
                    results.append(pickle.load(file))
        return results
