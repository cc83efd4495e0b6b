"""Where a plugin's worker runs: this interpreter, or that of the isolated environment that its registry row names."""

from collections.abc import Iterable

from xframe import environments
from xframe.registry import Row, variables
from xframe.worker.host import Worker


def worker(
    table: dict[str, Row],
    name: str,
    threads: int,
    device: str = "cpu",
    cpus: Iterable[int] | None = None,
    options: Iterable[tuple[str, str]] = (),
) -> Worker:
    """A worker for the plugin ``name`` of ``table``.

    Parameters
    ----------
    threads, device, cpus
        As :class:`~xframe.worker.host.Worker` takes them.
    options
        The switches of the plugin that are not at their default.

    Raises
    ------
    Unavailable
        The plugin's environment is not built; the message says what to run.
    UsageError
        It has no such switch.
    Unsupported
        One of them changes nothing on this device.
    """
    settings, environment = variables(table, name, options, device), table[name].environment
    if not environment:
        return Worker(threads, device, cpus, variables=settings)
    built = environments.find(environment)
    return Worker(threads, device, cpus, built.python, {**built.variables, **settings}, alone=True)
