"""The lies of PyTorch, so loud that no other process of the machine can drown them."""

from xframe.selftest import pytorch_lies

LOUD = 4.0


class SpinInDispatch(pytorch_lies.SpinInDispatch):
    share = LOUD


class SleepInDispatch(pytorch_lies.SleepInDispatch):
    share = LOUD


class SlowKernel(pytorch_lies.SlowKernel):
    share = LOUD


class NeedlessTranspose(pytorch_lies.NeedlessTranspose):
    share = LOUD


class AllocationStorm(pytorch_lies.AllocationStorm):
    share = LOUD
