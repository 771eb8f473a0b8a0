"""A byte-level language model: the sources of Python's standard library, and a small transformer."""

from __future__ import annotations

import sysconfig
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

CONTEXT = 64
"""Bytes that a prediction sees at most."""
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests"}
"""Folders that are not the library, or that not every installation has."""
VALIDATION_SHARE = 20
"""One file of so many is kept for validation."""
WINDOWS = 128
"""Of the validation bytes, evenly spaced."""


@dataclass(frozen=True)
class Text:
    """Bytes, uint8, for training and for validation; no file is in both."""

    train: torch.Tensor
    validation: torch.Tensor

    @classmethod
    def read(cls, folder: Path | None = None) -> Text:
        """Read the sources below a folder, by default those of this Python; a file's name says which part it is in."""
        folder = folder or Path(sysconfig.get_path("stdlib"))
        parts: tuple[list[bytes], list[bytes]] = [], []
        for path in sorted(folder.rglob("*.py")):
            name = path.relative_to(folder)
            if not LEFT_OUT & set(name.parts):
                is_validation = zlib.crc32(name.as_posix().encode()) % VALIDATION_SHARE == 0
                parts[is_validation].append(path.read_bytes())
        train, validation = (torch.frombuffer(bytearray(b"".join(part)), dtype=torch.uint8) for part in parts)
        return cls(train, validation)

    def batch(self, size: int, generator: torch.Generator, context: int = CONTEXT) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (size, context) bytes of the training part from random places, and the byte after each."""
        starts = torch.randint(len(self.train) - context, (size,), generator=generator)
        return _windows(self.train, starts, context)

    def validation_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the same (WINDOWS, CONTEXT) bytes each time, and the byte after each."""
        starts = torch.linspace(0, len(self.validation) - CONTEXT - 1, WINDOWS).long()
        return _windows(self.validation, starts, CONTEXT)


def _windows(text: torch.Tensor, starts: torch.Tensor, context: int) -> tuple[torch.Tensor, torch.Tensor]:
    found = text[starts[:, None] + torch.arange(context + 1)].long()
    return found[:, :-1], found[:, 1:]


class ByteTransformer(nn.Module):
    """A decoder of 1.89 M parameters: 4 pre-norm blocks of width 192 with 6 heads, learned positions, GELU."""

    def __init__(self, width: int = 192, heads: int = 6, blocks: int = 4) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.positions = nn.Parameter(torch.empty(CONTEXT, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(blocks)
        )
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, 256)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)
        for weight in (self.bytes.weight, self.positions):
            nn.init.normal_(weight, std=0.02)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return the scores (batch, CONTEXT, 256) of the next byte after each of (batch, CONTEXT)."""
        hidden = self.bytes(text) + self.positions
        for block in self.blocks:
            hidden = block(hidden, self.mask, is_causal=True)
        return self.scores(self.norm(hidden))
