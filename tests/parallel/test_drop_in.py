"""The promise of every step, over real engines: all ranks hold the same bits; what loses nothing equals Horovod."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

import hvd_compress.torch as hvd
from hvd_compress.engines.base import ALGORITHMS
from hvd_compress.frontends.horovod.runtime_selection import RUNTIME
from hvd_compress.frontends.horovod.runtime_selection import hvd as runtime
from hvd_compress.frontends.horovod.uncompressed import UncompressedOptimizer
from hvd_compress.frontends.optimizer.optimizer import ReducingOptimizer
from hvd_compress.request.request import Request
from tests.harness import (
    COMPRESSORS,
    FIRST_NAMES,
    REQUESTS,
    backward,
    chosen,
    flat_gradient,
    make_parameters,
    remembered,
    taken_momentum,
)
from tests.parallel.training import (
    ENGINES,
    EXACT,
    STEPS,
    assert_same_on_all_ranks,
    check_against_horovod,
    finish,
    flat,
    maker,
    on_engine,
    residuals,
    sgd,
    small_model,
    train,
)

CHOSEN = chosen()
FIRST = [COMPRESSORS[name] for name in FIRST_NAMES]
NAMES = [
    name if request.compressor in FIRST else pytest.param(name, marks=pytest.mark.level2)
    for name, request in CHOSEN.items()
]


def observe(request: Request) -> list[torch.Tensor]:
    """Return this rank's reduced gradient of each step, and the parameters at the end."""
    parameters = make_parameters()
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1, momentum=taken_momentum(request, 0.9))
    optimizer = hvd.DistributedOptimizer(optimizer, parameters.items(), compression=request)
    seen = []
    for step in range(STEPS):
        backward(parameters, hvd.rank(), step)
        optimizer.step()
        seen.append(flat_gradient(parameters).clone())
        optimizer.zero_grad()
    assert len(hvd.of(optimizer).decisions) > 1, "several buckets, or their order is not tested"
    return [*seen, flat(parameters.values())]


@cache
def observed(name: str, engine: str) -> list[torch.Tensor]:
    """Return what observe() gives of one of CHOSEN. All ranks ask in the same order."""
    return observe(on_engine(CHOSEN[name], engine))


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_bit_identical_on_all_ranks(name: str, engine: str) -> None:
    for seen in observed(name, engine):
        assert seen.abs().sum() > 0
        assert_same_on_all_ranks(seen)


@pytest.mark.parametrize("name", NAMES)
def test_engines_agree(name: str) -> None:
    """On what is sent, and on its sum to rounding; nothing is left to compare where there is one engine."""
    first, *others = [observed(name, engine) for engine in ENGINES]
    # Horovod sums in fp16, where MPI cannot, and sums in fp32: two roundings of sums below 8.
    tolerance = 2**-8 if name.startswith("half") else 1e-6
    for other in others:
        torch.testing.assert_close(first, other, rtol=1e-5, atol=tolerance)


@pytest.fixture(scope="session")
def offered() -> tuple[str, ...]:
    """The algorithms that the MPI library lets us force, the same on all ranks."""
    from hvd_compress.engines.mpi import MpiEngine

    engine = MpiEngine()
    engine.close()
    return engine.capabilities.algorithms


@pytest.mark.skipif("mpi" not in ENGINES, reason="algorithms are forced on MPI, which needs mpirun")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", ["topk-star", "topk-var", "dense"])
def test_every_algorithm_gives_the_same_sum_and_the_same_bits(
    name: str, algorithm: str, offered: tuple[str, ...]
) -> None:
    if algorithm not in offered:
        pytest.skip(f"this MPI library was not seen to run {algorithm} over {hvd.size()} ranks")
    request = on_engine(REQUESTS[name], "mpi")
    forced = observe(replace(request, algorithm=algorithm))
    for seen, plain in zip(forced, observe(request), strict=True):
        assert_same_on_all_ranks(seen)
        torch.testing.assert_close(seen, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", EXACT)
def test_what_loses_nothing_equals_horovod(name: str, engine: str) -> None:
    def scenario(make):
        model = small_model()
        optimizer = make(sgd(model), model)
        finish(train(optimizer, model, range(8)))
        return model.parameters()

    check_against_horovod(scenario, {name: on_engine(EXACT[name], engine)})


def test_the_gradient_after_a_step_equals_horovods() -> None:
    def scenario(make):
        model = small_model()
        optimizer = make(sgd(model), model)
        return [flat(p.grad for p in model.parameters()) for _ in train(optimizer, model)]

    check_against_horovod(scenario)


def test_topk_trains_and_remembers(engine: str) -> None:
    """Not the same as dense, but what was not sent is in the residuals, and the loss falls."""
    model = small_model()
    optimizer = maker(hvd.Compression.topk(0.05).by(engine=engine))(sgd(model, lr=0.001), model)
    start = model(torch.ones(13)).square().sum().item()
    finish(train(optimizer, model, range(30)))
    assert model(torch.ones(13)).square().sum().item() < start
    assert residuals(optimizer).abs().sum() > 0
    assert_same_on_all_ranks(flat(model.parameters()))
    assert 0 < hvd.of(optimizer).last_step.sent_bytes < hvd.of(optimizer).last_step.dense_bytes / 2


@pytest.mark.parametrize("name", ["none", "fp16"])
def test_stock_compression_takes_horovods_own_path(name: str) -> None:
    model = small_model()
    optimizer = maker(getattr(hvd.Compression, name))(sgd(model), model)
    assert not isinstance(optimizer, ReducingOptimizer)
    if RUNTIME == "horovod":
        theirs, ours = vars(runtime.optimizer._DistributedOptimizer), vars(type(optimizer))
        assert all(ours[key] is theirs[key] for key in ("__init__", "synchronize", "skip_synchronize", "zero_grad"))
    else:
        assert isinstance(optimizer, UncompressedOptimizer)
    kept = optimizer._compression if RUNTIME == "horovod" else optimizer._allreduce.compression
    assert kept is getattr(hvd.Compression, name)
    finish(train(optimizer, model))
    assert_same_on_all_ranks(flat(model.parameters()))


def test_the_default_is_stock() -> None:
    model = small_model()
    assert not isinstance(hvd.DistributedOptimizer(sgd(model), model.named_parameters()), ReducingOptimizer)


@pytest.mark.parametrize("name", ["topk-allgather", "topk-star", "topk-var", "efsign", "bf16", "dense"])
def test_a_gradient_that_is_not_finite_on_one_rank(name: str, engine: str) -> None:
    """All ranks see it in that step, and it leaves no trace in any residual."""
    model = small_model()
    optimizer = maker(on_engine(REQUESTS[name], engine))(sgd(model), model)
    finish(train(optimizer, model))
    before = residuals(optimizer) if remembered(optimizer.state_dict()["hvd_compress"])["residuals"] else None
    optimizer.zero_grad()
    weight = float("inf") if hvd.rank() == hvd.size() - 1 else 1.0
    (model[0].bias * weight).sum().backward()
    optimizer.synchronize()
    assert not torch.isfinite(flat(p.grad for p in model.parameters())).all()
    assert not hvd.of(optimizer).last_step.finite
    if before is not None:
        assert torch.equal(residuals(optimizer), before)
