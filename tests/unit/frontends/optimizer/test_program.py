"""What programs do to parameters and gradients beside steps: as plain torch has it, or an error on every rank."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch

from hvd_compress import of
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import ConfigError, UnsupportedError, UsageError
from hvd_compress.frontends.optimizer.named_parameters import name_parameters
from hvd_compress.frontends.optimizer.optimizer import ReducingOptimizer, wrap
from hvd_compress.frontends.optimizer.reducer import ReduceOptions, Reducer
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings
from tests.harness import REQUESTS, alone, gradient, make_optimizer, remembered
from tests.unit.frontends.ddp import job

DENSE = REQUESTS["dense"]
RANKS = 2


class Model(torch.nn.Module):
    """Parameters whose gradients are drawn, one of them with four dimensions."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        for name, shape in {"kernel": (4, 3, 2, 2), "weight": (7, 5), "bias": (7,)}.items():
            self.register_parameter(name, torch.nn.Parameter(torch.randn(shape, generator=generator)))

    def backward(self, rank: int, step: int) -> None:
        terms = [(p * gradient(n, tuple(p.shape), rank, step)).sum() for n, p in self.named_parameters()]
        torch.stack(terms).sum().backward()


def lead_gradients_elsewhere(model: Model) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.data = parameter.grad.data.clone()


def lead_parameters_elsewhere(model: Model) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


CHANGES: dict[str, Callable[[Model], object]] = {
    "double-float": lambda model: model.double().float(),
    "half-float": lambda model: model.half().float(),
    "channels_last": lambda model: model.to(memory_format=torch.channels_last),
    "gradients": lead_gradients_elsewhere,
    "parameters": lead_parameters_elsewhere,
}
PLACES = ("after step", "after synchronize", "before backward")


def train(
    model: Model, optimizer: torch.optim.Optimizer, rank: int, change: Callable[[Model], object], place: str, keep: bool
) -> torch.Tensor:
    """Train six steps, with a change in the third; `keep` leaves gradients where they are."""
    for step in range(6):
        optimizer.zero_grad(set_to_none=not keep)
        if step == 2 and place == "before backward" and keep:
            change(model)
        if isinstance(optimizer, ReducingOptimizer):
            model.backward(rank, step)
            optimizer.synchronize()
        else:
            for other in range(RANKS):
                model.backward(other, step)
            for parameter in model.parameters():
                parameter.grad /= RANKS
        if step == 2 and place == "after synchronize":
            change(model)
        if isinstance(optimizer, ReducingOptimizer):
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        if step == 2 and place == "after step":
            change(model)
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


@pytest.mark.filterwarnings("ignore:grad and param do not obey")  # gradients lie in the bucket in their logical order
@pytest.mark.parametrize("keep", [False, True], ids=["none", "in place"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("change", CHANGES)
def test_replicas_stay_equal_whatever_replaces_a_storage(change: str, place: str, keep: bool) -> None:
    def body(engine: InProcessEngine, request: Request) -> torch.Tensor:
        model = Model()
        parameters = dict(model.named_parameters())
        optimizer = make_optimizer(parameters, request, lambda: engine, engine.rank, engine.world_size, momentum=0.5)
        return train(model, optimizer, engine.rank, CHANGES[change], place, keep)

    model = Model()
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    expected = train(model, plain, 0, CHANGES[change], place, keep)
    for name, tolerance in {"dense": 1e-5, "topk-all": 1e-5, "int8": 0.2}.items():
        first, second = run_ranks(RANKS, lambda engine, name=name: body(engine, REQUESTS[name]))
        assert torch.equal(first, second), name
        torch.testing.assert_close(first, expected, rtol=0, atol=tolerance)


def test_the_check_of_one_pass_too_many_outlives_a_conversion() -> None:
    """Torch makes new nodes, on which the first pass after it sets the hooks anew."""
    model = Model()
    optimizer = make_optimizer(dict(model.named_parameters()), DENSE, alone, 0, 1)
    for step in range(3):
        model.backward(0, step)
        optimizer.step()
        optimizer.zero_grad()
        if step == 0:
            model.double().float()
    model.backward(0, 3)
    with pytest.raises(UsageError, match="more than backward_passes_per_step = 1 times"):
        model.backward(0, 4)


CONVERSIONS = {
    "bfloat16": lambda model: model.bfloat16(),
    "double": lambda model: model.double(),
}


@pytest.mark.parametrize("conversion", CONVERSIONS)
def test_a_conversion_that_stays_is_an_error_on_every_rank(conversion: str) -> None:
    """Also on one without a backward pass, and between synchronize() and step() nothing is lost."""

    def body(engine: InProcessEngine) -> str:
        model = Model()
        optimizer = make_optimizer(dict(model.named_parameters()), DENSE, lambda: engine, engine.rank, RANKS)
        model.backward(engine.rank, 0)
        optimizer.step()
        optimizer.zero_grad()
        CONVERSIONS[conversion](model)

        def step() -> None:
            if engine.rank == 0:
                torch.stack([p.float().sum() for p in model.parameters()]).sum().backward()
            optimizer.step()

        with pytest.raises(UnsupportedError, match="convert a model before its optimizer is wrapped") as found:
            step()
        return str(found.value)

    assert all("now, and its gradient was" in message for message in run_ranks(RANKS, body))


@pytest.mark.parametrize("name", ["dense", "int8", "topk-allgather"])
def test_gradients_of_an_earlier_pass_stay_what_they_were(name: str) -> None:
    """PCGrad and its kin hold the gradients of one task while those of the next are computed."""

    def body(engine: InProcessEngine) -> list[list[torch.Tensor]]:
        model = Model()
        optimizer = make_optimizer(dict(model.named_parameters()), REQUESTS[name], lambda: engine, engine.rank, RANKS)
        kept, copies = [], []
        for step in range(4):
            optimizer.zero_grad(set_to_none=True)
            model.backward(engine.rank, step)
            optimizer.synchronize()
            kept.append([parameter.grad for parameter in model.parameters()])
            copies.append([gradient.clone() for gradient in kept[-1]])
        for gradients, as_they_were in zip(kept, copies, strict=True):
            for one, other in zip(gradients, as_they_were, strict=True):
                assert torch.equal(one, other)
        return copies

    first, second = run_ranks(RANKS, body)
    for mine, theirs in zip(first, second, strict=True):
        assert all(map(torch.equal, mine, theirs))


MEDDLING: dict[str, Callable[[Model], object]] = {
    "none": lambda model: setattr(model.bias, "grad", None),
    "zeros": lambda model: setattr(model.bias, "grad", torch.zeros(7)),
    "zero_grad": lambda model: model.zero_grad(),
    "zero_grad in place": lambda model: model.zero_grad(set_to_none=False),
}


@pytest.mark.parametrize("first", [0, 1], ids=["first step", "later"])
@pytest.mark.parametrize("how", MEDDLING)
def test_a_gradient_that_is_dropped_under_way_is_an_error_on_every_rank(how: str, first: int) -> None:
    """It was exchanged already, and would come back with the result."""

    def body(engine: InProcessEngine) -> torch.Tensor:
        model = Model()
        optimizer = make_optimizer(dict(model.named_parameters()), DENSE, lambda: engine, engine.rank, RANKS)
        for step in range(first):
            model.backward(engine.rank, step)
            optimizer.step()
            optimizer.zero_grad()
        before = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
        model.backward(engine.rank, first)

        def step() -> None:
            MEDDLING[how](model)
            optimizer.step()

        with pytest.raises(UsageError, match=r"call optimizer.synchronize\(\) first"):
            step()
        assert torch.equal(before, torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]))
        return before

    run_ranks(RANKS, body)


def test_gradients_may_be_dropped_after_synchronize() -> None:
    def body(engine: InProcessEngine) -> torch.Tensor:
        model = Model()
        optimizer = make_optimizer(dict(model.named_parameters()), DENSE, lambda: engine, engine.rank, RANKS)
        before = model.bias.detach().clone()
        for step in range(3):
            model.backward(engine.rank, step)
            optimizer.synchronize()
            model.bias.grad = None
            with optimizer.skip_synchronize():
                optimizer.step()
            optimizer.zero_grad()
        assert torch.equal(model.bias, before)
        return model.weight.detach()

    first, second = run_ranks(RANKS, body)
    assert torch.equal(first, second)


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_a_layer_that_is_frozen_while_training_stays_as_it_is(name: str) -> None:
    """Whatever earlier steps have not sent of it."""

    def body(engine: InProcessEngine) -> torch.Tensor:
        model = Model()
        optimizer = make_optimizer(dict(model.named_parameters()), REQUESTS[name], lambda: engine, engine.rank, RANKS)
        for step in range(6):
            optimizer.zero_grad()
            if step == 3:
                model.kernel.requires_grad_(False)
                before = model.kernel.detach().clone()
            model.backward(engine.rank, step)
            optimizer.step()
        assert torch.equal(model.kernel, before)
        return model.weight.detach()

    first, second = run_ranks(RANKS, body)
    assert torch.equal(first, second)


def test_a_sparse_layer_that_is_frozen_while_training_stays_as_it_is() -> None:
    def body(engine: InProcessEngine) -> torch.Tensor:
        rows, model = torch.nn.Embedding(6, 3, _weight=torch.zeros(6, 3), sparse=True), Model()
        parameters = {"rows": rows.weight, **dict(model.named_parameters())}
        optimizer = make_optimizer(parameters, DENSE, lambda: engine, engine.rank, RANKS, momentum=0.9)
        for step in range(6):
            optimizer.zero_grad()
            if step == 3:
                rows.weight.requires_grad_(False)
                before = rows.weight.detach().clone()
            (rows(torch.tensor([engine.rank, step])).sum() + model.weight.sum()).backward()
            optimizer.step()
        assert rows.weight.grad is None
        assert torch.equal(rows.weight, before)
        assert torch.count_nonzero(before[:4]) > 0
        return before

    first, second = run_ranks(RANKS, body)
    assert first.shape == second.shape


def test_gradients_that_are_set_by_hand_are_exchanged_without_a_warning() -> None:
    def body(engine: InProcessEngine) -> torch.Tensor:
        model = Model()
        optimizer = make_optimizer(dict(model.named_parameters()), DENSE, lambda: engine, engine.rank, RANKS)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(3):
                optimizer.zero_grad()
                for parameter in model.parameters():
                    parameter.grad = torch.full_like(parameter, float(engine.rank))
                optimizer.synchronize()
        return model.bias.grad

    for result in run_ranks(RANKS, body):
        assert result.tolist() == [0.5] * 7


def test_a_rank_without_a_backward_pass_is_not_warned() -> None:
    def body(engine: InProcessEngine) -> None:
        model = Model()
        optimizer = make_optimizer(dict(model.named_parameters()), DENSE, lambda: engine, engine.rank, RANKS)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for step in range(3):
                optimizer.zero_grad()
                if engine.rank == 0:
                    model.backward(0, step)
                optimizer.step()

    run_ranks(RANKS, body)


def test_a_scheduler_made_before_wrapping_turns_what_a_loaded_state_brings() -> None:
    """It has the optimizer that was wrapped, whose parameter groups are the same objects before and after."""
    model = Model()
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(plain, step_size=1, gamma=0.5)
    optimizer = wrapped(plain, model)
    saved = optimizer.state_dict()
    saved["param_groups"][0]["lr"] = 0.8
    groups = optimizer.param_groups[0]
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0] is groups is plain.param_groups[0]
    model.backward(0, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.4
    assert plain.state is optimizer.state


def test_a_lazy_parameter_is_refused_in_words() -> None:
    model = torch.nn.LazyLinear(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match=r"'weight' has no shape yet.*run a forward pass"):
        name_parameters(optimizer, model.named_parameters())


@pytest.mark.parametrize("name", ["dense", "topk-all", "int8", "powersgd"])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_parameters_are_trained(name: str, dtype: torch.dtype) -> None:
    """complex64 travels as its real view, complex128 dense; as plain torch trains them on the mean gradient."""

    def draw(shape: tuple[int, ...], key: str, rank: int, step: int) -> torch.Tensor:
        parts = [gradient(key + part, shape, rank, step) for part in ("real", "imag")]
        return torch.complex(*parts).to(dtype)

    def start() -> dict[str, torch.nn.Parameter]:
        shapes = {"odd": (3,), "one": (), "matrix": (6, 4)}
        made = {n: torch.nn.Parameter(draw(s, n, 9, 9)) for n, s in shapes.items()}
        made["real"] = torch.nn.Parameter(gradient("real", (5,), 9, 9))
        return made

    def backward(parameters: dict[str, torch.nn.Parameter], rank: int, step: int) -> None:
        for key, parameter in parameters.items():
            shape = tuple(parameter.shape)
            weight = draw(shape, key, rank, step) if parameter.is_complex() else gradient(key, shape, rank, step)
            (parameter * weight).real.sum().backward()

    def body(engine: InProcessEngine) -> torch.Tensor:
        parameters = start()
        optimizer = make_optimizer(parameters, REQUESTS[name], lambda: engine, engine.rank, RANKS)
        for step in range(4):
            optimizer.zero_grad()
            backward(parameters, engine.rank, step)
            optimizer.step()
        return flat(parameters)

    def flat(parameters: dict[str, torch.nn.Parameter]) -> torch.Tensor:
        """All of them, the real one last, which may be compressed."""
        return torch.cat([parameter.detach().reshape(-1).to(torch.complex128) for parameter in parameters.values()])

    parameters = start()
    plain = torch.optim.SGD(parameters.values(), lr=0.1)
    for step in range(4):
        plain.zero_grad()
        for rank in range(RANKS):
            backward(parameters, rank, step)
        for parameter in parameters.values():
            parameter.grad /= RANKS
        plain.step()
    expected = flat(parameters)
    first, second = run_ranks(RANKS, body)
    assert torch.equal(first, second)
    compressed = name in ("int8", "powersgd") and dtype == torch.complex64
    torch.testing.assert_close(first[:-5], expected[:-5], rtol=0, atol=0.3 if compressed else 1e-6)


def test_gradients_of_a_dtype_that_nothing_exchanges_are_named() -> None:
    parameter = torch.nn.Parameter(torch.zeros(4).to(torch.float8_e4m3fn))
    with pytest.raises(UnsupportedError, match=r"'p' has gradients of torch\.float8_e4m3fn"):
        make_optimizer({"p": parameter}, DENSE, alone, 0, 1)


def wrapped(
    plain: torch.optim.Optimizer,
    model: Model,
    request: Request = DENSE,
    connect: Callable[[], InProcessEngine] = alone,
    rank: int = 0,
    size: int = 1,
) -> ReducingOptimizer:
    """Wrap an optimizer that exists already."""
    names = name_parameters(plain, model.named_parameters())
    reducer = Reducer({n: p for p, n in names.items()}, request, connect, ReduceOptions(), Settings(timeout_s=60))
    return wrap(plain, names, reducer, 1, rank, size)


@pytest.mark.level2
@pytest.mark.parametrize("what", ["step", "everything"])
def test_steps_may_be_compiled(what: str) -> None:
    """The exchange, and the hooks that begin it, are left to Python.

    In a process of its own: the compiler walks through what other tests have left in this one, once without an end.
    """
    job.run_ranks(compile_steps, what, ranks=1)


def compile_steps(_: int, what: str) -> None:
    for name in ("dense", "int8", "topk-allgather"):
        torch.compiler.reset()
        torch.testing.assert_close(train_compiled(name, what), train_compiled(name, ""))


def train_compiled(name: str, what: str) -> torch.Tensor:
    """Return the parameters after some steps, of which `what` is compiled."""
    model = Model()
    optimizer = make_optimizer(dict(model.named_parameters()), REQUESTS[name], alone, 0, 1, momentum=0.5)

    def everything(step: int) -> None:
        optimizer.zero_grad()
        model.backward(0, step)
        take()

    take = torch.compile(optimizer.step, backend="eager") if what == "step" else optimizer.step
    run = torch.compile(everything, backend="eager") if what == "everything" else everything
    for step in range(4):
        run(step)
    assert of(optimizer).last_step.step == 3
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


@pytest.mark.parametrize("name", ["topk-allgather", "int8", "momentum-warmup"])
def test_a_state_that_is_loaded_before_wrapping_keeps_what_compression_remembers(name: str) -> None:
    def body(engine: InProcessEngine) -> tuple[torch.Tensor, torch.Tensor]:
        model = Model()
        optimizer = make_optimizer(dict(model.named_parameters()), REQUESTS[name], lambda: engine, engine.rank, RANKS)
        for step in range(4):
            optimizer.zero_grad()
            model.backward(engine.rank, step)
            optimizer.step()
        saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        resumed = Model()
        resumed.load_state_dict(saved[0])
        plain = torch.optim.SGD(resumed.parameters(), lr=0.1)
        plain.load_state_dict(saved[1])
        again = wrapped(plain, resumed, REQUESTS[name], lambda: engine, engine.rank, RANKS)
        assert not again.state_dict()["state"], "SGD without momentum has no state"
        for trained, taken in ((model, optimizer), (resumed, again)):
            for step in range(4, 7):
                taken.zero_grad()
                trained.backward(engine.rank, step)
                taken.step()
        assert of(again).last_step.step == 6
        return tuple(torch.cat([p.detach().reshape(-1) for p in each.parameters()]) for each in (model, resumed))

    for going, resumed in run_ranks(RANKS, body):
        assert torch.equal(going, resumed)


def test_a_plain_optimizer_takes_such_a_state_along() -> None:
    """It may be saved again, and loaded by a wrapped one."""
    model = Model()
    optimizer = make_optimizer(dict(model.named_parameters()), REQUESTS["topk-allgather"], alone, 0, 1)
    model.backward(0, 0)
    optimizer.step()
    plain = torch.optim.SGD(Model().parameters(), lr=0.1, momentum=0.5)
    plain.load_state_dict(optimizer.state_dict())
    before = remembered(optimizer.state_dict()["hvd_compress"])["residuals"]
    optimizer.load_state_dict(copy.deepcopy(plain.state_dict()))
    after = remembered(optimizer.state_dict()["hvd_compress"])["residuals"]
    assert all(torch.equal(after[key], before[key]) for key in before)
    assert any(residual.any() for residual in after.values())
