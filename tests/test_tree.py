"""The shape of the source: which way imports go, how large it is, what the package shows."""

import ast
import functools
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import xframe
from xframe import registry

ROOT = Path(__file__).resolve().parents[1]


def module(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


SOURCES = sorted((ROOT / "xframe").rglob("*.py"))
#: Lines of a file, and of all of xframe/. The second is raised on purpose, with a reason, never in passing.
FILE_CEILING, TREE_CEILING = 400, 57300  # raised for frameworks in environments of their own, and for GPUs

#: A module may import those of lower layers, and of its own layer only within its own folder.
LAYERS = [
    ["xframe"],
    ["xframe.types"],
    ["xframe.errors", "xframe.typed"],
    ["xframe.nvml", "xframe.nvidia"],
    ["xframe.files", "xframe.registry", "xframe.protocols", "xframe.environment", "xframe.results"],
    ["xframe.geometry", "xframe.neutral"],
    ["xframe.zoo", "xframe.artifact", "xframe.environments"],
    ["xframe.onnx_folding"],
    ["xframe.onnx_writer"],
    ["xframe.worker"],
    ["xframe.launch"],
    ["xframe.equivalence"],
    ["xframe.normal"],
    ["xframe.lowering", "xframe.frameworks"],
    ["xframe.schedules"],
    ["xframe.planning", "xframe.backends", "xframe.exports", "xframe.subject", "xframe.available"],
    ["xframe.jobs"],
    ["xframe.measured"],
    ["xframe.measure"],
    ["xframe.analysis"],
    ["xframe.store_rules"],
    ["xframe.store"],
    ["xframe.oracle", "xframe.calibration"],
    ["xframe.comparison", "xframe.report"],
    ["xframe.prebuilt"],
    ["xframe.explain", "xframe.ablation", "xframe.selftest"],
    ["xframe.tuning"],
    ["xframe.fleet"],
    ["xframe.check"],
    ["xframe.gpucheck"],
    ["xframe.testing"],
    ["xframe.cli"],
]
#: What the worker's side may import, so that it runs in the environment of an old framework with numpy alone.
WORKER = [
    *("xframe.worker", "xframe.types", "xframe.errors", "xframe.registry", "xframe.protocols"),
    *("xframe.geometry", "xframe.neutral", "xframe.frameworks.shapes"),
]
#: The files of the frameworks that have an isolated environment, by framework.
ISOLATED = {
    name: sorted(p.stem for p in (ROOT / "xframe/frameworks").glob(f"{name}*.py"))
    for name, row in registry.FRAMEWORKS.items()
    if row.environment
}
_ISOLATED = tuple(f"xframe.frameworks.{file}" for files in ISOLATED.values() for file in files)
#: What runs there: with numpy, the framework, and what that needs; Python 3.6 upwards.
OLD = [p for p in SOURCES if module(p).startswith(tuple(WORKER)) or module(p) in _ISOLATED]
TORCH = ["pytorch", *(f"pytorch_{part}" for part in ("inductor", "layers", "live", "profile", "trace"))]
#: The plugin folders, and what several plugins of a folder share.
PLUGINS = {
    "frameworks": {
        "pytorch": TORCH,
        "torch.compile": TORCH,
        "tensorflow": [f"tensorflow{part}" for part in ("", "_export", "_live", "_nchw", "_profile")],
        "jax": [f"jax{part}" for part in ("", "_export", "_graph", "_live", "_nchw", "_profile")],
        **ISOLATED,
    },
    "backends": {
        "cudnn": sorted(p.stem for p in (ROOT / "xframe/backends").glob("cudnn*.py")),
        "openvino": ["openvino"],
        "ort": ["ort", "ort_gpu_profile", "ort_profile", "ort_session"],
        "tvm": sorted(p.stem for p in (ROOT / "xframe/backends").glob("tvm*.py")),
    },
    "lowering": {name: [row.where.split(":")[0].split(".")[-1]] for name, row in registry.LOWERINGS.items()},
}


@functools.cache
def imports(path, everywhere=True):
    """Modules that a file imports; without ``everywhere`` only at its top level, TYPE_CHECKING left out."""
    return tuple(_imports(ast.parse(path.read_text(encoding="utf-8")), everywhere))


def _imports(tree, everywhere):
    known = {module(p) for p in SOURCES}
    for node in ast.walk(tree) if everywhere else tree.body:
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in known else node.module


def layer_of(name):
    """The number of a module's layer and its entry there: the module itself or the folder that holds it."""
    for number, entries in enumerate(LAYERS):
        for entry in entries:
            if name == entry or (entry != "xframe" and name.startswith(entry + ".")):
                return number, entry
    raise AssertionError(f"{name} is in no layer: add it to LAYERS, where design.md says it belongs")


@pytest.mark.parametrize("path", SOURCES, ids=module)
def test_imports_go_one_way(path):
    number, entry = layer_of(module(path))
    for name in imports(path):
        if name.split(".")[0] == "xframe":
            other, owner = layer_of(name)
            assert other < number or owner == entry, f"{module(path)} (layer {number}) imports {name} (layer {other})"


@pytest.mark.parametrize("folder", PLUGINS)
def test_plugins_do_not_know_each_other(folder):
    owners = {f"xframe.{folder}.{file}": name for name, files in PLUGINS[folder].items() for file in files}
    for file, owner in owners.items():
        for name in imports(ROOT / (file.replace(".", "/") + ".py")):
            assert owners.get(name, owner) == owner, f"{file} imports {name}"


def test_every_registered_plugin_is_known_here():
    """So that the test above can't miss a new one."""
    for folder, table in (
        ("frameworks", registry.FRAMEWORKS),
        ("backends", registry.BACKENDS),
        ("lowering", registry.LOWERINGS),
    ):
        assert set(PLUGINS[folder]) == set(table)
        assert all(row.where.startswith(f"xframe.{folder}.") for row in table.values())
    for name, row in registry.LIVE.items():
        assert row.where.partition(":")[0].removeprefix("xframe.frameworks.") in PLUGINS["frameworks"][name]


@pytest.mark.parametrize("path", [p for p in SOURCES if module(p).startswith(tuple(WORKER))], ids=module)
def test_the_worker_needs_numpy_alone_at_import(path):
    for name in imports(path, everywhere=False):
        top = name.split(".")[0]
        assert top in sys.stdlib_module_names or top == "numpy" or name == "xframe" or name.startswith(tuple(WORKER)), (
            f"{module(path)} imports {name}"
        )


@pytest.mark.parametrize("path", [p for p in OLD if module(p) in _ISOLATED], ids=module)
def test_an_isolated_framework_needs_of_xframe_what_the_worker_has(path):
    for name in imports(path):
        known = name in _ISOLATED or name.startswith(tuple(WORKER))
        assert known or name.split(".")[0] != "xframe", f"{module(path)} imports {name}"


@pytest.mark.parametrize("path", OLD, ids=module)
def test_the_worker_is_written_for_old_pythons(path):
    """As far as the grammar tells: f-strings yes, walrus and positional-only parameters no."""
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 6))


@pytest.mark.parametrize(
    "name", ["torch", "tensorflow", "jax", "caffe", "cntk", "theano", "tvm", "onnxruntime", "openvino"]
)
def test_heavy_packages_stay_in_the_files_that_need_them(name):
    home = {
        "torch": ["frameworks/pytorch", "selftest/pytorch"],
        "tensorflow": ["frameworks/tensorflow"],
        "jax": ["frameworks/jax"],
        **{framework: [f"frameworks/{framework}", "environments/probes"] for framework in ISOLATED},
        "tvm": ["lowering/", "backends/tvm", "calibration", "prebuilt/roofs", "tuning/", "fleet/"],
        "onnxruntime": ["backends/ort"],
        "openvino": ["backends/openvino"],
    }[name]
    users = [p for p in SOURCES if any(n.split(".")[0] == name for n in imports(p))]
    assert users
    assert all(any(f"xframe/{h}" in p.as_posix() for h in home) for p in users), users


def test_size():
    lines = {module(p): len(p.read_text(encoding="utf-8").splitlines()) for p in SOURCES}
    assert {m: n for m, n in lines.items() if n > FILE_CEILING} == {}
    assert sum(lines.values()) <= TREE_CEILING


def test_what_the_package_shows_is_what_it_says():
    assert sorted(xframe.__all__) == sorted(n for n in dir(xframe) if n in xframe.__all__)
    for name in xframe.__all__:
        assert getattr(xframe, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = xframe.no_such_name


def test_importing_the_package_imports_nothing_else():
    code = "import sys, xframe\nprint(*(m for m in sys.modules if m.startswith('xframe.') or m == 'numpy'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_each_model_is_a_file_that_loads():
    from xframe import zoo

    assert {p.stem for p in (ROOT / "models").glob("*.py")} <= set(zoo.names())
    for name in zoo.names():
        assert zoo.spec(name).name == name


def test_files_of_tests_that_share_a_name_are_in_packages():
    """Pytest knows one that is in no package by its name alone, and refuses the second."""
    names = Counter(p.name for p in (ROOT / "tests").rglob("test_*.py") if not (p.parent / "__init__.py").exists())
    assert [name for name, count in names.items() if count > 1] == []
