"""``xframe diff``: exit codes that somebody's CI can go by, and one line for each way to go wrong."""

import json

import pytest

from tests.drifting import measurement, run
from xframe import cli, store
from xframe.types import Outcome

STEADY = [[0.010, 0.0101, 0.0099]] * 3


@pytest.fixture
def diff(capsys, tmp_path):
    """Writes two results and compares them; gives the exit code, stdout, and stderr as lines."""

    def call(old, new, *args):
        paths = [store.write(result, tmp_path / name) for name, result in (("old", old), ("new", new))]
        code = cli.main(["diff", str(paths[0]), str(paths[1].parent), *args])
        out, err = capsys.readouterr()
        return code, out, err.splitlines()

    return call


def result(by=1.0, outcome=Outcome.OK, **facts):
    return run(measurement([[s * by for s in r] for r in STEADY], outcome=outcome), **facts)


@pytest.mark.parametrize(
    ("new", "code", "words"),
    [
        (result(), 0, "1 same"),
        (result(1.1), 1, "1 slower"),
        (result(0.9), 0, "1 faster"),
        (result(outcome=Outcome.MISMATCH), 1, "1 broken"),
    ],
)
def test_the_exit_code_says_whether_something_regressed(diff, new, code, words):
    found, out, err = diff(result(), new)
    assert (found, err) == (code, [])
    assert out.endswith(f"\n{words}\n")


def test_results_that_can_not_be_compared_are_one_line_and_exit_code_2(diff):
    code, out, err = diff(result(), result(cpu="Other CPU"))
    assert (code, out, len(err)) == (2, "", 1)
    assert "cpu: Some CPU, now Other CPU" in err[0]
    assert "--allow cpu" in err[0]
    assert diff(result(), result(cpu="Other CPU"), "--allow", "cpu,governor")[0] == 0


def test_json_is_one_row_a_line_and_the_sum_last(diff):
    code, out, _ = diff(result(), result(1.1), "--json", "--threshold", "0.05")
    row, total = map(json.loads, out.splitlines())
    assert (row["framework"], row["verdict"]) == ("pytorch", "slower")
    assert (row["old_median_s"], row["new_median_s"], row["ratio"]) == pytest.approx((0.010, 0.011, 1.1))
    assert (total["exit_code"], total["threshold"]) == (code, 0.05) == (1, 0.05)


def test_an_interval_without_bound_is_null(diff):
    old = run(measurement(STEADY[:1]))
    row = json.loads(diff(old, old, "--json")[1].splitlines()[0])
    assert (row["verdict"], row["ratio_low"], row["ratio_high"]) == ("ambiguous", 0.0, None)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--threshold", "-1"], "--threshold -1 makes no sense"),
        (["--threshold", "nan"], "--threshold nan makes no sense"),
        (["--allow", ","], "--allow ',' names nothing"),
    ],
)
def test_senseless_flags_are_one_line(diff, args, words):
    code, out, err = diff(result(), result(), *args)
    assert (code, out, len(err)) == (2, "", 1)
    assert words in err[0]


@pytest.mark.parametrize(
    ("text", "words"), [(None, "can't read"), ("{", "not a whole JSON file"), ('{"schema": 2}', "lacks 'created'")]
)
@pytest.mark.parametrize("broken", ["old", "new"])
def test_a_file_that_can_not_be_read_is_one_line_and_no_regression(tmp_path, capsys, text, words, broken):
    paths = {name: store.write(result(), tmp_path / name) for name in ("old", "new")}
    paths[broken].unlink() if text is None else paths[broken].write_text(text)
    assert cli.main(["diff", *map(str, paths.values())]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert words in err
    assert str(paths[broken]) in err


def test_rows_that_are_gone_are_exit_code_2_unless_that_is_allowed(diff):
    both = run(*(measurement(STEADY, name) for name in ("pytorch", "jax")))
    code, out, err = diff(both, result())
    assert (code, err) == (2, [])
    assert "jax native: it is not in the new result" in out
    assert out.endswith("1 same, 1 missing\n")
    assert diff(both, result(), "--allow", "missing")[0] == 0


def test_the_help_tells_how_to_use_it_in_ci(capsys):
    cli.main(["diff", "--help"])
    out = capsys.readouterr().out
    assert "In CI" in out
    assert "xframe diff main change" in " ".join(out.split())
    assert all(f"{code}:" in out for code in (1, 2))
    assert "ambiguous, and does not fail" in " ".join(out.split())
