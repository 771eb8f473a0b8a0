"""Broadcasts of tensors and of optimizer state, also in bfloat16, which Horovod refuses. See test_namespace.py, too."""

from __future__ import annotations

import copy
import threading
import warnings
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import hvd_compress.torch as hvd
from hvd_compress.errors import ConfigError
from hvd_compress.frontends.optimizer.optimizer import ReducingOptimizer
from hvd_compress.optim import DeMo, OneBitAdam
from tests.parallel.training import finish, flat, maker, residuals, sgd, small_model, train

pytestmark = pytest.mark.level2

VALUES = torch.tensor([1 / 3, -0.0, float("inf"), 1e-40, -3e38, 17.0]).bfloat16()
"""The root's: with a sign of zero, a subnormal number and large ones, which nothing on the way may round."""


def whole(values: torch.Tensor) -> torch.Tensor:
    return values.clone()


def transposed(values: torch.Tensor) -> torch.Tensor:
    return values.view(2, 3).t()


def column(values: torch.Tensor) -> torch.Tensor:
    return torch.stack([values, torch.full_like(values, 5.0)], 1)[:, 0]


def scalar(values: torch.Tensor) -> torch.Tensor:
    return values[0].clone()


def nothing(values: torch.Tensor) -> torch.Tensor:
    return values[:0].clone()


SHAPES = (whole, transposed, column, scalar, nothing)

BROADCASTS: dict[str, Callable[..., torch.Tensor]] = {
    "broadcast": hvd.broadcast,
    "broadcast_": hvd.broadcast_,
    "broadcast_async": lambda *arguments, **named: hvd.synchronize(hvd.broadcast_async(*arguments, **named)),
    "broadcast_async_": lambda *arguments, **named: hvd.synchronize(hvd.broadcast_async_(*arguments, **named)),
}


def mine(root: int) -> torch.Tensor:
    return VALUES.clone() if hvd.rank() == root else torch.full_like(VALUES, -1.0 - hvd.rank())


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype == torch.bfloat16 and torch.equal(one.view(torch.int16), other.view(torch.int16))


@pytest.mark.unnamed_collectives
@pytest.mark.filterwarnings("ignore:Parameter `average`:DeprecationWarning")
def test_gradients_flow_back_as_in_fp32() -> None:
    """Horovod's rule: the root gets the mean, the others zero. It reduces in that backward pass without a name."""

    def gradient(dtype: torch.dtype) -> torch.Tensor:
        leaf = torch.ones(3, dtype=dtype, requires_grad=True)
        result = hvd.broadcast(leaf * 2, 0, "forward")
        (result * (hvd.rank() + 1)).sum().backward()
        assert leaf.grad.dtype == result.dtype == dtype
        return leaf.grad

    expected = gradient(torch.float32)
    assert expected.any() == (hvd.rank() == 0)
    assert torch.equal(gradient(torch.bfloat16), expected.bfloat16())


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
@pytest.mark.parametrize("name", BROADCASTS)
def test_bfloat16(name: str, shape: Callable[[torch.Tensor], torch.Tensor]) -> None:
    root = hvd.size() - 1
    tensor = shape(mine(root))
    before = tensor.clone()
    result = BROADCASTS[name](tensor, root, f"bits.{name}")
    assert same_bits(result, shape(VALUES))
    if name.endswith("_"):
        assert result is tensor
    else:
        assert same_bits(tensor, before), "the input was written to"


@pytest.mark.parametrize("name", ["broadcast_", "broadcast_async_"])
def test_what_lies_between_is_left_alone(name: str) -> None:
    tensor = column(mine(0))
    BROADCASTS[name](tensor, 0, f"between.{name}")
    assert (tensor._base[:, 1] == 5.0).all()


@pytest.mark.parametrize("name", ["broadcast_", "broadcast_async_"])
@pytest.mark.parametrize("shape", [whole, transposed], ids=lambda shape: shape.__name__)
def test_a_parameter_is_written_in_place(name: str, shape: Callable[[torch.Tensor], torch.Tensor]) -> None:
    parameter = nn.Parameter(shape(mine(0)))
    assert BROADCASTS[name](parameter, root_rank=0, name=f"parameter.{name}") is parameter
    assert same_bits(parameter.detach(), shape(VALUES))


@pytest.mark.parametrize("name", BROADCASTS)
def test_a_process_set(name: str, some_ranks: Any) -> None:
    if not some_ranks.included():
        return
    root = max(some_ranks.ranks)
    assert same_bits(BROADCASTS[name](mine(root), root, name=f"set.{name}", process_set=some_ranks), VALUES)


def test_a_handle_can_be_polled() -> None:
    handles = [hvd.broadcast_async_(mine(0), 0, f"polled.{number}") for number in range(3)]
    while not all(hvd.poll(handle) for handle in handles):
        pass
    assert all(same_bits(hvd.synchronize(handle), VALUES) for handle in reversed(handles))
    assert hvd.synchronize(handles[0]) is None, "as Horovod's does for what was waited for already"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
def test_other_dtypes_are_left_to_horovod(dtype: torch.dtype) -> None:
    tensor = torch.full((2, 3), hvd.rank() + 1, dtype=dtype)
    handle = hvd.broadcast_async_(tensor, 0, "own.handle")
    assert type(handle) is int
    assert hvd.synchronize(handle) is tensor
    for name, call in BROADCASTS.items():
        assert (call(torch.full((3,), hvd.rank() + 1, dtype=dtype), 0, f"own.{name}") == 1).all()


@pytest.mark.parametrize("form", [dict, list], ids=["dict", "named"])
def test_parameters_that_are_not_contiguous(form: Any) -> None:
    tensors = [shape(mine(0)) for shape in SHAPES]
    hvd.broadcast_parameters(form((str(number), tensor) for number, tensor in enumerate(tensors)), root_rank=0)
    assert all(same_bits(tensor, shape(VALUES)) for tensor, shape in zip(tensors, SHAPES, strict=True))


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "Adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5),
    "momentum": sgd,
    "plain SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.01),
    "Adagrad": lambda model: torch.optim.Adagrad(model.parameters(), lr=0.01),
    "tensor as lr": lambda model: torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01), foreach=False),
    "groups": lambda model: torch.optim.SGD(
        [{"params": model[2].parameters(), "lr": 0.1}, {"params": model[0].parameters()}], lr=0.01, momentum=0.5
    ),
    "1-bit Adam": lambda model: OneBitAdam(model.parameters(), lr=0.01, warmup_steps=3),
    "DeMo": lambda model: DeMo(model.parameters(), lr=0.01),
}

KINDS = {
    "unwrapped": lambda optimizer, model: optimizer,
    "Horovod's": maker(hvd.Compression.fp16),
    "ours": maker(hvd.Compression.topk(0.1)),
}


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.Optimizer:
    """Steps of this rank alone, before the optimizer is wrapped."""
    for step in range(steps):
        optimizer.zero_grad()
        torch.manual_seed(step)
        model(torch.randn(4, 13, dtype=model[0].weight.dtype) + hvd.rank()).float().square().sum().backward()
        optimizer.step()
    optimizer.zero_grad()
    return optimizer


def content(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.Optimizer.state_dict(optimizer)


def check_equal(one: Any, other: Any) -> None:
    """Also in dtype, and to the bit."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            check_equal(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        for parts in zip(one, other, strict=True):
            check_equal(*parts)
    elif isinstance(one, torch.Tensor):
        assert (one.dtype, one.stride()) == (other.dtype, other.stride())
        assert torch.equal(one, other)
    else:
        assert one == other


@pytest.mark.parametrize("has_state", ["root", "others", "all"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_roots_optimizer_state_is_everybodys(name: str, dtype: torch.dtype, kind: str, has_state: str) -> None:
    """And nothing else changes: no step is taken to create what a rank lacks.

    But zeros are the gradients of Horovod's optimizers without state, as Horovod leaves them when it creates state.
    """
    root = hvd.size() - 1
    model = small_model().to(dtype)
    optimizer = OPTIMIZERS[name](model)
    if has_state == "all" or (hvd.rank() == root) == (has_state == "root"):
        stepped(model, optimizer, 2 + hvd.rank())
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * (hvd.rank() + 1)
    optimizer = KINDS[kind](optimizer, model)
    expected = hvd.broadcast_object(content(optimizer), root)
    before, groups = flat(model.parameters()), list(optimizer.param_groups)

    hvd.broadcast_optimizer_state(optimizer, root, model)
    check_equal(content(optimizer), expected)
    assert torch.equal(flat(model.parameters()), before)
    zeros = kind == "Horovod's" and not optimizer.state
    assert all((p.grad is not None) == zeros and not (zeros and p.grad.any()) for p in model.parameters())
    assert all(now is then for now, then in zip(optimizer.param_groups, groups, strict=True))


def test_what_a_rank_has_loaded_before_wrapping_is_not_overwritten() -> None:
    """As Horovod's examples have it: load, broadcast, wrap; residuals are of the rank that saved them."""
    wrap = maker(hvd.Compression.topk(0.1))
    model = small_model()
    optimizer = wrap(sgd(model, lr=1.0), model)
    finish(train(optimizer, model, range(2)))
    saved = copy.deepcopy(optimizer.state_dict())
    model = small_model()
    plain = sgd(model, lr=0.5)
    plain.load_state_dict(saved)
    hvd.broadcast_optimizer_state(plain, root_rank=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = wrap(plain, model)
    ranks = again.state_dict()["hvd_compress"]["ranks"]
    assert list(ranks) == [f"rank {hvd.rank()} of {hvd.size()}"]
    check_equal(ranks, saved["hvd_compress"]["ranks"])


def test_a_scheduler_made_before_still_sets_the_rate() -> None:
    model = small_model()
    plain = sgd(model, lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(plain, step_size=1, gamma=0.5)
    optimizer = maker(hvd.Compression.topk(0.1))(plain, model)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    finish(train(optimizer, model, range(1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_state_of_another_dtype_than_its_parameter() -> None:
    """As optimizers for bfloat16 keep it, in fp32: nothing is rounded."""
    model = small_model().bfloat16()
    optimizer = sgd(model)
    for parameter in model.parameters():
        optimizer.state[parameter]["momentum_buffer"] = torch.full(parameter.shape, 1 / 3 + hvd.rank())
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for parameter in model.parameters():
        momentum = optimizer.state[parameter]["momentum_buffer"]
        assert torch.equal(momentum, torch.full(parameter.shape, 1 / 3))


def test_state_keeps_its_strides() -> None:
    """Fused optimizers want those of the parameter."""
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    optimizer = sgd(model)
    if hvd.rank() == 0:
        model(torch.ones(1, 3, 5, 5)).sum().backward()
        optimizer.step()
        assert not optimizer.state[model.weight]["momentum_buffer"].is_contiguous()
    expected = hvd.broadcast_object(content(optimizer), 0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    check_equal(content(optimizer), expected)


def test_nested_state() -> None:
    """LBFGS, which Horovod's broadcast_optimizer_state refuses: lists of tensors, and tensors of no shape."""
    model = small_model()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = model(torch.ones(13) * (1 + hvd.rank())).square().sum()
        value.backward()
        return value

    if hvd.rank() == 0:
        optimizer.step(closure)
    expected = hvd.broadcast_object(content(optimizer), 0)
    assert expected["state"][0]["old_dirs"]
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    check_equal(content(optimizer), expected)


def test_what_compression_remembers_stays_here() -> None:
    model = small_model()
    optimizer = maker(hvd.Compression.topk(0.1))(sgd(model), model)
    finish(train(optimizer, model))
    remembered, step = residuals(optimizer), hvd.of(optimizer).last_step
    assert len({tuple(each.tolist()) for each in hvd.allgather_object(remembered)}) == hvd.size()
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert isinstance(optimizer, ReducingOptimizer)
    assert torch.equal(residuals(optimizer), remembered)
    assert hvd.of(optimizer).last_step is step, "a gradient was exchanged"


def test_optimizers_that_differ_between_ranks() -> None:
    model = small_model()
    parameters = list(model.parameters())[hvd.rank() == 1 :]
    with pytest.raises(
        ConfigError,
        match=rf"rank {hvd.rank()}: .*\[[34]\] parameters, .* and SGD .*\[[34]\] parameters, .* on rank [01]: make",
    ):
        hvd.broadcast_optimizer_state(torch.optim.SGD(parameters, lr=0.1), root_rank=0)


def test_optimizers_of_other_kinds_or_shapes_are_refused_on_all_ranks() -> None:
    model = small_model()
    kind = torch.optim.Adam if hvd.rank() == 1 else torch.optim.SGD
    with pytest.raises(ConfigError, match=r"(SGD|Adam) with groups .* and (Adam|SGD) with groups"):
        hvd.broadcast_optimizer_state(kind(model.parameters(), lr=0.1), root_rank=0)
    other = nn.Parameter(torch.ones(3 + (hvd.rank() == 1)))
    with pytest.raises(ConfigError, match=r"the first one \(\([34],\), 'torch.float32'\).*make the same"):
        hvd.broadcast_optimizer_state(torch.optim.SGD([other], lr=0.1), root_rank=0)


def test_what_is_one_tensor_on_the_root_is_one_everywhere() -> None:
    """Else a schedule that changes it in place would change it twice on the root and once elsewhere."""
    model, rate = small_model(), torch.tensor(0.1 * (1 + hvd.rank()))
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters()}]
    optimizer = torch.optim.Adam(groups, lr=rate, foreach=False)
    shared = torch.full((3,), float(hvd.rank()))
    for parameter in model.parameters():
        optimizer.state[parameter]["shared"] = shared
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"] is optimizer.param_groups[1]["lr"]
    assert optimizer.param_groups[0]["lr"].item() == pytest.approx(0.1)
    kept = [state["shared"] for state in optimizer.state.values()]
    assert all(tensor is kept[0] for tensor in kept)
    assert not kept[0].any()


class Pair(NamedTuple):
    first: torch.Tensor
    second: int


def test_state_of_any_kind_and_under_any_key() -> None:
    model = small_model()
    optimizer, mine = sgd(model), hvd.rank() + 1
    first = model[0].weight
    optimizer.state["steps"] = mine
    optimizer.state[first]["pair"] = Pair(torch.full((2,), mine), mine)
    optimizer.state[first]["queue"] = deque([torch.tensor([True, mine == 1])], maxlen=3)
    optimizer.state[first]["counts"] = defaultdict(int, a=mine)
    optimizer.state[first]["wave"] = torch.full((2, 2), complex(mine, 1))
    if hvd.rank() > 0:
        optimizer.param_groups[0]["only here"] = 1
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.state["steps"] == 1
    state = optimizer.state[first]
    assert isinstance(state["pair"], Pair)
    assert (state["pair"].first.tolist(), state["pair"].second) == ([1, 1], 1)
    assert state["queue"].maxlen == 3
    assert state["queue"][0].tolist() == [True, True]
    assert state["counts"]["b"] == 0
    assert torch.equal(state["wave"], torch.full((2, 2), complex(1, 1)))
    assert "only here" not in optimizer.param_groups[0]


def test_state_that_cannot_be_pickled_is_an_error_on_all_ranks() -> None:
    model = small_model()
    optimizer = sgd(model)
    optimizer.param_groups[0]["lock"] = threading.Lock()
    with pytest.raises(ConfigError, match=r"rank 0 cannot send the state of its optimizer: TypeError: .*lock"):
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
