"""Which plugins work here: each is imported in a process of its own, as it will be when it is used."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

from xframe import environments
from xframe.errors import Unavailable
from xframe.registry import Row
from xframe.worker.host import package_alone, plugin_row, worker_environment

_LIMIT = 120.0  # seconds for one import
_PROBE = """
import json, sys
from xframe import errors, registry
name, row = registry.received(json.loads(sys.argv[1]))
try:
    reply = {"version": registry.load({name: row}, name).version}
except errors.XframeError as e:
    reply = {"reason": str(e)}
except Exception as e:
    reply = {"reason": "%s: %s" % (type(e).__name__, e)}
sys.stdout.write("\\n" + json.dumps(reply) + "\\n")
"""


@dataclass(frozen=True)
class Availability:
    """``version`` of a plugin that imports here, or the ``reason`` why it does not."""

    name: str
    version: str | None
    reason: str = ""


def probe(table: dict[str, Row], limit: float = _LIMIT) -> Iterator[Availability]:
    """Each row of a registry table, one after another; ``limit``: seconds for the import of one."""
    for name, row in table.items():
        plugin = json.dumps(plugin_row(table, name))
        try:
            with tempfile.TemporaryDirectory() as folder:
                built, path = environments.Built(sys.executable, {}), None
                if row.environment:
                    built, path = environments.find(row.environment), package_alone(os.path.join(folder, "path"))
                command = [built.python, "-c", _PROBE, plugin]
                env = worker_environment(1, "cpu", built.variables, path)
                done = subprocess.run(command, capture_output=True, text=True, timeout=limit, env=env, cwd=path)
            reply = json.loads(done.stdout.splitlines()[-1])
        except Unavailable as e:
            reply = {"reason": str(e)}
        except subprocess.TimeoutExpired:
            reply = {"reason": f"its import did not end within {limit:g} s"}
        except (ValueError, IndexError):
            words = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            reply = {"reason": f"its import ended with exit code {done.returncode}: {words[-1] if words else ''}"}
        yield Availability(name, reply.get("version"), reply.get("reason", ""))
