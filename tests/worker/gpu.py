"""A driver that plays a GPU in time that only this file moves on: streams, events, and the host's own clock.

Work on a stream begins when it was asked for, when what was there before is over, and when what its stream, or the
whole context, was told to wait for has passed. Each call of the driver takes the host a microsecond.
"""

import ctypes

CALL = 1e-6
NOT_READY, INVALID = 600, 400


class Driver:
    """Set ``waits`` to False for a context that does not make its streams wait, ``joins`` for one whose events do not
    wait for them; ``queue``: the host waits where more than so many kernels have not begun; ``version`` as the driver
    gives it; ``slow``: seconds that calls of the context take at first; ``sleeps``: functions of the host do."""

    def __init__(self, version=13000, waits=True, joins=True, queue=1024, slow=0.0, sleeps=True):
        self.sleeps = sleeps
        self.version, self.waits, self.joins, self.queue, self.slow = version, waits, joins, queue, slow
        self.begins, self.called, self.untimed = [], set(), set()
        self.now, self.floor = 0.0, 0.0
        self.streams = {None: 0.0}  # handle -> when what was asked of it is over
        self.events = {}  # handle -> when it passes
        self.retained, self.pushed, self._last = 0, 0, 0x1000

    def sleep(self, seconds):
        self.now += seconds

    def clock(self):
        return self.now

    def launch(self, seconds, stream=None):
        """A kernel."""
        self.now += CALL
        self.begins = [begin for begin in self.begins if begin > self.now]
        if len(self.begins) >= self.queue:
            self.now = max(self.now, self.begins.pop(0))
        begin = max(self.now, self.floor, self.streams[stream])
        self.begins.append(begin)
        self.streams[stream] = begin + seconds

    def wait(self):
        """As a framework does that waits for the device."""
        self.now = max(self.now, *self.streams.values())

    # -- the functions of the driver, as ctypes would call them

    def cuInit(self, flags):
        return 0

    def cuDriverGetVersion(self, into):
        into._obj.value = self.version
        return 0

    def cuDeviceGet(self, into, index):
        if index > 1:
            return 101
        into._obj.value = index + 40  # what CUDA calls a device is no index
        return 0

    def cuDevicePrimaryCtxRetain(self, into, device):
        assert device in (40, 41)
        into._obj.value = 0xC0
        self.retained += 1
        return 0

    def cuDevicePrimaryCtxRelease_v2(self, device):
        assert device in (40, 41)
        self.retained -= 1
        return 0

    def cuCtxPushCurrent_v2(self, context):
        assert context.value == 0xC0
        self.pushed += 1
        return 0

    def cuCtxPopCurrent_v2(self, into):
        self.pushed -= 1
        return 0

    def _new(self, into, table):
        assert self.pushed, "no context is current"
        self._last += 16
        into._obj.value = self._last
        table[self._last] = 0.0
        return 0

    def cuStreamCreate(self, into, flags):
        assert flags == 1
        return self._new(into, self.streams)

    def cuEventCreate(self, into, flags):
        assert flags in (0, 2), "a blocking one"
        status = self._new(into, self.events)
        if flags:
            self.untimed.add(self._last)
        return status

    def cuStreamDestroy_v2(self, stream):
        del self.streams[stream.value]
        return 0

    def cuEventDestroy_v2(self, event):
        del self.events[event.value]
        return 0

    def _stream(self, stream):
        return None if stream is None else stream.value

    def _once(self, function):
        self.now += CALL if function in self.called else CALL + self.slow
        self.called.add(function)

    def _free(self, stream):
        self.now += CALL
        return max(self.now, self.floor, self.streams[stream])

    def cuLaunchHostFunc(self, stream, function, argument):
        usleep = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p).value
        assert function.value == usleep
        key = self._stream(stream)
        self.streams[key] = self._free(key) + argument.value * 1e-6 * self.sleeps
        return 0

    def cuEventRecord(self, event, stream):
        key = self._stream(stream)
        self.events[event.value] = self.streams[key] = self._free(key)
        return 0

    def cuStreamWaitEvent(self, stream, event, flags):
        key = self._stream(stream)
        self.streams[key] = max(self._free(key), self.events[event.value]) + CALL  # the device takes a while to see it
        return 0

    def cuCtxWaitEvent(self, context, event):
        assert context.value == 0xC0
        self._once("cuCtxWaitEvent")
        if self.waits:
            self.floor = max(self.floor, self.events[event.value])
        return 0

    def cuCtxRecordEvent(self, context, event):
        assert context.value == 0xC0
        self._once("cuCtxRecordEvent")
        self.events[event.value] = max(self.now, *self.streams.values()) if self.joins else self.now
        return 0

    def cuEventQuery(self, event):
        self.now += CALL
        return 0 if self.events[event.value] <= self.now else NOT_READY

    def cuEventSynchronize(self, event):
        self.now = max(self.now + CALL, self.events[event.value])
        return 0

    def cuEventElapsedTime(self, into, start, end):
        if {start.value, end.value} & self.untimed:
            return INVALID
        times = self.events[start.value], self.events[end.value]
        if max(times) > self.now:
            return NOT_READY
        into._obj.value = (times[1] - times[0]) * 1e3
        return 0

    def cuGetErrorName(self, status, into):
        into._obj.value = {101: b"CUDA_ERROR_INVALID_DEVICE"}.get(status, b"CUDA_ERROR_INVALID_HANDLE")
        return 0
