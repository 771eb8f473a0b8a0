"""What `hvd-compress plan make` says: what each bucket does, the options, and what is predicted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hvd_compress.cli.numbers import size
from hvd_compress.papers.espresso.making import DEFAULT_ENGINE, Inputs, Made
from hvd_compress.papers.espresso.options import Option
from hvd_compress.profiler.profiles import ELEMENT_BYTES

TOP = 10
"""The number of buckets that are listed."""
POLICIES = {"GPU only": "training device only", "CPU only": "host only", "FP32": "FP32 (no compression)"}
"""The paper's names of policies that speak of devices, in the words of --device, and one that needs a word."""


def report(made: Made, inputs: Inputs, seconds: float, budget: float) -> None:
    """Print a plan that was found, with the seconds that it took of a budget."""
    letters = _letters(made)
    console = Console(highlight=False)
    console.print(_table(made, letters))
    for line in (
        "dense, planned: the time of all tasks of a bucket. gain: by how much the step would be longer if this bucket "
        "alone were dense",
        "",
    ):
        console.print(Text(line))
    console.print(_options(made, letters))
    for line in ("", *_findings(made, inputs, seconds, budget)):
        console.print(Text(line))


def _findings(made: Made, inputs: Inputs, seconds: float, budget: float) -> Iterator[str]:
    """Yield sentences for below the table."""
    buckets, tensors = len(made.planned.fused.cuts), len(inputs.model.tensors)
    by = made.planned.chosen.by
    for name, words in POLICIES.items():
        by = by.replace(name, words)
    runs = f"{len(made.runs)} options can be run over engine {made.engine or DEFAULT_ENGINE}"
    yield f"{buckets} buckets of {tensors} tensors; {runs}; found by {by} in {seconds:.1f} s"
    if made.engine != inputs.system.engine is not None:
        yield f"the network was measured over engine {inputs.system.engine}: times over {made.engine} may be others"
    if made.planned.complete:
        yield "the search was complete: the same inputs give the same plan"
    else:
        stopped = f"the search stopped at its budget of {budget:g} s, of which each size of buckets has a share"
        yield f"{stopped}: another run may find another plan, and a larger --budget a better one"
    yield (
        f"predicted step {made.step_us / 1e3:.3f} ms; without compression {made.dense_us / 1e3:.3f} ms, "
        f"{made.dense_us / made.step_us:.2f} times as long ({len(made.dense.fused.cuts)} buckets)"
    )
    if any(tensor.shape is None for tensor in inputs.model.tensors):
        yield "the profile has no shapes: a job checks the names of its parameters alone"


def _letters(made: Made) -> dict[Option, str]:
    """Return a short name for each option that a bucket has, and for the one that `dense` stands for."""
    used = dict.fromkeys([made.plain, *made.planned.options])
    return {option: _letter(number) for number, option in enumerate(used)}


def _letter(number: int) -> str:
    return (_letter(number // 26 - 1) if number >= 26 else "") + "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[number % 26]


def _options(made: Made, letters: dict[Option, str]) -> Table:
    """What the letters stand for."""
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column()
    for option, letter in letters.items():
        path = str(made.runs[option].path)
        words = "dense" if option == made.plain else "" if path == option.path else f"collective {path}"
        table.add_row(f"{letter}:", Text(f"{option}{f' ({words})' if words else ''}"))
    return table


def _table(made: Made, letters: dict[Option, str]) -> Table:
    """The buckets by which most is gained, and a row for the rest."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading in ("bucket", "parameters", "size", "dense\nms", "planned\nms", "gain\nms", "option"):
        words = heading in ("parameters", "option")
        table.add_column(
            heading, justify="left" if words else "right", overflow="fold", no_wrap=heading != "parameters"
        )
    saved = [plain - planned for plain, planned in made.busy_ns]
    order = sorted(range(len(saved)), key=lambda bucket: (-made.saved_ns[bucket], -saved[bucket], bucket))
    for bucket in order[:TOP]:
        option = made.planned.options[bucket]
        tensor = made.planned.problem.model.tensors[bucket]
        times = *map(_ms, made.busy_ns[bucket]), _ms(made.saved_ns[bucket])
        row = (str(bucket), tensor.name, size(ELEMENT_BYTES * tensor.numel), *times, letters[option])
        table.add_row(*map(Text, row))  # Text, as names may contain what rich takes for markup
    if order[TOP:]:
        table.add_row(*_rest(made, order[TOP:]))
    return table


def _rest(made: Made, buckets: Sequence[int]) -> tuple[str, ...]:
    compressed = sum(made.planned.options[bucket].compressions > 0 for bucket in buckets)
    numel = sum(made.planned.problem.model.tensors[bucket].numel for bucket in buckets)
    busy = [sum(made.busy_ns[bucket][side] for bucket in buckets) for side in (0, 1)]
    words = f"{len(buckets)} more: {compressed} compressed, {len(buckets) - compressed} not"
    return ("", words, size(ELEMENT_BYTES * numel), *map(_ms, busy), "", "")


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.3f}"
