"""What outlives a step: residuals in checkpoints, broadcasts from one rank, the loss scale of mixed precision."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn

import hvd_compress.torch as hvd
from hvd_compress.errors import ConfigError, UsageError
from hvd_compress.request.request import Request
from hvd_compress.session import gathering
from tests.harness import REQUESTS, remembered
from tests.parallel.training import (
    STEPS,
    Make,
    assert_same_on_all_ranks,
    check_against_horovod,
    finish,
    flat,
    gradients,
    loss,
    maker,
    on_engine,
    residuals,
    sgd,
    small_model,
    train,
)

COMPRESSED = ("topk-allgather", "topk-star", "topk-var", "lwtopk-star", "efsign", "bf16")

OPTIMIZERS = {"SGD": sgd, "Adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01)}


@pytest.fixture(params=COMPRESSED)
def compressed(request: pytest.FixtureRequest, engine: str) -> Request:
    return on_engine(REQUESTS[request.param], engine)


def through_a_file(state: Any) -> Any:
    """Save with torch.save and load it again, with torch's default of loading nothing but data."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
def test_a_resumed_run_equals_an_uninterrupted_one(optimizer_name: str, compressed: Request) -> None:
    def start(checkpoint: Any = None) -> tuple[nn.Module, Any]:
        model = small_model()
        optimizer = maker(compressed)(OPTIMIZERS[optimizer_name](model), model)
        if checkpoint is not None:
            model.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(checkpoint["optimizer"])
        return model, optimizer

    model, optimizer = start()
    finish(train(optimizer, model, range(STEPS)))
    checkpoint = through_a_file({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    finish(train(optimizer, model, range(STEPS, 2 * STEPS)))

    resumed, resumed_optimizer = start(checkpoint)
    finish(train(resumed_optimizer, resumed, range(STEPS, 2 * STEPS)))
    assert torch.equal(flat(resumed.parameters()), flat(model.parameters()))
    if remembered(resumed_optimizer.state_dict()["hvd_compress"])["residuals"]:
        assert torch.equal(residuals(resumed_optimizer), residuals(optimizer))


@pytest.mark.parametrize("piece", [gathering.PIECE, 1000])
def test_what_all_ranks_remember_is_gathered(engine: str, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some transports count no more than 2^31 - 1 bytes, so it travels in pieces."""
    monkeypatch.setattr(gathering, "PIECE", piece)
    model = small_model()
    optimizer = maker(hvd.Compression.topk(0.05).by(engine=engine))(sgd(model), model)
    handle = hvd.of(optimizer)
    with pytest.raises(UsageError, match="ranks have not met before their first step"):
        handle.gathered_state_dict()
    finish(train(optimizer, model))
    own, gathered = handle.state_dict(), handle.gathered_state_dict()
    every = [f"rank {rank} of {hvd.size()}" for rank in range(hvd.size())]
    assert list(gathered["ranks"]) == (every if hvd.rank() == 0 else list(own["ranks"]))
    again = maker(hvd.Compression.topk(0.05).by(engine=engine))(sgd(model), model)
    hvd.of(again).load_gathered_state_dict(hvd.broadcast_object(gathered, 0))
    kept, expected = remembered(hvd.of(again).state_dict())["residuals"], remembered(own)["residuals"]
    assert all(torch.equal(kept[name], each) for name, each in expected.items())


def test_residuals_are_saved_by_parameter_name(engine: str) -> None:
    model = small_model()
    optimizer = maker(hvd.Compression.topk(0.05).by(engine=engine))(sgd(model), model)
    finish(train(optimizer, model))
    state = optimizer.state_dict()["hvd_compress"]
    assert (list(state["ranks"]), state["step"]) == ([f"rank {hvd.rank()} of {hvd.size()}"], STEPS)
    assert {name: kept.numel() for name, kept in remembered(state)["residuals"].items()} == {
        name: parameter.numel() for name, parameter in model.named_parameters()
    }


def test_loading_into_an_optimizer_that_has_stepped(engine: str) -> None:
    """As after a bad epoch: back to the checkpoint, in the same optimizer. Star would be at another turn."""
    model = small_model()
    optimizer = maker(hvd.Compression.topk(0.05).by(collective="allgather", engine=engine))(sgd(model), model)
    finish(train(optimizer, model))
    checkpoint = through_a_file({"model": model.state_dict(), "optimizer": optimizer.state_dict()})

    def go_on() -> torch.Tensor:
        finish(train(optimizer, model, range(STEPS, 2 * STEPS)))
        return flat(model.parameters())

    first = go_on()
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    assert torch.equal(go_on(), first)


def test_the_state_of_an_optimizer_without_compression_can_be_loaded(engine: str) -> None:
    before = small_model()
    plain = maker(hvd.Compression.none)(sgd(before), before)
    finish(train(plain, before))

    model = small_model()
    optimizer = maker(hvd.Compression.topk(0.05).by(engine=engine))(sgd(model), model)
    optimizer.load_state_dict(plain.state_dict())
    momentum = [plain.state[p]["momentum_buffer"] for p in before.parameters()]
    assert torch.equal(flat(optimizer.state[p]["momentum_buffer"] for p in model.parameters()), flat(momentum))
    finish(train(optimizer, model))
    assert_same_on_all_ranks(flat(model.parameters()))


def test_residuals_of_another_rank_are_left_out(engine: str) -> None:
    """Every rank loads what rank 0 saved, as programs with one checkpoint file do."""
    before = small_model()
    optimizer = maker(hvd.Compression.topk(0.05).by(collective="star", engine=engine))(sgd(before), before)
    finish(train(optimizer, before))
    saved = hvd.broadcast_object(optimizer.state_dict(), root_rank=0)

    model = small_model()
    resumed = maker(hvd.Compression.topk(0.05).by(collective="star", engine=engine))(sgd(model), model)
    load_with_warning(resumed, saved)
    kept = remembered(resumed.state_dict()["hvd_compress"])["residuals"]
    of_rank_0 = remembered(saved["hvd_compress"])["residuals"]
    for name, residual in kept.items():
        assert torch.equal(residual, of_rank_0[name] if hvd.rank() == 0 else torch.zeros_like(residual))
    for _ in train(resumed, model, range(STEPS, 2 * STEPS)):
        assert_same_on_all_ranks(flat(gradients(model)))
    assert resumed.state_dict()["hvd_compress"]["step"] == 2 * STEPS


def load_with_warning(optimizer: Any, state: dict[str, Any]) -> None:
    """Load the state of rank 0, of which the other ranks must be warned."""
    if hvd.rank() == 0:
        optimizer.load_state_dict(state)
    else:
        with pytest.warns(UserWarning, match=f"residuals of rank 0 of .* not loaded on rank {hvd.rank()}"):
            optimizer.load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda kept: kept.update(stranger=torch.zeros(3)), "'stranger'"),
        (lambda kept: kept.update({"0.bias": torch.zeros(3)}), "'0.bias' has 3 elements instead of 31"),
    ],
    ids=["unknown parameter", "other length"],
)
def test_residuals_that_do_not_fit(change: Any, words: str) -> None:
    model = small_model()
    optimizer = maker(hvd.Compression.topk())(sgd(model), model)
    state = optimizer.state_dict()
    change(remembered(state["hvd_compress"])["residuals"])
    with pytest.raises(ConfigError, match=f"rank {hvd.rank()}: .*{words}"):
        optimizer.load_state_dict(state)


def differing_model() -> nn.Module:
    """Other values on every rank, until they are broadcast."""
    model = small_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(hvd.rank() + 1)
    return model


@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
def test_broadcasts_before_the_first_step(optimizer_name: str) -> None:
    def scenario(make: Make) -> Iterable[torch.Tensor]:
        model = differing_model()
        plain = OPTIMIZERS[optimizer_name](model)
        plain.param_groups[0]["lr"] *= hvd.rank() + 1
        optimizer = make(plain, model)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        finish(train(optimizer, model))
        return model.parameters()

    check_against_horovod(scenario, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "form", [dict, list, lambda items: [value for _, value in items]], ids=["dict", "named", "bare"]
)
def test_broadcast_of_parameters_of_every_dtype(form: Any) -> None:
    """Horovod alone knows no bfloat16."""
    dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.int64)
    named = [(str(dtype), torch.full((5,), hvd.rank() + 1, dtype=dtype)) for dtype in dtypes]
    hvd.broadcast_parameters(form(named), root_rank=hvd.size() - 1)
    assert all((value == hvd.size()).all() for _, value in named)


@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
def test_broadcasts_of_a_checkpoint_that_rank_0_loaded(optimizer_name: str) -> None:
    def scenario(make: Make) -> Iterable[torch.Tensor]:
        trained = small_model()
        before = make(OPTIMIZERS[optimizer_name](trained), trained)
        finish(train(before, trained))

        model = differing_model()
        optimizer = make(OPTIMIZERS[optimizer_name](model), model)
        if hvd.rank() == 0:
            model.load_state_dict(trained.state_dict())
            optimizer.load_state_dict(before.state_dict())
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        finish(train(optimizer, model, range(STEPS, 2 * STEPS)))
        return model.parameters()

    check_against_horovod(scenario, rtol=1e-3, atol=1e-4)


def test_broadcasts_of_a_compressed_checkpoint(compressed: Request) -> None:
    """Rank 0 alone knows at which step training is; what it remembers stays its own."""
    trained = small_model()
    before = maker(compressed)(sgd(trained), trained)
    finish(train(before, trained))

    model = differing_model()
    optimizer = maker(compressed)(sgd(model), model)
    if hvd.rank() == 0:
        model.load_state_dict(trained.state_dict())
        optimizer.load_state_dict(before.state_dict())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for _ in train(optimizer, model, range(STEPS, 2 * STEPS)):
        assert_same_on_all_ranks(flat(gradients(model)))
    assert_same_on_all_ranks(flat(model.parameters()))
    assert hvd.of(optimizer).last_step.step == 2 * STEPS - 1


def scaled_step(optimizer: Any, model: nn.Module, scaler: torch.amp.GradScaler, step: int, weight: float = 1.0) -> None:
    """A step as Horovod's users write it for mixed precision."""
    optimizer.zero_grad()
    scaler.scale(loss(model, step) * weight).backward()
    optimizer.synchronize()
    scaler.unscale_(optimizer)
    with optimizer.skip_synchronize():
        scaler.step(optimizer)
    scaler.update()


def test_a_step_that_overflows_on_one_rank_is_skipped_on_all(compressed: Request) -> None:
    model = small_model()
    optimizer = maker(compressed)(sgd(model), model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaled_step(optimizer, model, scaler, 0)
    before = flat(model.parameters())
    state = through_a_file(remembered(optimizer.state_dict()["hvd_compress"])["residuals"])
    scaled_step(optimizer, model, scaler, 1, weight=float("inf") if hvd.rank() == hvd.size() - 1 else 1.0)
    assert torch.equal(flat(model.parameters()), before)
    assert scaler.get_scale() == 512.0
    kept = remembered(optimizer.state_dict()["hvd_compress"])["residuals"]
    assert all(torch.equal(kept[name], state[name]) for name in state)
    scaled_step(optimizer, model, scaler, 2)
    assert torch.isfinite(flat(model.parameters())).all()
    assert not torch.equal(flat(model.parameters()), before)
    assert_same_on_all_ranks(flat(model.parameters()))


@pytest.mark.parametrize("name", ["topk-allgather", "topk-star", "efsign", "int8"])
def test_residuals_follow_the_loss_scale(name: str, engine: str) -> None:
    """A scale that doubles every two steps is exact in floating point, so training must be the same bit by bit."""

    def run(scale: float, follow: bool) -> torch.Tensor:
        model = small_model()
        optimizer = maker(on_engine(REQUESTS[name], engine))(sgd(model), model)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2, enabled=scale > 1)
        if follow:
            hvd.of(optimizer).follow_loss_scale(scaler)
        for step in range(2 * STEPS):
            scaled_step(optimizer, model, scaler, step)
        return flat(model.parameters())

    plain = run(1.0, follow=False)
    assert torch.equal(run(8.0, follow=True), plain)
    assert not torch.equal(run(8.0, follow=False), plain), "the scale changes nothing, so nothing was tested"


@pytest.mark.filterwarnings("ignore:gradients are exchanged again:UserWarning")
@pytest.mark.parametrize("has_gradient", [True, False])
def test_the_loss_scale_falls_after_an_overflow(has_gradient: bool, engine: str) -> None:
    """What is remembered halves with it, also on a rank that has no gradient of its own in the next step."""
    model = small_model()
    optimizer = maker(hvd.Compression.topk(0.05).by(collective="allgather", engine=engine))(sgd(model), model)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    hvd.of(optimizer).follow_loss_scale(scaler)
    scaled_step(optimizer, model, scaler, 0)
    before = residuals(optimizer)
    scaled_step(optimizer, model, scaler, 1, weight=float("nan"))
    optimizer.zero_grad()
    if has_gradient or hvd.rank() == 0:
        (sum(parameter.sum() for parameter in model.parameters()) * 0).backward()
    optimizer.synchronize()
    after = residuals(optimizer)
    assert flat(gradients(model)).any(), "nothing was sent"
    assert torch.equal(after[after != 0], before[after != 0] / 2)


@pytest.mark.parametrize("first", ["optimizer", "scaler"])
def test_a_checkpoint_knows_the_loss_scale(first: str, engine: str) -> None:
    """Saved right after the scale has changed, and loaded in either order."""

    def start() -> tuple[nn.Module, Any, torch.amp.GradScaler]:
        model = small_model()
        optimizer = maker(hvd.Compression.topk(0.05).by(collective="star", engine=engine))(sgd(model), model)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=STEPS)
        return model, optimizer, scaler

    def go_on(model: nn.Module, optimizer: Any, scaler: torch.amp.GradScaler, steps: range) -> torch.Tensor:
        for step in steps:
            scaled_step(optimizer, model, scaler, step)
        return flat(model.parameters())

    run = start()
    hvd.of(run[1]).follow_loss_scale(run[2])
    go_on(*run, range(STEPS))
    assert run[2].get_scale() == 16.0
    model_state, optimizer_state, scaler_state = through_a_file([part.state_dict() for part in run])

    model, optimizer, scaler = start()
    model.load_state_dict(model_state)
    if first == "optimizer":
        optimizer.load_state_dict(optimizer_state)
    scaler.load_state_dict(scaler_state)
    hvd.of(optimizer).follow_loss_scale(scaler)
    if first == "scaler":
        optimizer.load_state_dict(optimizer_state)
    rest = range(STEPS, 2 * STEPS)
    assert torch.equal(go_on(model, optimizer, scaler, rest), go_on(*run, rest))
