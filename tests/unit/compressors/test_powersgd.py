"""PowerSGD: what it approximates, how well, and what it keeps."""

from __future__ import annotations

import math

import pytest
import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors.base import Input
from hvd_compress.compressors.matrices import orthogonal
from hvd_compress.compressors.powersgd import KIND, PowerSGD
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import ConfigError, PayloadError
from hvd_compress.feedback.states import BucketState, States
from hvd_compress.payload import Payload
from hvd_compress.request.request import Request
from tests.harness import SHAPES, backward, flat_gradient, gradient, on_engine

LAYOUT = Layout(("conv", "bias", "small", "dense"), ((16, 3, 3, 3), (16,), (2, 2), (30, 20)))


def draw(seed: int, layout: Layout = LAYOUT) -> torch.Tensor:
    return torch.randn(layout.numel, generator=torch.Generator().manual_seed(seed))


def new_state(compressor: PowerSGD, layout: Layout = LAYOUT) -> BucketState:
    return States().bind(layout, own=compressor.new_state(layout, torch.device("cpu")))


def step(
    compressor: PowerSGD, gradient: torch.Tensor, state: BucketState, number: int = 0, layout: Layout = LAYOUT
) -> list[Payload]:
    """Exchange with one rank, commit, and return the payloads as they were sent; `gradient` holds the result."""
    rounds = compressor.rounds(Input(gradient, layout, number, 0, 1.0, state))
    sent, answer = [], None
    while True:
        try:
            payload = rounds.send(answer)  # type: ignore[arg-type]
        except StopIteration:
            state.commit()
            return sent
        sent.append(Payload({name: tensor.clone() for name, tensor in payload.tensors.items()}, payload.numel))
        answer = [payload]


def parts(flat: torch.Tensor, layout: Layout = LAYOUT) -> dict[str, torch.Tensor]:
    pieces = torch.split(flat, list(layout.segments))
    return {n: part.view(s) for n, part, s in zip(layout.names, pieces, layout.shapes, strict=True)}


def residual(state: BucketState) -> torch.Tensor:
    assert state.residual is not None
    return state.residual.current


@pytest.mark.parametrize("compressor", [PowerSGD(), PowerSGD(2), PowerSGD(1, 3), PowerSGD(4, 0, 100.0)])
def test_wire_is_what_is_sent(compressor: PowerSGD) -> None:
    sent = step(compressor, draw(0), new_state(compressor), compressor.start_step)
    rounds = compressor.wire(LAYOUT)
    assert [payload.wire_bytes for payload in sent] == [round_.nbytes for round_ in rounds]
    assert all(round_.sum_dtype == torch.float32 for round_ in rounds)


@pytest.mark.parametrize(
    ("factors", "bytes_"),
    [
        ("fp32", [4 * (92 + 20), 4 * 94]),
        ("bf16", [2 * 92 + 4 * 20, 2 * 94]),
        ("int8", [128 + 2 * 2 + 4 * 20, 128 + 2 * 2]),  # each factor is a block of 64 elements, and a bf16 scale
    ],
)
def test_factors_take_as_many_bytes_as_they_have_bits(factors: str, bytes_: list[int]) -> None:
    """P has 16 * 2 and 30 * 2 elements, Q 27 * 2 and 20 * 2; bias and small are 20 elements in fp32."""
    compressor = PowerSGD(2, factors=factors)
    rounds = compressor.wire(LAYOUT)
    assert [round_.nbytes for round_ in rounds] == bytes_
    assert [payload.wire_bytes for payload in step(compressor, draw(0), new_state(compressor))] == bytes_
    assert {round_.sum_dtype for round_ in rounds} == {torch.float32 if factors == "fp32" else None}


@pytest.mark.parametrize("factors", ["bf16", "int8"])
def test_rounding_is_in_the_residual(factors: str) -> None:
    """Of a matrix of low rank nothing but the rounding of Q is left, which is more than fp32's."""
    layout, compressor = Layout.of((40, 30)), PowerSGD(3, factors=factors)
    generator = torch.Generator().manual_seed(0)
    matrix = (torch.randn(40, 2, generator=generator) @ torch.randn(2, 30, generator=generator)).reshape(-1)
    gradient, state = matrix.clone(), new_state(compressor, layout)
    step(compressor, gradient, state, layout=layout)
    left = float(torch.linalg.vector_norm(residual(state)) / torch.linalg.vector_norm(matrix))
    assert 1e-4 < left < 2e-2
    torch.testing.assert_close(gradient + residual(state), matrix, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("factors", ["bf16", "int8"])
def test_a_matrix_far_below_its_neighbour_is_sent_as_well(factors: str) -> None:
    """A factor shares no scale with that of another matrix."""
    layout, compressor = Layout.of((16, 20), (16, 20)), PowerSGD(1, factors=factors)
    gradient = torch.cat([draw(0, Layout.of(320)), 1e-4 * draw(1, Layout.of(320))])
    small, state = gradient[320:].clone(), new_state(compressor, layout)
    step(compressor, gradient, state, layout=layout)
    assert torch.linalg.vector_norm(gradient[320:]) > 0.1 * torch.linalg.vector_norm(small)


@pytest.mark.parametrize("factors", ["fp32", "bf16", "int8"])
def test_all_gather_carries_the_steps_before_the_first(factors: str) -> None:
    """They are longer than those after it, on all ranks alike."""

    def body(engine: InProcessEngine) -> list[torch.Tensor]:
        parameters, optimizer = on_engine(engine, Request(PowerSGD(2, 2, factors=factors), "allgather"))
        results = []
        for number in range(4):
            backward(parameters, engine.rank, number)
            optimizer.synchronize()
            results.append(flat_gradient(parameters).clone())
            optimizer.zero_grad()
        return results

    ranks = run_ranks(3, body)
    assert all(torch.equal(a, b) for results in ranks for a, b in zip(results, ranks[0], strict=True))
    for number in range(2):
        own = [torch.cat([gradient(n, s, rank, number).reshape(-1) for n, s in SHAPES.items()]) for rank in range(3)]
        torch.testing.assert_close(ranks[0][number], torch.stack(own).mean(0))
    assert not torch.equal(ranks[0][2], torch.stack(own).mean(0))


@pytest.mark.parametrize("factors", ["bf16", "int8"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_rounded_factor_of_another_length_names_its_rank(factors: str, number: int) -> None:
    compressor = PowerSGD(2, factors=factors)
    rounds = compressor.rounds(Input(draw(0), LAYOUT, 0, 0, 0.5, new_state(compressor)))
    own = next(rounds)
    for _ in range(number):
        own = rounds.send([own, own])
    for name in own.tensors:
        other = Payload({**own.tensors, name: own[name][1:]}, LAYOUT.numel)
        again = compressor.rounds(Input(draw(0), LAYOUT, 0, 0, 0.5, new_state(compressor)))
        first = next(again)
        for _ in range(number):
            first = again.send([first, first])
        with pytest.raises(PayloadError, match="payload from rank 1"):
            again.send([first, other])


def test_matrices_that_shrink_enough_are_approximated() -> None:
    """With rank 4 conv has 2.51 times the elements of its factors, dense 3 times, small half of them."""
    found = [(m.name, m.rows, m.cols, m.rank) for m in PowerSGD(4).matrices(LAYOUT)]
    assert found == [("conv", 16, 27, 4), ("dense", 30, 20, 4)]
    for rate, names in ((0.4, ["conv", "small", "dense"]), (2.6, ["dense"]), (3.0, [])):
        assert [m.name for m in PowerSGD(4, min_compression_rate=rate).matrices(LAYOUT)] == names
    assert [m.rank for m in PowerSGD(8, min_compression_rate=0.9).matrices(Layout.of((3, 1000)))] == [3]


@pytest.mark.parametrize("factors", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_result_and_residual_make_up_the_corrected_gradient(dtype: torch.dtype, factors: str) -> None:
    layout = Layout(LAYOUT.names, LAYOUT.shapes, dtype)
    compressor = PowerSGD(2, factors=factors)
    state = new_state(compressor, layout)
    for number in range(4):
        gradient, before = draw(number).to(dtype), residual(state).clone()
        corrected = gradient.float() + before
        step(compressor, gradient, state, number, layout)
        tolerance = 1e-5 if dtype == torch.float32 else 0.05
        torch.testing.assert_close(gradient.float() + residual(state), corrected, rtol=tolerance, atol=tolerance)
        after = parts(residual(state))
        assert not after["bias"].any()
        assert not after["small"].any()


def test_a_matrix_of_low_rank_is_sent_exactly() -> None:
    layout, compressor = Layout.of((40, 30)), PowerSGD(3)
    generator = torch.Generator().manual_seed(0)
    gradient = (torch.randn(40, 2, generator=generator) @ torch.randn(2, 30, generator=generator)).reshape(-1)
    before, state = gradient.clone(), new_state(compressor, layout)
    step(compressor, gradient, state, layout=layout)
    torch.testing.assert_close(gradient, before, rtol=1e-4, atol=1e-4)
    assert residual(state).abs().max() < 1e-4


@pytest.mark.parametrize("factors", ["fp32", "bf16", "int8"])
def test_a_warm_start_finds_the_best_approximation(factors: str) -> None:
    """Power iteration on one matrix, step by step: its error becomes that of the singular value decomposition."""
    layout, compressor = Layout.of((40, 30)), PowerSGD(4, factors=factors)
    matrix = draw(3, layout).view(40, 30)
    singular = torch.linalg.svdvals(matrix)
    best = float(singular[4:].square().sum().sqrt())
    state, errors = new_state(compressor, layout), []
    for number in range(60):
        gradient = matrix.clone().reshape(-1)
        step(compressor, gradient, state, number, layout)
        residual(state).zero_()
        errors.append(float(torch.linalg.vector_norm(gradient - matrix.reshape(-1))))
    assert errors[0] > 1.05 * best
    assert errors[-1] < 1.02 * best


def test_a_matrix_that_was_zero_is_sent_again() -> None:
    compressor = PowerSGD(2)
    state = new_state(compressor)
    before = {key: q.clone() for key, q in state.current.items()}
    zero = torch.zeros(LAYOUT.numel)
    step(compressor, zero, state)
    assert not zero.any()
    assert all(torch.equal(state.current[key], q) for key, q in before.items())
    gradient = draw(1)
    step(compressor, gradient, state, 1)
    assert all(part.any() for part in parts(gradient).values())


@pytest.mark.parametrize("scale", [1e-15, 1e-9, 1e10, 1e15])
def test_no_scale_stops_it(scale: float) -> None:
    """Squares of such numbers, or products of two, overflow or vanish in fp32."""
    layout, compressor = Layout.of((64, 64)), PowerSGD(2)
    state = new_state(compressor, layout)
    for number in range(6):
        gradient = draw(number, layout) * (scale if number == 1 or scale < 1 else 1.0)
        corrected = gradient + residual(state)
        step(compressor, gradient, state, number, layout)
        size = float(torch.linalg.vector_norm(corrected.double()))
        assert 0.05 * size < float(torch.linalg.vector_norm(gradient.double())) < 1.001 * size
        assert torch.linalg.vector_norm((gradient + residual(state) - corrected).double()) < 1e-5 * size


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("rank", [1, 2, 4])
def test_columns_are_orthonormal_or_zero(rank: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(rank)
    columns = scale * torch.randn(50, rank, generator=generator)
    repeated = torch.cat([columns, columns @ torch.ones(rank, 1), torch.zeros(50, 1)], dim=1)
    basis = orthogonal(repeated)
    expected = torch.diag(torch.tensor([1.0] * rank + [0.0, 0.0]))
    torch.testing.assert_close(basis.T @ basis, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("factors", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", [0, 430, 440, 800])
def test_what_is_not_finite_reaches_the_result(bad: float, where: int, factors: str) -> None:
    compressor, gradient = PowerSGD(2, factors=factors), draw(0)
    gradient[where] = bad
    step(compressor, gradient, new_state(compressor))
    assert not torch.isfinite(gradient).all()


def test_before_its_first_step_all_is_sent() -> None:
    compressor, gradient = PowerSGD(2, start_step=2), draw(0)
    state = new_state(compressor)
    residual(state).fill_(1.0)
    sent = step(compressor, gradient, state, 1)
    torch.testing.assert_close(gradient, draw(0) + 1.0)
    assert not residual(state).any()
    assert [payload.wire_bytes for payload in sent] == [4 * LAYOUT.numel, 0]


@pytest.mark.parametrize("bad", ["p", "q"])
def test_a_payload_of_another_length_names_its_rank(bad: str) -> None:
    compressor = PowerSGD(2)
    rounds = compressor.rounds(Input(draw(0), LAYOUT, 0, 0, 0.5, new_state(compressor)))
    own = next(rounds)
    if bad == "q":
        own = rounds.send([own, own])
    with pytest.raises(PayloadError, match="payload from rank 1"):
        rounds.send([own, Payload({bad: own[bad][1:]}, LAYOUT.numel)])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rank": 0}, "rank = 0"),
        ({"rank": 2.0}, "rank = 2.0"),
        ({"rank": True}, "rank = True"),
        ({"start_step": -1}, "start_step = -1"),
        ({"min_compression_rate": -1}, "min_compression_rate = -1"),
        ({"factors": "fp16"}, "unknown factors 'fp16'; known are fp32, bf16, int8"),
        ({"factors": None}, "unknown factors None"),
        ({"factors": ["int8"]}, r"unknown factors \['int8'\]"),
        ({"min_compression_rate": math.inf}, "min_compression_rate = inf"),
    ],
)
def test_settings_out_of_range_are_refused(arguments: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        PowerSGD(**arguments)  # type: ignore[arg-type]


def test_q_is_the_same_on_all_ranks_and_differs_between_parameters() -> None:
    compressor = PowerSGD(2)
    first, second = (compressor.new_state(LAYOUT, torch.device("cpu")) for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)
    other = compressor.new_state(Layout(("a", "b"), ((30, 20), (30, 20))), torch.device("cpu"))
    assert not torch.equal(other[KIND, "a"], other[KIND, "b"])
