"""One end of a measurement with plain sockets, run on an emulated host; what it found is printed.

python -m hvd_compress.netlab.probe sink            takes bytes from the first who connects; prints bytes/s
python -m hvd_compress.netlab.probe source HOST S   sends to a sink for S seconds
python -m hvd_compress.netlab.probe echo            answers single packets until it is ended
python -m hvd_compress.netlab.probe ping HOST N     sends N packets in turn; prints half the median round trip, in s
"""

from __future__ import annotations

import socket
import statistics
import sys
import time

PORT = 5000
_CHUNK_BYTES = 1 << 20
_START_S = 0.3
"""Left out of a rate: what was queued at the start comes as fast as memory allows."""

_PAUSE_S = 0.002
_LONGEST_S = 20.0
"""More than the largest round trip that measure() waits for, with what may queue."""


def sink() -> float:
    with socket.create_server(("", PORT)) as server:
        print("ready", flush=True)
        connection, _ = server.accept()
    buffer = bytearray(_CHUNK_BYTES)
    with connection:
        connection.recv_into(buffer)
        begin = time.perf_counter()
        counted, since, last = 0, begin, begin
        while size := connection.recv_into(buffer):
            last = time.perf_counter()
            if since == begin and last - begin > _START_S:
                since = last
            elif since > begin:
                counted += size
    return counted / (last - since)


def source(host: str, seconds: float) -> None:
    data = bytes(_CHUNK_BYTES)
    with socket.create_connection((host, PORT), timeout=_LONGEST_S) as connection:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            connection.sendall(data)


def echo() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("", PORT))
        print("ready", flush=True)
        while True:
            data, sender = server.recvfrom(64)
            server.sendto(data, sender)


def ping(host: str, count: int) -> float:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect((host, PORT))
        client.settimeout(_LONGEST_S)
        round_trips = []
        for number in range(count):
            begin = time.perf_counter()
            client.send(number.to_bytes(4, "big"))
            client.recv(64)
            round_trips.append(time.perf_counter() - begin)
            time.sleep(_PAUSE_S)
    return statistics.median(round_trips) / 2


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["sink"]:
            print(sink())
        case ["source", to, seconds]:
            source(to, float(seconds))
        case ["echo"]:
            echo()
        case ["ping", to, count]:
            print(ping(to, int(count)))
        case _:
            sys.exit(__doc__)
