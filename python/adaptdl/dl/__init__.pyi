from adaptdl.dl.callback import (
    Callback as Callback, CallbackOrder as CallbackOrder, CallbackWrapper as CallbackWrapper,
    IBackwardCallback as IBackwardCallback, ICallback as ICallback, ICheckpointCallback as ICheckpointCallback,
    ICriterionCallback as ICriterionCallback, IMetricCallback as IMetricCallback,
    IOptimizerCallback as IOptimizerCallback, ISchedulerCallback as ISchedulerCallback,
)
from adaptdl.dl.callbacks import (
    AccuracyCallback as AccuracyCallback, BackwardCallback as BackwardCallback,
    BatchOverfitCallback as BatchOverfitCallback, CheckRunCallback as CheckRunCallback,
    CriterionCallback as CriterionCallback, EarlyStoppingCallback as EarlyStoppingCallback,
    FunctionalMetricCallback as FunctionalMetricCallback, MetricAggregationCallback as MetricAggregationCallback,
    OptimizerCallback as OptimizerCallback, PeriodicLoaderCallback as PeriodicLoaderCallback,
    ProfilerCallback as ProfilerCallback, SchedulerCallback as SchedulerCallback, TimerCallback as TimerCallback,
    accuracy as accuracy,
)
from adaptdl.dl.checkpoint import CheckpointCallback as CheckpointCallback
from adaptdl.dl.elastic import ElasticEngine as ElasticEngine
from adaptdl.dl.engine import (
    AMPEngine as AMPEngine, CPUEngine as CPUEngine, DataParallelAMPEngine as DataParallelAMPEngine,
    DataParallelEngine as DataParallelEngine, DeviceEngine as DeviceEngine,
    DistributedDataParallelAMPEngine as DistributedDataParallelAMPEngine,
    DistributedDataParallelEngine as DistributedDataParallelEngine, Engine as Engine, GPUAMPEngine as GPUAMPEngine,
    GPUEngine as GPUEngine,
)
from adaptdl.dl.loggers import (
    CSVLogger as CSVLogger, ConsoleLogger as ConsoleLogger, ILogger as ILogger, ReportLogger as ReportLogger,
    TensorboardLogger as TensorboardLogger,
)
from adaptdl.dl.progress import TqdmCallback as TqdmCallback
from adaptdl.dl.runner import (
    IRunner as IRunner, IRunnerError as IRunnerError, RunnerError as RunnerError, set_global_seed as set_global_seed,
)
from adaptdl.dl.supervised import (
    ISupervisedRunner as ISupervisedRunner, Runner as Runner, SupervisedRunner as SupervisedRunner,
)

__all__: list[str]
