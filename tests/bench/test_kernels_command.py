"""hvd-compress bench kernels, on so few elements that it takes no time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from hvd_compress.bench.cli import kernels as command
from hvd_compress.cli.main import main

FEW = ["bench", "kernels", "--size", "5000", "--repetitions", "1"]


@pytest.mark.level2
def test_json_holds_the_kernels_for_every_number_of_threads() -> None:
    result = CliRunner().invoke(main, [*FEW, "--data", "normal", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    figures = report["figures"]
    assert {figure["threads"] for figure in figures} == {1, 2}
    kernels = {figure["kernel"] for figure in figures}
    assert {"topk_accumulate", "topk", "sign_accumulate", "gain_curve", "scatter_lists"} <= kernels
    assert all(figure["seconds"] > 0 and figure["floor_s"] > 0 and figure["peer_s"] > 0 for figure in figures)
    assert torch.__version__ in report["machine"]


def test_a_table_of_a_gradient_that_was_saved(tmp_path: Path) -> None:
    torch.save(torch.randn(7, 11), tmp_path / "gradient.pt")
    result = CliRunner().invoke(main, [*FEW, "--threads", "1", "--gradients", str(tmp_path / "gradient.pt")])
    assert result.exit_code == 0, result.output
    assert "5,000 elements, saved, 1 thread" in result.stdout
    assert "x floor" in result.stdout
    assert "quantize_accumulate/4" in result.stdout


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        ({"weight": torch.ones(3)}, "must hold one dense tensor of finite numbers"),
        (torch.ones(0), "must hold one dense"),
        (torch.tensor([1.0, torch.nan]), "must hold one dense"),
        (None, "cannot be read: expected tensors from torch.save"),
    ],
)
def test_a_file_without_a_gradient(saved: object, words: str, tmp_path: Path) -> None:
    file = tmp_path / "gradient.pt"
    if saved is None:
        file.write_text("not a tensor")
    else:
        torch.save(saved, file)
    result = CliRunner().invoke(main, [*FEW, "--gradients", str(file)])
    assert result.exit_code == 2
    assert words in result.output


def test_two_sources_of_gradients(tmp_path: Path) -> None:
    torch.save(torch.ones(3), tmp_path / "gradient.pt")
    result = CliRunner().invoke(main, [*FEW, "--data", "normal", "--gradients", str(tmp_path / "gradient.pt")])
    assert result.exit_code == 2
    assert "give one of them" in result.output


def test_the_default_and_all_sizes_are_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, str, int, int]] = []

    def note(grad: torch.Tensor, kind: str, threads: int, repetitions: int, kernels: list[str]) -> list[command.Figure]:
        asked.append((grad.numel(), kind, threads, repetitions))
        return [command.Figure("topk", 0.1, grad.numel(), threads, kind, 1.0, 1.0, 1.0, None, (0.9, 1.1))]

    monkeypatch.setattr(command, "measure", note)
    monkeypatch.setattr(command, "gradients", lambda kind, size: torch.ones(1).expand(size))
    result = CliRunner().invoke(main, ["bench", "kernels"])
    assert "65,536, 1,048,576, 25,557,032 elements" in result.stderr
    assert "6 tables in about" in result.stderr
    assert asked == [(size, "normal", threads, 5) for size in command.SIZES for threads in (1, 2)]
    asked.clear()
    result = CliRunner().invoke(main, ["bench", "kernels", "--full"])
    assert "minutes" in result.stderr
    assert len(asked) == 16
    assert asked[-1] == (100_000_000, "laplace", 2, 20)


def test_only_some_kernels() -> None:
    result = CliRunner().invoke(main, [*FEW, "--kernel", "sign_add, quantize_add/8", "--kernel", "topk", "--json"])
    assert {figure["kernel"] for figure in json.loads(result.stdout)["figures"]} == {
        "sign_add",
        "quantize_add/8",
        "topk",
    }
    family = CliRunner().invoke(main, [*FEW, "--kernel", "quantize_accumulate", "--json"])
    assert len({figure["kernel"] for figure in json.loads(family.stdout)["figures"]}) == 3


def test_a_kernel_that_is_none() -> None:
    result = CliRunner().invoke(main, [*FEW, "--kernel", "topk,topkk"])
    assert result.exit_code == 2
    assert "no kernel is called topkk; known are topk_accumulate, topk" in " ".join(result.stderr.split())


def test_a_tensor_that_the_kernels_do_not_take() -> None:
    result = CliRunner().invoke(main, ["bench", "kernels", "--size", "3G"])
    assert result.exit_code == 2
    assert "'3G' is more than 2147483647 elements" in " ".join(result.stderr.split())
