"""Synchronised rows that travel compressed: all gradients arrive, whatever the precision, and nothing else changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_compress.embedding import SGD, Adam, CachedEmbedding, Lookahead, RowOptimizer, Rules
from hvd_compress.embedding.exchange import Moved
from hvd_compress.embedding.precision import PRECISIONS
from hvd_compress.embedding.residuals import HeldBack, Residuals
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import ConfigError
from tests.embedding.reference import SynchronousTable
from tests.embedding.test_exact import OPTIMIZERS, most_rows, trained, zipf
from tests.embedding.test_loader import batches_of
from tests.embedding.test_serving import job, records

LOSSY = ["bf16", "int8"]
DIM = 5
Batches = list[list[torch.Tensor]]
"""Ids, by step, by rank."""


def linear_loss(values: torch.Tensor, rank: int) -> torch.Tensor:
    """Gradients differ by rank and place, and depend on no row."""
    places = torch.arange(values.numel(), dtype=torch.float32).view(values.shape)
    return (torch.sin(places * 1.7 + rank) * values).sum()


def summed(batches: Batches, lr: float = 0.5, rows: int = 40) -> torch.Tensor:
    """Rows (rows, DIM) of a synchronous table."""
    table = SynchronousTable(CachedEmbedding(rows, DIM, optimizer=SGD(lr)).layout)
    for batch in batches:
        table.train(batch, lambda values, ids, rank: linear_loss(values[ids], rank))
    return table.records


def error_of(batches: Batches, precision: str, cache_rows: int, lookahead: int, **rules: Any) -> float:
    """Return how far rows are from those of a synchronous table."""
    found, used = trained(
        len(batches[0]),
        batches,
        lambda: CachedEmbedding(40, DIM, optimizer=SGD(0.5)),
        cache_rows,
        lookahead,
        lambda module, ids, rank: linear_loss(module(ids), rank),
        sync_precision=precision,
        **rules,
    )
    return (found[used][:, :DIM] - summed(batches)[used]).abs().max().item()


def zipf_batches(world: int, alpha: float, steps: int, seed: int, most: int = 12) -> Batches:
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(0, most, (steps, world), generator=generator)
    return [
        [zipf(40, alpha, int(size), generator) if size else torch.empty(0, dtype=torch.int64) for size in step]
        for step in sizes
    ]


@pytest.mark.level2
@settings(max_examples=20, deadline=None)
@given(
    world=st.integers(2, 4),
    lookahead=st.integers(1, 10),
    spare=st.integers(0, 20),
    alpha=st.sampled_from([0.0, 1.0, 2.0, 5.0]),
    precision=st.sampled_from(LOSSY),
    rules=st.sampled_from([Rules(), Rules(delayed=False), Rules(replicated=True)]),
    seed=st.integers(0, 2**31),
)
def test_all_gradients_arrive(
    world: int, lookahead: int, spare: int, alpha: float, precision: str, rules: Rules, seed: int
) -> None:
    batches = zipf_batches(world, alpha, 20, seed)
    needed = most_rows([[torch.cat(batch)] for batch in batches] if rules.replicated else batches)
    assert error_of(batches, precision, needed + spare, lookahead, rules=rules) < 2e-5


USERS: dict[str, Callable[[int, int], bool]] = {
    "all ranks": lambda step, rank: True,
    "one rank": lambda step, rank: rank == 1,
    "one rank after the other": lambda step, rank: step % 3 == rank,
    "two ranks, then one": lambda step, rank: rank == 1 or (rank == 0 and step % 2 == 0),
    "two of three ranks": lambda step, rank: step % 3 != rank,
    "all ranks, now and then": lambda step, rank: step % 4 == 0,
}
"""Which ranks use rows 0 to 3 in a step; each rank uses a row of its own, too."""


def used_by(users: Callable[[int, int], bool], steps: int = 24) -> Batches:
    shared = torch.arange(4)
    return [
        [torch.cat([shared[: 4 * users(step, rank)], torch.tensor([10 + rank])]) for rank in range(3)]
        for step in range(steps)
    ]


@pytest.mark.parametrize("precision", LOSSY)
@pytest.mark.parametrize("lookahead", [1, 2, 10])
@pytest.mark.parametrize("users", USERS)
def test_rows_used_by(users: str, lookahead: int, precision: str) -> None:
    assert error_of(used_by(USERS[users]), precision, 6, lookahead) < 2e-5


@pytest.mark.parametrize("precision", LOSSY)
def test_gradients_are_lost_without_residuals(monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    """So the tests above would notice."""
    monkeypatch.setattr(Residuals, "encode", lambda self, gradients, slots: self.precision.encode(gradients))
    assert error_of(used_by(USERS["all ranks"]), precision, 6, 3) > 1e-3
    assert error_of(zipf_batches(3, 2.0, 20, 1), precision, 40, 3) > 1e-4


def loader_of(
    batches: Batches, module: CachedEmbedding, engine: InProcessEngine, precision: str, **settings: Any
) -> Lookahead:
    return Lookahead(
        [batch[engine.rank] for batch in batches],
        {lambda batch: batch: module},
        engine=engine,
        sync_precision=precision,
        **{"cache_rows": 40, "lookahead": 4, "debug": True} | settings,
    )


def rows_of(modules: list[CachedEmbedding], batches: Batches) -> torch.Tensor:
    """The rows that batches have used, as their owners have them."""
    used = torch.unique(torch.cat([ids for batch in batches for ids in batch]))
    found = torch.zeros(40, DIM)
    for rank, module in enumerate(modules):
        assert module.shard is not None
        found[rank :: len(modules)] = module.layout.row(module.shard.records)
    return found[used]


def expected_of(batches: Batches) -> torch.Tensor:
    return summed(batches)[torch.unique(torch.cat([ids for batch in batches for ids in batch]))]


@pytest.mark.parametrize("precision", LOSSY)
@pytest.mark.parametrize("until", [1, 7, 12])
def test_a_loop_that_is_left(monkeypatch: pytest.MonkeyPatch, until: int, precision: str) -> None:
    """Owners get the residuals, and the next loop begins without any."""
    batches, held = zipf_batches(3, 2.0, 20, until), []
    apply = HeldBack.apply
    monkeypatch.setattr(HeldBack, "apply", lambda self, *a: (held.append(self.rows.numel()), apply(self, *a)))

    def body(engine: InProcessEngine) -> tuple[torch.Tensor, CachedEmbedding]:
        module = CachedEmbedding(40, DIM, optimizer=SGD(0.5))
        loader = loader_of(batches, module, engine, precision)
        for step, ids in enumerate(loader, start=1):
            linear_loss(module(ids), engine.rank).backward()
            if step == until:
                break
        loader.collect()
        assert module.shard is not None
        left = module.shard.records.clone()
        for ids in loader:
            linear_loss(module(ids), engine.rank).backward()
        loader.close()
        return left, module

    found = run_ranks(3, body)
    rows = torch.zeros(40, DIM)
    for rank, (left, _) in enumerate(found):
        rows[rank::3] = left[:, :DIM]
    used = torch.unique(torch.cat([ids for batch in batches[:until] for ids in batch]))
    assert torch.allclose(rows[used], summed(batches[:until])[used], rtol=0, atol=2e-5)
    both = batches[:until] + batches
    assert torch.allclose(rows_of([module for _, module in found], both), expected_of(both), rtol=0, atol=3e-5)
    assert sum(held) > 0


@pytest.mark.parametrize("precision", LOSSY)
def test_a_state_within_an_epoch_lacks_nothing_and_changes_nothing(precision: str) -> None:
    batches, saved_behind = zipf_batches(3, 2.0, 16, 5), 6

    def body_of(saves: bool, optimizer: Callable[[], RowOptimizer], states: list[Any] | None = None) -> Any:
        def body(engine: InProcessEngine) -> tuple[CachedEmbedding, dict[str, Any]]:
            module, state = CachedEmbedding(40, DIM, optimizer=optimizer()), {}
            first = 0 if states is None else saved_behind + 1
            loader = loader_of(batches[first:], module, engine, precision)
            if states is not None:
                loader.load_state_dict(states[engine.rank])
            for step, ids in enumerate(loader, start=first):
                linear_loss(module(ids), engine.rank).backward()
                if saves and step == saved_behind:
                    state = loader.state_dict()
            loader.close()
            return module, state

        return body

    found = run_ranks(3, body_of(True, lambda: SGD(0.5)))
    states = [state for _, state in found]
    before = summed(batches[: saved_behind + 1])
    for state in states:
        each = state["embedding"]
        trained_before = torch.isin(each["rows"], torch.cat([i for b in batches[: saved_behind + 1] for i in b]))
        rows, values = each["rows"][trained_before], each["values"][trained_before]
        assert torch.allclose(values, before[rows], rtol=0, atol=2e-5)
    resumed = [module for module, _ in run_ranks(3, body_of(False, lambda: SGD(0.5), states))]
    expected = expected_of(batches)
    assert torch.allclose(rows_of(resumed, batches), expected, rtol=0, atol=3e-5)
    assert torch.allclose(rows_of([module for module, _ in found], batches), expected, rtol=0, atol=2e-5)
    with_state, without = ([m for m, _ in run_ranks(3, body_of(saves, lambda: Adam(0.1)))] for saves in (True, False))
    for one, other in zip(with_state, without, strict=True):
        assert one.shard is not None
        assert other.shard is not None
        assert torch.equal(one.shard.records, other.shard.records)


@pytest.mark.parametrize("precision", LOSSY)
def test_servers_give_the_same_bits(precision: str) -> None:
    """In loops that are left, too."""

    def body(module: CachedEmbedding, engine: InProcessEngine, settings: dict[str, Any]) -> None:
        batches = batches_of(engine.rank, 14)
        loader = Lookahead(batches, {lambda ids: ids: module}, **settings, sync_precision=precision)
        for until in (6, None):
            for step, ids in enumerate(loader, start=1):
                (module(ids) ** 2).sum().backward()
                if step == until:
                    break
        loader.close()

    assert torch.equal(records(job(3, 2, body)), records(job(3, 0, body)))


@pytest.mark.parametrize("precision", LOSSY)
@pytest.mark.parametrize("number", range(len(OPTIMIZERS)))
def test_optimizers_reach_the_loss_of_exact_rows(number: int, precision: str) -> None:
    """With the same bits in the debug mode as without."""
    batches, target = zipf_batches(2, 1.0, 60, 3), torch.linspace(-0.5, 0.5, 40 * DIM).view(40, DIM)

    def body_of(precision: str, debug: bool) -> Callable[[InProcessEngine], CachedEmbedding]:
        def body(engine: InProcessEngine) -> CachedEmbedding:
            module = CachedEmbedding(40, DIM, optimizer=OPTIMIZERS[number]())
            loader = loader_of(batches, module, engine, precision, debug=debug)
            for ids in loader:
                (module(ids) - target[ids]).square().sum().backward()
            loader.close()
            return module

        return body

    found = [run_ranks(2, body_of(*how)) for how in (("exact", True), (precision, True), (precision, False))]
    used = torch.unique(torch.cat([ids for batch in batches for ids in batch]))
    exact, lossy, without_debug = (rows_of(modules, batches) for modules in found)
    assert torch.equal(lossy, without_debug)
    assert not torch.equal(lossy, exact)
    losses = [(rows - target[used]).square().mean().item() for rows in (exact, lossy)]
    assert losses[1] < 1.02 * losses[0] + 1e-5


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_corrections_apply_residuals_and_no_moments(make: Callable[[], RowOptimizer]) -> None:
    optimizer, generator = make(), torch.Generator().manual_seed(1)
    rows, gradients, residuals = (torch.randn(20, 4, generator=generator) for _ in range(3))
    state = torch.zeros(20, optimizer.state_width(4))
    optimizer.initialise(state)
    for step in range(1, 4):
        optimizer.update(rows, state, gradients, step)
    before, state_before = rows.clone(), state.clone()
    optimizer.correct(rows, state, torch.zeros_like(residuals), 3)
    assert torch.equal(rows, before)
    assert torch.equal(state, state_before)
    optimizer.correct(rows, state, residuals * 0.01, 3)
    assert torch.equal((before - rows).sign(), residuals.sign())
    if isinstance(optimizer, SGD):
        assert torch.allclose(rows, before - 0.01 * optimizer.lr * residuals)


@pytest.mark.parametrize("precision", LOSSY)
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_gradients_that_are_not_finite_arrive_as_such(wrong: float, precision: str) -> None:
    """And spoil no other row."""
    batches = [[torch.arange(4) for _ in range(2)] for _ in range(8)]

    def loss(module: CachedEmbedding, ids: torch.Tensor, rank: int) -> torch.Tensor:
        values = module(ids)
        factors = torch.ones_like(values)
        if rank == 1 and module.steps == 3:
            factors[2, 1] = wrong
        return (factors * values).sum()

    found, _ = trained(
        2, batches, lambda: CachedEmbedding(40, DIM, optimizer=SGD(0.5)), 4, 3, loss, sync_precision=precision
    )
    assert not found[2, 1].isfinite()
    assert found[[0, 1, 3]].isfinite().all()


@pytest.mark.parametrize(("precision", "share"), [("bf16", 0.5), ("int8", (1 + 16 / 4) / 16)])
@pytest.mark.parametrize("sets", [1, 2])
def test_fewer_bytes(monkeypatch: pytest.MonkeyPatch, sets: int, precision: str, share: float) -> None:
    """Rows of all ranks: where every other step uses them, they move behind the step."""
    sent: list[tuple[str, int]] = []
    monkeypatch.setattr(
        Moved, "record", lambda self, what, calls: sent.append((what, sum(call.sent_bytes for call in calls)))
    )
    batches = [[torch.arange(30) + 30 * (step % sets) for _ in range(3)] for step in range(20)]

    def body_of(precision: str) -> Callable[[InProcessEngine], None]:
        def body(engine: InProcessEngine) -> None:
            module = CachedEmbedding(60, 16)
            loader = loader_of(batches, module, engine, precision, cache_rows=60, debug=False)
            for ids in loader:
                module(ids).sum().backward()
            loader.close()

        return body

    totals = []
    for name in ("exact", precision):
        sent.clear()
        run_ranks(3, body_of(name))
        total: Counter[str] = Counter()
        for what, sent_bytes in sent:
            total[what] += sent_bytes
        totals.append(total)
    exact, lossy = totals
    moves = "critical" if sets == 1 else "later"
    assert exact["told"] == lossy["told"]
    # The last step's gradients of each set are exact: 1 or 2 of 40 transfers.
    assert lossy[moves] / exact[moves] == pytest.approx(share + (1 - share) * sets / 40, rel=0.06)


def test_ranks_that_ask_for_different_precisions() -> None:
    def body(engine: InProcessEngine) -> None:
        module = CachedEmbedding(40, DIM)
        loader = loader_of([[torch.tensor([1])] * 2], module, engine, ("exact", "int8")[engine.rank])
        with pytest.raises(ConfigError, match="sync_precision is exact on rank 0 and int8 on rank 1"):
            list(loader)

    run_ranks(2, body)


def test_an_unknown_precision() -> None:
    with pytest.raises(ConfigError, match="unknown sync_precision 'fp8'; known are exact, bf16, int8"):
        Lookahead([], {0: CachedEmbedding(40, DIM)}, cache_rows=1, sync_precision="fp8")


def test_an_evaluation_reads_rounded_rows_of_several_ranks_and_changes_none() -> None:
    def body(engine: InProcessEngine) -> CachedEmbedding:
        module = CachedEmbedding(40, DIM)
        batches = [[torch.tensor([1, 2, 10 + rank]) for rank in range(2)]] * 3
        for ids in loader_of(batches, module, engine, "bf16", trains=False, debug=False):
            values, exact = module(ids), torch.zeros(3, DIM)
            module.layout.initialise(exact, ids)
            assert torch.equal(values[:2], exact[:2].to(torch.bfloat16).float())
            assert torch.equal(values[2], exact[2])
        return module

    assert [module.steps for module in run_ranks(2, body)] == [0, 0]


elements = st.floats(-(2.0**126), 2.0**126, width=32) | st.sampled_from([float("nan"), float("inf"), -float("inf")])


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 9).flatmap(lambda width: st.lists(st.lists(elements, min_size=width, max_size=width), max_size=4))
)
def test_encoding_any_rows(values: list[list[float]]) -> None:
    rows = torch.tensor(values) if values else torch.zeros(0, 3)
    width = rows.shape[1]
    decoded = {}
    for name, precision in PRECISIONS.items():
        words = precision.encode(rows)
        assert words.shape == (rows.shape[0], precision.words(width))
        decoded[name] = precision.decode(words.clone(), width)
        assert decoded[name].shape == rows.shape
        wrong = ~rows.isfinite().all(dim=1)
        assert not decoded[name][wrong].isfinite().all(dim=1).any()
    assert torch.equal(decoded["exact"].view(torch.int32), rows.view(torch.int32))
    assert torch.equal(decoded["bf16"].nan_to_num(), rows.to(torch.bfloat16).float().nan_to_num())
    finite = rows[rows.isfinite().all(dim=1)]
    if finite.numel():
        scales = finite.abs().amax(dim=1, keepdim=True) / 127
        errors = (decoded["int8"][rows.isfinite().all(dim=1)] - finite).abs()
        normal = (scales >= 2.0**-126).flatten()
        assert (errors[normal] <= 0.5001 * scales[normal]).all()
        assert (errors[~normal] <= finite[~normal].abs()).all()


def test_sizes_of_rows() -> None:
    assert {name: [each.words(width) for width in (1, 2, 4, 5, 48)] for name, each in PRECISIONS.items()} == {
        "exact": [1, 2, 4, 5, 48],
        "bf16": [1, 1, 2, 3, 24],
        "int8": [2, 2, 2, 3, 13],
    }
