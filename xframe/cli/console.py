"""What commands write to a terminal or a pipe."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from xframe.errors import XframeError


def complain(error: XframeError) -> int:
    """The error as one line on stderr; its exit code."""
    print(f"xframe: {' '.join(str(error).split())}", file=sys.stderr)
    return error.exit_code


class Progress:
    """Lines on stderr; in a terminal, one line that changes."""

    def __call__(self, line: str) -> None:
        if sys.stderr.isatty():
            width = max(os.get_terminal_size(sys.stderr.fileno()).columns, 20)
            print(f"\r\x1b[K{line[: width - 1]}", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def clear(self) -> None:
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def quiet_pipe() -> Iterator[None]:
    """Whoever reads stdout may stop reading (``| head``): no error."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        drop_stdout()


def drop_stdout() -> None:
    """Let the rest of the output go nowhere."""
    with contextlib.suppress(OSError, ValueError):  # stdout may be no file at all
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
