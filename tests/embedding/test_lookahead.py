"""The planner's invariants, with rows whose values are the numbers of their updates."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_compress.embedding.kernels import Exchange, Lane, Lists, NativeLookahead, UniqueRows
from hvd_compress.errors import PayloadError

Batch = list[list[int]]
"""Distinct rows, by rank."""


@dataclass
class Member:
    """A rank that moves versions where others move rows.

    `held` has the row, by slot, whose gradient this rank has sent compressed last: it keeps what was lost of it.
    """

    planner: NativeLookahead
    cache: dict[int, int] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)
    slots: list[int] = field(default_factory=list)
    planned: Exchange | None = None


@dataclass
class Job:
    """All ranks of a job. `home` has the version of each row that its owner keeps, `true` how often it was updated."""

    members: list[Member]
    owners: list[int]
    cache_rows: int
    compressed: bool = False
    batches: list[Batch] = field(default_factory=list)
    steps: int = 0
    home: dict[int, int] = field(default_factory=dict)
    true: dict[int, int] = field(default_factory=dict)
    moved: dict[str, int] = field(default_factory=lambda: {"critical": 0, "later": 0})

    @classmethod
    def of(cls, world: int, owners: list[int], cache_rows: int, lookahead: int, **rules: bool) -> Job:
        trainers = list(range(world))
        planners = [NativeLookahead(world, r, owners, trainers, cache_rows, lookahead, **rules) for r in range(world)]
        return cls([Member(planner) for planner in planners], owners, cache_rows, rules.get("compressed", False))

    def add(self, batch: Batch) -> None:
        self.batches.append(batch)
        rows = torch.tensor([row for rows in batch for row in rows], dtype=torch.int64)
        for member in self.members:
            member.planner.add(rows, [len(rows) for rows in batch])

    def exchange(self, trained: Batch | None) -> list[Exchange]:
        """Update what `trained` uses, as the plan says where, and move rows."""
        self.steps += trained is not None
        plans = [member.planner.plan(tells=True) for member in self.members]
        for row in set() if trained is None else {row for rows in trained for row in rows}:
            self.true[row] = self.true.get(row, 0) + 1
        sent: dict[str, list[list[list[tuple[str, int, int]]]]] = {}
        for rank, (member, plan) in enumerate(zip(self.members, plans, strict=True)):
            for position in plan.alone.tolist():
                member.cache[member.slots[position]] += 1
            for lane in ("critical", "later"):
                mine = self._updates(member, trained[rank] if trained else [], getattr(plan, lane))
                sent.setdefault(lane, []).append(mine)
                if trained is not None:
                    self._hold(rank, trained[rank], getattr(plan, lane), self.batches[self.steps : plan.admitted + 1])
        for lane in ("critical", "later"):
            self._move(lane, plans, sent[lane])
        for member, plan in zip(self.members, plans, strict=True):
            member.slots, member.planned = plan.slots.tolist(), plan
        return plans

    @staticmethod
    def _updates(member: Member, rows: list[int], lane: Lane) -> list[list[tuple[str, int, int]]]:
        return [
            [("gradient", rows[p], 0) for p in positions.tolist()]
            + [("compressed", rows[p], 0) for p in compressed.tolist()]
            + [("record", -1, member.cache[slot]) for slot in slots.tolist()]
            for positions, compressed, slots in zip(
                lane.gradients.split(), lane.compressed.split(), lane.records.split(), strict=True
            )
        ]

    def _hold(self, rank: int, rows: list[int], lane: Lane, window: list[Batch]) -> None:
        """Gradients are compressed of rows that this rank is among the next users of, and of no others."""
        for positions, compressed in ((lane.gradients.all, False), (lane.compressed.all, True)):
            for position in positions.tolist():
                users = ([r for r, used in enumerate(batch) if rows[position] in used] for batch in window)
                following = next((each for each in users if each), [])
                assert compressed == (self.compressed and rank in following)
                if compressed:
                    self.members[rank].held[self.members[rank].slots[position]] = rows[position]

    def _id(self, owner: int, row: int) -> int:
        return row * len(self.owners) + self.owners.index(owner)

    def _move(self, lane: str, plans: list[Exchange], sent: list[list[list[tuple[str, int, int]]]]) -> None:
        rows: list[list[list[int]]] = []
        for owner in range(len(self.members)):
            plan: Lane = getattr(plans[owner], lane)
            updated = [self._id(owner, row) for row in plan.updated.tolist()]
            for rank, (places, compressed, records) in enumerate(
                zip(plan.gradients_from.split(), plan.compressed_from.split(), plan.records_from.split(), strict=True)
            ):
                arrived = sent[rank][owner]
                for kind, expected in (("gradient", places), ("compressed", compressed)):
                    found = [each[1] for each in arrived if each[0] == kind]
                    assert found == [updated[p] for p in expected.tolist()]
                versions = [each[2] for each in arrived if each[0] == "record"]
                for row, version in zip(records.tolist(), versions, strict=True):
                    self.home[self._id(owner, row)] = version
            for row in updated:
                self.home[row] = self.home.get(row, 0) + 1
            out = zip(plan.rows_to.split(), plan.records_to.split(), strict=True)
            rows.append([[self._id(owner, row) for row in [*a.tolist(), *b.tolist()]] for a, b in out])
        for rank, member in enumerate(self.members):
            plan = getattr(plans[rank], lane)
            for owner, (a, b) in enumerate(zip(plan.rows_into.split(), plan.records_into.split(), strict=True)):
                for slot, row in zip([*a.tolist(), *b.tolist()], rows[owner][rank], strict=True):
                    assert 0 <= slot < self.cache_rows
                    member.cache[slot] = self.home.get(row, 0)
                    self.moved[lane] += 1

    def check_current(self, batch: Batch) -> None:
        """What ranks are to read is what all updates so far have made."""
        for member, rows in zip(self.members, batch, strict=True):
            assert len(set(member.slots)) == len(rows)
            assert [member.cache[slot] for slot in member.slots] == [self.true.get(row, 0) for row in rows]
            for slot, row in zip(member.slots, rows, strict=True):
                assert member.held.pop(slot, row) == row
                assert row not in member.held.values()

    def collect(self) -> None:
        kept = [member.planner.kept() for member in self.members]
        for rank, (slots, _) in enumerate(kept):
            for owner, mine in enumerate(slots.split()):
                rows = kept[owner][1].split()[rank].tolist()
                for slot, row in zip(mine.tolist(), rows, strict=True):
                    self.home[self._id(owner, row)] = self.members[rank].cache[slot]


batches = st.integers(1, 4).flatmap(
    lambda world: st.lists(
        st.lists(st.lists(st.integers(0, 11), max_size=6, unique=True), min_size=world, max_size=world),
        min_size=1,
        max_size=14,
    )
)


def train(job: Job, steps: list[Batch], ahead: int, until: int | None = None) -> None:
    added = 0
    for step in range(-1, len(steps) if until is None else until):
        while added < min(len(steps), step + 1 + ahead):
            job.add(steps[added])
            added += 1
        if step >= 0:
            job.check_current(steps[step])
        job.exchange(steps[step] if step >= 0 else None)


@pytest.mark.level2
@settings(max_examples=400, deadline=None)
@given(
    steps=batches,
    ahead=st.integers(1, 16),
    spare=st.integers(0, 6),
    rules=st.fixed_dictionaries({name: st.booleans() for name in ("replicated", "delayed", "compressed")}),
    owned=st.integers(1, 4),
    data=st.data(),
)
def test_each_rank_reads_the_latest_rows_and_owners_end_with_all(
    steps: list[Batch], ahead: int, spare: int, rules: dict[str, bool], owned: int, data: st.DataObject
) -> None:
    """Where gradients are compressed, a rank has the row next in the slot in which it keeps what was lost, and keeps
    nothing in the end."""
    world = len(steps[0])
    needed = [
        len({row for rows in batch for row in rows}) if rules["replicated"] else max(map(len, batch)) for batch in steps
    ]
    owners = list(range(world))[-owned:]
    job = Job.of(world, owners, max(1, max(needed) + spare), ahead, **rules)
    until = data.draw(st.none() | st.integers(0, len(steps)))
    train(job, steps, ahead, until)
    job.collect()
    assert {row: job.home.get(row, 0) for row in job.true} == job.true
    if until is None:
        assert all(member.planned is not None and member.planned.occupied == 0 for member in job.members)
        assert not any(member.held for member in job.members)


def brute_force(steps: list[Batch], step: int, ahead: int) -> dict[str, set[int]]:
    """What the paper's text says of the rows of a step, without a cache that overflows."""

    def users(number: int, row: int) -> set[int]:
        return {rank for rank, rows in enumerate(steps[number]) if row in rows}

    window = range(step + 1, min(len(steps), step + ahead + 1))
    rows = {row for rows in steps[step] for row in rows}
    following = {row: next((n for n in window if users(n, row)), None) for row in rows}
    kept = {
        row
        for row, number in following.items()
        if number is not None and len(users(step, row)) == 1 and users(number, row) == users(step, row)
    }
    return {
        "single_user": {row for row in rows if len(users(step, row)) == 1},
        "kept": kept,
        "sync_now": {row for row in rows - kept if following[row] == step + 1},
        "sync_later": {row for row in rows - kept if (following[row] or 0) > step + 1},
        "evicted": {row for row in rows if following[row] is None},
    }


@settings(max_examples=200, deadline=None)
@given(batches, st.integers(1, 8))
def test_what_the_planner_tells_of_a_step(steps: list[Batch], ahead: int) -> None:
    job = Job.of(len(steps[0]), [0], 200, ahead)
    added = 0
    for step in range(-1, len(steps)):
        while added < min(len(steps), step + 1 + ahead):
            job.add(steps[added])
            added += 1
        (plan, *_) = job.exchange(steps[step] if step >= 0 else None)
        assert plan.rows is not None
        if step < 0:
            continue
        expected = brute_force(steps, step, ahead)
        found = {name: set(getattr(plan.rows, name).tolist()) for name in expected}
        assert found == expected
        next_rows = {row for rows in steps[step + 1] for row in rows} if step + 1 < len(steps) else set()
        assert plan.counts._asdict() == {
            "used": len({row for rows in steps[step] for row in rows}),
            "prefetched": len(plan.rows.prefetched),
            "urgent": len(set(plan.rows.prefetched.tolist()) & next_rows),
        } | {name: len(rows) for name, rows in expected.items()}
        stays = {row for rows in steps[step] for row in rows} - expected["evicted"]
        assert set(plan.rows.ttl_rows.tolist()) == stays
        fetched = {row for row in plan.rows.prefetched.tolist()}
        assert not fetched & {row for n in range(step, min(len(steps), step + ahead)) for r in steps[n] for row in r}


def test_the_example_of_the_paper() -> None:
    """Figure 5.5: L = 2, batches (3, 9), (3, 4), (3, 6), (6, 1), numbered from 0 here."""
    job = Job.of(1, [0], 100, 2)
    steps = [[[3, 9]], [[3, 4]], [[3, 6]], [[6, 1]]]
    told = []
    for step in range(-1, 4):
        for number in range(len(steps)) if step < 0 else []:
            job.add(steps[number])
        told.append(job.exchange(steps[step] if step >= 0 else None)[0].rows)
    assert [sorted(each.prefetched.tolist()) for each in told if each] == [[3, 4, 9], [6], [1], [], []]
    assert [each.evicted.tolist() for each in told if each] == [[], [9], [4], [3], [6, 1]]


def test_the_lookahead_falls_where_the_cache_would_overflow_and_rises_again() -> None:
    job = Job.of(1, [0], 6, 8)
    steps = [[[2 * n, 2 * n + 1]] for n in range(4)] + [[[100, 101, 102, 103, 104]]]
    steps += [[[2 * n, 2 * n + 1]] for n in range(10, 20)]
    admitted = []
    for batch in steps:
        job.add(batch)
    for step in range(-1, len(steps)):
        if step >= 0:
            job.check_current(steps[step])
        (plan,) = job.exchange(steps[step] if step >= 0 else None)
        admitted.append(plan.admitted - step)
        assert plan.occupied <= 6
    assert admitted[:5] == [3, 3, 2, 1, 1]
    assert max(admitted[5:]) == 3


def test_a_batch_that_no_cache_holds() -> None:
    job = Job.of(2, [0, 1], 2, 3)
    job.add([[1, 2], [1]])
    job.add([[3], [3, 4, 5]])
    assert job.exchange(None)[0].overflows is None
    for member in job.members:
        assert member.planner.plan().overflows == (1, 3)


@pytest.mark.parametrize("row", [-1, -(2**63), 10, 2**47, 2**63 - 1])
def test_a_row_that_is_none_is_refused_and_nothing_is_added(row: int) -> None:
    job = Job.of(3, [0, 1, 2], 10, 3)
    planner = job.members[0].planner
    with pytest.raises(PayloadError, match=f"rank 2 uses row {row} of an embedding that has rows 0..9"):
        planner.add(torch.tensor([1, 2, 9, row]), [3, 0, 1], limit=10)
    job.add([[1, 2], [2], [9]])
    assert job.exchange(None)[0].admitted == 0


def test_lists_of_members() -> None:
    assert [each.tolist() for each in Lists(torch.arange(3), [1, 0, 2]).split()] == [[0], [], [1, 2]]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 2**40) | st.integers(0, 5), max_size=300))
def test_unique_rows(ids: list[int]) -> None:
    unique = UniqueRows()
    for _ in range(2):
        rows, positions = unique.collect(torch.tensor(ids, dtype=torch.int64))
        assert sorted(rows.tolist()) == sorted(set(ids))
        assert rows[positions].tolist() == ids
        found, missing = unique.find(torch.tensor([*ids, 2**41], dtype=torch.int64))
        assert missing == len(ids)
        assert found[:-1].tolist() == positions.tolist()
        ids = ids[::2]


def test_nothing_is_found_among_no_rows() -> None:
    assert UniqueRows().find(torch.tensor([1]))[1] == 0


@pytest.mark.level2
@pytest.mark.parametrize("world", [65, 130])
def test_more_members_than_bits_of_a_word(world: int) -> None:
    """Several words hold the ranks of a row."""
    steps = [[[rank % 7, 100 + (rank + step) % world] for rank in range(world)] for step in range(4)]
    job = Job.of(world, list(range(world)), 6, 2)
    train(job, steps, 2)
    assert {row: job.home.get(row, 0) for row in job.true} == job.true
