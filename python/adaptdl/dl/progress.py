"""How far a loop over data is: a bar on a terminal, a line now and then in a file."""

import shutil
import sys
import time

from adaptdl.dl.callback import Callback, CallbackOrder

__all__ = ["TqdmCallback"]

_REDRAW_S = 0.1
_LINE_S = 10.0


def _clock(seconds):
    hours, minutes = divmod(int(seconds) // 60, 60)
    return (f"{hours}:" if hours else "") + f"{minutes:02d}:{int(seconds) % 60:02d}"


def _number(value):
    return f"{value:.3f}" if abs(value) >= 1e-3 or value == 0 else f"{value:.2e}"


class TqdmCallback(Callback):
    """Shows how far each loop over data is, with its rate, the time that is left, and the batch's metrics;
    on the process of rank 0. On a terminal it is a bar that moves; elsewhere it is a line every ten
    seconds, and one at the end of each loop.

    Args:
        file: Where to; standard error by default.
        line_seconds (float): Between lines, where there is no terminal.
    """

    def __init__(self, file=None, line_seconds=_LINE_S):
        super().__init__(order=CallbackOrder.External)
        self._given, self._line_s = file, line_seconds
        self._open = False

    def on_loader_start(self, runner):
        """A bar begins."""
        self._open = True
        self._file = self._given or sys.stderr
        self._terminal = self._file.isatty()
        self._begin = self._last = time.monotonic()
        self._count, self._before = 0, runner.loader_batch_step // max(1, runner.engine.num_processes)

    def on_batch_end(self, runner):
        """The bar moves."""
        if not self._open or runner.engine.is_void:
            return
        self._count += 1
        if not runner.engine.is_main_process:  # at present
            return
        now = time.monotonic()
        if now - self._last >= (_REDRAW_S if self._terminal else self._line_s):
            self._last = now
            self._show(runner, now, runner.batch_metrics)

    def on_loader_end(self, runner):
        """The bar ends, with the loader's metrics."""
        if not self._open:
            return
        self._open = False
        if runner.engine.is_main_process:
            self._show(runner, time.monotonic(), runner.loader_metrics, "\n" if self._terminal else "")

    def on_exception(self, runner):
        """The line is ended, so that the error has one of its own."""
        if self._open and self._terminal and runner.engine.is_main_process:
            print(file=self._file, flush=True)
        self._open = False

    def _show(self, runner, now, metrics, end=""):
        done, total = self._before + self._count, max(runner.loader_batch_len, self._before + self._count)
        rate = self._count / max(now - self._begin, 1e-9)
        left = _clock((total - done) / rate) if rate > 0 else "?"
        values = ", ".join(f"{key}={_number(float(metrics[key]))}" for key in sorted(metrics))
        head = f"{runner.epoch_step}/{runner.num_epochs} * Epoch ({runner.loader_key}): {100 * done // max(total, 1):3d}%"
        tail = f"{done}/{total} [{_clock(now - self._begin)}<{left}, {rate:.2f}it/s{', ' if values else ''}{values}]"
        if not self._terminal:
            print(f"{head} {tail}", file=self._file, flush=True)
            return
        width = shutil.get_terminal_size().columns
        room = max(5, min(30, width - len(head) - len(tail) - 5))
        bar = "#" * (room * done // max(total, 1))
        line = f"{head}|{bar:{room}}| {tail}"[:width - 1]
        print(f"\r{line}\x1b[K", end=end, file=self._file, flush=True)
