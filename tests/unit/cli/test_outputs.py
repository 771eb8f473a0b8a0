"""Files that cannot be written are refused before the work."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hvd_compress.cli import plan_compare, plan_make
from hvd_compress.cli.main import main
from hvd_compress.cli.outputs import require_outputs
from hvd_compress.errors import ConfigError
from tests.unit.planner import profile_files


def test_what_can_be_written_is_left_as_it_is(tmp_path: Path) -> None:
    there, new = tmp_path / "there.json", tmp_path / "new.json"
    there.write_text("{}")
    require_outputs({"--out": there, "--trace": new, "--picture": None}, [tmp_path / "model.json"])
    assert there.read_text() == "{}"
    assert list(tmp_path.iterdir()) == [there]


def test_an_input_is_not_replaced_by_whatever_name(tmp_path: Path) -> None:
    model, other = tmp_path / "model.json", tmp_path / "other.json"
    model.write_text("{}")
    other.symlink_to(model)
    for name in (model, other, tmp_path / "x" / ".." / "model.json"):
        with pytest.raises(ConfigError, match="is an input of this command, and would be replaced"):
            require_outputs({"--out": name}, [model])
    with pytest.raises(ConfigError, match="--out and --trace are the same file"):
        require_outputs({"--out": tmp_path / "a", "--trace": tmp_path / "x" / ".." / "a"}, [model])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none/a.json", "there is no folder .*none: make it first"),
        ("file/a.json", "Not a directory"),
        ("a" * 300, "File name too long"),
        ("/dev/null", "it is no regular file, and would be replaced"),
    ],
)
def test_places_that_cannot_be_written(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=f"cannot write --out .*{words}"):
        require_outputs({"--out": tmp_path / name}, [])


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
    monkeypatch.setattr(plan_make, "make", lambda *_, **__: pytest.fail("the search has begun"))
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
    monkeypatch.setattr(plan_compare, "strategy_of", lambda *_, **__: pytest.fail("the comparison has begun"))
    result = plan("compare", tmp_path / "plan.json", tmp_path / "run.json", *(w.format(tmp_path) for w in arguments))
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.output.split())
