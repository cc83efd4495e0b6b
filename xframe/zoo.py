"""The models: finding their specs, their shapes, and one set of weights and inputs for all frameworks.

A model is one file ``<name>.py`` with a module-level ``SPEC``; there is no list to register it in.
"""

import difflib
import hashlib
import importlib.util
import json
import math
import os
from pathlib import Path

import numpy as np

from xframe import files
from xframe.errors import UsageError
from xframe.geometry import shapes, sites, tensors
from xframe.types import ModelSpec

__all__ = [
    "BIAS_STD",
    "RECIPE",
    "folders",
    "inputs",
    "names",
    "shapes",
    "sites",
    "spec",
    "tensor",
    "tensors",
    "weights",
    "weights_file",
]

#: Raised whenever :func:`weights` would make other numbers of the same spec, so that no old file is reused.
RECIPE = 2

BIAS_STD = 0.05


def folders() -> list[Path]:
    """Where models are looked for: ``$XFRAME_MODELS`` (``os.pathsep``-separated) first, then our own."""
    package = Path(__file__).parent
    own = [package / "data" / "models", package.parent / "models"]  # as installed; in a checkout
    given = [Path(p) for p in os.environ.get("XFRAME_MODELS", "").split(os.pathsep) if p]
    return [*given, *[p for p in own if p.is_dir()][:1]]


def _found() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for folder in folders():
        for path in sorted(folder.glob("[!_.]*.py")):
            found.setdefault(path.stem, path)
    return found


def names() -> list[str]:
    """The names of all models, sorted."""
    return sorted(_found())


def spec(name: str) -> ModelSpec:
    """The spec of the model ``name``, its shapes checked.

    Raises
    ------
    UsageError
        There is no such model (the message holds close names), or its file has no usable ``SPEC``.
    """
    found = _found()
    if name not in found:
        close = difflib.get_close_matches(name.lower(), found, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}?" if close else f"there are: {', '.join(sorted(found)) or 'none'}"
        raise UsageError(f"unknown model {name!r}: {hint}")
    path = found[name]
    module_spec = importlib.util.spec_from_file_location(f"xframe_models.{name}", path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    try:
        module_spec.loader.exec_module(module)
        value = module.SPEC
    except Exception as e:
        raise UsageError(f"model {name}: {path} does not load ({type(e).__name__}: {e}); fix the file") from e
    if not isinstance(value, ModelSpec) or value.name != name:
        got = f"one named {value.name!r}" if isinstance(value, ModelSpec) else f"a {type(value).__name__}"
        raise UsageError(f"model {name}: SPEC in {path} must be a ModelSpec named {name!r}; it is {got}")
    shapes(value, 1)
    return value


def _tensor(spec: ModelSpec, name: str, shape: tuple[int, ...]) -> np.ndarray:
    digest = hashlib.sha256(name.encode()).digest()
    rng = np.random.default_rng([spec.seed, *np.frombuffer(digest[:16], np.uint32)])
    part = name.rpartition(".")[2]
    if part in ("scale", "var"):
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    std = np.sqrt(2.0 / np.prod(shape[1:])) if part == "weight" else BIAS_STD
    out = rng.standard_normal(shape, np.float32)
    out *= np.float32(std)
    return out


def tensor(spec: ModelSpec, name: str) -> np.ndarray:
    """One array of :func:`weights`, made without the others: a weight or bias, as ``conv1.weight``.

    Raises
    ------
    KeyError
        There is none of this name.
    """
    return _tensor(spec, name, tensors(spec)[name])


def _variances(spec: ModelSpec) -> dict[str, float]:
    """The variance that the input of each batchnorm is expected to have, all activations taken as Gaussian.

    What it has grown to differs from place to place where a network adds branches up.
    """
    sources, out = spec.sources(), {}
    known = {"input": (0.0, 1.0)}  # layer -> mean and variance
    for item in spec.layers:
        ins = [known[s] for s in sources[item.name]]
        mean, variance = (sum(x) for x in zip(*ins, strict=True))  # of a sum
        if item.op == "concat":
            mean, variance = mean / len(ins), variance / len(ins)
        elif item.op in ("conv", "fc"):
            mean, variance = 0.0, 2 * (mean**2 + variance)
        elif item.op == "batchnorm":
            out[item.name] = variance
            mean, variance = 0.0, 13 / 12 * math.log(3)  # E[scale^2 / var], both uniform in [0.5, 1.5]
        elif item.op in ("relu", "relu6"):
            z = mean / math.sqrt(variance)
            above, density = (1 + math.erf(z / math.sqrt(2))) / 2, math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
            square = (mean**2 + variance) * above + mean * math.sqrt(variance) * density
            mean = mean * above + math.sqrt(variance) * density
            variance = square - mean**2
        known[item.name] = mean, variance
    return out


def weights(spec: ModelSpec) -> dict[str, np.ndarray]:
    """Seeded float32 weights, the same in every framework.

    Weights are N(0, 2 / fan in), which keeps the scale of activations through ReLU (He et al. 2015, arXiv:1502.01852,
    eq. 10). Biases, and batchnorm's shift and mean, are N(0, 0.05^2): not zero, so that a lost one shows; batchnorm's
    scale and variance are uniform in [0.5, 1.5], the variance times what its input's is expected to be. Each tensor has
    its own generator, keyed by seed and name, so that its random numbers do not depend on the other layers.
    """
    out = {name: _tensor(spec, name, shape) for name, shape in tensors(spec).items()}
    for name, variance in _variances(spec).items():
        out[f"{name}.var"] *= np.float32(variance)
    return out


def weights_file(spec: ModelSpec) -> Path:
    """The weights as an uncompressed ``.npz`` below :func:`xframe.files.home`, written if it is not there yet.

    The name holds a hash of the spec, so another spec or seed is another file.
    """
    text = json.dumps([RECIPE, spec.to_json()], sort_keys=True)
    path = files.home() / "weights" / f"{spec.name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.npz"
    if not path.exists():
        with files.atomic(path) as part, open(part, "wb") as f:
            np.savez(f, **weights(spec))  # type: ignore[arg-type]
    return path


def inputs(shape: tuple[int, ...], seed: int, dtype: str = "float32") -> np.ndarray:
    """One seeded N(0, 1) array; ``shape`` is (N, C, H, W)."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)
