"""Command lines of `hvd-compress whatif`, right and wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

COMMANDS = [("whatif",)]
PICTURES = ["whatif"]
NETWORK = ["--world-size", 8, "--bandwidth", "1gbit"]


def _payload(folder: Path) -> list[Any]:
    return ["whatif", folder / "model.json", *NETWORK, "--payload", "1%"]


def _system(folder: Path) -> list[Any]:
    return ["whatif", folder / "model.json", "--system", folder / "system.json", "--compressor", "int4"]


def _compressor(folder: Path) -> list[Any]:
    return ["whatif", folder / "model.json", *NETWORK, "--compressor-profile", folder / "compressor.json"]


READERS = {
    "whatif, model": ("model.json", _payload),
    "whatif, system": ("system.json", _system),
    "whatif, compressor": ("compressor.json", _compressor),
}
WRITERS = {"whatif": lambda folder: [*_payload(folder), "--plots"]}
FOLDERS = ["whatif"]
"""Writers of a folder."""


def _beyond(number: str) -> list[list[str]]:
    model = ["whatif", "{model}"]
    line = [*model, "--world-size", "8", "--bandwidth", "1gbit"]
    return [
        [*model, "--world-size", number, "--bandwidth", "1gbit", "--payload", "1%"],
        [*model, "--world-size", "8", "--bandwidth", "1e300tbit", "--payload", "1%"],
        [*line, "--payload", "1e400"],
        [*line, "--payload", "nan%"],
        [*line, "--payload", "1%", "--encode", "1e308s"],
        [*line, "--payload", "1%", "--backward", "1e308s"],
        [*line, "--payload", "1%", "--bucket-mb", "1e308"],
        [*line, "--compressor", f"topk:ratio={'[' * 100_000}"],
        [*line, "--compressor", "topk:ratio=1e400"],
        [*line, "--compressor", f"int4:block={number}"],
    ]


BEYOND = [_beyond]

ALLOWED = {
    "papers/utility": {
        "buckets.layout",
        "cli",
        "compression.named",
        "compressors",
        "cost.formulas",
        "errors",
        "extras",
        "papers.utility",
        "policies.plan_settings",
        "profiler",
        "profiler.profiles",
        "collectives",
        "units",
    }
}
"""What the modules of this guest may import of the package."""

OPTIONS = [15]
"""Its commands have more options."""
