"""Implicit GEMM whose products are of TF32: float32 with a significand of 11 bits."""

from xframe.lowering.cuda.narrow import TF32
from xframe.lowering.tensor_cores import ImplicitGemm


class GemmTf32(ImplicitGemm):
    """On tensor cores; see :class:`~xframe.lowering.tensor_cores.ImplicitGemm`."""

    name = "gemm_tf32"
    narrow = TF32
