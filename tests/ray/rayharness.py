"""What the Ray tests share: the paths, a small cluster of real Ray processes, and waiting for conditions."""

import contextlib
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "python"))

import harness  # noqa: E402

PACKAGE = str(ROOT / "python-ray")
PATH = os.pathsep.join(filter(None, [harness.LIBRARY, PACKAGE, str(ROOT / "tests" / "ray"), os.environ.get("PYTHONPATH")]))
for _folder in PATH.split(os.pathsep):
    if _folder not in sys.path:
        sys.path.insert(0, _folder)
os.environ["PYTHONPATH"] = PATH
os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_DEDUP_LOGS="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
                  # Ray gives its workers the least of a busy machine, and starts one for each CPU that was made up.
                  RAY_worker_niceness="0", RAY_prestart_worker_first_driver="0",
                  RAY_health_check_failure_threshold="20", RAY_worker_register_timeout_seconds="600",
                  # who refuses to answer is dead after 10 s, who takes long to, after minutes
                  RAY_health_check_period_ms="500",
                  RAY_agent_register_timeout_ms="600000", TUNE_DISABLE_AUTO_CALLBACK_LOGGERS="1", AIR_VERBOSITY="0",
                  # what trials report is what their functions say, not also what was measured
                  ADAPTDL_HINTS_INTERVAL="86400")
STORE = 100 << 20
# A busy machine takes minutes for what a quiet one does in seconds.
LONG_S = 400
# How often a node whose processes do not come up is tried.
TRIES = 3


def main(path):
    """Runs the tests of a file; those that are marked as long only with ADL_RAY_LONG set."""
    if not os.environ.get("ADL_RAY_LONG"):
        sys.argv += ["-m", "not long"]
    harness.main(path)


class DiedAtStart(Exception):
    """A process of a Ray node, before the node was up."""


_starting = []  # the node that was begun last


def _patient(get_node):
    """Ray gives the processes of a node half a minute to come up, which a busy machine may not manage; but those that
    are dead already are not waited for."""
    def ask(*arguments, **more):
        deadline = time.monotonic() + LONG_S
        while True:
            dead = [kind for node in _starting for kind, _ in node.dead_processes() if kind in ("gcs_server", "raylet")]
            if dead:
                raise DiedAtStart(", ".join(dead))
            try:
                return get_node(*arguments, **more)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
    return ask


def _noted(start):
    def begin(node):
        _starting[:] = [node]
        start(node)
    return begin


def _be_patient():
    from ray._private import node, services
    if not hasattr(services, "adaptdl_patient"):
        services.adaptdl_patient = True
        services.get_node = _patient(services.get_node)
        node.Node.start_ray_processes = _noted(node.Node.start_ray_processes)


def _started(start):
    """A node that comes up; on a busy machine Ray's processes give each other up at times, and are tried again."""
    _be_patient()
    for left in reversed(range(TRIES)):
        _starting.clear()
        try:
            return start()
        except Exception as error:
            for node in _starting:
                node.kill_all_processes(check_alive=False, allow_graceful=False)
            if not left:
                raise
            print(f"info - a Ray node did not come up, trying again: {type(error).__name__}: {error}", file=sys.__stdout__,
                  flush=True)
        finally:
            _starting.clear()


@contextlib.contextmanager
def local(cpus, **more):
    """One Ray node with made-up CPUs."""
    import ray

    def start():
        ray.shutdown()
        ray.init(address="local", num_cpus=cpus, include_dashboard=False, object_store_memory=STORE, log_to_driver=False,
                 **more)

    _started(start)
    try:
        yield
    finally:
        ray.shutdown()


_shared = []  # how many CPUs the node has that is left running between tests


@contextlib.contextmanager
def shared(cpus):
    """The same node for the tests that want that many CPUs: starting one takes long. It is left for the next test."""
    if _shared != [cpus]:
        unshare()
        stack = contextlib.ExitStack()
        stack.enter_context(local(cpus))
        _shared[:] = [cpus]
        unshare.stack = stack
    yield


def unshare():
    """Ends that node: another is to be started."""
    if _shared:
        _shared.clear()
        unshare.stack.close()


@contextlib.contextmanager
def cluster(*nodes, **head):
    """A head on which no trial or worker fits, and a node for each dict of arguments; this process has joined it. head:
    further ones of the head's."""
    import ray
    from ray.cluster_utils import Cluster
    unshare()
    found = Cluster()
    try:
        add_node(found, **{"num_cpus": 0, "include_dashboard": False, **head})
        # Joined before the others are there: Ray 2.40 takes any node of this machine, and that one cannot be removed.
        ray.init(address=found.address, log_to_driver=False, namespace="adaptdl")
        found.workers = [add_node(found, **node) for node in nodes]
        yield found
    finally:
        ray.shutdown()
        found.shutdown()


def add_node(found, **arguments):
    """A further node of the cluster."""
    def start():
        found.worker_nodes = {node for node in found.worker_nodes if node.any_processes_alive()}
        return found.add_node(object_store_memory=STORE, **arguments)

    return _started(start)


def until(condition, what, timeout_s=LONG_S):
    """Waits for a true value and returns it."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.2)
    raise AssertionError(f"not within {timeout_s} s: {what}")


def command(module, *arguments, **more):
    """A command of the package, as a process of its own."""
    return subprocess.Popen([sys.executable, "-m", f"adaptdl_ray.{module}", *map(str, arguments)],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
