"""What programs for Horovod do beside plain steps: what loses nothing trains as Horovod, with all else ranks agree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import cycle

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import hvd_compress.torch as hvd
from tests.harness import remembered
from tests.parallel.test_sparse import Words, words
from tests.parallel.training import (
    STEPS,
    Make,
    Scenario,
    assert_same_on_all_ranks,
    batch,
    check_against_horovod,
    flat,
    loss,
    maker,
    on_engine,
    sgd,
    small_model,
)

LOSSY = {"int8": hvd.Compression.int8(), "int4": hvd.Compression.int4(), "topk": hvd.Compression.topk(0.1)}


def check(scenario: Scenario, engine: str) -> None:
    check_against_horovod(scenario)
    for request in LOSSY.values():
        trained = flat(scenario(maker(on_engine(request, engine))))
        assert trained.isfinite().all()
        assert_same_on_all_ranks(trained)


@pytest.mark.parametrize("missing", ["always", "in the first step", "in later steps"])
def test_a_rank_without_a_backward_pass(missing: str, engine: str) -> None:
    """Its gradients count as zero."""
    passes = {"always": lambda step: False, "in the first step": bool, "in later steps": lambda step: step == 0}

    def scenario(make: Make) -> Iterable[torch.Tensor]:
        model = small_model()
        optimizer = make(sgd(model), model)
        for step in range(STEPS):
            optimizer.zero_grad()
            if hvd.rank() > 0 or passes[missing](step):
                loss(model, step).backward()
            optimizer.step()
        return model.parameters()

    check(scenario, engine)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_scaled_loss_that_is_not_finite_on_one_rank(value: float, engine: str) -> None:
    """Its step is skipped on all ranks, and the scale falls; test_state.py sees that nothing remembered changes."""

    def scenario(make: Make) -> Iterable[torch.Tensor]:
        model = small_model()
        optimizer = make(sgd(model), model)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=STEPS)
        for step in range(2 * STEPS):
            before = flat(model.parameters())
            optimizer.zero_grad()
            weight = value if step in (0, 3) and hvd.rank() == hvd.size() - 1 else 1.0
            scaler.scale(loss(model, step) * weight).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
            assert torch.equal(flat(model.parameters()), before) == (step in (0, 3))
        return [*model.parameters(), torch.tensor(scaler.get_scale())]

    check(scenario, engine)


def test_two_optimizers_for_one_loss(engine: str) -> None:
    """Each has a part of the model, one of them with names of the whole."""

    def scenario(make: Make) -> Iterable[torch.Tensor]:
        model = small_model()
        optimizers = [make(sgd(model[0]), model[0]), make(torch.optim.Adam(model[2].parameters(), lr=0.01), model)]
        for step in range(STEPS):
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss(model, step).backward()
            for optimizer in optimizers:
                optimizer.step()
        return model.parameters()

    check(scenario, engine)


def test_a_subset_of_the_parameters(engine: str) -> None:
    """The others get their own gradients on each rank, which nobody exchanges."""

    def scenario(make: Make) -> Iterable[torch.Tensor]:
        model = small_model()
        optimizer = make(sgd(model[2]), model)
        for step in range(STEPS):
            model.zero_grad()
            loss(model, step).backward()
            own = model[0].weight.grad.clone()
            optimizer.step()
            assert torch.equal(model[0].weight.grad, own)
        return model.parameters()

    check(scenario, engine)


@pytest.mark.parametrize("missing", ["always", "in the first step", "in later steps"])
def test_sparse_embeddings_that_are_missing_on_one_rank(missing: str, engine: str) -> None:
    """It uses the layer on top alone. Horovod cannot: the reference is the mean over ranks, in one process."""
    uses = {"always": lambda step: False, "in the first step": bool, "in later steps": lambda step: step == 0}

    def outputs(model: Words, rank: int, step: int) -> torch.Tensor:
        if rank > 0 or uses[missing](step):
            return model(words(step, rank)).square().sum()
        return model.top(torch.ones(7)).square().sum()

    def scenario(make: Make) -> Iterable[torch.Tensor]:
        model = Words(sparse=True)
        optimizer = make(torch.optim.SGD(model.parameters(), lr=0.05), model)
        for step in range(STEPS):
            optimizer.zero_grad()
            outputs(model, hvd.rank(), step).backward()
            optimizer.step()
        return model.parameters()

    reference = Words(sparse=False)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.05)
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(hvd.size()):
            (outputs(reference, rank, step) / hvd.size()).backward()
        optimizer.step()
    for name, request in {**LOSSY, "dense": hvd.Compression.dense()}.items():
        trained = flat(scenario(maker(on_engine(request, engine))))
        assert_same_on_all_ranks(trained)
        if name == "dense":
            torch.testing.assert_close(trained, flat(reference.parameters()), rtol=1e-5, atol=1e-6)


def weight_norms() -> dict[str, nn.Sequential]:
    """Each replaces the weight by two parameters, of which a forward pass makes it."""
    with pytest.warns(FutureWarning, match="weight_norm"):
        older = nn.utils.weight_norm(small_model()[0])
    newer = small_model()
    nn.utils.parametrizations.weight_norm(newer[0])
    return {"older": nn.Sequential(older, *small_model()[1:]), "newer": newer}


@pytest.mark.parametrize("kind", ["older", "newer"])
def test_weight_norm(kind: str, engine: str) -> None:
    def scenario(make: Make) -> Iterable[torch.Tensor]:
        model = weight_norms()[kind]
        assert len(list(model.parameters())) == 5
        optimizer = make(sgd(model), model)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss(model, step).backward()
            optimizer.step()
        return model.parameters()

    check(scenario, engine)


class Batches(Dataset):
    """Batches of this rank, made in the process of a worker."""

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, step: int) -> torch.Tensor:
        assert torch.utils.data.get_worker_info() is not None
        return batch(step)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
def test_data_loaders_that_fork(engine: str) -> None:
    """In each epoch anew, beside the threads of the exchange."""

    def scenario(make: Make) -> Iterable[torch.Tensor]:
        model = small_model()
        optimizer = make(sgd(model), model)
        for _ in range(2):
            for inputs in DataLoader(Batches(), batch_size=None, num_workers=1, multiprocessing_context="fork"):
                optimizer.zero_grad()
                model(inputs).square().sum().backward()
                optimizer.step()
        return model.parameters()

    check(scenario, engine)


@contextmanager
def defaults(dtype: torch.dtype, device: str) -> Iterator[None]:
    """What torch makes tensors of when nothing else is said."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_default_device_and_dtype(dtype: torch.dtype, engine: str) -> None:
    """A tensor that is made by default has the wrong dtype, and no memory."""

    def trained(make: Make, dtype: torch.dtype, device: str) -> torch.Tensor:
        model = small_model()
        optimizer = make(sgd(model), model)
        for step in range(STEPS):
            value = loss(model, step)
            with defaults(dtype, device):
                optimizer.zero_grad()
                value.backward()
                optimizer.step()
        with defaults(dtype, device):
            state = optimizer.state_dict()
        kept = remembered(state["hvd_compress"])["residuals"]
        assert all(tensor.any() for tensor in kept.values())
        assert len(kept) == 4
        return flat([*model.parameters(), *kept.values()])

    for request in LOSSY.values():
        make = maker(on_engine(request, engine))
        assert torch.equal(trained(make, dtype, "meta"), trained(make, torch.float32, "cpu"))


@pytest.mark.parametrize("kind", ["gradients", "parameters"])
def test_broadcasts_with_a_default_device_and_dtype(kind: str) -> None:
    model = small_model()
    optimizer = maker(hvd.Compression.topk(0.1))(sgd(model), model)
    if kind == "parameters":
        model[0].weight.data += hvd.rank()
        model[0].weight.data = model[0].weight.data.t().contiguous().t()
    else:
        for parameter, number in zip(model.parameters(), cycle(range(3)), strict=False):
            optimizer.state[parameter]["momentum_buffer"] = torch.full_like(parameter, number + hvd.rank())
    with defaults(torch.float64, "meta"):
        hvd.broadcast_parameters(model.state_dict(), 0)
        hvd.broadcast_optimizer_state(optimizer, 0)
    assert_same_on_all_ranks(flat([*model.parameters(), *(s["momentum_buffer"] for s in optimizer.state.values())]))
