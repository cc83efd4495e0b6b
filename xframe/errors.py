"""Every error that xframe raises on purpose.

::

    XframeError                 exit code 1; outcome FAILED
    |-- UsageError              exit code 2; the request itself makes no sense (unknown name, bad flag)
    |-- ModelError              a model file that can't be used (missing, broken, dynamic, wrong dtype)
    |-- Unsupported             outcome UNSUPPORTED: can't be done by design
    |-- Unavailable             outcome UNAVAILABLE: a package or device is missing here
    |-- NotHonoured             outcome NOT_HONOURED; exit code 4: something else than the request would have run
    |-- Mismatch                outcome MISMATCH; exit code 3: outputs beyond their error bound
    |-- WorkerDied              outcome FAILED: the worker process crashed
    `-- WorkerTimeout           outcome TIMEOUT

A message says what was asked, what happened and what to do. Python 3.6 upwards, standard library only.
"""

from xframe.types import Outcome


class XframeError(Exception):
    """Base of all errors that a user should read rather than debug."""

    outcome = Outcome.FAILED
    exit_code = 1


class UsageError(XframeError):
    exit_code = 2


class ModelError(XframeError):
    pass


class Unsupported(XframeError):
    outcome = Outcome.UNSUPPORTED


class Unavailable(XframeError):
    outcome = Outcome.UNAVAILABLE


class NotHonoured(XframeError):
    outcome = Outcome.NOT_HONOURED
    exit_code = 4


class Mismatch(XframeError):
    outcome = Outcome.MISMATCH
    exit_code = 3


class WorkerDied(XframeError):
    pass


class WorkerTimeout(XframeError):
    outcome = Outcome.TIMEOUT


def by_outcome(outcome, reason):
    """The error of an outcome's name, for one that was only told about."""
    classes = (Unsupported, Unavailable, NotHonoured, Mismatch, WorkerTimeout)
    return next((c for c in classes if c.outcome.value == outcome), XframeError)(reason)


def by_kind(kind, reason):
    """The error whose class has this name, for one that another process raised."""
    found = globals().get(kind)
    return (found if isinstance(found, type) and issubclass(found, XframeError) else XframeError)(reason)
