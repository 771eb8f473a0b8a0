"""Who has arrived: numbers of groups, words, and the server of `horovodrun --gloo`, which is Horovod's own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.error import HTTPError, URLError

import pytest

from hvd_compress.engines import rendezvous_arrivals
from hvd_compress.engines.arrivals import Arrivals, describe, group_number
from hvd_compress.engines.rendezvous_arrivals import RendezvousArrivals, rendezvous_url

RendezvousServer = pytest.importorskip("horovod.runner.http.http_server").RendezvousServer


@pytest.fixture(autouse=True)
def a_busy_machine_answers_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous_arrivals, "LIMIT_S", 120.0)


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Start the server as horovodrun does."""
    server = RendezvousServer()
    port = server.start()
    server.init([])
    yield f"http://127.0.0.1:{port}"
    server.stop()
    server._httpd.server_close()  # which stop() leaves open


def members(url: str, ranks: list[int]) -> list[RendezvousArrivals]:
    """What each of the ranks makes in a process of its own: the numbers of groups are counted in each."""
    made = []
    for own in ranks:
        arrivals = RendezvousArrivals(url, ranks, own)
        arrivals.group = 7  # instead of open(), which counts in each process
        made.append(arrivals)
    return made


def test_who_has_told_has_arrived(url: str) -> None:
    first, second, third = members(url, [0, 2, 5])
    assert first.missing(1) == (2, 5), "ranks have their numbers in the whole job"
    second.announce(1)
    assert (first.missing(1), third.missing(1)) == ((5,), (0,))
    third.announce(2)
    assert first.missing(1) == ()
    assert first.missing(2) == (2,), "that a rank waited somewhere earlier is no news"


def test_a_server_that_is_gone_is_an_error() -> None:
    arrivals = RendezvousArrivals("http://127.0.0.1:9", [0, 1], 0)
    with pytest.raises(URLError):
        arrivals.announce(1)
    with pytest.raises(URLError):
        arrivals.missing(1)


def test_a_server_that_fails_is_an_error_and_not_a_rank_that_is_missing() -> None:
    class Failing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(500)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Failing) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        arrivals = RendezvousArrivals(f"http://127.0.0.1:{server.server_port}", [0, 1], 0)
        with pytest.raises(HTTPError, match="500"):
            arrivals.missing(1)


def test_no_proxy_stands_between_a_rank_and_its_launcher(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    first, second = members(url, [0, 1])
    second.announce(1)
    assert first.missing(1) == ()


def test_the_server_is_where_horovodrun_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", raising=False)
    assert rendezvous_url() is None
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", "10.0.0.1")
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_PORT", "1234")
    assert rendezvous_url() == "http://10.0.0.1:1234"


def test_groups_of_the_same_ranks_are_told_apart_and_those_of_others_are_not_counted() -> None:
    first = group_number([7, 8])
    group_number([7])
    assert group_number([7, 8]) == first + 1
    assert 0 <= first < 2**62, "it travels as a whole number of 64 bits"


def test_words() -> None:
    arrivals = Arrivals()
    arrivals.announce(1)
    assert "no way to tell" in describe(arrivals.missing(1), arrivals.obstacle)
    assert describe([3], "") == "rank 3 has not arrived"
    assert describe([0, 3], "") == "ranks 0, 3 have not arrived"
