"""The table of the accuracy benchmark: means and extremes over seeds, beside dense."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Any

BASELINE = "dense"
LABELS = {
    "dense": "dense",
    "topk": "top-k, all-gather",
    "star": "AR-Topk, STAR",
    "var": "AR-Topk, VAR",
    "efsign": "EF-sign",
}
HEADER = (
    "| method | accuracy, % | lowest - highest | against dense, points | MB a step | of dense | step time, ms |\n"
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n"
)


def summarise(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Gather the runs of each method into a row, and name the circumstances that all runs share."""
    by_method = defaultdict(list)
    for run in runs:
        by_method[run["settings"]["compression"]].append(run)
    dense = {run["settings"]["seed"]: _accuracy(run) for run in by_method[BASELINE]}
    rows = [_row(method, of_method, dense) for method, of_method in by_method.items()]
    return {"circumstances": _circumstances(runs), "rows": rows}


def to_markdown(summary: dict[str, Any]) -> str:
    """Return the summary as a page of Markdown."""
    about, rows = summary["circumstances"], summary["rows"]
    lines = "".join(_line(row) for row in rows)
    return (
        f"# Accuracy on {about['data']}\n\n"
        f"{about['world_size']} ranks on one machine ({about['cpu']}, {about['cores']} cores), "
        f"torch {about['torch']}, {about['parameters']:,} parameters, {about['epochs']} epochs, batch size "
        f"{about['batch_size']} a rank, peak learning rate {about['lr']}, seeds {', '.join(map(str, about['seeds']))}; "
        "ratio 0.01 where values are selected. Made by `python benchmarks/accuracy/run.py` at commit "
        f"{about['commit']}.\n\n"
        f"{HEADER}{lines}\n"
        "Accuracy is that of the whole test set after the last epoch; the difference is the mean over seeds, in "
        "brackets the worst and the best seed. Bytes are those a rank sends in a step, step time is the mean of ranks, "
        "seeds and the epochs after the first. The ranks share the machine's cores and send through its memory: step "
        "times say what compression costs, not what it saves on a network.\n"
    )


def _accuracy(run: dict[str, Any]) -> float:
    """Return the accuracy after the last epoch, in per cent."""
    return 100 * _epochs(run)[-1]["accuracy"]


def _epochs(run: dict[str, Any]) -> list[dict[str, Any]]:
    return run["results"][run["settings"]["compression"]]


def _row(method: str, runs: list[dict[str, Any]], dense: dict[int, float]) -> dict[str, Any]:
    accuracies = [_accuracy(run) for run in runs]
    differences = [_accuracy(run) - dense[run["settings"]["seed"]] for run in runs]
    steps = [epoch["step"] for run in runs for epoch in _epochs(run)[1:] or _epochs(run)]
    return {
        "method": method,
        "accuracy": {"mean": fmean(accuracies), "min": min(accuracies), "max": max(accuracies)},
        "difference": {"mean": fmean(differences), "min": min(differences), "max": max(differences)},
        **{figure: fmean(step[figure] for step in steps) for figure in ("sent_bytes", "dense_bytes", "step_s")},
    }


def _line(row: dict[str, Any]) -> str:
    accuracy, difference = row["accuracy"], row["difference"]
    against = f"{difference['mean']:+.2f} ({difference['min']:+.2f} to {difference['max']:+.2f})"
    cells = (
        LABELS[row["method"]],
        f"{accuracy['mean']:.2f}",
        f"{accuracy['min']:.2f} - {accuracy['max']:.2f}",
        against if row["method"] != BASELINE else "-",
        f"{row['sent_bytes'] / 1e6:.3f}",
        f"{row['sent_bytes'] / row['dense_bytes']:.1%}",
        f"{row['step_s'] * 1e3:.1f}",
    )
    return f"| {' | '.join(cells)} |\n"


def _circumstances(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what all runs have in common.

    Raises:
        ValueError: they were not made under the same circumstances, so that one table for all would mislead.
    """
    shared = [
        {key: run[key] for key in ("data", "origin", "train_images", "world_size", "parameters", "commit")}
        | {key: run["machine"][key] for key in ("cpu", "cores", "torch")}
        | {key: run["settings"][key] for key in ("epochs", "batch_size", "lr")}
        for run in runs
    ]
    if any(other != shared[0] for other in shared):
        raise ValueError(
            "the runs in build/accuracy differ in data, machine, torch, commit or settings: repeat them with --fresh"
        )
    return {**shared[0], "seeds": sorted({run["settings"]["seed"] for run in runs})}
