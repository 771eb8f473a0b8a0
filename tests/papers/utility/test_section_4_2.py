"""The reproduction of section 4.2 of Agarwal et al., from the inputs of section_4_2.py."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from hvd_compress.cli.main import main
from hvd_compress.papers.utility.answers import needed_compression
from tests.papers.utility import section_4_2 as section

pytestmark = pytest.mark.skipif(not section.TRACES.is_dir(), reason="no ../shared/data/traces here")


def test_crossovers() -> None:
    assert section.crossover_gbit("ResNet-101") == pytest.approx(8.2, rel=0.15)
    assert section.crossover_gbit("ResNet-50") == pytest.approx(9.0, rel=0.15)


def test_4_times_are_enough_at_10_gbit() -> None:
    """Of the batches in the chapter 16 is the smallest."""
    assert needed_compression(section.case("ResNet-101", batch=16 / 64)) == pytest.approx(4.0, rel=0.15)
    for name in section.SOURCES:
        assert needed_compression(section.case(name)) <= 4


@pytest.mark.parametrize(("batch", "paper"), [(16, 42.5), (32, 25.7), (64, -6.3)])
def test_what_powersgd_saves_by_batch(batch: int, paper: float) -> None:
    """Section 4.2.3, of 96 GPUs, to 5 percent of an iteration."""
    assert section.saved("ResNet-101", batch / 64) == pytest.approx(paper, abs=5)


def test_gathered_compressions_are_slower() -> None:
    assert all(found.speedup < 1 for found in section.gathered())


def test_shapes_derived_from_names_are_those_of_the_models() -> None:
    """All weights but norms are matrices; a few that are known."""
    shapes = {tensor.name: tensor.shape for tensor in section.model("ResNet-101").tensors}
    assert shapes["fc.weight"] == (1000, 2048)
    assert shapes["conv1.weight"] == (64, 3 * 7 * 7)
    assert shapes["layer4.2.conv2.weight"] == (512, 512 * 9)
    assert shapes["layer1.0.downsample.0.weight"] == (256, 64)
    assert shapes["layer4.2.bn3.weight"] == (2048,)
    assert sum(len(shape) == 2 for shape in shapes.values()) == 105
    bert = {tensor.name: tensor.shape for tensor in section.model("BERT-base").tensors}
    assert bert["bert.embeddings.position_embeddings.weight"] == (512, 768)
    assert bert["bert.encoder.layer.0.attention.self.key.weight"] == (768, 768)


def test_the_example_of_the_documentation_is_what_is_printed() -> None:
    text = (Path(__file__).parents[3] / "docs" / "whatif.md").read_text()
    lines = [line[4:] for line in text.splitlines() if line.startswith("    ")]
    arguments = lines[0].removeprefix("$ hvd-compress ").replace("resnet101", str(section.TRACES / "resnet101"))
    result = CliRunner(env={"COLUMNS": "120"}).invoke(main, shlex.split(arguments))
    assert result.output.splitlines()[: len(lines) - 1] == lines[1:]
