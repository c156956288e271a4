"""adaptdl_on_ray_aws: runs one elastic training job on a Ray cluster, and shows what it prints."""

from __future__ import annotations

import argparse
import os
import platform
import re
import secrets
import signal
import socket
import sys
import time
from typing import Any, Optional, Sequence
from urllib.parse import urlsplit

import adaptdl.policy
from adaptdl_ray import _files

__all__ = ["main"]

_EXCLUDED = (".git", "__pycache__", ".venv", ".mypy_cache", ".pytest_cache")
_FILES_MAX = 512 << 20
_CONNECT_S = 10
_CONNECT_TRIES = 3
_FAILED = 1
_USAGE = 2


class _Wrong(Exception):
    """What was wrong with the call, in one line."""


def parser(prog: str = "adaptdl_on_ray_aws") -> argparse.ArgumentParser:
    """The command line, for main and for documentation."""
    out = argparse.ArgumentParser(
        prog=prog, description="Runs one elastic AdaptDL job on a Ray cluster: as many workers as train it well, more and "
        "fewer as machines come and go. Exits with the program's status.",
        epilog="Example: %(prog)s -u ray://203.0.113.7:10001 -f code.py -m 8 --cpus 4 --gpus 1 -- --epochs 90")
    out.add_argument("-u", "--uri", required=True, metavar="ray://HEAD:10001",
                     help="the cluster's head: ray://HOST:PORT, or HOST:PORT from a machine of the cluster")
    out.add_argument("-f", "--file", required=True, metavar="CODE.PY",
                     help="the program; with -d, relative to that directory")
    out.add_argument("-m", "--max-workers", required=True, type=_whole(1), metavar="N", help="most workers it may have")
    out.add_argument("--cpus", type=_amount, default=1.0, metavar="C", help="CPUs of one worker (1)")
    out.add_argument("--gpus", type=_amount, default=0.0, metavar="G", help="GPUs of one worker (0)")
    out.add_argument("-d", "--working-dir", metavar="DIR", help="what is sent to the cluster (the folder of -f)")
    out.add_argument("--port-offset", type=_whole(0), default=0, metavar="P",
                     help="workers talk to each other at the first free port from P on (any free port)")
    out.add_argument("--checkpoint-timeout", type=_seconds, default=120.0, metavar="S",
                     help="how long to wait for a checkpoint before going on from the previous one (120)")
    out.add_argument("--cluster-rescale-timeout", type=_seconds, default=300.0, metavar="S",
                     help="how long to wait for machines before running on those that are there (300)")
    out.add_argument("--interval", type=_seconds, default=60.0, metavar="S", help="seconds between decisions (60)")
    out.add_argument("--checkpoint-dir", metavar="DIR",
                     help="a directory of the head node that also keeps the checkpoints, and from which a later "
                     "job of the same program goes on")
    out.add_argument("--checkpoint-interval", type=_whole(0), metavar="S",
                     help="seconds between the checkpoints that a crash goes back to (AdaptDL's default)")
    out.add_argument("--metadata-url", default=os.environ.get("ADAPTDL_RAY_METADATA_URL"), metavar="URL",
                     help="the service that tells machines when they are taken away (that of EC2)")
    out.add_argument("--set", action="append", default=[], type=_setting, metavar="NAME=VALUE", dest="parameters",
                     help="a constant of the policy that decides (docs/policies.md has them); may be repeated")
    out.add_argument("--detach", action="store_true", help="start the job, print its name and return")
    out.add_argument("arguments", nargs="*", metavar="ARGS", help="after --: the program's own arguments")
    return out


def _whole(least: int) -> Any:
    def parse(text: str) -> int:
        if not re.fullmatch(r"\d+", text) or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be a whole number, at least {least}, not {text!r}")
        return int(text)
    return parse


def _amount(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"must be a number, at least 0, not {text!r}")
    return value


def _setting(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be NAME=NUMBER, not {text!r}") from None


def _seconds(text: str) -> float:
    value = _amount(text)
    if value == 0:
        raise argparse.ArgumentTypeError("must be more than 0 seconds")
    return value


def find_program(file: str, working_dir: Optional[str]) -> tuple[str, str]:
    """The directory to be sent and the program's path in it."""
    if working_dir is None:
        if not os.path.isfile(file):
            raise _Wrong(f"-f {file}: no such file")
        folder, name = os.path.split(os.path.abspath(file))
        return folder, name
    if not os.path.isdir(working_dir):
        raise _Wrong(f"-d {working_dir}: no such directory")
    folder = os.path.realpath(working_dir)
    path = os.path.realpath(os.path.join(folder, file))
    if not os.path.isfile(path):
        raise _Wrong(f"-f {file}: no such file in the working directory {working_dir}")
    if not path.startswith(folder + os.sep):
        raise _Wrong(f"-f {file}: is not in the working directory {working_dir}")
    return folder, os.path.relpath(path, folder)


def pack_directory(folder: str) -> bytes:
    """What is sent. _Wrong: too large."""
    size = 0
    for at, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in _EXCLUDED]
        size += sum(os.lstat(os.path.join(at, name)).st_size for name in names)
        if size > _FILES_MAX:
            raise _Wrong(f"{folder}: more than {_FILES_MAX >> 20} MiB to send; name a smaller directory with -d, and "
                         "keep data where the machines of the cluster find it")
    return _files.pack(folder, exclude=_EXCLUDED)


def connect(uri: str) -> None:
    """Joins the cluster. _Wrong: there is none at that address."""
    import ray
    text = uri if "://" in uri else f"//{uri}"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if uri != "auto":
        if parts.scheme not in ("", "ray") or not host or not port:
            raise _Wrong(f"-u {uri}: must be ray://HOST:PORT, HOST:PORT or auto")
        try:
            socket.create_connection((host, port), _CONNECT_S).close()
        except OSError as error:
            raise _Wrong(f"-u {uri}: no Ray cluster answers there: {error}") from None
    for left in reversed(range(_CONNECT_TRIES)):
        try:
            ray.init(address=uri, log_to_driver=False, logging_level="warning", namespace="adaptdl")
            return
        except Exception as error:
            if left and isinstance(error, ConnectionError):  # a head that is busy starts its side too late
                continue
            lines = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
            if any(line.startswith("Traceback") for line in lines):
                lines = [lines[0], lines[-1]]
            raise _Wrong(f"-u {uri}: cannot join the cluster with Ray {ray.__version__} and Python {platform.python_version()}, "
                         f"which it must have, too: {' '.join(lines)}") from None


def start(options: argparse.Namespace) -> tuple[Any, Any, str]:
    """Starts the job: its controller, what run() will return, and its name."""
    import ray
    from adaptdl_ray.aws.controller import _HEAD, Controller, JobSpec
    from adaptdl_ray.aws.spot import DEFAULT_URL
    folder, program = find_program(options.file, options.working_dir)
    if not options.cpus and not options.gpus:
        raise _Wrong("--cpus 0 --gpus 0: a worker must take some CPU or GPU")
    try:
        adaptdl.policy.Policy("rank", dict(options.parameters))
    except ValueError as error:
        raise _Wrong(f"--set: {error}") from None
    files = pack_directory(folder)
    connect(options.uri)
    name = f"{re.sub('[^A-Za-z0-9-]', '-', os.path.splitext(os.path.basename(program))[0])}-{secrets.token_hex(3)}"
    request = {key: value for key, value in (("CPU", options.cpus), ("GPU", options.gpus)) if value}
    spec = JobSpec(name, [program, *options.arguments], options.max_workers, request, options.port_offset,
                   options.checkpoint_timeout, options.cluster_rescale_timeout, options.interval,
                   options.checkpoint_dir, options.checkpoint_interval, options.metadata_url or DEFAULT_URL,
                   parameters=dict(options.parameters))
    controller = ray.remote(Controller).options(
        name=f"adaptdl-{name}", lifetime="detached", num_cpus=0, resources={_HEAD: 0.001}, max_concurrency=16,
    ).remote(spec, ray.put(files))
    return controller, controller.run.remote(), name


def follow(controller: Any, name: str) -> int:
    """Prints what the job prints until it ends; returns its exit status."""
    import ray
    from ray.exceptions import RayError
    asked: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):  # only now: joining a cluster sets handlers of Ray's own
        signal.signal(number, lambda number, frame: asked.append(number))
    offset, status = 0, None
    while status is None:
        if asked:
            asked.clear()
            if not _keep_following(controller, name):
                return 0
        try:
            lines, offset, status = ray.get(controller.output.remote(offset, 1.0))
        except RayError as error:
            raise _Wrong(f"job {name}: its controller is gone: {str(error).splitlines()[0]}") from None
        sys.stdout.write("".join(lines))
        sys.stdout.flush()
    ray.kill(controller)
    return status


def _keep_following(controller: Any, name: str) -> bool:
    """CTRL-C: asks what it meant; nobody to ask means stop. False: leave the job alone."""
    answer = "s"
    if sys.stdin.isatty():
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            answer = input(f"\njob {name}: (s)top it with a checkpoint, (d)etach, or go on? [s/d/g] ").strip().lower()[:1]
        except (EOFError, KeyboardInterrupt):
            answer = "s"
        signal.signal(signal.SIGINT, before)
    if answer == "d":
        print(f"job {name} goes on; see it again with: adaptdl-ray attach {name} -u URI")
        return False
    if answer in ("s", ""):
        print(f"stopping job {name}", flush=True)
        controller.stop.remote()
    return True


def main(argv: Optional[Sequence[str]] = None, prog: str = "adaptdl_on_ray_aws") -> int:
    """The command. Returns the program's exit status; 1 when it could not be run, 2 for a wrong call."""
    options = parser(prog).parse_args(argv)
    try:
        controller, _, name = start(options)
        if options.detach:
            print(name)
            return 0
        return follow(controller, name)
    except _Wrong as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return _FAILED


if __name__ == "__main__":
    sys.exit(main())
