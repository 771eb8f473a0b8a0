"""Connections between processes of a job: who may connect, and where who listens."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from hvd_compress.engines import dialing
from hvd_compress.engines.dialing import Endpoint, Listener, call
from hvd_compress.errors import CommunicationError, ConfigError

WRONG = bytes(32)


def test_addresses_of_ipv6_that_others_can_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = tmp_path / "if_inet6"
    listed.write_text(
        "20010db8000000000000000000000001 02 40 00 80 eth0\nfe800000000000000000000000000001 02 40 20 80 eth0\n"
    )
    monkeypatch.setattr(dialing, "_IPV6", listed)
    assert [address for address in dialing._addresses() if ":" in address] == ["2001:db8::1"]


def test_a_listener_hears_the_interface_that_is_named_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    listener = Listener()
    assert listener.endpoint.addresses[0] == "127.0.0.1"
    assert listener._server.getsockname()[0] == "127.0.0.1"
    listener.close()
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none7")
    with pytest.raises(ConfigError, match=r"GLOO_SOCKET_IFNAME=none7 names no interface .* there are .*lo"):
        Listener()


def test_a_stranger_is_not_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """One with another token is turned away, one that says nothing too, and neither keeps a member out."""
    monkeypatch.setattr(dialing, "_HANDSHAKE_S", 0.2)
    listener = Listener()
    silent = socket.create_connection(("127.0.0.1", listener.endpoint.port))
    found: list[object] = []

    def come(endpoint: Endpoint, rank: int) -> None:
        try:
            found.append(call(endpoint, 5, rank, 20.0 if endpoint is listener.endpoint else 0.3))
        except CommunicationError as error:
            found.append(error)

    threads = [
        threading.Thread(target=come, args=who)
        for who in ((replace(listener.endpoint, token=WRONG), 1), (listener.endpoint, 2))
    ]
    for thread in threads:
        thread.start()
    ((rank, ours),) = listener.accept(5, [2], 20.0).items()
    assert rank == 2
    with pytest.raises(CommunicationError, match=r"ranks \[1\] did not connect within 1 s"):
        listener.accept(5, [1], 1.0)
    for thread in threads:
        thread.join()
    assert sorted(type(each).__name__ for each in found) == ["CommunicationError", "socket"]
    assert silent.recv(1) == b"", "it was turned away"
    for each in (silent, ours, *found):
        if isinstance(each, socket.socket):
            each.close()
    listener.close()


def test_callers_of_several_groups_are_told_apart() -> None:
    listener = Listener()
    with ThreadPoolExecutor(2) as callers:
        theirs = {group: callers.submit(call, listener.endpoint, group, 1, 20.0) for group in (7, 8)}
        for group in (8, 7):
            with listener.accept(group, [1], 20.0)[1] as mine, theirs[group].result() as other:
                assert mine.getpeername()[1] == other.getsockname()[1]
    listener.close()


def test_calls_of_a_group_that_was_not_made_are_forgotten() -> None:
    """As when ranks end while they meet: of thousands of such meetings no descriptor may stay."""
    listener = Listener()
    with ThreadPoolExecutor(1) as thread:
        for group in range(5):
            early = thread.submit(call, listener.endpoint, group, 1, 20.0)
            with pytest.raises(CommunicationError, match=r"ranks \[2\] did not connect"):
                listener.accept(group, [1, 2], 0.3)
            early.result(20.0).close()
            assert list(listener._called) == [(group, 1)]
    listener.close()


def test_nobody_listens_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(CommunicationError, match=rf"rank 3 cannot connect to 127\.0\.0\.1 port {port}: .* allow TCP"):
        call(Endpoint(("127.0.0.1",), port, WRONG), 0, 3, 0.2)


def test_waiting_ends_early() -> None:
    def refuse() -> None:
        raise KeyError("enough")

    listener = Listener()
    with pytest.raises(KeyError, match="enough"):
        listener.accept(0, [1], 20.0, refuse)
    with pytest.raises(KeyError, match="enough"):
        call(listener.endpoint, 0, 1, 20.0, refuse)
    listener.close()
