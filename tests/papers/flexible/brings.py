"""What the tests of the controller of ratios bring to those of the core."""

from __future__ import annotations

from hvd_compress.papers.flexible.compressions import TradingOff

ADAPTIVE = {"flexible": TradingOff.flexible(0.02, 0.5)}
"""Compressions that choose while training, by name."""

SAVED = {"flexible": {"compression": TradingOff.flexible(0.05, 0.5), "steps": 40, "adapts": True}}
"""What is trained for checkpoints, as tests/checkpoints/cases.py has it."""

USES = {
    "NSGA-II": ("pymoo", "from hvd_compress.papers.flexible.tradeoff import nsga2; nsga2([])"),
    "the solver": ("pymoo", "from hvd_compress.compression import Compression; Compression.flexible(solver='nsga2')"),
}
"""For each use: the package that it needs, and statements."""

ALLOWED = {
    "papers/flexible": {
        "papers.flexible",
        "buckets.layout",
        "compression.part",
        "compressors",
        "cost",
        "engines.base",
        "engines.launch",
        "errors",
        "events",
        "extras",
        "policies",
        "services",
        "request",
        "collectives",
        "session.session",
        "settings",
    }
}
"""What the modules of this guest may import of the package."""
