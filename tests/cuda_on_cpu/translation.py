"""The CUDA text that TVM generates, as C++ for the headers in ``native/device``. Lines keep their numbers."""

import re

from tests.cuda_on_cpu.errors import Refused

_KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\((\d+)[^)]*\) )?(\w+)\(([^{};]*)\) \{')
_ALIGN = r"(?:alignas\((\d+)\)|__align__\((\d+)\)) "
_STATIC = re.compile(rf"(?<!extern )__shared__ (?:{_ALIGN})?([\w:]+(?: [\w:]+)*) (\w+)\[(\d+)\];")
_DYNAMIC = re.compile(rf"extern __shared__ (?:{_ALIGN})?([\w:]+(?: [\w:]+)*) (\w+)\[\];")
#: A thread's own array.
_LOCAL = re.compile(rf"(?<!__shared__ )(?:{_ALIGN})([\w:]+(?: [\w:]+)*) (\w+)\[(\d+)\];")
#: TVM's helpers of inline PTX, whole. In a copy's name: how it caches, its bytes, those of an element on either side.
_COPY = re.compile(
    r"__forceinline__ __device__ void ptx_cp_async_legacy_(pred_)?(?:ca|cg)_(\d+)_(\d+)_(\d+)\([^)]*\) \{.*?\n\}", re.S
)
_COMMIT = re.compile(r'asm volatile\("cp\.async\.commit_group;"[^;]*\);')
_WAIT = re.compile(r'asm volatile\("cp\.async\.wait_(?:group (\d+)|all);"[^;]*\);')
_ASM = re.compile(r'(?:asm|__asm__)\s*(?:volatile|__volatile__)?\s*\(\s*"([^"]*)"')
#: How the parts of a type's qualifiers are written that mean nothing here.
_QUALIFIERS = re.compile(r"\b(?:__restrict__|__grid_constant__|const)\b")


def translated(text: str) -> str:
    """``text`` as C++, with a description of each kernel behind it.

    Raises
    ------
    Refused
        There is inline PTX, or a declaration of shared memory, that is not known here.
    """
    tail: list[str] = []

    def kernel(found: re.Match) -> str:
        tail.append(_description(found[2], int(found[1] or 1024), found[3]))
        return found[0] + " SHIM_ENTRY"

    def shared(found: re.Match) -> str:
        kind, name, count = found[3], found[4], found[5]
        align = found[1] or found[2] or f"alignof({kind})"
        return (
            f'{kind} (&{name})[{count}] = *({kind} (*)[{count}])shim_shared("{_plain(name)}", sizeof({name}), {align});'
        )

    text = _COPY.sub(_copy, text)
    text = _COMMIT.sub("shim_commit_copies();", text)
    text = _WAIT.sub(lambda found: f"shim_wait_copies({found[1] or 0});", text)
    text = _DYNAMIC.sub(r"\3* const \4 = (\3*)shim_dynamic_shared();", text)
    text = _STATIC.sub(shared, _KERNEL.sub(kernel, text))
    text = _LOCAL.sub(r"ShimLocal<\3, \5> \4;", text)
    if found := _ASM.search(text):
        raise Refused(f"the kernel has inline PTX that the shim does not know: {found[1]}")
    if "__shared__" in text:
        line = next(line for line in text.splitlines() if "__shared__" in line)
        raise Refused(f"the kernel declares shared memory in a way that the shim does not know: {line.strip()}")
    if not tail:
        raise Refused("the text has no kernel that the shim recognises")
    return "\n".join([text, *tail, ""])


def _plain(name: str) -> str:
    """A buffer's name in TIR."""
    return name.removesuffix("_ptr")


def _copy(found: re.Match) -> str:
    predicated, size, *scales = found[1] or "", *(int(g) for g in found.groups()[1:])
    condition = ", int predicate" if predicated else ""
    source = f"(char*)source + source_at * {scales[1]}"
    if predicated:
        source = f"!predicate ? nullptr : {source}"
    head = found[0].split("(")[0].split()[-1]
    body = (
        f"__forceinline__ __device__ void {head}(void* target, int at, void* source, int source_at{condition}) "
        f"{{ shim_copy_async((char*)target + at * {scales[0]}, {source}, {size}); }}"
    )
    return body + "\n" * found[0].count("\n")


def _description(name: str, bound: int, parameters: str) -> str:
    types, rows = [], []
    for parameter in filter(None, (p.strip() for p in parameters.split(","))):
        kind, variable = _QUALIFIERS.sub("", parameter).rsplit(None, 1)
        types.append(kind.strip())
        rows.append(f'{{"{_plain(variable)}", {str("*" in kind).lower()}}}')
    values = ", ".join(f"*({kind}*)a[{i}]" for i, kind in enumerate(types))
    return (
        f"__attribute__((no_sanitize_thread)) static void shim_call_{name}(void** a) {{ (void)a; {name}({values}); }}\n"
        f"static const shim::Parameter shim_parameters_{name}[] = {{{', '.join(rows) or '{}'}}};\n"
        f'extern "C" const shim::Kernel shim_kernel_{name} = '
        f'{{"{name}", {bound}, shim_call_{name}, {len(rows)}, shim_parameters_{name}}};'
    )
