"""The command ``selftest attribution``: what it prints, and its exit code."""

import json
import subprocess
import sys

import pytest

from xframe import cli
from xframe.selftest import attribution
from xframe.selftest.lies import LIES
from xframe.selftest.verdict import Finding

FOUND = Finding("spin", "overhead", "1.000 ms", True, "", 1e-3, 1e-3, 0.9e-3, 1.1e-3, True)
MISSED = Finding("spin", "overhead", "0.000 ms", False, "0.300 ms are in layout", 1e-3, 0.0, 0.0, 0.0, False)


@pytest.fixture
def answers(monkeypatch):
    """Makes the self-test give these findings, one list a run; what it was asked."""
    asked = []

    def give(*runs):
        left = list(runs)

        def attribute(setting, names, progress):
            progress("planting")
            asked.append((setting, names))
            return left.pop(0)

        monkeypatch.setattr(attribution, "attribution", attribute)
        return asked

    return give


def test_all_found_is_0_and_a_table(answers, capsys):
    asked = answers([FOUND])
    assert cli.main(["selftest", "attribution"]) == 0
    out, err = capsys.readouterr()
    assert "1 of 1 lies found in their place." in out
    assert "planting" in err
    setting, names = asked[0]
    assert (setting.model, setting.batch, setting.threads) == ("alexnet", 1, None)
    assert names == tuple(LIES)


def test_one_miss_in_many_runs_is_1(answers, capsys):
    answers([FOUND], [MISSED], [FOUND])
    assert cli.main(["selftest", "attribution", "--runs", "3"]) == 1
    out = capsys.readouterr().out
    assert "found 2/3" in out
    assert "run 2, spin: 0.300 ms are in layout" in out


def test_json_is_one_object_a_finding(answers, capsys):
    asked = answers([FOUND], [MISSED])
    command = "selftest attribution --runs 2 --json --model vgg16 --batch 4 --threads 1 --lie kernel,spin"
    assert cli.main(command.split()) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(r["run"], r["model"], r["batch"], r["lie"], r["ok"]) for r in rows] == [
        (1, "vgg16", 4, "spin", True),
        (2, "vgg16", 4, "spin", False),
    ]
    setting, names = asked[0]
    assert (setting.model, setting.batch, setting.threads) == ("vgg16", 4, 1)
    assert names == ("spin", "kernel")  # in the order in which they are planted


def test_what_was_found_before_an_interrupt_is_shown(answers, capsys, monkeypatch):
    runs = iter([[FOUND]])

    def attribute(setting, names, progress):
        try:
            return next(runs)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(attribution, "attribution", attribute)
    assert cli.main(["selftest", "attribution", "--runs", "2"]) == 130
    assert "1 of 1 lies found" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--lie", "white"], "unknown lie 'white': there are sleep, spin, kernel"),
        (["--runs", "0"], "--runs 0 makes no sense"),
        (["--model", "net.onnx"], "the lies are planted in a framework"),
        (["--model", "alexnot"], "did you mean alexnet"),
        (["--batch", "0"], "--batch 0 makes no sense"),
    ],
)
def test_what_makes_no_sense_is_2(arguments, words, capsys):
    assert cli.main(["selftest", "attribution", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_help_names_every_lie_and_imports_nothing_heavy():
    code = (
        "import sys\nfrom xframe import cli\ncli.main(['selftest', 'attribution', '--help'])\n"
        "print(*(m for m in ('numpy', 'torch', 'rich.table', 'xframe.comparison') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *help_, heavy = done.stdout.splitlines()
    assert all(name in " ".join(help_) for name in LIES)
    assert heavy.split() in ([], ["rich.table"])  # typer may bring rich
