"""What an environment is made of decides which one it is."""

import ast
import shutil

import pytest

from xframe.environments import downloads, recipes


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """The recipes, in a folder where they can be changed."""
    folder = tmp_path / "environments"
    shutil.copytree(recipes._HERE, folder)
    monkeypatch.setattr(recipes, "_HERE", folder)
    return folder


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_everything_that_it_is_made_of_counts(copied, monkeypatch, name):
    seen = {recipes.digest(name)}
    for file in (f"{name}.txt", *recipes.RECIPES[name].files):
        with open(copied / file, "a") as f:
            f.write("\n")
        seen.add(recipes.digest(name))
    changed = recipes.RECIPES[name]._replace(variables=(("A", "b"),))
    monkeypatch.setitem(recipes.RECIPES, name, changed)
    seen.add(recipes.digest(name))
    assert len(seen) == 3 + len(changed.files)


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_it_is_pinned_completely(name):
    assert downloads.pins(recipes.requirements(name))


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_its_probe_is_written_for_its_oldest_python(name):
    version = min(tuple(map(int, v.split("."))) for v in recipes.RECIPES[name].pythons)
    ast.parse(recipes.probe(name).read_text(), feature_version=version)
