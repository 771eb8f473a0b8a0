"""What is told about an epoch and about a whole run."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch


@dataclass(frozen=True)
class EpochReport:
    """Results of one epoch: mean over ranks; times and bytes are means over the steps."""

    epoch: int
    loss: float
    accuracy: float
    epoch_s: float
    step: Mapping[str, float]

    def text(self) -> str:
        """Return the report as text, times in milliseconds: those that add up to a step, then those that overlap."""
        return (
            f"loss {self.loss:.4f}, accuracy {self.accuracy:.2%}, {self.epoch_s:.1f} s\n"
            f"    step {self.step['step_s'] * 1e3:.1f} ms: {self._times('forward', 'backward', 'wait', 'update')}\n"
            f"    meanwhile: {self._times('compress', 'communicate', 'decompress')}; {sent_against_dense(self.step)}"
        )

    def _times(self, *phases: str) -> str:
        return ", ".join(f"{phase} {self.step[f'{phase}_s'] * 1e3:.1f}" for phase in phases)


def mean_of(reports: Sequence[EpochReport], figure: str) -> float:
    """Average a figure of the steps over the epochs after the first, whose first step sets everything up."""
    return fmean(report.step[figure] for report in reports[1:] or reports)


def sent_against_dense(step: Mapping[str, float]) -> str:
    """Describe the bytes that a rank sent in a step."""
    sent, dense = step["sent_bytes"], step["dense_bytes"]
    if dense == 0:
        return "nothing sent"
    return f"sent {sent / 1e6:.3f} of {dense / 1e6:.3f} MB ({sent / dense:.1%} of dense)"


def describe_choices(decisions: Mapping[tuple[str, ...], Any]) -> str:
    """Say how each bucket travels in the end, and why, or that nothing is chosen; `decisions` are the front end's."""
    several = len(decisions) > 1
    lines = []
    for number, (names, decision) in enumerate(decisions.items()):
        bucket = f"bucket {number} ({names[0]} ...): " if several else ""
        if decision.is_trial:
            lines.append(f"{bucket}nothing chosen yet: trials go on; a choice takes more steps")
            continue
        ratio = f" with ratio {decision.ratio:.4g}" if decision.ratio < 1 else ""
        lines.append(f"chosen: {bucket}{decision.path}{ratio}, because {decision.reason}")
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    """Name the processor, the usable cores and the versions that a timing depends on."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def write_json(path: Path, facts: Mapping[str, Any], results: Mapping[str, list[EpochReport]]) -> None:
    """Write the results of each method as JSON: at once, so that an interruption leaves no half a file."""
    epochs = {name: [asdict(report) for report in reports] for name, reports in results.items()}
    content = {**facts, "machine": machine(), "results": epochs}
    draft = path.with_name(path.name + ".part")
    draft.write_text(json.dumps(content, indent=2) + "\n")
    draft.replace(path)


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
