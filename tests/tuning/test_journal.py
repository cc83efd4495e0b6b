"""Journals: what was appended is there after a crash; one that is damaged or of another run is refused in words."""

import errno
import json
import os

import pytest

from tests.tuning.fake import crashes, task
from xframe import files
from xframe.errors import UsageError, XframeError
from xframe.tuning import journal
from xframe.tuning.journal import Journal
from xframe.tuning.points import Point, Trial

SETTINGS, VERSIONS = {"seed": 0, "space": "template"}, {"xframe": "1", "apache-tvm": "0.27"}


@pytest.fixture(autouse=True)
def _home(monkeypatch, tmp_path):
    monkeypatch.setenv("XFRAME_HOME", str(tmp_path / "home"))


def opened(resume=True, settings=SETTINGS, versions=VERSIONS, subject="alexnet-b1+winograd"):
    return Journal.open(subject, settings, versions, "a-device", resume)


def filled(count=3):
    """The path of a journal with so many trials, not finished."""
    with opened(resume=False) as one:
        for i in range(count):
            one.append(journal.TRIAL, number=i)
    return one.path


def numbers(one):
    return [r["number"] for r in one.records]


def test_what_was_appended_is_there_again():
    path = filled()
    with opened() as one:
        assert one.path == path
        assert numbers(one) == [0, 1, 2]
        assert not one.finished
        one.append(journal.TRIAL, number=3)
        one.append(journal.END)
    with opened() as one:
        assert [r.get("number") for r in one.records] == [0, 1, 2, 3, None]
        assert one.finished


def test_a_journal_is_json_lines():
    lines = filled().read_text().splitlines()
    assert [json.loads(line)["record"]["kind"] for line in lines] == ["begin", "trial", "trial", "trial"]


def test_every_torn_end_loses_the_last_line_alone():
    path = filled()
    whole = path.read_bytes()
    begin = whole[:-1].rindex(b"\n") + 1
    for end in range(begin, len(whole)):
        path.write_bytes(whole[:end])
        with opened() as one:
            assert numbers(one) == [0, 1]
            one.append(journal.TRIAL, number=9)
        with opened() as one:
            assert numbers(one) == [0, 1, 9]


@pytest.mark.parametrize(
    "change", [lambda b: b.replace(b'"number":1', b'"number":7'), lambda b: b.replace(b"number", b"\xff")]
)
def test_damage_in_the_middle_is_told(change):
    path = filled()
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(XframeError, match=r"line \d of the journal .* is damaged, and not the last one"):
        opened()


def test_one_that_was_killed_while_it_was_made_begins_anew():
    path = filled(0)
    path.write_bytes(path.read_bytes()[:-5])
    with opened() as one:
        assert one.records == []
        assert one.head["settings"] == SETTINGS
    with opened() as one:
        assert one.head["settings"] == SETTINGS


def test_other_versions_are_refused_in_words():
    filled()
    with pytest.raises(XframeError, match=r"can't resume: .* is of apache-tvm 0.27, not 0.28; .* without --resume"):
        opened(versions={**VERSIONS, "apache-tvm": "0.28"})
    with opened(resume=False, versions={**VERSIONS, "apache-tvm": "0.28"}) as one:
        assert one.records == []


def test_other_settings_are_refused_in_words():
    filled()
    with pytest.raises(
        UsageError, match=r"can't resume: the unfinished run, .*, is of --seed 0, not 1; give its settings"
    ):
        opened(settings={**SETTINGS, "seed": 1})
    with opened(settings={**SETTINGS, "seed": 1}, subject="vgg16-b1+winograd") as one:
        assert one.records == []


def test_a_finished_run_of_other_settings_is_no_hindrance():
    filled()
    with opened() as one:
        one.append(journal.END)
    with opened(settings={**SETTINGS, "seed": 1}) as one:
        assert one.records == []


def test_without_resume_an_unfinished_run_is_put_aside():
    path = filled()
    content = path.read_bytes()
    with opened(resume=False) as one:
        assert one.records == []
        aside = path.with_suffix(".old")
        assert aside.read_bytes() == content
        assert str(aside) in one.note


def test_a_second_run_at_once_has_a_journal_of_its_own():
    with opened(resume=False) as first, opened(resume=False) as second:
        assert first.path != second.path
        first.append(journal.TRIAL, number=1)
        second.append(journal.TRIAL, number=2)
        first.append(journal.END)
    with opened() as unfinished:
        assert numbers(unfinished) == [2]


def test_a_full_disk_is_one_message_and_the_file_stays_whole(monkeypatch):
    path = filled()
    write = os.write

    def full(descriptor, data):
        if len(data) > 20:
            return write(descriptor, data[:20])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with opened() as one:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(XframeError, match=r"can't write the journal .*No space left on device.*--resume"):
                one.append(journal.TRIAL, number=3, text="x" * 50)
        assert path.read_bytes().count(b"\n") == 4
        one.append(journal.TRIAL, number=4)
    with opened() as one:
        assert numbers(one) == [0, 1, 2, 4]


def test_room_is_looked_at_before_the_work(monkeypatch, tmp_path):
    journal.check_room(tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(XframeError, match=f"can't write to the folder {tmp_path}/file/out: "):
        journal.check_room(tmp_path / "file" / "out")
    monkeypatch.setattr(journal, "LEAST_FREE", 1 << 60)
    with pytest.raises(XframeError, match="MiB free, and tuning wants"):
        journal.check_room(tmp_path)


def test_a_home_that_can_not_be_written_is_told(monkeypatch):
    files.home().parent.mkdir(exist_ok=True)
    files.home().write_text("a file")
    with pytest.raises(XframeError, match=r"can't write the journal .* XFRAME_HOME"):
        opened()


def test_trials_come_back_as_they_were():
    knobs = (("rows", 3), ("unroll", 2))
    for point in (Point((6, 2), knobs), Point((6, 2), (), '[["a", 1]]')):
        trial = Trial(point, "OK", "", (1e-3, 2e-3), (3e-3,), 0.5, "ab", cpu_s=0.25, where="here")
        assert journal.trial_of(json.loads(json.dumps(journal.plain(trial)))) == trial
    failed = Trial(point, *crashes(task(), point))
    assert journal.trial_of(json.loads(json.dumps(journal.plain(failed)))) == failed
