"""Timelines of a job's pipeline, which launches one collective at a time."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from hvd_compress.planner import chrome_trace
from hvd_compress.planner.baselines import upper_bound
from hvd_compress.planner.boxes import COLLECTIVES, ROWS, boxes
from hvd_compress.planner.espresso import start
from hvd_compress.planner.making import NAMES, Inputs, make
from hvd_compress.planner.options import Constraints, by_name
from hvd_compress.planner.planning import plan
from hvd_compress.planner.prices import Prices
from hvd_compress.planner.problem import Problem
from hvd_compress.planner.profiles import Link
from hvd_compress.planner.table import LANES, option_table
from hvd_compress.planner.writing import strategy_of, to_plan
from hvd_compress.schemes.tree.counts import steps
from tests.unit.planner import profile_files
from tests.unit.planner.test_prices import BOTH, SYSTEM, _model

DENSE = by_name("reduce_scatter@within allreduce@across allgather@within")
COMPRESSED = by_name("reduce_scatter@within comp@host allgather*@across decomp@host allgather@within")


@pytest.mark.parametrize(("hosts", "link"), [(2, "across"), (1, "within")])
def test_all_collectives_share_a_lane(hosts: int, link: str) -> None:
    table = option_table(Constraints(), ("training", "host"), hosts, 4, one_at_a_time=True)
    for kind, lane in zip(table.kinds, table.lanes, strict=True):
        assert LANES[lane] == (link if kind.task.communicates else kind.task.device)


def test_two_tensors_take_turns() -> None:
    problem = Problem(_model(2), SYSTEM, BOTH, Constraints(only=(str(DENSE),)), one_at_a_time=True)
    prices, walk = Prices(SYSTEM, BOTH), steps(DENSE.tasks, SYSTEM.hosts, SYSTEM.ranks_per_host)
    first, second = (sum(prices.ns(step, tensor.numel) for step in walk) for tensor in problem.model.tensors)
    backward_ns = round(1e3 * problem.model.tensors[0].backward_us)
    assert first > backward_ns  # the second one's gradient is there before the first one is through
    assert problem.end_ns(problem.uniform(DENSE)) == backward_ns + first + second
    paper = Problem(_model(2), SYSTEM, BOTH, problem.constraints)
    assert paper.end_ns(paper.uniform(DENSE)) < backward_ns + first + second


def test_boxes_have_the_rows_of_their_tasks_and_one_lane() -> None:
    problem = Problem(_model(3), SYSTEM, BOTH, one_at_a_time=True)
    found = boxes(problem, problem.uniform(COMPRESSED))
    own = [box for box in found if box.tensor == 1]
    assert [box.row for box in own] == [ROWS[0], ROWS[3], ROWS[2], ROWS[4], ROWS[2], ROWS[3]]
    assert [box.lane for box in own] == ["training", COLLECTIVES, "host", COLLECTIVES, "host", COLLECTIVES]
    events = list(chrome_trace.events(found, "x"))
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert list(names.values()) == ["training", "host", COLLECTIVES]
    spans = [event for event in events if event["ph"] == "X"]
    assert [names[event["tid"]] for event in spans] == [box.lane for box in found]
    for tid in names:
        times = sorted((event["ts"], event["ts"] + event["dur"]) for event in spans if event["tid"] == tid)
        assert all(end <= start + 1e-6 for (_, end), (start, _) in itertools.pairwise(times))


def test_fused_buckets_keep_to_it() -> None:
    far = SYSTEM.model_copy(update={"across": Link(alpha_us=1e4, bytes_per_s=1e8)})
    found = plan(_model(8), far, BOTH, budget_s=5, one_at_a_time=True)
    assert len(found.fused.cuts) < 8
    assert found.problem.one_at_a_time
    again = Problem(found.fused.model, far, BOTH, one_at_a_time=True)
    assert again.end_ns(found.chosen.strategy) == found.end_ns


def test_the_upper_bound_keeps_to_it() -> None:
    """Without compression nothing becomes free, so that it is the optimum; of links that pipeline it would be less."""
    dense = Constraints(only=(str(DENSE),), most_compressions=0)
    problem, paper = (Problem(_model(3), SYSTEM, BOTH, dense, one_at_a_time=one) for one in (True, False))
    best = [p.native.brute_force(range(len(p.options)), 100).end_ns for p in (problem, paper)]
    assert upper_bound(problem, [start(problem)], budget_s=0.5).end_ns == best[0] > best[1]


def test_plans_of_jobs_are_made_and_read_so(tmp_path: Path) -> None:
    folder = profile_files.write(tmp_path / "profile")
    inputs = Inputs.read({name: folder / file for name, file in NAMES.items()})
    inputs = replace(inputs, system=SYSTEM)
    made = make(inputs, budget_s=1)
    assert made.planned.problem.one_at_a_time
    assert made.dense.problem.one_at_a_time
    problem, strategy = strategy_of(to_plan(made, inputs), inputs)
    assert problem.one_at_a_time
    assert problem.end_ns(strategy) == made.planned.end_ns
