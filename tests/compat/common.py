"""What the programs of this folder share. They are run with the original package and with this one, unchanged, and
print lines "RESULT name value" that must agree."""

import torch

import adaptdl.torch as adl


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
