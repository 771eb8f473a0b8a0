"""What must hold of every compressor by itself, whatever collective carries it."""

from __future__ import annotations

import dataclasses
from statistics import NormalDist

import pytest
import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import Compressor
from hvd_compress.payload import Payload
from tests.conformance.cases import TABLE
from tests.conformance.lockstep import exchange, fresh
from tests.harness import BIASED, NEVER_ZERO

LAYOUTS = {
    "several": Layout.of((7, 13), 7, 1, 0, (40, 9)),
    "one element": Layout.of(1),
    "empty": Layout.of(0),
    "one matrix": Layout.of((40, 9)),
}
ALIKE = [name for name, c in TABLE.items() if c.has_ratio]
BEYOND = {"half": "float16 ends at 65,504"}
"""Compressors to which a spike of 1e6 is infinite, and why."""
UNBIASED = [
    name
    for name, c in TABLE.items()
    if c.compresses and not c.error_feedback and c.kind != "cast" and name not in BIASED
]
DRAWS, ERROR_RATE = 2000, 1e-6


def normal(layout: Layout, seed: int) -> torch.Tensor:
    return torch.randn(layout.numel, generator=torch.Generator().manual_seed(seed))


INPUTS = {
    "normal": normal,
    "zeros": lambda layout, seed: torch.zeros(layout.numel),
    "ties": lambda layout, seed: torch.where(normal(layout, seed) > 0, 0.75, -0.75),
    "one spike": lambda layout, seed: (torch.arange(layout.numel) == layout.numel // 2) * 1e6,
    "nothing but NaN": lambda layout, seed: torch.full((layout.numel,), torch.nan),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", TABLE)
def test_a_rank_sends_the_bytes_that_wire_says(name: str, layout: str) -> None:
    """In each round as many, or no more where data decide; and what may be summed has the dtype that it says."""
    compressor, bucket = TABLE[name], LAYOUTS[layout]
    announced = compressor.wire(bucket)
    for kind, draw in INPUTS.items():
        states = None
        for step in range(2):
            exchanged = exchange(compressor, bucket, [draw(bucket, rank) for rank in range(2)], states, step)
            assert len(exchanged.sent) == len(announced), kind
            for round_, payloads in zip(announced, exchanged.sent, strict=True):
                for payload in payloads:
                    if round_.fixed:
                        assert payload.wire_bytes == round_.nbytes, kind
                    assert payload.wire_bytes <= round_.nbytes, kind
                    assert payload.summable == (round_.sum_dtype is not None)
                    assert not payload.summable or dtypes(payload) <= {round_.sum_dtype}
                    assert payload.numel == bucket.numel
            states = exchanged.commit() if kind != "nothing but NaN" else None


def dtypes(payload: Payload) -> set[torch.dtype]:
    return {tensor.dtype for tensor in payload.tensors.values()}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", TABLE)
def test_what_is_decoded_is_the_same_on_all_ranks(name: str, layout: str) -> None:
    """Finite gradients give a finite result, zeros give zeros, and NaN on all ranks gives NaN."""
    for kind, draw in INPUTS.items():
        exchanged = exchange(TABLE[name], LAYOUTS[layout], [draw(LAYOUTS[layout], rank) for rank in range(3)])
        first = exchanged.results[0]
        assert all(torch.equal(result.view(torch.int32), first.view(torch.int32)) for result in exchanged.results)
        if kind == "nothing but NaN" or (kind == "one spike" and name in BEYOND):
            assert not first.numel() or not first.isfinite().all()
        else:
            assert first.isfinite().all()
            assert kind != "zeros" or name in NEVER_ZERO or not first.any()


@pytest.mark.parametrize("name", ALIKE)
def test_a_ratio_of_one_sends_everything(name: str) -> None:
    """k = numel: the mean comes out, and nothing is left but what rounding takes of values."""
    layout = LAYOUTS["several"]
    for draw in (INPUTS["normal"], INPUTS["ties"]):
        gradients = [draw(layout, rank) for rank in range(3)]
        exchanged = exchange(TABLE[name].with_ratio(1.0), layout, gradients)
        left = [state.residual.current for state in exchanged.commit() if state.residual is not None]
        rounded = getattr(TABLE[name], "values", "fp32") != "fp32"
        assert rounded or not any(residual.any() for residual in left)
        remembered = torch.stack(left).mean(0) if rounded else 0.0
        assert not rounded or float(remembered.abs().max()) < 2**-6 * float(torch.stack(gradients).abs().max())
        expected = torch.stack(gradients).mean(0)
        torch.testing.assert_close(
            exchanged.results[0] + remembered, expected, rtol=1e-6, atol=1e-6 if rounded else 1e-7
        )


@pytest.mark.parametrize("name", TABLE)
def test_nothing_depends_on_the_number_of_threads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the payloads, nor the result, nor what is remembered, where each kernel divides its work."""
    layout = Layout.of((300, 500), 70_001, 1, (40, 9))
    gradients = [normal(layout, rank) for rank in range(2)]

    def trained(threads: int) -> list[torch.Tensor]:
        monkeypatch.setenv("HVD_COMPRESS_NUM_THREADS", str(threads))
        found, states = [], None
        for step in range(2):
            exchanged = exchange(TABLE[name], layout, gradients, states, step)
            found += [tensor.clone() for sent in exchanged.sent for p in sent for tensor in p.tensors.values()]
            found += [result.clone() for result in exchanged.results]
            states = exchanged.commit()
        for state in states or ():
            found += [state.residual.current] if state.residual is not None else []
            found += state.current.values()
        return found

    alone, three = trained(1), trained(3)
    assert all(torch.equal(a, b) for a, b in zip(alone, three, strict=True))
    assert len(alone) > 4


@pytest.mark.parametrize("name", UNBIASED)
def test_without_feedback_the_result_is_right_on_average(name: str) -> None:
    """A z-test of the mean of 2000 steps for each of 212 elements, with Bonferroni's correction.

    A right compressor fails with a probability of 1e-6, by the normal approximation, for each seed; seeds are fixed, so
    that the outcome is. Elements that come out the same in every step are compared to 1e-5.
    """
    layout = Layout.of((12, 16), 19, 1)
    own = normal(layout, 1)
    compressor = more_of(TABLE[name])
    steps = torch.stack([exchange(compressor, layout, [own], step=step).results[0] for step in range(DRAWS)]).double()
    deviation, error = steps.std(0), (steps.mean(0) - own.double()).abs()
    z = NormalDist().inv_cdf(1 - ERROR_RATE / (2 * layout.numel))
    assert (error <= z * deviation / DRAWS**0.5 + 1e-5 * (1 + own.abs())).all()
    assert (deviation > 0.01).any(), "nothing is random"


def more_of(compressor: Compressor) -> Compressor:
    """Return a compressor that sends a third of the elements, where it has a ratio: means of few are not normal."""
    fields = {field.name for field in dataclasses.fields(compressor)}  # type: ignore[arg-type]
    return dataclasses.replace(compressor, ratio=0.3) if "ratio" in fields else compressor  # type: ignore[type-var]


@pytest.mark.parametrize("name", BIASED)
def test_what_is_said_to_be_wrong_on_average_is(name: str) -> None:
    """Or it would have to be tested."""
    layout = Layout.of(200)
    own = torch.cat([torch.full((199,), 0.1), torch.full((1,), 10.0)])
    steps = torch.stack([exchange(TABLE[name], layout, [own], step=step).results[0] for step in range(300)])
    assert abs(float(steps[:, -1].mean()) - 10.0) > 1.0


@pytest.mark.parametrize("name", TABLE)
def test_what_is_remembered_belongs_to_parameters(name: str) -> None:
    layout = LAYOUTS["several"]
    state = fresh(TABLE[name], layout)
    assert all(parameter in layout.names for _, parameter in state.current)
    after = exchange(TABLE[name], layout, [normal(layout, 0)], [state]).commit()[0]
    assert {key: t.shape for key, t in after.current.items()} == {
        k: t.shape for k, t in fresh(TABLE[name], layout).current.items()
    }
