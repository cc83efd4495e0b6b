"""The pass list's hash follows the passes and nothing else."""

import ast
from pathlib import Path

import pytest

import xframe
from xframe.schedules import software

SOURCE = (Path(xframe.__file__).parent / "lowering" / "pipeline.py").read_text()


def test_the_hash_is_of_the_source_that_runs():
    assert software.passes() == software._hash(SOURCE)
    assert len(software.passes()) == 12


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("relax.transform.FuseTIR(),", ""),
        ("relax.transform.FoldConstant(),", "relax.transform.FoldConstant(), relax.transform.FoldConstant(),"),
        ('skip_ops=["relax.reshape"]', "skip_ops=[]"),
    ],
)
def test_another_pass_list_has_another_hash(old, new):
    assert old in SOURCE
    assert software._hash(SOURCE.replace(old, new)) != software.passes()


def test_comments_and_spelling_do_not_count():
    assert software._hash(ast.unparse(ast.parse(SOURCE))) == software.passes()


def test_without_tvm_there_is_no_version(monkeypatch):
    from importlib import metadata

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert software.tvm_version.__wrapped__() is None
