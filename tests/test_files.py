"""Where xframe keeps things, and how it writes them."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from xframe import files
from xframe.errors import XframeError


def test_a_folder_is_made_written_and_left_empty(tmp_path):
    files.check_writable(tmp_path / "new" / "deep")
    assert list((tmp_path / "new" / "deep").iterdir()) == []


def test_a_folder_that_can_not_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(XframeError, match=f"can't write to the folder {tmp_path}/file/out: Not a directory; choose"):
        files.check_writable(tmp_path / "file" / "out")


def test_many_at_once_do_not_meet(tmp_path):
    """Neither does one take another's file away, nor does one that looks into the folder find any."""

    def checked(_):
        files.check_writable(tmp_path)
        return list(tmp_path.iterdir())

    with ThreadPoolExecutor(16) as pool:
        assert not any(pool.map(checked, range(2000)))


def test_writers_at_once_each_write_the_whole(tmp_path):
    path = tmp_path / "one.json"

    def written(number):
        with files.atomic(path) as part:
            part.write_text(f"{number}\n" * 1000)
        return set(path.read_text().split())

    with ThreadPoolExecutor(16) as pool:
        assert all(len(seen) == 1 for seen in pool.map(written, range(500)))
    assert list(tmp_path.iterdir()) == [path]
