"""DeMo: its steps, and its algorithm against a plain re-statement of it."""

from __future__ import annotations

import math

import pytest
import torch

from hvd_compress.compressors import DeMo as Compressor
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import ConfigError, UnsupportedError
from hvd_compress.optim import DeMo
from tests.harness import SHAPES, make_parameters, remembered
from tests.unit.optim.training import demo, distributed, flat, gradients, train

SIZE, STEPS, K, CHUNK, DECAY = 3, 10, 4, 8, 0.9
PIECES = {7: [7], 13: [7, 6], 1: [1], 40: [8] * 5, 9: [5, 4]}
"""Into which pieces of up to CHUNK the dimensions of SHAPES are cut; a shorter one is filled up."""


def test_a_step_goes_by_signs() -> None:
    parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0, 4.0]))
    optimizer = DeMo([parameter], lr=0.5, weight_decay=0.1)
    parameter.grad = torch.tensor([3.0, -1e-9, 0.0])
    optimizer.step()
    torch.testing.assert_close(parameter.detach(), torch.tensor([0.45, -1.4, 3.8]))


def cosines(length: int) -> torch.Tensor:
    """DCT-II of the textbook, (length, length) fp64, normalised."""
    k, j = torch.meshgrid(torch.arange(length), torch.arange(length), indexing="ij")
    rows = torch.cos(math.pi / length * (j.double() + 0.5) * k)
    return rows / rows.norm(dim=1, keepdim=True)


def extracted(momentum: torch.Tensor) -> torch.Tensor:
    """Return what is sent of a matrix: chunk by chunk, the largest coefficients of a transform of both dimensions."""
    sent = torch.zeros_like(momentum)
    rows, cols = (PIECES[length] for length in momentum.shape)
    top = 0
    for height in rows:
        left = 0
        for width in cols:
            place = slice(top, top + height), slice(left, left + width)
            chunk = torch.zeros(rows[0], cols[0], dtype=torch.float64)
            chunk[:height, :width] = momentum[place]
            down, across = cosines(rows[0]), cosines(cols[0])
            coefficients = down @ chunk @ across.T
            limit = coefficients.abs().flatten().sort(descending=True).values[min(K, chunk.numel()) - 1]
            kept = torch.where(coefficients.abs() >= limit, coefficients.bfloat16().double(), 0.0)
            sent[place] = (down.T @ kept @ across)[:height, :width]
            left += width
        top += height
    return sent


def reference() -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Algorithm 1 of Peng et al. on whole parameters; return them, and each rank's momentum."""
    parameters, momenta = {}, [{} for _ in range(SIZE)]
    for name, parameter in make_parameters().items():
        shape = SHAPES[name] if len(SHAPES[name]) > 1 else (1, *SHAPES[name])
        value = parameter.detach().double().view(shape)
        own = [torch.zeros(shape, dtype=torch.float64) for _ in range(SIZE)]
        for step in range(STEPS):
            sent = []
            for rank, gradient in enumerate(gradients(SIZE, step, name)):
                own[rank] = DECAY * own[rank] + gradient.view(shape)
                sent.append(extracted(own[rank]))
                own[rank] = own[rank] - sent[rank]
            value = (1 - 0.01 * 0.1) * value - 0.01 * torch.stack(sent).mean(0).sign()
        parameters[name] = value
        for rank in range(SIZE):
            momenta[rank][name] = own[rank]
    return flat(parameters).float(), [flat(own).float() for own in momenta]


def test_ranks_follow_the_algorithm() -> None:
    def body(engine: InProcessEngine) -> tuple[torch.Tensor, torch.Tensor]:
        parameters, optimizer = distributed(engine, demo(K, CHUNK, DECAY))
        train(parameters, optimizer, engine.rank, range(STEPS))
        return flat(parameters), flat(remembered(optimizer.state_dict()["hvd_compress"])["residuals"])

    parameters, momenta = reference()
    for rank, (found, momentum) in enumerate(run_ranks(SIZE, body)):
        torch.testing.assert_close(found, parameters, rtol=1e-5, atol=1e-5)
        # a coefficient that lies between two bfloat16 numbers may be rounded to the other one
        torch.testing.assert_close(momentum, momenta[rank], rtol=0.0, atol=0.02)


def test_it_gives_the_compression_that_goes_with_it() -> None:
    optimizer = DeMo([torch.nn.Parameter(torch.zeros(2))])
    request = optimizer.compression(8, 32, 0.99).by(engine="torch")
    assert request.compressor == Compressor(8, 32, 0.99)
    assert request.engine == "torch"
    assert optimizer.compression().compressor == Compressor(32, 64, 0.999)


@pytest.mark.parametrize("settings", [{"lr": -1.0}, {"weight_decay": float("inf")}])
def test_bad_settings_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        DeMo([torch.nn.Parameter(torch.zeros(2))], **settings)


def test_sparse_gradients_are_refused() -> None:
    parameter = torch.nn.Parameter(torch.zeros(3))
    parameter.grad = torch.tensor([0.0, 1.0, 0.0]).to_sparse()
    with pytest.raises(UnsupportedError, match="DeMo takes no sparse gradients"):
        DeMo([parameter]).step()


def test_a_closure_is_called_and_its_loss_returned() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))

    def closure() -> torch.Tensor:
        loss = parameter.sum()
        loss.backward()
        return loss

    assert DeMo([parameter], lr=0.25).step(closure) == 2.0
    assert parameter.tolist() == [0.75, 0.75]
