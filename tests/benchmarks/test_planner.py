"""The scripts of benchmarks/planner: random problems, a case, and the page, on models that are small."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.planner import cases, instances, run
from hvd_compress.profiler.profiles import ModelProfile, Tensor, write

SHARED = Path(__file__).parents[3] / "shared" / "data" / "traces"


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    folder = tmp_path / "traces"
    folder.mkdir()
    for name, numel in (("VGG16", 10**7), ("other", 10**5)):
        tensors = tuple(Tensor(name=f"p{n}", numel=numel, backward_us=500.0) for n in range(3))
        write(folder / f"{name}.json", ModelProfile(model=name, tensors=tensors))
    return folder


def test_a_seed_makes_the_same_problem() -> None:
    for seed in range(20):
        first, again = instances.problem(seed), instances.problem(seed)
        assert first.model == again.model
        assert first.end_ns([0] * len(first.sizes)) == again.end_ns([0] * len(first.sizes))
        assert 2 <= len(first.sizes) <= instances.MOST_TENSORS
        assert len(first.options) == (127 if len(first.sizes) < 4 else 12)


def test_nothing_is_better_than_brute_force() -> None:
    for distance in instances.distances(8, budget_s=1.0):
        one, two, local, ours = (distance.ratios[name] for name in instances.SEARCHES)
        assert 1 <= local <= two <= one
        assert 1 <= ours <= two


def test_a_case(traces: Path) -> None:
    model = cases.models(traces, ["other"])
    (case,) = [one for one in cases.cases(model, [16], budget_s=0.1, compressors=["dgc"]) if one.testbed == "pcie-25g"]
    assert case.upper <= case.ours <= min(case.ends.values())
    assert case.fused_upper <= case.fused
    assert case.backward == 1_500_000
    half = 0.5 * case.backward
    assert case.gap(case.ends["fp32"]) == pytest.approx(1 - (half + case.upper) / (half + case.ends["fp32"]))
    assert case.gap(case.upper) == 0
    assert case.scaling(case.backward) == 1


def test_the_page_and_its_picture(traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "page.md"
    asked = ["--traces", str(traces), "--out", str(out), "--instances", "3", "--budget", "0.05"]
    run.main([*asked, "--compressors", "efsignsgd", "--gpus", "16"])
    text = out.read_text()
    assert "3 random problems" in text
    assert "| never slower than another policy | at most " in text
    assert text.count("| VGG16 | efsignsgd |") == 2  # two testbeds
    assert text.count("| pcie-25g | efsignsgd | 0.") == 1  # the scaling factors of VGG16
    assert "{" not in text
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert "case 4 of 4" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        run.main(["--traces", str(tmp_path / "none")])
    assert "--traces names a folder" in capsys.readouterr().err


def test_a_trace_of_the_paper() -> None:
    if not SHARED.is_dir():
        pytest.skip(f"no {SHARED}: the traces lie beside the checkout")
    found = list(cases.cases(cases.models(SHARED, ["LSTM"]), [64], budget_s=0.2, compressors=["randomk"]))
    assert len(found) == 2
    assert all(case.tensors == 10 and case.gap(case.ours) < 0.1 for case in found)
