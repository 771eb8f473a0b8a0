"""What compression takes, by what was measured of it."""

from __future__ import annotations

import pytest

from hvd_compress.compressors import BlockQuantizer, Cast, TopK
from hvd_compress.cost.paths import Path
from hvd_compress.papers.flexible.kernels import Kernels

ALL, STAR = Path("allgather"), Path("star", "ring")


def test_between_ratios_it_is_linear_and_beyond_them_that_of_the_nearest() -> None:
    kernels = Kernels()
    kernels.note(TopK(0.01), ALL, 1.0)
    kernels.note(TopK(0.03), ALL, 2.0)
    kernels.note(TopK(0.03), ALL, 5.0)  # noise only makes longer
    found = [kernels.seconds(TopK(ratio), ALL) for ratio in (0.001, 0.01, 0.02, 0.03, 0.1)]
    assert found == pytest.approx([1.0, 1.0, 1.5, 2.0, 2.0])


def test_compressors_and_collectives_are_kept_apart() -> None:
    kernels = Kernels()
    kernels.note(TopK(0.01), ALL, 1.0)
    kernels.note(BlockQuantizer(4), ALL, 0.25)
    assert kernels.seconds(BlockQuantizer(4), ALL) == 0.25
    assert kernels.seconds(TopK(0.01), STAR) == 1.0, "what was not tried takes as long as the slowest that was"
    kernels.note(TopK(0.01), STAR, 0.5)
    assert kernels.seconds(TopK(0.01), Path("star", "tree")) == 0.5, "algorithms of collectives take no kernel"
    assert kernels.seconds(Cast(), Path("dense")) == 0.0


def test_before_anything_was_measured_nothing_is_expected() -> None:
    assert Kernels().seconds(TopK(0.01), ALL) == 0.0
