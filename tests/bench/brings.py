"""Command lines of `hvd-compress bench`, right and wrong."""

from __future__ import annotations

from pathlib import Path

import numpy
import torch

GROUPS = ["bench"]
COMMANDS = [("bench", "kernels"), ("bench", "compressors")]
CHOICES = ["--data"]
MEANT = [
    ("bench kernels --kernel topk_acumulate", "did you mean topk_accumulate?"),
    ("bench kernels --kernel topk,blok_sum/8", "no kernel is called blok_sum/8"),
    ("bench compressors --compressions topk,itn4", "unknown compressor 'itn4'"),
    ("bench compressors --compressions topk:ratoi=0.1,int4", "did you mean ratio?"),
]
"""A command line, and what its error says."""

_KERNEL = ["bench", "kernels", "--kernel", "accumulate", "--size", "1K", "--repetitions", 1, "--threads", 1]
_FEW = ["bench", "compressors", "--compressions", "topk", "--no-peers", "--ranks", 1, "--rounds", 1]

READERS = {
    "bench compressors, trace": ("model.json", lambda folder: [*_FEW, "--trace", folder / "model.json"]),
    "bench compressors, gradient": ("gradient.pt", lambda folder: [*_FEW, "--gradient", folder / "gradient.pt"]),
    "bench compressors, array": ("gradient.npy", lambda folder: [*_FEW, "--gradient", folder / "gradient.npy"]),
    "bench kernels": ("gradient.pt", lambda folder: [*_KERNEL, "--gradients", folder / "gradient.pt"]),
}
"""Each file that a command reads, and the command, given a folder of files."""


def _write(folder: Path) -> None:
    torch.save(torch.randn(100), folder / "gradient.pt")
    numpy.save(folder / "gradient.npy", numpy.ones(100, dtype=numpy.float32))


FILES = [_write]
"""What writes these files as they should be."""


def _beyond(number: str) -> list[list[str]]:
    return [
        ["bench", "kernels", "--threads", number],
        ["bench", "kernels", "--repetitions", number],
        ["bench", "compressors", "--threads", number],
    ]


BEYOND = [_beyond]
"""Command lines with a number that nothing has."""

ALLOWED = {
    "bench": {
        "bench",
        "buckets.layout",
        "cli",
        "compression.named",
        "compressors",
        "errors",
        "extras",
        "feedback.residual",
        "feedback.states",
        "measuring",
        "native",
        "payload",
    }
}
"""What the modules of this guest may import of the package."""

OPTIONS = [15]
"""Its commands have more options."""
