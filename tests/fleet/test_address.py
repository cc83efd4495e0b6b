"""Addresses and keys: what is meant, and one clear line for what makes no sense."""

import socket

import pytest

from xframe.errors import UsageError, XframeError
from xframe.fleet.address import Address, check_key, listen


def test_an_address_reads_as_it_is_written():
    assert Address.parse("127.0.0.1:9190") == Address("127.0.0.1", 9190)
    assert Address.parse(" host.example:1 ") == Address("host.example", 1)
    assert Address.parse("[::1]:9190") == Address("::1", 9190)
    for text in ("127.0.0.1:9190", "[::1]:9190"):
        assert str(Address.parse(text)) == text


@pytest.mark.parametrize("text", ["", "9190", ":9190", "host", "host:", "host:0", "host:65536", "host:-1", "host:1e3"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(UsageError, match=r"--tracker '.*' is not an address: it reads like 127.0.0.1:9190"):
        Address.parse(text)


def test_who_can_reach_it():
    loopback = {"127.0.0.1": True, "127.1.2.3": True, "::1": True, "localhost": True}
    others = {"0.0.0.0": False, "::": False, "10.0.0.7": False, "some.host": False}
    for host, expected in {**loopback, **others}.items():
        assert Address(host, 1).loopback is expected, host
        assert Address(host, 1).wildcard is (host in ("0.0.0.0", "::")), host


@pytest.mark.parametrize("key", ["", "two words", "a:b", "tab\t", "x" * 65, "é"])
def test_a_key_that_the_handshake_would_tear_apart_is_refused(key):
    with pytest.raises(UsageError, match="can't name a kind of device"):
        check_key(key)


def test_a_key():
    assert check_key("amd-zen4_2.c+x") == "amd-zen4_2.c+x"


def test_the_first_free_port_is_taken():
    with listen("127.0.0.1", [0]) as taken:
        port = taken.getsockname()[1]
        with listen("127.0.0.1", [port, 0]) as other:
            assert other.getsockname()[1] != port
        with pytest.raises(XframeError, match=rf"can't listen at 127.0.0.1:{port}: .*in use; give another --host"):
            listen("127.0.0.1", [port])


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(XframeError, match=r"can't listen at 192.0.2.1:0: .*; give another --host or --port"):
        listen("192.0.2.1", [0])


def test_a_listening_socket_takes_connections():
    with listen("127.0.0.1", [0]) as server, socket.create_connection(server.getsockname(), timeout=10):
        server.settimeout(10)
        server.accept()[0].close()
