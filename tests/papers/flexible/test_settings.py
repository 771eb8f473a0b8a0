"""What may be asked of a ratio that is chosen."""

from __future__ import annotations

import pickle
import sys
from importlib.metadata import version

import pytest

from hvd_compress.compression import Compression
from hvd_compress.errors import ConfigError, MissingPackageError
from hvd_compress.papers.flexible.policy import Flexible, FlexiblePolicy
from hvd_compress.policies import policy_for
from hvd_compress.settings import Settings


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"low": 0.0}, "bounds of the ratio"),
        ({"low": 0.5}, "bounds of the ratio"),
        ({"high": 1.5}, "bounds of the ratio"),
        ({"low": "small"}, "low = 'small' is not a number"),
        ({"high": True}, "high = True is not a number"),
        ({"gain_change": 0.0}, "is not a number above 0: 0.1 is ten per cent"),
        ({"gain_change": float("inf")}, "is not a number above 0: 0.1 is ten per cent"),
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


def test_the_papers_search_can_be_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymoo", None)
    with pytest.raises(MissingPackageError, match=r"^pymoo is missing, .*; or use solver='exact'$"):
        Flexible(solver="nsga2")


def test_ranks_with_other_versions_of_what_searches_ask_for_something_else() -> None:
    """Each searches by itself. What they ask for is compared in the first step."""
    assert f"'pymoo {version('pymoo')}', 'numpy {version('numpy')}'" in repr(Flexible(solver="nsga2"))
    assert "pymoo" not in repr(Flexible())


def test_which_policy_carries_it_out() -> None:
    settings = Settings(600, 60, adapt=True)
    policy = policy_for(Compression.flexible(), settings, 2)
    assert type(policy) is FlexiblePolicy
    assert policy.measuring_s == settings.calibration_s
    assert policy_for(Compression.flexible(), settings, 1).measuring_s is None


def test_what_an_earlier_version_has_pickled_can_be_read() -> None:
    """The state of DDP's hook holds what was asked for, and its class by name."""
    pickled = pickle.dumps(Compression.flexible(0.02, 0.5), protocol=0)
    assert b"hvd_compress.papers.flexible.policy" in pickled
    earlier = pickled.replace(b"hvd_compress.papers.flexible.policy", b"hvd_compress.policies.flexible.settings")
    assert pickle.loads(earlier) == Compression.flexible(0.02, 0.5)
