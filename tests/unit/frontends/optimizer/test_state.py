"""What a checkpoint holds, and residuals beside a loss scale."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from hvd_compress import native, of
from hvd_compress.compressors import PowerSGD, TopK
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import ConfigError, MismatchError, PayloadError
from hvd_compress.frontends.optimizer.optimizer import ReducingOptimizer
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings
from tests.brought import brought
from tests.harness import REQUESTS, Scaler, alone, backward, make_optimizer, make_parameters, on_engine, remembered

FLAT = ("topk-star", "topk-allgather", "efsign", "int8", "int2", "int4-stochastic", "int8-gather")
RESUMED = {
    **{name: REQUESTS[name] for name in FLAT},
    "topk-hierarchical": Request(TopK(0.05), "hierarchical"),
    "powersgd-hierarchical": Request(PowerSGD(2), "hierarchical"),
    **dict(brought("RESUMED")),
}


@pytest.mark.parametrize("hosts", [None, (0, 0, 1, 1)])
@pytest.mark.parametrize("name", RESUMED)
def test_training_resumes_where_a_checkpoint_was_taken(name: str, hosts: tuple[int, ...] | None) -> None:
    """Bit by bit: parameters, momentum, residuals, and whose turn it is."""

    def body(engine: InProcessEngine):
        parameters, optimizer = on_engine(engine, RESUMED[name], momentum=0.9)
        for step in range(3):
            backward(parameters, engine.rank, step)
            optimizer.step()
            optimizer.zero_grad()
        saved = {n: p.detach().clone() for n, p in parameters.items()}, copy.deepcopy(optimizer.state_dict())
        for step in range(3, 6):
            backward(parameters, engine.rank, step)
            optimizer.step()
            optimizer.zero_grad()
        return saved, {n: p.detach() for n, p in parameters.items()}

    def resume(engine: InProcessEngine, saved):
        parameters, optimizer = on_engine(engine, RESUMED[name], momentum=0.9)
        for n, p in parameters.items():
            p.data.copy_(saved[engine.rank][0][n])
        optimizer.load_state_dict(saved[engine.rank][1])
        for step in range(3, 6):
            backward(parameters, engine.rank, step)
            optimizer.step()
            optimizer.zero_grad()
        return {n: p.detach() for n, p in parameters.items()}

    size = len(hosts or (0, 0))
    uninterrupted = run_ranks(size, body, hosts=hosts)
    resumed = run_ranks(size, lambda engine: resume(engine, [saved for saved, _ in uninterrupted]), hosts=hosts)
    for (_, expected), found in zip(uninterrupted, resumed, strict=True):
        for n, value in expected.items():
            assert torch.equal(found[n], value), n


def test_residuals_of_another_rank_are_not_taken_over() -> None:
    parameters, optimizer = on_engine(alone(), REQUESTS["topk-allgather"])
    backward(parameters, 0, 0)
    optimizer.step()
    state = optimizer.state_dict()
    state["hvd_compress"]["ranks"] = {"rank 3 of 1": remembered(state["hvd_compress"])}
    with pytest.warns(UserWarning, match="residuals of rank 3 of 1 are not loaded on rank 0"):
        optimizer.load_state_dict(state)
    assert not any(
        residual.any() for residual in remembered(optimizer.state_dict()["hvd_compress"])["residuals"].values()
    )


@pytest.mark.parametrize("rank", [0, 2])
def test_a_checkpoint_of_an_earlier_version_loads(rank: int) -> None:
    """It named the rank beside the tensors, and not at each."""
    parameters, optimizer = on_engine(alone(), REQUESTS["topk-allgather"])
    backward(parameters, 0, 0)
    optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    del state["param_groups"][0]["hvd_compress"]
    saved = remembered(state["hvd_compress"])
    state["hvd_compress"] = {"rank": rank, "world_size": 1, "step": 1, "loss_scale": None, **saved}
    resumed = on_engine(alone(), REQUESTS["topk-allgather"])[1]
    if rank == 0:
        resumed.load_state_dict(state)
    else:
        with pytest.warns(UserWarning, match="residuals of rank 2 of 1 are not loaded on rank 0 of 1"):
            resumed.load_state_dict(state)
    loaded = resumed.state_dict()["hvd_compress"]
    assert loaded["step"] == 1
    for name, residual in remembered(loaded)["residuals"].items():
        assert torch.equal(residual, saved["residuals"][name] if rank == 0 else torch.zeros_like(residual))


def test_a_checkpoint_that_has_lost_its_residuals_is_told() -> None:
    """As torch.distributed.checkpoint loads by halves into a dictionary without them."""
    parameters, optimizer = on_engine(alone(), REQUESTS["topk-allgather"])
    backward(parameters, 0, 0)
    optimizer.step()
    state = optimizer.state_dict()
    remembered(state["hvd_compress"])["residuals"].clear()
    with pytest.warns(UserWarning, match="the checkpoint of step 1 holds no residuals for rank 0 of 1"):
        optimizer.load_state_dict(state)


@pytest.mark.parametrize(("name", "dtype"), [("topk-auto", torch.float32), ("topk-allgather", torch.float64)])
def test_a_checkpoint_that_never_had_residuals_loads_without_a_word(name: str, dtype: torch.dtype) -> None:
    """One rank, or float64: all travels uncompressed."""
    parameters = {name: torch.nn.Parameter(p.detach().to(dtype)) for name, p in make_parameters().items()}
    optimizer = make_optimizer(parameters, REQUESTS[name], alone, 0, 1, settings=Settings(600, 60, adapt=True))
    for parameter in parameters.values():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.load_state_dict(optimizer.state_dict())


def test_a_checkpoint_without_compression_loads() -> None:
    parameters, optimizer = on_engine(alone(), REQUESTS["topk-allgather"], momentum=0.9)
    plain = torch.optim.SGD(list(parameters.values()), lr=0.5, momentum=0.9)
    backward(parameters, 0, 0)
    optimizer.step()
    optimizer.load_state_dict(plain.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_a_checkpoint_of_another_model_is_refused() -> None:
    parameters, optimizer = on_engine(alone(), REQUESTS["topk-allgather"])
    backward(parameters, 0, 0)
    optimizer.step()
    state = optimizer.state_dict()
    remembered(state["hvd_compress"])["residuals"]["odd"] = torch.zeros(5)
    with pytest.raises(ConfigError, match="rank 0: the residual of 'odd' has 5 elements instead of 1"):
        optimizer.load_state_dict(state)


def test_loading_in_mid_training_does_not_move_the_step_counter() -> None:
    """STAR's turns must stay the same on all ranks when one of them loads a checkpoint."""

    def body(engine: InProcessEngine):
        parameters, optimizer = on_engine(engine, REQUESTS["topk-star"])
        for step in range(4):
            backward(parameters, engine.rank, step)
            optimizer.step()
            optimizer.zero_grad()
            if step == 1 and engine.rank == 0:
                state = optimizer.state_dict()
                state["hvd_compress"]["step"] = 77
                optimizer.load_state_dict(state)
        return of(optimizer).last_step.step

    assert run_ranks(2, body) == [3, 3]


def test_residuals_follow_the_loss_scale() -> None:
    scaler = Scaler(1024.0)
    parameters, optimizer = on_engine(alone(), REQUESTS["topk-allgather"])
    of(optimizer).follow_loss_scale(scaler)
    backward(parameters, 0, 0)
    optimizer.step()
    before = remembered(optimizer.state_dict()["hvd_compress"])["residuals"]
    scaler.scale = 256.0
    optimizer.zero_grad()
    for parameter in parameters.values():
        (parameter * 0).sum().backward()
    optimizer.synchronize()
    after = remembered(optimizer.state_dict()["hvd_compress"])["residuals"]
    kept = {name: after[name] != 0 for name in after}
    assert any(mask.any() for mask in kept.values())
    for name, mask in kept.items():
        assert torch.equal(after[name][mask], before[name][mask] / 4)


@pytest.mark.parametrize("order", ["optimizer first", "scaler first"])
def test_residuals_are_saved_with_the_loss_scale_they_belong_to(order: str) -> None:
    scaler = Scaler(1024.0)
    parameters, optimizer = on_engine(alone(), REQUESTS["topk-allgather"])
    of(optimizer).follow_loss_scale(scaler)
    backward(parameters, 0, 0)
    optimizer.step()
    unscaled = {n: r / 1024 for n, r in remembered(optimizer.state_dict()["hvd_compress"])["residuals"].items()}
    scaler.scale = 512.0  # scaler.update() after a skipped step
    state = copy.deepcopy(optimizer.state_dict())

    other, resumed = Scaler(65536.0), on_engine(alone(), REQUESTS["topk-allgather"])[1]
    of(resumed).follow_loss_scale(other)
    if order == "scaler first":
        other.scale = 512.0
    resumed.load_state_dict(state)
    other.scale = 512.0
    loaded = remembered(resumed.state_dict()["hvd_compress"])["residuals"]
    assert any(residual.any() for residual in loaded.values())
    for name, residual in loaded.items():
        assert torch.equal(residual / 512, unscaled[name])


def test_a_loss_scale_that_has_become_zero_leaves_residuals_alone() -> None:
    scaler = Scaler(2.0)
    parameters, optimizer = on_engine(alone(), REQUESTS["topk-allgather"])
    of(optimizer).follow_loss_scale(scaler)
    backward(parameters, 0, 0)
    optimizer.step()
    before = remembered(optimizer.state_dict()["hvd_compress"])["residuals"]
    for scale in (0.0, float("inf"), 4.0):
        scaler.scale = scale
        after = remembered(optimizer.state_dict()["hvd_compress"])["residuals"]
        factor = 2.0 if scale == 4.0 else 1.0
        assert all(torch.equal(after[name], factor * before[name]) for name in before)


def test_what_a_gpu_found_in_a_payload_fails_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels tell of bad indices when asked, and that has to be before residuals are committed."""
    parameters, optimizer = on_engine(alone(), REQUESTS["topk-allgather"])
    backward(parameters, 0, 0)
    optimizer.step()
    before = remembered(optimizer.state_dict()["hvd_compress"])["residuals"]

    def found() -> None:
        raise MismatchError("payload from rank 0: the index at position 2 lies outside")

    forgotten = []
    monkeypatch.setattr(native, "check_pending", found)
    monkeypatch.setattr(native, "forget_pending", lambda: forgotten.append(True))
    backward(parameters, 0, 1)
    with pytest.raises(PayloadError, match="rank 0, step 1: payload from rank 0: the index at position 2"):
        optimizer.step()
    assert forgotten, "another optimizer's step would fail for it"
    after = remembered(optimizer.state_dict()["hvd_compress"])["residuals"]
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_residuals_travel_by_the_functions_of_torchs_checkpoints() -> None:
    """torch.distributed.checkpoint.state_dict takes "state" for parameters alone, and copies what else a group has."""
    model = torch.nn.Sequential(torch.nn.Linear(13, 7), torch.nn.Linear(7, 3))

    def wrapped(model: torch.nn.Module) -> ReducingOptimizer:
        named = dict(model.named_parameters())
        return make_optimizer(named, REQUESTS["int8"], alone, 0, 1, momentum=0.9)

    optimizer = wrapped(model)
    for step in range(2):
        optimizer.zero_grad()
        model(torch.randn(5, 13, generator=torch.Generator().manual_seed(step))).square().sum().backward()
        optimizer.step()
    saved = copy.deepcopy(get_state_dict(model, optimizer))
    again = torch.nn.Sequential(torch.nn.Linear(13, 7), torch.nn.Linear(7, 3))
    resumed = wrapped(again)
    set_state_dict(again, resumed, model_state_dict=saved[0], optim_state_dict=saved[1])
    before, after = (remembered(each.state_dict()["hvd_compress"])["residuals"] for each in (optimizer, resumed))
    assert any(residual.any() for residual in before.values())
    for name, residual in before.items():
        assert torch.equal(after[name], residual)
