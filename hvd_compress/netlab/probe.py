"""One end of a measurement with plain sockets, run on an emulated host; what it found is printed.

python -m hvd_compress.netlab.probe sink S          takes bytes for S seconds; prints bytes/s
python -m hvd_compress.netlab.probe source HOST     from a line on, sends until the sink has enough
python -m hvd_compress.netlab.probe echo            answers single packets until it is ended
python -m hvd_compress.netlab.probe ping HOST N     sends N packets in turn; prints half the median round trip, in s

Each says "ready" when the other end, or the line, may come.
"""

from __future__ import annotations

import socket
import statistics
import sys
import time

PORT = 5000
_CHUNK_BYTES = 1 << 20
_START_S = 0.3
"""Left out of a rate."""

_PAUSE_S = 0.002
_LONGEST_S = 20.0


def sink(seconds: float) -> float:
    with socket.create_server(("", PORT)) as server:
        print("ready", flush=True)
        connection, _ = server.accept()
    buffer = bytearray(_CHUNK_BYTES)
    with connection:
        connection.settimeout(_LONGEST_S)
        connection.recv_into(buffer)
        begin = last = time.perf_counter()
        counted, since = 0, 0.0
        while size := connection.recv_into(buffer):
            at = time.perf_counter()
            if at > begin + seconds:
                break
            last = at
            if since:
                counted += size
            elif at > begin + _START_S:
                since = at
    if last <= since or not since:
        raise SystemExit("too few bytes came to tell a rate: measure for longer")
    return counted / (last - since)


def source(host: str) -> None:
    data = bytes(_CHUNK_BYTES)
    with socket.create_connection((host, PORT), timeout=_LONGEST_S) as connection:
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            while True:
                connection.sendall(data)
        except ConnectionError:
            return  # the sink has gone, as it should


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
        case ["sink", seconds]:
            print(sink(float(seconds)))
        case ["source", to]:
            source(to)
        case ["echo"]:
            echo()
        case ["ping", to, count]:
            print(ping(to, int(count)))
        case _:
            sys.exit(__doc__)
