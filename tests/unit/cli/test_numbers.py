"""Numbers as people write them."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from hvd_compress.cli.main import main
from hvd_compress.cli.numbers import elements, ratio, size
from tests.brought import brought

SIZES = {"65536": 65_536, "64K": 64_000, "1m": 1_000_000, "25.6M": 25_600_000, "0.1k": 100, "7G": 7_000_000_000}


@pytest.mark.parametrize(("text", "numel"), SIZES.items())
def test_elements_in_thousands_and_millions(text: str, numel: int) -> None:
    assert elements(text) == numel


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "M", "64 Kilo", "nan", "inf", "-infM", "", "1e999999K", "1e400"])
def test_elements_that_are_none(text: str) -> None:
    with pytest.raises(click.BadParameter, match="number of elements"):
        elements(text)


@pytest.mark.parametrize(("text", "found"), [("0.01", 0.01), ("1%", 0.01), ("0.1 %", 0.001), ("1e-3", 0.001)])
def test_ratios_and_per_cents(text: str, found: float) -> None:
    assert ratio(text) == found


@pytest.mark.parametrize(
    ("nbytes", "words"),
    [
        (0, "0 B"),
        (40, "40 B"),
        (999, "999 B"),
        (999.6, "1 kB"),
        (4200, "4.2 kB"),
        (999_400, "999 kB"),
        (999_999, "1 MB"),
        (4 * 25_600_000, "102 MB"),
        (1.5e9, "1.5 GB"),
        (2.5e12, "2500 GB"),
    ],
)
def test_sizes_have_a_unit_that_suits_them(nbytes: float, words: str) -> None:
    assert size(nbytes) == words


@pytest.mark.parametrize("text", ["", "%", "a tenth", "1%%"])
def test_ratios_that_are_none(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"is not a ratio, such as 0\.01 or 1%"):
        ratio(text)


CHOOSE = ["choose", "--numel", "25.6M", "--ratio", "0.01"]
TEN = f"1{'0' * 400}"


@pytest.mark.parametrize(
    "arguments",
    [
        [*CHOOSE, "--world-size", TEN, "--latency", "1ms", "--bandwidth", "1gbit"],
        [*CHOOSE, "--world-size", "8", "--latency", "1e308s", "--bandwidth", "1gbit"],
        [*CHOOSE, "--world-size", "8", "--latency", "1ms", "--bandwidth", "1e300tbit"],
        [*CHOOSE, "--world-size", "8", "--latency", "1ms", "--bandwidth", "1e-300bit"],
        *(line for lines in brought("BEYOND") for line in lines(TEN)),
    ],
    ids=lambda arguments: " ".join(arguments)[:60],
)
def test_what_nothing_has_is_one_sentence(arguments: list[str], tmp_path: Path) -> None:
    model = tmp_path / "model.json"
    model.write_text('{"model": "m", "tensors": [{"name": "a", "numel": 1000000, "backward_us": 100.0}]}')
    done = CliRunner().invoke(main, [argument.format(model=model) for argument in arguments])
    assert done.exit_code == 2, (done.output, done.exception)
    assert isinstance(done.exception, SystemExit)
    assert "Error: " in done.output
    assert len(done.output) < 3000
