"""Collectives against a plain re-statement of the papers' algorithms, on whole tensors and without any of our parts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from hvd_compress import of
from hvd_compress.buckets.layout import Layout
from hvd_compress.engines.inprocess import run_ranks
from tests.harness import REQUESTS, SHAPES, backward, flat_gradient, gradient, on_engine

STEPS = 6
RATIO = 0.05


def bucket_slices(parts: list[tuple[str, ...]]) -> list[dict[str, slice]]:
    """Where each parameter lies in the buckets that were planned."""
    slices = []
    for names in parts:
        start, places = 0, {}
        for name in names:
            numel = torch.Size(SHAPES[name]).numel()
            places[name] = slice(start, start + numel)
            start += numel
        slices.append(places)
    return slices


def top(x: torch.Tensor) -> torch.Tensor:
    """Mask of the k largest magnitudes, lowest index first among equals."""
    k = max(1, round(RATIO * x.numel()))
    mask = torch.zeros_like(x, dtype=torch.bool)
    mask[torch.argsort(x.abs(), descending=True, stable=True)[:k]] = True
    return mask


def allgather(corrected: list[torch.Tensor], step: int) -> list[torch.Tensor]:
    return [torch.where(top(c), c, 0.0) for c in corrected]


def star(corrected: list[torch.Tensor], step: int) -> list[torch.Tensor]:
    mask = top(corrected[step % len(corrected)])
    return [torch.where(mask, c, 0.0) for c in corrected]


def var(corrected: list[torch.Tensor], step: int) -> list[torch.Tensor]:
    norms = [float(torch.where(top(c), c, 0.0).double().square().sum()) for c in corrected]
    mask = top(corrected[norms.index(max(norms))])
    return [torch.where(mask, c, 0.0) for c in corrected]


def efsign(corrected: list[torch.Tensor], step: int) -> list[torch.Tensor]:
    return [torch.where(c >= 0, 1.0, -1.0) * c.double().abs().mean().float() for c in corrected]


def reference(
    transmit: Callable[[list[torch.Tensor], int], list[torch.Tensor]], parts: list[tuple[str, ...]], size: int
) -> list[dict[str, torch.Tensor]]:
    """Algorithm 1 and its relatives: feedback, transmission, mean; returns the mean of each step by parameter."""
    residuals: dict[tuple[int, int], torch.Tensor] = {}
    history = []
    for step in range(STEPS):
        means: dict[str, torch.Tensor] = {}
        for number, places in enumerate(bucket_slices(parts)):
            corrected = []
            for rank in range(size):
                own = torch.cat([gradient(name, SHAPES[name], rank, step).reshape(-1) for name in places])
                corrected.append(own + residuals.get((rank, number), torch.zeros_like(own)))
            sent = transmit(corrected, step)
            for rank in range(size):
                residuals[rank, number] = corrected[rank] - sent[rank]
            mean = torch.stack(sent).double().mean(0).float()
            means.update({name: mean[place] for name, place in places.items()})
        history.append(means)
    return history


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("name", "transmit"),
    [("topk-allgather", allgather), ("topk-star", star), ("topk-var", var), ("efsign-bucket", efsign)],
)
def test_collective_follows_its_algorithm(name: str, transmit: Callable[..., list[torch.Tensor]], size: int) -> None:
    def body(engine):
        parameters, optimizer = on_engine(engine, REQUESTS[name])
        results = []
        for step in range(STEPS):
            backward(parameters, engine.rank, step)
            optimizer.synchronize()
            results.append(flat_gradient(parameters).clone())
            with optimizer.skip_synchronize():
                optimizer.step()
            optimizer.zero_grad()
        return results, list(of(optimizer).decisions)

    results, parts = run_ranks(size, body)[0]
    assert len(parts) > 1, "more than one bucket, or fusion is not tested"
    for step, means in enumerate(reference(transmit, parts, size)):
        expected = torch.cat([means[name] for name in SHAPES])
        torch.testing.assert_close(results[step], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["topk-allgather", "topk-star", "topk-var", "efsign", "bf16", "dense"])
def test_one_rank_equals_plain_training_with_the_same_compressor(name: str) -> None:
    """The optimizer against a loop that anybody would write with the compressor alone."""

    def distributed(engine):
        parameters, optimizer = on_engine(engine, REQUESTS[name], momentum=0.9)
        for step in range(STEPS):
            backward(parameters, 0, step)
            optimizer.step()
            optimizer.zero_grad()
        return {n: p.detach().clone() for n, p in parameters.items()}, list(of(optimizer).decisions)

    trained, parts = run_ranks(1, distributed)[0]

    from tests.harness import make_parameters

    parameters = make_parameters()
    plain = torch.optim.SGD(list(parameters.values()), lr=0.1, momentum=0.9)
    compressor = REQUESTS[name].compressor
    kept: dict[int, torch.Tensor] = {}
    for step in range(STEPS):
        for number, places in enumerate(bucket_slices(parts)):
            own = torch.cat([gradient(n, SHAPES[n], 0, step).reshape(-1) for n in places])
            layout = Layout(tuple(places), tuple(SHAPES[n] for n in places))
            corrected = own + kept.get(number, torch.zeros_like(own))
            sent = compressor.decompress(compressor.compress(corrected, layout), layout)
            if name not in ("bf16", "dense"):
                kept[number] = corrected - sent
            for n, place in places.items():
                parameters[n].grad = sent[place].reshape(SHAPES[n])
        plain.step()
    for n, parameter in parameters.items():
        torch.testing.assert_close(trained[n], parameter.detach(), rtol=1e-6, atol=1e-6)
