"""Whatever arrives, every decoder raises a PayloadError or gives a valid tensor: no crash, no hang, no stray write.

Also run under AddressSanitizer (tools/sanitize.py), and by `make fuzz` with coverage as a guide.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given

from tests.conformance.cases import TABLE
from tests.conformance.malformed import (
    DAMAGES,
    DECODERS,
    LIES,
    REQUANTIZERS,
    STEPS,
    Damage,
    Guarded,
    Lie,
    decode_lies,
    exchange_damaged,
    sum_lies,
)
from tests.native.cases import examples

LONG = 10**5


@pytest.mark.parametrize("decoder", DECODERS, ids="-".join)
def test_the_decoder_is_reached(decoder: tuple[str, str]) -> None:
    """Each rank sends a payload, or with STAR the root; else there would be nothing to damage."""
    assert exchange_damaged(decoder, 0, []) >= 1


@pytest.mark.parametrize("decoder", DECODERS, ids="-".join)
@examples(100)
@given(STEPS, DAMAGES)
@example(0, [Damage(0, 0, 40, b"\xff" * 8), Damage(1, 0, 40, b"\xff" * 8)])
@example(0, [Damage(rank, 0, 0, bytes([byte]) * 2000) for rank in range(2) for byte in (0, 255)])
@example(1, [Damage(1, 0, 0, b"", -LONG), Damage(0, 0, 0, b"", -LONG)])
def test_damaged_bytes_are_refused_or_harmless(decoder: tuple[str, str], step: int, damages: list[Damage]) -> None:
    exchange_damaged(decoder, step, damages)


@pytest.mark.parametrize("name", TABLE)
@examples(150)
@given(LIES)
@example([Lie(0, tensor, 0, 0, b"") for tensor in range(3)])
@example([Lie(0, tensor, LONG, 0, b"") for tensor in range(3)])
@example([Lie(0, tensor, None, 0, b"\xff" * 2000) for tensor in range(3)])
@example([Lie(1, tensor, None, 0, b"\x7f" * 2000) for tensor in range(3)])
def test_well_formed_lies_are_refused_or_harmless(name: str, lies: list[Lie]) -> None:
    decode_lies(name, lies)


@pytest.mark.parametrize("name", REQUANTIZERS)
@examples(150)
@given(LIES)
@example([Lie(round_, tensor, 0, 0, b"") for round_ in range(2) for tensor in range(2)])
@example([Lie(round_, tensor, LONG, 0, b"") for round_ in range(2) for tensor in range(2)])
@example([Lie(round_, tensor, None, 0, b"\xff" * 2000) for round_ in range(2) for tensor in range(2)])
def test_owners_refuse_lies_or_bear_them(name: str, lies: list[Lie]) -> None:
    sum_lies(name, lies)


@pytest.mark.parametrize("place", [0, 63, 64 + 300, -1])
def test_a_stray_write_would_be_seen(place: int) -> None:
    one = Guarded(0)
    one.buffer(torch.zeros(300))
    one.check()
    one.wholes[0][place] = 1.0
    with pytest.raises(AssertionError, match="written"):
        one.check()
