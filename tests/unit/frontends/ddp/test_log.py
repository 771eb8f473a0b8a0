"""HVD_COMPRESS_LOG and HVD_COMPRESS_TENSORBOARD of requests that leave nothing to a controller, in real jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

import hvd_compress.ddp as hc
from tests.logged import events_of
from tests.unit.events.test_tensorboard import scalars
from tests.unit.frontends.ddp.job import run_ranks
from tests.unit.frontends.ddp.training import BROUGHT, compressed, loss_of, make_model, optimizer_of

STEPS = 8
PLAN = '{"version": 1, "default": {"compressor": {"name": "blocks", "bits": 8}, "collective": "auto"}}'


@pytest.mark.parametrize("name", ["int4", *BROUGHT, "momentum", "plan"])
def test_what_is_fixed_is_written_down(name: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(PLAN)
    variables = {"HVD_COMPRESS_LOG": str(tmp_path / "log.jsonl"), "HVD_COMPRESS_TENSORBOARD": str(tmp_path / "runs")}
    buckets = run_ranks(train, name, str(tmp_path / "plan.json"), ranks=2, **variables)[0]
    events = events_of(tmp_path / "log.jsonl")
    for number in range(buckets):
        own = [event for event in events if event.bucket == number]
        chosen = [event for event in own if event.kind == "choice"]
        assert chosen[0].step <= 1, chosen  # the second step cuts buckets anew
        assert all(event.reason and event.compressor for event in chosen)
        windows = [event for event in own if event.kind == "window"]
        assert windows, own
        assert all(event.measured_s > 0 < event.wire_ratio for event in windows)
    written = scalars(tmp_path / "runs")
    assert len(written[f"bucket {buckets - 1}/measured_s"]) == len(windows)
    for event in (event for event in events if event.kind == "metrics"):
        assert 0 < event.figures["ratio"] < 1
        assert event.figures["step"] == event.step
        for name, figure in event.figures.items():
            assert (event.step, pytest.approx(figure)) in written[f"hvd_compress/{name}"]
    assert [event.step for event in events if event.kind == "metrics"] == [windows[-1].step]


def train(rank: int, name: str, plan: str) -> int:
    """Return the number of buckets; rank 0 writes."""
    ddp = compressed(make_model(), hc.Compression.plan(plan) if name == "plan" else name)
    optimizer = optimizer_of(ddp)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(ddp, rank, step).backward()
        optimizer.step()
    assert hc.of(ddp).controller is None
    return len(hc.of(ddp).decisions)


def test_ranks_try_alike_what_a_request_leaves_open(tmp_path: Path) -> None:
    variables = {"HVD_COMPRESS_ADAPT": "1", "HVD_COMPRESS_CALIBRATION_S": "0", "HVD_COMPRESS_CACHE": str(tmp_path)}
    found = run_ranks(train_openly, ranks=3, **variables)
    assert len(found[0]) > 1
    assert found == [found[0]] * 3
    assert all("ms a step not hidden" in reason for _, reason in found[0])


def train_openly(rank: int) -> list[tuple[str, str]]:
    """Return how each bucket travels, and why, once they are cut anew."""
    ddp = compressed(make_model(), "int4")
    optimizer = optimizer_of(ddp)
    for step in range(25):
        optimizer.zero_grad()
        loss_of(ddp, rank, step).backward()
        optimizer.step()
    return [(str(decision.path), decision.reason) for decision in hc.of(ddp).decisions.values()]
