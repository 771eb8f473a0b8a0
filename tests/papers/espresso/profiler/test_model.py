"""A model's profile from recorded steps."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_compress.errors import UsageError
from hvd_compress.papers.espresso.profiler.model import model_profile
from hvd_compress.profiler.profiles import ModelProfile, read, write
from hvd_compress.session.gradient_times import StepTimes

SHAPES = {"a": (2, 3), "b": (), "c": (7,), "never": (4,), "empty": (0, 3)}
SECONDS = st.floats(0.0, 10.0)


def test_means_and_deviations() -> None:
    steps = [StepTimes(None, {"c": 1.0, "a": 3.0, "b": 3.5}), StepTimes(4.0, {"c": 2.0, "a": 6.0, "b": 7.0})]
    found = model_profile("tiny", SHAPES, steps)
    assert [tensor.name for tensor in found.tensors] == ["c", "a", "b", "never"]
    assert [tensor.numel for tensor in found.tensors] == [7, 6, 1, 4]
    assert [tensor.shape for tensor in found.tensors] == [(7,), (2, 3), (), (4,)]
    assert [tensor.backward_us for tensor in found.tensors] == pytest.approx([1.5e6, 3.0e6, 0.75e6, 0.0])
    expected = [statistics.stdev(gaps) * 1e6 for gaps in ((1.0, 2.0), (2.0, 4.0), (0.5, 1.0))]
    assert [tensor.backward_us_sd for tensor in found.tensors] == pytest.approx([*expected, 0.0])
    assert (found.forward_us, found.forward_us_sd, found.steps, found.parameters) == (4e6, None, 2, 18)
    assert "the order of 2 of 2 steps" in found.order


def test_the_order_of_means_counts_where_steps_differ() -> None:
    steps = [StepTimes(1.0, {"a": 1.0, "c": 2.0}), StepTimes(1.0, {"c": 1.0, "a": 4.0})]
    found = model_profile("tiny", SHAPES, steps)
    assert [tensor.name for tensor in found.tensors] == ["c", "a", "b", "never"]
    assert "the order of 1 of 2 steps" in found.order


def test_sparse_gradients_are_left_out() -> None:
    found = model_profile("tiny", SHAPES, [StepTimes(1.0, {"a": 1.0, "c": 2.0})], {"a"})
    assert "a" not in [tensor.name for tensor in found.tensors]


def test_dtypes_are_kept(tmp_path: Path) -> None:
    dtypes = dict.fromkeys(SHAPES, torch.float32) | {"a": torch.bfloat16}
    found = model_profile("tiny", SHAPES, [StepTimes(1.0, {"a": 1.0, "c": 2.0})], dtypes=dtypes)
    write(tmp_path / "model.json", found)
    kept = {tensor.name: tensor.dtype for tensor in read(tmp_path / "model.json", ModelProfile).tensors}
    assert kept == {"a": "bfloat16", "c": "float32", "b": "float32", "never": "float32"}


@given(st.lists(st.dictionaries(st.sampled_from("abc"), SECONDS, min_size=1), min_size=1, max_size=6))
def test_backward_times_add_up_to_the_mean_of_the_last_gradient(ready: list[dict[str, float]]) -> None:
    """Whatever gradients come in whichever order; and it can be written and read."""
    steps = [StepTimes(0.5, dict(sorted(step.items(), key=lambda item: item[1]))) for step in ready]
    found = model_profile("tiny", SHAPES, steps)
    means = {name: statistics.mean(s[name] for s in ready if name in s) for name in {n for s in ready for n in s}}
    assert all(tensor.backward_us >= 0 for tensor in found.tensors)
    assert math.isclose(
        sum(tensor.backward_us for tensor in found.tensors), 1e6 * max(means.values()), rel_tol=1e-9, abs_tol=1e-6
    )
    assert sorted(tensor.name for tensor in found.tensors) == ["a", "b", "c", "never"]
    with TemporaryDirectory() as folder:
        path = Path(folder, "model.json")
        write(path, found)
        assert read(path, ModelProfile) == found


def test_without_gradients_there_is_no_profile() -> None:
    with pytest.raises(UsageError, match="1 steps were recorded, and none of 5 parameters"):
        model_profile("tiny", SHAPES, [StepTimes(None, {})])
