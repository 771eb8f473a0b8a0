"""The page of results: tables of distances to the optimum and of cases."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from statistics import median

from benchmarks.frame.page import table
from benchmarks.planner.cases import FORWARD, Case
from benchmarks.planner.instances import SEARCHES, Distance
from hvd_compress.papers.espresso.baselines import POLICIES

NEAR, WORST = 0.01, 0.05
PAPER_GAP = 0.1
OURS = "ours"
DIMENSIONS = {
    "1: all, myopic": ("all-compression", "myopic"),
    "2: GPU, CPU": ("gpu-only", "cpu-only"),
    "3: inter all-gather, inter all-to-all": ("inter-allgather", "inter-alltoall"),
    "4: inter all-to-all, all-to-all + all-to-all": ("inter-alltoall", "alltoall-alltoall"),
}
"""Figure 15: which policies cripple which dimension."""

PAPER_FP32 = {("GPT2", "nvlink-100g"): 0.58, ("BERT-base", "nvlink-100g"): 0.51, ("LSTM", "pcie-25g"): 0.46}
"""Table 1: scaling factors with 64 GPUs that were measured."""

Row = Iterable[object]


def listed(items: Iterable[str]) -> str:
    *first, last = items
    return f"{', '.join(first)} and {last}" if first else last


def optimum(found: Sequence[Distance]) -> str:
    """Return how near searches come to brute force."""
    head = ("search", "within 1 % of the optimum", "the optimum itself", "worst")
    return table(head, (_row_of_optimum(name, [one.ratios[name] for one in found]) for name in SEARCHES))


def _row_of_optimum(name: str, ratios: Sequence[float]) -> Row:
    near = sum(ratio <= 1 + NEAR for ratio in ratios) / len(ratios)
    exact = sum(ratio <= 1 for ratio in ratios) / len(ratios)
    return name, f"{near:.1%}", f"{exact:.1%}", f"+{max(ratios) - 1:.1%}"


def verdicts(near: Sequence[Distance], found: Sequence[Case]) -> str:
    """Return what was asked for and what was found."""
    ours = [one.ratios[SEARCHES[-1]] for one in near]
    within = sum(ratio <= 1 + NEAR for ratio in ours) / len(ours)
    largest = max(case.ours / min(case.ends.values()) for case in found)
    gaps = [case.gap(case.ours) for case in found]
    below = sum(gap < PAPER_GAP for gap in gaps)
    missing = sorted({case.model for case, gap in zip(found, gaps, strict=True) if gap >= PAPER_GAP})
    others = f"; the others: {listed(missing)}" if missing else ""
    rows = (
        ("within 1 % of the optimum in 95 % of the random problems", f"{within:.1%}", _met(within >= 0.95)),
        ("never more than 5 % above it", f"{max(ours) - 1:.1%}", _met(max(ours) <= 1 + WORST)),
        ("never slower than another policy", f"at most {largest:.3f} of the best one's F", _met(largest <= 1)),
        ("less than 10 % below Upper Bound, as in the paper", f"{below} of {len(gaps)}{others}", _met(not missing)),
    )
    return table(("asked of ours", "found", ""), rows, words=3)


def _met(holds: bool) -> str:
    return "met" if holds else "missed"


def measured(found: Sequence[Case]) -> str:
    """Return one sentence about cases with other times of compression."""
    gaps = [case.gap(case.ours) for case in found]
    gains = [case.ends["fp32"] / case.ours for case in found]
    slower = sum(case.ours > min(case.ends.values()) for case in found)
    below = sum(gap < PAPER_GAP for gap in gaps)
    return (
        f"Then ours is slower than another policy in {slower} of {len(found)} cases, and less than 10 % below Upper\n"
        f"Bound in {below}, at most {max(gaps):.0%}. FP32 takes {median(gains):.2f} times as long as ours in the\n"
        f"median, at most {max(gains):.1f} times."
    )


def policies(found: Sequence[Case]) -> str:
    """Return how much longer than ours each policy takes, and how far it stays below Upper Bound."""
    head = ("policy", "F over ours: median", "largest", "ours is slower", "gap: median", "below 10 %", "largest")
    return table(head, [_row_of_policy(name, found) for name in (*POLICIES, OURS)])


def _row_of_policy(name: str, found: Sequence[Case]) -> Row:
    ratios = [_end(case, name) / case.ours for case in found]
    gaps = [case.gap(_end(case, name)) for case in found]
    slower = sum(ratio < 1 for ratio in ratios)
    below = sum(gap < PAPER_GAP for gap in gaps)
    return (
        *(name, f"{median(ratios):.3f}", f"{max(ratios):.2f}", slower),
        *(f"{median(gaps):.1%}", f"{below} of {len(found)}", f"{max(gaps):.1%}"),
    )


def _end(case: Case, name: str) -> int:
    return case.ours if name == OURS else case.ends[name]


def forward(found: Sequence[Case]) -> str:
    """Return what the assumption about the forward pass decides: the gap of ours with others."""
    rows = []
    for share in (0.0, FORWARD, 1.0):
        gaps = [case.gap(case.ours, forward=share) for case in found]
        below = sum(gap < PAPER_GAP for gap in gaps)
        rows.append((f"{share:g}", f"{median(gaps):.1%}", f"{below} of {len(found)}", f"{max(gaps):.1%}"))
    return table(("forward / backward", "gap of ours: median", "below 10 %", "largest"), rows)


def gains(found: Sequence[Case]) -> str:
    """Return what local search gains over Algorithms 1 and 2, and fusion over none: in F."""
    rows = []
    for testbed, gpus in dict.fromkeys((case.testbed, case.gpus) for case in found):
        some = [case for case in found if (case.testbed, case.gpus) == (testbed, gpus)]
        search = [case.ends["espresso"] / case.ours - 1 for case in some]
        fusion = [case.ours / case.fused - 1 for case in some]
        gaps = [case.gap(case.fused, case.fused_upper) for case in some]
        rows.append((testbed, gpus, *_spread(search), *_spread(fusion), f"{median(gaps):.1%}", f"{max(gaps):.1%}"))
    head = ("testbed", "GPUs", "local search: median", "largest", "fusion: median", "largest")
    return table((*head, "gap with fusion: median", "largest"), rows)


def _spread(values: Sequence[float]) -> tuple[str, str]:
    return f"{median(values):.1%}", f"{max(values):.1%}"


def links(found: Sequence[Case]) -> str:
    """Return scaling factors of FP32 next to those that the paper measured."""
    compared = []
    for case in found:
        paper = PAPER_FP32.get((case.model, case.testbed))
        if paper is not None and case.gpus == 64:
            compared.append(f"{case.model} {case.scaling(case.ends['fp32']):.2f} ({paper})")
    return listed(dict.fromkeys(compared)) if compared else "none of its cases is here"


def dimensions(found: Sequence[Case], model: str = "VGG16") -> str:
    """Return scaling factors from crippled search spaces, as in Figure 15."""
    some = [case for case in found if case.model == model and case.gpus == max(c.gpus for c in found)]
    head = ("testbed", "compressor", "FP32", *DIMENSIONS, "Espresso", OURS)
    return table(head, [_row_of_dimensions(case) for case in some], words=2)


def _row_of_dimensions(case: Case) -> Row:
    def factor(name: str) -> str:
        return f"{case.scaling(_end(case, name)):.3f}"

    crippled = (", ".join(map(factor, names)) for names in DIMENSIONS.values())
    return case.testbed, case.compressor, factor("fp32"), *crippled, factor("espresso"), factor(OURS)


_SHOWN = ("fp32", "byteps-compress", "hitopkcomm", "hipress", "espresso")


def every(found: Sequence[Case]) -> str:
    """Return F of what Figures 12 to 14 show, in ms, case by case."""
    head = ("model", "compressor", *_SHOWN, OURS, "Upper Bound", "gap", "buckets", "fused", "gap")
    parts = []
    for (testbed, gpus), some in _grouped(found, lambda case: (case.testbed, case.gpus)):
        parts += [f"**{testbed}, {gpus} GPUs**", "", table(head, map(_row_of_case, some), words=2), ""]
    return "\n".join(parts)


def _row_of_case(case: Case) -> Row:
    ends = (f"{case.ends[name] / 1e6:.1f}" for name in _SHOWN)
    return (
        *(case.model, case.compressor, *ends, f"{case.ours / 1e6:.1f}", f"{case.upper / 1e6:.1f}"),
        *(f"{case.gap(case.ours):.1%}", f"{case.buckets} of {case.tensors}", f"{case.fused / 1e6:.1f}"),
        f"{case.gap(case.fused, case.fused_upper):.1%}",
    )


def _grouped(
    found: Sequence[Case], key: Callable[[Case], tuple[str, int]]
) -> Iterable[tuple[tuple[str, int], list[Case]]]:
    return ((value, list(some)) for value, some in itertools.groupby(found, key))
