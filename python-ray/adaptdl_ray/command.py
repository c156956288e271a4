"""adaptdl-ray: jobs on a Ray cluster, by name: submit, attach, stop, status, list."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any, Optional, Sequence

from adaptdl_ray import _board, launcher

__all__ = ["main"]

_PREFIX = "adaptdl-"


def _controller(name: str) -> Any:
    import ray
    try:
        return ray.get_actor(_PREFIX + name, namespace="adaptdl")
    except ValueError:
        raise launcher._Wrong(f"{name}: no such job on this cluster; adaptdl-ray list shows those that there are") from None


def _call(name: str, method: str) -> Any:
    """A call of the job's controller, which is held meanwhile: Ray 2.40 takes no call of an actor that nobody holds."""
    controller = _controller(name)
    return getattr(controller, method).remote()


def _names() -> list[str]:
    import ray
    return sorted(actor["name"][len(_PREFIX):] for actor in ray.util.list_named_actors(all_namespaces=True)
                  if actor["namespace"] == "adaptdl" and actor["name"].startswith(_PREFIX))


def _list(options: argparse.Namespace) -> int:
    import ray
    statuses = ray.get([_call(name, "status") for name in _names()])
    if options.json:
        print(json.dumps(statuses, indent=2))
        return 0
    print(f"{'NAME':30} {'WORKERS':>7} {'RESTARTS':>8}  WHY")
    for status in statuses:
        print(f"{status['name']:30} {status['replicas']:7} {status['restarts']:8}  {status['explain']}")
    return 0


def _status(options: argparse.Namespace) -> int:
    import ray
    status = ray.get(_call(options.name, "status"))
    if options.json:
        print(json.dumps(status, indent=2))
        return 0
    for key in ("name", "replicas", "restarts", "requested", "checkpoint", "explain"):
        print(f"{key:11} {status[key] if status[key] is not None else '-'}")
    for event in status["events"]:
        print(f"event       {event}")
    return 0


def _trials(options: argparse.Namespace) -> int:
    searches = _board.read()
    if options.json:
        print(json.dumps(searches, indent=2))
        return 0
    for search, found in sorted(searches.items()):
        print(f"{search}, {max(time.time() - found['time'], 0):.0f} s ago")
        for trial in found["trials"]:
            print(f"  {trial['name']:32} {trial['status']:10}  {trial['explain']}")
    return 0


def _stop(options: argparse.Namespace) -> int:
    import ray
    ray.get(_call(options.name, "stop"))
    return 0


def _attach(options: argparse.Namespace) -> int:
    return launcher.follow(_controller(options.name), options.name)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The command."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] == ["submit"]:
        return launcher.main(argv[1:], "adaptdl-ray submit")
    parser = argparse.ArgumentParser(prog="adaptdl-ray", description="Elastic AdaptDL jobs on a Ray cluster.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    commands.add_parser("submit", help="run a job; takes the options of adaptdl_on_ray_aws", add_help=False)
    for name, function, text in (("attach", _attach, "show a job's output again, to its end"),
                                 ("stop", _stop, "end a job, with a checkpoint"),
                                 ("status", _status, "how a job stands, and why it has what it has"),
                                 ("list", _list, "the jobs of the cluster"),
                                 ("trials", _trials, "the trials of Tune searches, and why each has what it has")):
        command = commands.add_parser(name, help=text)
        command.set_defaults(function=function)
        command.add_argument("-u", "--uri", required=True, metavar="URI", help="the cluster's head")
        if name not in ("list", "trials"):
            command.add_argument("name", metavar="NAME", help="the job")
        if name in ("list", "status", "trials"):
            command.add_argument("--json", action="store_true", help="as JSON")
    options = parser.parse_args(argv)
    from ray.exceptions import RayError
    try:
        launcher.connect(options.uri)
        return options.function(options)
    except launcher._Wrong as error:
        print(f"adaptdl-ray: {error}", file=sys.stderr)
    except RayError as error:  # it ended just now, or its machine did
        print(f"adaptdl-ray: the job does not answer: {str(error).splitlines()[0]}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
