"""The command line of examples/train_dlrm.py, which ends before it needs a job."""

from __future__ import annotations

import pytest
import train_dlrm
from click.testing import CliRunner, Result
from recommendation.models import MODELS


def run(*words: object) -> Result:
    return CliRunner().invoke(train_dlrm.main, [str(word) for word in words])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--zipf", 1, "--top", 0.5), "two skews: give one"),
        (("--zipf", 1, "--data", "packages"), "are for generated data"),
        (("--top", 0.5, "--data", "train.txt"), "are for generated data"),
        (("--zipf", -1), "must be 0 or more"),
        (("--top", 2), "share 2.0"),
    ],
)
def test_skews_that_make_no_sense_are_refused(words: tuple[object, ...], message: str) -> None:
    done = run(*words)
    assert done.exit_code == 2
    assert message in done.stderr


def test_help_names_the_models() -> None:
    done = run("--help")
    assert done.exit_code == 0, done.output
    assert f"[{'|'.join(MODELS)}]" in done.stdout


def test_the_skew_that_is_asked_for() -> None:
    zipf, top = train_dlrm.skew_of(3.0, None, ()), train_dlrm.skew_of(None, 0.9, ("synthetic",))
    assert isinstance(zipf, train_dlrm.Zipf)
    assert isinstance(top, train_dlrm.Top)
    assert (zipf.alpha, top.share) == (3.0, 0.9)
    assert train_dlrm.skew_of(None, None, ()) is None
