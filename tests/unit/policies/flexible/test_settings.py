"""What may be asked of a ratio that is chosen."""

from __future__ import annotations

import pytest

from hvd_compress.compression import Compression
from hvd_compress.errors import ConfigError
from hvd_compress.policies.flexible.settings import Flexible


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"low": 0.0}, "bounds of the ratio"),
        ({"low": 0.5}, "bounds of the ratio"),
        ({"high": 1.5}, "bounds of the ratio"),
        ({"low": "small"}, "low = 'small' must be a number"),
        ({"high": True}, "high = True must be a number"),
        ({"gain_change": 0.0}, "must be above 0"),
        ({"gain_change": float("inf")}, "must be above 0"),
        ({"gain": "curves"}, "unknown gain 'curves'.*curve"),
        ({"solver": "nsga"}, "unknown solver 'nsga'.*nsga2"),
    ],
)
def test_what_has_no_meaning_is_refused(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Compression.flexible(**arguments)  # type: ignore[arg-type]


def test_the_papers_candidates_and_the_grid() -> None:
    """0.1, 0.033, 0.011, 0.004, 0.001: c_low times powers of three."""
    rolled = Flexible(gain="rollout").ratios
    assert rolled == pytest.approx((0.001, 0.00316, 0.01, 0.0316, 0.1), rel=0.01)
    curve = Flexible().ratios
    assert (curve[0], curve[-1], len(curve)) == (0.001, 0.1, 41)
    assert Flexible().start == pytest.approx(0.01, rel=0.07)
    assert Flexible(0.02, 0.02).ratios == (0.02,)
