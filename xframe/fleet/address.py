"""Where something listens: ``host:port``, and a socket there."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from xframe.errors import UsageError, XframeError

#: What a key may be made of: TVM's handshake splits its line at white space.
_KEY = re.compile(r"[A-Za-z0-9._+-]{1,64}")


@dataclass(frozen=True, order=True)
class Address:
    """A TCP address; as text ``host:port``, with brackets around an IPv6 host."""

    host: str
    port: int

    @staticmethod
    def parse(text: str, flag: str = "tracker") -> Address:
        """``"127.0.0.1:9190"`` as an address. Raises UsageError, which names ``--flag``, on anything else."""
        host, _, port = text.strip().rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise UsageError(f"--{flag} {text!r} is not an address: it reads like 127.0.0.1:9190")
        return Address(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it, as far as the text tells."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def wildcard(self) -> bool:
        """Whether it stands for all of the machine's interfaces, so that nobody can be told to connect to it."""
        try:
            return ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            return False


def check_key(key: str) -> str:
    """``key`` itself. Raises UsageError where it can't name a kind of device."""
    if not _KEY.fullmatch(key):
        raise UsageError(f"--key {key!r} can't name a kind of device: use up to 64 letters, digits and . _ + -")
    return key


def listen(host: str, ports: Iterable[int]) -> socket.socket:
    """A listening socket at the first of ``ports`` that is free; 0 is any free one.

    Raises
    ------
    XframeError
        None is free, or ``host`` is not an address of this machine.
    """
    ports = list(ports)
    for port in ports:
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((host, port), family=family, backlog=64)
        except OSError as e:
            error = e
            if isinstance(e, socket.gaierror):
                break
    words = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
    tried = str(Address(host, ports[0])) + (f" to {ports[-1]}" if len(ports) > 1 else "")
    raise XframeError(f"can't listen at {tried}: {words}; give another --host or --port")
