"""The loop of a run: stages, epochs, loaders, batches, and their events."""

import collections
import inspect
import random
import sys

import torch
from torch.utils.data.distributed import DistributedSampler

from adaptdl import _core, checkpoint
from adaptdl.dl import spawn
from adaptdl.dl.callback import ICallback, callback_is, inner_of, sort_callbacks
from adaptdl.dl.callbacks import OptimizerCallback
from adaptdl.dl.checkpoint import CheckpointCallback, resumed, unpack_checkpoint
from adaptdl.dl.elastic import ElasticEngine, RunnerState, launched
from adaptdl.dl.engine import DistributedDataParallelEngine, Engine, default_engine, each, to_device
from adaptdl.dl.loaders import check_loaders, library_loop, loader_batch_size, loader_samples, repeated
from adaptdl.dl.loggers import ILogger, ReportLogger
from adaptdl.dl.metrics import LazyMeter

__all__ = ["IRunner", "IRunnerError", "RunnerError", "set_global_seed"]


class RunnerError(RuntimeError):
    """A run that cannot go on, by what it was given."""


IRunnerError = RunnerError


def set_global_seed(seed):
    """Seeds Python, NumPy and PyTorch.

    Args:
        seed (int): The number.
    """
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def _takes_stage(method, count):
    """Does a method of the program's want the stage's name before its ``count`` arguments?"""
    parameters = [p for p in inspect.signature(method).parameters.values()
                  if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if parameters and parameters[0].name == "stage":
        return True
    return len([p for p in parameters if p.default is p.empty]) > count


class IRunner(ICallback):
    """The loop over stages, epochs, loaders and batches, with events for callbacks. Subclasses say what a
    run is made of in their ``get_...`` methods, and what a batch is for in :meth:`handle_batch`; methods may
    take the stage's name as their first argument, ``stage``, or not.

    Args:
        model (torch.nn.Module or dict): The model, or several by key.
        engine (Engine): Where to run.
    """

    def __init__(self, model=None, engine=None):
        self.model, self.engine = model, engine
        self.trial = None
        self.loaders = self.criterion = self.optimizer = self.scheduler = None
        self.callbacks, self.loggers = {}, {}
        self.batch, self.batch_size, self.batch_extra = None, 0, 0
        self.batch_metrics, self.loader_metrics, self.epoch_metrics, self.experiment_metrics = {}, {}, {}, {}
        self.epoch_step = self.batch_step = self.sample_step = self.first_epoch = 0
        self.stage_key, self._stage_len = "train", None
        self.loader = self.loader_key = None
        self.is_train_loader = self.is_valid_loader = self.is_infer_loader = False
        self.loader_batch_size = self.loader_batch_len = self.loader_sample_len = 0
        self.loader_batch_step = self.loader_sample_step = 0
        self.exception, self.need_early_stop = None, False
        self.meter, self._moments = None, {}
        self._saved, self._restored = None, None  # an elastic run's state, and what it was before a restart
        self._stages_done, self._known = {}, []
        self._backwards = 0
        self._elastic, self._main, self._took_over = False, True, False
        self._loop, self._places, self._marked, self._in_batch = None, collections.deque(), [], False
        self._resume_path = None
        self._autoscale = None

    # ---- what a run is made of ----

    @property
    def seed(self):
        """The number that random numbers start from."""
        return 42

    @property
    def name(self):
        """The run's name."""
        return type(self).__name__

    @property
    def hparams(self):
        """Hyperparameters, for loggers."""
        return {}

    @property
    def stages(self):
        """The names of the stages; each has parts and epochs of its own."""
        return ["train"]

    def get_stage_len(self, stage):
        """How many epochs a stage has."""
        return 1

    @property
    def num_epochs(self):
        """How many epochs the present stage has."""
        return self._stage_len if self._stage_len is not None else self._call("get_stage_len")

    def get_engine(self):
        """The engine; None: for what the machine has."""
        return self.engine

    def get_trial(self):
        """The trial that the run belongs to, if any."""
        return None

    def get_loggers(self):
        """Loggers by name."""
        return {}

    def get_loaders(self):
        """Loaders by key; keys start with train, valid or infer."""
        raise NotImplementedError("override get_loaders()")

    def get_model(self):
        """The model, or several by key."""
        return self.model

    def get_criterion(self):
        """The criterion, if any."""
        return None

    def get_optimizer(self, model):
        """The optimizer, if any."""
        return None

    def get_scheduler(self, optimizer):
        """The learning-rate schedule, if any."""
        return None

    def get_callbacks(self):
        """Callbacks by name."""
        return {}

    def handle_batch(self, batch):
        """What is done with a batch: fills ``self.batch`` with what callbacks use, and
        ``self.batch_metrics``."""
        raise NotImplementedError("override handle_batch()")

    # ---- what it is doing ----

    @property
    def device(self):
        """The engine's device."""
        return self.engine.device

    @property
    def is_elastic(self):
        """Is this a run that may be stopped and go on elsewhere?"""
        return isinstance(self.engine, ElasticEngine)

    @property
    def continues(self):
        """Has this run files already, of another process or of before a restart? What it logs goes on from there."""
        return self._restored is not None or self.first_epoch > 0 or self._took_over

    @property
    def did_backward(self):
        """Was there a backward pass for the present batch?"""
        return self.engine.backwards != self._backwards

    @property
    def global_epoch_step(self):
        """The epoch, from 1 on, counted through all stages."""
        return self.epoch_step + sum(epochs for stage, epochs in self._stages_done.items() if stage != self.stage_key)

    global_batch_step = property(lambda self: self.batch_step, doc="Batches so far, of all processes.")
    global_sample_step = property(lambda self: self.sample_step, doc="Examples so far, of all processes.")
    stage_epoch_step = property(lambda self: self.epoch_step, doc="The epoch, from 1 on.")
    stage_batch_step = property(lambda self: self.batch_step, doc="Batches so far, of all processes.")
    stage_sample_step = property(lambda self: self.sample_step, doc="Examples so far, of all processes.")
    stage_epoch_len = property(lambda self: self.num_epochs, doc="How many epochs the stage has.")

    def loader_moments(self, key):
        """Mean and deviation of a metric that was added to ``runner.meter`` in this loop, over all examples of
        all replicas. At the loop's end, on all of them.

        Args:
            key (str): The metric.

        Returns:
            tuple: (mean, deviation); (nan, nan) when nothing was added.
        """
        if self._moments is None:
            self._moments = self.meter.compute()
        return self._moments.get(key, (float("nan"), float("nan")))

    def log_metrics(self, metrics, scope):
        """Hand metrics to the loggers.

        Args:
            metrics (dict): The metrics.
            scope (str): "batch", "loader" or "epoch".
        """
        for logger in self.loggers.values():
            if scope != "batch" or logger.log_batch_metrics:
                logger.log_metrics(metrics, scope, self)

    def log_hparams(self, hparams):
        """Hand hyperparameters to the loggers."""
        for logger in self.loggers.values():
            logger.log_hparams(hparams, self)

    def log_image(self, tag, image, scope=None):
        """Hand an image to the loggers."""
        for logger in self.loggers.values():
            logger.log_image(tag, image, self, scope)

    def log_artifact(self, tag, artifact=None, path_to_artifact=None, scope=None):
        """Hand a file to the loggers."""
        for logger in self.loggers.values():
            logger.log_artifact(tag, self, artifact, path_to_artifact, scope)

    def flush_log(self):
        """Have the loggers write everything."""
        for logger in self.loggers.values():
            logger.flush_log()

    def close_log(self):
        """Close the loggers."""
        for logger in self.loggers.values():
            logger.close_log()

    # ---- setting up ----

    def _call(self, name, *args):
        method = getattr(self, name)
        return method(self.stage_key, *args) if _takes_stage(method, len(args)) else method(*args)

    def _seed_now(self):
        set_global_seed(self.seed + self.engine.process_index + self.epoch_step)

    def _setup_loggers(self):
        loggers = dict(self.get_loggers() or {})
        for key, logger in loggers.items():
            if not isinstance(logger, ILogger):
                raise TypeError(f"logger {key!r} must be an ILogger, not {type(logger).__name__}")
        if _core.env()["supervisor_url"] and not any(isinstance(each, ReportLogger) for each in loggers.values()):
            loggers["_report"] = ReportLogger()
        self.loggers = loggers

    def _setup_loaders(self):
        self._seed_now()
        with self.engine.local_main_process_first():
            loaders = check_loaders(self._call("get_loaders"))
        for key, loader in loaders.items():
            if len(loader) == 0:
                raise RunnerError(f"loader {key!r} is empty")
        self.loaders = {key: self.engine.prepare_loader(key, loader, self.seed) for key, loader in loaders.items()}

    def _setup_components(self):
        self._seed_now()
        self.model = self._call("get_model")
        for model in self.model.values() if isinstance(self.model, dict) else [self.model]:
            if not isinstance(model, torch.nn.Module):
                raise TypeError(f"model must be a torch.nn.Module, or a dict of them, not {type(model).__name__}")
        self.model = each(self.model, self.engine.unwrap_model)
        self.criterion = self._call("get_criterion")
        self.optimizer = self._call("get_optimizer", self.model)
        self.scheduler = self._call("get_scheduler", self.optimizer)

    def _setup_callbacks(self):
        self._seed_now()
        self.callbacks = sort_callbacks(self._call("get_callbacks"))
        for callback in self.callbacks.values():
            if callback_is(callback, CheckpointCallback):
                self._resume_path = callback.resume_runner or callback.resume_model or self._resume_path

    def _resume_now(self):
        """Starts with a checkpoint's file; a restart's own checkpoint is newer, and is loaded after it."""
        self.first_epoch = 0
        if self._resume_path is None:
            return
        found = resumed(self._resume_path)
        if unpack_checkpoint(self, found, self._resume_path):
            self.first_epoch = self.epoch_step = int(found.get("epoch_step", 0))
            self.batch_step, self.sample_step = int(found.get("batch_step", 0)), int(found.get("sample_step", 0))
        self._resume_path = None

    def _setup_stage(self):
        self._setup_loaders()
        self._setup_components()
        self._setup_callbacks()
        self._resume_now()
        self.engine.begin_stage(self.stage_key)
        self.model, self.optimizer, self.scheduler, self.criterion = self.engine.prepare_all(
            self.model, self.optimizer, self.scheduler, self.criterion)

    # ---- over restarts ----

    def _state(self):
        """What an elastic run remembers."""
        self._settle()
        return {
            "stage": self.stage_key, "stages_done": self._stages_done, "epoch_step": self.epoch_step,
            "batch_step": self.batch_step, "sample_step": self.sample_step, "first_epoch": self.first_epoch,
            "loader_key": self.loader_key, "loader_batch_step": self.loader_batch_step,
            "loader_sample_step": self.loader_sample_step,
            "loader_metrics": self.loader_metrics, "epoch_metrics": self.epoch_metrics,
            "experiment_metrics": self.experiment_metrics,
            "callbacks": {str(key): callback.state_dict() for key, callback in self.callbacks.items()
                          if hasattr(callback, "state_dict")},
            "loggers": {str(key): logger.state_dict() for key, logger in self.loggers.items()
                        if hasattr(logger, "state_dict")},
        }

    def _restore(self):
        """After the parts of a stage are there: what was saved for it."""
        saved = self._restored
        if saved is None or saved["stage"] != self.stage_key:
            return
        self.batch_step, self.sample_step = saved["batch_step"], saved["sample_step"]
        self.first_epoch, self.epoch_step = saved["first_epoch"], saved["epoch_step"]
        self.epoch_metrics, self.loader_metrics = saved["epoch_metrics"], saved.get("loader_metrics", {})
        self.experiment_metrics = {int(key): value for key, value in saved["experiment_metrics"].items()}
        self._restore_parts(saved)

    def _restore_parts(self, saved):
        for objects, states in ((self.callbacks, saved["callbacks"]), (self.loggers, saved["loggers"])):
            for key, value in objects.items():
                if hasattr(value, "load_state_dict") and str(key) in states:
                    value.load_state_dict(states[str(key)])

    # ---- other replicas ----

    _COUNTS = ("batch_step", "sample_step", "loader_batch_step", "loader_sample_step")

    def _begin_loop(self):
        """What is counted in it can be taken back, as far as the loop may go."""
        self._places.clear()
        self._loop = library_loop(self.loader)
        self._marked = [callback for callback in map(inner_of, self.callbacks.values())
                        if isinstance(callback, OptimizerCallback)]

    def _settle(self):
        """Batches that come again, as a replica died, have not been."""
        if self._in_batch or not self._places:
            return
        index, place = self._loop.index, None
        while self._places and self._places[-1][0] >= index:
            place = self._places.pop()
        if place is None:
            return
        _, counts, marks, self.batch_metrics = place
        for name, count in zip(self._COUNTS, counts):
            setattr(self, name, count)
        for callback, mark in marks:
            callback.back(mark)

    def _overtaken(self, saved):
        """This replica is given what one that is a step ahead has."""
        self._places.clear()
        self.batch_metrics = {}
        for name in self._COUNTS:
            setattr(self, name, saved[name])
        self._restore_parts(saved)

    def _take_office(self):
        """Whoever is rank 0 has the loggers."""
        main = self.engine.is_main_process
        if main == self._main:
            return
        self._main = main
        if not main:
            self.close_log()
            self.loggers = {}
            return
        self._took_over = True
        self._setup_loggers()
        if self.batch_metrics and self.loader_batch_step > 0:  # the one before may not have come to it
            self.log_metrics(self.batch_metrics, "batch")

    def _at_boundary(self):
        """Before a batch: other replicas, or the same?"""
        self._settle()
        self._take_office()
        index, back = self._loop.index, self._loop.back
        while self._places and self._places[0][0] < back:
            self._places.popleft()
        marks = [(callback, mark) for callback in self._marked for mark in [callback.mark()] if mark is not None]
        self._places.append((index, tuple(getattr(self, name) for name in self._COUNTS), marks, self.batch_metrics))
        self._in_batch = True

    # ---- events ----

    def _run_event(self, event):
        if event.endswith("_start"):
            getattr(self, event)(self)
        for callback in self.callbacks.values():
            getattr(callback, event)(self)
        if not event.endswith("_start"):
            getattr(self, event)(self)

    def on_experiment_start(self, runner):
        """Sets everything up."""
        self.epoch_step = self.batch_step = self.sample_step = 0
        self.exception, self.need_early_stop = None, False
        self.experiment_metrics, self._stages_done, self._restored = {}, {}, None
        self.loggers = {}
        self.engine.setup()
        self.trial = self.get_trial()
        self._elastic, self._main, self._took_over = self.is_elastic, self.engine.is_main_process, False
        self._loop, self._in_batch = None, False
        if self._main:
            self._setup_loggers()
        if self._elastic:
            self._saved = RunnerState(self)
        self.stage_key = list(self.stages)[0]
        self._setup_stage()
        self.engine.join()
        if self._elastic and (self._saved.saved is not None or checkpoint.load_state(self._saved)):
            self._restored = self._saved.saved
            self._stages_done = dict(self._restored["stages_done"])
        self.log_hparams(self.hparams)
        self._known = list(self.callbacks.values())

    def on_stage_start(self, runner):
        """A stage begins; the parts of the first are there already."""

    def on_epoch_start(self, runner):
        """Seeds, and checks the loaders."""
        self.epoch_step += 1
        self.epoch_metrics = {"_epoch_": {}}
        for key, loader in self.loaders.items():
            if len(loader) == 0:
                raise RunnerError(f"loader {key!r} is empty")
        self._seed_now()

    def on_loader_start(self, runner):
        """Seeds, and puts the model into its mode."""
        kinds = [self.loader_key.startswith(kind) for kind in ("train", "valid", "infer")]
        self.is_train_loader, self.is_valid_loader, self.is_infer_loader = kinds
        if not any(kinds):
            raise RunnerError(f"loader key {self.loader_key!r}: keys start with 'train', 'valid' or 'infer'")
        self.loader_batch_size = loader_batch_size(self.loader)
        self.loader_batch_len, self.loader_sample_len = len(self.loader), loader_samples(self.loader)
        self.loader_batch_step = self.loader_sample_step = 0
        saved = self._restored
        if saved is not None and (saved["stage"], saved["epoch_step"], saved["loader_key"]) == \
                (self.stage_key, self.epoch_step, self.loader_key):
            self.loader_batch_step, self.loader_sample_step = saved["loader_batch_step"], saved["loader_sample_step"]
        self.loader_metrics, self._moments, self.batch_metrics = {}, None, {}
        if self._elastic:
            self._begin_loop()
        lazy = self.engine.device.type == "cuda" and not self._elastic
        self.meter = (LazyMeter if lazy else _core.Metrics)(f"metrics-{self.loader_key}")
        self._seed_now()
        each(self.model, lambda model: model.train(self.is_train_loader))
        if isinstance(getattr(self.loader, "sampler", None), DistributedSampler):
            self.loader.sampler.set_epoch(self.epoch_step)

    def on_batch_start(self, runner):
        """Moves the batch to the device, and counts it."""
        if self._loop is not None:
            self._at_boundary()
        self.batch = self.engine.sync_device(self.batch)
        self.batch_size = self._size_of(self.batch)
        count = self.engine.num_processes
        self.batch_step += count
        self.loader_batch_step += count
        self.sample_step += self.batch_size * count
        self.loader_sample_step += self.batch_size * count
        self.batch_metrics = {}
        self._backwards = self.engine.backwards

    def _size_of(self, batch):
        first = batch
        if isinstance(batch, dict) and batch:
            first = next(iter(batch.values()))
        elif isinstance(batch, (tuple, list)) and batch:
            first = batch[0]
        try:
            return len(first)
        except TypeError:
            raise RunnerError(f"loader {self.loader_key!r}: a batch must be a tensor, or a dict or tuple of them, not "
                              f"{type(batch).__name__}") from None

    def on_batch_end(self, runner):
        """Logs the batch's metrics."""
        if self.loggers and not self.engine.is_void:
            self.log_metrics(self.batch_metrics, "batch")

    def on_loader_end(self, runner):
        """Logs the loader's metrics."""
        self.log_metrics(self.loader_metrics, "loader")
        self.epoch_metrics[self.loader_key] = {key: float(value) for key, value in self.loader_metrics.items()}
        self.meter.free()
        self.meter = None

    def on_epoch_end(self, runner):
        """Logs the epoch's metrics."""
        self.log_metrics(self.epoch_metrics, "epoch")
        self.experiment_metrics[self.epoch_step] = dict(self.epoch_metrics)
        self.flush_log()

    def on_stage_end(self, runner):
        """A stage is over."""

    def on_experiment_end(self, runner):
        """Closes everything; ``model`` is the program's own again."""
        self.flush_log()
        self.close_log()
        self.model = each(self.model, self.engine.unwrap_model)
        if self._saved is not None:
            self._saved.finish()
            self._saved = None
        self.engine.cleanup()

    def on_exception(self, runner):
        """Raises it."""
        raise self.exception

    # ---- the loops ----

    def _run_loader(self):
        with torch.set_grad_enabled(self.is_train_loader):
            for number, self.batch in enumerate(self.loader):
                if self.need_early_stop:
                    break
                self.batch_extra = repeated(self.loader, number)
                # The last loss stays until the next is there, as in a loop by hand: what is left of its graph keeps
                # malloc from giving the end of the heap back, only to have it again in the forward pass.
                before = self.batch_metrics
                self._run_event("on_batch_start")
                with self.engine.autocast():
                    self.handle_batch(self.batch)
                del before
                self._run_event("on_batch_end")
                self._in_batch = False
                if self.need_early_stop and self.engine.is_void:
                    self.need_early_stop = False  # the batch comes again
                if self.need_early_stop:
                    break
        self.need_early_stop = False  # it was for this loop
        self._end_loop()

    def _end_loop(self):
        if self._loop is not None:
            self._take_office()
        self._loop = None
        self._places.clear()

    def _run_epoch(self, done):
        calls = _core.calls_mark() if self._elastic else 0
        for self.loader_key, self.loader in list(self.loaders.items()):
            if self.loader_key in done:  # before a restart
                self.epoch_metrics[self.loader_key] = done[self.loader_key]
                self.engine.skip(self.loader)
                continue
            self._run_event("on_loader_start")
            self._run_loader()
            self._run_event("on_loader_end")
            if self._elastic:
                _core.calls_cut(calls)  # whoever joins passes this loader over

    def _done_of_epoch(self):
        """Metrics of the loaders that were finished in this epoch before a restart."""
        saved = self._restored
        if saved is None or (saved["stage"], saved["epoch_step"]) != (self.stage_key, self.epoch_step):
            return {}
        return saved["epoch_metrics"]

    def _run_stage(self):
        used = 0
        for number in self.engine.epochs(self.first_epoch, self.num_epochs):
            self.epoch_step = number - 1
            self._run_event("on_epoch_start")
            self._run_epoch(self._done_of_epoch())
            self.loader_key = None
            self._run_event("on_epoch_end")
            used = number - self.first_epoch
            if self.need_early_stop:
                break
        return used

    def _run_experiment(self):
        for number, self.stage_key in enumerate(self.stages):
            overrides = type(self).get_stage_len is not IRunner.get_stage_len
            self._stage_len = self._call("get_stage_len") if overrides else None
            if number > 0:
                self.epoch_step = self.first_epoch = 0
                self.need_early_stop = False
                self._setup_stage()
                new = [callback for callback in self.callbacks.values() if callback not in self._known]
                self._known += new
                for callback in new:
                    callback.on_experiment_start(self)
            self._run_event("on_stage_start")
            self._restore()
            self._one_stage()
            self._run_event("on_stage_end")

    def _one_stage(self):
        if self.stage_key in self._stages_done:
            used = self._stages_done[self.stage_key]
        else:
            self._run_stage()
            used = self._stages_done[self.stage_key] = self.epoch_step - self.first_epoch
        if self.is_elastic:
            self.engine.used(used)

    def _run_local(self):
        self._run_event("on_experiment_start")
        self._run_experiment()
        for callback in self._known:
            if callback not in self.callbacks.values():
                callback.on_experiment_end(self)
        self._run_event("on_experiment_end")

    def _pick_engine(self):
        engine = self.get_engine() or default_engine()
        if not isinstance(engine, Engine):
            raise TypeError(f"engine must be an Engine of adaptdl.dl, not {type(engine).__name__}")
        if launched() or self._autoscale is not None and not isinstance(engine, DistributedDataParallelEngine):
            engine = ElasticEngine.like(engine)
        if isinstance(engine, (ElasticEngine, DistributedDataParallelEngine)):
            engine.autoscale = self._autoscale
        return engine

    def run(self):
        """Run the experiment.

        Returns:
            IRunner: self.
        """
        self.callbacks = {}
        try:
            spawn.check()
            self.engine = self._pick_engine()
            self.engine.spawn(self)
        except (Exception, KeyboardInterrupt) as error:
            self._fail(error)
        return self

    def _fail(self, error):
        """A run ends with an exception, here or in a process of ddp=True."""
        self.exception = error
        if self.meter is not None:
            self.meter.free()
            self.meter = None
        self.close_log()
        self._run_event("on_exception")

    # ---- processes of ddp=True ----

    _RESULTS = ("batch_metrics", "loader_metrics", "epoch_metrics", "experiment_metrics", "epoch_step", "batch_step",
                "sample_step")

    def _hand_over(self):
        """What the process of rank 0 gives back."""
        results = {name: to_device(getattr(self, name), "cpu") for name in self._RESULTS}
        results["batch_metrics"] = {key: float(value) for key, value in self.batch_metrics.items()}
        return results, each(self.model, lambda model: model.state_dict())

    def _take_over(self, result):
        results, states = result
        vars(self).update(results)
        self.model = self._call("get_model")
        for key, state in states.items() if isinstance(self.model, dict) else [(None, states)]:
            (self.model if key is None else self.model[key]).load_state_dict(state)
