"""The same on every GPU of the machine, a process for each, by one more argument: ddp=True. (On a machine without
GPUs there are two processes.) The processes import this program, so that training stands under the last "if"."""

from adaptdl import dl
from one_call import loaders, train
from resnet9 import options

if __name__ == "__main__":
    args = options(__doc__)
    train(args, dl.SupervisedRunner(), loaders=loaders(args), ddp=True, amp=False)  # amp=True: half precision
