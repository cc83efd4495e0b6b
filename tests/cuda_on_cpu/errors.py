"""What the shim finds wrong with a kernel, one class a kind."""


class KernelError(Exception):
    """A kernel does what no kernel may. The message names the kernel, the thread, the buffer and the line."""


class OutOfBounds(KernelError):
    """An access beyond a buffer, or a local or shared array."""


class Misaligned(KernelError):
    """A vector load or store at an address that is no multiple of its size."""


class Uninitialised(KernelError):
    """A read of device or shared memory that nothing has written; of shared memory: in this block."""


class Race(KernelError):
    """Two threads touch a word, one of them writes, and no barrier is between them."""


class Divergence(KernelError):
    """A barrier, a shuffle or a warp's barrier that not all of its threads reach."""


class BadLaunch(KernelError):
    """More threads, blocks or shared memory than the device has, or than the kernel was compiled for."""


class Refused(Exception):
    """The text of a kernel has something that the shim does not know, or g++ does not take."""


class ChildFailed(Exception):
    """What ran beside the kernels failed: the message is its traceback, or says how the process ended."""


KINDS = {
    c.__name__: c for c in (OutOfBounds, Misaligned, Uninitialised, Race, Divergence, BadLaunch, Refused, ChildFailed)
}
