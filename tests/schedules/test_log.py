"""A log comes back as it was written; a broken, edited, old or hostile one is refused in one sentence."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.schedules.logs import OTHER, SITE, WHOLE, entry, forged, log, record, relined, retraced, saved, task
from xframe.errors import XframeError
from xframe.schedules import log as logs
from xframe.schedules.log import FILES, META, NEXT, RECORDS, WORKLOADS, LogError, read, write

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "acme-one-avx2-f7m1" / "net-b1" / "direct"


def first(change):
    """A forgery of the first entry."""
    return lambda folder: forged(folder, lambda meta: change(meta["entries"][0]))


def put(**values):
    return first(lambda one: one.update(values))


def head(**values):
    """A forgery of what is not the entries."""
    return lambda folder: forged(folder, lambda meta: meta.update(values))


def of_device(**values):
    return lambda folder: forged(folder, lambda meta: meta["device"].update(values))


def lines(name, *texts):
    """A forgery of a table's lines."""
    return lambda folder: relined(folder, name, lambda _: texts)


def traced(*instructions):
    return lambda folder: retraced(folder, *instructions)


def cut(name, by=100):
    def change(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: max(0, len(content) - by)])

    return change


def edited(name, old, new):
    def change(folder):
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return change


def instead(name, make):
    def change(folder):
        (folder / name).unlink()
        make(folder / name)

    return change


def linked(path):
    target = path.with_name("elsewhere")
    target.write_text("{}")
    path.symlink_to(target)


def huge(path):
    path.touch()
    os.truncate(path, 65 << 20)


def folder_linked(folder):
    folder.rename(folder.with_name("real"))
    folder.symlink_to(folder.with_name("real"))


def unreadable(folder, monkeypatch):
    opened = os.open

    def fails(path, *args, **kwargs):
        if Path(path).name == META:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", fails)


def dropped(name):
    return lambda folder: forged(folder, lambda meta: meta.pop(name))


def doubled(folder):
    write(folder, log(entry(), entry(task(OTHER))))
    forged(folder, lambda meta: [one.update(task=task()) for one in meta["entries"]])


#: What may be wrong with a log -> how it gets so, and words of the message.
BROKEN = {
    "meta cut short": (cut(META), "meta.json is not whole JSON: it was cut short"),
    "meta empty": (cut(META, 10**6), "meta.json is not whole JSON"),
    "records cut short": (cut(RECORDS, 20), f"{RECORDS} was edited or cut short"),
    "records empty": (cut(RECORDS, 10**6), f"{RECORDS} was edited or cut short"),
    "workloads cut short": (cut(WORKLOADS, 5), f"{WORKLOADS} was edited or cut short"),
    "a sample edited": (edited(META, "0.0011", "0.0009"), "meta.json was edited"),
    "the share edited": (edited(META, '"share": 0.25', '"share": 0.01'), "meta.json was edited"),
    "the device edited": (edited(META, "acme-one-avx2-f7m1", "acme-two-avx2-f7m2"), "meta.json was edited"),
    "a record edited": (edited(RECORDS, "xframe.fetch_ahead", "xframe.again"), f"{RECORDS} was edited"),
    "no meta": (instead(META, lambda path: None), "meta.json is missing"),
    "no records": (instead(RECORDS, lambda path: None), f"{RECORDS} is missing"),
    "no workloads": (instead(WORKLOADS, lambda path: None), f"{WORKLOADS} is missing"),
    "meta a link": (instead(META, linked), "meta.json is a symbolic link"),
    "records a link": (instead(RECORDS, linked), f"{RECORDS} is a symbolic link"),
    "meta a folder": (instead(META, Path.mkdir), "meta.json"),
    "meta a pipe": (instead(META, os.mkfifo), "meta.json is not a plain file"),
    "the folder a link": (folder_linked, "its folder is a symbolic link"),
    "meta binary": (instead(META, lambda path: path.write_bytes(b"\xff\xfe\x00")), "meta.json is not text"),
    "meta huge": (instead(META, huge), "64 MiB"),
    "meta nested": (instead(META, lambda path: path.write_text("[" * 100_000)), "nested too deeply"),
    "meta a list": (instead(META, lambda path: path.write_text("[]")), "no schema number"),
    "meta with a key twice": (instead(META, lambda path: path.write_text('{"schema": 1, "schema": 1}')), "a key twice"),
    "another schema": (head(schema=2), "it has schema 2, and this xframe reads 1"),
    "a schema of words": (head(schema="1"), "it has schema '1'"),
    "no entries": (dropped("entries"), "lacks 'entries'"),
    "no device": (dropped("device"), "lacks 'device'"),
    "an unknown field": (head(more=1), "unknown field 'more'"),
    "entries no list": (head(entries={}), "an entry for each line"),
    "an entry too many": (lambda f: forged(f, lambda meta: meta["entries"].append({})), "an entry for each line"),
    "an entry twice": (doubled, "it has a kernel twice"),
    "an entry no object": (head(entries=[7]), "entry 1 is not a JSON object"),
    "NaN": (put(share="RAW:NaN"), "NaN, which is no number"),
    "infinite": (put(share="RAW:Infinity"), "Infinity, which is no number"),
    "overflowing": (put(share="RAW:1e999"), "'share' in entry 1 must be a number from 0 to 1"),
    "NaN samples": (put(seconds=["RAW:NaN"]), "NaN, which is no number"),
    "a sample of 1e10 s, MetaSchedule's failure": (put(seconds=[1e10]), "'seconds' in entry 1"),
    "a sample of nothing": (put(seconds=[0.0]), "'seconds' in entry 1"),
    "a negative sample": (put(baseline=[-1.0]), "'baseline' in entry 1"),
    "no samples": (put(seconds=[]), "'seconds' in entry 1 must be a list of 1 to"),
    "very many samples": (put(seconds=[1e-3] * 20_000), "'seconds' in entry 1 must be a list of 1 to"),
    "samples of words": (put(seconds=["1e-3"]), "'seconds' in entry 1"),
    "samples of truth": (put(seconds=[True]), "'seconds' in entry 1"),
    "a number of 5000 digits": (put(seed="RAW:" + "1" * 5000), "not whole JSON"),
    "a share above the bound": (put(share=1.01), "'share' in entry 1 must be a number from 0 to 1, and is 1.01"),
    "a loss": (put(seconds=[2e-3]), "entry 1 is slower than its baseline"),
    "a tile of words": (put(tile=["6", 2]), "'tile' in entry 1"),
    "a huge tile": (put(tile=[6, 10**9]), "'tile' in entry 1"),
    "a tile of three": (put(tile=[6, 2, 1]), "'tile' in entry 1"),
    "knobs of words": (put(knobs={"unroll": "2"}), "'unroll' in 'knobs' in entry 1"),
    "huge knobs": (put(knobs={"unroll": 1 << 40}), "'unroll' in 'knobs' in entry 1"),
    "knobs of MetaSchedule's space": (put(space="auto"), "entry 1 must have knobs if it is of the template"),
    "no knobs": (put(knobs=None), "entry 1 must have knobs if it is of the template"),
    "an unknown space": (put(space="grid"), "'space' in entry 1"),
    "a task of nothing": (put(task="conv1"), "'task' in entry 1"),
    "a task of no convolution": (put(task="n1 direct - NCHW bias t2"), "entry 1 is for no convolution"),
    "a task of padding": (put(task=task().replace("p1.1.1.1", "p1..1.1")), "entry 1 is for no convolution"),
    "a workload of words": (put(workload="../../etc"), "'workload' in entry 1"),
    "colours for the terminal": (put(session="\x1b[31mred"), "'session' in entry 1"),
    "a novel": (put(transferred="x" * 10_000), "'transferred' in entry 1"),
    "no date": (put(created="yesterday"), "'created' in entry 1 is no date"),
    "trials of a half": (put(trials=0.5), "'trials' in entry 1 must be a whole number"),
    "a slug that climbs": (of_device(slug="../../home"), "'slug' in the device"),
    "a cache of nothing": (of_device(caches={"L1": 0}), "'L1' in 'caches'"),
    "a device of nothing": (head(device=None), "the device is not a JSON object"),
    "a record of nothing": (lines(RECORDS, "7"), "no record of MetaSchedule's"),
    "a record of no JSON": (lines(RECORDS, "[0, "), f"line 1 of {RECORDS} is not whole JSON"),
    "a record without workload": (
        lines(RECORDS, record()),
        "is of a workload that is not there",
    ),
    "a record of another workload": (
        lambda f: relined(f, RECORDS, lambda lines: [lines[0].replace("[0,", "[5,", 1)]),
        "is of a workload that is not there",
    ),
    "a workload of nothing": (lines(WORKLOADS, "{}"), "no workload of MetaSchedule's"),
    "foreign code": (
        traced(["Annotate", ["b0", "; ModuleID = 'evil'"], ["pragma_import_llvm"], []]),
        "'pragma_import_llvm', which no schedule of xframe has: not replayed",
    ),
    "an annotation of nothing": (traced(["Annotate", ["b0", 1], [], []]), "the annotation ''"),
    "another type": (
        traced(["UnsafeSetDType", ["b0"], [0, "float16"], []]),
        "'UnsafeSetDType', which no schedule of xframe has: not replayed",
    ),
    "an intrinsic": (traced(["Tensorize", ["b0"], ["dot", 1], []]), "the intrinsic 'dot', which no schedule of xframe"),
    "a layout with gaps": (
        traced(["TransformLayout", ["b0", WHOLE], [0, 1, "0.0", 0], []]),
        "a layout with gaps, which no schedule of xframe has",
    ),
    "a layout that claims to have none": (
        traced(["TransformLayout", ["b0", WHOLE], [0, 1, None, 1], []]),
        "a layout with gaps, which no schedule of xframe has",
    ),
    "a layout of its own kind": (
        traced(["TransformLayout", ["b0", "{}"], [0, 1, None, 0], []]),
        "a layout in line 1 of database_tuning_record.json is no graph of objects",
    ),
    "rows far apart": (
        traced(["StorageAlign", ["b0"], [0, -2, 1 << 30, 0], []]),
        "aligns rows by more than 1024 values, which no schedule of xframe has",
    ),
    "an instruction that is none": (traced(["GetSBlock"]), "an instruction that is none"),
    "very many instructions": (traced(*[["EnterPostproc", [], [], []]] * 6000), "at most 5000 instructions"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_a_log_that_is_not_right_is_refused_in_one_sentence(folder, kind):
    change, words = BROKEN[kind]
    saved(folder)
    change(folder)
    with pytest.raises(LogError) as caught:
        read(folder)
    message = str(caught.value)
    assert words in message
    assert message.startswith(f"the schedule log {folder} is refused: ")
    assert message.endswith("; remove it, or tune anew")
    assert message.isprintable()
    assert len(message) < 500


def test_an_unreadable_file_is_refused_in_one_sentence(folder, monkeypatch):
    saved(folder)
    unreadable(folder, monkeypatch)
    with pytest.raises(LogError, match=r"meta\.json can't be read \(Permission denied\)"):
        read(folder)


FORBIDDEN = """
import os, sys
from pathlib import Path
from tests.schedules.logs import log
from xframe.errors import XframeError
from xframe.schedules import find
from xframe.schedules.log import is_log, read, write
folder, one = Path(sys.argv[1]), log()
if os.getuid() == 0:
    os.setuid(65534)
is_log(folder)
for call in (read, find.folders, lambda folder: write(folder, one)):
    try:
        print("done", call(folder))
    except XframeError as e:
        print(type(e).__name__, e)
"""


@pytest.mark.parametrize("closed", ["folder", "parent"])
def test_a_folder_that_is_closed_to_us_is_one_sentence_whatever_is_done(folder, closed):
    saved(folder)
    tight = folder if closed == "folder" else folder.parent
    tight.chmod(0)
    try:
        with python(FORBIDDEN, folder) as process:
            reading, listing, writing = process.communicate()[0].splitlines()
    finally:
        tight.chmod(0o755)
    assert reading.startswith(
        f"LogError the schedule log {folder} is refused: {WORKLOADS} can't be read (Permission den"
    )
    assert listing.startswith("LogError ")
    assert writing.startswith(f"XframeError can't write to the folder {folder}: Permission denied; choose another one")


def test_a_folder_without_a_log_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(LogError, match=r"database_workload\.json is missing"):
        read(tmp_path / "absent")


def test_a_log_comes_back_as_it_was(folder):
    own = entry(task(OTHER), gain=2.0, knobs=None, space="auto", transferred="net-b16", workload_line='["7", "eA=="]')
    one = log(entry(), own)
    write(folder, one)
    assert read(folder) == one
    assert sorted(p.name for p in folder.iterdir()) == sorted(FILES)


def test_kernels_of_one_function_share_its_line(folder):
    saved(folder, entry(), entry(task(OTHER)))
    assert len((folder / WORKLOADS).read_text().splitlines()) == 1
    assert [json.loads(line)[0] for line in (folder / RECORDS).read_text().splitlines()] == [0, 0]


def test_what_an_entry_tells(folder):
    one = entry(gain=1.5)
    assert one.gain == pytest.approx(1.5)
    assert (one.site, one.lowering, one.threads) == (SITE, "direct", 2)
    assert json.loads(one.trace) == json.loads(record())[0]


def test_a_line_of_the_table_is_as_good_as_its_record(folder):
    saved(folder, entry(record=f"[3, {record()}]"))
    assert read(folder).entries[task()] == entry()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seconds": (float("nan"),)}, "NaN"),
        ({"share": 1.5}, "share"),
        ({"seconds": (1.0,)}, "slower than its baseline"),
        ({"record": "{}"}, "no record"),
        ({"workload": ""}, "workload"),
    ],
)
def test_what_would_be_refused_is_not_written(folder, change, words):
    saved(folder)
    with pytest.raises(LogError, match=words):
        write(folder, log(entry(**change)))
    assert read(folder) == log()


def test_losses_are_read_only_by_who_asks(folder):
    saved(folder)
    put(seconds=[2e-3])(folder)
    assert read(folder, losses=True).entries[task()].gain < 1


def test_nothing_is_written_through_a_link(folder):
    folder.parent.mkdir(parents=True)
    (folder.parent / "elsewhere").mkdir()
    folder.symlink_to(folder.parent / "elsewhere")
    with pytest.raises(LogError, match="symbolic link"):
        write(folder, log())
    assert list((folder.parent / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("name", FILES)
def test_a_link_in_the_place_of_a_file_is_replaced_not_followed(folder, name):
    saved(folder)
    (folder / name).unlink()
    linked(folder / name)
    write(folder, log(entry(gain=2)))
    assert (folder / "elsewhere").read_text() == "{}"
    assert read(folder) == log(entry(gain=2))


def test_a_folder_that_can_not_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(XframeError, match=r"can't write to the folder .*Not a directory; choose another one"):
        write(tmp_path / "file" / "log", log())


FULL = """
import resource, sys
from pathlib import Path
from tests.schedules.logs import entry, log, task, OTHER
from xframe.errors import XframeError
from xframe.schedules.log import write
big = entry(task(OTHER), workload_line='["7", "' + "e" * 200_000 + '"]')
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    write(Path(sys.argv[1]), log(entry(), big))
except XframeError as e:
    print(e)
"""


def python(code, *args, **options):
    options = {"stdout": subprocess.PIPE, "text": True, **options}
    return subprocess.Popen([sys.executable, "-c", code, *map(str, args)], cwd=ROOT, **options)


def test_what_finds_no_room_leaves_the_old_log(folder):
    """A limit on the size of files stands in for a full disk: the system refuses the same call."""
    saved(folder)
    with python(FULL, folder) as process:
        said = process.communicate()[0]
    assert said.startswith(
        f"can't write the schedule log {folder}: File too large; choose another folder or free some space"
    )
    assert read(folder) == log()
    assert sorted(p.name for p in folder.iterdir()) == sorted(FILES)


@pytest.mark.parametrize("step", range(7))
def test_a_writer_that_dies_anywhere_leaves_the_old_log_or_the_new_one(folder, monkeypatch, step):
    """Killed before its n-th rename: os.replace and os.rename are all that changes what a reader sees."""
    saved(folder)
    new = log(entry(gain=2))
    count = 0

    class Killed(BaseException):
        pass

    def counted(real):
        def call(*args):
            nonlocal count
            count += 1
            if count > step:
                raise Killed
            return real(*args)

        return call

    with monkeypatch.context() as patched:
        for name in ("replace", "rename"):
            patched.setattr(os, name, counted(getattr(os, name)))
        try:
            write(folder, new)
            done = True
        except Killed:
            done = False
    assert read(folder) == (new if done or step > 0 else log())
    write(folder, log(entry(gain=3)))  # and the next writer goes on
    assert read(folder) == log(entry(gain=3))
    assert sorted(p.name for p in folder.iterdir()) == sorted(FILES)


WRITER = """
import sys
from pathlib import Path
from tests.schedules.logs import entry, log
from xframe.schedules.log import write
print("ready", flush=True)
while True:
    for gain in (2, 3):
        write(Path(sys.argv[1]), log(entry(gain=gain)))
"""


def test_a_reader_never_sees_half_a_log_and_kill_9_leaves_a_whole_one(folder):
    saved(folder, entry(gain=2))
    good = [log(entry(gain=2)), log(entry(gain=3))]
    for _ in range(3):
        with python(WRITER, folder) as process:
            assert process.stdout.readline() == "ready\n"
            seen = [read(folder) for _ in range(60)]
            process.send_signal(signal.SIGKILL)
        assert all(one in good for one in [*seen, read(folder)])
    write(folder, log())
    assert sorted(p.name for p in folder.iterdir()) == sorted(FILES)


def test_a_complete_log_that_waits_is_the_log(folder):
    saved(folder)
    waiting = folder / NEXT
    saved(folder.with_name("new"), entry(gain=2)).rename(waiting)
    assert read(folder) == log(entry(gain=2))
    (folder / META).write_text("half a f")
    assert read(folder) == log(entry(gain=2))


def test_a_log_is_removed_with_its_folder(folder):
    saved(folder)
    logs.remove(folder)
    assert not folder.exists()
    saved(folder)
    (folder / "notes.txt").write_text("kept")
    logs.remove(folder)
    assert [p.name for p in folder.iterdir()] == ["notes.txt"]


def test_reading_needs_no_tvm(folder):
    saved(folder)
    code = (
        "import sys\nfrom pathlib import Path\nfrom xframe.schedules import device, find, log, merge, software\n"
        "log.read(Path(sys.argv[1]))\nfind.stale(log.read(Path(sys.argv[1])))\n"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('tvm', 'tvm_ffi', 'xgboost')))"
    )
    with python(code, folder) as process:
        assert process.communicate()[0] == "[]\n"


def test_threads_write_one_after_the_other(folder):
    """Each adds its entry to what is there."""
    names = [task(replace(SITE, batch=n)) for n in range(1, 9)]

    def add(name):
        with logs.lock(folder):
            known = read(folder).entries if logs.is_log(folder) else {}
            write(folder, log(*known.values(), entry(name)))

    threads = [threading.Thread(target=add, args=[n]) for n in names]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert set(read(folder).entries) == set(names)


def test_the_documentation_has_every_field_of_the_format(folder):
    meta = json.loads((saved(folder) / META).read_text())
    text = (ROOT / "docs" / "schedules.md").read_text()
    for name in [*meta, *meta["device"], *meta["entries"][0]]:
        assert f'"{name}": ' in text, name
    for name in {*meta, *meta["entries"][0]} - {"entries"}:
        assert f"`{name}`" in text, name
