"""Any option of Espresso's tree as a collective: what it carries, over which engines, and its calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives.base import Collective, Exchange, Work
from hvd_compress.collectives.groups import no_groups
from hvd_compress.compressors.base import Compressor, SingleRound
from hvd_compress.compressors.cast import Cast
from hvd_compress.cost.paths import Path, Stage
from hvd_compress.engines.base import Capabilities
from hvd_compress.errors import ConfigError
from hvd_compress.papers.espresso.tree.exchange import RESULT, OptionExchange
from hvd_compress.papers.espresso.tree.walk import ROOT, Held, Task, members, parse, walk

EXAMPLE_NUMEL = 1 << 20
NEEDED = {"reduce": ("reduce_scatter", "gather")}
"""Verbs that a call is made of, where an engine does not have it itself."""


@dataclass(frozen=True)
class ByOption(Collective):
    """Carries out an option of the decision tree of Espresso (Wang et al. 2023, section 4.2), which names the path.

    `tree.walk` says what its tasks are, and what each rank holds between them. Tensors travel in fp32, and in
    the gradient's dtype where a last call brings the result to all. A reduce is a reduce-scatter and a gather of
    the shards. `tree.exchange` carries one out, and `tree.feedback` says who remembers what a
    compression loses.
    """

    compressor: Compressor
    path: Path
    names = ()
    in_groups = True
    by_name = True
    in_fp32 = True

    def __post_init__(self) -> None:
        compressions = sum(task.verb == "comp" for task in parse(self.path.collective))
        if bool(compressions) != self.compressor.compresses:
            words = "compresses" if compressions else "does not compress"
            raise ConfigError(f"option {self.path.collective!r} {words}, and the compressor is {self.compressor}")

    @classmethod
    def means(cls, name: str) -> bool:
        return "@" in name and bool(parse(name))

    @classmethod
    def carries(cls, compressor: Compressor) -> bool:
        """What can be compressed in parts, again and again: one payload of known size, which adds up, and no state."""
        if not compressor.compresses:
            return compressor == Cast()  # sums are fp32: nothing is rounded
        layout = Layout.of((64, 64))
        single = isinstance(compressor, SingleRound) and compressor.adds_up
        return single and compressor.is_fixed(layout) and not compressor.new_state(layout, torch.device("cpu"))

    @classmethod
    def obstacle(cls, can: Capabilities) -> str:
        return no_groups(can)

    @classmethod
    def variants(cls, compressor: Compressor, layout: Layout, can: Capabilities) -> Sequence[Path]:
        return ()

    @classmethod
    def runs(cls, compressor: Compressor, path: Path, layout: Layout, can: Capabilities) -> bool:
        tasks = parse(path.collective)
        grouped = any(task.link not in ("", "all") for task in tasks)
        needed = {verb for task in tasks if task.link for verb in NEEDED.get(task.verb, (task.verb,))}
        runs = cls.carries(compressor) and needed <= set(can.verbs) and not (grouped and no_groups(can))
        if runs:
            walk(path.collective, EXAMPLE_NUMEL, can.hosts)  # of any size alike; cheap for many parameters
        return runs

    def stages(self, layout: Layout, world_size: int) -> tuple[Stage, ...]:
        return self.stages_on(layout, range(world_size))

    def stages_on(self, layout: Layout, hosts: Sequence[int]) -> tuple[Stage, ...]:
        """Return those of the first rank, which waits in none."""
        hosts = tuple(hosts)
        rows = walk(self.path.collective, layout.numel, hosts)
        found: list[Stage] = []
        tasks = parse(self.path.collective)
        for number, (task, row) in enumerate(zip(tasks, rows, strict=False)):
            ranks = len(members(task.link, hosts, ROOT)) if task.link else 1
            if ranks == 1 or not row[ROOT]:
                continue
            is_result = number == len(tasks) - 1 and task.verb in RESULT
            element_bytes = layout.dtype.itemsize if is_result else 4
            size = sum(self._bytes(task, held, layout, element_bytes) for held in row[ROOT])
            verbs = NEEDED.get(task.verb, (task.verb,))
            found += [Stage(verb, "auto", size / (1 if verb == verbs[0] else ranks), ranks) for verb in verbs]
        return tuple(found)

    def _bytes(self, task: Task, held: Held, layout: Layout, element_bytes: int) -> float:
        if not task.compressed:
            return element_bytes * held.numel
        return sum(round_.nbytes for round_ in self.compressor.wire(layout.part(held.part)))

    def exchange(self, work: Work, rank: int, world_size: int) -> Exchange:
        assert len(work.hosts) == world_size, "nobody has located the engine"
        return OptionExchange(self.path.collective, self.compressor, work, rank)
