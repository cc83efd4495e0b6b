"""``python -m xframe.worker [--cpus 0,1]``: requests on stdin, replies on stdout, one JSON object a line.

The pipe ends move away from file descriptors 0 and 1 before any plugin is imported: what native code prints there goes
to stderr, and can't be taken for a reply.
"""

import json
import os
import queue
import sys
import threading
import traceback


def one_line(error: BaseException) -> str:
    """``Type: first line``, trimmed to what fits a table."""
    lines = [x.strip() for x in str(error).splitlines() if x.strip()]
    text = "%s: %s" % (type(error).__name__, lines[0]) if lines else type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."


def answer(session, request):
    """The reply to one request; errors become replies too."""
    from xframe.errors import XframeError

    try:
        return session.handle(request)
    except XframeError as e:
        return {"ok": False, "kind": type(e).__name__, "reason": str(e)}
    except MemoryError as e:
        traceback.print_exc()
        return {"ok": False, "kind": "XframeError", "reason": "out of memory: %s" % one_line(e)}
    except Exception as e:
        traceback.print_exc()
        return {"ok": False, "kind": "XframeError", "reason": one_line(e)}


def main():
    requests = os.fdopen(os.dup(0), "r")
    replies = os.fdopen(os.dup(1), "w")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    if "--cpus" in sys.argv:
        # Before numpy or a plugin is imported: thread pools are sized by what is allowed then.
        os.sched_setaffinity(0, {int(c) for c in sys.argv[sys.argv.index("--cpus") + 1].split(",")})

    # A thread reads, so that the end of the pipe (the host is gone) ends this process even in the middle of a command.
    todo = queue.Queue()  # type: queue.Queue

    def read():
        for line in requests:
            todo.put(json.loads(line))
        os._exit(1)

    threading.Thread(target=read, daemon=True).start()

    from xframe.worker.session import Session

    session = Session()
    while True:
        request = todo.get()
        closing = request["cmd"] == "close"
        if closing:
            session.close()
        reply = {"ok": True} if closing else answer(session, request)
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
        sys.stderr.flush()
        if closing:
            # Not a return: the destructors of some runtimes hang or crash at exit, and nothing is left to save.
            os._exit(0)


if __name__ == "__main__":
    main()
