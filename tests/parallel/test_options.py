"""What Horovod's optimizer supports, done with what loses nothing: stock Horovod must come to the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hvd_compress.torch as hvd
from hvd_compress.decision import Request
from tests.harness import backward, flat_gradient, gradient, make_parameters
from tests.parallel.training import (
    STEPS,
    Make,
    assert_same_on_all_ranks,
    batch,
    check_against_horovod,
    finish,
    flat,
    gradients,
    loss,
    maker,
    sgd,
    small_model,
    train,
)


@pytest.mark.parametrize(
    "options",
    [
        {"op": hvd.Sum},
        {"op": hvd.Average},
        {"gradient_predivide_factor": 3.0},
        {"groups": 1},
        {"groups": 2},
        {"groups": 3},
        {"sparse_as_dense": True},
    ],
    ids=str,
)
def test_option(options: dict[str, Any]) -> None:
    def scenario(make: Make):
        model = small_model()
        optimizer = make(sgd(model, lr=0.003), model, **options)
        finish(train(optimizer, model))
        return model.parameters()

    check_against_horovod(scenario)


@pytest.mark.filterwarnings("ignore:Parameter `num_groups`:DeprecationWarning")
def test_num_groups() -> None:
    def scenario(make: Make):
        model = small_model()
        optimizer = make(sgd(model), model, num_groups=2)
        finish(train(optimizer, model))
        return model.parameters()

    check_against_horovod(scenario)


def test_groups_of_parameters_travel_together() -> None:
    """First and last parameter in one group, which no order of readiness would bring together."""

    def scenario(make: Make):
        model = small_model()
        first, *_, last = model.parameters()
        optimizer = make(sgd(model), model, groups=[[first, last]])
        finish(train(optimizer, model))
        made.append(optimizer)
        return model.parameters()

    made: list[Any] = []
    check_against_horovod(scenario)
    together = [set(names) for names in made[1].decisions]
    assert any({"0.weight", "2.bias"} <= names for names in together)


def test_backward_passes_per_step() -> None:
    def scenario(make: Make):
        model = small_model()
        optimizer = make(sgd(model), model, backward_passes_per_step=2)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss(model, 2 * step).backward()
            loss(model, 2 * step + 1).backward()
            optimizer.step()
        return model.parameters()

    check_against_horovod(scenario)


def test_backward_passes_that_change() -> None:
    """set_backward_passes_per_step() between steps, and a step that comes before all of its passes."""

    def scenario(make: Make):
        model = small_model()
        optimizer = make(sgd(model), model)
        number = 0
        for allowed, passes in [(1, 1), (3, 3), (3, 2), (2, 2), (1, 1)]:
            optimizer.set_backward_passes_per_step(allowed)
            optimizer.zero_grad()
            for _ in range(passes):
                loss(model, number).backward()
                number += 1
            optimizer.step()
        return model.parameters()

    check_against_horovod(scenario)


def test_clipping_between_synchronize_and_step() -> None:
    def scenario(make: Make):
        model = small_model()
        optimizer = make(sgd(model), model)
        norms = []
        for step in range(STEPS):
            optimizer.zero_grad()
            loss(model, step).backward()
            optimizer.synchronize()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5))
            with optimizer.skip_synchronize():
                optimizer.step()
        assert min(norms) > 0.5, "nothing is clipped"
        return [*norms, *model.parameters()]

    check_against_horovod(scenario)


@pytest.mark.parametrize("clear", ["to none", "to zero", "never"])
def test_clearing_gradients_through_the_model(clear: str) -> None:
    """Or not at all: then the next backward pass adds to what was reduced."""

    def scenario(make: Make):
        model = small_model()
        optimizer = make(sgd(model, lr=0.001), model)
        for step in range(STEPS):
            if clear != "never":
                model.zero_grad(set_to_none=clear == "to none")
            loss(model, step).backward()
            optimizer.step()
        return model.parameters()

    check_against_horovod(scenario)


@pytest.mark.parametrize("request_name", ["topk", "efsign", "dense"])
def test_clearing_gradients_to_none_or_zero_is_the_same(request_name: str, engine: str) -> None:
    """Horovod's own zero_grad() knows no set_to_none, so the two are compared with each other."""

    def run(set_to_none: bool) -> torch.Tensor:
        model = small_model()
        optimizer = maker(getattr(hvd.Compression, request_name)(engine=engine))(sgd(model), model)
        for step in range(STEPS):
            loss(model, step).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)
            assert all((p.grad is None) if set_to_none else not p.grad.any() for p in model.parameters())
        return flat(model.parameters())

    assert torch.equal(run(True), run(False))


class Branches(nn.Module):
    """A trunk that every pass uses, a branch that some do, and one that none does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.never = nn.Linear(13, 3)
        self.sometimes = nn.Linear(13, 5)
        self.trunk = nn.Linear(13, 5)

    def forward(self, inputs: torch.Tensor, branch: bool) -> torch.Tensor:
        return self.trunk(inputs) + (self.sometimes(inputs) if branch else 0)


BRANCHES = {
    "never": lambda step: False,
    "always": lambda step: True,
    "in some steps": lambda step: step % 2 == 1,
    "not in the first step": lambda step: step > 0,
    "only in the first step": lambda step: step == 0,
    "on rank 0 only": lambda step: hvd.rank() == 0,
    "on the last rank only": lambda step: hvd.rank() == hvd.size() - 1,
    "on ranks in turn": lambda step: step % hvd.size() == hvd.rank(),
}


@pytest.mark.parametrize("clear", ["to none", "to zero"])
@pytest.mark.parametrize("when", BRANCHES)
def test_parameters_that_get_gradients_now_and_then(when: str, clear: str) -> None:
    """With weight decay a zero gradient and none are not the same, so this is held, too."""

    def scenario(make: Make):
        model = Branches()
        optimizer = make(sgd(model, weight_decay=0.1), model)
        for step in range(STEPS):
            model.zero_grad(set_to_none=clear == "to none")
            model(batch(step), BRANCHES[when](step)).square().sum().backward()
            optimizer.step()
        return model.parameters()

    check_against_horovod(scenario)


@pytest.mark.parametrize("request_name", ["topk", "efsign"])
def test_gradients_now_and_then_with_compression(request_name: str, engine: str) -> None:
    """Ranks that have none of their own take part all the same, with what they remember."""
    model = Branches()
    optimizer = maker(getattr(hvd.Compression, request_name)(engine=engine))(sgd(model), model)
    for step in range(2 * STEPS):
        optimizer.zero_grad()
        model(batch(step), step % hvd.size() == hvd.rank()).square().sum().backward()
        optimizer.step()
        assert_same_on_all_ranks(flat(gradients(model)))
    assert not model.never.weight.grad.any()


def test_parameters_frozen_before() -> None:
    def scenario(make: Make):
        model = small_model()
        model[0].weight.requires_grad_(False)
        optimizer = make(sgd(model), model)
        finish(train(optimizer, model))
        return model.parameters()

    check_against_horovod(scenario)


@pytest.mark.parametrize("clear", ["to none", "to zero"])
def test_parameters_frozen_in_the_middle(clear: str) -> None:
    """Without momentum: Horovod goes on to give frozen parameters zero gradients, which momentum makes steps of."""

    def scenario(make: Make):
        model = small_model()
        optimizer = make(sgd(model, momentum=0), model)
        for step in range(2 * STEPS):
            model[0].weight.requires_grad_(step < STEPS or step == 2 * STEPS - 1)
            model.zero_grad(set_to_none=clear == "to none")
            loss(model, step).backward()
            optimizer.step()
        return model.parameters()

    check_against_horovod(scenario)


def test_a_frozen_parameter_stays_where_it_is(engine: str) -> None:
    """What is remembered of it waits, and neither momentum nor weight decay moves it."""
    model = small_model()
    optimizer = maker(hvd.Compression.topk(0.1, engine=engine))(sgd(model, weight_decay=0.1), model)
    finish(train(optimizer, model))
    frozen = model[0].weight.requires_grad_(False)
    before = frozen.clone()
    finish(train(optimizer, model, range(STEPS, 2 * STEPS)))
    assert torch.equal(frozen, before)
    assert_same_on_all_ranks(flat(model.parameters()))


DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def mixed_parameters() -> dict[str, nn.Parameter]:
    """Every shape in every dtype, in turn."""
    parameters = {}
    for dtype in DTYPES:
        parameters |= {f"{name}.{dtype}": p for name, p in make_parameters(dtype=dtype).items()}
    return parameters


def test_several_dtypes_in_one_model(exact: Request) -> None:
    """Horovod cannot sum bfloat16, so the mean is computed from what all ranks are known to have."""
    parameters = mixed_parameters()
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, parameters.items(), compression=exact)
    for step in range(STEPS):
        backward(parameters, hvd.rank(), step)
        optimizer.step()
        for name, parameter in parameters.items():
            ranks = [gradient(name, tuple(parameter.shape), rank, step) for rank in range(hvd.size())]
            mean = torch.stack([own.to(parameter.dtype).double() for own in ranks]).mean(0)
            tolerance = {torch.bfloat16: 2e-2, torch.float16: 2e-3}.get(parameter.dtype, 1e-6)
            assert parameter.grad.dtype == parameter.dtype
            torch.testing.assert_close(parameter.grad.double(), mean, rtol=tolerance, atol=tolerance)
        assert_same_on_all_ranks(flat_gradient(parameters))
        optimizer.zero_grad()
    kinds = [{parameters[name].dtype for name in names} for names in optimizer.decisions]
    assert all(len(kind) == 1 for kind in kinds)
    assert set.union(*kinds) == set(DTYPES)


@pytest.mark.parametrize("request_name", ["topk", "efsign", "bf16"])
def test_several_dtypes_with_compression(request_name: str, engine: str) -> None:
    parameters = mixed_parameters()
    request = getattr(hvd.Compression, request_name)(engine=engine)
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, parameters.items(), compression=request)
    for step in range(STEPS):
        backward(parameters, hvd.rank(), step)
        optimizer.step()
        assert_same_on_all_ranks(flat_gradient(parameters))
        optimizer.zero_grad()
    assert_same_on_all_ranks(flat(parameters.values()))


def test_half_precision_equals_horovod() -> None:
    def scenario(make: Make):
        model = nn.ModuleList([small_model(), small_model().double(), small_model().half()])
        optimizer = make(sgd(model, lr=0.001), model)
        for step in range(STEPS):
            optimizer.zero_grad()
            sum(part(batch(step).to(part[0].weight.dtype)).square().sum().double() for part in model).backward()
            optimizer.step()
        return model.parameters()

    check_against_horovod(scenario, rtol=4e-3, atol=2e-3)


def test_several_parameter_groups() -> None:
    def scenario(make: Make):
        model = small_model()
        groups = [
            {"params": model[2].parameters(), "lr": 0.01, "weight_decay": 0.1},
            {"params": model[0].parameters()},
        ]
        optimizer = make(torch.optim.SGD(groups, lr=0.002, momentum=0.5), model)
        finish(train(optimizer, model))
        return model.parameters()

    check_against_horovod(scenario)


def test_without_names(exact: Request) -> None:
    def run(compression: Any) -> torch.Tensor:
        model = small_model()
        optimizer = hvd.DistributedOptimizer(sgd(model), compression=compression)
        finish(train(optimizer, model))
        return flat(model.parameters())

    torch.testing.assert_close(run(exact), run(hvd.Compression.none), rtol=1e-5, atol=1e-6)


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.01),
    "Nesterov": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "foreach": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, foreach=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer(name: str) -> None:
    def scenario(make: Make):
        model = small_model()
        optimizer = make(OPTIMIZERS[name](model.parameters()), model)
        assert isinstance(optimizer, type(OPTIMIZERS[name](model.parameters())))
        finish(train(optimizer, model))
        return model.parameters()

    # Adam divides by the root of squared gradients, which magnifies rounding where they are small.
    check_against_horovod(scenario, rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
@pytest.mark.parametrize("made", ["before", "after"])
def test_learning_rate_scheduler_made(made: str) -> None:
    """Before wrapping: torch does not see the wrapped optimizer step and says so; the rates are right all the same."""

    def scenario(make: Make):
        model = small_model()
        optimizer = plain = sgd(model)
        if made == "before":
            scheduler = torch.optim.lr_scheduler.StepLR(plain, step_size=1, gamma=0.5)
        optimizer = make(plain, model)
        if made == "after":
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        rates = []
        for _ in train(optimizer, model):
            rates.append(torch.tensor(optimizer.param_groups[0]["lr"]))
            scheduler.step()
        torch.testing.assert_close(rates[-1], torch.tensor(0.01 * 0.5 ** (STEPS - 1)))
        return [*rates, *model.parameters()]

    check_against_horovod(scenario)


def test_closure_is_evaluated_before_the_exchange(exact: Request) -> None:
    """Horovod would exchange before the closure has computed anything, so plain steps are the reference."""

    def scenario(with_closure: bool) -> torch.Tensor:
        model = small_model()
        optimizer = maker(exact)(sgd(model), model)
        for step in range(STEPS):

            def closure(step: int = step) -> torch.Tensor:
                optimizer.zero_grad()
                value = loss(model, step)
                value.backward()
                return value

            if with_closure:
                assert optimizer.step(closure).item() > 0
            else:
                closure()
                optimizer.step()
        return flat(model.parameters())

    trained = scenario(with_closure=True)
    assert torch.equal(trained, scenario(with_closure=False))
    assert_same_on_all_ranks(trained)


class Words(nn.Module):
    """A table of which each batch touches some rows, and a layer on top."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table = nn.Embedding(50, 7, sparse=sparse)
        self.top = nn.Linear(7, 2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.top(self.table(words).sum(0))


def words(step: int) -> torch.Tensor:
    """Rows that this rank touches: some twice, other ranks' some of them."""
    generator = torch.Generator().manual_seed(100 * hvd.rank() + step)
    return torch.randint(0, 50, (hvd.rank() + 5,), generator=generator)


def train_words(make: Make, sparse: bool, optimizer_type: Any = torch.optim.SGD, **options: Any) -> list[torch.Tensor]:
    model = Words(sparse)
    optimizer = make(optimizer_type(model.parameters(), lr=0.05), model, **options)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(words(step)).square().sum().backward()
        optimizer.step()
        assert model.table.weight.grad.is_sparse == sparse
    return list(model.parameters())


def test_sparse_gradients() -> None:
    check_against_horovod(lambda make: train_words(make, sparse=True))


def test_sparse_gradients_as_dense(exact: Request) -> None:
    """They come back sparse. The reference is a table with dense gradients: Horovod's own way fails with this torch."""
    trained = flat(train_words(maker(exact), sparse=True, sparse_as_dense=True))
    expected = flat(train_words(maker(hvd.Compression.none), sparse=False))
    torch.testing.assert_close(trained, expected, rtol=1e-5, atol=1e-6)
    assert_same_on_all_ranks(trained)


@pytest.mark.parametrize("sparse_as_dense", [False, True])
def test_sparse_gradients_with_compression(sparse_as_dense: bool, engine: str) -> None:
    request = hvd.Compression.topk(0.05, engine=engine)
    assert_same_on_all_ranks(flat(train_words(maker(request), sparse=True, sparse_as_dense=sparse_as_dense)))


def test_process_set(some_ranks: hvd.ProcessSet, exact: Request) -> None:
    """Ranks in the set average among themselves; the others step by themselves."""

    def scenario(make: Make):
        model = small_model()
        optimizer = make(sgd(model), model, process_set=some_ranks)
        finish(train(optimizer, model))
        return model.parameters()

    expected, trained = flat(scenario(maker(hvd.Compression.none))), flat(scenario(maker(exact)))
    torch.testing.assert_close(trained, expected, rtol=1e-5, atol=1e-6)
    if some_ranks.included():
        assert_same_on_all_ranks(trained, some_ranks)
    hvd.barrier()  # a rank outside must not end, and Horovod with it, before the others have done


def test_process_set_with_compression(some_ranks: hvd.ProcessSet, engine: str) -> None:
    model = small_model()
    optimizer = maker(hvd.Compression.topk(0.05, engine=engine))(sgd(model), model, process_set=some_ranks)
    for _ in train(optimizer, model):
        if some_ranks.included():
            assert_same_on_all_ranks(flat(gradients(model)), some_ranks)
    assert ("hvd_compress" in optimizer.state_dict()) == some_ranks.included()
    hvd.barrier()


def test_process_sets_that_follow_each_other(engine: str) -> None:
    """Horovod gives the second the number of the first, of which one member knows nothing."""
    for members in {2: [[0], [0]], 3: [[0, 1], [0, 2]], 4: [[0, 1], [0, 2]]}[hvd.size()]:
        process_set = hvd.add_process_set(members)
        model = small_model()
        optimizer = maker(hvd.Compression.topk(0.05, engine=engine))(sgd(model), model, process_set=process_set)
        finish(train(optimizer, model))
        if process_set.included():
            assert_same_on_all_ranks(flat(model.parameters()), process_set)
        hvd.barrier()
        hvd.remove_process_set(process_set)


def test_two_optimizers_in_one_program() -> None:
    """As in adversarial training: two models, stepped in turn."""

    def scenario(make: Make):
        models = [small_model(), small_model()]
        optimizers = [make(sgd(model), model) for model in models]
        for step in range(STEPS):
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                loss(model, step).backward()
                optimizer.step()
        return [*models[0].parameters(), *models[1].parameters()]

    check_against_horovod(scenario)
