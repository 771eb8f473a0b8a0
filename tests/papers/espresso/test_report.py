"""What `hvd-compress plan make` says of a plan."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure

from hvd_compress.cli.main import main
from hvd_compress.papers.espresso.cli import report as plan_report
from hvd_compress.papers.espresso.making import NAMES, Inputs, Made, make
from tests.unit.profiler import profile_files


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return profile_files.write(tmp_path / "profile")


def said(profile: Path, *arguments: object, columns: int = 200) -> str:
    words = ["plan", "make", profile, "-o", profile.parent / "plan.json", *arguments]
    result = CliRunner(env={"COLUMNS": str(columns)}).invoke(main, list(map(str, words)))
    assert result.exit_code == 0, result.output
    return result.output


def test_whether_the_search_was_complete(profile: Path) -> None:
    assert "the search was complete: the same inputs give the same plan" in said(profile, "--budget", "inf")
    stopped = said(profile, "--budget", 0)
    assert (
        "the search stopped at its budget of 0 s, of which each size of buckets has a share: another run may "
        in stopped
    )
    assert "complete" not in stopped


@pytest.mark.parametrize("columns", [80, 120])
def test_lines_are_broken_between_words(profile: Path, columns: int) -> None:
    lines = said(profile, "--budget", 0.5, columns=columns).splitlines()
    found = [line for line in lines if not line.startswith("wrote ")]
    assert max(map(len, found)) <= columns
    options = [line for line in found if re.match("[A-Z]+: ", line)]
    letters = {line.split(":")[0] for line in options}
    rows = [line.split() for line in found if re.match(r"\s+\d+ ", line)]
    assert rows
    assert {row[-1] for row in rows} <= letters
    words = " ".join(found).split()
    assert "allreduce@across" in words, "of the option without compression"
    assert all(re.fullmatch(r"\(?[\w-]+@[a-z]+\)?|[a-z_]+\*@[a-z]+", word) for word in words if "@" in word)


def test_sizes_are_readable(tmp_path: Path) -> None:
    shapes = {"few": (10,), "many": (1000, 300)}
    folder = profile_files.write(tmp_path / "profile", **profile_files.said(shapes=shapes))
    output = said(folder, "--no-fusion", "--budget", 0)
    assert re.search(r"few +40 B ", output)
    assert re.search(r"many +1.2 MB ", output)


def test_a_policy_of_one_device_is_named_by_the_device(profile: Path) -> None:
    inputs = Inputs.read({name: profile / file for name, file in NAMES.items()})
    made = make(inputs, budget_s=0.0)
    for by, words in (
        ("local search from GPU only", "found by local search from training device only in "),
        ("CPU only", "found by host only in "),
        ("FP32", "found by FP32 (no compression) in "),
        ("local search from HiPress", "found by local search from HiPress in "),
    ):
        assert words in " ".join(plan_report._findings(_by(made, by), inputs, 0.1, 10.0))


def _by(made: Made, name: str) -> Made:
    return replace(made, planned=replace(made.planned, chosen=replace(made.planned.chosen, by=name)))


def test_the_picture_and_the_terminal_have_the_same_figure(profile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    output = said(profile, "--budget", 0, "--picture", profile.parent / "step.png")
    (axis,) = figures[0].axes
    step = re.search(r"predicted step ([0-9.]+) ms", output)
    assert step is not None
    assert axis.get_title("right") == f"predicted step = {step[1]} ms"
    assert [line.get_xdata()[0] for line in axis.lines] == [pytest.approx(float(step[1]), abs=1e-3)]
    assert axis.collections[0].get_paths()[0].get_extents().width == pytest.approx(0.030), "the forward pass"
