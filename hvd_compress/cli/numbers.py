"""Numbers as people write them on the command line, and read them: 25.6M elements, a ratio of 1%, 4.2 kB."""

from __future__ import annotations

from decimal import Decimal

import click

MOST = 2**63
RANKS, ROUNDS, THREADS = click.IntRange(1, 1 << 20), click.IntRange(1, 1_000_000), click.IntRange(1, 4096)
"""Up to what nobody has, and nobody would wait for."""
_FACTORS = {"K": 1_000, "M": 1_000_000, "G": 1_000_000_000}


def size(nbytes: float) -> str:
    """Return bytes in the unit that suits them: 40 B, 4.2 kB, 102 MB, 1.5 GB."""
    unit = next((unit for unit, least in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if nbytes >= 0.9995 * least), "B")
    number = nbytes / {"GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1.0}[unit]
    return f"{number:.0f} {unit}" if number >= 99.95 or unit == "B" else f"{number:.3g} {unit}"


def elements(text: str) -> int:
    """Read a number of elements: 65536, 64K, 25.6M or 1.5G."""
    factor = _FACTORS.get(text[-1:].upper(), 1)
    try:
        number = Decimal(text[:-1] if factor > 1 else text) * factor
        if not 1 <= number < MOST or number != number.to_integral_value():
            raise click.BadParameter(f"{text!r} is not a whole number of elements, 1 or more, below {MOST}")
    except ArithmeticError:
        raise click.BadParameter(f"{text!r} is not a number of elements, such as 65536, 64K or 25.6M") from None
    return int(number)


def ratio(text: str) -> float:
    """Read a ratio: 0.01 or 1%. That it lies in (0, 1] is for who uses it to say."""
    try:
        return float(Decimal(text[:-1].strip()) / 100 if text.endswith("%") else Decimal(text))
    except ArithmeticError:
        raise click.BadParameter(f"{text!r} is not a ratio, such as 0.01 or 1%") from None
