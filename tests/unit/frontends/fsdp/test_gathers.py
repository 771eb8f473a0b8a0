"""Parameters that FSDP gathers in few bits: what they are, what is sent, and what is refused."""

from __future__ import annotations

import tests.unit.frontends.fsdp.supported  # noqa: F401

# isort: split

import gc
import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

import hvd_compress
import hvd_compress.fsdp as hc
from hvd_compress.errors import CommunicationError, ConfigError, UnsupportedError
from hvd_compress.frontends.fsdp.api import SEARCH_STEPS
from hvd_compress.frontends.fsdp.by_hosts import HostGather, peers
from hvd_compress.frontends.fsdp.gather_search import GatherSearch
from hvd_compress.frontends.fsdp.gathers import SEARCHED, Gathers, for_gathers
from hvd_compress.frontends.fsdp.messages import Message
from hvd_compress.frontends.fsdp.pieces import Pieces
from tests.logged import events_of
from tests.unit.frontends.ddp.job import run_ranks
from tests.unit.frontends.fsdp.rounded import install, is_few
from tests.unit.frontends.fsdp.training import (
    BLOCKS,
    FORMS,
    Model,
    adam,
    gathered,
    gathering,
    gradients,
    local,
    loss_of,
    mesh_of,
    parameters,
    resumed,
    sharded,
    train,
)

C, CPU = hc.Compression, torch.device("cpu")
INT4 = hc.differences(C.int4())
BITS = {C.bf16(): 16.0, C.int8(): 8.25, C.int4(): 4.25}


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


def test_two_ranks() -> None:
    run_ranks(check_two, ranks=2)


def check_two(rank: int) -> None:
    mesh = mesh_of(2)
    checks = (
        as_rounded, counts_bytes, gathers_no_more, reports, leaves_weights_exact, kept_by_fsdp, uneven, exact_by_name,
        frozen, evaluates, in_bf16, offloaded, not_finite, loaded, resumes, of_another_mesh, tied, refusals, searches,
        searches_nothing, explicit, shared, held, failed, loaded_on_one_rank, written_by_hand, by_dcp,
    )  # fmt: skip
    for check in checks:
        check(rank, mesh)


@contextmanager
def watched() -> Iterator[list[tuple[int, bool]]]:
    """Yield the bytes that this rank brings to each gather of the block, and whether it is in a backward pass."""
    found: list[tuple[int, bool]] = []

    def watch(call: Callable[..., Any]) -> Callable[..., Any]:
        def seen(first: Any, own: torch.Tensor, *arguments: Any, **options: Any) -> Any:
            found.append((own.nbytes, torch._C._current_graph_task_id() != -1))
            return call(first, own, *arguments, **options)

        return seen

    with pytest.MonkeyPatch.context() as patched:
        for where, name in ((dist, "all_gather_into_tensor"), (dist, "all_gather_single"), (HostGather, "start")):
            if hasattr(where, name):
                patched.setattr(where, name, watch(getattr(where, name)))
        yield found


def trained(mesh: Any, form: Any, steps: int = 6, **options: Any) -> Any:
    model = hc.compress(sharded(mesh, **options), C.dense(), parameters=form)
    train(model, adam(model), range(steps))
    return model


def as_rounded(rank: int, mesh: Any) -> None:
    """Training is that of weights which each rank has rounded after FSDP's own gather, to the bit."""
    for form in FORMS:
        plain = install(sharded(mesh), form)
        train(plain, adam(plain), range(6))
        assert torch.equal(parameters(trained(mesh, form)), parameters(plain)), form
    exact = sharded(mesh)
    train(exact, adam(exact), range(6))
    assert torch.equal(parameters(trained(mesh, C.dense())), parameters(exact))
    assert not torch.equal(parameters(trained(mesh, C.bf16())), parameters(exact))


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


def unsharded(model: Any) -> list[torch.Tensor]:
    """Return blocks' parameters as they are gathered."""
    found = []
    for block in model.blocks:
        block.unshard()
        found += [each.detach().clone() for each in block.parameters()]
        block.reshard()
    return found


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


def shared(rank: int, mesh: Any) -> None:
    """Modules that fully_shard() was given together are one group, whose weights are tied to nothing."""
    model: Any = nn.Sequential(nn.Linear(96, 96), nn.LayerNorm(96), nn.Linear(96, 96))
    fully_shard([model[1], model[2]], mesh=mesh)
    hc.compress(fully_shard(model, mesh=mesh), C.dense(), parameters=C.int8())
    model(torch.ones(2, 96)).sum().backward()
    report = hc.of(model).last_step
    assert 8.25 / 32 < report.parameter_bytes / report.dense_parameter_bytes < 9 / 32


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
    state = model.state_dict()
    if rank == 0:
        model.blocks[0][0].load_state_dict(model.blocks[0][0].state_dict())
        hc.load_state_dict(model, hc.state_dict(model))
    for mine, true in zip(unsharded(model), model.blocks.parameters(), strict=True):
        assert (mine - true.full_tensor()).norm() <= 0.01 * mine.norm()
        assert torch.equal(*gathered(mine))
    model.load_state_dict(state)


def written_by_hand(rank: int, mesh: Any) -> None:
    """Far weights, as of another model, arrive exactly; near ones, as of an average, nearly, and soon closer."""
    model, other = trained(mesh, INT4, 3), sharded(mesh)
    kept = [local(each).clone() for each in model.parameters()]
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
    with torch.no_grad():
        for each, before in zip(model.parameters(), kept, strict=True):
            local(each).copy_(before)


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


def refused(error: type[Exception], words: str, call: Callable[[], Any]) -> None:
    with pytest.raises(error, match=words) as caught:
        call()
    assert type(caught.value) is error


def refusals(rank: int, mesh: Any) -> None:
    def asked(model: Any, form: Any = FORMS[0], **options: Any) -> Callable[[], Any]:
        return lambda: hc.compress(model, C.dense(), parameters=form, **options)

    refused(ConfigError, r"exact= names 'head\.w', and no parameter", asked(sharded(mesh), exact=["head.w"]))
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
        r"gathered as torch\.bfloat16, torch\.float32: call fully_shard\(\) for modules of one dtype",
        asked(sharded(mesh, mp_policy=policy)),
    )
    late = hc.compress(sharded(mesh), C.dense(), parameters=C.int8()).bfloat16()
    refused(UnsupportedError, r"convert the model before compress\(\)", lambda: loss_of(late, 0))
    twice = hc.compress(sharded(mesh), C.dense(), parameters=C.int8())
    assert hc.compress(twice, C.dense(), parameters=C.int8()) is twice
    refused(hvd_compress.errors.UsageError, "shard a new model", asked(twice, INT4))


def searches(rank: int, mesh: Any) -> None:
    """auto() takes the form with the shortest steps, and the one that loses least of those that are as short."""
    for taken_s, expected in (
        ((3.0, 2.0, 1.0 + 1.5 * rank), 1),  # the slowest rank counts
        ((3.0, 2.0, 1.0), 2),
        ((1.02, 1.01, 1.0), 0),
    ):
        used: list[int] = []
        now = [0.0]
        search = GatherSearch(["dense", "bf16", "int8"], used.append, mesh.get_group(), CPU, 2, lambda: now[0])  # noqa: B023
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
    assert hc.of(model).front.gathers().search.reason
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


def test_ranks_that_ask_for_different_gathers() -> None:
    told = run_ranks(differing, ranks=2)
    for words in told:
        assert "int8 in blocks of 64; blocks.* exactly on rank 1; pass" in words.pop(2)
        assert "int8 in blocks of 64 on rank 0, int4 in blocks of 64 on rank 1; pass the same" in words[0]
        assert "int8 in blocks of 64 on rank 0, as FSDP does on rank 1" in words[1]
    assert "rank 1 has not arrived at compress()" in told[0][2]


def differing(rank: int) -> list[str]:
    mesh = mesh_of(2)
    told = []
    for other, exact in ((C.int4(), ()), (None, ()), (C.int8(), ["blocks.*"])):
        options = {"parameters": C.int8()} if rank == 0 else {"parameters": other, "exact": exact}
        model = hc.compress(sharded(mesh), C.dense(), **options)
        with pytest.raises(ConfigError) as caught:
            loss_of(model, 0)
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


@pytest.mark.level2
def test_four_ranks() -> None:
    run_ranks(check_four, ranks=4)


def check_four(rank: int) -> None:
    over_hosts(rank)
    for form in FORMS:
        within_a_host(rank, form)
        among_replicas(rank, form)
    replicas_that_differ(rank)
    replicas_that_search(rank)


def over_hosts(rank: int) -> None:
    """Each rank gets the messages of all, however they lie on hosts."""
    for hosts in ("aabb", "abbb", "abab", "aaaa", "abcd"):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("hvd_compress.frontends.fsdp.by_hosts.host_identity", lambda: hosts[rank])  # noqa: B023
            gather = HostGather(dist.group.WORLD)  # type: ignore[arg-type]
        messages = [torch.arange(5, dtype=torch.uint8) + 16 * each for each in range(4)]
        expected = torch.stack(messages)
        if rank % 2:  # one after another, and both at once, as by prefetch
            found = [gather.start(messages[rank] + more)() for more in range(2)]
        else:
            found = [wait() for wait in [gather.start(messages[rank] + more) for more in range(2)]]
        for more, each in enumerate(found):
            assert torch.equal(each, expected + more), hosts


@pytest.mark.parametrize(
    ("hosts", "own", "across", "within"),
    [
        ([7, 7, 8, 8], 1, [3], [0]),
        ([7, 7, 8, 8, 9, 9], 2, [0, 4], [3]),
        ([7, 8, 9], 1, [0, 2], []),
        ([7, 7, 7], 1, [], [0, 2]),
        ([7, 8, 8], 1, [0, 2], []),
        ([7, 8, 7, 8], 0, [1, 2, 3], []),
    ],
)
def test_a_message_crosses_a_line_once(hosts: list[int], own: int, across: list[int], within: list[int]) -> None:
    assert peers(hosts, own) == (across, within)


def within_a_host(rank: int, form: Gathers) -> None:
    """With reshard_after_forward=2 the backward pass gathers what was rounded, over 2 ranks, as it is."""
    mesh = mesh_of(4)
    plain = install(sharded(mesh, reshard_after_forward=2), form)
    train(plain, adam(plain), range(4))
    model = trained(mesh, form, 4, reshard_after_forward=2)
    assert (parameters(model) - parameters(plain)).norm() < 1e-5 * parameters(plain).norm(), "sums in another order"
    with watched() as found:
        loss_of(model, 4).backward()
    assert sum(place for _, place in found) == BLOCKS + 1, "the root module, too"
    report, few = hc.of(model).last_step, max(size for size, place in found if not place)
    if not form.of_differences:
        blocks = sum(each.numel() for each in model.blocks.parameters())
        assert 3 * 4 * blocks / 4 + 4 * blocks / 2 < report.dense_parameter_bytes < 1.1 * 5 * blocks
        assert 3 * 8.25 / 8 * blocks / 4 + 4 * blocks / 2 < report.parameter_bytes < 1.1 * 2.8 * blocks
    assert sum(size > 3 * few for size, place in found if place) == BLOCKS, "as they are"


def replicas_that_differ(rank: int) -> None:
    """Replicas gather apart, and compare how in their first exchange."""
    model = hc.compress(sharded(mesh_of(2, 2)), C.int8(), parameters=(C.int8(), C.int4())[rank // 2])
    words = rf"parameters gathered as int8 in blocks of 64 on rank {rank % 2} and .* int4 in blocks of 64 on rank "
    with pytest.raises(ConfigError, match=words):
        loss_of(model, 0).backward()


def replicas_that_search(rank: int) -> None:
    """The slowest rank counts, of whatever replica."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HVD_COMPRESS_ADAPT", "1")
        model = hc.compress(sharded(mesh_of(2, 2)), C.dense(), parameters=C.auto())
    search = hc.of(model).front.gathers().search
    now, exact = [0.0], SEARCHED[0].words

    def clock() -> float:
        form = next(name for name in hc.of(model).front.gathers().figures())
        now[0] += 1.0 if form == f"gathers/{exact}" or rank < 3 else 5.0  # few bits are slow on rank 3 alone
        return now[0]

    patched = pytest.MonkeyPatch()
    patched.setattr(search, "_clock", clock)
    for step in range(SEARCH_STEPS + 4 * 2 * len(SEARCHED)):
        loss_of(model, step).backward()
    assert search.choice == 0, search.reason


def among_replicas(rank: int, form: Gathers) -> None:
    """A replica's ranks gather within it, and replicas hold the same."""
    model = hc.compress(sharded(mesh_of(2, 2)), C.int4(), parameters=form)
    losses = train(model, adam(model), range(6))
    assert losses[-1] < losses[0]
    found = gathered(parameters(model))
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])
    assert hc.of(model).last_step.parameter_bytes < 0.4 * hc.of(model).last_step.dense_parameter_bytes
    assert gradients(model).isfinite().all()
