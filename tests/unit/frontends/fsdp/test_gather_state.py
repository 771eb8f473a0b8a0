"""What is remembered of parameters that are gathered in few bits: checkpoints, loads, failures."""

from __future__ import annotations

import tests.unit.frontends.fsdp.supported  # noqa: F401

# isort: split

import gc
import weakref
from collections.abc import Callable
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import hvd_compress.fsdp as hc
from hvd_compress.errors import CommunicationError, ConfigError
from hvd_compress.frontends.fsdp.by_hosts import HostGather
from hvd_compress.frontends.fsdp.messages import Differences, Message
from hvd_compress.frontends.fsdp.pieces import Pieces
from tests.unit.frontends.ddp.job import run_ranks
from tests.unit.frontends.fsdp.gathered import INT4, C, trained, unsharded
from tests.unit.frontends.fsdp.rounded import is_few
from tests.unit.frontends.fsdp.training import (
    FORMS,
    adam,
    gathered,
    gathering,
    local,
    loss_of,
    mesh_of,
    parameters,
    resumed,
    sharded,
    train,
)


def test_two_ranks() -> None:
    run_ranks(check_all, ranks=2)


def check_all(rank: int) -> None:
    mesh = mesh_of(2)
    for check in (
        not_finite,
        loaded,
        loaded_far,
        resumes,
        of_another_mesh,
        held,
        failed,
        by_dcp,
        loaded_on_one_rank,
        written_by_hand,
        late,
    ):
        check(rank, mesh)


def not_finite(rank: int, mesh: Any) -> None:
    """What is not finite is seen on all ranks, in that gather alone: differences go on after it."""
    for form in FORMS:
        model = trained(mesh, form)
        weight = local(model.blocks[0][0].weight)
        kept = weight[0, 0].clone()
        if rank == 1:
            weight[0, 0] = torch.nan
        assert all(each[0].isnan().any() and not each[1].isnan().any() for each in [unsharded(model)[::6]])
        if rank == 1:
            weight[0, 0] = kept
        for _ in range(8):
            mine = unsharded(model)[0]
        assert (mine - model.blocks[0][0].weight.full_tensor()).norm() < 0.01 * mine.norm()


def loaded(rank: int, mesh: Any) -> None:
    """Weights that are loaded are gathered exactly at once, however far they are from what was gathered last."""
    model, other = trained(mesh, INT4, 3), sharded(mesh)
    with torch.no_grad():
        for each in other.parameters():
            local(each).mul_(3)
    model.load_state_dict(other.state_dict())
    for mine, true in zip(unsharded(model), unsharded(other), strict=True):
        assert torch.equal(mine, true)
    part = model.blocks[0][0]
    part.load_state_dict({name: 2 * each for name, each in part.state_dict().items()})
    for mine, true in zip(unsharded(model)[:2], unsharded(other)[:2], strict=True):
        assert torch.equal(mine, 2 * true)


def loaded_far(rank: int, mesh: Any) -> None:
    """So do weights that are far from the copy that a checkpoint brings, as one of another model."""
    model, other = trained(mesh, INT4, 3), hc.compress(sharded(mesh), C.dense(), parameters=INT4)
    with torch.no_grad():
        for each in other.parameters():
            local(each).mul_(3)
    hc.load_state_dict(other, hc.state_dict(model))
    for mine, true in zip(unsharded(other), other.blocks.parameters(), strict=True):
        assert torch.equal(mine, true.full_tensor())


def test_what_is_loaded_during_a_gather_counts_in_the_next_one() -> None:
    """As where a module is prefetched and then left out."""
    differences = Differences(Pieces((slice(0, 8192),), ()), C.int4().compressor.encoding, torch.float32)
    out, first = torch.empty(1, 8192), torch.randn(8192)
    shards = [first, *(first + 0.01 * torch.randn(8192) for _ in range(2))]

    def start(message: torch.Tensor) -> Callable[[], torch.Tensor]:
        return lambda: message[None]

    differences.gather(shards[0], 0, start)(out)
    finish = differences.gather(shards[1], 0, start)
    differences.forget()
    finish(out)
    differences.gather(shards[2], 0, start)(out)
    assert torch.equal(out[0], shards[2])
    finish = differences.gather(shards[1], 0, start)
    differences.load(shards[0])
    finish(out)
    assert torch.equal(differences.saved(), shards[0])
    differences.gather(shards[0], 0, start)(out)
    assert torch.equal(out[0], shards[0])


def late(rank: int, mesh: Any) -> None:
    """A rank that does not come is waited for as long as ranks may let each other wait."""
    gather = HostGather(mesh.get_group(), 1.0)
    if rank == 0:
        with pytest.raises(CommunicationError, match=r"gathering parameters with rank 1 failed: .*[Tt]imed? ?out"):
            gather.start(torch.zeros(64, dtype=torch.uint8))()
    dist.barrier()


def resumes(rank: int, mesh: Any) -> None:
    """To the bit, also where the model is loaded after what the compression remembers."""
    for form in FORMS:
        with gathering(form):
            whole, model, saved = resumed(mesh, C.int4())
        assert torch.equal(parameters(model), parameters(whole))
        (own,) = saved["ranks"].values()
        sizes = [each.numel() for each in own["states"].get("gathers", {}).values()]
        few = sum(local(each).numel() for each in whole.parameters() if is_few(each))
        assert sum(sizes) == (few if form.of_differences else 0)
    one, two = (hc.compress(sharded(mesh), C.dense(), parameters=INT4) for _ in range(2))
    train(one, adam(one), range(3))
    weights, remembered = one.state_dict(), hc.state_dict(one)
    hc.load_state_dict(two, remembered)
    two.load_state_dict(weights)
    for each in (one, two):
        loss_of(each, 3).backward()
    assert all(torch.equal(*pair) for pair in zip(unsharded(one), unsharded(two), strict=True))
    copies = remembered["ranks"][next(iter(remembered["ranks"]))]["states"]["gathers"]
    for wrong, words in ((torch.zeros(3), "has 3 elements instead of"), ("x", "is a str: load what")):
        copies["blocks.0"] = wrong
        with pytest.raises(ConfigError, match=r"the copy of blocks\.0 " + words):
            hc.load_state_dict(two, remembered)
    hc.load_state_dict(hc.compress(sharded(mesh), C.dense()), hc.state_dict(one))  # which needs no copy


def of_another_mesh(rank: int, mesh: Any) -> None:
    """A job that was cut otherwise begins with exact weights; a rank without its file does not keep others waiting."""
    model = trained(mesh, INT4, 3)
    state = hc.state_dict(model)
    (own,) = state["ranks"].values()
    again = hc.compress(sharded(mesh), C.dense(), parameters=INT4)
    hc.load_state_dict(again, {**state, "ranks": {"rank 0 of 4, 4 shards": own}})
    again.load_state_dict(model.state_dict())
    for mine, true in zip(unsharded(again), again.blocks.parameters(), strict=True):
        assert torch.equal(mine, true.full_tensor())
    alone = hc.compress(sharded(mesh), C.dense(), parameters=INT4)
    alone.load_state_dict(model.state_dict())
    if rank == 0:
        hc.load_state_dict(alone, state)
    for mine, true in zip(unsharded(alone), alone.blocks.parameters(), strict=True):
        assert (mine - true.full_tensor()).norm() < 0.01 * mine.norm()


def held(rank: int, mesh: Any) -> None:
    """A handle keeps no model alive."""
    model = trained(mesh, INT4, 1)
    handle, reference = hc.of(model), weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None
    assert handle.front.gathers() is None


class RunsOut:
    """A method that has no memory in its first call."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method, self._is_first = method, True

    def __get__(self, owner: Any, kind: Any) -> Callable[..., Any]:
        return partial(self, owner)

    def __call__(self, *arguments: Any) -> Any:
        if self._is_first:
            self._is_first = False
            raise torch.OutOfMemoryError("of this test")
        return self._method(*arguments)


def failed(rank: int, mesh: Any) -> None:
    """A gather that fails, on one rank before it is in the copy and on the other after, leaves no copies that differ.

    Nor does a program that goes on without reset_iter_state() compute with whatever lies in memory.
    """
    for form in FORMS:
        model = trained(mesh, form, 3)
        with pytest.MonkeyPatch.context() as patched:
            where, name = ((Message, "read_few"), (Pieces, "spread"))[rank]
            patched.setattr(where, name, RunsOut(getattr(where, name)))
            with pytest.raises(torch.OutOfMemoryError):
                loss_of(model, 3)
        assert loss_of(model, 3).isnan()
        model.reset_iter_state()
        train(model, adam(model), range(4, 6))
        assert all(torch.equal(*gathered(each)) for each in unsharded(model)), form
        assert all(each.isfinite().all() for each in unsharded(model))


def by_dcp(rank: int, mesh: Any) -> None:
    """torch.distributed.checkpoint loads into what state_dict() gives before the first gather."""
    model, again = trained(mesh, INT4, 3), hc.compress(sharded(mesh), C.dense(), parameters=INT4)
    folder = [TemporaryDirectory() if rank == 0 else None]
    name = [folder[0].name if folder[0] is not None else ""]
    dist.broadcast_object_list(name, 0)
    dcp.save({"compression": hc.state_dict(model)}, checkpoint_id=name[0])
    state = {"compression": hc.state_dict(again)}
    dcp.load(state, checkpoint_id=name[0])
    again.load_state_dict(model.state_dict())
    hc.load_state_dict(again, state["compression"])
    assert all(torch.equal(*pair) for pair in zip(unsharded(model), unsharded(again), strict=True))
    dist.barrier()
    fresh = hc.state_dict(hc.compress(sharded(mesh), C.dense(), parameters=INT4))
    hc.load_state_dict(again, fresh)
    for mine, true in zip(unsharded(again), again.blocks.parameters(), strict=True):
        assert torch.equal(mine, true.full_tensor()), "what was saved before the first gather is nothing"


def loaded_on_one_rank(rank: int, mesh: Any) -> None:
    """What one rank alone loads, all gather exactly: nobody waits."""
    model = trained(mesh, INT4, 3)
    if rank == 0:
        model.blocks[0][0].load_state_dict(model.blocks[0][0].state_dict())
        hc.load_state_dict(model, hc.state_dict(model))
    for mine, true in zip(unsharded(model), model.blocks.parameters(), strict=True):
        assert (mine - true.full_tensor()).norm() <= 0.01 * mine.norm()
        assert torch.equal(*gathered(mine))


def written_by_hand(rank: int, mesh: Any) -> None:
    """Far weights, as of another model, arrive exactly; near ones, as of an average, nearly, and soon closer."""
    model, other = trained(mesh, INT4, 3), sharded(mesh)
    for scale, limit in ((3.0, 0.0), (1.1, 0.02)):
        with torch.no_grad():
            for each, theirs in zip(model.parameters(), other.parameters(), strict=True):
                local(each).copy_(scale * local(theirs))
        errors = []
        for _ in range(4):
            mine, true = unsharded(model)[0], model.blocks[0][0].weight.full_tensor()
            errors.append(float((mine - true).norm() / true.norm()))
        assert errors[0] <= limit
        assert errors[-1] <= errors[0] / 50
