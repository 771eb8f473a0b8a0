"""What cannot be gathered in few bits, and ranks that ask for different gathers."""

from __future__ import annotations

import tests.unit.frontends.fsdp.supported  # noqa: F401

# isort: split

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import hvd_compress
import hvd_compress.fsdp as hc
from hvd_compress.errors import CommunicationError, ConfigError, UnsupportedError
from hvd_compress.frontends.fsdp.gathers import for_gathers
from tests.unit.frontends.ddp.job import run_ranks
from tests.unit.frontends.fsdp.gathered import INT4, C
from tests.unit.frontends.fsdp.rounded import install
from tests.unit.frontends.fsdp.training import (
    FORMS,
    Model,
    adam,
    loss_of,
    mesh_of,
    sharded,
    train,
)


def test_two_ranks() -> None:
    run_ranks(check_all, ranks=2)


def check_all(rank: int) -> None:
    mesh = mesh_of(2)
    for check in (
        tied,
        shared,
        refusals,
    ):
        check(rank, mesh)


@pytest.mark.parametrize(
    ("asked", "error", "words"),
    [
        (C.topk(0.1), UnsupportedError, r"does not take TopK.*: pass int8\(\), int4\(\), bf16\(\)"),
        (C.int3(), UnsupportedError, "does not take BlockQuantizer"),
        (C.half(), UnsupportedError, "does not take Cast"),
        (C.auto("any"), UnsupportedError, "takes no policy, such as Auto"),
        (C.int4(coded=True), UnsupportedError, "leave coded=True out"),
        (C.int8(stochastic=True), UnsupportedError, "leave stochastic=True out"),
        (C.int8().by(collective="allgather"), ConfigError, r"leave by\(\) out"),
        (C.int8().with_feedback(), ConfigError, r"with_feedback\(\) schedules"),
        (C.auto().by(engine="mpi"), ConfigError, r"leave by\(\) out"),
        (C.int8, ConfigError, r"call it, as in Compression.int8\(\)"),
        ("int8", ConfigError, r"parameters='int8' is no compression: pass int8\(\)"),
        (hc.differences, ConfigError, r"call it, as in differences\(Compression.int4\(\)\)"),
    ],
)
def test_what_gathers_do_not_take(asked: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        for_gathers(asked)


@pytest.mark.parametrize("asked", [C.bf16(), C.dense(), C.auto(), C.int3()])
def test_differences_take_few_bits(asked: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"takes int4\(\) or int8\(\), not .*: pass one of them"):
        hc.differences(asked)


def tied(rank: int, mesh: Any) -> None:
    """Within one module a tied weight is gathered once; over two it is refused."""
    model = Model()
    model.head = nn.Linear(96, 31, bias=False)
    model.head.weight = model.embed.weight
    fully_shard(model, mesh=mesh)
    hc.compress(model, C.dense(), parameters=C.int8())
    losses = train(model, adam(model), range(3))
    assert losses[-1] < losses[0]
    model = sharded(mesh)
    model.blocks[1][0].weight = model.blocks[0][0].weight
    with pytest.raises(ConfigError, match=r"'blocks\.0\.0\.weight' of blocks\.0 is tied to a weight of 'blocks\.1\.0'"):
        hc.compress(model, C.dense(), parameters=C.int8())


def shared(rank: int, mesh: Any) -> None:
    """Modules that fully_shard() was given together are one group, whose weights are tied to nothing."""
    model: Any = nn.Sequential(nn.Linear(96, 96), nn.LayerNorm(96), nn.Linear(96, 96))
    fully_shard([model[1], model[2]], mesh=mesh)
    hc.compress(fully_shard(model, mesh=mesh), C.dense(), parameters=C.int8())
    model(torch.ones(2, 96)).sum().backward()
    report = hc.of(model).last_step
    assert 8.25 / 32 < report.parameter_bytes / report.dense_parameter_bytes < 9 / 32


def refused(error: type[Exception], words: str, call: Callable[[], Any]) -> None:
    with pytest.raises(error, match=words) as caught:
        call()
    assert type(caught.value) is error


def refusals(rank: int, mesh: Any) -> None:
    def asked(model: Any, form: Any = FORMS[0], **options: Any) -> Callable[[], Any]:
        return lambda: hc.compress(model, C.dense(), parameters=form, **options)

    for pattern, near in (("head.w", "head.weight"), ("blocks.0", r"blocks\.0\.\*")):
        words = f"exact= names '{pattern}', and no parameter is called so; write '{near}'"
        refused(ConfigError, words, asked(sharded(mesh), exact=[pattern]))
    refused(ConfigError, r"pass it as parameters=", lambda: hc.compress(sharded(mesh), INT4))
    parts = sharded(mesh)
    hc.compress(parts.blocks[1], C.int4())
    refused(hvd_compress.errors.UsageError, r"called for blocks\.1 already.* root alone", asked(parts))
    for nothing in ({"parameters": C.int8(), "exact": ["*"]}, {"parameters": C.bf16()}):
        bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        with pytest.warns(UserWarning, match="parameters= changes nothing: .* Leave it out"):
            model = hc.compress(sharded(mesh, mp_policy=bf16), C.dense(), **nothing)
        loss_of(model, 0).backward()
        assert hc.of(model).metrics()["gathers/exactly"] == 1
    refused(ConfigError, r"pass a list of patterns", asked(sharded(mesh), exact="head.weight"))
    refused(ConfigError, r"exact=None are no names", asked(sharded(mesh), exact=None))
    refused(ConfigError, r"this mesh has one replica", asked(sharded(mesh_of(1, 2)), C.auto()))
    refused(ConfigError, r"without parameters= all do", asked(sharded(mesh), None, exact=["head.*"]))
    refused(ConfigError, r"each rank has all parameters: leave it out", asked(sharded(mesh_of(2, 1))))
    own = sharded(mesh)
    own.blocks[1].set_custom_all_gather(install(sharded(mesh), FORMS[0]).blocks[0]._get_fsdp_state())
    refused(UnsupportedError, r"blocks\.1 is gathered by something else already", asked(own))
    with pytest.MonkeyPatch.context() as patched:  # as torchao's float8 tensors
        float8 = sharded(mesh)
        patched.setattr(torch.Tensor, "fsdp_pre_all_gather", None, raising=False)
        refused(UnsupportedError, r"has a gather of its own, as float8 tensors", asked(float8))
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16,
        param_dtype_override_fn=lambda parameter: torch.float32 if parameter.dim() < 2 else None,
    )
    refused(
        UnsupportedError,
        r"gathered as torch\.bfloat16, torch\.float32: give .*MixedPrecisionPolicy\(param_dtype=torch\.bfloat16\)",
        asked(sharded(mesh, mp_policy=policy)),
    )
    late = hc.compress(sharded(mesh), C.dense(), parameters=C.int8()).bfloat16()
    refused(UnsupportedError, r"convert the model before compress\(\)", lambda: loss_of(late, 0))
    twice = hc.compress(sharded(mesh), C.dense(), parameters=C.int8())
    assert hc.compress(twice, C.dense(), parameters=C.int8()) is twice
    refused(hvd_compress.errors.UsageError, "another parameters: shard a new model", asked(twice, INT4))


def test_ranks_that_ask_for_different_gathers() -> None:
    told = run_ranks(differing, ranks=2)
    for words in told:
        ways = [
            re.findall(r"(?:: |, )([^:,]*), of a model with (\d+) parameters \((\w+)\) on", each) for each in words[:5]
        ]
        assert [[way for way, _, _ in each] for each in ways[:3]] == [
            ["int8 in blocks of 64", "int4 in blocks of 64"],
            ["int8 in blocks of 64", "as FSDP does"],
            ["int8 in blocks of 64", "int8 in blocks of 64; blocks.* exactly"],
        ]
        assert all(len({told[1:] for told in each}) == 1 for each in ways[:3]), "the same model"
        assert [count for _, count, _ in ways[3]] == [str(len(list(Model().parameters()))), "2"]
        assert "rank 0 has 'blocks.1" in words[4], "of what they train, as without parameters="
    assert "rank 1 has not arrived there. Call it on all ranks" in told[0][5]


def differing(rank: int) -> list[str]:
    mesh = mesh_of(2)
    told = []
    for other, exact in ((C.int4(), ()), (None, ()), (C.int8(), ["blocks.*"])):
        options = {"parameters": C.int8()} if rank == 0 else {"parameters": other, "exact": exact}
        model = hc.compress(sharded(mesh), C.dense(), **options)
        with pytest.raises(ConfigError) as caught:
            loss_of(model, 0)
        told.append(str(caught.value))
    models = [sharded(mesh), sharded(mesh)]
    if rank == 1:
        models[0] = fully_shard(nn.Linear(96, 96), mesh=mesh)
    models[1].blocks[rank].requires_grad_(False)  # the whole of a module, another one on each rank
    for model in models:
        hc.compress(model, C.dense(), parameters=C.int8())
        given = torch.ones(2, 96) if isinstance(model, nn.Linear) else torch.arange(8).view(2, 4)
        with pytest.raises(ConfigError) as caught:
            model(given).sum().backward()
        told.append(str(caught.value))
    if rank == 0:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("HVD_COMPRESS_TIMEOUT_S", "1")
            model = hc.compress(sharded(mesh), C.dense(), parameters=C.int8())
        with pytest.raises(CommunicationError) as late:
            loss_of(model, 0)
        told.append(str(late.value))
    dist.barrier()
    return told
