"""Arrivals over the rendezvous server of `horovodrun --gloo`: a store of keys that the launcher holds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from hvd_compress.engines.arrivals import GroupArrivals

LIMIT_S = 2.0
"""For one request to the launcher, which answers at once."""
_NO_SUCH_KEY = 404


def rendezvous_url() -> str | None:
    """Return where horovodrun's server listens, as it tells its processes; None where it started none."""
    host, port = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR"), os.environ.get("HOROVOD_GLOO_RENDEZVOUS_PORT")
    return f"http://{host}:{port}" if host and port else None


class RendezvousArrivals(GroupArrivals):
    """Arrivals of the ranks `ranks`, this one being `own`.

    One request to the launcher when this rank has waited for a while; one a rank for the message of a timeout.
    """

    def __init__(self, url: str, ranks: Sequence[int], own: int) -> None:
        super().__init__(ranks, own)
        self._url = url
        self._opener = build_opener(ProxyHandler({}))  # the launcher is no further than the other hosts

    def announce(self, wait: int) -> None:
        request = Request(self._key(self.own), data=str(wait).encode(), method="PUT")
        self._opener.open(request, timeout=LIMIT_S).close()

    def announced(self, rank: int) -> int:
        try:
            with self._opener.open(self._key(rank), timeout=LIMIT_S) as answer:
                return int(answer.read())
        except HTTPError as error:
            error.close()
            if error.code != _NO_SUCH_KEY:
                raise
            return 0

    def _key(self, rank: int) -> str:
        return f"{self._url}/hvd_compress-{self.group}/{rank}"
