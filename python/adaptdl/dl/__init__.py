"""The runner: one call trains a model with progress, metrics, checkpoints and logs::

    from adaptdl import dl

    runner = dl.SupervisedRunner()
    runner.train(model=model, criterion=criterion, optimizer=optimizer, loaders={"train": train, "valid": valid},
                 logdir="logs", num_epochs=10, valid_loader="valid", valid_metric="loss",
                 minimize_valid_metric=True, verbose=True)

``ddp=True`` trains on all GPUs of the machine, a process for each. Under ``adaptdl run`` or as a job of a
cluster the same program is elastic: it grows, shrinks and survives a kill, and sees each example once.
"""

from adaptdl.dl.callback import (
    Callback, CallbackOrder, CallbackWrapper, IBackwardCallback, ICallback, ICheckpointCallback,
    ICriterionCallback, IMetricCallback, IOptimizerCallback, ISchedulerCallback,
)
from adaptdl.dl.callbacks import (
    AccuracyCallback, BackwardCallback, BatchOverfitCallback, CheckRunCallback, CriterionCallback,
    EarlyStoppingCallback, FunctionalMetricCallback, MetricAggregationCallback, OptimizerCallback,
    PeriodicLoaderCallback, ProfilerCallback, SchedulerCallback, TimerCallback, accuracy,
)
from adaptdl.dl.checkpoint import CheckpointCallback
from adaptdl.dl.elastic import ElasticEngine
from adaptdl.dl.engine import (
    AMPEngine, CPUEngine, DataParallelAMPEngine, DataParallelEngine, DeviceEngine,
    DistributedDataParallelAMPEngine, DistributedDataParallelEngine, Engine, GPUAMPEngine, GPUEngine,
)
from adaptdl.dl.loggers import CSVLogger, ConsoleLogger, ILogger, ReportLogger, TensorboardLogger
from adaptdl.dl.progress import TqdmCallback
from adaptdl.dl.runner import IRunner, IRunnerError, RunnerError, set_global_seed
from adaptdl.dl.supervised import ISupervisedRunner, Runner, SupervisedRunner

__all__ = [
    "AMPEngine", "AccuracyCallback", "BackwardCallback", "BatchOverfitCallback", "CPUEngine", "CSVLogger", "Callback",
    "CallbackOrder", "CallbackWrapper", "CheckRunCallback", "CheckpointCallback", "ConsoleLogger",
    "CriterionCallback", "DataParallelAMPEngine", "DataParallelEngine", "DeviceEngine",
    "DistributedDataParallelAMPEngine", "DistributedDataParallelEngine", "EarlyStoppingCallback", "ElasticEngine",
    "Engine", "FunctionalMetricCallback", "GPUAMPEngine", "GPUEngine", "IBackwardCallback", "ICallback",
    "ICheckpointCallback", "ICriterionCallback", "ILogger", "IMetricCallback", "IOptimizerCallback", "IRunner",
    "IRunnerError", "ISchedulerCallback", "ISupervisedRunner", "MetricAggregationCallback", "OptimizerCallback",
    "PeriodicLoaderCallback", "ProfilerCallback", "ReportLogger", "Runner", "RunnerError", "SchedulerCallback",
    "SupervisedRunner", "TensorboardLogger", "TimerCallback", "TqdmCallback", "accuracy", "set_global_seed",
]
