"""Connections between rank 0 and the others, by themselves."""

from __future__ import annotations

import socket

import pytest

from hvd_compress.runtime import connections

TIMEOUT_S = 20.0


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
