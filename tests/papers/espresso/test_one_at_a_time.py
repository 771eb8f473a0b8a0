"""Timelines of a job's pipeline, which launches one collective at a time, or as many as are in flight."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from hvd_compress.papers.espresso import chrome_trace
from hvd_compress.papers.espresso.baselines import upper_bound
from hvd_compress.papers.espresso.boxes import COLLECTIVES, boxes
from hvd_compress.papers.espresso.espresso import start
from hvd_compress.papers.espresso.making import NAMES, Inputs, make
from hvd_compress.papers.espresso.options import Constraints, by_name
from hvd_compress.papers.espresso.planning import plan
from hvd_compress.papers.espresso.prices import Prices
from hvd_compress.papers.espresso.problem import Problem
from hvd_compress.papers.espresso.table import LANES, option_table
from hvd_compress.papers.espresso.timeline.boxes import ROWS
from hvd_compress.papers.espresso.tree.counts import steps
from hvd_compress.papers.espresso.writing import strategy_of, to_plan
from hvd_compress.profiler.profiles import MOST_TRACKS, Link
from hvd_compress.settings import MOST_IN_FLIGHT
from tests.papers.espresso.test_prices import BOTH, SYSTEM, _model
from tests.unit.profiler import profile_files

DENSE = by_name("reduce_scatter@within allreduce@across allgather@within")
COMPRESSED = by_name("reduce_scatter@within comp@host allgather*@across decomp@host allgather@within")


@pytest.mark.level2
@pytest.mark.parametrize(("hosts", "link"), [(2, "across"), (1, "within")])
def test_all_collectives_share_a_lane(hosts: int, link: str) -> None:
    table = option_table(Constraints(), ("training", "host"), hosts, 4, in_flight=1)
    for kind, lane in zip(table.kinds, table.lanes, strict=True):
        assert LANES[lane] == (link if kind.task.communicates else kind.task.device)


def test_two_tensors_take_turns() -> None:
    problem = Problem(_model(2), SYSTEM, BOTH, Constraints(only=(str(DENSE),)), in_flight=1)
    prices, walk = Prices(SYSTEM, BOTH), steps(DENSE.tasks, SYSTEM.hosts, SYSTEM.ranks_per_host)
    first, second = (sum(prices.ns(step, tensor.numel) for step in walk) for tensor in problem.model.tensors)
    backward_ns = round(1e3 * problem.model.tensors[0].backward_us)
    assert first > backward_ns  # the second one's gradient is there before the first one is through
    assert problem.end_ns(problem.uniform(DENSE)) == backward_ns + first + second
    paper = Problem(_model(2), SYSTEM, BOTH, problem.constraints)
    assert paper.end_ns(paper.uniform(DENSE)) < backward_ns + first + second


def test_boxes_have_the_rows_of_their_tasks_and_one_lane() -> None:
    problem = Problem(_model(3), SYSTEM, BOTH, in_flight=1)
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


@pytest.mark.level2
def test_fused_buckets_keep_to_it() -> None:
    far = SYSTEM.model_copy(update={"across": Link(alpha_us=1e4, bytes_per_s=1e8)})
    found = plan(_model(8), far, BOTH, budget_s=5, in_flight=1)
    assert len(found.fused.cuts) < 8
    assert found.problem.in_flight == 1
    again = Problem(found.fused.model, far, BOTH, in_flight=1)
    assert again.end_ns(found.chosen.strategy) == found.end_ns


def test_the_upper_bound_keeps_to_it() -> None:
    """Without compression nothing becomes free, so that it is the optimum; of links that pipeline it would be less."""
    dense = Constraints(only=(str(DENSE),), most_compressions=0)
    problem, paper = (Problem(_model(3), SYSTEM, BOTH, dense, in_flight=one) for one in (1, None))
    best = [p.native.brute_force(range(len(p.options)), 100).end_ns for p in (problem, paper)]
    assert upper_bound(problem, [start(problem)], budget_s=0.5).end_ns == best[0] > best[1]


def test_plans_of_jobs_are_made_and_read_so(tmp_path: Path) -> None:
    folder = profile_files.write(tmp_path / "profile")
    inputs = Inputs.read({name: folder / file for name, file in NAMES.items()})
    inputs = replace(inputs, system=SYSTEM)
    made = make(inputs, budget_s=1)
    assert made.planned.problem.in_flight == 1
    assert made.dense.problem.in_flight == 1
    problem, strategy = strategy_of(to_plan(made, inputs), inputs)
    assert problem.in_flight == 1
    assert problem.end_ns(strategy) == made.planned.end_ns


FLAT = by_name("allreduce@all")
ALONE = SYSTEM.model_copy(update={"ranks_per_host": 1, "across": Link(alpha_us=5e3, bytes_per_s=1e8)})


def test_latencies_of_buckets_in_flight_pass_side_by_side() -> None:
    """Of each bucket the bytes keep the line busy, and its latency a track."""
    only = Constraints(only=(str(FLAT),))
    ends = {n: Problem(_model(4), ALONE, BOTH, only, in_flight=n) for n in (1, 2, 4)}
    strategy = ends[1].uniform(FLAT)
    taken = {n: problem.end_ns(strategy) for n, problem in ends.items()}
    (step,) = steps(FLAT.tasks, ALONE.hosts, 1)
    latency = Prices(ALONE, BOTH).latency_ns(step, ends[1].model.tensors[0].numel)
    assert latency >= 5_000_000
    assert taken[1] - taken[2] == pytest.approx(2 * latency, rel=0.2)
    assert taken[4] < taken[2]
    rows = {box.row for box in boxes(ends[2], strategy)}
    assert {"latency 0", "latency 1"} < rows
    assert "latency 2" not in rows
    assert {box.task for box in boxes(ends[2], strategy) if box.row == "latency 0"} == {"allreduce@all"}


def test_collectives_of_groups_are_one_at_a_time() -> None:
    one, two = (Problem(_model(4), SYSTEM, BOTH, Constraints(only=(str(DENSE),)), in_flight=n) for n in (1, 2))
    assert one.end_ns(one.uniform(DENSE)) == two.end_ns(two.uniform(DENSE))


def test_a_profile_tells_how_many_are_in_flight(tmp_path: Path) -> None:
    folder = profile_files.write(tmp_path / "profile")
    inputs = Inputs.read({name: folder / file for name, file in NAMES.items()})
    assert inputs.system.in_flight == 1
    made = make(replace(inputs, system=ALONE.model_copy(update={"in_flight": 2})), budget_s=1)
    assert made.planned.problem.in_flight == made.dense.problem.in_flight == 2


def test_as_many_can_be_planned_as_can_be_asked_for() -> None:
    assert MOST_TRACKS == MOST_IN_FLIGHT
