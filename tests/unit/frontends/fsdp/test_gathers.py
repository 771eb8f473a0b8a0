"""Parameters that FSDP gathers in few bits: what they are, and what is sent."""

from __future__ import annotations

import tests.unit.frontends.fsdp.supported  # noqa: F401

# isort: split

import math
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

import hvd_compress
import hvd_compress.fsdp as hc
from hvd_compress.frontends.fsdp.gather_search import GatherSearch
from hvd_compress.frontends.fsdp.gathers import SEARCHED, for_gathers
from hvd_compress.frontends.fsdp.pieces import Pieces
from tests.logged import events_of
from tests.unit.frontends.ddp.job import run_ranks
from tests.unit.frontends.fsdp.gathered import INT4, C, trained, unsharded, watched
from tests.unit.frontends.fsdp.rounded import install, is_few
from tests.unit.frontends.fsdp.training import (
    BLOCKS,
    FORMS,
    adam,
    gathered,
    local,
    loss_of,
    mesh_of,
    parameters,
    sharded,
    train,
)

CPU = torch.device("cpu")
BITS = {C.bf16(): 16.0, C.int8(): 8.25, C.int4(): 4.25}


def test_two_ranks() -> None:
    run_ranks(check_all, ranks=2)


def check_all(rank: int) -> None:
    mesh = mesh_of(2)
    for check in (
        as_rounded,
        counts_bytes,
        gathers_no_more,
        reports,
        leaves_weights_exact,
        kept_by_fsdp,
        uneven,
        exact_by_name,
        frozen,
        evaluates,
        in_bf16,
        offloaded,
        searches,
        searches_nothing,
        explicit,
    ):
        check(rank, mesh)


def as_rounded(rank: int, mesh: Any) -> None:
    """Training is that of weights which each rank has rounded after FSDP's own gather, to the bit."""
    for form in (*FORMS, *map(for_gathers, (C.bf16(), C.int4())), hc.differences(C.int8(block=1024))):
        plain = install(sharded(mesh), form)
        train(plain, adam(plain), range(6))
        assert torch.equal(parameters(trained(mesh, form)), parameters(plain)), form
    exact = sharded(mesh)
    train(exact, adam(exact), range(6))
    assert torch.equal(parameters(trained(mesh, C.dense())), parameters(exact))


def counts_bytes(rank: int, mesh: Any) -> None:
    """Bits an element are those of the form; norms, biases and small parameters travel as they are."""
    few = sum(local(each).numel() for each in sharded(mesh).parameters() if is_few(each))
    others = sum(local(each).numel() for each in sharded(mesh).blocks.parameters() if not is_few(each))
    for request, bits in BITS.items():
        report = hc.of(trained(mesh, request)).last_step
        blocks = 2 * (few * bits / 8 + 4 * others)  # each pass; the root module, which is all exact, once
        root = sum(-(-each.shape[0] // 2) * each[0].numel() for each in root_of(sharded(mesh)))
        assert 0 <= report.parameter_bytes - (blocks + 4 * root) < 16 * 2 * 2 * BLOCKS, request
        assert report.dense_parameter_bytes == 4 * (2 * (few + others) + root)
    model = trained(mesh, INT4)
    report, one = hc.of(model).last_step, few * 4.25 / 8 + 4 * others + 4 * root
    assert 0 <= report.parameter_bytes - one < (16 + 16 * 2) * BLOCKS, "backward passes send nothing"
    assert report.dense_parameter_bytes == 4 * (2 * (few + others) + root)


def root_of(model: Any) -> list[torch.Tensor]:
    return [*model.embed.parameters(), *model.head.parameters()]


def gathers_no_more(rank: int, mesh: Any) -> None:
    """There is no gather that FSDP itself would not do; with differences none in a backward pass."""
    plain = sharded(mesh)
    train(plain, adam(plain), range(2))
    with watched() as expected:
        loss_of(plain, 2).backward()
    for form in (C.int8(), INT4):
        model = trained(mesh, form, 2)
        with watched() as found:
            loss_of(model, 2).backward()
        forward = [place for _, place in expected if not place]
        places = [place for _, place in found]
        assert places == ([place for _, place in expected] if form == C.int8() else forward)


def reports(rank: int, mesh: Any) -> None:
    """In last_step, metrics and the log bytes of parameters stand apart from those of gradients."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setenv("HVD_COMPRESS_LOG", str(Path(folder, "log.jsonl")))
        model = hc.compress(sharded(mesh), C.int4(), parameters=C.int8())
        train(model, adam(model), range(4))
        report, metrics = hc.of(model).last_step, hvd_compress.of(model).metrics()
        assert metrics["parameter_bytes"] == report.parameter_bytes > report.sent_bytes > 0
        assert metrics["dense_parameter_bytes"] == report.dense_parameter_bytes
        assert metrics["gathers/int8 in blocks of 64"] == 1
        if rank == 0:
            (last,) = [each for each in events_of(Path(folder, "log.jsonl")) if each.kind == "metrics"][-1:]
            assert last.figures["parameter_bytes"] == report.parameter_bytes
    assert hc.of(hc.compress(sharded(mesh), C.int4())).metrics() == {}
    model = hc.compress(sharded(mesh), C.int4())
    loss_of(model, 0).backward()
    assert hc.of(model).last_step.parameter_bytes == 0
    assert "parameter_bytes" not in hc.of(model).metrics()


def leaves_weights_exact(rank: int, mesh: Any) -> None:
    """Ranks compute with the same rounded weights, this rank's own among them, and optimize exact shards."""
    for form in FORMS:
        model = trained(mesh, form)
        exact = [each.full_tensor() for each in model.blocks[0].parameters()]
        model.blocks[0].unshard()
        whole = [each.detach().clone() for each in model.blocks[0].parameters()]
        model.blocks[0].reshard()
        for mine, true in zip(whole, exact, strict=True):
            theirs = gathered(mine)
            assert torch.equal(theirs[0], theirs[1])
            assert torch.equal(mine, true) != is_few(true)
            assert (mine - true).norm() < 0.01 * true.norm()
        again = [each.full_tensor() for each in model.blocks[0].parameters()]
        assert all(torch.equal(before, after) for before, after in zip(exact, again, strict=True))


def kept_by_fsdp(rank: int, mesh: Any) -> None:
    """What FSDP keeps between the passes is gathered once, and is the same."""
    for form in FORMS:
        once, twice = (trained(mesh, form, reshard_after_forward=reshards) for reshards in (False, True))
        assert torch.equal(parameters(once), parameters(twice))
        reports = [hc.of(each).last_step for each in (once, twice)]
        assert reports[1].dense_parameter_bytes == 2 * reports[0].dense_parameter_bytes
        assert (reports[1].parameter_bytes == 2 * reports[0].parameter_bytes) != form.of_differences


class Uneven(nn.Module):
    """Of which no parameter is cut into equal shards."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(31, 101)
        self.blocks = nn.ModuleList([nn.Linear(101, 151), nn.Linear(151, 101)])
        self.head = nn.Linear(101, 57)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.embed(words)
        for block in self.blocks:
            found = torch.tanh(block(found))
        found = self.head(found)
        return found[..., :31]


def uneven(rank: int, mesh: Any) -> None:
    for form in FORMS:
        found = []
        for request in (None, C.dense()):
            torch.manual_seed(0)
            model: Any = Uneven()
            for module in (*model.blocks, model):
                fully_shard(module, mesh=mesh)
            model = install(model, form) if request is None else hc.compress(model, request, parameters=form)
            losses = train(model, adam(model), range(4))
            found.append(parameters(model))
        assert losses[-1] < losses[0]
        assert torch.equal(*found)


def exact_by_name(rank: int, mesh: Any) -> None:
    model = hc.compress(sharded(mesh), C.dense(), parameters=C.int8(), exact=["blocks.0.*", "blocks.?.2.weight"])
    plain = sharded(mesh)
    for each in (model, plain):
        loss_of(each, 0).backward()
    for number, (mine, true) in enumerate(zip(unsharded(model), unsharded(plain), strict=True)):
        assert torch.equal(mine, true) == (number not in (6, 12)), "the first weights of two blocks"
    dense = hc.of(model).last_step.dense_parameter_bytes
    assert 0.6 * dense < hc.of(model).last_step.parameter_bytes < 0.8 * dense


def frozen(rank: int, mesh: Any) -> None:
    """Modules that are not trained are gathered in few bits, too."""
    model = sharded(mesh)
    model.blocks[0].requires_grad_(False)
    hc.compress(model, C.dense(), parameters=C.int8())
    losses = train(model, adam(model), range(4))
    assert losses[-1] < losses[0]
    report = hc.of(model).last_step
    assert report.parameter_bytes < 0.4 * report.dense_parameter_bytes


def evaluates(rank: int, mesh: Any) -> None:
    """Without gradients before the first step, and in inference mode after others, where a copy is made, too."""
    words = torch.arange(8).view(2, 4)
    for form in FORMS:
        model = hc.compress(sharded(mesh), C.dense(), parameters=form)
        with torch.no_grad():
            first = model(words)
            torch.testing.assert_close(model(words), first, rtol=0.02, atol=0.02)
        losses = train(model, adam(model), range(4))
        assert losses[-1] < losses[0]
        model.load_state_dict(model.state_dict())
        with torch.inference_mode():
            assert not torch.equal(model(words), first)
        train(model, adam(model), range(4, 5))


def in_bf16(rank: int, mesh: Any) -> None:
    """Gathered as bf16: as many bits, and copies of half the memory."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for form in FORMS:
        plain = install(sharded(mesh, mp_policy=policy), form)
        train(plain, adam(plain), range(3))
        model = trained(mesh, form, 3, mp_policy=policy)
        assert torch.equal(parameters(model), parameters(plain))
    state = hc.state_dict(model)["ranks"]
    assert {each.dtype for own in state.values() for each in own["states"]["gathers"].values()} == {torch.bfloat16}


def offloaded(rank: int, mesh: Any) -> None:
    """With parameters on the host, as CPUOffloadPolicy has them."""
    model = trained(mesh, C.int8(), offload_policy=CPUOffloadPolicy(pin_memory=False))
    assert torch.equal(parameters(model), parameters(trained(mesh, C.int8())))


def searches(rank: int, mesh: Any) -> None:
    """auto() takes the form with the shortest steps, and the one that loses least of those that are as short."""
    for taken_s, expected in (
        ((3.0, 2.0, 1.0 + 1.5 * rank), 1),  # the slowest rank counts
        ((3.0, 2.0, 1.0), 2),
        ((1.02, 1.01, 1.0), 0),
    ):
        used: list[int] = []
        now = [0.0]
        search = GatherSearch(
            ["dense", "bf16", "int8"], used.append, mesh.get_group(), CPU, 2, partial(now.__getitem__, 0)
        )
        while search.choice is None:
            first_of_a_window = used[-2:-1] != used[-1:]
            now[0] += 100.0 if first_of_a_window else taken_s[used[-1]]
            search.end_step(list)
        assert used == [0] * 2 + [form for form in (0, 1, 2, 2, 1, 0) for _ in range(4)] + [expected]
        assert search.reason.startswith(["dense", "bf16", "int8"][expected] + ": the first within 3% of"), search.reason
        search.end_step(list)
        assert used[-1] == expected
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HVD_COMPRESS_ADAPT", "1")
        model = hc.compress(sharded(mesh), C.dense(), parameters=C.auto())
    shown = set()
    for step in range(3 + 4 * 2 * len(SEARCHED) + 1):
        loss_of(model, step).backward()
        shown |= {name for name in hc.of(model).metrics() if name.startswith("gathers/")}
    assert shown == {f"gathers/{form.words}" for form in SEARCHED}
    assert {f"step_s_of_gathers/{form.words}" for form in SEARCHED} < set(hc.of(model).metrics())
    (last,) = (name for name in hc.of(model).metrics() if name.startswith("gathers/"))
    assert len(set(gathered(last))) == 1  # type: ignore[arg-type]


def searches_nothing(rank: int, mesh: Any) -> None:
    """Where nothing may be measured, what sends the fewest bytes is taken."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HVD_COMPRESS_ADAPT", "0")
        model = trained(mesh, C.auto(), 2)
    assert hc.of(model).metrics()["gathers/int8 in blocks of 64"] == 1


def explicit(rank: int, mesh: Any) -> None:
    """With FSDP's explicit prefetching, forward and backward."""
    for form in FORMS:
        model = hc.compress(sharded(mesh), C.dense(), parameters=form)
        blocks = list(model.blocks)
        for first, then in pairwise(blocks):
            first.set_modules_to_forward_prefetch([then])
            then.set_modules_to_backward_prefetch([first])
        train(model, adam(model), range(6))
        assert torch.equal(parameters(model), parameters(trained(mesh, form)))


def test_small_parameters_and_vectors_travel_as_they_are() -> None:
    def shard(name: str, *shape: int) -> Any:
        return SimpleNamespace(name=name, numel=math.prod(shape) // 2, parameter=torch.empty(shape))

    group: Any = SimpleNamespace(
        every=[
            shard("norm", 8192),
            shard("small", 5, 819),
            shard("a.weight", 64, 64),
            shard("b.weight", 64, 65),
            shard("embed.weight", 64, 80),
        ]
    )
    small, one, two = 4096 + 5 * 819 // 2, 2048, 2080
    pieces = Pieces.of(group, ["embed.*"])
    assert pieces.few == (slice(small, small + one + two),)
    assert pieces.exact == (slice(0, small), slice(small + one + two, small + one + two + 2560))
    assert (pieces.few_numel, pieces.exact_numel) == (one + two, small + 2560)
