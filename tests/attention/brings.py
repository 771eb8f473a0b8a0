"""Command lines of clustered attention, and what of it needs which package."""

from __future__ import annotations

GROUPS = ["chai"]
PICTURES = ["chai analyse", "chai bench"]
"""Commands that draw."""

CHAI = "from hvd_compress.attention.cli.chai import command; command({}, standalone_mode=False)"
USES = {
    "clustered attention": ("transformers", "from hvd_compress.attention import apply"),
    "chai analyse": ("transformers", CHAI.format(["analyse", "x", "--samples", "y"])),
    "chai bench": ("transformers", CHAI.format(["bench"])),
}
"""For each use: the package that it needs, and statements."""
LOADING = "adapter attend cache families finding layer loading losses projections samples tokens transformers_api"
BENCH = ("measuring", "models", "plot")
NEEDING = [f"hvd_compress.attention.{name}" for name in (*LOADING.split(), *map("bench.{}".format, BENCH))]
"""What needs transformers as soon as it is imported."""

ALLOWED = {
    "attention": {
        "attention",
        "cli",
        "errors",
        "extras",
        "measuring",
        "native",
        "schema",
        "timeline.drawing",
    }
}
"""What the modules of this guest may import of the package."""

OPTIONS = [25]
"""Its commands have more options."""
