"""A training that goes on from a checkpoint gives the bits of one that was never interrupted."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hvd_compress.embedding import Adam, CachedEmbedding, Lookahead
from hvd_compress.embedding.shard import Shard
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import ConfigError
from tests.embedding.test_loader import batches_of, table

STEPS, SAVED = 14, 6


def trained(
    world: int, ranks: int, first: int = 0, states: list[dict[str, Any]] | None = None, own: bool = True
) -> tuple[list[CachedEmbedding], list[dict[str, Any]]]:
    """Train from batch `first` on, on the batches of `ranks` ranks, dealt to `world`; a state of each behind SAVED."""

    def body(engine: InProcessEngine) -> tuple[CachedEmbedding, dict[str, Any]]:
        module, saved = CachedEmbedding(20, 2, optimizer=Adam(0.05)), {}
        share = range(engine.rank, ranks, world)
        batches = [torch.cat([batches_of(rank, STEPS)[step] for rank in share]) for step in range(first, STEPS)]
        loader = Lookahead(
            batches, {lambda batch: batch: module}, cache_rows=20, lookahead=3, engine=engine, debug=True
        )
        if states is not None:
            loader.load_state_dict(*([states[engine.rank]] if own else states))
        for step, ids in enumerate(loader, start=first):
            (module(ids) ** 2).sum().backward()
            if step == SAVED:
                saved = loader.state_dict()
        loader.close()
        return module, saved

    found = run_ranks(world, body)
    return [module for module, _ in found], [saved for _, saved in found]


@pytest.mark.parametrize("world", [1, 3])
def test_within_an_epoch(world: int) -> None:
    whole, saved = trained(world, world)
    assert saved[0]["embedding"]["steps"] == SAVED + 1
    resumed, _ = trained(world, world, SAVED + 1, saved)
    assert torch.equal(table(resumed)[:, :2], table(whole)[:, :2])
    assert torch.equal(table(resumed)[:, 3:], table(whole)[:, 3:])
    assert resumed[0].steps == STEPS


def test_a_job_of_another_size() -> None:
    """All states are loaded, and rows go to their new owners."""
    whole, saved = trained(2, 2)
    resumed, again = trained(4, 4, STEPS, saved, own=False)
    assert resumed[0].steps == SAVED + 1
    assert again == [{}] * 4
    rows = torch.cat([each["embedding"]["rows"] for each in saved])
    values = torch.cat([each["embedding"]["values"] for each in saved])
    states = torch.cat([each["embedding"]["states"] for each in saved])
    assert torch.equal(table(resumed)[rows][:, :2], values)
    assert torch.equal(table(resumed)[rows][:, 3:], states)
    assert states.any()
    with pytest.raises(ConfigError, match="needs the states of embedding of rank 1: they were saved by 2 ranks"):
        trained(1, 1, STEPS, saved[:1], own=False)
    assert whole[0].steps == STEPS


def test_states_that_do_not_fit() -> None:
    def body(engine: InProcessEngine) -> None:
        def loader_of(module: CachedEmbedding) -> Lookahead:
            return Lookahead([], {0: module}, cache_rows=20, engine=engine)

        state = loader_of(CachedEmbedding(20, 2)).state_dict()
        with pytest.raises(
            ConfigError, match=r"is of embedding: \[20\] x 2, seed 0, SGD, and this is embedding: \[30\]"
        ):
            loader_of(CachedEmbedding(30, 2)).load_state_dict(state)
        with pytest.raises(ConfigError, match="rank 0 of 1 needs the states of embedding of rank 0"):
            loader_of(CachedEmbedding(20, 2)).load_state_dict({})
        other = {"embedding": state["embedding"] | {"steps": 5}}
        with pytest.raises(ConfigError, match="are of steps 0 and 5"):
            loader_of(CachedEmbedding(20, 2)).load_state_dict(state, other)

    run_ranks(1, body)


@pytest.mark.parametrize("by_another", [False, True])
def test_rows_in_caches_do_not_come_behind_what_is_loaded(by_another: bool) -> None:
    """A loop was left, and its kept rows are newer than the state."""

    def body(engine: InProcessEngine) -> bool:
        module = CachedEmbedding(20, 2, optimizer=Adam(0.05))

        def loader_of() -> Lookahead:
            batches = batches_of(engine.rank, STEPS)
            return Lookahead(batches, {lambda ids: ids: module}, cache_rows=20, lookahead=8, engine=engine)

        loader = loader_of()
        state = loader.state_dict()
        for step, ids in enumerate(loader):
            (module(ids) ** 2).sum().backward()
            if step == SAVED:
                break
        (loader_of() if by_another else loader).load_state_dict(state)
        loader.collect()
        assert module.shard is not None
        assert module.steps == 0
        untouched = CachedEmbedding(20, 2, optimizer=Adam(0.05))
        fresh = Shard(untouched.layout, engine.rank, engine.world_size)
        rows = torch.arange(fresh.rows)
        return torch.equal(module.shard.read(rows), fresh.read(rows))

    assert all(run_ranks(2, body))


def test_after_an_error_a_checkpoint_is_loaded() -> None:
    def body(engine: InProcessEngine) -> int:
        module = CachedEmbedding(20, 2)
        good = Lookahead(batches_of(0, 3), {lambda batch: batch: module}, cache_rows=20, lookahead=1, engine=engine)
        state = good.state_dict()
        bad = Lookahead([torch.tensor([99])], {lambda batch: batch: module}, cache_rows=20, engine=engine)
        with pytest.raises(ConfigError, match="id 99"):
            list(bad)
        good.load_state_dict(state)
        return sum(1 for _ in good)

    assert run_ranks(1, body) == [3]
