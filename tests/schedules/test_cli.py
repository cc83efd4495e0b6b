"""``xframe schedules``: what it prints, and its exit codes."""

import json
from dataclasses import replace

import pytest

from tests.schedules.logs import DEVICE, OTHER, SITE, entry, forged, log, saved, task
from xframe import cli
from xframe.schedules import device
from xframe.schedules.log import META, read

STRANGER = replace(device.identity(), slug="acme-two-avx2-f7m2", vendor="Acme", model="2")


@pytest.fixture
def xframe(capsys):
    """Runs ``xframe schedules ...``; gives its exit code, stdout, and stderr as lines."""

    def call(*args):
        code = cli.main(["schedules", *map(str, args)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err.splitlines()

    return call


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Four logs: one to use, one of another device, one stale, one broken."""
    path, here = tmp_path / "schedules", device.identity()
    monkeypatch.setenv("XFRAME_SCHEDULES", str(path))
    saved(path / here.slug / "net-b1" / "direct", entry(gain=1.21), entry(task(OTHER), gain=1.44), device=here)
    saved(path / STRANGER.slug / "net-b16" / "direct", device=STRANGER)
    saved(path / here.slug / "old-b1" / "direct", device=here, tvm="0.1")
    (saved(path / here.slug / "torn-b1" / "direct") / META).write_text("{")
    return path


def rows(out):
    return [json.loads(line) for line in out.splitlines()]


def test_list_tells_what_can_be_used_here_and_why_not(xframe, root):
    code, out, err = xframe("list")
    assert (code, err) == (0, [])
    lines = out.splitlines()
    assert lines[0].split() == ["device", "network", "lowering", "kernels", "gain", "threads", "TVM", "usable", "here"]
    good = next(line for line in lines if "net-b1 " in line)
    assert good.split()[2:5] == ["direct", "2", "1.320"]
    assert good.split()[-1] == "yes"
    for network, words in (
        ("net-b16", "it was tuned on another kind of device ("),
        ("old-b1", "it was tuned with TVM 0.1"),
        ("torn-b1", "meta.json is not whole JSON"),
    ):
        number = next(line for line in lines if network in line).partition("no ")[2].strip()
        assert any(line.startswith(number) and words in line for line in lines)


def test_list_for_machines(xframe, root):
    code, out, err = xframe("list", "--json")
    assert (code, err) == (0, [])
    found = {r["model"]: r for r in rows(out)}
    assert {m: r["usable"] for m, r in found.items() if m != "net"} == {"old": False, "torn": False}
    assert len({frozenset(r) for r in rows(out)}) == 1
    usable = next(r for r in rows(out) if r["usable"])
    assert (usable["model"], usable["batch"], usable["lowering"], usable["kernels"]) == ("net", 1, "direct", 2)
    assert usable["gain"] == pytest.approx((1.21 * 1.44) ** 0.5)
    assert all(r["usable"] or r["reason"] for r in rows(out))


def test_list_of_nothing(xframe, tmp_path, monkeypatch):
    monkeypatch.setenv("XFRAME_SCHEDULES", str(tmp_path))
    assert xframe("list") == (0, f"no schedule logs in {tmp_path}: xframe tune makes some\n", [])
    assert xframe("list", "--json") == (0, "", [])


def test_show_has_each_kernel(xframe, root):
    code, out, err = xframe("show", "net-b1/direct")
    assert (code, err) == (0, [])
    assert "usable here" in out.splitlines()[2]
    words = "".join(out.split())  # a narrow column is folded
    for one in (task(), task(OTHER)):
        assert one.replace(" ", "") in words
    for word in ("6x2", "steps=16", "unroll=2", "1.210", "1.440", "1100", "0.25"):
        assert word in out


def test_show_for_machines(xframe, root):
    code, out, _ = xframe("show", root / device.identity().slug / "net-b1", "--json")
    assert code == 0
    found = {r["task"]: r for r in rows(out)}
    assert set(found) == {task(), task(OTHER)}
    one = found[task()]
    assert (one["tile"], one["knobs"], one["samples"]) == ([6, 2], {"unroll": 2, "steps": 16}, 3)
    assert one["seconds"] == list(entry().seconds)
    assert one["gain"] == pytest.approx(1.21)
    assert one["flop_per_s"] == pytest.approx(entry().flop / 1.1e-3)


def test_a_broken_log_is_one_line_and_exit_code_1(xframe, root):
    code, out, (line,) = xframe("show", "torn-b1")
    assert (code, out) == (1, "")
    assert line.startswith("xframe: the schedule log ")
    assert "is refused: meta.json is not whole JSON" in line


@pytest.mark.parametrize("command", ["list", "show", "prune", "verify"])
def test_a_name_of_nothing_is_one_line_and_exit_code_2(xframe, root, command):
    code, out, (line,) = xframe(command, "alexnet")
    assert (code, out) == (2, "")
    assert "alexnet is no folder, nor part of a schedule log's name; there are schedules/" in line


def test_merge_takes_the_better_records(xframe, root, tmp_path):
    better = entry(gain=2.0, session="elsewhere")
    saved(
        tmp_path / "theirs" / "x" / "net-b1" / "direct",
        better,
        entry(task(replace(SITE, batch=2))),
        device=device.identity(),
    )
    code, out, err = xframe("merge", tmp_path / "theirs")
    assert (code, err) == (0, [])
    assert " took 2 records, " in out
    assert out.endswith("now it has 3\n")
    assert read(root / device.identity().slug / "net-b1" / "direct").entries[task()].session == "elsewhere"


def test_merge_into_another_folder(xframe, root, tmp_path):
    code, out, err = xframe("merge", root / STRANGER.slug, "--into", tmp_path / "all", "--json")
    assert (code, err) == (0, [])
    (row,) = rows(out)
    assert (row["taken"], row["kernels"]) == (1, 1)
    assert read(tmp_path / "all" / STRANGER.slug / "net-b16" / "direct").device == STRANGER


def test_merge_tells_what_it_can_not_take_and_takes_the_rest(xframe, root, tmp_path):
    saved(tmp_path / "theirs" / "a-b1" / "direct", device=DEVICE)
    (saved(tmp_path / "theirs" / "b-b1" / "direct", device=DEVICE) / META).write_text("{")
    saved(tmp_path / "theirs" / "old-b1" / "direct", device=device.identity())
    code, out, err = xframe("merge", tmp_path / "theirs")
    assert code == 1
    assert ["not whole JSON" in err[0], "different versions of TVM" in err[1]] == [True, True]
    assert len(err) == 2
    assert "a-b1/direct took 1 record, now it has 1" in out


def test_prune_tells_and_drops(xframe, root):
    slug = device.identity().slug
    forged(root / STRANGER.slug / "net-b16" / "direct", lambda meta: meta["entries"][0].update(seconds=[1.0]))
    expected = (f"schedules/{slug}/old-b1/direct: {task()}: it was tuned with TVM 0.1",)
    code, out, _ = xframe("prune", "old-b1", "net-b16", "--dry-run")
    assert code == 0
    assert all(words in out for words in expected)
    assert out.endswith("2 records would be dropped\n")
    assert (root / slug / "old-b1").exists()
    code, out, _ = xframe("prune", "old-b1", "net-b16", "--json")
    assert code == 0
    assert [r["dropped"] for r in rows(out)] == [True, True]
    assert not (root / slug / "old-b1" / "direct").exists()
    assert not (root / STRANGER.slug / "net-b16" / "direct").exists()


def test_prune_of_a_broken_log_is_one_line_and_exit_code_1(xframe, root):
    code, out, err = xframe("prune", "torn-b1")
    assert (code, out) == (1, "0 records dropped\n")
    assert "not whole JSON" in err[-1]


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [(["OK", "FASTER"], 0), (["OK", "SLOWER"], 1), (["CRASHED", "OK"], 1), (["WRONG", "OK"], 3), (["REFUSED"], 1)],
)
def test_verify_prints_recorded_against_now(xframe, root, monkeypatch, outcomes, expected):
    from xframe.tuning import verify

    asked = []

    def measured(folder, rounds=3, on_progress=None):
        asked.append((folder.parent.name, rounds))
        on_progress("1 of 2")
        return [
            verify.Verified(
                task(), 1e-3, None if o == "CRASHED" else 1.02e-3, 1.2e-3, 1.02, o, "" if o == "OK" else f"why {o}"
            )
            for o in outcomes
        ]

    monkeypatch.setattr(verify, "verify", measured)
    code, out, err = xframe("verify", "net-b1/direct", "--rounds", "2")
    assert (code, err, asked) == (expected, ["1 of 2"], [("net-b1", 2)])
    assert all(o in out for o in outcomes)
    assert all(f"why {o}" in out for o in outcomes if o != "OK")
    code, out, _ = xframe("verify", "net-b1/direct", "--json")
    assert code == expected
    assert [r["outcome"] for r in rows(out)] == outcomes
    assert all(r["recorded_s"] == 1e-3 for r in rows(out))


def test_verify_of_a_broken_log_is_one_line_and_exit_code_1(xframe, root):
    code, out, err = xframe("verify", "torn-b1")
    assert (code, out) == (1, "")
    assert "not whole JSON" in err[-1]


def test_log_helper_is_for_no_machine():
    """So that what is usable here above is so by this machine's identity."""
    assert log().device.differs(device.identity())
