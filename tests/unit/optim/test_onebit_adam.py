"""1-bit Adam against torch's AdamW and a plain re-statement of its algorithm; what it shares with its compression."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from hvd_compress import of
from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives.requantize import shards
from hvd_compress.compressors import BlockQuantizer, CompressedMomentum, DenseMomentum
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import ConfigError, UnsupportedError
from hvd_compress.optim import OneBitAdam
from hvd_compress.policies import Warmup
from tests.harness import SHAPES, backward, make_parameters, remembered
from tests.unit.optim.training import demo, distributed, flat, gradients, momenta, onebit_adam, train

SIZE, WARMUP, STEPS = 3, 3, 10
INNER = BlockQuantizer(4)


def one_parameter(**settings: Any) -> tuple[torch.nn.Parameter, OneBitAdam]:
    parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
    return parameter, OneBitAdam([parameter], **{"lr": 0.1, "warmup_steps": 2, **settings})


def take(optimizer: torch.optim.Optimizer, parameter: torch.nn.Parameter, *values: float) -> None:
    parameter.grad = torch.tensor(values)
    optimizer.step()


def test_the_warm_up_is_adamw() -> None:
    own, stock = make_parameters(), make_parameters()
    settings: dict[str, Any] = {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}
    optimizers = OneBitAdam(own.values(), warmup_steps=6, **settings), torch.optim.AdamW(stock.values(), **settings)
    for step in range(6):
        for parameters, optimizer in zip((own, stock), optimizers, strict=True):
            backward(parameters, 0, step)
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(flat(own), flat(stock), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("bias_correction", [False, True])
def test_the_variance_is_frozen_after_it(bias_correction: bool) -> None:
    parameter, optimizer = one_parameter(betas=(0.5, 0.75), eps=1e-3, bias_correction=bias_correction)
    expected, m, v = parameter.detach().double(), torch.zeros(3).double(), torch.zeros(3).double()
    for step in range(1, 6):
        g = torch.tensor([1.0, -step, 0.5 * step])
        take(optimizer, parameter, *g.tolist())
        m = 0.5 * m + 0.5 * g
        v = 0.75 * v + 0.25 * g.double() ** 2 if step <= 2 else v
        lacking = (1 - 0.5**step, 1 - 0.75 ** min(step, 2)) if bias_correction else (1.0, 1.0)
        expected -= 0.1 * (m / lacking[0]) / ((v / lacking[1]).sqrt() + 1e-3)
    torch.testing.assert_close(parameter.detach().double(), expected, rtol=1e-6, atol=1e-6)


def test_elements_without_a_gradient_in_the_warm_up_stay() -> None:
    """Signs of a block give them a momentum all the same."""
    parameter, optimizer = one_parameter()
    for _ in range(2):
        take(optimizer, parameter, 1.0, 0.0, 1.0)
    before = parameter.detach().clone()
    take(optimizer, parameter, 1.0, 1e-3, 1.0)
    assert parameter[1] == before[1]
    assert (parameter[::2] != before[::2]).all()


def reference(by_owners: bool, buckets: list[tuple[str, ...]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Algorithm 1 of Tang et al. on the buckets of all ranks; return parameters, and the momentum."""
    parameters = {name: p.detach().reshape(-1).double() for name, p in make_parameters().items()}
    m = {name: torch.zeros(p.numel()) for name, p in parameters.items()}
    v = {name: torch.zeros(p.numel()).double() for name, p in parameters.items()}
    left = [{names: torch.zeros(sum(m[n].numel() for n in names)) for names in buckets} for _ in range(SIZE)]
    for step in range(STEPS):
        for names in buckets:
            own = [torch.cat(parts) for parts in zip(*(gradients(SIZE, step, n) for n in names), strict=True)]
            before = torch.cat([m[n] for n in names])
            if step < WARMUP:
                after = 0.9 * before + 0.1 * torch.stack(own).mean(0)
            else:
                corrected = [0.1 * own[r] + 0.9 * before + left[r][names] for r in range(SIZE)]
                after = compressed_mean(corrected, by_owners)
                for rank in range(SIZE):
                    left[rank][names] = corrected[rank]  # what is left of it
            m.update(zip(names, after.split([m[n].numel() for n in names]), strict=True))
        for name, p in parameters.items():
            mean = torch.stack(gradients(SIZE, step, name)).double().mean(0)
            v[name] = 0.99 * v[name] + 0.01 * mean**2 if step < WARMUP else v[name]
            lacking = 1 - 0.9 ** (step + 1), 1 - 0.99 ** min(step + 1, WARMUP)
            p.mul_(1 - 0.01 * 0.1)
            p.sub_(0.01 * (m[name] / lacking[0]) / ((v[name] / lacking[1]).sqrt() + 1e-8))
    return flat(parameters).float(), flat(m)


def compressed_mean(corrected: list[torch.Tensor], by_owners: bool) -> torch.Tensor:
    """Return what all ranks receive; what it loses stays in `corrected`, that of the sum with the owner."""
    total = torch.zeros_like(corrected[0])
    for owner, part in enumerate(shards(total.numel(), SIZE, INNER.block) if by_owners else [slice(None)]):
        for rank, values in enumerate(corrected):
            sent = values[part] if by_owners and rank == owner else quantised(values[part])
            total[part] += sent
            values[part] -= sent
        if by_owners:
            sent = quantised(total[part])
            corrected[owner][part] += total[part] - sent
            total[part] = sent
    return total / SIZE


def quantised(values: torch.Tensor) -> torch.Tensor:
    layout = Layout.of(values.numel())
    return INNER.decompress(INNER.compress(values, layout), layout) if values.numel() else values


@pytest.mark.parametrize("collective", ["allgather", "alltoall-allgather"])
def test_ranks_follow_the_algorithm(collective: str) -> None:
    def body(engine: InProcessEngine) -> tuple[torch.Tensor, torch.Tensor, list[tuple[str, ...]]]:
        parameters, optimizer = distributed(engine, onebit_adam(WARMUP, inner=INNER, collective=collective))
        train(parameters, optimizer, engine.rank, range(STEPS))
        return flat(parameters), momenta(optimizer), list(of(optimizer).decisions)

    ranks = run_ranks(SIZE, body)
    assert len(ranks[0][2]) == 3, "buckets"
    parameters, momentum = reference(collective != "allgather", ranks[0][2])
    torch.testing.assert_close(ranks[0][1], momentum, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ranks[0][0], parameters, rtol=1e-4, atol=1e-4)
    assert all(torch.equal(first, ranks[0][0]) and torch.equal(second, ranks[0][1]) for first, second, _ in ranks)


def test_optimizer_and_compression_cannot_get_out_of_step() -> None:
    """Also where the optimizer was made anew, or left a step out, both arrive at the same momentum."""

    def body(engine: InProcessEngine) -> None:
        parameters, optimizer = distributed(engine, onebit_adam(WARMUP))
        train(parameters, optimizer, engine.rank, range(6))

        def apart() -> float:
            own = {name: optimizer.state[p]["exp_avg"] for name, p in parameters.items()}
            return float((flat(own) - momenta(optimizer)).abs().max())

        assert apart() < 1e-6
        backward(parameters, engine.rank, 6)
        optimizer.synchronize()  # and no step, as after an overflow elsewhere
        optimizer.zero_grad()
        assert apart() > 1e-3
        train(parameters, optimizer, engine.rank, range(7, 140))
        assert apart() < 1e-6

    run_ranks(2, body)


def check_remembered(was: dict[str, Any], now: dict[str, Any]) -> None:
    """Residuals and momentum are the same, to the bit."""
    was, now = remembered(was), remembered(now)
    assert was["states"].keys() == now["states"].keys()
    pairs = [
        (was["residuals"], now["residuals"]),
        *((was["states"][kind], now["states"][kind]) for kind in was["states"]),
    ]
    for before, after in pairs:
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("step", [1, 5])
@pytest.mark.parametrize("make", [onebit_adam(WARMUP), demo()], ids=["onebit-adam", "demo"])
def test_a_step_that_is_not_finite_leaves_what_is_remembered(make: Any, step: int, value: float) -> None:
    def body(engine: InProcessEngine) -> None:
        parameters, optimizer = distributed(engine, make)
        train(parameters, optimizer, engine.rank, range(step))
        before = copy.deepcopy(optimizer.state_dict()["hvd_compress"])
        if engine.rank == 1:
            parameters["second.bias"].register_hook(lambda own: own.clone().index_fill_(0, torch.tensor([3]), value))
        backward(parameters, engine.rank, step)
        optimizer.synchronize()
        assert of(optimizer).last_step is not None
        assert not of(optimizer).last_step.finite
        check_remembered(before, optimizer.state_dict()["hvd_compress"])

    run_ranks(SIZE, body)


@pytest.mark.parametrize("saved_at", [2, 6], ids=["in the warm-up", "after it"])
@pytest.mark.parametrize("make", [onebit_adam(4), demo()], ids=["onebit-adam", "demo"])
def test_a_resumed_run_is_the_same_to_the_bit(make: Any, saved_at: int) -> None:
    def body(engine: InProcessEngine) -> tuple[torch.Tensor, dict[str, Any], torch.Tensor]:
        parameters, optimizer = distributed(engine, make)
        train(parameters, optimizer, engine.rank, range(saved_at))
        saved = flat(parameters).clone(), copy.deepcopy(optimizer.state_dict())
        train(parameters, optimizer, engine.rank, range(saved_at, STEPS))
        return *saved, flat(parameters)

    ranks = run_ranks(SIZE, body)

    def resumed(engine: InProcessEngine) -> torch.Tensor:
        parameters, optimizer = distributed(engine, make)
        values, state, _ = ranks[engine.rank]
        with torch.no_grad():
            for (name, p), part in zip(
                parameters.items(), values.split([p.numel() for p in parameters.values()]), strict=True
            ):
                p.copy_(part.view(SHAPES[name]))
        optimizer.load_state_dict(state)
        train(parameters, optimizer, engine.rank, range(saved_at, STEPS))
        return flat(parameters)

    for (_, _, expected), found in zip(ranks, run_ranks(SIZE, resumed), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("make", [onebit_adam(2), demo()], ids=["onebit-adam", "demo"])
def test_what_is_remembered_moves_into_other_buckets(make: Any) -> None:
    def body(engine: InProcessEngine) -> None:
        parameters, optimizer = distributed(engine, make)
        train(parameters, optimizer, engine.rank, range(5))
        state = copy.deepcopy(optimizer.state_dict())
        parameters, optimizer = distributed(engine, make, fusion_bytes=1 << 20)
        optimizer.load_state_dict(state)
        if engine.rank == 1:
            parameters["odd"].register_hook(lambda own: own * float("nan"))
        backward(parameters, engine.rank, 5)
        optimizer.synchronize()  # in vain, so that what was loaded is what is there
        assert len(of(optimizer).decisions) == 1
        assert of(optimizer).last_step is not None
        check_remembered(state["hvd_compress"], optimizer.state_dict()["hvd_compress"])

    run_ranks(2, body)


def test_one_call_gives_both_the_same() -> None:
    _, optimizer = one_parameter(betas=(0.8, 0.99), warmup_steps=7)
    request = optimizer.compression(inner=INNER).by(engine="torch")
    assert request.compressor == CompressedMomentum(0.8, INNER)
    assert request.policy == Warmup(DenseMomentum(0.8), 7)
    assert request.engine == "torch"
    assert optimizer.compression(margin_steps=5).policy == Warmup(DenseMomentum(0.8), 12)


def test_settings_that_have_changed_since_are_refused() -> None:
    """By a checkpoint, or a scheduler that cycles momentum."""
    parameter, optimizer = one_parameter()
    other = one_parameter(warmup_steps=5)[1].state_dict()
    optimizer.load_state_dict(other)  # nobody was told of the first ones
    _, optimizer = one_parameter()
    optimizer.compression()
    with pytest.raises(ConfigError, match=r"is \(0\.9, 5\), and compression\(\) has passed on \(0\.9, 2\)"):
        optimizer.load_state_dict(other)
    assert optimizer.param_groups[0]["warmup_steps"] == 2
    parameter, optimizer = one_parameter()
    optimizer.compression()
    torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=5)
    with pytest.raises(ConfigError, match="cycle_momentum=False"):
        take(optimizer, parameter, 1.0, 1.0, 1.0)


def test_groups_may_differ_in_all_but_what_is_compressed() -> None:
    groups = [{"params": [torch.nn.Parameter(torch.ones(2))], "lr": lr, "weight_decay": lr} for lr in (0.1, 0.2)]
    assert OneBitAdam(groups, warmup_steps=2).compression().compressor == CompressedMomentum(0.9)
    groups[1]["betas"] = (0.5, 0.9)
    with pytest.raises(ConfigError, match="several"):
        OneBitAdam(groups, warmup_steps=2).compression()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": -1.0}, "lr"),
        ({"lr": float("nan")}, "lr"),
        ({"eps": "small"}, "eps"),
        ({"weight_decay": -0.1}, "weight_decay"),
        ({"betas": (1.0, 0.9)}, "beta1 = 1.0 is not below 1"),
        ({"betas": (0.9, -1)}, "beta2"),
        ({"betas": (torch.tensor(0.9), 0.9)}, "beta1 = tensor.* is not a number, 0 or more"),
        ({"betas": 0.9}, "betas"),
        ({"warmup_steps": 0}, "the variance comes from the warm-up"),
        ({"warmup_steps": 2.5}, "warmup_steps"),
        ({"bias_correction": 1}, "bias_correction"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        one_parameter(**settings)


def test_a_margin_is_a_number_of_steps() -> None:
    with pytest.raises(ConfigError, match="margin_steps = -1"):
        one_parameter()[1].compression(margin_steps=-1)


def test_sparse_gradients_are_refused() -> None:
    parameter, optimizer = one_parameter()
    parameter.grad = torch.tensor([0.0, 1.0, 0.0]).to_sparse()
    with pytest.raises(UnsupportedError, match="OneBitAdam takes no sparse gradients"):
        optimizer.step()


def test_a_closure_is_called_and_its_loss_returned() -> None:
    parameter, optimizer = one_parameter()

    def closure() -> torch.Tensor:
        loss = parameter.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 14.0
    torch.testing.assert_close(parameter.detach(), torch.tensor([0.9, -1.9, 2.9]))
