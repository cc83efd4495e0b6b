"""One record of MetaSchedule's database, and which of its instructions a log may have.

A trace is a program: replayed, it can do to a kernel whatever a schedule can. Most of that only reorders loops, but an
annotation can import code of its author's into the kernel (``pragma_import_llvm``), and some instructions change types
or hide accesses from the checks. So only what templates, for CPUs and GPUs, and MetaSchedule's own space for CPUs are
made of is let through. Of the layout of a buffer only the map is judged here; that it is one of the kernel's own is
where it is replayed (``xframe.lowering.stage.replayed``).
"""

import json
from typing import Any

from xframe.schedules import index_map
from xframe.schedules.untrusted import LogError, parsed

#: What traces are made of: the choices, the lookups, and the transformations that keep the function what it is.
INSTRUCTIONS = frozenset(
    {
        "SampleCategorical", "SamplePerfectTile", "SampleComputeLocation",
        "GetSBlock", "GetLoops", "GetChildBlocks", "GetProducers", "GetConsumers", "GetOutputBlocks",
        "Fuse", "Split", "Reorder", "AddUnitLoop", "Parallel", "Vectorize", "Unroll",
        "CacheRead", "CacheWrite", "SetScope",
        "ComputeAt", "ReverseComputeAt", "ComputeInline", "ReverseComputeInline",
        "DecomposeReduction", "RFactor", "Annotate", "Unannotate", "EnterPostproc",
        "Bind", "ReIndex", "TransformLayout", "StorageAlign", "Tensorize",
    }
)  # fmt: skip
#: Annotations: the marks of products that fetch ahead, how far to unroll, MetaSchedule's notes to itself; and on GPUs
#: which steps of a loop overlap, and what is in shared memory twice for that.
ANNOTATIONS = frozenset(
    {
        "xframe.fetch_ahead", "xframe.again", "xframe.block", "xframe.row",
        "pragma_auto_unroll_max_step", "pragma_unroll_explicit", "pragma_unroll_implicit",
        "meta_schedule.parallel", "meta_schedule.vectorize", "meta_schedule.unroll_explicit",
        "meta_schedule.unroll_implicit", "meta_schedule.tiling_structure", "meta_schedule.random_compute_producer",
        "meta_schedule.inline_rule", "meta_schedule.layout_rewrite_preproc",
        "software_pipeline_stage", "software_pipeline_order", "double_buffer_scope",
        "tirx.manifest_shared_memory_local_stage",
    }
)  # fmt: skip
#: How names of intrinsics begin that xframe registers with TVM: no other is let through.
INTRINSIC = "xframe_"
MOST_INSTRUCTIONS = 5000
#: Of StorageAlign: the largest step between rows in memory, in values.
MOST_ALIGNED = 1024
_NOT = "which no schedule of xframe has: not replayed"


def checked(text: str, where: str) -> list[Any]:
    """``[[instructions, decisions], seconds, target, arguments]``: the record in ``text``, which may have a workload's
    number before it, as a line of the table of records has.

    Raises
    ------
    LogError
        It is no such record, or has an instruction or annotation that a log may not have.
    """
    data = parsed(text, where)
    if isinstance(data, list) and len(data) == 2 and type(data[0]) is int:
        data = data[1]
    if not (isinstance(data, list) and len(data) == 4 and isinstance(data[0], list) and len(data[0]) == 2):
        raise LogError(f"{where} is no record of MetaSchedule's")
    instructions, decisions = data[0]
    if not isinstance(instructions, list) or not isinstance(decisions, list) or len(instructions) > MOST_INSTRUCTIONS:
        raise LogError(f"{where} has no trace of at most {MOST_INSTRUCTIONS} instructions")
    for one in instructions:
        if not (isinstance(one, list) and len(one) == 4 and isinstance(one[0], str) and isinstance(one[2], list)):
            raise LogError(f"{where} has an instruction that is none")
        if one[0] not in INSTRUCTIONS:
            raise LogError(f"{where} has the instruction {one[0][:40]!a}, {_NOT}")
        if one[0] in _CHECKS:
            _CHECKS[one[0]](one, where)
    return data


def _first(instruction: list[Any]) -> str:
    """The first argument as text, which of what is no text is no name."""
    return str(instruction[2][0]) if instruction[2] else ""


def _check_annotation(instruction: list[Any], where: str) -> None:
    if (name := _first(instruction)) not in ANNOTATIONS:
        raise LogError(f"{where} has the annotation {name[:40]!a}, {_NOT}")


def _check_intrinsic(instruction: list[Any], where: str) -> None:
    if not (name := _first(instruction)).startswith(INTRINSIC):
        raise LogError(f"{where} has the intrinsic {name[:40]!a}, {_NOT}")


def _check_layout(instruction: list[Any], where: str) -> None:
    """A layout with gaps would have to be filled; of one that claims to have none, TVM believes it."""
    _, inputs, given, _ = instruction
    if not isinstance(inputs, list) or len(inputs) != 2:
        raise LogError(f"{where} has a layout without a map")
    index_map.check(inputs[1], f"a layout in {where}")
    if len(given) != 4 or given[2] is not None or given[3] != 0:
        raise LogError(f"{where} has a layout with gaps, {_NOT}")


def _check_alignment(instruction: list[Any], where: str) -> None:
    if not all(type(n) is int and abs(n) <= MOST_ALIGNED for n in instruction[2]):
        raise LogError(f"{where} aligns rows by more than {MOST_ALIGNED} values, {_NOT}")


#: Of an instruction that does harm with some arguments, what raises LogError on them.
_CHECKS = {
    "Annotate": _check_annotation,
    "Tensorize": _check_intrinsic,
    "TransformLayout": _check_layout,
    "StorageAlign": _check_alignment,
}


def trace(record: str) -> str:
    """The trace of a record, as JSON, as ``xframe.types.Tuned`` has it."""
    return json.dumps(checked(record, "the record")[0])


def workload(line: str, where: str) -> None:
    """Raises LogError unless ``line`` is a line of the table of workloads: ``[hash, module]``, both text."""
    data = parsed(line, where)
    if not (isinstance(data, list) and len(data) == 2 and all(isinstance(x, str) for x in data) and data[0].isdigit()):
        raise LogError(f"{where} is no workload of MetaSchedule's")
