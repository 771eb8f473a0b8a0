"""The page of results: a table for each schedule, what was promised beside what was found, and the pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from figures import TOLERANCE, Record, Row, rival, rows
from images.report import machine
from pictures import draw_accuracy, draw_steps

LONGEST = 1.05
"""Of the time of the best fixed method: what the adaptive one may take."""


def write_page(records: Sequence[Record], result: Path) -> None:
    """Write `result`.md, .json and pictures beside them."""
    schedules = sorted({record["schedule"] for record in records if record["schedule"]})
    tables = {schedule: rows(records, schedule) for schedule in schedules}
    result.with_suffix(".json").write_text("[\n" + ",\n".join(json.dumps(_kept(r)) for r in records) + "\n]\n")
    result.with_suffix(".md").write_text(_page(records, tables, result.name))
    for schedule in schedules:
        adaptive = next(row for row in tables[schedule] if row.adaptive)
        chosen = {
            name: next(r for r in records if (r["schedule"], r["method"], r["seed"]) == (schedule, name, 1))
            for name in (adaptive.method, rival(tables[schedule], adaptive).method, "horovod")
        }
        draw_steps(*chosen.values(), result.with_name(f"{result.name}-{schedule}.png"))
    draw_accuracy(records, schedules, result.with_name(f"{result.name}-accuracy.png"))


def _kept(record: Record) -> Record:
    """A record without the windows in which nothing happened."""
    return {**record, "events": [event for event in record["events"] if event["kind"] != "window"]}


def _page(records: Sequence[Record], tables: dict[str, list[Row]], name: str) -> str:
    steps = max(record["steps"] for record in records)
    first, facts = records[0], machine()
    seeds = sorted({record["seed"] for record in records})
    about = (
        f"# Training on a network that changes\n\n"
        f"Four emulated hosts (`hvd_compress.netlab`) on one machine ({facts['cpu']}, {facts['cores']} cores), torch "
        f"{facts['torch']}; the example's net of {first['parameters']:,} parameters on {first['data']}, {steps} steps, "
        f"batch size {first['batch_size']} a rank, peak learning rate {first['lr']}, seeds "
        f"{', '.join(map(str, seeds))}. Made by `python benchmarks/flexible_communication/run.py`.\n\n"
    )
    return about + "".join(_section(schedule, found, name) for schedule, found in tables.items()) + _pictures(name)


def _section(schedule: str, found: list[Row], name: str) -> str:
    dense = next(row for row in found if row.method == "horovod")
    lines = "".join(_line(row, found, dense) for row in found)
    verdicts = "".join(_verdict(row, found, dense) for row in found if row.adaptive)
    return (
        f"## {schedule}\n\n"
        "| method | seconds | lowest - highest | accuracy, % | lowest - highest | against dense, points |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: |\n"
        f"{lines}\n{verdicts}\n![steps under {schedule}]({name}-{schedule}.png)\n\n"
    )


def _line(row: Row, found: list[Row], dense: Row) -> str:
    about = "~" if row.estimated else ""
    spread = "" if row.estimated else f"{min(row.seconds):.1f} - {max(row.seconds):.1f}"
    cells = (
        f"**{row.method}**" if row.adaptive else row.method,
        f"{about}{row.mean_s:.1f}",
        spread,
        f"{row.accuracy:.2f}",
        f"{min(row.accuracies):.2f} - {max(row.accuracies):.2f}",
        f"{row.accuracy - dense.accuracy:+.2f}",
    )
    return f"| {' | '.join(cells)} |\n"


def _verdict(row: Row, found: list[Row], dense: Row) -> str:
    best = rival(found, row)
    share, behind = row.mean_s / best.mean_s, dense.accuracy - row.accuracy
    return (
        f"- {row.method} took {share:.0%} of the time of {best.method}, the best fixed one that reached its accuracy "
        f"(at most {LONGEST:.0%} promised: **{_word(share <= LONGEST)}**), "
        f"and {row.mean_s / dense.mean_s:.0%} of that of dense Horovod; it ended {abs(behind):.2f} points "
        f"{'below' if behind > 0 else 'above'} dense (at most {TOLERANCE} below promised: "
        f"**{_word(behind <= TOLERANCE)}**). Its first step, in which the network is calibrated unless kept curves "
        f"still hold, took {min(row.first_s):.1f} - {max(row.first_s):.1f} s, which are counted.\n"
    )


def _word(kept: bool) -> str:
    return "met" if kept else "missed"


def _pictures(name: str) -> str:
    return f"## Accuracy against time\n\n![accuracy against time]({name}-accuracy.png)\n"
