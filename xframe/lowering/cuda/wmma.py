"""Tensor intrinsics of ``nvcuda::wmma`` for both types, registered as this is imported: ``xframe_left_tf32``.

To be imported where one is used, as the import of TVM's own takes its time.
"""

from tvm import tirx
from tvm.s_tir import TensorIntrin
from tvm.s_tir.tensor_intrin.cuda import (
    get_wmma_fill_intrin,
    get_wmma_fragment_index,
    get_wmma_store_intrin,
    get_wmma_sync_intrin,
)
from tvm.script import tirx as T

from xframe.lowering.cuda.narrow import FLOAT16, FRAGMENT, STAND_IN, SUMS, TF32, Narrow


def _load(narrow: Narrow, right: bool):
    """The intrinsic that brings a fragment of the left or right operand from shared memory."""
    rows, columns = (narrow.depth, FRAGMENT) if right else (FRAGMENT, narrow.depth)
    scope, stored, depth = f"wmma.matrix_{'b' if right else 'a'}", narrow.stored, narrow.depth

    def same(value):
        return value if stored == STAND_IN else tirx.Cast(STAND_IN, value)

    @T.prim_func(s_tir=True)
    def described(a: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (rows, columns), stored, align=64, offset_factor=columns, scope="shared")
        C = T.match_buffer(c, (rows, columns), STAND_IN, align=64, offset_factor=columns, scope=scope)
        with T.sblock("root"):
            T.reads(A[0:rows, 0:columns])
            T.writes(C[0:rows, 0:columns])
            for i, j in T.grid(rows, columns):
                with T.sblock("load"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = same(A[vi, vj])

    @T.prim_func(s_tir=True)
    def done(a: T.handle, c: T.handle) -> None:
        s1 = T.int32()
        s0 = T.int32()
        d1 = T.int32()
        d0 = T.int32()
        A = T.match_buffer(
            a, (rows, columns), stored, align=64, offset_factor=columns, scope="shared", strides=[s1, s0]
        )
        C = T.match_buffer(c, (rows, columns), STAND_IN, align=64, offset_factor=columns, scope=scope, strides=[d1, d0])
        with T.sblock("root"):
            T.reads(A[0:rows, 0:columns])
            T.writes(C[0:rows, 0:columns])
            T.evaluate(
                T.tvm_load_matrix_sync(
                    C.data,
                    FRAGMENT,
                    FRAGMENT,
                    depth,
                    get_wmma_fragment_index(C, d1, rows, columns),
                    A.access_ptr("r", ptr_type=stored),
                    s1,
                    "row_major",
                    dtype="void",
                )
            )

    return described, done


for _narrow in (TF32, FLOAT16):
    _shape = FRAGMENT, FRAGMENT, _narrow.depth
    for _what, _pair in {
        "left": _load(_narrow, False),
        "right": _load(_narrow, True),
        "clear": get_wmma_fill_intrin(*_shape, "float32"),
        "multiply": get_wmma_sync_intrin(*_shape, STAND_IN, "float32", False),
        "store": get_wmma_store_intrin(*_shape, "float32", SUMS),
    }.items():
        TensorIntrin.register(f"xframe_{_what}_{_narrow.name}", *_pair, override=True)
