"""Who has arrived: numbers of groups, words, and the server of `horovodrun --gloo`, which is Horovod's own."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.error import URLError

import pytest
from horovod.runner.http.http_server import RendezvousServer

from hvd_compress.engines.arrivals import Arrivals, describe, group_number
from hvd_compress.engines.rendezvous_arrivals import RendezvousArrivals, rendezvous_url


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
        arrivals._scope = f"{url}/test"  # as here all of them count in one process
        made.append(arrivals)
    return made


def test_who_has_told_has_arrived(url: str) -> None:
    first, second, third = members(url, [0, 2, 5])
    assert first.absent(1) == (1, 2), "ranks are numbered within the group"
    second.arrive(1)
    assert (first.absent(1), third.absent(1)) == ((2,), (0,))
    third.arrive(2)
    assert first.absent(1) == ()
    assert first.absent(2) == (1,), "that a rank waited somewhere earlier is no news"


def test_a_server_that_is_gone_is_an_error() -> None:
    arrivals = RendezvousArrivals("http://127.0.0.1:9", [0, 1], 0)
    with pytest.raises(URLError):
        arrivals.arrive(1)
    with pytest.raises(URLError):
        arrivals.absent(1)


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
    arrivals.arrive(1)
    arrivals.collect()
    assert "no way to tell" in describe(arrivals.absent(1), arrivals.obstacle)
    assert describe([3], "") == "rank 3 has not arrived"
    assert describe([0, 3], "") == "ranks 0, 3 have not arrived"
