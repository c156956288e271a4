"""Where the metrics of a run go: the console, CSV files, TensorBoard, or a function of the program's."""

import csv
import glob
import json
import os
import sys
import time
import uuid

import adaptdl
from adaptdl import _core

__all__ = ["CSVLogger", "ConsoleLogger", "ILogger", "ReportLogger", "TensorboardLogger", "write_whole"]


def write_whole(path, write, mode="w"):
    """A file that is there as a whole, or as it was before, whoever else writes it: written beside, then renamed.

    Args:
        path (str): The file.
        write (Callable): ``write(file)`` writes its contents.
        mode (str): "w" or "wb".
    """
    part = f"{path}.{uuid.uuid4().hex}.part"  # others may write it, too; on other machines there are processes of our number
    try:
        with open(part, mode, **({} if "b" in mode else {"newline": ""})) as file:
            write(file)
        os.replace(part, path)
    except BaseException:
        if os.path.exists(part):
            os.unlink(part)
        raise


class ILogger:
    """Takes the metrics of a run. A run's loggers are called on the process of rank 0 only.

    Args:
        log_batch_metrics (bool): Whether it wants the metrics of each batch.
        log_epoch_metrics (bool): Whether it wants those of loaders and epochs.
    """

    def __init__(self, log_batch_metrics=False, log_epoch_metrics=True):
        self._log_batch_metrics = log_batch_metrics
        self._log_epoch_metrics = log_epoch_metrics

    @property
    def logger(self):
        """What it writes to; None when there is nothing to be seen."""
        return None

    @property
    def log_batch_metrics(self):
        """Does it want the metrics of each batch?"""
        return self._log_batch_metrics

    @property
    def log_epoch_metrics(self):
        """Does it want the metrics of loaders and epochs?"""
        return self._log_epoch_metrics

    def log_hparams(self, hparams, runner=None):
        """The run's hyperparameters, at its start."""

    def log_metrics(self, metrics, scope, runner):
        """Metrics of a batch, loader or epoch (``scope``); those of an epoch by loader, and under
        "_epoch_" those of none."""

    def log_image(self, tag, image, runner, scope=None):
        """An image; none of the loggers here keeps them."""

    def log_artifact(self, tag, runner, artifact=None, path_to_artifact=None, scope=None):
        """A file; none of the loggers here keeps them."""

    def flush_log(self):
        """Everything logged so far is written."""

    def close_log(self):
        """The run is over."""


def _line(metrics):
    return " | ".join(f"{key}: {float(metrics[key])}" for key in sorted(metrics))


def _say(line):
    """The line and its end in one write: print writes two where Python does not buffer, and other processes may
    write in between."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class ConsoleLogger(ILogger):
    """Prints a line for each loader and each epoch.

    Args:
        log_hparams (bool): Whether to print the hyperparameters, too.
    """

    def __init__(self, log_hparams=False):
        super().__init__(log_batch_metrics=False, log_epoch_metrics=True)
        self._log_hparams = log_hparams

    def log_hparams(self, hparams, runner=None):
        """The hyperparameters in a line, if wanted."""
        if self._log_hparams:
            _say(f"Hparams: {hparams}")

    def log_metrics(self, metrics, scope, runner):
        """``train (1/10) loss: ...`` and ``* Epoch (1/10) lr: ...``"""
        place = f"({runner.epoch_step}/{runner.num_epochs})"
        if scope == "loader":
            _say(f"{runner.loader_key} {place} {_line(metrics)}")
        elif scope == "epoch":
            _say(f"* Epoch {place} {_line(metrics['_epoch_'])}")


class _Table:
    """One CSV file: a row for each epoch, whatever was there before. Rows of epochs that are about to be
    run again, after a restart, are gone; a column that comes later is empty in earlier rows."""

    def __init__(self, path, step):
        self.path = path
        self.names, self.rows = [], []
        if os.path.exists(path):
            with open(path, newline="") as file:
                reader = csv.DictReader(file)
                for row in reader:
                    if (row.get("step") or "").isdigit() and int(row["step"]) < step:
                        self.rows.append({key: value for key, value in row.items() if key})
                if self.rows:
                    self.names = [name for name in reader.fieldnames if name != "step"]
        self.file = None

    def write(self, step, metrics):
        row = {"step": str(step), **{key: str(float(value)) for key, value in metrics.items()}}
        self.rows.append(row)
        if self.file is not None and set(metrics) <= set(self.names):
            csv.DictWriter(self.file, ["step"] + self.names, lineterminator="\n").writerow(row)
            return
        self.close()
        self.names = sorted(set(self.names) | set(metrics))
        write_whole(self.path, self._all)
        self.file = open(self.path, "a", newline="")

    def _all(self, file):
        writer = csv.DictWriter(file, ["step"] + self.names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)

    def close(self):
        if self.file is not None:
            self.file.close()
            self.file = None


class CSVLogger(ILogger):
    """Writes ``train.csv``, ``valid.csv`` and so on, and ``_epoch_.csv``: a row for each epoch, columns by
    name; and ``hparams.json``. A run that starts again in the same place writes the epochs that it runs
    in place of those that were there.

    Args:
        logdir (str): The directory.
        use_logdir_postfix (bool): Whether to write to ``csv_logger`` in it.
    """

    def __init__(self, logdir, use_logdir_postfix=False):
        super().__init__(log_batch_metrics=False, log_epoch_metrics=True)
        self.logdir = os.path.join(logdir, "csv_logger") if use_logdir_postfix else str(logdir)
        self._tables = {}

    @property
    def logger(self):
        """The open tables, by loader."""
        return self._tables

    def log_hparams(self, hparams, runner=None):
        """``hparams.json``"""
        os.makedirs(self.logdir, exist_ok=True)
        write_whole(os.path.join(self.logdir, "hparams.json"),
                    lambda file: json.dump(hparams, file, indent=2, ensure_ascii=False, default=str))

    def log_metrics(self, metrics, scope, runner):
        """A row for the epoch in each file."""
        if scope != "epoch":
            return
        os.makedirs(self.logdir, exist_ok=True)
        for loader_key, values in metrics.items():
            table = self._tables.get(loader_key)
            if table is None:
                path = os.path.join(self.logdir, f"{loader_key}.csv")
                table = self._tables[loader_key] = _Table(path, runner.epoch_step)
            table.write(runner.epoch_step, values)

    def flush_log(self):
        """Writes what is buffered."""
        for table in self._tables.values():
            if table.file is not None:
                table.file.flush()

    def close_log(self):
        """Closes the files."""
        for table in self._tables.values():
            table.close()
        self._tables = {}


class TensorboardLogger(ILogger):
    """Writes event files for TensorBoard, in a directory for each loader and ``_epoch_``. The package
    ``tensorboard`` is not needed for it.

    Args:
        logdir (str): The directory.
        use_logdir_postfix (bool): Whether to write to ``tensorboard`` in it.
        log_batch_metrics (bool): Whether to write the metrics of each batch, too (tags ``.../batch``, by
            ``runner.sample_step``).
        log_epoch_metrics (bool): Whether to write those of loaders and epochs (``.../epoch``).
    """

    def __init__(self, logdir, use_logdir_postfix=False, log_batch_metrics=False, log_epoch_metrics=True):
        super().__init__(log_batch_metrics=log_batch_metrics, log_epoch_metrics=log_epoch_metrics)
        self.logdir = os.path.join(logdir, "tensorboard") if use_logdir_postfix else str(logdir)
        self._writers = {}
        self._steps = {}  # of the last batch in each file
        self._earlier = set()  # files of runs before this one
        self._begun = set()  # loaders that have events of this run

    @property
    def logger(self):
        """The open files, by loader."""
        return self._writers

    def _writer(self, key, runner, scope):
        if key not in self._writers:
            folder = os.path.join(self.logdir, key)
            self._forget(glob.glob(os.path.join(glob.escape(folder), "events.out.tfevents.*")), key, runner, scope)
            self._begun.add(key)
            self._writers[key] = _core.EventWriter(folder, time.time())
        return self._writers[key]

    def _forget(self, paths, key, runner, scope):
        """What others have written in this place before: everything goes when the run is a new one; else what this
        process is about to write, as it was of steps that are run again."""
        new = not runner.continues and key not in self._begun
        for path in paths:
            if path in self._earlier:
                continue
            if new:
                os.unlink(path)
            else:
                _core.events_cut(path, runner.sample_step + (scope != "batch"), runner.epoch_step)

    def _write(self, key, metrics, step, scope, runner):
        writer = self._writer(key, runner, scope)
        suffix = "/batch" if scope == "batch" else "/epoch"
        for name, value in metrics.items():
            writer.scalar(name + suffix, float(value), step, time.time())
        if runner.is_elastic:  # another process may be the next to write
            writer.flush()

    def _write_batch(self, key, metrics, runner):
        if runner.sample_step <= self._steps.get(key, -1) and key in self._writers:  # these batches come again
            self._writers.pop(key).close()
        self._steps[key] = runner.sample_step
        self._write(key, metrics, runner.sample_step, "batch", runner)

    def log_metrics(self, metrics, scope, runner):
        """Events for each metric."""
        if scope == "batch" and self.log_batch_metrics:
            self._write_batch(runner.loader_key, metrics, runner)
        elif scope == "loader" and self.log_epoch_metrics:
            self._write(runner.loader_key, metrics, runner.epoch_step, scope, runner)
        elif scope == "epoch" and self.log_epoch_metrics:
            self._write("_epoch_", metrics["_epoch_"], runner.epoch_step, scope, runner)

    def flush_log(self):
        """Writes what is buffered."""
        for writer in self._writers.values():
            writer.flush()

    def close_log(self):
        """Closes the files."""
        for writer in self._writers.values():
            self._earlier.add(writer.path)
            writer.close()
        self._writers, self._steps, self._begun = {}, {}, set()


class ReportLogger(ILogger):
    """Hands the metrics of each epoch to a function: the way from a run to a dashboard. A run that is a job of a
    cluster has one by itself.

    Args:
        report (Callable): ``report(metrics, step=...)`` with ``{"train/loss": 0.5, ...}`` and the epoch, from 1
            on; default: ``adaptdl.report``. What it raises is printed, and does not end the run.
    """

    def __init__(self, report=adaptdl.report):
        if not callable(report):
            raise TypeError(f"report must be a function, not {type(report).__name__}")
        super().__init__(log_batch_metrics=False, log_epoch_metrics=True)
        self._report = report

    def log_metrics(self, metrics, scope, runner):
        """Calls the function at the end of each epoch."""
        if scope != "epoch":
            return
        flat = {(f"{loader}/{key}" if loader != "_epoch_" else key): float(value)
                for loader, values in metrics.items() for key, value in values.items()}
        try:
            self._report(flat, step=runner.global_epoch_step)
        except Exception as error:
            print(f"adaptdl: metrics of epoch {runner.epoch_step} were not reported: {error}",
                  file=sys.stderr)
