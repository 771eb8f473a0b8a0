"""Files that cannot be written are refused before a plan is searched for."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hvd_compress.cli.main import main
from hvd_compress.papers.espresso.cli import compare, make
from tests.unit.profiler import profile_files


def plan(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(main, ["plan", *map(str, arguments)])


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return profile_files.write(tmp_path / "profile")


BAD = [
    (("--picture", "{}/x.bmp"), "the name of a picture ends in .png, .svg or .pdf"),
    (("--picture", "{}/x"), "the name of a picture ends in .png, .svg or .pdf"),
    (("--picture", "{}/none/x.png"), "there is no folder"),
    (("--picture", "{}/profile/model.json"), "is an input of this command"),
]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        *((("-o", "{}/plan.json", *arguments), words) for arguments, words in BAD),
        (("-o", "{}/plan.json", "--trace", "{}/none/trace.json"), "cannot write --trace"),
        (("-o", "{}/plan.json", "--trace", "{}/profile/system.json"), "--trace {}/profile/system.json is an input"),
        (("-o", "{}/plan.json", "--trace", "{}/plan.json"), "--out and --trace are the same file"),
        (("-o", "{}/none/plan.json"), "cannot write --out"),
        (("-o", "{}/profile/compressor.json"), "--out {}/profile/compressor.json is an input"),
        (("-o", "{}/plan.json", "--budget", "nan"), "'nan' is no number of seconds"),
    ],
)
def test_no_plan_is_searched_for_in_vain(
    arguments: tuple[str, ...], words: str, profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make, "make", lambda *_, **__: pytest.fail("the search has begun"))
    before = {path: path.read_text() for path in profile.iterdir()}
    result = plan("make", profile, *(word.format(tmp_path) for word in arguments))
    assert result.exit_code == 2, result.output
    assert words.format(tmp_path) in " ".join(result.output.split())
    assert {path: path.read_text() for path in profile.iterdir()} == before
    assert list(tmp_path.iterdir()) == [profile]


@pytest.mark.parametrize(("arguments", "words"), [*BAD, (("--picture", "{}/plan.json"), "is an input of this command")])
def test_nothing_is_compared_in_vain(
    arguments: tuple[str, ...], words: str, profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plan("make", profile, "-o", tmp_path / "plan.json", "--budget", 0).exit_code == 0
    monkeypatch.setattr(compare, "strategy_of", lambda *_, **__: pytest.fail("the comparison has begun"))
    result = plan("compare", tmp_path / "plan.json", tmp_path / "run.json", *(w.format(tmp_path) for w in arguments))
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.output.split())
