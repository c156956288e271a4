"""What the programs of this folder share. They are run with the original package and with this one, unchanged, and
print lines "RESULT name value" that must agree."""

import os

import torch

import adaptdl.torch as adl

if os.environ.get("ADL_COMPAT_FIRST_STEP"):
    # The original believes that its first batch is as large as if each replica had a whole one, and learns better
    # from the first backward pass: its first step is too long. Here it is told before.
    _init = adl.AdaptiveDataParallel.__init__

    def _told(self, *args, **kwargs):
        _init(self, *args, **kwargs)
        self.gns.set_accum_scale(1.0)

    adl.AdaptiveDataParallel.__init__ = _told


def result(name, value):
    if isinstance(value, torch.Tensor):
        value = value.detach().tolist()
    print("RESULT", name, repr(value), flush=True)


def weights(name, model):
    for key, value in model.state_dict().items():
        result(f"{name}.{key}", value)


def begin(seed=1):
    adl.init_process_group("gloo")
    torch.manual_seed(seed)
