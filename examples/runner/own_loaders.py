"""A runner that makes its loaders itself, in each process: the data is read there, and not sent. Under a launcher
the samplers are replaced by elastic ones."""

from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from adaptdl import dl
from one_call import train
from resnet9 import images, options


class OwnLoaders(dl.SupervisedRunner):
    """Supervised training with loaders of its own."""

    def __init__(self, data, batch_size):
        super().__init__()
        self.data, self.size = data, batch_size

    def get_loaders(self):
        loaders = {}
        for key in ("train", "valid"):
            dataset, sampler = images(self.data, key == "train"), None
            if self.engine.is_ddp:
                sampler = DistributedSampler(dataset, num_replicas=self.engine.num_processes,
                                             rank=self.engine.process_index, shuffle=key == "train")
            loaders[key] = DataLoader(dataset, batch_size=self.size, sampler=sampler, num_workers=2)
        return loaders


if __name__ == "__main__":
    args = options(__doc__)
    train(args, OwnLoaders(args.data, args.batch_size), loaders=None, ddp=True)  # get_loaders makes them
