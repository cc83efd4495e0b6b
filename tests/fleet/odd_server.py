"""A server that is not as it should be, in a way of its own: ``python -m tests.fleet.odd_server KIND KEY TRACKER``.

``liar`` says that it is another machine, ``slow`` takes its time, ``vain`` gives samples that are none, ``stock`` has
no functions but TVM's.
"""

import sys
import time
from dataclasses import replace

from xframe.fleet.address import Address, listen
from xframe.fleet.serving import serve
from xframe.worker.alone import without_frameworks


def functions(kind: str) -> dict:
    with without_frameworks():
        from xframe.fleet import session
        from xframe.fleet.about import here

    about = here(1)
    if kind == "liar":
        about = replace(about, identity=replace(about.identity, name="Intel Xeon", family="6", model="85"))
    made = session.Session(about.to_json()).functions()
    load = made[session.LOAD]

    def late(library, upload, threads):
        time.sleep(1)
        load(library, upload, threads)

    if kind == "slow":
        made[session.LOAD] = late
    if kind == "vain":
        made[session.SAMPLES] = lambda: '{"seconds": [-1.0], "baseline": [NaN], "note": ""}'
    return {} if kind == "stock" else made


if __name__ == "__main__":
    kind, key, tracker = sys.argv[1:]
    listener = listen("127.0.0.1", [0])
    print("server at", Address(*listener.getsockname()[:2]), flush=True)
    serve(listener, key, Address.parse(tracker), None, functions(kind))
