"""Files that cannot be written are refused before the work."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_compress.cli.outputs import require_outputs
from hvd_compress.errors import ConfigError


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
