"""An environment ``fake`` of two packages and a step, and Pythons that can build it without any of that being real."""

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from xframe.environments import interpreters, recipes, steps

ROOT = Path(__file__).parents[2]
RECIPE = recipes.Recipe(("3.9", "3.8"), ("write",), (("FAKE_TOLD", "{root}/told"),))
#: The files of the index. The second is a source distribution.
FILES = {"old": "old-1.0-py3-none-any.whl", "older": "older-2.0.tar.gz"}


def make(folder, name="python3.8", version="3.8", **settings):
    """A Python below ``folder`` that does as ``settings`` say; its path."""
    folder.mkdir(parents=True, exist_ok=True)
    python = folder / name
    python.write_text(f"#!{sys.executable} -SE\n" + (Path(__file__).parent / "fake_python.py").read_text())
    python.chmod(0o755)
    index = folder / "index"
    index.mkdir(exist_ok=True)
    for package, file in FILES.items():
        (index / file).write_text(f"the package {package}")
    change(python, version=version, **settings)
    return python


def change(python, **settings):
    """From now on the Python does as ``settings`` say."""
    path = python.parent / "settings.json"
    told = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**told, **settings}))


def calls(python):
    """What the Python was asked to do, a line each."""
    path = python.parent / "calls"
    return path.read_text().splitlines() if path.exists() else []


def write_recipe(folder):
    """The requirement file and the probe."""
    (folder / "probes").mkdir(parents=True, exist_ok=True)
    (folder / "probes" / "probe_fake.py").write_text("")
    digests = {name: hashlib.sha256(f"the package {name}".encode()).hexdigest() for name in FILES}
    pins = [("old", "1.0"), ("older", "2.0")]
    (folder / "fake.txt").write_text("".join(f"{n}=={v} \\\n    --hash=sha256:{digests[n]}\n" for n, v in pins))


def use(patch, home, python):
    """Have ``fake`` as the only environment, below ``home``, and nothing but ``python``'s folder to find Pythons in."""
    write_recipe(home / "recipe")
    patch.setattr(recipes, "_HERE", home / "recipe")
    patch.setattr(recipes, "RECIPES", {"fake": RECIPE})
    patch.setitem(steps.STEPS, "write", lambda root, run: (root / "told").write_text("x"))
    patch.setenv("XFRAME_ENVIRONMENTS", str(home / "environments"))
    isolate(patch, home, python.parent)


def isolate(patch, home, *folders):
    """Let Pythons be found in ``folders`` alone."""
    patch.setenv("PATH", os.pathsep.join(map(str, folders)))
    patch.setenv("HOME", str(home))
    for name in ("PYENV_ROOT", "UV_PYTHON_INSTALL_DIR", "XDG_DATA_HOME", "CONDA_EXE", "CONDA_PREFIX"):
        patch.delenv(name, raising=False)
    patch.delenv("MAMBA_ROOT_PREFIX", raising=False)
    interpreters._ask.cache_clear()


@contextlib.contextmanager
def builder(home, python):
    """A process of its own that builds ``fake``, in a group of its own; its progress is on stdout."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom tests.environments import fakes\n"
        "fakes.build(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(home), str(python)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()
        process.stdout.close()


def build(home, python):
    """What :func:`builder` runs."""
    from xframe.environments import build as building

    with pytest.MonkeyPatch.context() as patch:
        use(patch, home, python)
        building.create("fake", None, lambda line: print(line, flush=True))


def wait_for(path, limit=30.0):
    """Until a file is there."""
    deadline = time.monotonic() + limit
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path} within {limit:g} s"
        time.sleep(0.01)
