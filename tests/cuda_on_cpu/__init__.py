"""CUDA kernels that TVM generates, run on the CPU and checked on the way: see README.md."""

from tests.cuda_on_cpu.shim import Shim, call, cuda_text, run, target

__all__ = ["Shim", "call", "cuda_text", "run", "target"]
