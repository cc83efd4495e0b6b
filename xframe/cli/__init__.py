"""The command line. Results on stdout, progress on stderr; whatever is heavy is imported by the command that needs it.

Exit codes: 0 fine, equivalent; 1 an error, a crash, nothing could be run, or a check that can't tell; 2 a request that
makes no sense; 3 outputs beyond their bound, not equivalent; 4 a forced plan was not honoured; 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from xframe.cli import console, environments, fleet, schedules, selftesting
from xframe.cli.ablating import ablate
from xframe.cli.building import build, gpu_check
from xframe.cli.checking import check
from xframe.cli.diffing import diff
from xframe.cli.explaining import explain
from xframe.cli.exporting import export
from xframe.cli.listing import devices
from xframe.cli.reporting import report
from xframe.cli.timing import compare, exit_code, run
from xframe.cli.tuning import tune
from xframe.errors import XframeError

__all__ = [
    "ablate",
    "app",
    "build",
    "check",
    "compare",
    "devices",
    "diff",
    "exit_code",
    "explain",
    "export",
    "gpu_check",
    "main",
    "report",
    "run",
    "tune",
]

app = typer.Typer(
    help="Is it the framework, or the convolution kernels it picks?",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for _command in (compare, run, explain, ablate, diff, report, tune, export, build, gpu_check, check, devices):
    app.command()(_command)
app.add_typer(schedules.app, name="schedules")
app.add_typer(fleet.app, name="fleet")
app.add_typer(environments.app, name="env")
app.add_typer(selftesting.app, name="selftest")

#: The base of the errors of the option parser. Typer has its own copy of click, or click itself, depending on its age.
_ParserError: type[Exception] = typer.BadParameter.__bases__[0].__bases__[0]


def main(argv: Sequence[str] | None = None) -> int:
    """The console script: runs a command and gives its exit code. Errors become one line on stderr."""
    try:
        return app(args=None if argv is None else list(argv), prog_name="xframe", standalone_mode=False) or 0
    except XframeError as e:
        return console.complain(e)
    except _ParserError as e:
        text = e.format_message()  # type: ignore[attr-defined]
        print(text if type(e).__name__ == "NoArgsIsHelpError" else f"xframe: {text}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, typer.Abort):
        print("xframe: interrupted", file=sys.stderr)
        return 130
    except ModuleNotFoundError as e:
        print(f"xframe: the Python module {e.name} is missing here: pip install xframe-eval, or -e .", file=sys.stderr)
        return 1
    except BrokenPipeError:
        console.drop_stdout()
        return 1
