from typing import Optional

from adaptdl.torch.accumulator import Accumulator as Accumulator
from adaptdl.torch.data import AdaptiveDataLoader as AdaptiveDataLoader
from adaptdl.torch.data import ElasticSampler as ElasticSampler
from adaptdl.torch.data import current_dataloader as current_dataloader
from adaptdl.torch.epoch import current_epoch as current_epoch
from adaptdl.torch.epoch import finished_epochs as finished_epochs
from adaptdl.torch.epoch import remaining_epochs_until as remaining_epochs_until
from adaptdl.torch.parallel import AdaptiveDataParallel as AdaptiveDataParallel
from adaptdl.torch.trainer import AdaptDLTorchTrainer as AdaptDLTorchTrainer

__all__: list[str]

def init_process_group(
    backend: str,
    init_method: Optional[str] = None,
    world_size: Optional[int] = None,
    rank: Optional[int] = None,
) -> None: ...
def version_check(version: Optional[str]) -> bool: ...
