"""Runners whose parts are given to one call: :class:`Runner`, and :class:`SupervisedRunner` for pairs of input and
target."""

import os

import torch

from adaptdl.dl.callback import (
    IBackwardCallback, ICheckpointCallback, ICriterionCallback, IOptimizerCallback, ISchedulerCallback, callback_is,
    sort_callbacks,
)
from adaptdl.dl.callbacks import (
    BackwardCallback, BatchOverfitCallback, CheckRunCallback, CriterionCallback, OptimizerCallback,
    ProfilerCallback, SchedulerCallback, TimerCallback,
)
from adaptdl.dl.checkpoint import CheckpointCallback, resumed, unpack_checkpoint
from adaptdl.dl.engine import Engine, default_engine, each
from adaptdl.dl.loggers import CSVLogger, ConsoleLogger, TensorboardLogger
from adaptdl.dl.progress import TqdmCallback
from adaptdl.dl.runner import IRunner, RunnerError, set_global_seed

__all__ = ["ISupervisedRunner", "Runner", "SupervisedRunner"]


class Runner(IRunner):
    """A runner whose parts are given to :meth:`train`. What a batch is for is said in :meth:`handle_batch`,
    losses and steps included, or by callbacks.

    Args:
        model (torch.nn.Module or dict): The model, or several by key.
        engine (Engine): Where to run.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._seed, self._hparams, self._num_epochs, self._trial = 42, None, 1, None
        self._own_engine = self.engine  # each call of train picks anew where there is none
        self._engine = self._model = self._loaders = None
        self._criterion = self._optimizer = self._scheduler = None
        self._callbacks = self._loggers = None
        self._logdir = self._valid_loader = self._valid_metric = self._minimize_valid_metric = None
        self._verbose = self._timeit = self._check = self._overfit = self._profile = False
        self._load_best_on_end = False

    seed = property(lambda self: self._seed, doc="The number that random numbers start from.")
    hparams = property(lambda self: self._hparams or {}, doc="Hyperparameters, for loggers.")
    num_epochs = property(lambda self: self._stage_len if self._stage_len is not None else self._num_epochs,
                          doc="How many epochs there are.")

    def get_engine(self):
        """The engine given to train."""
        return self._engine

    def get_trial(self):
        """The trial given to train."""
        return self._trial

    def get_loggers(self):
        """The loggers given to train; the console's, and with ``logdir`` CSV and TensorBoard, unless there is
        one of the kind."""
        loggers = dict(self._loggers or {})

        def add(name, kind, *args, **kwargs):
            if not any(isinstance(logger, kind) for logger in loggers.values()):
                loggers[name] = kind(*args, **kwargs)

        add("_console", ConsoleLogger)
        if self._logdir is not None:
            add("_csv", CSVLogger, self._logdir, use_logdir_postfix=True)
            add("_tensorboard", TensorboardLogger, self._logdir, use_logdir_postfix=True)
        return loggers

    def get_loaders(self):
        """The loaders given to train."""
        return self._loaders

    def get_model(self):
        """The model given to train, or to the runner."""
        return self._model

    def get_criterion(self):
        """The criterion given to train."""
        return self._criterion

    def get_optimizer(self, model):
        """The optimizer given to train."""
        return self._optimizer

    def get_scheduler(self, optimizer):
        """The schedule given to train."""
        return self._scheduler

    def get_callbacks(self):
        """The callbacks given to train, and those that its arguments ask for."""
        callbacks = sort_callbacks(self._callbacks)

        def add(wanted, name, kind, base=None, **kwargs):
            if wanted and not any(callback_is(callback, base or kind) for callback in callbacks.values()):
                callbacks[name] = kind(**kwargs)

        add(self._verbose, "_verbose", TqdmCallback)
        add(self._timeit, "_timer", TimerCallback)
        add(self._check, "_check", CheckRunCallback)
        add(self._overfit, "_overfit", BatchOverfitCallback)
        add(self._profile, "_profile", ProfilerCallback,
            logdir=os.path.join(self._logdir, "tb_profile") if self._logdir is not None else None)
        if self._logdir is not None:
            add(True, "_checkpoint", CheckpointCallback, base=ICheckpointCallback,
                logdir=os.path.join(self._logdir, "checkpoints"), loader_key=self._valid_loader,
                metric_key=self._valid_metric, minimize=self._minimize_valid_metric,
                load_best_on_end=self._load_best_on_end)
        return callbacks

    def train(self, *, loaders=None, model=None, engine=None, criterion=None, optimizer=None, scheduler=None,
              callbacks=None, loggers=None, seed=42, hparams=None, num_epochs=1, logdir=None, resume=None,
              valid_loader=None, valid_metric=None, minimize_valid_metric=None, verbose=False, timeit=False,
              check=False, overfit=False, profile=False, load_best_on_end=False, cpu=False, fp16=False, ddp=False,
              amp=False, apex=False, trial=None, max_batch_size=None, local_bsz_bounds=None,
              gradient_accumulation=False):
        """Train the model.

        Args:
            loaders (dict): DataLoaders by key; keys start with train, valid or infer. May be None where
                ``get_loaders`` is overridden.
            model (torch.nn.Module or dict): What is trained.
            engine (Engine): Where; None: by ``cpu``, ``ddp`` and what the machine has. Under an AdaptDL
                launcher the run is elastic, whatever is given.
            criterion, optimizer, scheduler: The loss function, the optimizer of the model's parameters, and
                its learning-rate schedule.
            callbacks (list or dict): Further callbacks.
            loggers (dict): Further loggers, by name.
            seed (int): The number that random numbers start from.
            hparams (dict): Hyperparameters, for loggers.
            num_epochs (int): How many epochs.
            logdir (str): Where checkpoints and logs go; None: nowhere.
            resume (str or dict): A checkpoint's file (or what ``load_checkpoint`` gave) to start with: a model's parameters, or everything
                (``CheckpointCallback(mode="runner")``), and then the epochs go on from there.
            valid_loader, valid_metric (str): The metric by which epochs are compared.
            minimize_valid_metric (bool): Whether less of it is better.
            verbose (bool): Whether to show how far it is.
            timeit (bool): Whether to measure the times of batches.
            check (bool): Whether to run three batches of three epochs only, to see that everything works.
            overfit (bool): Whether to train on the same batch again and again.
            profile (bool): Whether to run PyTorch's profiler in the first epoch.
            load_best_on_end (bool): Whether the model has the parameters of the best epoch at the end; needs
                ``logdir`` and a metric.
            cpu (bool): Whether to leave GPUs alone.
            fp16, amp (bool or str): Mixed precision: True for half precision, "bf16" for bfloat16.
            apex (bool): The same as ``amp``.
            ddp (bool): Whether to start a process for each GPU (two on a processor).
            trial: Kept as ``runner.trial``.
            max_batch_size (int): Lets the total batch size adapt, up to this; the run is elastic then.
            local_bsz_bounds (tuple): The smallest and largest batch size on each replica.
            gradient_accumulation (bool): Whether several batches may make one step of a larger one.

        Raises:
            TypeError, ValueError: If an argument is wrong.
        """
        if isinstance(num_epochs, bool) or not isinstance(num_epochs, int) or num_epochs < 0:
            raise ValueError(f"num_epochs must be an int of at least 0, not {num_epochs!r}")
        if load_best_on_end and logdir is None and not callbacks:
            raise ValueError("load_best_on_end needs logdir, where the best is kept")
        if max_batch_size is None and (local_bsz_bounds is not None or gradient_accumulation):
            raise ValueError("local_bsz_bounds and gradient_accumulation need max_batch_size")
        precision = amp or fp16 or apex
        self._engine = engine or self._own_engine or default_engine(cpu, precision, ddp)
        self._trial, self._loggers, self._loaders = trial, loggers, loaders
        self._model = model if model is not None else self.model
        self._criterion, self._optimizer, self._scheduler = criterion, optimizer, scheduler
        self._callbacks, self._seed, self._hparams, self._num_epochs = callbacks, seed, hparams, num_epochs
        self._logdir = str(logdir) if logdir is not None else None
        self._resume_path = resume
        self._valid_loader, self._valid_metric = valid_loader, valid_metric
        self._minimize_valid_metric = minimize_valid_metric
        self._verbose, self._timeit, self._check, self._overfit = verbose, timeit, check, overfit
        self._profile, self._load_best_on_end = profile, load_best_on_end
        self._autoscale = None
        if max_batch_size is not None:
            self._autoscale = (max_batch_size, local_bsz_bounds, gradient_accumulation)
        self._check_keys()
        self.run()

    def _check_keys(self):
        """The loader of the valid metric is one of the loaders."""
        if self._valid_loader is None or self._loaders is None or not hasattr(self._loaders, "keys"):
            return
        if self._valid_loader not in self._loaders:
            raise ValueError(f"valid_loader {self._valid_loader!r} is none of the loaders: "
                             f"{', '.join(map(repr, self._loaders))}")

    def predict_batch(self, batch, **kwargs):
        """The model's answer to a batch. To be overridden."""
        raise NotImplementedError("override predict_batch()")

    def predict_loader(self, *, loader, model=None, engine=None, seed=42, resume=None, cpu=False, fp16=False,
                       amp=False):
        """The model's answers to a loader's batches, one after the other.

        Args:
            loader (DataLoader): The data.
            model (torch.nn.Module): The model; None: the runner's.
            engine (Engine): Where; None: the processor or a GPU.
            seed (int): The number that random numbers start from.
            resume (str): A checkpoint's file to take the model's parameters from.
            cpu (bool): Whether to leave GPUs alone.
            fp16, amp (bool or str): Mixed precision.

        Yields:
            What :meth:`predict_batch` gives.
        """
        precision = fp16 or amp
        self.engine = engine or (default_engine(True, precision) if cpu or not torch.cuda.is_available()
                                 else Engine("cuda", precision))
        if model is not None:
            self.model = model
        if self.model is None:
            raise ValueError("predict_loader: there is no model; give it as model=")
        self.engine.setup()
        self.model = each(self.model, self.engine.unwrap_model)
        if resume is not None:
            unpack_checkpoint(self, resumed(resume), resume, ("model",))
        each(self.model, lambda part: part.to(self.engine.device).train(False))
        set_global_seed(seed)
        for batch in loader:
            with torch.no_grad(), self.engine.autocast():
                answer = self.predict_batch(self.engine.sync_device(batch))
            yield answer

    def evaluate_loader(self, loader, callbacks=None, model=None, engine=None, seed=42, verbose=False):
        """The metrics of a model on a loader's data.

        Args:
            loader (DataLoader): The data.
            callbacks (list or dict): What computes the metrics.
            model (torch.nn.Module): The model; None: the runner's.
            engine (Engine): Where; None: the runner's.
            seed (int): The number that random numbers start from.
            verbose (bool): Whether to show how far it is.

        Returns:
            dict: The metrics.
        """
        for key, callback in sort_callbacks(callbacks).items():
            if callback_is(callback, ICheckpointCallback):
                raise RunnerError(f"evaluate_loader: callback {key!r} is a {type(callback).__name__}; there is nothing "
                                  "to save")
        if model is None and self.model is None:
            raise ValueError("evaluate_loader: there is no model; give it as model=")
        self.train(loaders={"valid": loader}, model=model, engine=engine or self._engine, callbacks=callbacks, num_epochs=1,
                   valid_loader="valid", seed=seed, verbose=verbose)
        return dict(self.loader_metrics)


class ISupervisedRunner(Runner):
    """What is done with a batch in supervised training: ``batch[output_key] = model(batch[input_key])``.

    Args:
        input_key (str or list or None): Keys of the model's arguments: one; several, given by name; None: all
            of the batch.
        output_key (str or list or None): Where its output goes: one value; several; None: it is a dict.
        target_key (str): The target's key.
        loss_key (str): The loss's key.
    """

    def __init__(self, input_key="features", output_key="logits", target_key="targets", loss_key="loss", **kwargs):
        for name, key in (("input_key", input_key), ("output_key", output_key)):
            if key is not None and not isinstance(key, (str, list, tuple)):
                raise TypeError(f"{name} must be a str, a list of them, or None, not {key!r}")
        super().__init__(**kwargs)
        self._input_key, self._output_key = input_key, output_key
        self._target_key, self._loss_key = target_key, loss_key

    def _process_batch(self, batch):
        if isinstance(batch, dict):
            return batch
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            what = f"{len(batch)} things" if isinstance(batch, (tuple, list)) else f"a {type(batch).__name__}"
            raise RunnerError(f"loader {self.loader_key!r}: a batch must be a pair (input, target) or a dict, and is "
                              f"{what}")
        if not isinstance(self._input_key, str):
            raise RunnerError(f"loader {self.loader_key!r}: with input_key={self._input_key!r} a batch must be a dict, "
                              "and is a pair")
        return {self._input_key: batch[0], self._target_key: batch[1]}

    def _input(self, batch):
        if self._input_key is None:
            return (), batch
        keys = [self._input_key] if isinstance(self._input_key, str) else list(self._input_key)
        for key in keys:
            if key not in batch:
                raise RunnerError(f"loader {self.loader_key!r}: the batch has no {key!r} (input_key); there are: "
                                  f"{', '.join(sorted(map(str, batch)))}")
        if isinstance(self._input_key, str):
            return (batch[self._input_key],), {}
        return (), {key: batch[key] for key in keys}

    def forward(self, batch, **kwargs):
        """The model's output for a batch, as a dict.

        Args:
            batch (dict): The batch.
            **kwargs: Further arguments of the model.
        """
        args, named = self._input(batch)
        output = self.model(*args, **named, **kwargs)
        if isinstance(self._output_key, str):
            return {self._output_key: output}
        if self._output_key is not None:
            if len(output) != len(self._output_key):
                raise RunnerError(f"the model gives {len(output)} outputs, and output_key has {len(self._output_key)}: "
                                  f"{', '.join(self._output_key)}")
            return dict(zip(self._output_key, output))
        if not isinstance(output, dict):
            raise RunnerError(f"with output_key=None the model must give a dict, not {type(output).__name__}")
        return output

    def on_batch_start(self, runner):
        """Makes the batch a dict."""
        self.batch = self._process_batch(self.batch)
        super().on_batch_start(runner)

    def handle_batch(self, batch):
        """The model's output joins the batch."""
        self.batch = {**batch, **self.forward(batch)}


class SupervisedRunner(ISupervisedRunner):
    """Supervised training: a batch is a pair (input, target), or a dict. Callbacks for loss, backward pass,
    optimizer and schedule are added where these are given and no such callback is::

        runner = dl.SupervisedRunner()
        runner.train(model=model, criterion=criterion, optimizer=optimizer, scheduler=scheduler,
                     loaders={"train": train_loader, "valid": valid_loader}, logdir="logs", num_epochs=10,
                     valid_loader="valid", valid_metric="loss", minimize_valid_metric=True, verbose=True)

    Args:
        model (torch.nn.Module): The model.
        engine (Engine): Where to run.
        input_key, output_key, target_key, loss_key: As for :class:`ISupervisedRunner`.
    """

    def __init__(self, model=None, engine=None, input_key="features", output_key="logits", target_key="targets",
                 loss_key="loss"):
        super().__init__(input_key, output_key, target_key, loss_key, model=model, engine=engine)

    def predict_batch(self, batch, **kwargs):
        """The model's output for a batch, as a dict; a batch that is no dict is the input, alone or before the
        target."""
        if not isinstance(batch, dict):
            batch = {self._input_key: batch[0] if isinstance(batch, (tuple, list)) else batch}
        return self.forward(batch, **kwargs)

    def get_callbacks(self):
        """Those of :class:`Runner`, and those of supervised training."""
        callbacks = dict(super().get_callbacks())

        def add(part, name, kind, make):
            if part is not None and not isinstance(part, dict) and \
                    not any(callback_is(callback, kind) for callback in callbacks.values()):
                callbacks[name] = make()

        add(self._criterion, "_criterion", ICriterionCallback,
            lambda: CriterionCallback(self._output_key, self._target_key, self._loss_key))
        add(self._optimizer, "_backward", IBackwardCallback, lambda: BackwardCallback(self._loss_key))
        add(self._optimizer, "_optimizer", IOptimizerCallback, lambda: OptimizerCallback(self._loss_key))
        pair = (self._valid_loader, self._valid_metric)
        pair = pair if None not in pair else (None, None)
        add(self._scheduler, "_scheduler", ISchedulerCallback,
            lambda: SchedulerCallback(loader_key=pair[0], metric_key=pair[1]))
        return callbacks
