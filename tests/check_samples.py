"""Results of checks as a checker would make them, for the tests of whatever shows them."""

from xframe.equivalence.result import (
    Check,
    Comparison,
    Difference,
    LayerRow,
    Level,
    LevelVerdict,
    RunRow,
    State,
    Statistics,
    Subject,
)

A, B = "a.onnx", "b.onnx"
PADDING = Difference("padding", "conv1", f"{B} pads 0,0,1,1 where {A} pads 1,1,1,1.")
BIAS = Difference("bias", "fc", f"{B} adds the bias of fc in a node of its own.", harmless=True)


def statistics(ratio, **fields):
    values = {"max_abs": 5e-6 * ratio, "max_rel": 1e-3 * ratio, "rms": 1e-6 * ratio, "cosine": 0.99, "at": (0, 3, 1, 2)}
    values |= {"ulps": (0.0, 1.0, 2.0, 10.0 * ratio), "first": 0.5, "second": 0.5 + 5e-6 * ratio, "bound": 5e-6}
    return Statistics(ratio=ratio, **(values | fields))


def layer(name, op, ratio, b=None, shape=(1, 8, 7, 7), **fields):
    found = None if ratio is None else statistics(ratio)
    ok = ratio is not None and ratio <= 1
    why = (
        "" if ok or ratio is None else f"output {name} at [0, 3, 1, 2] is 0.7, expected 0.5: {ratio:g} times the bound"
    )
    return LayerRow(name, name if b is None else b, op, shape, found, **({"ok": ok, "reason": why} | fields))


def rows(*ratios):
    """conv1, relu1, conv2, ... with these ratios to the bound."""
    return tuple(
        layer(f"{kind}{i // 2 + 1}", kind.title(), ratio)
        for i, ratio in enumerate(ratios)
        for kind in ["conv" if i % 2 == 0 else "relu"]
    )


def comparison(name=B, states=("equivalent",) * 3, reasons=("", "", ""), differences=(), layers=None, outputs=None):
    levels = (Level.SIGNATURE, Level.NORMAL_FORM, Level.NUMERICS, Level.GRADIENTS)
    verdicts = tuple(
        LevelVerdict(level, State(state), reason, differences if level is Level.NORMAL_FORM else ())
        for level, state, reason in zip(levels, states, reasons, strict=False)
    )
    layers = rows(0.1, 0.1, 0.2, 0.2) if layers is None else layers
    outputs = (layer("fc", "Gemm", 0.25, shape=(1, 10)),) if outputs is None else outputs
    return Comparison(name, verdicts, layers, outputs)


def check(*comparisons, runs=(), **fields):
    names = (A, *(c.name for c in comparisons))
    subjects = tuple(Subject(n, "ONNX file", f"models/{n}", f"{i}" * 64) for i, n in enumerate(names))
    values = {"inputs": "2 seeded inputs of N(0, 1), seed 0", "environment": {"onnx": "1.23.2", "tvm": None}}
    return Check(subjects, comparisons, tuple(runs), **(values | fields))


def equal(**fields):
    """Two models that compute the same, written differently."""
    different = comparison(states=("equivalent", "different", "equivalent"), differences=(BIAS,),
                           reasons=("", "1 node more", ""))  # fmt: skip
    return check(different, **fields)


def unequal(**fields):
    """conv2 is the first layer that differs; all after it do."""
    return check(
        comparison(
            states=("equivalent", "different", "different"),
            reasons=("", "2 differences", "output fc at [0, 1] is 0.5, expected 0.7 +- 5e-06"),
            differences=(BIAS, PADDING),
            layers=rows(0.1, 0.1, 4e4, 3e4, 2e4, 1e4, 9e3, 8e3),
            outputs=(layer("fc", "Gemm", 7e3, shape=(1, 10)),),
        ),
        **fields,
    )


def unchecked(**fields):
    """An operator that the reference does not know: no numerics."""
    reason = "the reference has no rule for Twist"
    return check(
        comparison(states=("equivalent", "equivalent", "unchecked"), reasons=("", "", reason), layers=(), outputs=()),
        **fields,
    )


def run(subject=A, runner="ort all", own=0.3, first=0.3, **fields):
    fine = own is not None and own <= 1 and (first is None or first <= 1)
    values = {"state": State.EQUIVALENT if fine else State.DIFFERENT}
    found = [None if x is None else statistics(x) for x in (own, first)]
    return RunRow(subject, runner, own=found[0], first=found[1], **(values | fields))
