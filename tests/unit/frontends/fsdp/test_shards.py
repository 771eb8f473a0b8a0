"""FSDP2 on a mesh of one dimension: compressed reduce-scatters."""

from __future__ import annotations

import tests.unit.frontends.fsdp.supported  # noqa: F401

# isort: split

import gc
import math
import threading
import weakref
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.utils.checkpoint import checkpoint

import hvd_compress.fsdp as hc
from hvd_compress.frontends.fsdp.exchange import ReduceScatterComm
from tests.logged import events_of
from tests.unit.frontends.ddp.job import LIMIT_S, run_ranks
from tests.unit.frontends.fsdp.training import (
    BITS,
    BLOCKS,
    FORMS,
    adam,
    assert_near,
    check_divided,
    check_gathered,
    check_given_up,
    compressed,
    end_loss,
    gathering,
    gradients,
    learned,
    local,
    loss_of,
    mesh_of,
    parameters,
    reduced_as_bf16,
    resumed,
    train,
    trained_in_parts,
)


def test_two_ranks() -> None:
    """One job for all: a process takes longer to begin than its checks."""
    run_ranks(check_all, ranks=2)


@pytest.mark.level2
def test_two_ranks_that_gather_few_bits() -> None:
    run_ranks(check_with_gathers, ranks=2)


def check_with_gathers(rank: int) -> None:
    for form in FORMS:
        with gathering(form):
            check_all(rank)


def check_all(rank: int) -> None:
    mesh = mesh_of(2)
    checks = (
        as_plain, layers_frozen_and_unfrozen, with_other_dtypes, accumulated, learns, resumes, gathers, overlaps,
        overflows, leaves_out, called_twice, checkpointed, orders, lets_go, logged, of_another_mesh, dropped,
        step_dropped, step_dropped_without_a_call, given_up, divided,
    )  # fmt: skip
    for check in checks:
        check(rank, mesh)


def as_plain(rank: int, mesh: Any) -> None:
    """What loses nothing trains as plain FSDP2, to the bit with two ranks; and clipping sees the same gradients."""
    plain, dense = compressed(mesh, None), compressed(mesh, hc.Compression.dense())
    expected = train(plain, adam(plain), range(4), clip=0.1)
    assert train(dense, adam(dense), range(4), clip=0.1) == expected
    assert torch.equal(parameters(dense), parameters(plain))
    assert hc.of(dense).last_step.finite
    names = [name for bucket in hc.of(dense).decisions for name in bucket]
    assert sorted(names) == sorted(name for name, _ in plain.named_parameters())
    assert len(hc.of(dense).decisions) == BLOCKS + 1


def layers_frozen_and_unfrozen(rank: int, mesh: Any) -> None:
    """What a module reduces changes between steps."""
    plain = parameters(trained_in_parts(mesh, None))
    assert torch.equal(parameters(trained_in_parts(mesh, hc.Compression.dense())), plain)
    model = trained_in_parts(mesh, hc.Compression.int8())
    assert 0 < (parameters(model) - plain).norm() < 0.02 * plain.norm()
    assert len(hc.of(model).decisions) == BLOCKS + 1
    assert "head.bias" not in {name for bucket in hc.of(model).decisions for name in bucket}


def with_other_dtypes(rank: int, mesh: Any) -> None:
    """Reduced as bf16, gathered as bf16: gradients are as plain FSDP2's, up to a rounding of bf16."""
    plain = reduced_as_bf16(mesh)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    int8 = compressed(mesh, hc.Compression.int8(), mp_policy=policy)
    loss_of(int8, 0).backward()
    assert_near(gradients(int8), plain)


def accumulated(rank: int, mesh: Any) -> None:
    """Without communication, and in sharded gradients, with clipping behind both."""
    found: dict[str, list[torch.Tensor]] = {}
    for name, request in {"plain": None, "dense": hc.Compression.dense(), "int8": hc.Compression.int8()}.items():
        model = compressed(mesh, request)
        for micro in range(3):
            model.set_requires_gradient_sync(micro == 2)
            loss_of(model, micro).backward()
        found[name] = [gradients(model)]
        model.set_is_last_backward(False)  # so that FSDP does not wait for them
        loss_of(model, 3).backward()  # a second exchange into the same gradients
        model.set_is_last_backward(True)
        found[name].append(gradients(model))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        found[name].append(gradients(model))
        if request is not None:
            assert hc.of(model).last_step.step == 1
    for plain, dense, int8 in zip(found["plain"], found["dense"], found["int8"], strict=True):
        torch.testing.assert_close(dense, plain, rtol=0, atol=0)
        assert_near(int8, plain)


def learns(rank: int, mesh: Any) -> None:
    """The loss of the last steps is as that of plain FSDP2, for few bits an element, the same on all ranks."""
    expected = end_loss(compressed(mesh, None))
    for bits in BITS:
        for feedback in (False, True):
            model = learned(mesh, bits, expected, feedback)
            assert {each.compressor.error_feedback for each in hc.of(model).decisions.values()} == {feedback}
            assert_remembers(hc.state_dict(model), feedback)
            shards = sum(-(-each.shape[0] // 2) * math.prod(each.shape[1:]) for each in model.parameters())
            assert hc.of(model).last_step.dense_bytes == 4 * shards, "what a reduce-scatter of two ranks sends"


def assert_remembers(state: dict[str, Any], feedback: bool) -> None:
    (own,) = state["ranks"].values()
    assert bool(own["residuals"]) == feedback
    assert all(residual.any() for residual in own["residuals"].values())


def gathers(rank: int, mesh: Any) -> None:
    check_gathered(mesh, ranks=2, feedback=True)


def resumes(rank: int, mesh: Any) -> None:
    """Interrupted and resumed it ends as uninterrupted, to the bit, with feedback and by the same random numbers."""
    for feedback in (True, False):
        whole, model, _ = resumed(mesh, BITS[4], feedback)
        assert torch.equal(parameters(model), parameters(whole)), feedback
        assert hc.of(model).last_step.step == 5


def overlaps(rank: int, mesh: Any) -> None:
    """A rank goes on with its backward pass while another has not come to the exchange."""
    model = compressed(mesh, hc.Compression.int4(), reshard_after_forward=False)
    train(model, adam(model), range(2))
    store, met = dist.distributed_c10d._get_default_store(), []

    def far(*_: Any) -> None:
        met.append(store.set("rank 0 is far", ""))

    def waits(*_: Any) -> None:
        met.append(store.wait(["rank 0 is far"]))

    if rank == 0:  # behind the exchanges of two blocks
        model.blocks[0][2].register_full_backward_pre_hook(far)
    else:  # before them
        model.blocks[-1][2].register_full_backward_pre_hook(waits)
    loss_of(model, 2).backward()
    assert len(met) == 1


def overflows(rank: int, mesh: Any) -> None:
    """What is not finite on one rank is seen on all, and nothing that is remembered has changed."""
    for request, feedback in ((hc.Compression.int4(), True), (hc.Compression.int8(), False)):
        model = compressed(mesh, request, feedback)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=100)
        hc.of(model).follow_loss_scale(scaler)
        optimizer = adam(model)
        for step in range(4):
            before, kept = parameters(model), hc.state_dict(model)["ranks"]
            optimizer.zero_grad()
            loss = loss_of(model, step) * (float("inf") if (rank, step) == (1, 2) else 1.0)
            scaler.scale(loss).backward()
            assert hc.of(model).last_step.finite == (step != 2)
            scaler.step(optimizer)
            scaler.update()
            assert torch.equal(parameters(model), before) == (step == 2)
            if step == 2 and feedback:
                (was,), (now,) = kept.values(), hc.state_dict(model)["ranks"].values()
                assert scaler.get_scale() == 128.0
                assert all(torch.equal(now["residuals"][n] * 2, r) for n, r in was["residuals"].items())
        assert hc.of(model).last_step.nonfinite_steps == 1


def step_dropped(rank: int, mesh: Any) -> None:
    """What a spike has left in residuals is forgotten."""
    model = compressed(mesh, hc.Compression.int4(), True)
    train(model, adam(model), range(2))
    (was,) = hc.state_dict(model)["ranks"].values()
    (1000 * loss_of(model, 2)).backward()
    (spiked,) = hc.state_dict(model)["ranks"].values()
    hc.of(model).drop_step()
    (now,) = hc.state_dict(model)["ranks"].values()
    assert not all(torch.equal(spiked["residuals"][n], r) for n, r in was["residuals"].items())
    assert all(torch.equal(now["residuals"][n], r) for n, r in was["residuals"].items())


def step_dropped_without_a_call(rank: int, mesh: Any) -> None:
    found = []
    for says in (True, False):
        model = compressed(mesh, hc.Compression.int4(), True)
        optimizer = adam(model)
        train(model, optimizer, range(2))
        for step in (2, 3):
            optimizer.zero_grad()
            (1000 * loss_of(model, step)).backward()
            if says:
                hc.of(model).drop_step()
        train(model, optimizer, range(4, 6))
        found.append(parameters(model))
    assert torch.equal(*found)


def divided(rank: int, mesh: Any) -> None:
    check_divided(mesh)


def given_up(rank: int, mesh: Any) -> None:
    """An error in a backward pass is caught on all ranks: they go on as if it had not been, to the bit."""
    for request, feedback in ((hc.Compression.dense(), False), (hc.Compression.int4(), True)):
        check_given_up(mesh, request, feedback)


def leaves_out(rank: int, mesh: Any) -> None:
    """What a step leaves out has a gradient of zeros, where FSDP is told so."""
    found = []
    for request in (None, hc.Compression.dense()):
        model = compressed(mesh, request)
        model.set_reduce_scatter_unused_params(True)
        train(model, adam(model), range(1))
        model.zero_grad()
        model.blocks[1].left_out = True
        loss_of(model, 1).backward()
        assert not local(model.blocks[1][0].weight.grad).any()
        found.append(gradients(model))
    assert torch.equal(*found)


def called_twice(rank: int, mesh: Any) -> None:
    """One backward pass of two forward passes."""
    found = []
    for request in (None, hc.Compression.dense()):
        model = compressed(mesh, request)
        (loss_of(model, 0) + loss_of(model, 1)).backward()
        found.append(gradients(model))
    assert torch.equal(*found)


def checkpointed(rank: int, mesh: Any) -> None:
    """A reentrant checkpoint has a backward pass of its own, at whose end other modules have no gradient yet."""
    for reentrant in (False, True):
        found = []
        for request in (None, hc.Compression.dense()):
            model = compressed(mesh, request)
            model.checkpoint = partial(checkpoint, use_reentrant=reentrant)
            train(model, adam(model), range(2))
            found.append(parameters(model))
        assert torch.equal(*found), reentrant


def orders(rank: int, mesh: Any) -> None:
    """After the first step buckets leave in the order in which their gradients come; resumed, from the first on."""
    model = compressed(mesh, hc.Compression.int4())
    model.is_reversed = True
    train(model, adam(model), range(1))
    assert [names[0] for names in hc.of(model).decisions][:BLOCKS] == [f"blocks.{n}.0.weight" for n in range(BLOCKS)]
    again = compressed(mesh, hc.Compression.int4())
    hc.load_state_dict(again, hc.state_dict(model))
    loss_of(again, 1).backward()
    assert list(hc.of(again).decisions) == list(hc.of(model).decisions)


def lets_go(rank: int, mesh: Any) -> None:
    """Unsharded gradients, which are the memory that FSDP saves, are not held beyond the backward pass."""
    model = compressed(mesh, hc.Compression.int4(), feedback=True)
    held, own = [], sum(local(each).numel() for each in model.blocks[0].parameters())
    allocate = ReduceScatterComm.allocate

    def watched(comm: ReduceScatterComm, size: Any, **options: Any) -> torch.Tensor:
        found = allocate(comm, size, **options)
        held.extend([weakref.ref(found)] if found.numel() > own else [])
        return found

    ReduceScatterComm.allocate = watched  # type: ignore[method-assign]
    loss_of(model, 0).backward()
    ReduceScatterComm.allocate = allocate  # type: ignore[method-assign]
    assert len(held) == BLOCKS
    assert not any(each() is not None for each in held)


def logged(rank: int, mesh: Any) -> None:
    """HVD_COMPRESS_LOG holds how each bucket travels, and its share of an uncompressed reduce-scatter."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setenv("HVD_COMPRESS_LOG", str(Path(folder, "log.jsonl")))
        model = compressed(mesh, hc.Compression.int4())
        train(model, adam(model), range(4))
        if rank == 0:
            events = events_of(Path(folder, "log.jsonl"))
            assert {event.candidate for event in events if event.kind != "metrics"} == {"reduce-scatter"}
            windows = [event for event in events if event.kind == "window"]
            assert [event.bucket for event in windows] == list(range(BLOCKS + 1))
            assert all(0.13 < event.wire_ratio < 0.15 for event in windows if event.wire_ratio is not None)


def of_another_mesh(rank: int, mesh: Any) -> None:
    """Residuals of shards that were cut otherwise are of other elements, though they may be as many."""
    model, again = (compressed(mesh, hc.Compression.int4(), feedback=True) for _ in range(2))
    loss_of(model, 0).backward()
    saved = hc.state_dict(model)
    (own,) = saved["ranks"].values()
    saved["ranks"] = {f"rank {each} of 4, 4 shards": own for each in range(4)}
    with pytest.warns(UserWarning, match=f"4 shards are not loaded on rank {rank} of 2, 2 shards, which starts from"):
        hc.load_state_dict(again, saved)
    (now,) = hc.state_dict(again)["ranks"].values()
    assert not any(residual.any() for residual in now["residuals"].values())


def dropped(rank: int, mesh: Any) -> None:
    """With a model go its exchange and the threads of that."""
    gc.collect()
    before = threading.active_count()
    model = compressed(mesh, hc.Compression.int4())
    loss_of(model, 0).backward()
    assert threading.active_count() > before
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None
    for thread in threading.enumerate():  # which end by themselves
        if thread.name.startswith("hvd-compress"):
            thread.join(LIMIT_S)
    assert threading.active_count() == before
