"""What a check has found, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.frame.page import table

Items = Mapping[str, Mapping[str, Any]]
SANITIZERS = "sanitizers"
CHECKED_BESIDE = ("parity", "large", "graphs")


def page(report: Mapping[str, Any]) -> str:
    """Return the page of a report (report.Report.found)."""
    facts, parts = report["facts"], report["parts"]
    lines = [
        f"# CUDA kernels on {facts['card']}",
        "",
        f"`{facts['command']}`; torch {facts['torch']}, CUDA {facts['cuda']}; {facts['scale']} scale. Made by "
        "`make gpu-check`.",
        "",
        table(["part", "items", "failed", "left out", "seconds"], map(_part_row, parts, parts.values())),
        "",
        *_failures(parts),
    ]
    if any(part in parts for part in ("parity", "large")):
        lines += _parity(parts)
    for name, section in {"timings": _timings, "queue": _queue, "training": _training, SANITIZERS: _sanitizers}.items():
        if parts.get(name, {}).get("items"):
            lines += section(parts[name]["items"])
    return "\n".join(lines) + "\n"


def _values(items: Items) -> dict[str, Any]:
    return {name: outcome["value"] for name, outcome in items.items() if outcome.get("value") is not None}


def _part_row(name: str, part: Mapping[str, Any]) -> list[str]:
    items = part["items"].values()
    counts = [sum(kind in outcome for outcome in items) for kind in ("failure", "left_out")]
    seconds = f"{part['seconds']:.0f}" if "seconds" in part else "not ended"
    if "left_out" in part:
        return [name, "", "", part["left_out"], ""]
    failed = part.get("failure") or str(counts[0] or "")
    return [name, str(len(items)), _cell(failed), str(counts[1] or ""), seconds]


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")


def _failures(parts: Mapping[str, Any]) -> list[str]:
    found = [f"- {name}, {item}: {outcome['failure']}" for name, item, outcome in _outcomes(parts, "failure")]
    left = [f"- {name}, {item}: {outcome['left_out']}" for name, item, outcome in _outcomes(parts, "left_out")]
    lines = ["## What failed", "", *map(_cell, found), ""] if found else []
    return [*lines, *(["Left out:", "", *map(_cell, left), ""] if left else [])]


def _outcomes(parts: Mapping[str, Any], kind: str) -> list[tuple[str, str, Mapping[str, Any]]]:
    return [(n, item, o) for n, part in parts.items() for item, o in part["items"].items() if kind in o]


def _parity(parts: Mapping[str, Any]) -> list[str]:
    """One row a kernel: results that were equal, of small inputs, of large ones by their size, and graphs."""
    cells: dict[str, dict[str, str]] = {}
    for part in CHECKED_BESIDE:
        for item, outcome in parts.get(part, {"items": {}})["items"].items():
            kernel, _, size = item.rpartition(", ") if part == "large" else (item, "", part)
            cells.setdefault(kernel, {})[size.replace("parity", "small")] = _equal(outcome)
    sizes = list(dict.fromkeys(size for row in cells.values() for size in row))
    heads = ["kernels", *(size if size != "graphs" else "captured in graphs" for size in sizes)]
    rows = ([kernel, *(row.get(size, "") for size in sizes)] for kernel, row in cells.items())
    return ["## Results equal to the CPU's, bit by bit", "", table(heads, rows), ""]


def _equal(outcome: Mapping[str, Any]) -> str:
    if "failure" in outcome:
        return "FAILED"
    return "left out" if "left_out" in outcome else f"{outcome['value']}"


def _timings(items: Items) -> list[str]:
    cases = {name: value for name, value in _values(items).items() if "gb_per_s" in value}
    copies = sorted(value["copy_gb_per_s"] for value in cases.values())
    lines = ["## Timings", ""]
    if cases:
        lines += [
            "Medians of fp32 elements. Bytes are those that a kernel must move at least, results included: for gather, "
            "take and scatter a sector of 32 for each element. What kernels of k elements read may be in the cache. A "
            f"copy of the same run moves {copies[len(copies) // 2]:,.0f} GB/s, reads and writes counted. Bounds are "
            "those of an H200, in ms; `!` marks what is missed. cub is torch's addition and cub::DeviceTopK.",
            "",
            table(
                ["kernel", "elements", "ms", "bytes", "GB/s", "of the copy", "bound", "torch ms", "cub ms"],
                (_timing_row(name, value) for name, value in cases.items()),
            ),
            "",
        ]
    for name, value in _values(items).items():
        if "tail_us" in value:
            lines += [_tail(name, value), ""]
    return lines


def _timing_row(name: str, value: Mapping[str, Any]) -> list[str]:
    bound = "" if value["bound_ms"] is None else f"{value['bound_ms']:g}"
    missed = f"{bound} ! {', '.join(value['missed'])}" if value["missed"] else bound
    return [
        name,
        f"{value['numel']:,}",
        f"{value['ms']:.3f}",
        f"{value['bytes']:,.0f}",
        f"{value['gb_per_s']:,.0f}",
        f"{value['of_copy']:.0%}",
        missed,
        *("" if value[f"{peer}_ms"] is None else f"{value[f'{peer}_ms']:.2f}" for peer in ("torch", "cub")),
    ]


def _tail(name: str, value: Mapping[str, Any]) -> str:
    mark = " !" if value["missed"] else ""
    return (
        f"The {name} ({value['numel']:,} elements, ratio 0.01): topk_accumulate {value['topk_us']:.1f} us less "
        f"accumulate {value['accumulate_us']:.1f} us is {value['tail_us']:.1f} us; the bound is "
        f"{value['bound_us']:g} us on an H200{mark}."
    )


def _queue(items: Items) -> list[str]:
    rows = [row for found in _values(items).values() for row in found]
    cells = ([f"{r['numel']:,.0f}", f"{r['k']:.0f}", f"{r['queue']:.3f}", f"{r['bracket']:.3f}"] for r in rows)
    return [
        "## Few elements",
        "",
        "Milliseconds of topk_accumulate: one block with a queue, and the sampled bracket.",
        "",
        table(["elements", "k", "queue", "bracket"], cells, words=0),
        "",
    ]


def _training(items: Items) -> list[str]:
    found = [value for value in _values(items).values() if isinstance(value, Mapping)]
    return [line for one in found for line in training(one)]


def training(found: Mapping[str, Any]) -> list[str]:
    """Return what training.py has found over a transport."""
    rows = (
        [
            f["compression"],
            f"{f['backward_ms']:.2f}",
            f"{f['exchange_ms']:.2f}",
            f"{f['both_ms']:.2f}",
            f"{f['hidden']:.0%}",
            f"{f['bus_bytes']:,} B",
            f"{f['bus_bytes'] / f['dense_gradient_bytes']:.1%}",
        ]
        for f in found["figures"]
    )
    heads = ["compression", "backward ms", "exchange ms", "both ms", "hidden", "over the bus", "of the gradient"]
    return [
        f"## {found['ranks']} ranks on one {found['device']}, over {found['transport']}",
        "",
        f"torch {found['torch']}; {found['equal']} reduced gradients and residuals equal to the CPU's, bit by bit. "
        "A step of 6 square layers: hidden is the share of the exchange that the backward pass covered.",
        "",
        *(["Different:", "", *(f"- {text}" for text in found["different"]), ""] if found["different"] else []),
        table(heads, rows),
        "",
    ]


def _sanitizers(items: Items) -> list[str]:
    rows = ([name, _cell(_told(outcome)), f"{outcome.get('seconds', 0.0):.0f}"] for name, outcome in items.items())
    return ["## Sanitizers", "", table(["tool", "outcome", "seconds"], rows, words=2), ""]


def _told(outcome: Mapping[str, Any]) -> str:
    return str(outcome.get("failure") or outcome.get("left_out") or outcome["value"])
