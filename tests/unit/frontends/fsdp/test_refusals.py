"""What cannot be had is refused in a sentence that says what to do instead."""

from __future__ import annotations

import tests.unit.frontends.fsdp.supported  # noqa: F401

# isort: split

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import hvd_compress.fsdp as hc
from hvd_compress import elastic
from hvd_compress.compressors import BlockQuantizer, Natural
from hvd_compress.errors import CommunicationError, ConfigError, UnsupportedError, UsageError
from hvd_compress.frontends.fsdp.requests import for_replicas, for_shards
from hvd_compress.request.request import Request
from tests.brought import brought
from tests.unit.frontends.ddp.job import run_ranks
from tests.unit.frontends.fsdp.training import Model, compressed, loss_of, mesh_of, sharded

C = hc.Compression


@pytest.mark.parametrize(
    ("request_", "feedback", "error", "words"),
    [
        (C.topk(0.1), False, UnsupportedError, "cannot carry TopK: take int8.*mesh of two dimensions"),
        (C.powersgd(4), False, UnsupportedError, "cannot carry PowerSGD"),
        *((each, False, UnsupportedError, f"cannot carry {n}") for n, each in brought("NOT_BY_REDUCE_SCATTER")),
        (C.momentum(), False, UnsupportedError, "cannot carry CompressedMomentum"),
        (C.auto(), False, UnsupportedError, "cannot carry Auto"),
        (C.onebit(), False, ConfigError, "pass feedback=True, which takes 8 bytes an element"),
        (C.bf16(), True, ConfigError, "Cast has no error feedback: leave it out"),
        (C.int8().by(collective="allgather"), False, ConfigError, "a reduce-scatter has one way"),
        (C.int8().with_feedback(), False, ConfigError, "pass feedback=True, too"),
        (C.int8().by(engine="mpi"), False, UnsupportedError, "leave engine at 'auto'"),
    ],
)
def test_what_no_reduce_scatter_carries(request_: Request, feedback: bool, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        for_shards(request_, feedback)


@pytest.mark.parametrize(
    ("request_", "feedback", "error", "words"),
    [
        (C.momentum(), False, UnsupportedError, "take a compression of gradients"),
        (C.momentum(warmup_steps=3), False, UnsupportedError, "take a compression of gradients"),
        (C.demo(), False, UnsupportedError, "take a compression of gradients"),
        (C.flexible(), False, UnsupportedError, r"take auto\(\)"),
        *((each, False, UnsupportedError, r"take auto\(\)") for _, each in brought("FIXED")),
        (C.int8(), True, ConfigError, "leave it out"),
        (C.int8().by(engine="horovod"), False, UnsupportedError, "leave engine at 'auto'"),
    ],
)
def test_what_replicas_do_not_exchange(request_: Request, feedback: bool, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        for_replicas(request_, feedback)


def test_feedback_alone_says_how_a_reduce_scatter_rounds() -> None:
    assert for_shards(C.int4(), False).compressor == BlockQuantizer(4, stochastic=True)
    assert for_shards(C.int4(stochastic=True), True).compressor == BlockQuantizer(4)
    assert for_shards(C.natural(error_feedback=True), False).compressor == Natural()
    assert for_shards(C.natural(), True).compressor == Natural(error_feedback=True)


def test_two_ranks() -> None:
    run_ranks(check_all, ranks=2)


def check_all(rank: int) -> None:
    mesh = mesh_of(2)
    checks = (
        of_another_model, by_halves, over_two_meshes, twice, of_wrong_replicas, of_other_meshes,
        by_settings, in_a_dtype, with_hooks, unused, interrupted, interrupted_on_one_rank, by_hand, frozen_elsewhere,
        frozen_with_feedback, frozen_elsewhere_later,
    )  # fmt: skip
    for check in checks:
        check(mesh)


def refused(error: type[Exception], words: str, call: Callable[[], Any]) -> None:
    with pytest.raises(error, match=words) as caught:
        call()
    assert type(caught.value) is error


def of_another_model(mesh: Any) -> None:
    refused(ConfigError, r"fully_shard\(\) the submodules of the plain model", lambda: hc.compress(Model(), C.int8()))
    ddp = DistributedDataParallel(Model())
    refused(ConfigError, r"hvd_compress\.ddp, and a .* \(FSDP1\) nowhere", lambda: hc.compress(ddp, C.int8()))
    refused(ConfigError, r"call it, as in Compression.int8\(\)", lambda: hc.compress(sharded(mesh), C.int8))
    refused(UsageError, "of FSDP2 the root module", lambda: hc.of(sharded(mesh)).last_step)


def by_halves(mesh: Any) -> None:
    model = Model()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    refused(ConfigError, "and the model itself", lambda: hc.compress(model, C.int8()))
    model = Model()
    fully_shard(model, mesh=mesh, ignored_params={model.head.bias})
    refused(ConfigError, r"1 parameters are not sharded, 'head\.bias' first", lambda: hc.compress(model, C.int8()))
    model.head.bias.requires_grad_(False)
    hc.compress(model, C.int8())
    frozen = sharded(mesh).requires_grad_(False)
    refused(ConfigError, "trains no parameter: unfreeze some", lambda: hc.compress(frozen, C.int8()))


def over_two_meshes(mesh: Any) -> None:
    model = Model()
    fully_shard(model.blocks[0], mesh=mesh_of(1, 2))
    fully_shard(model, mesh=mesh)
    refused(ConfigError, r"different meshes: call fully_shard\(\) for all", lambda: hc.compress(model, C.int8()))


def twice(mesh: Any) -> None:
    model = compressed(mesh, C.int8())
    assert hc.compress(model, C.int8()) is model
    refused(UsageError, "shard a new model", lambda: hc.compress(model, C.int4()))
    refused(UsageError, "shard a new model", lambda: hc.compress(model, C.int8(), feedback=True))


def of_wrong_replicas(mesh: Any) -> None:
    refused(
        ConfigError,
        "must have this rank alone in common",
        lambda: hc.compress(sharded(mesh), C.int8(), replicas=mesh.get_group()),
    )
    native = sharded(mesh_of(2, 1))
    refused(
        ConfigError, "this has replicas: leave it", lambda: hc.compress(native, C.int8(), replicas=mesh.get_group())
    )


def of_other_meshes(mesh: Any) -> None:
    """As by tensor parallelism."""
    inner, outer = (mesh_of(1, 2)[name] for name in ("shards", "replicas"))
    model = parallelize_module(nn.Linear(4, 4), inner, ColwiseParallel())
    fully_shard(model, mesh=outer)
    refused(UnsupportedError, "as by tensor parallelism", lambda: hc.compress(model, C.int8()))


def frozen_with_feedback(mesh: Any) -> None:
    model = compressed(mesh, C.int8(), feedback=True)
    model.head.bias.requires_grad_(False)
    refused(UnsupportedError, "feedback=True remembers modules as a whole", loss_of(model, 0).backward)


def frozen_elsewhere_later(mesh: Any) -> None:
    """As many elements, of other parameters."""
    model = compressed(mesh, C.int8())
    loss_of(model, 0).backward()
    model.blocks[1][2 * dist.get_rank()].weight.requires_grad_(False)
    refused(ConfigError, r"different parameters of blocks\.1", loss_of(model, 1).backward)


def by_settings(mesh: Any) -> None:
    model = compressed(mesh_of(2, 1), C.int8())
    model.set_requires_all_reduce(False)
    refused(UnsupportedError, r"accumulate with set_requires_gradient_sync\(False\)", loss_of(model, 0).backward)


def in_a_dtype(mesh: Any) -> None:
    half = sharded(mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float16))
    refused(UnsupportedError, "reduce_dtype=torch.float32", lambda: hc.compress(half, C.int8()))
    mixed = Model()
    mixed.head.double()
    fully_shard(mixed, mesh=mesh)
    refused(UnsupportedError, "modules of one dtype each", lambda: hc.compress(mixed, C.int8()))
    late = compressed(mesh, C.int8()).bfloat16()
    refused(UnsupportedError, "convert the model before", loss_of(late, 0).backward)


def with_hooks(mesh: Any) -> None:
    """An optimizer that steps within the backward pass would see no gradient yet."""
    model = compressed(mesh, C.int8())
    model.head.weight.register_post_accumulate_grad_hook(lambda _: None)
    refused(UnsupportedError, r"step the optimizer after backward\(\)", loss_of(model, 0).backward)
    refused(CommunicationError, "an earlier exchange failed: 'head", lambda: loss_of(model, 0))


def unused(mesh: Any) -> None:
    model = compressed(mesh, C.int8())
    loss_of(model, 0).backward()
    model.zero_grad()
    model.blocks[1].left_out = True
    loss = loss_of(model, 1)
    refused(UsageError, r"blocks\.1 has reduced no gradient.*set_reduce_scatter_unused_params", loss.backward)
    refused(CommunicationError, "an earlier exchange failed: blocks", lambda: loss_of(model, 1))


def interrupted(mesh: Any) -> None:
    """FSDP itself would leave modules out of the training, unless reset_iter_state() is called."""
    model = compressed(mesh, C.int8())
    model.blocks[0][0].register_full_backward_hook(_fail)
    refused(ValueError, "my own", loss_of(model, 0).backward)
    refused(CommunicationError, r"call reset_iter_state\(\) of the root module", lambda: loss_of(model, 1))


def interrupted_on_one_rank(mesh: Any) -> None:
    model = compressed(mesh, C.int8())
    told = "step 0: an error has ended the backward pass on rank 1, and not on the others"
    if dist.get_rank() == 1:
        model.blocks[0][0].register_full_backward_hook(_fail)
        refused(ValueError, "my own", loss_of(model, 0).backward)
        model.reset_iter_state()
        refused(CommunicationError, told, lambda: loss_of(model, 1))
    else:
        refused(CommunicationError, told, loss_of(model, 0).backward)
    refused(CommunicationError, "an earlier exchange failed: step 0", lambda: loss_of(model, 1))


def _fail(*_: Any) -> None:
    raise ValueError("my own")


def by_hand(mesh: Any) -> None:
    model = compressed(mesh, C.int8())
    if not hasattr(model, "set_manual_backward_finalization"):  # torch before 2.15
        return
    model.set_manual_backward_finalization(True)
    loss = loss_of(model, 0)
    refused(UsageError, "has reduced no gradient|leave set_manual_backward_finalization", loss.backward)


def frozen_elsewhere(mesh: Any) -> None:
    """As many elements, of other parameters."""
    model = Model()
    model.blocks[1][2 * dist.get_rank()].weight.requires_grad_(False)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    hc.compress(fully_shard(model, mesh=mesh), C.int8())
    own = f"blocks.1.{2 - 2 * dist.get_rank()}.weight"
    words = rf"different parameters of blocks\.1, this one .*{own}.*: freeze the same"
    refused(ConfigError, words, loss_of(model, 0).backward)


def test_one_rank_is_told_that_nothing_is_compressed() -> None:
    run_ranks(alone, ranks=1)


def test_an_elastic_state_is_of_whole_models() -> None:
    run_ranks(refused_elastic, ranks=1)


def refused_elastic(rank: int) -> None:
    with pytest.raises(UnsupportedError, match=r"this model is sharded.*torch\.distributed\.checkpoint"):
        elastic.TorchState(sharded(mesh_of(1)))


def alone(rank: int) -> None:
    with pytest.warns(UserWarning, match="one rank exchanges no gradients"):
        model = compressed(mesh_of(1, 1), C.int8())
    assert model is hc.compress(model, C.int8())
    loss_of(model, 0).backward()
    assert hc.of(model).last_step is None
    assert hc.of(model).decisions == {}
    assert all(each.grad is not None for each in nn.Module.parameters(model))
    assert dist.get_world_size() == 1
