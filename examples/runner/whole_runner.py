"""Everything said by methods of a runner: engine, loggers, data, model, loss, optimizer, schedule, callbacks, and
what is done with a batch."""

from torch import nn, optim
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from adaptdl import dl
from resnet9 import images, options, resnet9


class WholeRunner(dl.IRunner):
    """CIFAR-10 with a ResNet-9, in mixed precision, in several processes."""

    def __init__(self, args):
        super().__init__()
        self.args = args

    def get_engine(self):
        return dl.DistributedDataParallelEngine(amp="bf16")

    def get_loggers(self):
        return {
            "console": dl.ConsoleLogger(),
            "csv": dl.CSVLogger(logdir=self.args.logdir),
            "tensorboard": dl.TensorboardLogger(logdir=self.args.logdir),
        }

    @property
    def num_epochs(self):
        return self.args.epochs

    def get_loaders(self):
        loaders = {}
        for key in ("train", "valid"):
            dataset, sampler = images(self.args.data, key == "train"), None
            if self.engine.is_ddp:
                sampler = DistributedSampler(dataset, num_replicas=self.engine.num_processes,
                                             rank=self.engine.process_index, shuffle=key == "train")
            loaders[key] = DataLoader(dataset, batch_size=self.args.batch_size, sampler=sampler, num_workers=2)
        return loaders

    def get_model(self):
        return self.model if self.model is not None else resnet9()

    def get_criterion(self):
        return nn.CrossEntropyLoss()

    def get_optimizer(self, model):
        return optim.Adam(model.parameters(), lr=1e-3)

    def get_scheduler(self, optimizer):
        return optim.lr_scheduler.MultiStepLR(optimizer, [5, 8], gamma=0.3)

    def get_callbacks(self):
        return {
            "criterion": dl.CriterionCallback(metric_key="loss", input_key="logits", target_key="targets"),
            "backward": dl.BackwardCallback(metric_key="loss"),
            "optimizer": dl.OptimizerCallback(metric_key="loss"),
            "scheduler": dl.SchedulerCallback(loader_key="valid", metric_key="loss"),
            "accuracy": dl.AccuracyCallback(input_key="logits", target_key="targets", topk=(1, 3, 5)),
            "checkpoint": dl.CheckpointCallback(self.args.logdir, loader_key="valid", metric_key="accuracy",
                                                minimize=False, topk=3),
        }

    def handle_batch(self, batch):
        x, y = batch
        self.batch = {"features": x, "targets": y, "logits": self.model(x)}


if __name__ == "__main__":
    WholeRunner(options(__doc__)).run()
