"""Time to accuracy: the corpus, training in process, what figures amount to, a round in the lab, and the page."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.frame.store import append, lines
from benchmarks.time_to_accuracy import figures, gather, lab, losses, page, tasks, text, training
from hvd_compress.compression import Compression
from hvd_compress.measuring import order
from hvd_compress.optim import DeMo
from tests.netlab.rights import require_lab

RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "time-to-accuracy.json"
LARGEST_BYTES = 50_000
STEPS = 40
"""Of made-up losses."""
MACHINE = {"cpu": "one", "cores": 2, "python": "3", "torch": "2"}


def falling(slope: float, count: int = STEPS) -> list[tuple[int, float]]:
    """Losses on a line, every 20 steps."""
    return [(20 * n, 10 - slope * 20 * n) for n in range(1, count + 1)]


def made_up(count: int = 24) -> dict[str, Any]:
    """Dense, and a method that takes twice its steps, and half its seconds a step."""
    losses = {"dense": falling(0.01), "topk": falling(0.005, count)}
    by_seed = {
        name: {"1": [loss for _, loss in found], "2": [loss for _, loss in found]} for name, found in losses.items()
    }
    seconds = {"horovod": [1.0, 2.0, 3.0], "topk": [0.5, 1.0, None]}
    return {
        "circumstances": {
            half: [{**MACHINE, "commit": f"{half[0]}{n}"} for n in (1, 2)] for half in ("losses", "seconds")
        },
        "parameters": {"language": 7},
        "losses": {"language": by_seed},
        "seconds": {"language": {"20mbit-20ms": seconds}},
        "searches": {},
        "trainings": {"language": {"20mbit-20ms": {"horovod": {"steps": 240.0, "seconds": 500.0}}}},
    }


def test_steps_to_a_loss_lie_between_those_where_it_was_measured() -> None:
    assert figures.steps_to(falling(0.01), 10 - 0.01 * 133) == pytest.approx(133)
    assert figures.steps_to(falling(0.01, 5), 10 - 0.01 * 133) is None
    assert figures.loss_at(falling(0.01), 240) == pytest.approx(7.6)


def test_one_lucky_loss_is_not_a_loss_that_is_reached() -> None:
    losses = [(steps, loss - 3 * (steps == 100)) for steps, loss in falling(0.001)]
    assert figures.steps_to(losses, 7.5) is None


def test_seconds_to_a_loss_are_the_product_of_both_halves() -> None:
    found = figures.Figures(made_up())
    network = found.networks("language")[0]
    assert found.methods("language", network) == ["horovod", "topk"]
    assert found.seconds_to("language", network, "horovod", 120) == pytest.approx(120 * 2.0)
    assert found.seconds_to("language", network, "topk", 120) == pytest.approx(240 * 2.0 * 0.5)
    ratio = found.time_ratio("language", network, "topk", 120)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((1.0, 1.0, 1.0))


def test_what_was_not_reached_says_so() -> None:
    found = figures.Figures(made_up(count=20))
    steps = found.steps("language", "topk", 240)
    assert not steps.reached
    assert steps.mean == 380  # the last one with a loss after it
    text = page.page(found)
    assert "| > 380 |" in text
    assert "| > 380 | > 0.79 (0.79 to 0.79) |" in text


def test_what_auto_takes_stands_next_to_the_best_of_those_tried() -> None:
    """A step takes 0.2 s and an exchange 0.8; more steps between exchanges take more steps to the loss."""
    found = made_up()
    slopes = {"int4": 0.01, "local4": 0.0080, "local8": 0.0072, "local16": 0.0066, "local32": 0.0064}
    for name, slope in slopes.items():
        found["losses"]["language"][name] = {"1": [loss for _, loss in falling(slope)]}
    timed = found["seconds"]["language"]["20mbit-20ms"]
    timed["alone"] = [0.2, 0.4, 0.6]
    for name in slopes:
        every = int(name.removeprefix("local")) if name.startswith("local") else 1
        timed[name] = [each * (0.2 + 0.8 / every) for each in (1.0, 2.0, 3.0)]
    assert "| 20 Mbit/s, 20 ms | 0.4 | 1.6 | 32 | 32 | 1 |" in page.page(figures.Figures(found))


def test_the_soonest_of_local_steps_stands_next_to_its_bound_and_the_nearest_rival() -> None:
    found = made_up()
    timed = found["seconds"]["language"]["20mbit-20ms"]
    for name, slope, share in (("local4", 0.008, 0.05), ("local8-dense", 0.0075, 0.2)):
        found["losses"]["language"][name] = {"1": [loss for _, loss in falling(slope)]}
        timed[name if name == "local4" else "torchft8"] = [share * each for each in (1.0, 2.0, 3.0)]
    text = page.page(figures.Figures(found))
    assert (
        "`every=4`, `int4()` | 0.06 (0.06 to 0.06) | 1 | 0.08 | met by one seed | torchft LocalSGD, 8 | 4.3 |" in text
    )
    found["losses"]["language"]["local4"] |= {"2": [loss for _, loss in falling(0.004)]}
    assert "| 0.09 (0.06 to 0.12) | 2 | 0.08 | missed, within the interval |" in page.page(figures.Figures(found))
    found["losses"]["language"]["local4"] |= {"2": [loss for _, loss in falling(0.0078)]}
    assert "| 2 | 0.08 | met | torchft" in page.page(figures.Figures(found))
    found["losses"]["language"]["local4"] |= {"2": [loss for _, loss in falling(0.0056)]}
    assert "| 2 | 0.08 | met, within the interval | torchft" in page.page(figures.Figures(found))


def test_long_trainings_have_a_table() -> None:
    found = made_up()
    losses = [10 - 0.1 * n for n in range(1, 21)]
    found["long"] = {"language": {"dense": {"1": losses}, "local8": {"1": [loss + 0.01 for loss in losses]}}}
    assert "| `every=8`, `int4()` | 1 | 9.510 | 9.010 | 8.510 | 8.010 | +0.010 |" in page.page(figures.Figures(found))


def test_figures_are_read_as_they_were_written() -> None:
    assert figures.Figures(json.loads(gather.dumps(made_up()))).kept == made_up()
    gaps = {"a": [None, None, 1.0, None, 2.0], "b": [None]}
    assert figures.without_gaps(gaps) == {"a": [-2, 1.0, -1, 2.0], "b": [-1]}
    assert figures.with_all_rounds(figures.without_gaps(gaps)) == gaps


def test_a_method_that_was_away_keeps_its_place_in_the_rounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ratios are within a round, so a round without a method must not shift those after it."""
    for module in (gather, lab):
        monkeypatch.setattr(module, "BUILD", tmp_path)
    monkeypatch.setattr(gather, "BEFORE", tmp_path / "before.json")
    for file, found in (
        (lab.rounds_of("language", "20mbit-20ms"), {"horovod": 1.0, "topk": 0.5}),
        (lab.rounds_of("language", "20mbit-20ms"), {"horovod": 2.0}),
        (lab.rounds_of("language", "20mbit-20ms"), {"horovod": 3.0, "topk": 1.5}),
        (lab.trainings_of("language", "20mbit-20ms"), in_the_lab([1.0] * 60 + [3.0] * 20)),
    ):
        append(file, {**found, "circumstances": {**MACHINE, "commit": "b"}})
    (tmp_path / "loss").mkdir()
    for seed, more in ((1, ""), (2, ""), (3, " otherwise")):
        run = {"task": "language", "method": "dense", "curve": "dense", "seed": seed, "losses": falling(0.01)}
        run["asked"] = gather.LossRun("language", "dense", seed).asked + more
        run["circumstances"] = {**MACHINE, "commit": "c" if more else "a"}
        (tmp_path / "loss" / f"language-dense-seed{seed}.json").write_text(json.dumps(run))
    kept = gather.gather()
    assert kept["seconds"]["language"]["20mbit-20ms"] == {"horovod": [1.0, 2.0, 3.0], "topk": [0.5, None, 1.5]}
    assert set(kept["losses"]["language"]["dense"]) == {"1", "2"}, "what was asked for otherwise does not count"
    assert kept["losses"]["language"]["dense"]["2"] == pytest.approx([loss for _, loss in falling(0.01)])
    assert kept["trainings"]["language"]["20mbit-20ms"]["topk"] == {"steps": 70.0, "seconds": 90.0}
    about = kept["circumstances"]
    assert [each["commit"] for each in about["losses"] + about["seconds"]] == ["a", "b"]


def test_new_runs_join_the_figures_of_other_machines() -> None:
    before, found = made_up(), made_up()
    found["circumstances"] = {half: [{**MACHINE, "commit": "new"}] for half in ("losses", "seconds")}
    found["losses"] = {"language": {"int4": {"1": [3.0]}, "topk": {"2": [2.0], "3": [1.0]}}}
    found["seconds"] = {"language": {"20mbit-20ms": {"horovod": [4.0], "int4": [1.0]}, "1gbit-1ms": {"horovod": [5.0]}}}
    found["trainings"] = {}
    kept = gather.merged(before, found)
    assert [about["commit"] for about in kept["circumstances"]["losses"]] == ["l1", "l2", "new"]
    assert list(kept["losses"]["language"]) == ["dense", "int4", "topk"], "in the order of methods.py"
    assert kept["losses"]["language"]["topk"] == {**made_up()["losses"]["language"]["topk"], "3": [1.0]}
    assert kept["seconds"]["language"] == {
        "20mbit-20ms": {
            "horovod": [1.0, 2.0, 3.0, 4.0],
            "int4": [None, None, None, 1.0],
            "topk": [0.5, 1.0, None, None],
        },
        "1gbit-1ms": {"horovod": [5.0]},
    }
    assert kept["trainings"] == made_up()["trainings"]


def in_the_lab(step_s: list[float]) -> dict[str, Any]:
    """Return a training to a loss that lies between two of those that were measured."""
    losses = falling(0.01, len(step_s) // 20)
    return {"method": "topk", "step_s": step_s, "losses": [*losses, (100, 9.0)], "target": 9.3}


def test_a_run_of_another_setting_does_not_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(losses, "BUILD", tmp_path)
    run = losses.LossRun("language", "int4", 1)
    run.file.parent.mkdir()
    run.file.write_text(json.dumps({"asked": run.asked, "most": 300, "losses": []}))
    assert run.finished(300) is not None
    assert run.finished(301) is None
    assert losses.LossRun("images", "int4", 1).asked != run.asked != losses.LossRun("language", "int8", 1).asked
    run.file.write_text(json.dumps({"asked": run.asked + " otherwise", "most": 300, "losses": []}))
    assert run.finished(300) is None


@pytest.mark.parametrize("kinds", [2, 3, 5])
def test_turns_are_fair(kinds: int) -> None:
    orders = [order(kinds, number) for number in range(2 * kinds)]
    places = Counter((place, kind) for order in orders for place, kind in enumerate(order))
    pairs = Counter(pair for order in orders for pair in pairwise(order))
    assert len(places) == kinds**2
    assert len(set(places.values())) == 1
    assert all(pairs[a, b] == pairs[b, a] for a, b in pairs)


def test_the_page_is_that_of_its_figures() -> None:
    assert RESULT.stat().st_size < LARGEST_BYTES
    found = figures.Figures(json.loads(RESULT.read_text()))
    assert page.page(found) == RESULT.with_suffix(".md").read_text()


def test_a_file_is_for_training_or_for_validation(tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "left_out.py").write_bytes(b"\xff" * 300)
    for number in range(100):
        (tmp_path / f"{number}.py").write_bytes(bytes([number]) * 200)
    found = text.Text.read(tmp_path)
    train, validation = (set(part.tolist()) for part in (found.train, found.validation))
    assert train | validation == set(range(100))
    assert not train & validation
    inputs, targets = found.batch(3, torch.Generator().manual_seed(1))
    assert inputs.shape == targets.shape == (3, text.CONTEXT)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert len({tuple(row.tolist()) for row in found.validation_batch()[0]}) > 1


def test_the_transformer_sees_no_byte_that_it_predicts() -> None:
    torch.manual_seed(1)
    model = text.ByteTransformer(width=12, heads=2, blocks=2)
    seen = torch.randint(256, (1, text.CONTEXT))
    changed = seen.clone()
    changed[0, 40:] = 0
    before, after = model(seen), model(changed)
    torch.testing.assert_close(before[0, :40], after[0, :40])
    assert not torch.allclose(before[0, 40:], after[0, 40:])


def line_task() -> tasks.Task:
    """Return a task of seven parameters."""

    class Line(tasks.Task):
        name = label = setting = "line"

        def model(self) -> nn.Module:
            return nn.Linear(6, 1)

        def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
            return torch.optim.SGD(parameters, lr=0.1)

        def batch(self, seed: int, step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
            inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(100 * seed + 10 * step + rank))
            return inputs, inputs.sum(dim=1, keepdim=True)

        def validation(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
            return [self.batch(9, 0, 0)]

        def loss(self, model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            return nn.functional.mse_loss(model(batch[0]), batch[1])

    return Line()


def test_dense_in_process_is_training_with_all_batches_in_one() -> None:
    task, told = line_task(), []
    enough = training.Enough(12, every=4)
    losses = training.in_process(task, Compression.dense(), 1, enough, lambda *found: told.append(found))
    assert told == losses
    torch.manual_seed(1)
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    expected = []
    for step in range(12):
        batches = [task.batch(1, step, rank) for rank in range(training.RANKS)]
        optimizer.zero_grad()
        task.loss(model, tuple(torch.cat(part) for part in zip(*batches, strict=True))).backward()
        optimizer.step()
        if step % 4 == 3:
            expected.append((step + 1, pytest.approx(task.validation_loss(model), rel=1e-4)))
    assert losses == expected


def test_a_method_may_have_its_own_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    task, made = line_task(), []

    def make(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        made.append(DeMo(parameters, lr=0.125))
        return made[-1]

    training.in_process(task, Compression.demo(), 1, training.Enough(2, every=1), lambda *_: None, make)
    assert len(made) == 1
    method = replace(losses.METHODS["int4"], optimizer=make)
    monkeypatch.setitem(losses.METHODS, "own", method)
    assert "lr: 0.125" in losses.LossRun("language", "own", 1).asked


def test_a_slow_method_goes_on_until_the_loss_or_the_last_step() -> None:
    task = line_task()

    def steps(target: float) -> int:
        enough = training.Enough(6, every=2, most=30, target=target)
        return training.in_process(task, Compression.topk(0.3).by(collective="star"), 1, enough, lambda *_: None)[-1][0]

    assert steps(1e9) == 6
    assert 6 < steps(0.3) < 30
    assert steps(0.0) == 30


def test_a_round_in_the_lab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lab, "BUILD", tmp_path)
    monkeypatch.setattr(lab, "RANKS", 2)
    require_lab()
    lab.measure("language", "1gbit-1ms", ["horovod", "ddp", "topk"], seconds=0.0, least=1)
    (found,) = lines(lab.rounds_of("language", "1gbit-1ms"))
    assert found.pop("circumstances")["cores"] > 0
    assert list(found) == ["horovod", "ddp", "topk"]
    assert min(found.values()) > 0
