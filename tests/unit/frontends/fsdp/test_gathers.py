"""Parameters that FSDP gathers in few bits: what they are, what is sent, and what is refused."""

from __future__ import annotations

import tests.unit.frontends.fsdp.supported  # noqa: F401

# isort: split

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

import hvd_compress
import hvd_compress.fsdp as hc
from hvd_compress.errors import CommunicationError, ConfigError, UnsupportedError
from hvd_compress.frontends.fsdp.by_hosts import HostGather, peers
from hvd_compress.frontends.fsdp.gather_search import GatherSearch
from hvd_compress.frontends.fsdp.gathers import SEARCHED, Gathers, for_gathers
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
        (C.int8, ConfigError, r"call it, as in Compression.int8\(\)"),
    ],
)
def test_what_gathers_do_not_take(asked: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        for_gathers(asked)


@pytest.mark.parametrize("asked", [C.bf16(), C.dense(), C.auto()])
def test_differences_take_few_bits(asked: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"pass int4\(\) or int8\(\)"):
        hc.differences(asked)


def test_two_ranks() -> None:
    run_ranks(check_two, ranks=2)


def check_two(rank: int) -> None:
    mesh = mesh_of(2)
    checks = (
        as_rounded, counts_bytes, gathers_no_more, reports, leaves_weights_exact, kept_by_fsdp, uneven, exact_by_name,
        frozen, evaluates, in_bf16, offloaded, not_finite, loaded, resumes, of_another_mesh, tied, refusals, searches,
        searches_nothing, explicit,
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
    assert 0 <= report.parameter_bytes - one < 16 * 2 * BLOCKS, "backward passes send nothing"
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
        assert torch.equal(mine, true) == (number not in (4, 8)), "the first weights of two blocks"
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
        assert all(each[0].isnan().any() and not each[1].isnan().any() for each in [unsharded(model)[::4]])
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
    remembered["ranks"][next(iter(remembered["ranks"]))]["states"]["gathers"]["blocks.0"] = torch.zeros(3)
    with pytest.raises(ConfigError, match=r"the copy of blocks\.0 has 3 elements instead of"):
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
    refused(ConfigError, r"without parameters= all do", asked(sharded(mesh), None, exact=["head.*"]))
    refused(ConfigError, r"each rank has all parameters: leave it out", asked(sharded(mesh_of(2, 1))))
    own = sharded(mesh)
    own.blocks[1].set_custom_all_gather(install(sharded(mesh), FORMS[0]).blocks[0]._get_fsdp_state())
    refused(UnsupportedError, r"blocks\.1 is gathered by something else already", asked(own))
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
            search.end_step()
        assert used == [0] * 2 + [form for form in (0, 1, 2, 2, 1, 0) for _ in range(4)] + [expected]
        assert search.reason.startswith(["dense", "bf16", "int8"][expected] + ": the first within 3% of"), search.reason
        search.end_step()
        assert used[-1] == expected
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HVD_COMPRESS_ADAPT", "1")
        model = hc.compress(sharded(mesh), C.dense(), parameters=C.auto())
    shown = set()
    for step in range(3 + 4 * 2 * len(SEARCHED) + 2):
        loss_of(model, step).backward()
        shown |= {name for name in hc.of(model).metrics() if name.startswith("gathers/")}
    assert shown == {f"gathers/{form.words}" for form in SEARCHED}
    assert hc.of(model).front.gathers.search.reason
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


def test_ranks_that_ask_for_different_gathers() -> None:
    told = run_ranks(differing, ranks=2)
    for words in told:
        assert "int8 in blocks of 64 on rank 0, int4 in blocks of 64 on rank 1; pass the same" in words[0]
        assert "int8 in blocks of 64 on rank 0, as FSDP does on rank 1" in words[1]
    assert "rank 1 has not arrived at compress()" in told[0][2]


def differing(rank: int) -> list[str]:
    mesh = mesh_of(2)
    told = []
    for other in (C.int4(), None):
        model = hc.compress(sharded(mesh), C.dense(), parameters=C.int8() if rank == 0 else other)
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


def over_hosts(rank: int) -> None:
    """Each rank gets the messages of all, however they lie on hosts."""
    for hosts in ("aabb", "abbb", "abab", "aaaa", "abcd"):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("hvd_compress.frontends.fsdp.by_hosts.host_identity", lambda: hosts[rank])  # noqa: B023
            gather = HostGather(dist.group.WORLD)  # type: ignore[arg-type]
        messages = [torch.arange(5, dtype=torch.uint8) + 16 * each for each in range(4)]
        waits = [gather.start(messages[rank]), gather.start(messages[rank] + 1)]  # one beside another, as by prefetch
        for more, wait in enumerate(waits):
            assert torch.equal(wait(), torch.stack(messages) + more), hosts


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
    torch.testing.assert_close(parameters(model), parameters(plain), rtol=1e-5, atol=1e-6)
    with watched() as found:
        loss_of(model, 4).backward()
    assert sum(place for _, place in found) == BLOCKS + 1, "the root module, too"
    few = max(size for size, place in found if not place)
    assert sum(size > 3 * few for size, place in found if place) == BLOCKS, "as they are"


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
