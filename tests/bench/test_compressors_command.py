"""hvd-compress bench compressors, on so few elements that it takes no time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from hvd_compress.bench.cli import compressors
from hvd_compress.bench.compressors import Figure
from hvd_compress.cli.main import main
from hvd_compress.compression.named import names
from tests.brought import brought

FEW = ["--shapes", "60x50,13", "--ranks", "2", "--rounds", "1"]


def run(*arguments: str, few: Sequence[str] = FEW) -> Result:
    return CliRunner().invoke(main, ["bench", "compressors", *few, *arguments])


def test_json_holds_every_compression_and_the_hooks() -> None:
    result = run("--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    figures = {figure["name"]: figure for figure in report["figures"]}
    assert [figure["name"] for figure in report["figures"]][: len(names())] == names()
    assert {figure["name"] for figure in report["figures"] if figure["kind"] == "torch hook"} >= {"powerSGD"}
    assert all(figure["failure"] == "" and figure["floor_s"] > 0 for figure in figures.values())
    assert figures["topk"]["sent_bytes"] == 8 * 30
    assert figures["topk"]["both_times_floor"] == figures["topk"]["both_s"] / figures["topk"]["floor_s"]
    assert (report["numel"], report["ranks"], report["threads"], report["torch"]) == (3013, 2, 1, torch.__version__)
    assert torch.__version__ in report["machine"]


def test_a_table_that_fits_and_is_grouped_by_kind() -> None:
    result = run("--compressions", "bf16,topk,dense")
    assert result.exit_code == 0, result.output
    assert "3,013 elements, 2 ranks, medians of 1" in result.stdout
    rows = [line.strip("|").split() for line in result.stdout.splitlines() if line.startswith("|")]
    assert rows[0][0] == "compression"
    kinds = [line.split("|")[2].strip() for line in result.stdout.splitlines() if line.startswith("|")][2:]
    assert kinds == ["cast", "cast", "sparsifier", *6 * ["torch hook"]]
    assert all(len(line) <= compressors.WIDTH for line in result.stdout.splitlines())


def test_a_trace(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(json.dumps({"tensors": [{"name": "fc.weight", "numel": 6400}]}))
    result = run("--trace", str(tmp_path / "trace.json"), "--compressions", "powersgd", "--no-peers", few=[])
    assert result.exit_code == 0, result.output
    assert "6,400 elements in 1 tensors, 4 ranks, 5 rounds" in result.stderr
    assert f"{4 * 4 * (80 + 80):,}" in result.stdout


def test_one_that_fails_is_in_its_row_and_in_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    measure = compressors.measure

    def fail(name: str, *arguments: object) -> Figure:
        return Figure(name, "quantiser", failure="RuntimeError: no") if name == "int4" else measure(name, *arguments)

    monkeypatch.setattr(compressors, "measure", fail)
    result = run("--compressions", "int4,int8", "--no-peers")
    assert result.exit_code == 1
    assert "int4 failed: RuntimeError: no" in result.stdout
    assert [line.split()[0] for line in result.stdout.splitlines() if "|failed" in line] == ["|int4"]
    report = json.loads(run("--compressions", "int4,int8", "--no-peers", "--json").stdout)
    assert report["figures"][0]["failure"] == "RuntimeError: no"
    assert report["figures"][1]["failure"] == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--compressions", "topk,topkk"], "unknown compressor 'topkk'; did you mean topk?"),
        (["--shapes", "10x"], "'10x' is not a shape"),
        (["--shapes", "100000x100000"], "10,000,000,000 elements are more than 2,147,483,647"),
        (["--ranks", "0"], "0 is not in the range"),
        (["--gradient", "nowhere.pt"], "'nowhere.pt' does not exist"),
    ],
)
def test_bad_arguments(arguments: list[str], words: str) -> None:
    result = run(*arguments, few=[])
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())
    assert "Traceback" not in result.output


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    for option, words in (("--gradient", "expected tensors from torch.save"), ("--trace", "is not a trace")):
        (tmp_path / "file").write_text("nothing of the kind")
        result = run(option, str(tmp_path / "file"), few=[])
        assert result.exit_code == 2
        assert str(tmp_path / "file") in result.stderr
        assert words in result.stderr
        assert "Traceback" not in result.output


def test_two_inputs(tmp_path: Path) -> None:
    torch.save(torch.ones(3), tmp_path / "gradient.pt")
    result = run("--gradient", str(tmp_path / "gradient.pt"))
    assert result.exit_code == 2
    assert "give one of --gradient, --trace and --shapes" in result.stderr


@pytest.mark.parametrize("text", [*names(), "blocks:bits=4,block=128", "topk:ratio=0.5,values=bf16"])
def test_every_compressor_is_taken_by_name(text: str) -> None:
    done = run("--no-peers", "--compressions", f"dense,{text}", "--json")
    assert done.exit_code == 0, done.output
    assert f'"name": "{text}"' in done.stdout


def test_a_threshold_without_a_default_suits_the_gradient(tmp_path: Path) -> None:
    torch.save(1e-6 * torch.randn(10_000), tmp_path / "gradient.pt")
    for name in brought("THRESHOLDS"):
        words = ["--gradient", str(tmp_path / "gradient.pt"), "--compressions", name, "--no-peers", "--json"]
        result = run("--rounds", "1", "--noise", "0", *words, few=[])
        (figure,) = json.loads(result.stdout)["figures"]
        assert 0 < figure["sent_bytes"] < 8 * 10_000
        assert "tau=" in figure["settings"]
