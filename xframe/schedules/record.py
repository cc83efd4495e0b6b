"""One record of MetaSchedule's database, and which of its instructions a log may have.

A trace is a program: replayed, it can do to a kernel whatever a schedule can. Most of that only reorders loops, but an
annotation can import code of its author's into the kernel (``pragma_import_llvm``), and some instructions change types
or hide accesses from the checks. So only what templates, for CPUs and GPUs, and MetaSchedule's own space for CPUs are
made of is let through.
"""

import json
from typing import Any

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
        "Bind", "ReIndex",
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
MOST_INSTRUCTIONS = 5000
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
        if one[0] == "Annotate" and not (one[2] and isinstance(one[2][0], str) and one[2][0] in ANNOTATIONS):
            name = f"{one[2][0] if one[2] else ''}"
            raise LogError(f"{where} has the annotation {name[:40]!a}, {_NOT}")
    return data


def trace(record: str) -> str:
    """The trace of a record, as JSON, as ``xframe.types.Tuned`` has it."""
    return json.dumps(checked(record, "the record")[0])


def workload(line: str, where: str) -> None:
    """Raises LogError unless ``line`` is a line of the table of workloads: ``[hash, module]``, both text."""
    data = parsed(line, where)
    if not (isinstance(data, list) and len(data) == 2 and all(isinstance(x, str) for x in data) and data[0].isdigit()):
        raise LogError(f"{where} is no workload of MetaSchedule's")
