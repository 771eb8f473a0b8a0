"""What a compressed DDP model remembers: in mixed precision, where gradients are not finite, and in checkpoints."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import hvd_compress.ddp as hc
from hvd_compress.errors import ConfigError
from tests.harness import remembered, use
from tests.unit.frontends.ddp.job import run_ranks
from tests.unit.frontends.ddp.training import (
    BROUGHT,
    Given,
    batch,
    check_ranks_equal,
    compressed,
    flat,
    loss_of,
    make_model,
    optimizer_of,
    train,
)

METHODS = ("star", "allgather", "efsign", "powersgd", "int8", "int4", "onebit", *BROUGHT, "momentum", "demo")
"""All with error feedback."""


def residuals(ddp: DistributedDataParallel) -> torch.Tensor:
    return torch.cat(list(remembered(hc.state_dict(ddp))["residuals"].values()))


def test_a_step_that_is_not_finite_changes_nothing() -> None:
    run_ranks(overflow)


def overflow(rank: int) -> None:
    for name in METHODS:
        ddp = compressed(make_model(), name)
        optimizer, scaler = optimizer_of(ddp), torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
        hc.of(ddp).follow_loss_scale(scaler)
        for step in range(8):
            factor = float("inf") if (rank, step) == (1, 2) else 1.0
            before, left, scale = flat(ddp), residuals(ddp) if step else None, scaler.get_scale()
            optimizer.zero_grad()
            scaler.scale(factor * loss_of(ddp, rank, step)).backward()
            if step == 2:
                assert not hc.of(ddp).last_step.finite
                assert torch.equal(residuals(ddp), left), name
            else:
                assert hc.of(ddp).last_step.finite
            scaler.step(optimizer)
            scaler.update()
            if step == 2:
                assert torch.equal(flat(ddp), before), name
                assert scaler.get_scale() == scale / 2
                assert torch.equal(residuals(ddp), left / 2), "in the units of the new scale"
            elif step == 5:
                assert scaler.get_scale() == scale * 2
            check_ranks_equal(ddp, step)
        assert hc.of(ddp).last_step.nonfinite_steps == 1
        assert hc.state_dict(ddp)["loss_scale"] == 1024.0
        assert residuals(ddp).abs().sum() > 0


def test_a_step_that_is_dropped_changes_nothing() -> None:
    run_ranks(drop_spike)


def drop_spike(rank: int) -> None:
    for name in METHODS:
        ddp = compressed(make_model(), name)
        optimizer = optimizer_of(ddp)
        for step in range(3):
            optimizer.zero_grad()
            loss_of(ddp, rank, step).backward()
            optimizer.step()
        left = residuals(ddp)
        optimizer.zero_grad()
        (1000 * loss_of(ddp, rank, 3)).backward()
        assert not torch.equal(residuals(ddp), left), name
        hc.of(ddp).drop_step()
        assert torch.equal(residuals(ddp), left), name


def test_a_step_that_is_dropped_is_noticed() -> None:
    run_ranks(notice)


def notice(rank: int) -> None:
    programs = (skips_a_loss, attacks, spikes_in_mixed_precision, accumulates_and_drops)
    for name, program in zip((*METHODS, "topk", "auto"), cycle(programs), strict=False):
        said, noticed = (trained_by(program, name, rank, says) for says in (True, False))
        assert torch.equal(*map(flat, (said, noticed))), (name, program.__name__)
        assert torch.equal(*map(residuals, (said, noticed))), (name, program.__name__)
        check_ranks_equal(noticed, 8)


Program = Callable[[DistributedDataParallel, torch.optim.Optimizer, int, int, Callable[[], None]], None]


def trained_by(program: Program, name: str, rank: int, says: bool) -> DistributedDataParallel:
    ddp = compressed(make_model(), name)
    optimizer = optimizer_of(ddp)
    train(ddp, optimizer, rank, range(1))
    for step in range(8):
        program(ddp, optimizer, rank, step, lambda: hc.of(ddp).drop_step() if says else None)
    optimizer.zero_grad()
    loss_of(ddp, rank, 8).backward()  # without it, nobody would have noticed the last one
    return ddp


def skips_a_loss(
    ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, rank: int, step: int, drop: Callable[[], None]
) -> None:
    """After backward(); gradients stay zeros or become None, in turn."""
    is_spike = step in (0, 4, 5)
    optimizer.zero_grad(set_to_none=step % 2 == 0)
    ((1000 if is_spike else 1) * loss_of(ddp, rank, step)).backward()
    if is_spike:
        drop()
    else:
        optimizer.step()


def attacks(
    ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, rank: int, step: int, drop: Callable[[], None]
) -> None:
    """By a gradient of the images, as in adversarial training."""
    images, labels = batch(rank, step)
    images.requires_grad_()
    (100 * functional.cross_entropy(ddp(images), labels)).backward()
    drop()
    optimizer.zero_grad()
    functional.cross_entropy(ddp((images + 0.1 * images.grad.sign()).detach()), labels).backward()
    optimizer.step()


def spikes_in_mixed_precision(
    ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, rank: int, step: int, drop: Callable[[], None]
) -> None:
    """Each step accumulates over two passes; a scaler skips one that is not finite, the program one that is large."""
    if step == 0:
        ddp.scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
        hc.of(ddp).follow_loss_scale(ddp.scaler)
    factor = {2: float("inf"), 4: 1000.0}.get(step, 1.0)
    optimizer.zero_grad()
    with ddp.no_sync():
        ddp.scaler.scale(factor * loss_of(ddp, rank, step)).backward()
    ddp.scaler.scale(factor * loss_of(ddp, rank, step + 100)).backward()
    ddp.scaler.unscale_(optimizer)
    if step == 4:
        drop()
    else:
        ddp.scaler.step(optimizer)
    ddp.scaler.update()


def accumulates_and_drops(
    ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, rank: int, step: int, drop: Callable[[], None]
) -> None:
    """Two exchanges add to one gradient, by which the optimizer moves some parameters; a third is dropped."""
    optimizer.zero_grad()
    for micro in (0, 1):
        loss_of(ddp, rank, step + 100 * micro).backward()
    for parameter in list(ddp.parameters())[: step % 5]:
        parameter.grad = None  # the optimizer leaves them out
    optimizer.step()
    optimizer.zero_grad()
    (1000 * loss_of(ddp, rank, step)).backward()
    drop()


def test_scaling_by_powers_of_two_changes_no_result() -> None:
    run_ranks(compare_scaled)


def compare_scaled(rank: int) -> None:
    for name in ("star", *BROUGHT, "momentum", "demo"):
        plain, scaled = compressed(make_model(), name), compressed(make_model(), name)
        optimizers = optimizer_of(plain), optimizer_of(scaled)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
        hc.of(scaled).follow_loss_scale(scaler)
        train(plain, optimizers[0], rank, range(8))
        for step in range(8):
            optimizers[1].zero_grad()
            scaler.scale(loss_of(scaled, rank, step)).backward()
            scaler.step(optimizers[1])
            scaler.update()
        assert scaler.get_scale() == 64.0
        assert torch.equal(flat(plain), flat(scaled)), name


def through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_to_resume_is_to_go_on_to_the_bit() -> None:
    run_ranks(resume)


@pytest.mark.level2
@pytest.mark.parametrize("options", [{}, {"static_graph": True}], ids=["plain", "static"])
def test_to_resume_is_to_go_on_also_where_ddp_cuts_its_buckets_anew(options: dict[str, bool]) -> None:
    """Its first step has other buckets, and what is rounded in blocks depends on them."""
    run_ranks(resume_cut, options)


def resume_cut(rank: int, options: dict[str, bool]) -> None:
    for name in METHODS:
        going = compressed(make_model(), name, **options)
        optimizer = optimizer_of(going)
        train(going, optimizer, rank, range(5))
        kept = through_a_file((going.module.state_dict(), optimizer.state_dict(), hc.state_dict(going)))
        train(going, optimizer, rank, range(5, 10))
        again = compressed(make_model(3), name, **options)
        anew = optimizer_of(again)
        again.module.load_state_dict(kept[0])
        anew.load_state_dict(kept[1])
        hc.load_state_dict(again, kept[2])
        train(again, anew, rank, range(5, 6))
        assert [list(names) for names in hc.of(again).decisions] == kept[2]["buckets"], "those of the run that goes on"
        train(again, anew, rank, range(6, 10))
        assert torch.equal(flat(again), flat(going)), name
        assert torch.equal(residuals(again), residuals(going)), name


@pytest.mark.level2
def test_a_rank_that_resumes_alone_cuts_as_the_others() -> None:
    run_ranks(resume_alone, ranks=2)


def resume_alone(rank: int) -> None:
    going = compressed(make_model(), "int8")
    optimizer = optimizer_of(going)
    train(going, optimizer, rank, range(3))
    again = compressed(going.module, "int8")
    if rank == 0:
        hc.load_state_dict(again, hc.state_dict(going))
    train(again, optimizer, rank, range(3, 6))
    check_ranks_equal(again, "resumed alone")
    assert hc.of(again).last_step.step == 5


def resume(rank: int) -> None:
    for name in METHODS:
        going = compressed(make_model(), name, find_unused_parameters=True)
        optimizer = optimizer_of(going)
        train(going, optimizer, rank, range(5))
        kept = copy.deepcopy((going.module.state_dict(), optimizer.state_dict(), hc.state_dict(going)))
        train(going, optimizer, rank, range(5, 10))
        # ranks have agreed on their step then, on which these depend
        for late in (False,) if name in ("star", *BROUGHT, "momentum") else (False, True):
            again = compressed(make_model(3), name, find_unused_parameters=True)
            anew = optimizer_of(again)
            if late:
                train(again, anew, rank, range(2))
            saved = through_a_file(kept)
            again.module.load_state_dict(saved[0])
            anew.load_state_dict(saved[1])
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                hc.load_state_dict(again, saved[2])
            train(again, anew, rank, range(5, 10))
            assert torch.equal(flat(again), flat(going)), f"{name}, loaded late: {late}"
            assert torch.equal(residuals(again), residuals(going)), name
            assert late or hc.of(again).last_step.step == 9


def test_the_checkpoint_of_one_rank_is_loaded_by_all() -> None:
    run_ranks(load_from_one)


def load_from_one(rank: int) -> None:
    for name in METHODS:
        ddp = compressed(make_model(), name)
        optimizer = optimizer_of(ddp)
        train(ddp, optimizer, rank, range(3))
        saved = [through_a_file(hc.state_dict(ddp)) if rank == 0 else None]  # the others need not do anything
        dist.broadcast_object_list(saved, 0)
        again = compressed(make_model(), name)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            hc.load_state_dict(again, saved[0])
        if rank == 0:
            assert not told
            assert torch.equal(residuals(again), residuals(ddp))
        else:
            assert [f"not loaded on rank {rank} of 3, which starts from zero" in str(w.message) for w in told] == [True]
            assert told[0].filename == __file__, "where it was called"
            assert not any(residual.any() for residual in remembered(hc.state_dict(again))["residuals"].values())
        again.module.load_state_dict(ddp.module.state_dict())
        optimizer = optimizer_of(again)
        train(again, optimizer, rank, range(3, 6))
        check_ranks_equal(again, name)
        assert hc.of(again).last_step.step == 5


GARBAGE = {
    "nothing": ({}, "not the state of a compression"),
    "another's": (torch.nn.Linear(2, 2).state_dict(), "not the state of a compression"),
    "no mapping": ("weights", "not the state of a compression"),
    "nothing at all": (None, "not the state of a compression"),
    "unknown parameter": ({"residuals": {"unknown": torch.zeros(3)}}, "parameter 'unknown'"),
    "other length": ({"residuals": {"0.weight": torch.zeros(3)}}, "'0.weight' has 3 elements instead of 533"),
    "no tensor": ({"residuals": {"0.weight": "lost"}}, "residuals of rank . of 2 are not what they should be"),
    "a step that is none": ({"step": -5}, "step are not what they should be"),
    "a rank that is none": ({"ranks": {True: {}}}, "ranks are not what they should be"),
    "no ranks": ({"ranks": {}}, "ranks are not what they should be"),
    "buckets of none": ({"buckets": [["0.weight", 7]]}, "buckets are not what they should be"),
    "a scale that is none": ({"loss_scale": float("nan")}, "loss_scale are not what they should be"),
    "no residuals": ({"residuals": 7}, "residuals of rank . of 2 are not what they should be"),
    "states of no kind": ({"states": ["q"], "step": "last"}, "step, states of rank . of 2 are not what they should be"),
    "NaN": ({"residuals": {"0.weight": torch.full((533,), float("nan"))}}, "the residual of '0.weight' is not finite"),
    "NaN in a state": ({"states": {"powersgd.q": {"0.weight": torch.tensor([float("nan")])}}}, "not finite"),
}
"""What is no state of this model, and what is told of it."""


@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_is_refused(what: str) -> None:
    run_ranks(load_garbage, what, ranks=2)


def load_garbage(rank: int, what: str) -> None:
    wrong, told = GARBAGE[what]
    ddp = compressed(make_model(), "powersgd")
    optimizer = optimizer_of(ddp)
    for steps in (0, 2):
        train(ddp, optimizer, rank, range(steps))
        good = hc.state_dict(ddp)
        bad = damaged(good, wrong)
        with pytest.raises(ConfigError, match=f"rank {rank}: .*{told}"):
            hc.load_state_dict(ddp, bad)
        kept = hc.state_dict(ddp)
        before, after = remembered(good)["residuals"], remembered(kept)["residuals"]
        assert after.keys() == before.keys()
        assert all(torch.equal(after[n], before[n]) for n in before)
    train(ddp, optimizer, rank, range(2, 4))
    check_ranks_equal(ddp, what)


def damaged(good: dict[str, Any], wrong: Any) -> Any:
    """Put what is wrong into the place of what is right."""
    if not isinstance(wrong, dict) or not wrong.keys() & {*good, "residuals", "states"}:
        return wrong
    ((name, own),) = good["ranks"].items()
    own = {key: wrong.get(key, value) for key, value in own.items()}
    return {**good, "ranks": {name: own}, **{key: value for key, value in wrong.items() if key in good}}


def test_the_state_of_another_model_is_refused() -> None:
    run_ranks(load_anothers)


def load_anothers(rank: int) -> None:
    other = compressed(Given(), "star")
    other(rank, 0).backward()
    ddp = compressed(make_model(), "star")
    for steps in (0, 1):
        train(ddp, optimizer_of(ddp), rank, range(steps))
        with pytest.raises(ConfigError, match=f"rank {rank}: a residual of parameter 'first_bias' was saved"):
            hc.load_state_dict(ddp, hc.state_dict(other))


def test_what_a_parameter_that_nobody_uses_still_owes_is_not_lost() -> None:
    """What was not sent of it waits until it is used again: nothing is lost."""
    run_ranks(owe, ranks=2)


class Sometimes(torch.nn.Module):
    """Uses its second weight in some steps only. The first is not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.always = torch.nn.Parameter(torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last))
        self.sometimes = torch.nn.Parameter(torch.zeros(40))

    def forward(self, factor: torch.Tensor, uses: bool) -> torch.Tensor:
        pattern = torch.arange(120.0).reshape(2, 3, 4, 5)
        loss = (self.always * pattern * factor).sum()
        return loss + (self.sometimes * torch.arange(1.0, 41.0) * factor).sum() if uses else loss


def owe(rank: int) -> None:
    for name in (*BROUGHT, "star", "dense"):
        ddp = compressed(Sometimes(), name, find_unused_parameters=True, bucket_cap_mb=0.0001)
        came = {n: torch.zeros_like(p) for n, p in ddp.module.named_parameters()}
        given = {n: torch.zeros_like(p) for n, p in ddp.module.named_parameters()}
        for step in range(9):
            uses = step in (1, 2, 3)
            for parameter in ddp.parameters():
                parameter.grad = None
            ddp(torch.tensor(1.0 + rank + step), uses).backward()
            given["always"] += torch.arange(120.0).reshape(2, 3, 4, 5) * (1.5 + step)
            given["sometimes"] += torch.arange(1.0, 41.0) * (1.5 + step) * uses
            for n, parameter in ddp.module.named_parameters():
                if parameter.grad is not None:
                    came[n] += parameter.grad
            use(ddp.parameters())
        left = remembered(hc.state_dict(ddp))["residuals"]
        for n, total in came.items():
            owed = left.get(n, torch.zeros(total.numel()))
            dist.all_reduce(owed)
            if n == "sometimes":
                torch.testing.assert_close(total.reshape(-1) + owed / 2, given[n].reshape(-1))
            else:  # the residual is in the order of memory
                torch.testing.assert_close(total.sum() + owed.sum() / 2, given[n].sum())
