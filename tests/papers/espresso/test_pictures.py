"""Timelines for people: boxes, Chrome traces and pictures."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from hvd_compress.errors import ConfigError, PlanError
from hvd_compress.papers.espresso import chrome_trace
from hvd_compress.papers.espresso.boxes import boxes
from hvd_compress.papers.espresso.options import by_name
from hvd_compress.papers.espresso.problem import LANES, Problem
from hvd_compress.papers.espresso.table import LATENCY
from hvd_compress.papers.espresso.timeline.boxes import ROWS, TERMS, Box, seconds_by_term
from hvd_compress.papers.espresso.timeline.drawing import FEW, Panel, draw
from tests.papers.espresso.test_prices import BOTH, SYSTEM, _model

OPTION = by_name("reduce_scatter@within comp@host allgather*@across decomp@training allgather@within")


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(_model(4), SYSTEM, BOTH)


@pytest.fixture(scope="module")
def found(problem: Problem) -> list[Box]:
    return boxes(problem, problem.uniform(OPTION))


def test_boxes_are_the_tasks_of_all_tensors(problem: Problem, found: list[Box]) -> None:
    for tensor in range(4):
        own = [box for box in found if box.tensor == tensor]
        assert [box.task for box in own] == ["backward", *map(str, OPTION.tasks)]
        assert {box.name for box in own} == {f"p{tensor}"}
        assert [box.row for box in own] == [ROWS[0], ROWS[3], ROWS[2], ROWS[4], ROWS[1], ROWS[3]]
        assert [box.lane for box in own] == ["training", "within", "host", "across", "training", "within"]
    assert max(box.end_ns for box in found) == problem.end_ns(problem.uniform(OPTION))
    busy = seconds_by_term(found)
    assert set(busy) == set(TERMS)
    assert busy["computation"] == pytest.approx(4 * 50e-6)
    assert sum(busy.values()) == pytest.approx(sum(box.ns for box in found) * 1e-9)


class TestChromeTrace:
    def test_it_is_json_with_a_row_for_each_lane(self, found: list[Box], tmp_path: Path) -> None:
        path = tmp_path / "trace.json"
        chrome_trace.write(path, found, "made, predicted")
        events = json.loads(path.read_text())["traceEvents"]
        rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
        assert rows == dict(enumerate(LANES[:LATENCY]))
        spans = [event for event in events if event["ph"] == "X"]
        assert len(spans) == len(found)
        for event, box in zip(spans, found, strict=True):
            assert event["name"] == f"{box.name}: {box.task}"
            assert rows[event["tid"]] == box.lane
            assert (event["ts"], event["dur"]) == (box.start_ns / 1e3, (box.end_ns - box.start_ns) / 1e3)

    def test_rows_do_not_overlap(self, found: list[Box], tmp_path: Path) -> None:
        events = [event for event in chrome_trace.events(found, "x") if event["ph"] == "X"]
        for row in range(len(LANES)):
            own = sorted((event["ts"], event["ts"] + event["dur"]) for event in events if event["tid"] == row)
            assert all(end <= start + 1e-6 for (_, end), (start, _) in itertools.pairwise(own))

    def test_a_place_that_cannot_be_written(self, found: list[Box], tmp_path: Path) -> None:
        with pytest.raises(PlanError, match="cannot write the trace"):
            chrome_trace.write(tmp_path / "none" / "trace.json", found, "x")


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """All figures that are written."""
    seen: list[Figure] = []
    save = Figure.savefig

    def spy(figure: Figure, *arguments: object, **options: object) -> None:
        seen.append(figure)
        save(figure, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Figure, "savefig", spy)
    return seen


class TestPicture:
    def test_rows_from_top_to_bottom(self, found: list[Box], tmp_path: Path, figures: list[Figure]) -> None:
        end = max(box.end_ns for box in found)
        draw([Panel("made", found, end)], tmp_path / "a.png")
        assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
        (axis,) = figures[0].axes
        assert [label.get_text() for label in axis.get_yticklabels()] == list(ROWS)
        low, high = axis.get_ylim()
        assert low > high, "the first row is on top"
        assert axis.get_title("right") == f"F = {end / 1e6:.3f} ms"
        assert [line.get_xdata()[0] for line in axis.lines] == [end / 1e6]
        assert len(axis.collections) == len(found)

    def test_a_box_lies_in_the_row_of_what_is_busy_while_it_is(
        self, found: list[Box], tmp_path: Path, figures: list[Figure]
    ) -> None:
        extra = Box(-1, "", "checkpoint", "disk", "disk", TERMS[0], 2_000, 5_000)
        draw([Panel("made", [*found, extra], 2 * max(box.end_ns for box in found))], tmp_path / "a.png")
        (axis,) = figures[0].axes
        rows = [*ROWS, "disk"]
        assert [label.get_text() for label in axis.get_yticklabels()] == rows
        assert list(axis.get_yticks()) == list(range(len(rows)))
        for box, drawn, text in zip([*found, extra], axis.collections, axis.texts, strict=True):
            extent, middle = drawn.get_paths()[0].get_extents(), rows.index(box.row)
            assert (extent.x0, extent.x1) == pytest.approx((box.start_ns / 1e6, box.end_ns / 1e6))
            assert (extent.y0, extent.y1) == pytest.approx((middle - 0.4, middle + 0.4))
            assert text.get_position() == pytest.approx(((extent.x0 + extent.x1) / 2, middle))

    def test_each_tensor_has_a_colour_in_all_panels(
        self, found: list[Box], tmp_path: Path, figures: list[Figure]
    ) -> None:
        end = max(box.end_ns for box in found)
        draw([Panel("a", found, end), Panel("b", found[::-1], 2 * end, "step")], tmp_path / "a.svg")
        above, below = figures[0].axes
        assert above.get_xlim() == below.get_xlim() == pytest.approx((0, 1.01 * 2 * end / 1e6))
        assert [axis.get_title("left") for axis in (above, below)] == ["a", "b"]
        assert below.get_title("right") == f"step = {2 * end / 1e6:.3f} ms"
        colors: dict[int, set[tuple[float, ...]]] = {}
        for axis, order in ((above, found), (below, found[::-1])):
            for box, drawn in zip(order, axis.collections, strict=True):
                colors.setdefault(box.tensor, set()).add(tuple(drawn.get_facecolor()[0]))
        assert all(len(used) == 1 for used in colors.values())
        assert len({color for used in colors.values() for color in used}) == 4
        (legend,) = figures[0].legends
        assert [text.get_text() for text in legend.get_texts()] == [f"{tensor}: p{tensor}" for tensor in range(4)]
        for tensor, patch in enumerate(legend.get_patches()):
            assert colors[tensor] == {tuple(patch.get_facecolor())}

    @pytest.mark.parametrize("tensors", [4, FEW])
    def test_words_can_be_read(self, tensors: int, tmp_path: Path, figures: list[Figure]) -> None:
        """White on what is dark, as the eye weighs colours (ITU-R BT.601); what is no tensor's is light grey."""
        problem = Problem(_model(tensors), SYSTEM, BOTH)
        forward = Box(-1, "", "forward@all", "training", ROWS[0], TERMS[0], 0, 10**9)
        draw([Panel("made", [forward, *boxes(problem, problem.uniform(OPTION))], 10**9)], tmp_path / "a.png")
        (axis,) = figures[0].axes
        assert axis.texts[0].get_text() == "forward"
        assert tuple(axis.collections[0].get_facecolor()[0]) == pytest.approx((0.8, 0.8, 0.8, 1.0))
        inks = set()
        for drawn, text in zip(axis.collections, axis.texts, strict=True):
            red, green, blue, _ = drawn.get_facecolor()[0]
            ink = "white" if 0.3 * red + 0.59 * green + 0.11 * blue < 0.5 else "black"
            assert text.get_color() == ink
            inks.add(ink)
        assert inks == {"white", "black"}

    def test_few_tensors_are_named(self, tmp_path: Path, figures: list[Figure]) -> None:
        problem = Problem(_model(FEW), SYSTEM, BOTH)
        draw([Panel("few", boxes(problem, problem.uniform(OPTION)), 10**9)], tmp_path / "a.png")
        (legend,) = figures[0].legends
        assert [text.get_text() for text in legend.get_texts()] == [f"{tensor}: p{tensor}" for tensor in range(FEW)]

    def test_many_tensors_have_a_bar_of_colours(self, tmp_path: Path, figures: list[Figure]) -> None:
        problem = Problem(_model(FEW + 5), SYSTEM, BOTH)
        many = boxes(problem, problem.uniform(OPTION))
        draw([Panel("many", many, max(box.end_ns for box in many))], tmp_path / "a.png")
        assert len(figures[0].axes) == 2
        assert not figures[0].legends

    def test_words_stay_in_their_boxes(self, found: list[Box], tmp_path: Path, figures: list[Figure]) -> None:
        draw([Panel("made", found, max(box.end_ns for box in found))], tmp_path / "a.png")
        (axis,) = figures[0].axes
        drawn = figures[0].canvas.get_renderer()  # type: ignore[attr-defined]
        assert {text.get_text() for text in axis.texts} >= {"", "0", "0 comp"}
        for text, box in zip(axis.texts, found, strict=True):
            words = text.get_window_extent(drawn).transformed(axis.transData.inverted())
            if text.get_text():
                assert box.start_ns / 1e6 <= words.x0 < words.x1 <= box.end_ns / 1e6, text

    def test_a_place_that_cannot_be_written(self, found: list[Box], tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="cannot write"):
            draw([Panel("x", found, max(box.end_ns for box in found))], tmp_path / "none" / "a.png")
