"""The environments that are built here: their frameworks work, and xframe's worker starts in them."""

import email
from pathlib import Path

import pytest

from xframe.environments import build, places, recipes
from xframe.errors import Unavailable
from xframe.worker.host import Worker


@pytest.fixture(params=recipes.RECIPES)
def name(request):
    try:
        places.find(request.param)
    except Unavailable as e:
        pytest.skip(str(e))
    return request.param


def test_its_framework_computes_a_convolution(name):
    assert build.check(name)["version"] == places.record(name)["framework"]["version"]


def test_the_worker_starts_there(name):
    built = places.find(name)
    with Worker(1, python=built.python, variables=built.variables) as worker:
        with pytest.raises(Exception, match="the worker was told to run before anything was opened"):
            worker.call("run", limit=60, feeds="")
        started = Path(f"/proc/{worker.pid}/exe")
        assert not started.exists() or started.resolve() == Path(built.python).resolve()


def test_it_has_what_is_pinned_and_no_more(name):
    """But for what came with the virtual environment itself."""
    (site,) = Path(places.find(name).python).parents[1].glob("lib/python3*/site-packages")

    def canonical(package, version):
        return package.lower().replace("_", "-"), version

    def told(folder):
        """What a package says of itself there."""
        file = next(f for f in (folder / "METADATA", folder / "PKG-INFO", folder) if f.is_file())
        header = email.message_from_string(file.read_text(encoding="utf-8"))
        return canonical(header["Name"], header["Version"])

    found = {told(folder) for kind in ("dist-info", "egg-info") for folder in site.glob(f"*.{kind}")}
    pinned = {canonical(*text.split("==")) for text in places.record(name)["packages"]}
    assert {package for package, _ in found - pinned} <= {"pip", "setuptools", "wheel"}
    assert pinned <= found
