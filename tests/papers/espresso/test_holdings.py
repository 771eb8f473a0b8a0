"""What the planner prices is what collectives carry out: parts, payloads and ranks at each task of every option."""

from __future__ import annotations

import pytest

from hvd_compress.papers.espresso.options import Constraints, Option, options
from hvd_compress.papers.espresso.tree.counts import steps
from hvd_compress.papers.espresso.tree.walk import walk

NUMEL = 2**7 * 3**3
SYSTEMS = [(2, 2), (2, 4), (4, 2), (3, 2), (1, 4), (4, 1)]
ONE_DEVICE = options(Constraints(devices=("training",)))


@pytest.mark.parametrize(("hosts", "ranks"), SYSTEMS)
def test_holdings_are_those_of_the_first_rank(hosts: int, ranks: int) -> None:
    """The first rank of all is a root of each group, and never waits."""
    for option in ONE_DEVICE:
        check(option, hosts, ranks)


def check(option: Option, hosts: int, ranks: int) -> None:
    rows = walk(option.path, NUMEL, tuple(rank // ranks for rank in range(hosts * ranks)))
    for step, row in zip(steps(option.tasks, hosts, ranks), rows, strict=False):
        before, held = step.before, row[0]
        elements = sum(one.numel for one in held)
        if before.payloads:
            assert elements * before.parts == before.payloads * NUMEL, (option.path, step)
        else:
            assert elements * before.held == NUMEL, (option.path, step)
        if step.task.link != "all":
            assert before.active == sum(bool(row[rank]) for rank in range(ranks)), (option.path, step)
