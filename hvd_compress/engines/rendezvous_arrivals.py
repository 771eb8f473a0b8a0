"""Arrivals over the rendezvous server of `horovodrun --gloo`: a store of keys that the launcher holds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from hvd_compress.engines.arrivals import Arrivals, group_number

LIMIT_S = 2.0
"""For one request to the launcher, which answers at once."""


def rendezvous_url() -> str | None:
    """Return where horovodrun's server listens, as it tells its processes; None where it started none."""
    host, port = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR"), os.environ.get("HOROVOD_GLOO_RENDEZVOUS_PORT")
    return f"http://{host}:{port}" if host and port else None


class RendezvousArrivals(Arrivals):
    """Arrivals of the ranks `ranks`, this one among them as `own`. All of them make their groups in the same order.

    One request to the launcher when this rank has waited for a while; one a rank for the message of a timeout.
    """

    def __init__(self, url: str, ranks: Sequence[int], own: int) -> None:
        super().__init__()
        self._scope = f"{url}/hvd_compress-{group_number(ranks)}"
        self._ranks, self._own = list(ranks), own
        self._opener = build_opener(ProxyHandler({}))  # the launcher is no further than the other hosts

    def arrive(self, place: int) -> None:
        request = Request(f"{self._scope}/{self._own}", data=str(place).encode(), method="PUT")
        self._opener.open(request, timeout=LIMIT_S).close()

    def absent(self, place: int) -> tuple[int, ...]:
        others = ((number, rank) for number, rank in enumerate(self._ranks) if rank != self._own)
        return tuple(number for number, rank in others if self._told(rank) < place)

    def _told(self, rank: int) -> int:
        try:
            with self._opener.open(f"{self._scope}/{rank}", timeout=LIMIT_S) as answer:
                return int(answer.read())
        except HTTPError as error:
            if error.code != 404:
                raise
            return 0
