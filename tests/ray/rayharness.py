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
                  RAY_health_check_failure_threshold="20", TUNE_DISABLE_AUTO_CALLBACK_LOGGERS="1", AIR_VERBOSITY="0")
STORE = 100 << 20
# A busy machine takes minutes for what a quiet one does in seconds.
LONG_S = 400

main = harness.main


def _patient(get_node):
    """Ray gives the processes of a node half a minute to come up, which a busy machine may not manage."""
    def ask(*arguments, **more):
        deadline = time.monotonic() + LONG_S
        while True:
            try:
                return get_node(*arguments, **more)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
    return ask


def _be_patient():
    from ray._private import services
    if not hasattr(services, "adaptdl_patient"):
        services.adaptdl_patient = True
        services.get_node = _patient(services.get_node)


@contextlib.contextmanager
def local(cpus, **more):
    """One Ray node with made-up CPUs."""
    import ray
    _be_patient()
    ray.init(address="local", num_cpus=cpus, include_dashboard=False, object_store_memory=STORE, log_to_driver=False,
             **more)
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def cluster(*nodes):
    """A head on which no trial or worker fits, and a node for each dict of arguments."""
    import ray
    from ray.cluster_utils import Cluster
    _be_patient()
    found = Cluster(initialize_head=True, connect=False, head_node_args={
        "num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE})
    try:
        found.workers = [add_node(found, **node) for node in nodes]
        yield found
    finally:
        ray.shutdown()
        found.shutdown()


def add_node(found, **arguments):
    """A further node of the cluster."""
    return found.add_node(object_store_memory=STORE, **arguments)


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
