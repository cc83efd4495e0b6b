"""Every file that the worker of an old framework imports is imported by a real Python 3.6, where there is one."""

import json
import subprocess

import pytest

from tests.test_tree import ISOLATED, OLD, module
from xframe import environments
from xframe.environments import interpreters
from xframe.environments.recipes import RECIPES
from xframe.errors import Unavailable
from xframe.worker.host import package_alone, worker_environment

#: Imports modules by name, and says how each went. What the interpreter lacks of others is made up: a module whose
#: members are modules that can be called, and be the base of a class.
IMPORT = """
import importlib, importlib.machinery, json, sys, types

class MadeUp(types.ModuleType):
    __path__, __file__, __version__ = [], None, "1.0"  # ctypes takes None for this process
    def __init__(self, name="made up", *rest, **more):
        super().__init__(str(name))
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return MadeUp(name)
    def __call__(self, *given, **more):
        return given[0] if given and callable(given[0]) else MadeUp()
    def __float__(self):
        return 0.0

class Finder:
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name.split(".")[0] in MISSING else None
    def create_module(self, spec):
        return MadeUp(spec.name)
    def exec_module(self, module):
        pass

MISSING = set()
for name in ("numpy", "dataclasses", "caffe", "cntk", "theano", "google"):
    try:
        importlib.import_module(name)
    except ImportError:
        MISSING.add(name)
sys.meta_path.append(Finder())
found = {}
for name in json.loads(sys.argv[1]):
    try:
        importlib.import_module(name)
        found[name] = ""
    except BaseException as e:
        found[name] = "%s: %s" % (type(e).__name__, e)
sys.stdout.write("\\n" + json.dumps([list(sys.version_info[:2]), found]) + "\\n")
sys.stdout.flush()
import os
os._exit(0)
"""


def python():
    """The interpreter of the environment that is the oldest, which has numpy and more; else any that is as old."""
    try:
        return environments.find("cntk")
    except Unavailable:
        try:
            return environments.Built(interpreters.find(("3.6",)).path, {})
        except Unavailable as e:
            pytest.skip(str(e))


def newer():
    """The files of frameworks whose own environment has a Python that is no old one."""
    recent = [name for name, recipe in RECIPES.items() if all(int(v.split(".")[1]) > 9 for v in recipe.pythons)]
    return {f"xframe.frameworks.{file}" for name in recent for file in ISOLATED[name]}


def test_everything_a_worker_imports_is_imported_by_python_3_6(tmp_path):
    built = python()
    names = json.dumps([name for name in map(module, OLD) if name not in newer()])
    path = package_alone(str(tmp_path / "path"))
    env = worker_environment(1, "cpu", built.variables, path)
    command = [built.python, "-c", IMPORT, names]
    done = subprocess.run(command, env=env, cwd=path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    version, found = json.loads(done.stdout.splitlines()[-1])
    assert version == [3, 6]
    assert set(found) == set(json.loads(names))
    assert {name: why for name, why in found.items() if why} == {}
