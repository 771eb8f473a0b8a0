"""What is recorded of a training, and the check that a training which resumes from it today gives the same."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from hvd_compress.compression import Compression
from hvd_compress.engines.inprocess import InProcessEngine
from tests.checkpoints.cases import AFTER, DDP, DROP_IN, FSDP, Case, Gradients, sgd
from tests.checkpoints.training import Ddp, DropIn, Fsdp, Training
from tests.clock import Clock, slowed

SECONDS_A_BYTE = 1e-4
"""What sending takes on the clock that tests hold: so much that compression pays."""


def load(path: Path) -> Any:
    """Read what torch.save() wrote, as anybody does who trusts no file."""
    return torch.load(path, weights_only=True)


def gradients_in(folder: Path) -> Gradients:
    return Gradients(load(folder / "gradients.pt"))


def drop_in(name: str, engine: InProcessEngine, clock: Clock | None = None, resumes: bool = False) -> DropIn:
    """Return a training on an in-process rank; `clock`: for what chooses while training."""
    if clock is not None:
        slowed(engine, lambda: SECONDS_A_BYTE)
    return DropIn(DROP_IN[name], engine, resumes, clock)


def launched(front: str, name: str, rank: int) -> Training:
    """Return a training on a rank of torch.distributed."""
    return Ddp(DDP[name], rank) if front == "ddp" else Fsdp(FSDP[name], rank, name.partition("-")[0])


def planned(path: Path, engine: InProcessEngine, gradients: Gradients) -> torch.Tensor:
    """Return what training by a plan gives from the first step on."""
    return DropIn(Case(Compression.plan(path), optimizer=sgd), engine).train(gradients, AFTER)


def record(training: Training, gradients: Gradients, folder: Path) -> None:
    """Train, save what a program saves, go on, and write down what that gave."""
    training.train(gradients, training.case.steps)
    assert bool(training.compression()["choice"]) >= training.case.adapts, "nothing was chosen yet"
    torch.save(training.saved(), folder / f"rank{training.rank}.pt")
    record_after(training, gradients, folder)


def record_after(training: Training, gradients: Gradients, folder: Path) -> None:
    results = training.train(gradients, AFTER)
    torch.save({"results": results, "digest": training.digest()}, folder / f"after{training.rank}.pt")


def check(training: Training, gradients: Gradients, folder: Path) -> None:
    """Load what a program saved: all of it is there to the bit, and the next steps give what they gave then."""
    saved = load(folder / f"rank{training.rank}.pt")
    with quiet():
        training.load(saved)
        assert_same(training.kept(training.saved()), training.kept(saved))
        check_after(training, gradients, folder)
    assert training.compression()["buckets"] == training.compression_in(saved)["buckets"]


def check_after(training: Training, gradients: Gradients, folder: Path) -> None:
    expected = load(folder / f"after{training.rank}.pt")
    assert_results(training.train(gradients, AFTER), expected["results"], training.case.tolerance)
    if not training.case.tolerance:
        assert training.digest() == expected["digest"], "what is remembered after the last step differs"


def assert_results(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Raise AssertionError where results of steps differ, as Case has it."""
    if tolerance:
        difference = (found - expected).abs().max()
        assert difference <= tolerance * expected.abs().max(), f"results differ by {difference}"
    else:
        assert_same(found, expected, "results")


def assert_same(found: Any, expected: Any, place: str = "") -> None:
    """Raise AssertionError where two states differ in a bit, a type or a name.

    Buckets are left out, as they are not known before the first step; until then each parameter has a state, which may
    be that of a bucket later.
    """
    assert type(found) is type(expected), f"{place}: {type(found).__name__} instead of {type(expected).__name__}"
    if isinstance(expected, torch.Tensor):
        kinds = [(each.dtype, tuple(each.shape)) for each in (found, expected)]
        assert kinds[0] == kinds[1], f"{place}: {kinds[0]} instead of {kinds[1]}"
        assert _bits(found) == _bits(expected), f"{place}: other bits"
    elif isinstance(expected, Mapping):
        more = [key for key in found if key not in expected and "/states" not in place]
        lost = [key for key in expected if key not in found]
        assert not [*more, *lost], f"{place}: {more} are new, and {lost} are lost"
        for key in expected:
            if key != "buckets":
                assert_same(found[key], expected[key], f"{place}/{key}")
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected), f"{place}: {len(found)} instead of {len(expected)}"
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same(one, other, f"{place}/{number}")
    else:
        assert found == expected, f"{place}: {found!r} instead of {expected!r}"


def _bits(tensor: torch.Tensor) -> bytes:
    bits: bytes = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return bits


@contextmanager
def quiet() -> Iterator[None]:
    """Raise AssertionError where the package's log warns in the block. pytest makes errors of other warnings."""
    handler, logger = _Collecting(logging.WARNING), logging.getLogger("hvd_compress")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
    assert not handler.words, handler.words


class _Collecting(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.words: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.words.append(record.getMessage())
