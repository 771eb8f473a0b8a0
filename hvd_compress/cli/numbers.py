"""Numbers as people write them on the command line: 25.6M elements, a ratio of 1%."""

from __future__ import annotations

from decimal import Decimal

import click

MOST = 2**63
_FACTORS = {"K": 1_000, "M": 1_000_000, "G": 1_000_000_000}


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
