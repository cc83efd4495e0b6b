"""Implicit GEMM whose products are of float16: a significand of 11 bits, from 2^-24 to 65504.

What is beyond 65504 becomes infinite, which the verdict does not let pass; what is below 2^-14 loses bits, which the
bound knows (``Rounding.floor``).
"""

from xframe.lowering.cuda.narrow import FLOAT16
from xframe.lowering.tensor_cores import ImplicitGemm


class GemmFp16(ImplicitGemm):
    """On tensor cores; see :class:`~xframe.lowering.tensor_cores.ImplicitGemm`."""

    name = "gemm_fp16"
    narrow = FLOAT16
