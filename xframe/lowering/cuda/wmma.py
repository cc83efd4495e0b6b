"""Tensor intrinsics of ``nvcuda::wmma`` for both types, registered as this is imported: ``xframe_left_tf32``.

Each is what it computes, on fragments as matrices, and the call that does it. TVM has such of its own, but none of
TF32, and their import takes some twenty seconds, as they are of every type and target.
"""

from collections.abc import Iterator

from tvm import tirx
from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T

from xframe.lowering.cuda.narrow import FLOAT16, FRAGMENT, STAND_IN, SUMS, TF32, Narrow

SIDE = FRAGMENT
LEFT, RIGHT, SUM = "wmma.matrix_a", "wmma.matrix_b", "wmma.accumulator"


def _index(buffer, stride, rows: int, columns: int):
    """Which fragment of ``buffer``, whose lines are ``stride`` long, its first element is that of."""
    line, column = buffer.elem_offset // stride, buffer.elem_offset % stride
    return line // rows * (stride // columns) + column // columns


def _copy(rows: int, columns: int, source: tuple[str, str], result: tuple[str, str]):
    """What a load or a store computes: a matrix of another type, in another scope."""
    (given, there), (made, here) = source, result

    def same(value):
        return value if given == made else tirx.Cast(made, value)

    @T.prim_func(s_tir=True)
    def described(a: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (rows, columns), given, align=64, offset_factor=columns, scope=there)
        C = T.match_buffer(c, (rows, columns), made, align=64, offset_factor=columns, scope=here)
        with T.sblock("root"):
            T.reads(A[0:rows, 0:columns])
            T.writes(C[0:rows, 0:columns])
            for i, j in T.grid(rows, columns):
                with T.sblock("copy"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = same(A[vi, vj])

    return described


def _load(narrow: Narrow, right: bool):
    """Brings a fragment of the left or right operand from shared memory."""
    rows, columns = (narrow.depth, SIDE) if right else (SIDE, narrow.depth)
    scope, stored, depth = RIGHT if right else LEFT, narrow.stored, narrow.depth

    @T.prim_func(s_tir=True)
    def done(a: T.handle, c: T.handle) -> None:
        a1, a0 = T.int32(), T.int32()
        c1, c0 = T.int32(), T.int32()
        A = T.match_buffer(
            a, (rows, columns), stored, align=64, offset_factor=columns, scope="shared", strides=[a1, a0]
        )
        C = T.match_buffer(c, (rows, columns), STAND_IN, align=64, offset_factor=columns, scope=scope, strides=[c1, c0])
        with T.sblock("root"):
            T.reads(A[0:rows, 0:columns])
            T.writes(C[0:rows, 0:columns])
            T.evaluate(
                T.tvm_load_matrix_sync(
                    C.data,
                    SIDE,
                    SIDE,
                    depth,
                    _index(C, c1, rows, columns),
                    A.access_ptr("r", ptr_type=stored),
                    a1,
                    "row_major",
                    dtype="void",
                )
            )

    return _copy(rows, columns, (stored, "shared"), (STAND_IN, scope)), done


def _clear(narrow: Narrow):
    """Sets a fragment of sums to 0."""
    depth = narrow.depth

    @T.prim_func(s_tir=True)
    def described(c: T.handle) -> None:
        C = T.match_buffer(c, (SIDE, SIDE), "float32", align=64, offset_factor=SIDE, scope=SUM)
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:SIDE, 0:SIDE])
            for i, j in T.grid(SIDE, SIDE):
                with T.sblock("clear"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = T.float32(0)

    @T.prim_func(s_tir=True)
    def done(c: T.handle) -> None:
        c1, c0 = T.int32(), T.int32()
        C = T.match_buffer(c, (SIDE, SIDE), "float32", align=64, offset_factor=SIDE, scope=SUM, strides=[c1, c0])
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:SIDE, 0:SIDE])
            T.evaluate(
                T.tvm_fill_fragment(C.data, SIDE, SIDE, depth, _index(C, c1, SIDE, SIDE), T.float32(0), dtype="void")
            )

    return described, done


def _multiply(narrow: Narrow):
    """Adds the product of two fragments to a fragment of sums."""
    depth = narrow.depth

    @T.prim_func(s_tir=True)
    def described(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (SIDE, depth), STAND_IN, align=64, offset_factor=depth, scope=LEFT)
        B = T.match_buffer(b, (depth, SIDE), STAND_IN, align=64, offset_factor=SIDE, scope=RIGHT)
        C = T.match_buffer(c, (SIDE, SIDE), "float32", align=64, offset_factor=SIDE, scope=SUM)
        with T.sblock("root"):
            T.reads(C[0:SIDE, 0:SIDE], A[0:SIDE, 0:depth], B[0:depth, 0:SIDE])
            T.writes(C[0:SIDE, 0:SIDE])
            for i, j, k in T.grid(SIDE, SIDE, depth):
                with T.sblock("multiply"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    C[vi, vj] = C[vi, vj] + T.Cast("float32", A[vi, vk]) * T.Cast("float32", B[vk, vj])

    @T.prim_func(s_tir=True)
    def done(a: T.handle, b: T.handle, c: T.handle) -> None:
        a1, a0 = T.int32(), T.int32()
        b1, b0 = T.int32(), T.int32()
        c1, c0 = T.int32(), T.int32()
        A = T.match_buffer(a, (SIDE, depth), STAND_IN, align=64, offset_factor=depth, scope=LEFT, strides=[a1, a0])
        B = T.match_buffer(b, (depth, SIDE), STAND_IN, align=64, offset_factor=SIDE, scope=RIGHT, strides=[b1, b0])
        C = T.match_buffer(c, (SIDE, SIDE), "float32", align=64, offset_factor=SIDE, scope=SUM, strides=[c1, c0])
        with T.sblock("root"):
            T.reads(C[0:SIDE, 0:SIDE], A[0:SIDE, 0:depth], B[0:depth, 0:SIDE])
            T.writes(C[0:SIDE, 0:SIDE])
            T.evaluate(
                T.tvm_mma_sync(
                    C.data,
                    _index(C, c1, SIDE, SIDE),
                    A.data,
                    _index(A, a1, SIDE, depth),
                    B.data,
                    _index(B, b1, depth, SIDE),
                    C.data,
                    _index(C, c1, SIDE, SIDE),
                    dtype="void",
                )
            )

    return described, done


def _store(narrow: Narrow):
    """Puts a fragment of sums into shared memory."""
    depth = narrow.depth

    @T.prim_func(s_tir=True)
    def done(a: T.handle, c: T.handle) -> None:
        a1, a0 = T.int32(), T.int32()
        c1, c0 = T.int32(), T.int32()
        A = T.match_buffer(a, (SIDE, SIDE), "float32", align=64, offset_factor=SIDE, scope=SUM, strides=[a1, a0])
        C = T.match_buffer(c, (SIDE, SIDE), "float32", align=64, offset_factor=SIDE, scope=SUMS, strides=[c1, c0])
        with T.sblock("root"):
            T.reads(A[0:SIDE, 0:SIDE])
            T.writes(C[0:SIDE, 0:SIDE])
            T.evaluate(
                T.tvm_store_matrix_sync(
                    A.data,
                    SIDE,
                    SIDE,
                    depth,
                    _index(A, a1, SIDE, SIDE),
                    C.access_ptr("w", ptr_type="float32"),
                    c1,
                    "row_major",
                    dtype="void",
                )
            )

    return _copy(SIDE, SIDE, ("float32", SUM), ("float32", SUMS)), done


def _intrinsics(narrow: Narrow) -> Iterator[tuple]:
    yield "left", _load(narrow, right=False)
    yield "right", _load(narrow, right=True)
    yield "clear", _clear(narrow)
    yield "multiply", _multiply(narrow)
    yield "store", _store(narrow)


for _narrow in (TF32, FLOAT16):
    for _what, _pair in _intrinsics(_narrow):
        TensorIntrin.register(f"xframe_{_what}_{_narrow.name}", *_pair, override=True)
