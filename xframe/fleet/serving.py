"""TVM's RPC server, as ``python -m xframe.fleet.serving``: the process that the supervisor keeps alive.

Each session is a fork of this process, so a kernel that crashes takes its session along and nothing else. TVM's own
loop ends then; here it begins again at once, and also when the tracker has been gone for long.
"""

from __future__ import annotations

import argparse
import gc
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping

from xframe.fleet import processes
from xframe.fleet.address import Address
from xframe.worker.alone import without_frameworks

#: Seconds before the loop begins again.
_PAUSE_S = 0.2


def serve(
    listener: socket.socket, key: str, tracker: Address, reported: str | None, functions: Mapping[str, Callable]
) -> None:
    """Serve sessions at ``listener``, one at a time, for ever.

    ``reported``: the host that the tracker tells to clients; None: the one that it sees. ``functions``: what a session
    can be asked beyond TVM's own.
    """
    import tvm_ffi
    from tvm.rpc import server

    server.logger.setLevel("WARNING")  # it tells of each session in five lines
    for name, function in functions.items():
        tvm_ffi.register_global_func(name, function, override=True)
    port, home = listener.getsockname()[1], os.getcwd()
    while True:
        try:
            server._listen_loop(listener, port, key, (tracker.host, tracker.port), "", reported)
        except Exception as e:
            print(f"xframe fleet server: {e or type(e).__name__}; serving on", file=sys.stderr, flush=True)
        os.chdir(home)  # a session that crashed left the loop in its own folder
        gc.collect()  # the loop's connections are closed with its frames, and only then are their peers told
        time.sleep(_PAUSE_S)


def arguments() -> argparse.Namespace:
    """Of the command line that the supervisor gives."""
    parser = argparse.ArgumentParser(prog="xframe.fleet.serving")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--tracker", type=Address.parse, required=True)
    parser.add_argument("--reported")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    processes.live_with_parent()
    with without_frameworks():
        from xframe.fleet.about import here
        from xframe.fleet.session import Session

    functions = Session(here(int(os.environ["TVM_NUM_THREADS"])).to_json()).functions()
    serve(socket.socket(fileno=given.fd), given.key, given.tracker, given.reported, functions)


if __name__ == "__main__":
    main()
