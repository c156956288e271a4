#!/usr/bin/python3
"""What the package does to its process: nothing at import, and an orderly end whatever happens."""

import signal
import time

import harness

STATE = """
import os, signal, sys, time
import adaptdl
from adaptdl import _core, checkpoint, collective, env
class Number(checkpoint.State):
    value = 0
    def save(self, fileobj):
        fileobj.write(str(self.value).encode())
    def load(self, fileobj):
        self.value = int(fileobj.read())
number = Number("number")
"""


def saved(path):
    """The value in the newest checkpoint, -1 without one."""
    return int(harness.script(STATE + "print(number.value if checkpoint.load_state(number) else -1)",
                              ADAPTDL_CHECKPOINT_PATH=path))


def test_import_changes_nothing():
    harness.script("""
import os, signal, sys, threading
def look():
    return ([signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)], threading.active_count(),
            len(os.listdir("/proc/self/task")), dict(os.environ), sorted(os.listdir("/proc/self/fd")))
kernel = lambda: [line for line in open("/proc/self/status") if line.startswith(("SigBlk", "SigIgn", "SigCgt"))]
before, before_kernel = look(), kernel()
import adaptdl, adaptdl.checkpoint, adaptdl.collective, adaptdl.env, adaptdl.goodput, adaptdl.reducer
import adaptdl.sched_hints, adaptdl.utils
assert look() == before and kernel() == before_kernel
assert "numpy" not in sys.modules and "torch" not in sys.modules
adaptdl.collective.initialize()
assert kernel() == before_kernel      # signals are init_process_group's business
""")


def test_the_end_of_the_program_saves(tmp_path):
    harness.script(STATE + "collective.initialize(); number.value = 5", ADAPTDL_CHECKPOINT_PATH=tmp_path)
    assert saved(tmp_path) == 5
    harness.script(STATE + "collective.initialize(); number.value = 6; sys.exit(0)", ADAPTDL_CHECKPOINT_PATH=tmp_path)
    assert saved(tmp_path) == 6


def test_an_exception_does_not_save(tmp_path):
    harness.script(STATE + "collective.initialize(); number.value = 7; raise KeyError('oops')", status=1,
                   ADAPTDL_CHECKPOINT_PATH=tmp_path)
    assert saved(tmp_path) == -1


def test_without_a_process_group_only_asking_saves(tmp_path):
    harness.script(STATE + "checkpoint.save_all_states(); number.value = 8", ADAPTDL_CHECKPOINT_PATH=tmp_path)
    assert saved(tmp_path) == 0


def test_an_exception_on_one_replica_is_told_to_the_others():
    harness.replicas(2, STATE + """
collective.initialize()
if env.replica_rank() == 1:
    raise ZeroDivisionError("by me")
try:
    collective.allreduce(1)
except ConnectionError as error:
    assert "ZeroDivisionError" in str(error), error
else:
    sys.exit("no error")
os._exit(0)
""", status=[0, 1])


def test_a_fork_leaves_its_parent_s_group_alone(tmp_path):
    harness.replicas(2, STATE + """
collective.initialize()
future = collective.allreduce_async(1)
number.value = 3
pid = os.fork()
if pid == 0:
    number.value = 4
    for call in (lambda: collective.allreduce(1), lambda: checkpoint.load_state(number), future.result,
                 lambda: checkpoint.save_all_states(), collective.teardown):
        try:
            call()
        except RuntimeError:
            pass
        else:
            os._exit(9)
    del future
    sys.exit(0)          # runs atexit, as a worker does
assert os.waitpid(pid, 0)[1] == 0
assert future.result() == 2 and collective.allreduce(1) == 2
collective.teardown()
""", ADAPTDL_CHECKPOINT_PATH=tmp_path)
    assert saved(tmp_path) == 3


def test_a_fork_may_have_a_group_of_its_own():
    harness.script(STATE + """
collective.initialize()
pid = os.fork()
if pid == 0:
    collective.initialize()
    assert collective.allreduce(2) == 2
    collective.teardown()
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert collective.allreduce(3) == 3
""")


def test_multiprocessing_works_beside_a_group():
    harness.script(STATE + """
import multiprocessing
def square(x):
    return x * x
collective.initialize()
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(square, range(5)) == [0, 1, 4, 9, 16]
assert collective.allreduce(1) == 1
""")


def test_signals_are_handled_when_asked_for(tmp_path):
    code = STATE + """
_core.context_start(signals=True)
ready, tell = os.pipe()
pid = os.fork()
if pid == 0:                       # a worker: neither is for it, unless its parent sends it
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    os.write(tell, b"x")
    time.sleep(600)
    sys.exit(0)
os.close(tell)
assert os.read(ready, 1) == b"x", "the worker died of a signal that was not for it"
os.kill(pid, signal.SIGINT)
os.kill(pid, signal.SIGTERM)
assert os.waitpid(pid, 0)[1] == signal.SIGTERM
os.kill(os.getpid(), signal.SIGTERM)    # only sets a flag, which a loop would look at
number.value = 1
collective.teardown()
assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(600)
"""
    harness.script(code, status=-signal.SIGTERM, ADAPTDL_CHECKPOINT_PATH=tmp_path)


def test_a_second_ctrl_c_kills():
    process = harness.start(STATE + """
_core.context_start(signals=True)
print("ready", flush=True)
while True:
    time.sleep(0.01)
""")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert "got SIGINT" in process.stderr.readline()
    assert process.poll() is None
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT


def test_two_threads_cannot_be_inside_at_once(tmp_path):
    harness.script(STATE + """
import threading
entered, leave = threading.Event(), threading.Event()
class Slow(checkpoint.State):
    def save(self, fileobj):
        entered.set()
        leave.wait(60)
slow = Slow("slow")
thread = threading.Thread(target=checkpoint.save_all_states)
thread.start()
assert entered.wait(60)
for call in (checkpoint.save_all_states, lambda: checkpoint.load_state(number), lambda: Number("other")):
    try:
        call()
    except RuntimeError as error:
        assert "under way" in str(error), error
    else:
        sys.exit("no error")
leave.set()
thread.join()
checkpoint.save_all_states()
Number("other")
""", ADAPTDL_CHECKPOINT_PATH=tmp_path)


def test_a_group_that_is_being_left_is_gone_for_other_threads(tmp_path):
    harness.script(STATE + """
import threading
entered, leave = threading.Event(), threading.Event()
class Slow(checkpoint.State):
    def sync(self):
        assert collective.allreduce(5) == 5      # the thread that leaves may still talk
        entered.set()
        leave.wait(60)
slow = Slow("slow")
collective.initialize()
thread = threading.Thread(target=collective.teardown)
thread.start()
assert entered.wait(60)
for call in (lambda: collective.allreduce(1), checkpoint.save_all_states, collective.teardown,
             collective.initialize, lambda: collective.broadcast(1)):
    try:
        call()
    except RuntimeError as error:
        pass
    else:
        sys.exit("no error")
leave.set()
thread.join()
collective.initialize()
""", ADAPTDL_CHECKPOINT_PATH=tmp_path)


def test_an_operation_outlives_its_group():
    harness.script(STATE + """
collective.initialize()
future = collective.allreduce_async("x")
collective.teardown()
assert future.result() == "x"
""")


if __name__ == "__main__":
    harness.main(__file__)
