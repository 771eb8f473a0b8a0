"""Connections between rank 0 and the others, by themselves."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from hvd_compress.runtime import connections

TIMEOUT_S = 20.0


def test_a_connection_needs_the_token() -> None:
    token = b"t" * 32
    for sent, rank in ((token, 3), (b"u" * 32, None)):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(sent + (3).to_bytes(4, "big"))
            assert connections._rank_of(ours, token) == rank


def test_addresses_of_ipv6_that_others_can_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = tmp_path / "if_inet6"
    listed.write_text(
        "20010db8000000000000000000000001 02 40 00 80 eth0\nfe800000000000000000000000000001 02 40 20 80 eth0\n"
    )
    monkeypatch.setattr(connections, "_IPV6", listed)
    assert [address for address in connections._addresses() if ":" in address] == ["2001:db8::1"]


def test_who_reads_nothing_and_who_stops_within_a_message_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_STUCK_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours = connections._connection(server.accept()[0], TIMEOUT_S)
    with theirs, ours:
        with pytest.raises(BlockingIOError):
            ours.send_bytes(bytes(1 << 26))
        theirs.sendall((100).to_bytes(4, "big") + b"half")
        with pytest.raises(BlockingIOError):
            ours.recv_bytes()
