"""Gradients from files, shapes and a seed, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import pytest
import torch

from hvd_compress.bench.inputs import Gradients, heavy_tailed, read_gradient, read_shapes, read_trace, synthetic
from hvd_compress.buckets.layout import Layout
from hvd_compress.errors import ConfigError


def test_a_dict_of_tensors_lies_in_its_order(tmp_path: Path) -> None:
    saved = {"weight": torch.randn(3, 5).half(), "bias": torch.nn.Parameter(torch.randn(()).double())}
    torch.save(saved, tmp_path / "gradient.pt")
    layout, values = read_gradient(tmp_path / "gradient.pt")
    assert layout == Layout(("weight", "bias"), ((3, 5), (1,)))
    assert values.dtype == torch.float32
    assert torch.equal(values, torch.cat([saved["weight"].float().reshape(-1), saved["bias"].detach().float()[None]]))


def test_an_array_of_numpy(tmp_path: Path) -> None:
    numpy.save(tmp_path / "gradient.npy", numpy.arange(6.0).reshape(2, 3))
    layout, values = read_gradient(tmp_path / "gradient.npy")
    assert layout == Layout(("gradient",), ((2, 3),))
    assert values.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        ({}, "holds no tensor"),
        ({"model": {"weight": torch.ones(3)}}, "holds a dict under 'model'; expected a dense tensor of finite numbers"),
        ([torch.ones(3)], "holds a list under 'gradient'"),
        ({0: torch.ones(3)}, "holds a Tensor under 0"),
        (torch.ones(3, dtype=torch.int64), "a tensor 'gradient' of torch.int64"),
        (torch.ones(3).to_sparse(), "torch.sparse_coo"),
        ({"empty": torch.ones(0)}, "an empty tensor 'empty'"),
        ({"weight": torch.tensor([1.0, torch.nan])}, "NaN or Inf in 'weight'"),
    ],
)
def test_what_is_no_gradient_is_named(saved: object, words: str, tmp_path: Path) -> None:
    torch.save(saved, tmp_path / "gradient.pt")
    with pytest.raises(ConfigError) as caught:
        read_gradient(tmp_path / "gradient.pt")
    assert str(tmp_path / "gradient.pt") in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["gradient.pt", "gradient.npy"])
@pytest.mark.parametrize("content", [b"", b"no tensor", b"PK\x03\x04 cut off"])
def test_a_file_that_holds_something_else(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=f"{name} cannot be read: expected .* from"):
        read_gradient(tmp_path / name)


def test_a_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    torch.save({"weight": Path("somewhere")}, tmp_path / "gradient.pt")
    with pytest.raises(ConfigError, match=r"cannot be read: expected tensors from torch\.save"):
        read_gradient(tmp_path / "gradient.pt")
    numpy.save(tmp_path / "gradient.npy", numpy.array([None]), allow_pickle=True)
    with pytest.raises(ConfigError, match=r"expected an array from numpy\.save"):
        read_gradient(tmp_path / "gradient.npy")


def test_a_trace_has_matrices_where_they_are_likely(tmp_path: Path) -> None:
    sizes = {"fc.weight": 2048000, "fc.bias": 33278, "norm.weight": 2048, "prime.weight": 10007}
    tensors = [{"name": name, "numel": numel, "backward_us": 1} for name, numel in sizes.items()]
    (tmp_path / "trace.json").write_text(json.dumps({"model": "small", "tensors": tensors}))
    assert read_trace(tmp_path / "trace.json") == {
        **{"fc.weight": (1280, 1600), "fc.bias": (33278,)},
        **{"norm.weight": (2048,), "prime.weight": (1, 10007)},
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not a trace: expected JSON as"),
        ("[]", "is not a trace"),
        ('{"tensors": [{"name": "weight"}]}', "KeyError: 'numel'"),
        ('{"tensors": []}', "expected one or more, all named"),
        ('{"tensors": [{"name": "w", "numel": 3}, {"name": "w", "numel": 3}]}', "2 tensors with 1 names"),
        ('{"tensors": [{"name": "w", "numel": 0}]}', "tensor 'w' has numel 0, expected a whole number"),
        ('{"tensors": [{"name": "w", "numel": true}]}', "numel True"),
        ('{"tensors": [{"name": "w", "numel": 1.5}]}', "numel 1.5"),
        ('{"tensors": [{"name": 5, "numel": 3}]}', "tensor 5 has"),
    ],
)
def test_what_is_no_trace_is_named(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_trace(tmp_path / "trace.json")
    assert str(tmp_path / "trace.json") in str(caught.value)
    assert words in str(caught.value)


def test_shapes_as_people_write_them() -> None:
    assert read_shapes("64x3x3x3, 10X5,7") == {"0": (64, 3, 3, 3), "1": (10, 5), "2": (7,)}


@pytest.mark.parametrize("text", ["", "10,", "10x", "0x5", "-3", "1.5", "ten", "²"])
def test_what_is_no_shape(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a shape: expected whole numbers"):
        read_shapes(text)


def test_made_values_are_those_of_the_seed_and_have_heavy_tails() -> None:
    values = heavy_tailed(100_000, 1)
    assert torch.equal(values, heavy_tailed(100_000, 1))
    assert not torch.equal(values, heavy_tailed(100_000, 2))
    assert float(values.square().mean()) == pytest.approx(1.0, rel=1e-4)
    assert float(values.square().square().mean()) > 6.0  # of normal numbers it is 3
    layout, made = synthetic({"a": (50, 40), "b": (2000,)}, 3)
    sizes = [float(part.square().mean()) for part in made.split(layout.segments)]
    assert max(sizes) > 1.5 * min(sizes)


def test_each_rank_and_step_has_its_own_noise_of_the_size_of_its_parameter() -> None:
    layout = Layout.of((100, 100), 9000)
    common = torch.cat([torch.full((10_000,), 8.0), torch.full((9000,), 0.5)])
    gradients = Gradients.of(layout, common, 0.25, 5)
    drawn = {}
    for rank in range(2):
        for step in range(2):
            drawn[rank, step] = torch.empty(19_000)
            gradients.write(rank, step, 2, drawn[rank, step])
    assert len({float(x.sum()) for x in drawn.values()}) == 4
    large, small = (drawn[1, 1] - common).split(layout.segments)
    assert float(large.square().mean().sqrt()) == pytest.approx(2.0, rel=0.2)
    assert float(small.square().mean().sqrt()) == pytest.approx(0.125, rel=0.2)


def test_without_noise_all_ranks_have_the_gradient() -> None:
    common = torch.randn(50)
    out = torch.empty(50)
    Gradients.of(Layout.of(50), common, 0.0, 5).write(3, 2, 4, out)
    assert torch.equal(out, common)
