"""JSON that a stranger may have written: every value is checked for type and size before anything is made of it."""

import json
import math
import os
import re
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Any

from xframe.errors import XframeError

#: Bytes of one file, and characters of one word: far more than any log of ours has.
MOST_BYTES, MOST_TEXT = 64 << 20, 500


class LogError(XframeError):
    """A schedule log that can't be used, and why."""


def text_of(path: Path) -> str:
    """The content of a file. Links, devices and pipes are not followed, opened or waited for.

    Raises
    ------
    LogError
        It is missing, unreadable, too large, not a plain file, or not UTF-8.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise LogError(f"{path.name} is not a plain file")
            if found.st_size > MOST_BYTES:
                raise LogError(f"{path.name} has more than {MOST_BYTES >> 20} MiB, which no log of xframe has")
            with open(fd, "rb", closefd=False) as f:
                content = f.read(MOST_BYTES)
        finally:
            os.close(fd)
    except OSError as e:
        if os.path.islink(path):
            raise LogError(f"{path.name} is a symbolic link, which is not followed") from e
        why = "is missing" if isinstance(e, FileNotFoundError) else f"can't be read ({e.strerror or e})"
        raise LogError(f"{path.name} {why}") from e
    try:
        return content.decode()
    except UnicodeDecodeError as e:
        raise LogError(f"{path.name} is not text ({e.reason} at byte {e.start})") from e


def parsed(text: str, where: str) -> Any:
    """``text`` as JSON; ``where`` names it. Raises LogError, also on NaN, on what is nested without end, and on a key
    that is there twice."""

    def pairs(items):
        found = dict(items)
        if len(found) < len(items):
            raise LogError(f"{where} has a key twice")
        return found

    def constant(name):
        raise LogError(f"{where} has {name}, which is no number")

    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except RecursionError as e:
        raise LogError(f"{where} is nested too deeply") from e
    except ValueError as e:
        raise LogError(f"{where} is not whole JSON: it was cut short or edited ({e})") from e


class Fields:
    """A JSON object with just the fields ``names``, each read with a check. ``where`` names it in errors.

    Every method raises LogError where the value is not as asked.
    """

    def __init__(self, data: Any, where: str, names: Collection[str]):
        self._where = where
        if not isinstance(data, dict):
            raise LogError(f"{where} is not a JSON object")
        missing, unknown = sorted(set(names) - set(data)), sorted(set(data) - set(names))
        if missing or unknown:
            what = [*(f"lacks {n!r}" for n in missing), *(f"has an unknown field {n[:40]!r}" for n in unknown)]
            raise LogError(f"{where} {what[0]}")
        self._data = data

    def __getitem__(self, name: str) -> Any:
        """The value as it stands, unchecked."""
        return self._data[name]

    def _wrong(self, name: str, must: str) -> LogError:
        return LogError(f"{name!r} in {self._where} must be {must}, and is {_shown(self._data[name])}")

    def text(self, name: str, pattern: str = r".+", most: int = MOST_TEXT) -> str:
        """A printable line that ``pattern`` matches whole."""
        value = self._data[name]
        if not isinstance(value, str):
            raise self._wrong(name, "text")
        if len(value) > most or not value.isprintable() or not re.fullmatch(pattern, value):
            raise self._wrong(name, f"a line of at most {most} characters like {pattern}")
        return value

    def optional_text(self, name: str) -> str | None:
        return None if self._data[name] is None else self.text(name)

    def number(self, name: str, least: float, most: float) -> float:
        value = self._data[name]
        if not _is_number(value, least, most):
            raise self._wrong(name, f"a number from {least:g} to {most:g}")
        return float(value)

    def whole(self, name: str, least: int, most: int) -> int:
        value = self._data[name]
        if type(value) is not int or not least <= value <= most:
            raise self._wrong(name, f"a whole number from {least} to {most}")
        return value

    def numbers(self, name: str, least: float, most: float, count: int) -> tuple[float, ...]:
        """One number to ``count`` of them."""
        value = self._data[name]
        if not isinstance(value, list) or not 1 <= len(value) <= count:
            raise self._wrong(name, f"a list of 1 to {count} numbers")
        for one in value:
            if not _is_number(one, least, most):
                raise self._wrong(name, f"numbers from {least:g} to {most:g}")
        return tuple(map(float, value))

    def texts(self, name: str, pattern: str, count: int) -> tuple[str, ...]:
        """A list of at most ``count`` words."""
        value = self._data[name]
        if not isinstance(value, list) or len(value) > count:
            raise self._wrong(name, f"a list of at most {count} words")
        where = f"{name!r} in {self._where}"
        return tuple(Fields({"word": one}, where, ["word"]).text("word", pattern) for one in value)

    def integers(self, name: str, pattern: str, least: int, most: int, count: int) -> dict[str, int]:
        """An object of at most ``count`` whole numbers whose names ``pattern`` matches."""
        value = self._data[name]
        if not isinstance(value, dict) or len(value) > count or not all(re.fullmatch(pattern, k) for k in value):
            raise self._wrong(name, f"an object of at most {count} whole numbers")
        fields = Fields(value, f"{name!r} in {self._where}", value)
        return {key: fields.whole(key, least, most) for key in value}


def _is_number(value: Any, least: float, most: float) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and least <= value <= most


def _shown(value: Any) -> str:
    """A value in a message: short, and printable whatever it is."""
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
