"""One `adaptdl run` of elastic_program.py that is disturbed from outside, and what must have come of it: for
test_torch_elastic.py and, on a GPU, gpu_elastic_check.py."""

import itertools
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

import harness

PROGRAM = pathlib.Path(__file__).with_name("elastic_program.py")
ADAPTDL = pathlib.Path(os.environ.get("ADAPTDL_BIN", harness.ROOT / "build" / "release" / "bin")) / "adaptdl"
HANG_S = float(os.environ.get("ADL_ELASTIC_HANG_S", "300"))
STACK = "Current thread 0x"  # faulthandler, once for each process
numbers = itertools.count()


def native_stack(pid):
    """What the threads of a process are doing, in C where there is a debugger that may look."""
    lines = [f"process {pid}:"]
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*"):
        try:
            state = (task / "stat").read_text().rsplit(")", 1)[1].split()[0]
            lines.append(f"  thread {task.name} {(task / 'comm').read_text().strip()}: {state} "
                         f"{(task / 'wchan').read_text().strip()}")
        except OSError:
            pass  # it has ended meanwhile
    if shutil.which("gdb"):
        try:
            lines.append(subprocess.run(["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all backtrace 30"],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                        text=True, errors="replace", timeout=120).stdout)
        except subprocess.TimeoutExpired:
            lines.append("  the debugger does not end")
    return "\n".join(lines)


class Run:
    """One `adaptdl run` of the program."""

    def __init__(self, directory, replicas, peer_timeout=2, **options):
        self.directory, self.name = directory, f"elastic{os.getpid()}-{next(numbers)}"
        self.env = harness.environment(XDG_RUNTIME_DIR=directory, ADAPTDL_PEER_TIMEOUT=peer_timeout, OMP_NUM_THREADS=1,
                                       ADAPTDL_CHECKPOINT_INTERVAL=2)
        self.output = directory / "log"
        words = [f"{name}={value}" for name, value in options.items()]
        with open(self.output, "w") as log:
            self.process = subprocess.Popen(
                [ADAPTDL, "run", "-v", "-n", str(replicas), "--name", self.name, "--checkpoint", directory / "checkpoint",
                 "--max-restarts", "20", "--", sys.executable, PROGRAM, directory, *words],
                env=self.env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            for pid in self.members():
                self.signal(pid, signal.SIGCONT)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()

    def log(self):
        return self.output.read_text(errors="replace")

    def wait(self, holds, what):
        until = time.monotonic() + HANG_S
        while not holds():
            assert self.process.poll() is None, f"it is over, and {what}\n{self.log()}"
            assert time.monotonic() < until, f"{what}\n{self.stacks()}"
            time.sleep(0.05)

    def until(self, *texts, count=1):
        """Waits until the log has one of these that many times."""
        self.wait(lambda: any(self.log().count(text) >= count for text in texts), f"no {texts}")

    def trains(self):
        """Waits for a batch that is trained on: from the first one on it can be resized in place."""
        (self.directory / "trains").unlink(missing_ok=True)
        self.wait((self.directory / "trains").exists, "nothing is trained on")

    def scale(self, replicas):
        subprocess.run([ADAPTDL, "scale", self.name, str(replicas)], env=self.env, capture_output=True, timeout=60)

    def replace(self, rank):
        """Another process in the place of one, as when it moves; what the launcher answers."""
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(60)
            try:
                control.connect(str(self.directory / "adaptdl" / f"{self.name}.sock"))
                control.sendall(f"replace {rank}\n".encode())
                return control.makefile().readline()
            except OSError as error:  # it is over, or has not begun to listen
                return f"error: {error}"

    def members(self, joining=None):
        """Processes that are there, oldest first; joining: of those only that were started so, or not."""
        found = []
        path = self.directory / "starts"
        for line in path.read_text().splitlines() if path.exists() else []:
            _, pid, joins = line.split()
            try:
                command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if str(self.directory).encode() in command and (joining is None or joining == bool(int(joins))):
                found.append(int(pid))
        return found

    def rank_0(self):
        """Of those that were started first, without one that had to join."""
        for line in (self.directory / "starts").read_text().splitlines():
            member, pid, _ = line.split()
            if member == "0":
                return int(pid)
        raise AssertionError("there is no member 0")

    def signal(self, pid, number):
        if pid in self.members():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def stacks(self):
        """The log, with where each process is in it (elastic_program.py prints that when it gets SIGUSR1), and what its
        threads wait for: for a history that hangs."""
        members, printed = self.members(), self.log().count(STACK)
        for pid in members:
            self.signal(pid, signal.SIGCONT)
            self.signal(pid, signal.SIGUSR1)
        until = time.monotonic() + 60
        while self.log().count(STACK) < printed + len(members) and time.monotonic() < until:
            time.sleep(0.05)
        return "\n".join([self.log(), *map(native_stack, members)])

    def end(self):
        (self.directory / "hurry").touch()
        try:
            status = self.process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"hangs\n{self.stacks()}") from None
        assert status == 0, f"exit status {status}\n{self.log()}"
        return json.loads((self.directory / "result").read_text())


def check(run, result, plain, epochs, examples, tolerance=2e-3):
    log = run.log()
    assert result["wrong"] == [], f"examples were not applied {epochs} times but {result['wrong'][:20]}\n{log}"
    assert result["steps"] == epochs * examples // 12, f"{result['steps']} steps of the schedule\n{log}"
    assert result["history"] == list(range(epochs)), f"{result['history']}\n{log}"
    for epoch, seen, _ in result["counted"]:
        assert seen == 60, f"epoch {epoch} counted {seen} of 60 examples\n{log}"
    assert result["buffers"] == plain["buffers"], f"buffers are {result['buffers']}, not {plain['buffers']}\n{log}"
    apart = max(abs(a - b) for mine, wanted in zip(result["weights"], plain["weights"]) for a, b in zip(mine, wanted))
    assert apart < tolerance, f"weights are {apart} from what they are undisturbed\n{log}"


def learn_undisturbed(directory, **options):
    """What one replica learns by itself."""
    words = [f"{name}={value}" for name, value in options.items()]
    subprocess.run([sys.executable, PROGRAM, directory, *words, "step_ms=0"], env=harness.environment(), check=True,
                   capture_output=True, timeout=HANG_S)
    return json.loads((directory / "result").read_text())
