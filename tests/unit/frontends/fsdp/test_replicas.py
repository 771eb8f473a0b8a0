"""FSDP2 on a mesh of two dimensions, 2 x 2 ranks: what replicas exchange is compressed."""

from __future__ import annotations

import tests.unit.frontends.fsdp.supported  # noqa: F401

# isort: split

import warnings
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed._composable import replicate as replicate_by_ddp
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh

import hvd_compress
import hvd_compress.fsdp as hc
from hvd_compress.errors import ConfigError, ReplicaError, UnsupportedError, UsageError
from tests.harness import remembered
from tests.unit.frontends.ddp.job import run_ranks
from tests.unit.frontends.fsdp.training import (
    BITS,
    BLOCKS,
    FORMS,
    STEPS,
    adam,
    check_divided,
    check_gathered,
    check_given_up,
    compress,
    compressed,
    end_loss,
    gathered,
    gathering,
    gradients,
    learned,
    local,
    loss_of,
    mesh_of,
    parameters,
    reduced_as_bf16,
    resumed,
    sharded,
    train,
    trained_in_parts,
    trained_with_errors,
)


@pytest.mark.level2
def test_four_ranks() -> None:
    """One job for all: a process takes longer to begin than its checks."""
    run_ranks(check_all, ranks=4)


@pytest.mark.level2
def test_four_ranks_that_gather_few_bits() -> None:
    run_ranks(check_with_gathers, ranks=4)


def check_with_gathers(rank: int) -> None:
    with gathering(FORMS[1]):
        check_all(rank)


def check_all(rank: int) -> None:
    mesh = mesh_of(2, 2)
    checks = (
        as_plain, layers_frozen_and_unfrozen, with_other_dtypes, learns, resumes, gathers, answers, differ,
        by_an_inner_mesh, chooses, overflows, replicated,
        replicated_by_ddp, logged, over_other_shards, differ_in_requests, given_up, divided,
    )  # fmt: skip
    for check in checks:
        check(rank, mesh)


def divided(rank: int, mesh: Any) -> None:
    check_divided(mesh)


def given_up(rank: int, mesh: Any) -> None:
    """An error in a backward pass is caught on all ranks, which go on."""
    for name in ("topk", "powersgd"):
        request = getattr(hc.Compression, name)()
        check_given_up(mesh, request)
    model = trained_with_errors(mesh, hc.Compression.auto(), False, 2)
    check_equal(model, [[0, 2], [1, 3]])


def check_equal(model: Any, replicas: list[list[int]]) -> None:
    """Ranks that have the same shard have it to the bit."""
    found = gathered(parameters(model))
    for ranks in replicas:
        for other in ranks[1:]:
            assert torch.equal(found[ranks[0]], found[other]), ranks


ACROSS = [[0, 2], [1, 3]]
"""The ranks with the same shard, of a mesh of 2 x 2."""


def as_plain(rank: int, mesh: Any) -> None:
    """What loses nothing trains as plain HSDP, with clipping and accumulation."""
    plain, dense = compressed(mesh, None), compressed(mesh, hc.Compression.dense())
    found = []
    for model in (plain, dense):
        losses = train(model, adam(model), range(3), clip=0.1)
        model.zero_grad()
        for micro in range(2):
            model.set_requires_gradient_sync(micro == 1)
            loss_of(model, 3 + micro).backward()
        found.append((torch.tensor(losses), gradients(model), parameters(model)))
    for expected, own in zip(*found, strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-5, atol=1e-6)
    check_equal(dense, ACROSS)
    for module in (dense, *dense.blocks):  # parameters need no other place between the passes than their shards
        assert not any(group._use_post_forward_mesh for group in module._get_fsdp_state()._fsdp_param_groups)


def with_other_dtypes(rank: int, mesh: Any) -> None:
    """Reduced as bf16: gradients are as plain HSDP's, up to a rounding of bf16 and the compressor's."""
    reduced_as_bf16(mesh)


def learns(rank: int, mesh: Any) -> None:
    """The loss is as that of plain HSDP, for few bits an element across replicas."""
    expected = end_loss(compressed(mesh, None))
    for bits in BITS:
        model = learned(mesh, bits, expected)
        report = hc.of(model).last_step
        assert hvd_compress.of(model).metrics()["ratio"] == report.sent_bytes / report.dense_bytes
        train(model, adam(model), range(1))
        assert 0 < hvd_compress.of(model).metrics()["relative_error"] < 1
        shards = sum(local(each).numel() for each in model.parameters())
        assert report.dense_bytes <= 4 * shards + 4 * 256, "what two replicas send of a shard, and padding"
        assert len(hc.of(model).decisions) == BLOCKS + 1
        check_equal(model, ACROSS)
        with pytest.MonkeyPatch.context() as patched:  # that of FSDP itself would send 32 bits
            patched.setattr(dist, "all_reduce", lambda *_, **__: pytest.fail("FSDP has summed over replicas"))
            loss_of(model, STEPS).backward()


def gathers(rank: int, mesh: Any) -> None:
    check_gathered(mesh, ranks=4)


def answers(rank: int, mesh: Any) -> None:
    """The handle has every verb, as that of other front ends."""
    model = compressed(mesh, hc.Compression.int4())
    handle, optimizer = hc.of(model), adam(model)
    handle.follow_learning_rate(optimizer)
    with pytest.raises(ConfigError, match="has no parameter of this model"):
        handle.follow_learning_rate(adam(torch.nn.Linear(1, 1)))
    with pytest.raises(UnsupportedError, match=r"profile_ccr\(\): FSDP2 is not profiled"):
        handle.profile_ccr()
    with pytest.raises(UnsupportedError, match=r"save_plan\(\): a plan is of whole parameters"):
        handle.save_plan("plan.json")
    assert (handle.metrics(), handle.last_step, handle.decisions) == ({}, None, {})
    train(model, optimizer, range(1))
    handle.end_epoch()
    assert handle.gather_figures([rank]) == [[rank % 2], [rank % 2 + 2]], "of its replicas"
    assert {name for names in handle.decisions for name in names} == {name for name, _ in model.named_parameters()}


def resumes(rank: int, mesh: Any) -> None:
    """Interrupted and resumed it ends as uninterrupted, to the bit."""
    whole, model, saved = resumed(mesh, BITS[4])
    assert torch.equal(parameters(model), parameters(whole))
    (own,) = saved["ranks"].values()
    assert own["residuals"].keys() == {name for name, _ in whole.named_parameters()}


def layers_frozen_and_unfrozen(rank: int, mesh: Any) -> None:
    """What a module reduces changes between steps, and what is frozen keeps its residual."""
    plain = parameters(trained_in_parts(mesh, None))
    torch.testing.assert_close(parameters(trained_in_parts(mesh, hc.Compression.dense())), plain)
    for name in ("int4", "powersgd"):
        model = trained_in_parts(mesh, getattr(hc.Compression, name)())
        check_equal(model, ACROSS)
        owed = remembered(hc.state_dict(model))["residuals"]
        assert owed.keys() == {each for each, _ in model.named_parameters()}, "that of what is frozen is kept"
        matrices = [key for key, each in model.named_parameters() if each.dim() > 1]
        assert all(owed[key].any() for key in matrices)
        assert 0 < (parameters(model) - plain).norm() < 0.2 * plain.norm(), name
        again = sharded(mesh)  # what was frozen at first is so again, and has a residual in the checkpoint
        again.blocks[2][2].weight.requires_grad_(False)
        compress(again, getattr(hc.Compression, name)())
        hc.load_state_dict(again, hc.state_dict(model))
        kept = remembered(hc.state_dict(again))["residuals"]
        assert all(torch.equal(kept[key], each) for key, each in owed.items()), name


def differ(rank: int, mesh: Any) -> None:
    """Ranks that should have the same shard are told, as under the other front ends."""
    model = compressed(mesh, BITS[4])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    train(model, optimizer, range(1))
    if rank == 3:
        local(model.head.weight).add_(1)
    train(model, optimizer, range(1, 2))
    told = pytest.raises(ReplicaError, match=r"parameter 'head\.weight'") if rank in (1, 3) else nullcontext()
    with told:
        loss_of(model, 2).backward()


def by_an_inner_mesh(rank: int, mesh: Any) -> None:
    """Sharded over the inner dimension alone, with replicas said by hand: the same to the bit."""
    native, inner = compressed(mesh, hc.Compression.int4()), sharded(mesh["shards"])
    compress(inner, hc.Compression.int4(), replicas=mesh.get_group("replicas"))
    for model in (native, inner):
        train(model, adam(model), range(3))
    assert torch.equal(parameters(native), parameters(inner))
    late = sharded(mesh["shards"])
    late.blocks[1].requires_grad_(False)
    compress(late, hc.Compression.int4(), replicas=mesh.get_group("replicas"))
    loss_of(late, 0).backward()
    late.blocks[1].requires_grad_(True)
    with pytest.raises(
        UsageError, match=r"blocks\.1 is trained, and all of it was frozen when compress\(\) was called"
    ):
        loss_of(late, 1).backward()


def chooses(rank: int, mesh: Any) -> None:
    """auto() and top-k, which no reduce-scatter carries, among replicas."""
    for request in (
        hc.Compression.auto(),
        hc.Compression.topk(0.1).by(collective="allgather"),
        hc.Compression.powersgd(2),
    ):
        model = compressed(mesh, request)
        losses = train(model, adam(model), range(4))
        assert losses[-1] < losses[0], request
        assert hc.of(model).last_step.sent_bytes < 0.6 * hc.of(model).last_step.dense_bytes
        check_equal(model, ACROSS)


def overflows(rank: int, mesh: Any) -> None:
    """What is not finite on one rank is seen on all that have the same shard, and residuals stay."""
    model = compressed(mesh, hc.Compression.int4())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    train(model, optimizer, range(2))
    before = hc.state_dict(model)["ranks"]
    loss = model(torch.zeros(2, 2, dtype=torch.long)).square().mean()
    model.zero_grad()
    (loss * (float("nan") if rank == 1 else 1.0)).backward()
    (was,), (now,) = before.values(), hc.state_dict(model)["ranks"].values()
    assert not hc.of(model).last_step.finite
    assert gradients(model).isnan().any()
    assert all(torch.equal(now["residuals"][name], kept) for name, kept in was["residuals"].items())


def replicated(rank: int, mesh: Any) -> None:
    """Composable replicate(), of FSDP2: each rank has all parameters."""
    whole = mesh_of(4)
    plain, dense, int4 = (sharded(whole, replicate) for _ in range(3))
    hc.compress(dense, hc.Compression.dense())
    hc.compress(int4, hc.Compression.int4().by(collective="alltoall-allgather"))
    expected, found, losses = (train(model, adam(model), range(3)) for model in (plain, dense, int4))
    torch.testing.assert_close(parameters(dense), parameters(plain), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected))
    assert losses[-1] < losses[0]
    for model in (dense, int4):
        check_equal(model, [[0, 1, 2, 3]])
    assert hc.of(int4).last_step.sent_bytes <= 4.3 / 32 * hc.of(int4).last_step.dense_bytes


def replicated_by_ddp(rank: int, mesh: Any) -> None:
    """The older one, which is a DistributedDataParallel inside."""
    torch.manual_seed(0)
    found = []
    for request in (None, hc.Compression.dense(), hc.Compression.int4().by(collective="alltoall-allgather")):
        model = sharded(None, lambda module, mesh: module)
        model = replicate_by_ddp(model)
        if rank == 1:  # alone: nothing is communicated
            with pytest.raises(UsageError, match="is not compressed"):
                hvd_compress.of(model).metrics()
        if request is not None:
            assert hc.compress(model, request) is model
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # as where a backward pass seems to follow no forward pass of the model
            losses = train(model, adam(model), range(3))
        found.append(parameters(model))
        assert losses[-1] < losses[0]
        check_equal(model, [[0, 1, 2, 3]])
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)
    assert hc.of(model).last_step.sent_bytes <= 4.3 / 32 * hc.of(model).last_step.dense_bytes
    named = {name for bucket in hc.of(model).decisions for name in bucket}
    assert named == {name for name, _ in model.named_parameters()}


def logged(rank: int, mesh: Any) -> None:
    """One rank writes what is written, though each group of replicas has a first one."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        own = Path(folder)  # another one on each rank
        patched.setenv("HVD_COMPRESS_LOG", str(own / "log.jsonl"))
        patched.setenv("HVD_COMPRESS_TIMELINE", str(own / "timeline.json"))
        model = compressed(mesh, hc.Compression.int4())
        train(model, adam(model), range(1))
        assert {path.name for path in own.iterdir()} == ({"log.jsonl", "timeline.json"} if rank == 0 else set())


def over_other_shards(rank: int, mesh: Any) -> None:
    """A rank that had another shard begins with zeros, in a mesh of the same shape, too."""
    model = compressed(mesh, hc.Compression.int4())
    again = compressed(DeviceMesh("cpu", [[0, 2], [1, 3]], mesh_dim_names=mesh.mesh_dim_names), hc.Compression.int4())
    loss_of(model, 0).backward()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        hc.load_state_dict(again, hc.state_dict(model))
    (now,) = hc.state_dict(again)["ranks"].values()
    assert any(residual.any() for residual in now["residuals"].values()) == (rank in (0, 3))
    words = {1: "shard 1 of 2 are not loaded on rank 1 of 4, shard 0", 2: "shard 0 of 2 are not loaded on rank 2 of 4"}
    assert [words[rank] in str(each.message) for each in told] == ([True] if rank in (1, 2) else [])


def differ_in_requests(rank: int, mesh: Any) -> None:
    """Ranks are named by their numbers in the job, not among those that have the same shard."""
    model = compressed(mesh, hc.Compression.int8() if rank < 2 else hc.Compression.int4())
    words = rf"rank {rank}, .*bits=8.* on rank {rank % 2} and .*bits=4.* on rank {rank % 2 + 2}"
    with pytest.raises(ConfigError, match=words):
        loss_of(model, 0).backward()
