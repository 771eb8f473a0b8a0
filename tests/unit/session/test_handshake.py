from __future__ import annotations

from dataclasses import replace

import pytest

from hvd_compress.engines.inprocess import run_ranks
from hvd_compress.errors import ConfigError
from hvd_compress.session.handshake import Offer, agree

OFFER = Offer({"ratio": "0.01", "collective": "star"}, ["a: (2,) float32", "b: (3,) float32"], ["b", "a"], [], 0)


def everywhere(offers: list[Offer]) -> list[str]:
    """Shake hands; return what each rank's ConfigError says."""

    def body(engine):
        with pytest.raises(ConfigError) as raised:
            agree(engine, offers[engine.rank])
        return str(raised.value)

    return run_ranks(len(offers), body)


def test_rank_0_gives_order_and_step_and_sparse_parameters_are_united() -> None:
    offers = [replace(OFFER, step=7), replace(OFFER, order=["a", "b"], sparse=["a"]), OFFER]
    agreements = run_ranks(3, lambda engine: agree(engine, offers[engine.rank]))
    assert agreements[0] == agreements[1] == agreements[2]
    assert agreements[0].order == ("b", "a")
    assert agreements[0].sparse == ("a",)
    assert agreements[0].step == 7


def test_different_settings_are_named_on_every_rank() -> None:
    other = replace(OFFER, settings={"ratio": "0.1", "collective": "star"})
    messages = everywhere([OFFER, other, OFFER, other])
    assert len(set(messages)) == 1
    assert messages[0] == "settings differ between ranks: ratio is 0.01 on ranks 0, 2 and 0.1 on ranks 1, 3"


def test_a_setting_that_one_rank_lacks_is_a_difference() -> None:
    other = replace(OFFER, settings={"ratio": "0.01"})
    assert "collective is star on rank 0 and not set on rank 1" in everywhere([OFFER, other])[0]


def test_what_hinders_some_ranks_is_told_by_all_before_what_differs() -> None:
    obstacles = replace(OFFER, obstacle="cannot write x: choose y", parameters=[])
    messages = everywhere([OFFER, obstacles, OFFER, replace(OFFER, obstacle="has no z")])
    assert set(messages) == {"rank 1 cannot write x: choose y; rank 3 has no z"}


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (["a: (2,) float32", "b: (4,) float32"], "rank 0 has 'b: (3,) float32' where rank 1 has 'b: (4,) float32'"),
        (["a: (2,) float32"], "rank 0 has 2 of them, rank 1 has 1"),
        (["b: (3,) float32", "a: (2,) float32"], "rank 0 has 'a: (2,) float32' where rank 1 has 'b: (3,) float32'"),
    ],
)
def test_different_parameters_are_named(parameters: list[str], words: str) -> None:
    messages = everywhere([OFFER, replace(OFFER, parameters=parameters), OFFER])
    assert all(words in message and message.startswith("rank 1 optimizes other parameters") for message in messages)
