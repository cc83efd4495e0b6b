"""Putting a lowering's stages into a Relax function."""

import numpy as np
from tvm import relax

from xframe.lowering.stage import Stage

#: PrimFunc attributes that tie a kernel to its convolution; the proof that a plan was honoured reads them.
SITE, LOWERING = "xframe.site", "xframe.lowering"
OPAQUE = 8  # TVM's OpPatternKind: not to be fused into


def reshaped(builder: relax.BlockBuilder, x: relax.Expr, shape: tuple[int, ...]) -> relax.Expr:
    """``x`` seen with another shape; row-major, so nothing moves."""
    return x if dims(x) == tuple(shape) else builder.emit(relax.op.reshape(x, shape))


def dims(x: relax.Expr) -> tuple[int, ...]:
    return tuple(int(d) for d in x.ty.shape)


def emit_stages(builder: relax.BlockBuilder, x: relax.Expr, stages: list[Stage], name: str, attrs: dict[str, str]):
    """Call the stages one after the other on ``x``; each PrimFunc is named ``<name>_<role>`` and carries ``attrs``."""
    for stage in stages:
        func = stage.scheduled().without_attr("global_symbol").with_attr("tirx.is_scheduled", True)
        func = func.with_attr("op_pattern", OPAQUE)
        for key, value in attrs.items():
            func = func.with_attr(key, value)
        shape = tuple(int(d) for d in func.params[0].shape)
        constants = [relax.const(np.ascontiguousarray(c, dtype=np.float32), "float32") for c in stage.constants]
        var = builder.add_func(func, f"{name}_{stage.role}")
        call = relax.call_tir(var, [reshaped(builder, x, shape), *constants], relax.TensorType(stage.shape, "float32"))
        x = builder.emit(call)
    return x
