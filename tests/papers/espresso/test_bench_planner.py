"""hvd-compress bench planner, on models that are small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hvd_compress.cli.main import main
from hvd_compress.papers.espresso.bench.searches import PAPER
from hvd_compress.papers.espresso.cli import planner as bench_planner
from hvd_compress.profiler.profiles import ModelProfile, Tensor, write


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", "planner", *arguments])


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    for name, tensors in (("other", 3), ("LSTM", 2)):
        made = tuple(Tensor(name=f"p{n}", numel=10**6 * (n + 1), backward_us=100.0) for n in range(tensors))
        write(tmp_path / f"{name}.json", ModelProfile(model=name, tensors=made))
    return tmp_path


def test_json_has_figures_and_those_of_the_paper(traces: Path) -> None:
    result = run("--traces", str(traces), "--rounds", "2", "--gpus", "16", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["compressor"], report["gpus"], report["rounds"]) == ("dgc", 16, 2)
    assert report["first_setup_s"] > 0
    first, second = report["figures"]
    assert (first["model"], first["tensors"]) == ("LSTM", 2)
    assert first["paper"] == {"selection_s": 0.001, "offloading_s": 0.001, "selection_bound_s": 0.0005}
    assert second["paper"] is None
    for figure in (first, second):
        assert figure["offloads_all"]
        assert min(figure["simulations"]) >= 1
        low, high = figure["selection_quartiles_s"]
        assert 0 < low <= figure["selection_s"] <= high
        assert 0 < figure["timeline_s"] < figure["selection_s"]


@pytest.mark.parametrize("columns", [80, 120])
def test_tables_fit(traces: Path, columns: int) -> None:
    arguments = ["--traces", str(traces), "--rounds", "1", "--compressor", "efsignsgd", "--testbed", "pcie-25g"]
    result = CliRunner(env={"COLUMNS": str(columns)}).invoke(main, ["bench", "planner", *arguments])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert all(len(line) <= columns for line in lines)
    rows = [line.split() for line in lines]
    lstm = [row for row in rows if row[:1] == ["LSTM"] and row[1] == "2"]
    assert [len(row) for row in lstm] == [7, 7, 5]
    assert [row[4] for row in lstm[:2]] == ["1", "1"], "the paper's milliseconds"
    assert [row[6] for row in lstm[:2]] == ["0.5", "1"], "bounds"
    assert [len(row) for row in rows if row[:1] == ["other"] and row[1] == "3"] == [4, 4, 5]
    assert "|" not in result.stdout
    assert "efsignsgd, pcie-25g, 64 GPUs; medians of 1" in " ".join(result.stdout.split())


def test_what_exceeds_its_bound_is_named(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_planner, "TIMELINE_BOUND_S", 1e-12)
    assert "other: the timeline takes" in run("--traces", str(traces), "--rounds", "1").stdout
    monkeypatch.setattr(bench_planner, "TIMELINE_BOUND_S", 1e3)
    (traces / "LSTM.json").unlink()  # with bounds of its own
    assert "all times are within their bounds" in run("--traces", str(traces), "--rounds", "1").stdout


def test_bounds_are_a_fifth_of_the_paper_and_half_of_its_shortest() -> None:
    assert {name: paper.selection_bound_s / paper.selection_s for name, paper in PAPER.items()} == {
        **{name: pytest.approx(0.2) for name in PAPER},
        "LSTM": 0.5,
    }


def test_without_traces_it_says_where_they_are(tmp_path: Path) -> None:
    for arguments in ((), ("--traces", str(tmp_path))):
        result = run(*arguments)
        assert result.exit_code == 2
        assert "--traces FOLDER" in result.stderr
        assert "no traces" in result.stderr


def test_a_bad_trace_is_named_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text('{"model": "m", "tensors": [{"name": "p", "numel": 0, "backward_us": 1}]}')
    result = run("--traces", str(tmp_path))
    assert result.exit_code == 2
    assert "bad.json" in result.stderr
    assert "tensors[0].numel" in result.stderr or "tensors.0.numel" in result.stderr
