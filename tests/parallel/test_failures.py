"""Bad input and calls in a wrong order: typed errors that say what to do, and that leave the job able to go on.

What ends a job is tested in tests/jobs.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hvd_compress.torch as hvd
from hvd_compress.errors import CommunicationError, ConfigError, UnsupportedError, UsageError
from hvd_compress.frontends.horovod.runtime_selection import RUNTIME
from tests.parallel.training import (
    EXACT,
    STEPS,
    assert_same_on_all_ranks,
    batch,
    check_against_horovod,
    finish,
    flat,
    loss,
    maker,
    sgd,
    small_model,
    train,
)


def wrap(model: nn.Module, compression: Any = EXACT["dense"], **options: Any) -> Any:
    return maker(compression)(sgd(model), model, **options)


@pytest.mark.parametrize("ratio", [0, 0.0, -0.1, 1.5, 10, float("nan"), float("inf"), "0.1", None, True, [0.1]])
def test_ratio(ratio: Any) -> None:
    with pytest.raises(ConfigError, match="ratio"):
        hvd.Compression.topk(ratio)


def test_a_ratio_meant_in_per_cent_is_explained() -> None:
    with pytest.raises(ConfigError, match=r"one per cent is 0\.01"):
        hvd.Compression.topk(10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"collective": "stars"}, "unknown collective 'stars'; known here are auto, allgather, artopk, star, var"),
        ({"algorithm": "rings"}, "unknown algorithm 'rings'; known here are auto, ring, tree"),
        ({"engine": "nccl"}, "unknown engine 'nccl'; known here are auto, mpi, horovod"),
        (
            {"collective": "allgather", "algorithm": "tree"},
            "unknown algorithm 'tree'; known here are auto, ring, bruck",
        ),
        ({"collective": 3}, "unknown collective 3"),
        ({"algorithm": ["ring"]}, "unknown algorithm"),
    ],
    ids=str,
)
def test_unknown_words(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        hvd.Compression.topk(0.1).by(**arguments)


def test_adasum() -> None:
    with pytest.raises(UnsupportedError, match="Adasum"):
        wrap(small_model(), op=hvd.Adasum)


def test_lbfgs_is_refused() -> None:
    model = small_model()
    with pytest.raises(UnsupportedError, match=r"LBFGS .* unwrapped, .*hvd\.grouped_allreduce_\(\) and hvd\.allreduce"):
        maker(EXACT["dense"])(torch.optim.LBFGS(model.parameters()), model)


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_lbfgs_as_its_refusal_says(line_search: str | None) -> None:
    """In double precision, as a line search branches on its losses."""

    def run(distributed: bool) -> torch.Tensor:
        model = small_model().double()
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=5, line_search_fn=line_search)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            ranks = [hvd.rank()] if distributed else range(hvd.size())
            value = torch.stack([model(batch(0, rank).double()).square().mean() for rank in ranks]).mean()
            value.backward()
            if not distributed:
                return value
            hvd.grouped_allreduce_([parameter.grad for parameter in model.parameters()], name="gradients")
            return hvd.allreduce(value.detach(), name="loss")

        for _ in range(STEPS):
            optimizer.step(closure)
        return flat(model.parameters())

    trained = run(distributed=True)
    assert_same_on_all_ranks(trained)
    torch.testing.assert_close(trained, run(distributed=False), rtol=1e-6, atol=1e-9)


COPIES = {
    "torch.save": lambda optimizer: torch.save(optimizer, io.BytesIO()),
    "pickle": pickle.dumps,
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "broadcast_object": lambda optimizer: hvd.broadcast_object(optimizer, root_rank=hvd.rank()),
}


@pytest.mark.parametrize("name", COPIES)
def test_the_optimizer_itself_cannot_be_saved_or_copied(name: str) -> None:
    """Its state can, and so can the model, which has hooks of it."""
    model = small_model()
    optimizer = wrap(model)
    finish(train(optimizer, model))
    with pytest.raises(UnsupportedError, match=r"torch\.save\(optimizer\).*: save optimizer\.state_dict\(\)"):
        COPIES[name](optimizer)
    for part in (copy.deepcopy(model), optimizer.state_dict()):
        torch.save(part, io.BytesIO())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"op": hvd.Max}, "op"),
        ({"op": "mean"}, "op"),
        ({"gradient_predivide_factor": 0.0}, "gradient_predivide_factor"),
        ({"gradient_predivide_factor": float("nan")}, "gradient_predivide_factor"),
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "gradient_predivide_factor is for op=Average"),
        ({"backward_passes_per_step": 0}, "backward_passes_per_step = 0"),
        ({"backward_passes_per_step": 1.5}, "backward_passes_per_step = 1.5"),
        ({"groups": -1}, "groups = -1"),
        ({"groups": True}, "groups"),
        ({"groups": [["0.weight"]]}, "lists of tensors"),
        ({"groups": [torch.ones(3)]}, "list of lists of parameters"),
    ],
    ids=str,
)
def test_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        wrap(small_model(), **options)


def test_a_parameter_in_two_groups() -> None:
    model = small_model()
    with pytest.raises(ConfigError, match="one group only"):
        wrap(model, groups=[[model[0].weight], [model[0].bias, model[0].weight]])


def test_groups_may_be_generators() -> None:
    model = small_model()
    optimizer = wrap(model, groups=[model[0].parameters(), model[2].parameters()])
    finish(train(optimizer, model))
    assert {frozenset(names) for names in hvd.of(optimizer).decisions} == {
        frozenset({"0.weight", "0.bias"}),
        frozenset({"2.weight", "2.bias"}),
    }


@pytest.mark.parametrize("factory", ["topk", "auto", "efsign", "bf16", "dense"])
def test_a_compression_that_was_not_called(factory: str) -> None:
    with pytest.raises(ConfigError, match=f"{factory} is a function: call it"):
        wrap(small_model(), getattr(hvd.Compression, factory))


def test_a_parameter_of_a_dtype_that_nothing_exchanges() -> None:
    parameter = nn.Parameter(torch.ones(3).to(torch.float8_e5m2))
    with pytest.raises(UnsupportedError, match=r"'waves' has gradients of torch\.float8_e5m2"):
        hvd.DistributedOptimizer(torch.optim.SGD([parameter]), [("waves", parameter)], EXACT["dense"])


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (lambda model: [("a", p) for p in model.parameters()], "these come twice: a"),
        (lambda model: list(model.named_parameters())[1:], r"1 of the optimizer's 4 .* no name .*\(31, 13\)"),
        (lambda model: [], "4 of the optimizer's 4 parameters have no name"),
        (lambda model: model.parameters(), r"must be \(name, parameter\)"),
        (lambda model: [name for name, _ in model.named_parameters()], r"must be \(name, parameter\)"),
    ],
    ids=["doubled", "one missing", "all missing", "no names", "no parameters"],
)
def test_names(named: Callable[[nn.Module], Any], message: str) -> None:
    model = small_model()
    with pytest.raises(ConfigError, match=message):
        hvd.DistributedOptimizer(sgd(model), named(model), EXACT["dense"])


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HOROVOD_FUSION_THRESHOLD", "-1"),
        ("HOROVOD_FUSION_THRESHOLD", "64 MiB"),
        ("HOROVOD_FUSION_THRESHOLD", "0.5"),
        ("HVD_COMPRESS_TIMEOUT_S", "0"),
        ("HVD_COMPRESS_TIMEOUT_S", "nan"),
        ("HVD_COMPRESS_TIMEOUT_S", "soon"),
    ],
)
def test_the_environment(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=variable):
        wrap(small_model())


def test_horovods_engine_cannot_force_an_algorithm() -> None:
    """Found when the engine is made, by all ranks alike; whoever wants to can go on with another optimizer."""
    model = small_model()
    optimizer = wrap(model, hvd.Compression.topk(0.1).by(collective="star", algorithm="ring", engine="horovod"))
    loss(model, 0).backward()
    with pytest.raises(UnsupportedError, match=r"(Horovod|runtime) engine cannot force algorithm 'ring'.* offers auto"):
        optimizer.step()
    check_that_training_works()


def test_bf16_with_an_algorithm(engine: str) -> None:
    """Signs and bfloat16 are not summed by an engine, so there is no algorithm to choose."""
    with pytest.raises(ConfigError, match="algorithm='ring' names an allreduce, and what cannot be summed travels by"):
        hvd.Compression.efsign().by(algorithm="ring")
    model = small_model()
    optimizer = wrap(model, hvd.Compression.bf16().by(algorithm="ring", engine=engine))
    loss(model, 0).backward()
    with pytest.raises((ConfigError, UnsupportedError), match=r"algorithm='ring' names an allr|cannot force algorithm"):
        optimizer.step()
    check_that_training_works()


def check_that_training_works() -> None:
    model = small_model()
    finish(train(wrap(model), model))
    assert_same_on_all_ranks(flat(model.parameters()))


def test_two_steps_for_one_backward_pass() -> None:
    model = small_model()
    optimizer = wrap(model)
    loss(model, 0).backward()
    optimizer.step()
    with pytest.warns(UserWarning, match="no backward pass has run since the last exchange"):
        optimizer.step()
    assert_same_on_all_ranks(flat(model.parameters()))


def test_step_after_synchronize_without_skip() -> None:
    """Twice is what Horovod does, too; it warns, and so do we, where nothing is remembered."""
    model = small_model()
    optimizer = wrap(model)
    loss(model, 0).backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match=r"after synchronize\(\) within skip_synchronize"):
        optimizer.step()
    assert_same_on_all_ranks(flat(model.parameters()))


MEDDLING = {
    "zero_grad": lambda optimizer: optimizer.zero_grad(),
    "load_state_dict": lambda optimizer: optimizer.load_state_dict(optimizer.state_dict()),
    "set_backward_passes_per_step": lambda optimizer: optimizer.set_backward_passes_per_step(2),
}


@pytest.mark.parametrize("call", MEDDLING)
def test_between_backward_and_step(call: str) -> None:
    model = small_model()
    optimizer = wrap(model)
    for _ in range(2):  # before there are buckets, and then
        loss(model, 0).backward()
        with pytest.raises(UsageError, match=rf"{call}\(\) after backward.*call synchronize\(\) first"):
            MEDDLING[call](optimizer)
        optimizer.synchronize()
        optimizer.zero_grad()
    check_that_training_works()


def test_a_second_backward_pass_without_a_step() -> None:
    """It names the parameter and what to do. Here before there is an engine; a job that has one must end."""
    model = small_model()
    optimizer = wrap(model)
    loss(model, 0).backward()
    with pytest.raises(UsageError, match=r"'2.bias' was computed more than .*backward_passes_per_step = 1 times"):
        loss(model, 1).backward()
    with pytest.raises(CommunicationError, match=r"nothing is exchanged any more.*'2.bias' was computed more than"):
        optimizer.step()
    check_that_training_works()


def test_a_parameter_group_that_is_added() -> None:
    optimizer = wrap(small_model())
    with pytest.raises(UnsupportedError, match="before it is wrapped"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))]})


def test_a_closure_within_skip_synchronize() -> None:
    model = small_model()
    optimizer = wrap(model)
    with optimizer.skip_synchronize(), pytest.raises(UsageError, match="call the closure before synchronize"):
        optimizer.step(lambda: loss(model, 0).backward())


@pytest.mark.filterwarnings("ignore:optimizer.step.. called without:UserWarning")
def test_an_error_in_the_training_program_does_no_harm() -> None:
    """A step that every rank gives up after backward(): synchronize() clears what is under way. (Horovod warns.)"""

    def scenario(make: Any) -> Any:
        model = small_model()
        optimizer = make(sgd(model), model)
        for step in range(4):
            try:
                loss(model, step).backward()
                if step == 1:
                    raise KeyboardInterrupt
                optimizer.step()
            except KeyboardInterrupt:
                optimizer.synchronize()
            optimizer.zero_grad()
        return model.parameters()

    check_against_horovod(scenario)


def test_horovods_own_compression_of_bfloat16_is_refused_when_it_is_wrapped() -> None:
    """Horovod would refuse in the first step, without a word of what to do; our runtime takes it. Its fp16 works."""
    model = small_model().bfloat16()
    if RUNTIME == "horovod":
        with pytest.raises(ConfigError, match=r"exchanges no bfloat16 gradients: take Compression\.dense\(\)"):
            wrap(model, hvd.Compression.none)
    else:
        optimizer = wrap(model, hvd.Compression.none)
        model(torch.ones(13).bfloat16()).square().sum().backward()
        optimizer.step()
        assert_same_on_all_ranks(torch.cat([p.float().reshape(-1) for p in model.parameters()]))
    wrap(model, hvd.Compression.fp16)
