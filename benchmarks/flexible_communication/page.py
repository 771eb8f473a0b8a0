"""The page of results: a table for each schedule, what was promised beside what was found, and the pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from figures import EPOCHS, TOLERANCE, TURN, Record, Row, rival, rows
from images.report import machine
from pictures import draw_accuracy, draw_steps

LONGEST = 1.05
"""Of the time of the best fixed method: what the adaptive one may take."""
MARK = "<!-- from here on written by run.py -->\n"
"""What stands before it in the page is kept."""
HOW = """\
The network changes between steps: an epoch of the schedule, which has 50, is {epoch} steps. So every method
takes equally many steps in each phase, however long they take, as in the paper, where the network changes
with the epochs. Time is that of training from its first step on, with what a method needs to set itself up,
without evaluation. The methods of one launch are trained in turns of {turn} steps, and take turns in being first:
one and the same way is up to 1.7 times as fast on this machine at one time as a minute later.

Methods with a ~ were not trained in full under the schedule: {pace} steps of each, with the same share in
each phase, tell what a step takes in each phase, once; what they compute does not depend on the network, so
their accuracy is that of full trainings on one machine. `horovod` is plain Horovod with Compression.none, and
has the accuracy of `dense`, which is the same through this package's pipeline. `adaptive 0.1` is
`Compression.topk(ratio=0.1)`: the ratio is fixed, and how it travels is chosen; `adaptive knee` is
`Compression.flexible(0.02, 0.1)`: the ratio is chosen, too. The fixed methods leave algorithms to the engine
(HVD_COMPRESS_ADAPT=0). Calibrated curves are kept from one job to the next, as on a cluster. With all but plain
Horovod, which has its default, HOROVOD_CYCLE_TIME is
20 (ms): Horovod has nothing to send then, and its threads would take the cores from the training.

"""


def write_page(records: Sequence[Record], result: Path) -> None:
    """Write `result`.md and its pictures beside it."""
    schedules = sorted({record["schedule"] for record in records if record["schedule"]})
    tables = {schedule: rows(records, schedule) for schedule in schedules}
    page = result.with_suffix(".md")
    kept = page.read_text().partition(MARK)[0] if page.exists() else "# Training on a network that changes\n\n"
    page.write_text(kept + MARK + "\n" + _page(records, tables, result.name))
    for schedule in schedules:
        adaptive = max((row for row in tables[schedule] if row.adaptive), key=lambda row: len(row.seconds))
        dense = next(row for row in tables[schedule] if row.method == "horovod")
        rivals = (_as_good(adaptive, tables[schedule], dense), rival(tables[schedule], adaptive.accuracy - TOLERANCE))
        names = dict.fromkeys((dense.method, *(row.method for row in rivals), adaptive.method))
        drawn = [
            next(r for r in records if (r["schedule"], r["method"], r["seed"]) == (schedule, name, 1)) for name in names
        ]
        draw_steps(drawn, result.with_name(f"{result.name}-{schedule}.png"))
    draw_accuracy(records, schedules, result.with_name(f"{result.name}-accuracy.png"))


def _page(records: Sequence[Record], tables: dict[str, list[Row]], name: str) -> str:
    steps = max(record["steps"] for record in records)
    first, facts = records[0], machine()
    seeds = sorted({record["seed"] for record in records})
    about = (
        f"Four emulated hosts (`hvd_compress.netlab`) on one machine ({facts['cpu']}, {facts['cores']} cores), torch "
        f"{facts['torch']}; the example's net of {first['parameters']:,} parameters on {first['data']}, {steps} steps, "
        f"batch size {first['batch_size']} a rank, peak learning rate {first['lr']}, seeds "
        f"{', '.join(map(str, seeds))}. Made by `python benchmarks/flexible_communication/run.py`.\n\n"
    )
    pace = min(record["steps"] for record in records)
    about += HOW.format(epoch=steps // EPOCHS, pace=pace, turn=TURN)
    return about + "".join(_section(schedule, found, name) for schedule, found in tables.items()) + _pictures(name)


def _section(schedule: str, found: list[Row], name: str) -> str:
    dense = next(row for row in found if row.method == "horovod")
    lines = "".join(_line(row, dense) for row in found)
    verdicts = "".join(_verdict(row, found, dense) for row in found if row.adaptive)
    return (
        f"## {schedule}\n\n"
        "| method | runs | seconds | lowest - highest | accuracy, % | lowest - highest | against dense, points |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        f"{lines}\n{verdicts}\n![steps under {schedule}]({name}-{schedule}.png)\n\n"
    )


def _line(row: Row, dense: Row) -> str:
    about = "~" if row.estimated else ""
    spread = "" if row.estimated else f"{min(row.seconds):.1f} - {max(row.seconds):.1f}"
    cells = (
        f"**{row.method}**" if row.adaptive else row.method,
        str(len(row.accuracies)),
        f"{about}{row.mean_s:.1f}",
        spread,
        f"{row.accuracy:.2f}",
        f"{min(row.accuracies):.2f} - {max(row.accuracies):.2f}",
        f"{row.accuracy - dense.accuracy:+.2f}",
    )
    return f"| {' | '.join(cells)} |\n"


def _verdict(row: Row, found: list[Row], dense: Row) -> str:
    best, behind = rival(found, row.accuracy - TOLERANCE), dense.accuracy - row.accuracy
    share = row.mean_s / best.mean_s
    as_good = _as_good(row, found, dense)
    return (
        f"- {row.method} took {share:.0%} of the time of {best.method}, the fastest fixed one that ended at most "
        f"{TOLERANCE} points below it (at most {LONGEST:.0%} promised: **{_word(share <= LONGEST)}**); "
        f"{row.mean_s / as_good.mean_s:.0%} of that of {as_good.method}, the fastest one that ended as high, or within "
        f"{TOLERANCE} points of dense; and {row.mean_s / dense.mean_s:.0%} of that of dense Horovod. It ended "
        f"{abs(behind):.2f} points {'below' if behind > 0 else 'above'} dense (at most {TOLERANCE} below promised: "
        f"**{_word(behind <= TOLERANCE)}**). Its first step, in which the network is calibrated unless kept curves "
        f"still hold, took {min(row.first_s):.1f} - {max(row.first_s):.1f} s, which are counted.\n"
    )


def _as_good(row: Row, found: list[Row], dense: Row) -> Row:
    """The fastest fixed method that ended as high, or as near to dense as the adaptive one should."""
    return rival(found, min(row.accuracy, dense.accuracy - TOLERANCE))


def _word(kept: bool) -> str:
    return "met" if kept else "missed"


def _pictures(name: str) -> str:
    return f"## Accuracy against time\n\n![accuracy against time]({name}-accuracy.png)\n"
