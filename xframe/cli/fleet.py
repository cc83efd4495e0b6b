"""The commands ``fleet tracker``, ``fleet server`` and ``fleet status``: measuring on several machines."""

from __future__ import annotations

import json as jsonlib
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from xframe.cli import console, options
from xframe.errors import UsageError

if TYPE_CHECKING:
    from xframe.fleet.address import Address

app = typer.Typer(
    help="Measure on several machines: a tracker that knows them, a server on each.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Host = Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen; whoever can connect can run code here.")]
Key = Annotated[str, typer.Option(metavar="NAME", help="Kind of device that this is: servers of a key are alike.")]
At = Annotated[str, typer.Option("--tracker", metavar="HOST:PORT", help="The tracker.")]

#: Ports of servers, as TVM's own: the first that is free.
PORTS = range(9091, 9190)


@app.command()
def tracker(host: Host = "127.0.0.1", port: Annotated[int, typer.Option(help="Port; 0 for any.")] = 9190) -> int:
    """Know the servers of a fleet, and hand them out. Runs until it is interrupted."""
    from xframe.fleet import address, processes
    from xframe.fleet import tracker as trackers

    listener = address.listen(host, [_port(port)])
    here = address.Address(host, listener.getsockname()[1])
    _warn(here)
    run = trackers.server()

    def serve():
        print(f"tracker at {here}", flush=True)
        run(listener)

    processes.run_until_asked_to_end(serve)
    return 0


@app.command()
def server(
    key: Key,
    tracker: At,
    host: Host = "127.0.0.1",
    port: Annotated[int | None, typer.Option(help="Port; the first free one from 9091 by default.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of a kernel, at most; all CPUs by default.")] = None,
    report: Annotated[
        str | None, typer.Option(metavar="HOST", help="Where clients are told to connect; --host by default.")
    ] = None,
) -> int:
    """Measure for others, one at a time; comes back when a kernel crashes it. Runs until it is interrupted."""
    from xframe import environment
    from xframe.fleet import address, supervisor

    address.check_key(key)
    at = address.Address.parse(tracker)
    cpus = len(environment.allowed_cpus())
    if threads is not None and not 1 <= threads <= cpus:
        raise UsageError(f"--threads {threads} makes no sense here: this process may use {cpus} CPUs")
    supervisor.check_installed()
    listener = address.listen(host, PORTS if port is None else [_port(port)])
    here = address.Address(host, listener.getsockname()[1])
    _warn(here)
    print(f"server of {key} at {here}, known to the tracker at {at}", flush=True)
    reported = report or (None if here.wildcard else host)
    supervisor.server(listener, key, at, reported, threads or cpus, lambda line: print(line, file=sys.stderr))
    return 0


@app.command()
def status(tracker: At, json: options.Json = False) -> int:
    """The servers that a tracker knows, and how busy those of each key are."""
    from xframe.fleet.address import Address
    from xframe.fleet.tracker import Tracker

    found = Tracker(Address.parse(tracker)).status()
    with console.quiet_pipe():
        for key, at in found.servers:
            if json:
                print(jsonlib.dumps({"kind": "server", "key": key, "host": at.host, "port": at.port}))
            else:
                print(f"server  {key:<16} {at}")
        for key, queue in found.queues.items():
            if json:
                facts = {"servers": queue.servers, "free": queue.free, "waiting": queue.waiting}
                print(jsonlib.dumps({"kind": "key", "key": key, **facts}))
            else:
                print(f"key     {key:<16} {queue.servers} servers, {queue.free} free, {queue.waiting} requests waiting")
        if not found.servers and not json:
            print(f"no server is registered; on each machine: xframe fleet server --key NAME --tracker {tracker}")
    return 0


def _port(port: int) -> int:
    if not 0 <= port < 1 << 16:
        raise UsageError(f"--port {port} makes no sense: ports are 0 to 65535")
    return port


def _warn(here: Address) -> None:
    if not here.loopback:
        print(
            f"warning: {here} can be reached by other machines, and TVM's RPC trusts its peers: whoever connects can"
            " run code here; without --host only this machine can, and an ssh tunnel lets others in safely",
            file=sys.stderr,
            flush=True,
        )
