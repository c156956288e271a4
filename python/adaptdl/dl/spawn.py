"""Processes for ``ddp=True``: each is a new interpreter that imports the program's main module, as those of
multiprocessing are, and gets the runner by value. (By multiprocessing's own way the processes would share
the model's memory, and train it under each other's hands.) What rank 0 has trained comes back."""

import inspect
import io
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from multiprocessing import spawn as standard

import torch

__all__ = ["check", "free_port", "main", "run"]

_importing = False  # is this one of the processes, importing the program's main module?
_GRACE_S = 10  # for the others to end by themselves after one has failed


def free_port():
    """A port that nobody uses at present."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def check():
    """A run that starts while the main module is imported would start processes for ever."""
    if _importing:
        raise RuntimeError("the program starts training when it is imported; with ddp=True each process imports it: "
                           "put the training under  if __name__ == \"__main__\":")


def run(runner, count):
    """``runner._run_local()`` in so many processes; the runner takes over what rank 0 of them has trained.

    Args:
        runner (IRunner): The runner, with its engine.
        count (int): How many processes.

    Raises:
        RuntimeError: If one fails; with its traceback.
        TypeError: If the runner cannot be sent.
    """
    with tempfile.TemporaryDirectory(prefix="adaptdl-") as folder:
        _write(runner, folder)
        env = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))  # they find what we found
        command = [sys.executable, "-c", "from adaptdl.dl import spawn; spawn.main()", folder]
        processes = [subprocess.Popen(command + [str(rank)], env=env) for rank in range(count)]
        try:
            _wait(processes, folder)
        except BaseException:
            _end(processes)
            raise
        runner._take_over(_load(os.path.join(folder, "result")))


def _write(runner, folder):
    setting = standard.get_preparation_data("adaptdl")
    setting.pop("authkey", None)
    setting["catalyst"] = getattr(sys.modules.get("catalyst"), "__adaptdl__", False)
    with open(os.path.join(folder, "setting"), "wb") as file:
        pickle.dump(setting, file)
    buffer = io.BytesIO()
    try:
        torch.save(runner, buffer)
    except Exception as error:
        raise TypeError(f"ddp=True: the runner cannot be sent to its processes ({error}); what it is given must be "
                        "picklable, and classes and functions at the top level of a module; or make it in the "
                        "runner's get_...() methods") from error
    with open(os.path.join(folder, "runner"), "wb") as file:
        file.write(buffer.getbuffer())


def _load(path):
    kwargs = {"weights_only": False} if "weights_only" in inspect.signature(torch.load).parameters else {}
    return torch.load(path, map_location="cpu", **kwargs)


def _wait(processes, folder):
    """Until all have ended well; RuntimeError when one has not."""
    while True:
        codes = [process.poll() for process in processes]
        bad = [rank for rank, code in enumerate(codes) if code]
        if bad:
            _patience(processes)
            raise RuntimeError(_why(processes, folder))
        if all(code == 0 for code in codes):
            return
        time.sleep(0.05)


def _patience(processes):
    end = time.monotonic() + _GRACE_S
    while time.monotonic() < end and any(process.poll() is None for process in processes):
        time.sleep(0.05)


def _why(processes, folder):
    """What the process said that failed first; the others only miss it."""
    said = sorted((os.path.getmtime(path), rank) for rank in range(len(processes))
                  for path in [os.path.join(folder, f"error-{rank}")] if os.path.exists(path))
    if not said:
        codes = ", ".join(f"{rank}: {process.poll()}" for rank, process in enumerate(processes))
        return f"ddp=True: a process has died (exit statuses by rank: {codes})"
    rank = said[0][1]
    with open(os.path.join(folder, f"error-{rank}")) as file:
        return f"ddp=True: the process of rank {rank} has failed:\n{file.read()}"


def _end(processes):
    for process in processes:
        if process.poll() is None:
            process.terminate()
    _patience(processes)
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()


def _die_with_parent():
    """A process whose starter is killed ends, too."""
    import ctypes
    import signal
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _main(folder, rank):
    global _importing
    _die_with_parent()
    with open(os.path.join(folder, "setting"), "rb") as file:
        setting = pickle.load(file)
    if setting.pop("catalyst"):
        from adaptdl.compat import install_catalyst
        install_catalyst()
    _importing = True
    standard.prepare(setting)
    _importing = False
    # A learning-rate schedule marks its optimizer's step, and the mark does not survive being sent.
    warnings.filterwarnings("ignore", message="Seems like `optimizer.step\\(\\)` has been overridden")
    runner = _load(os.path.join(folder, "runner"))
    runner.engine = runner.engine.enter_process(rank)
    try:
        runner._run_local()
    except Exception as error:
        runner._fail(error)  # which raises it, unless the program takes it as the end
    if rank == 0:
        torch.save(runner._hand_over(), os.path.join(folder, "result"))


def main():
    """One of the processes."""
    import traceback
    folder, rank = sys.argv[1], int(sys.argv[2])
    try:
        _main(folder, rank)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception:
        text = traceback.format_exc()
        with open(os.path.join(folder, f"error-{rank}"), "w") as file:
            file.write(text)
        sys.exit(1)

