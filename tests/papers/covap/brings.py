"""What the tests of COVAP bring to those of the core."""

from __future__ import annotations

from hvd_compress.compression import Compression
from hvd_compress.compressors import Cast
from hvd_compress.papers.covap.compressions import Filtering
from hvd_compress.papers.covap.skip import SKIP
from hvd_compress.papers.covap.turns import Turn

FIXED = {"covap": Filtering.covap(2)}
"""Compressions with error feedback whose policy chooses nothing, by name: no path is open, nothing is cut anew."""
REMEMBERING = FIXED
"""Compressions with something to remember beside a residual, or by a policy, by name."""
PROFILING = {"covap": Filtering.covap("auto")}
"""Compressions that profile the communication-to-computation ratio, by name."""
DECISIONS = {"skip": Turn(Cast(), SKIP)}
"""What only a policy decides for a bucket, with a residual, by name."""

SAVED = {
    "covap": {"compression": Filtering.covap(2)},
    "covap-feedback": {
        "compression": Filtering.covap(2, sent=Compression.int8().by(collective="allgather"), feedback=(0.5, 2, 0.125))
    },
    "covap-auto": {"compression": Filtering.covap("auto"), "steps": 20, "adapts": True},
}
"""Cases of checkpoints; each is the name of a function of `Compression`, and perhaps more."""
SAVED_BY_DDP = {"covap": {"compression": Filtering.covap(2, shard=False)}}

ALLOWED = {
    "papers/covap": {
        "papers.covap",
        "buckets.layout",
        "compression.choosing",
        "compression.part",
        "compressors",
        "cost.paths",
        "engines.base",
        "engines.launch",
        "engines.layout",
        "errors",
        "events.history",
        "feedback.schedule",
        "native",
        "policies",
        "services",
        "request",
        "collectives",
        "settings",
    }
}
"""What the modules of this guest may import of the package."""
