"""What to do next, after a comparison of a plan with a run."""

from __future__ import annotations

import pytest

from hvd_compress.papers.espresso.cli.advice import Row, advice

PREDICTED = {"computation": 10.0, "compression": 5.0, "communication": 20.0, "step": 30.0}


def lines(**measured: float) -> list[str]:
    return list(advice(*(Row(term, s, measured.get(term, s)) for term, s in PREDICTED.items())))


def test_a_good_prediction_needs_nothing() -> None:
    assert lines() == ["the step is predicted within 15 %"]
    assert lines(step=33.0, communication=22.0) == ["the step is predicted within 15 %"]


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        (
            {"communication": 40.0, "compression": 9.0, "step": 60.0},
            "communication, 20000.000 ms longer than predicted",
        ),
        ({"communication": 40.0, "step": 60.0}, "waiting for late ranks"),
        ({"communication": 40.0, "step": 60.0}, "(HVD_COMPRESS_TIMELINE with {rank} in its name)"),
        ({"compression": 25.0, "step": 50.0}, "compression, 20000.000 ms longer than predicted: ranks that share"),
        ({"computation": 30.0, "step": 50.0}, "computation, 20000.000 ms longer than predicted: batch or machine"),
        (
            {"communication": 5.0, "step": 15.0},
            "communication, 15000.000 ms shorter than predicted: the network was busy",
        ),
    ],
)
def test_the_term_that_is_most_wrong_is_named_with_its_cause(measured: dict[str, float], words: str) -> None:
    (line,) = lines(**measured)
    assert line.startswith("most wrong is ")
    assert words in line
    assert line.endswith("run `hvd-compress profile` again, and make the plan anew") or "many ranks a host" in line


def test_wrong_terms_may_cancel_out() -> None:
    first, second = lines(computation=20.0, communication=11.0)
    assert first == "the step is predicted within 15 %"
    assert "computation, 10000.000 ms longer" in second


def test_terms_may_be_right_and_the_step_wrong() -> None:
    (line,) = lines(step=40.0)
    assert "what is predicted to overlap does not" in line


@pytest.mark.parametrize(
    "measured",
    [
        {"computation": 13.0, "compression": 8.0, "communication": 23.0, "step": 40.0},  # each a bit longer
        {"computation": 8.0, "communication": 18.0, "step": 20.0},  # the step shorter
    ],
)
def test_that_it_is_overlap_is_not_said_of_what_is_not(measured: dict[str, float]) -> None:
    (line,) = lines(**measured)
    assert "overlap" not in line
    assert line.endswith("run `hvd-compress profile` again, and make the plan anew")
