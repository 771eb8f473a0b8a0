"""A job of one rank: it exchanges nothing, and trains as without compression, to the bit."""

from __future__ import annotations

from hvd_compress.compressors import Cast
from hvd_compress.request.request import Request
from hvd_compress.session.notices import tell_one_rank
from hvd_compress.settings import Settings


def request_of(request: Request, ranks: int, settings: Settings) -> Request:
    """Return what a number of ranks do of a request. One that is recorded compresses: that is what is measured."""
    if ranks > 1 or settings.recordings:
        return request
    dense = Request(Cast(), engine=request.engine)
    if (request.compressor, request.policy) != (dense.compressor, None):
        tell_one_rank(request.compressor)
    return dense
