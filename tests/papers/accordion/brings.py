"""What the tests of Accordion bring to those of the core."""

from __future__ import annotations

from hvd_compress.compression import Compression
from hvd_compress.papers.accordion.compressions import Switching

REMEMBERING = {"accordion": Switching.accordion(Compression.powersgd(2), Compression.powersgd(1), epoch_steps=9)}
"""Compressions with something to remember beside a residual, by name."""

_topk = {share: Compression.topk(share).by(collective="star") for share in (0.5, 0.1)}
SAVED = {"accordion": {"compression": Switching.accordion(_topk[0.5], _topk[0.1], every=1, epoch_steps=2), "steps": 7}}
"""Cases of checkpoints; each is the name of a function of `Compression`, and perhaps more."""

ALLOWED = {
    "papers/accordion": {
        "papers.accordion",
        "buckets.layout",
        "buckets.plan",
        "compression.choosing",
        "compression.part",
        "engines.base",
        "engines.launch",
        "errors",
        "events.recorder",
        "feedback.states",
        "frontends.launched",
        "frontends.optimizer.optimizer",
        "policies",
        "services",
        "request",
        "settings",
    }
}
"""What the modules of this guest may import of the package."""
