"""Accordion's decisions on norms that are known, and what goes on across its switches."""

from __future__ import annotations

import copy
import json
import math
from functools import partial
from pathlib import Path

import pytest
import torch

from hvd_compress import of
from hvd_compress.compression import Compression
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import ConfigError, UsageError
from hvd_compress.feedback.states import RESULT_SUM
from hvd_compress.frontends.optimizer.optimizer import ReducingOptimizer
from hvd_compress.papers.accordion import policy as accordion
from hvd_compress.papers.accordion.critical import change, has_decayed
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings
from tests.harness import backward, flat_gradient, flat_residual, gradient, make_optimizer, make_parameters, remembered

RANKS, PER_EPOCH = 2, 3
SHAPES = {"quiet": (32, 24), "loud": (40, 24)}
TOPK = (Compression.topk(0.5).by(collective="allgather"), Compression.topk(0.05).by(collective="allgather"))


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        *((4.0, 2.0, 0.5), (2.0, 4.0, 1.0), (10.0, 9.0, 0.1), (3.0, 3.0, 0.0), (0.0, 0.0, 0.0)),
        *((0.0, 1.0, math.inf), (math.nan, 1.0, math.inf), (1.0, math.inf, math.inf)),
    ],
)
def test_change_of_a_norm(before: float, now: float, expected: float) -> None:
    assert change(before, now) == pytest.approx(expected)


def test_a_learning_rate_has_decayed_where_one_of_any_group_has_halved() -> None:
    assert has_decayed([0.1, 0.1], [0.1, 0.01])
    assert has_decayed([0.1], [0.05])
    assert not has_decayed([0.1], [0.06])
    assert not has_decayed([0.1], [0.2])
    assert not has_decayed([], [0.1])
    assert not has_decayed([0.1], [0.1, 0.01]), "another optimizer"


@pytest.mark.parametrize("epochs", [30, 90, 200])
def test_a_cosine_is_critical_at_its_very_end_at_most(epochs: int) -> None:
    rates = [0.1 * (1 + math.cos(math.pi * epoch / epochs)) / 2 for epoch in range(epochs + 1)]
    decayed = [epoch for epoch in range(epochs) if has_decayed(rates[epoch : epoch + 1], rates[epoch + 1 : epoch + 2])]
    assert min(decayed) >= epochs - 3


def start(
    engine: InProcessEngine, request: Request, check_every: int = 2
) -> tuple[dict[str, torch.nn.Parameter], ReducingOptimizer]:
    parameters = make_parameters(SHAPES)
    settings = Settings(600, 60, adapt=False, check_every=check_every)
    made = partial(make_optimizer, parameters, request, lambda: engine, engine.rank, engine.world_size)
    return parameters, made(settings=settings)


def loudness(name: str, epoch: int) -> float:
    """By what gradients are multiplied: those of "loud" double from one comparison to the next."""
    return 2.0 ** (epoch // 2) if name == "loud" else 1.0


def train(
    engine: InProcessEngine,
    parameters: dict[str, torch.nn.Parameter],
    optimizer: ReducingOptimizer,
    epochs: range,
    rates: dict[int, float] | None = None,
) -> list[dict[str, float]]:
    """Return the ratio of each parameter in each epoch.

    Args:
        rates: learning rates that are seen at the end of epochs.
    """
    used = []
    for epoch in epochs:
        for step in range(PER_EPOCH * epoch, PER_EPOCH * (epoch + 1)):
            optimizer.zero_grad()

            def draw(name: str, shape: tuple[int, ...], rank: int, at: int, epoch: int = epoch) -> torch.Tensor:
                return loudness(name, epoch) * (gradient(name, shape, 0, 0) + 0.1 * gradient(name, shape, rank, at))

            backward(parameters, engine.rank, step, draw)
            optimizer.step()
            if step == PER_EPOCH * epoch:
                used.append({names[0]: d.ratio for names, d in of(optimizer).decisions.items()})
        group = optimizer.param_groups[0]
        rate, group["lr"] = group["lr"], (rates or {}).get(epoch, group["lr"])
        of(optimizer).end_epoch()
        group["lr"] = rate  # ranks train alike
    return used


LOW, HIGH = {"quiet": 0.5, "loud": 0.5}, {"quiet": 0.05, "loud": 0.05}
MIXED = {"quiet": 0.05, "loud": 0.5}


def test_who_changes_is_critical_and_who_does_not_is_not() -> None:
    """Epochs 0, 2, 4, ... are compared: at the end of epoch 2 for the first time."""

    def body(engine: InProcessEngine) -> tuple[list[dict[str, float]], list[str]]:
        parameters, optimizer = start(engine, Compression.accordion(*TOPK, every=2))
        used = train(engine, parameters, optimizer, range(6))
        return used, [d.reason for d in of(optimizer).decisions.values()]

    first, second = run_ranks(RANKS, body)
    assert first == second
    used, reasons = first
    assert [{k: round(v, 2) for k, v in each.items()} for each in used] == [LOW, LOW, LOW, MIXED, MIXED, MIXED]
    assert sorted(reason.split(";")[0].split(":")[0] for reason in reasons) == ["critical", "not critical"]


def test_a_decay_of_the_learning_rate_is_critical_until_the_next_comparison() -> None:
    def body(engine: InProcessEngine) -> list[dict[str, float]]:
        parameters, optimizer = start(engine, Compression.accordion(*TOPK, every=3))
        return train(engine, parameters, optimizer, range(9), {4: 0.01} if engine.rank else {})

    first, second = run_ranks(RANKS, body)
    assert first == second, "one rank saw it, and all do the same"
    quiet = [round(each["quiet"], 2) for each in first]
    assert quiet == [0.5, 0.5, 0.5, 0.5, 0.05, 0.5, 0.5, 0.05, 0.05]


def test_a_training_without_epochs_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """When there were more steps than most epochs have, or else at the end."""
    monkeypatch.setattr(accordion, "LONG", 7)

    def body(engine: InProcessEngine, steps: int, epochs: int) -> None:
        parameters, optimizer = start(engine, Compression.accordion(*TOPK))
        for step in range(steps):
            optimizer.zero_grad()
            backward(parameters, engine.rank, step)
            optimizer.step()
        for _ in range(epochs):
            of(optimizer).end_epoch()
        optimizer._reducer.close()

    for steps, epochs, told in ((9, 0, "in 7 steps"), (5, 0, "in 5 steps"), (5, 1, None), (1, 0, None)):
        caplog.clear()
        run_ranks(RANKS, partial(body, steps=steps, epochs=epochs))
        said = [record.getMessage() for record in caplog.records if "no end of an epoch" in record.getMessage()]
        assert len(said) == (told is not None)
        assert told is None or (told in said[0] and "call hvd.of(optimizer).end_epoch()" in said[0])


def test_an_epoch_without_a_step_is_a_mistake() -> None:
    """Its sum of gradients would be zero, and every regime critical."""

    def body(engine: InProcessEngine) -> None:
        parameters, optimizer = start(engine, Compression.accordion(*TOPK, every=1))
        train(engine, parameters, optimizer, range(2))
        with pytest.raises(UsageError, match=r"step 6: no step was taken since .* end_epoch\(\) was called twice"):
            of(optimizer).end_epoch()
        train(engine, parameters, optimizer, range(2, 3))

    run_ranks(RANKS, body)


def test_epochs_by_steps_are_those_of_the_program() -> None:
    """One step late: the rates of an epoch are known in its first one. What the program says of epochs is ignored."""

    def body(engine: InProcessEngine, by_steps: bool) -> list[tuple[float, ...]]:
        request = Compression.accordion(*TOPK, every=2, epoch_steps=PER_EPOCH if by_steps else None)
        parameters, optimizer = start(engine, request)
        used = []
        for at in range(7 * PER_EPOCH):
            one_step(engine, parameters, optimizer, at)
            used.append(tuple(sorted(round(d.ratio, 2) for d in of(optimizer).decisions.values())))
            if at % PER_EPOCH == PER_EPOCH - 1:
                optimizer.param_groups[0]["lr"] /= 10 if at // PER_EPOCH == 4 else 1
                of(optimizer).end_epoch()
        return used

    told, counted = (run_ranks(RANKS, lambda e, by=by: body(e, by)) for by in (False, True))
    assert told[0] == told[1]
    assert counted[0] == counted[1]
    assert counted[0][PER_EPOCH:] == told[0][PER_EPOCH - 1 : -1] or counted[0] == told[0], (told[0], counted[0])
    assert (0.5, 0.5) in told[0][5 * PER_EPOCH :], "the rate has decayed"


def test_a_step_that_is_not_finite_is_in_no_sum() -> None:
    def body(engine: InProcessEngine) -> list[bool]:
        parameters, optimizer = start(engine, Compression.accordion(*TOPK))
        for at in range(PER_EPOCH):
            broken = at == 1 and engine.rank == 0
            optimizer.zero_grad()
            backward(parameters, engine.rank, at, lambda *where, b=broken: gradient(*where) * (math.nan if b else 1.0))
            optimizer.step()
        sums = remembered(optimizer.state_dict()["hvd_compress"])["states"][RESULT_SUM]
        return [bool(torch.isfinite(sum_).all() and sum_.norm() > 0) for sum_ in sums.values()]

    assert run_ranks(RANKS, body) == [[True, True]] * RANKS


def test_nothing_is_lost_across_switches() -> None:
    """What ranks have given, on average, is what has come back and what is left."""

    def body(engine: InProcessEngine) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        parameters, optimizer = start(engine, Compression.accordion(*TOPK, every=1))
        given = got = torch.zeros(sum(p.numel() for p in parameters.values()), dtype=torch.float64)
        for step in range(12):
            optimizer.zero_grad()
            factor = 4.0 if step % 4 == 0 else 1.0
            backward(parameters, engine.rank, step, lambda *where, factor=factor: factor * gradient(*where))
            names = [(name, tuple(p.shape)) for name, p in parameters.items()]
            own = [(factor * gradient(name, shape, engine.rank, step)).reshape(-1) for name, shape in names]
            given = given + torch.cat(own).double()
            optimizer.step()
            got = got + flat_gradient(parameters).double()
            of(optimizer).end_epoch()
        return given, got, flat_residual(optimizer, parameters).double()

    ranks = run_ranks(RANKS, body)
    given = sum(rank[0] for rank in ranks) / RANKS
    left = sum(rank[2] for rank in ranks) / RANKS
    assert torch.allclose(given, ranks[0][1] + left, atol=1e-4)


def test_a_warm_start_goes_on_with_another_rank() -> None:
    """Columns that both ranks of PowerSGD have stay to the bit."""

    def body(engine: InProcessEngine) -> tuple[list[tuple[int, ...]], bool, bool]:
        levels = (Compression.powersgd(3), Compression.powersgd(1))
        parameters, optimizer = start(engine, Compression.accordion(*levels, every=1))

        def factor() -> torch.Tensor:
            return remembered(optimizer.state_dict()["hvd_compress"])["states"]["powersgd.q"]["quiet"]

        train(engine, parameters, optimizer, range(1))
        seen = [factor()]
        for step in range(PER_EPOCH):
            one_step(engine, parameters, optimizer, step)
        seen.append(factor())
        of(optimizer).end_epoch()  # norms are as before: rank 1 from now on
        seen.append(factor())
        one_step(engine, parameters, optimizer, PER_EPOCH)
        seen.append(factor())
        optimizer.param_groups[0]["lr"] /= 10
        of(optimizer).end_epoch()  # rank 3 is back
        seen.append(factor())
        kept = torch.equal(seen[2], seen[1][:, :1]) and torch.equal(seen[4][:, :1], seen[3])
        one_step(engine, parameters, optimizer, 2 * PER_EPOCH)
        return [tuple(each.shape) for each in seen], kept, bool(torch.isfinite(factor()).all())

    for shapes, kept, finite in run_ranks(RANKS, body):
        assert shapes == [(24, 3), (24, 3), (24, 1), (24, 1), (24, 3)]
        assert kept
        assert finite


def test_other_columns_begin_anew() -> None:
    compressor = Compression.powersgd(3).compressor
    kept, new = torch.randn(24, 1), torch.randn(24, 3)
    assert torch.equal(compressor.resized(kept, new), torch.cat([kept, new[:, 1:]], dim=1))
    assert torch.equal(compressor.resized(new, kept), new[:, :1])


@pytest.mark.parametrize("after", [1, 3])
def test_a_resumed_training_is_the_uninterrupted_one(after: int) -> None:
    """Saved in the middle of an epoch that is compared, or at its end, which is noticed in the next step."""

    def body(engine: InProcessEngine) -> tuple[bool, bool]:
        request = Compression.accordion(*TOPK, every=2, epoch_steps=PER_EPOCH)
        parameters, optimizer = start(engine, request, 0)  # a check may be under way when another optimizer begins
        for at in range(2 * PER_EPOCH + after):
            one_step(engine, parameters, optimizer, at)
        before = of(optimizer).decisions
        state, values = copy.deepcopy(optimizer.state_dict()), {n: p.detach().clone() for n, p in parameters.items()}
        used = []
        for at in range(2 * PER_EPOCH + after, 5 * PER_EPOCH):
            one_step(engine, parameters, optimizer, at)
            used.append(of(optimizer).decisions)
        again, resumed = start(engine, request, 0)
        for name, parameter in again.items():
            parameter.data.copy_(values[name])
        resumed.load_state_dict(state)
        again_used = []
        for at in range(2 * PER_EPOCH + after, 5 * PER_EPOCH):
            one_step(engine, again, resumed, at)
            again_used.append(of(resumed).decisions)
        assert used[-1] != before, "it has switched"
        return used == again_used, all(torch.equal(parameters[name], again[name]) for name in parameters)

    assert run_ranks(RANKS, body) == [(True, True)] * RANKS


def one_step(
    engine: InProcessEngine, parameters: dict[str, torch.nn.Parameter], optimizer: ReducingOptimizer, at: int
) -> None:
    optimizer.zero_grad()
    epoch = at // PER_EPOCH
    backward(parameters, engine.rank, at, lambda name, *rest: loudness(name, epoch) * gradient(name, *rest))
    optimizer.step()


@pytest.mark.parametrize(
    "choice",
    [
        "[1]",
        json.dumps({"policy": "accordion"}),
        *(
            json.dumps({"policy": "accordion", "epoch": 1, "steps": 0, "rates": [], "why": "", **wrong})
            for wrong in (
                {"norms": {"quiet": -1.0}, "calm": {}},
                {"norms": {}, "calm": []},
                {"norms": {}, "calm": {}, "epoch": -1},
                {"norms": {}, "calm": {}, "rates": [None]},
            )
        ),
    ],
)
def test_what_is_no_choice_is_an_error_of_all_ranks(choice: str) -> None:
    def body(engine: InProcessEngine) -> None:
        parameters, optimizer = start(engine, Compression.accordion(*TOPK))
        train(engine, parameters, optimizer, range(1))
        state = copy.deepcopy(optimizer.state_dict())
        state["hvd_compress"]["choice"] = choice
        again, resumed = start(engine, Compression.accordion(*TOPK))
        resumed.load_state_dict(state)
        with pytest.raises(ConfigError, match="the choice in this state of a compression is not valid"):
            train(engine, again, resumed, range(1, 2))

    run_ranks(RANKS, body)


@pytest.mark.parametrize(
    ("low", "high", "options", "words"),
    [
        (Compression.topk(0.1), Compression.int8(), {}, "must be two levels of one compressor"),
        (Compression.topk(0.1), Compression.topk(0.1), {}, "there is nothing to switch between"),
        (Compression.auto(), Compression.topk(0.1), {}, "low = what chooses by itself, Auto must be a compression of"),
        (Compression.topk(0.1), None, {}, "high = None must be a compression"),
        (Compression.topk(0.1), Compression.topk(0.01).by(engine="mpi"), {}, "the same engine, device and feedback"),
        (*reversed(TOPK), {}, "low is the lower compression, and comes first"),
        (*TOPK, {"eta": 0}, "eta = 0 must be a share"),
        (*TOPK, {"eta": math.nan}, "eta = nan must be a share"),
        (*TOPK, {"eta": 50}, "1 at most: 0.5 is 50 %"),
        (*TOPK, {"every": 0}, "every = 0 is not a whole number"),
        (*TOPK, {"epoch_steps": 2.5}, "epoch_steps = 2.5 is not a whole number"),
        (*TOPK, {"per_parameter": 1}, "per_parameter = 1 is neither True nor False"),
    ],
)
def test_what_is_no_pair_of_levels(low: Request, high: Request, options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Compression.accordion(low, high, **options)  # type: ignore[arg-type]


def test_who_saves_a_plan_is_told_that_it_switches_no_level(tmp_path: Path) -> None:
    def body(engine: InProcessEngine) -> None:
        parameters, optimizer = start(engine, Compression.accordion(*TOPK))
        train(engine, parameters, optimizer, range(1))
        with pytest.warns(
            UserWarning, match=r"the level of each bucket now, and switches none: accordion\(\) itself does"
        ):
            of(optimizer).save_plan(tmp_path / f"plan-{engine.rank}.json")

    run_ranks(1, body)
    assert (tmp_path / "plan-0.json").exists()


def test_each_parameter_by_itself_where_that_is_asked_for() -> None:
    def body(engine: InProcessEngine, by_itself: bool) -> list[tuple[str, ...]]:
        parameters = make_parameters(SHAPES)
        request = Compression.accordion(*TOPK, per_parameter=by_itself)
        made = partial(make_optimizer, parameters, request, lambda: engine, engine.rank, engine.world_size)
        optimizer = made(settings=Settings(1 << 20, 60, adapt=False))
        train(engine, parameters, optimizer, range(1))
        return sorted(of(optimizer).decisions)

    assert run_ranks(RANKS, lambda engine: body(engine, True)) == [[("loud",), ("quiet",)]] * RANKS
    assert [len(names) for names in run_ranks(RANKS, lambda engine: body(engine, False))] == [1] * RANKS


def test_an_epoch_ends_between_steps() -> None:
    def body(engine: InProcessEngine) -> None:
        parameters, optimizer = start(engine, Compression.accordion(*TOPK))
        of(optimizer).end_epoch()  # before the first step there is nothing to compare
        train(engine, parameters, optimizer, range(1))
        backward(parameters, engine.rank, 3)
        with pytest.raises(UsageError, match=r"end_epoch\(\)"):
            of(optimizer).end_epoch()
        with pytest.raises(UsageError, match=r"gather_figures\(\)"):
            of(optimizer).gather_figures([1.0])
        optimizer.step()
        assert of(optimizer).gather_figures([float(engine.rank)]) == [[0.0], [1.0]]

    run_ranks(RANKS, body)


def resumed(
    engine: InProcessEngine, request: Request, state: dict[str, object], values: dict[str, torch.Tensor]
) -> tuple[dict[str, torch.nn.Parameter], ReducingOptimizer]:
    parameters, optimizer = start(engine, request, 0)
    for name, parameter in parameters.items():
        parameter.data.copy_(values[name])
    optimizer.load_state_dict(copy.deepcopy(state))  # type: ignore[arg-type]
    return parameters, optimizer


@pytest.mark.parametrize("before", [None, 4 * PER_EPOCH])
def test_a_resumed_training_may_have_shorter_epochs(before: int | None) -> None:
    def body(engine: InProcessEngine) -> set[float]:
        parameters, optimizer = start(engine, Compression.accordion(*TOPK, every=1, epoch_steps=before), 0)
        for at in range(3 * PER_EPOCH):
            one_step(engine, parameters, optimizer, at)
        values = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        request = Compression.accordion(*TOPK, every=1, epoch_steps=2)
        parameters, optimizer = resumed(engine, request, optimizer.state_dict(), values)
        for at in range(12):
            one_step(engine, parameters, optimizer, at % PER_EPOCH)
        return {round(each.ratio, 2) for each in of(optimizer).decisions.values()}

    assert run_ranks(RANKS, body) == [{0.05}] * RANKS


def test_rates_that_differ_in_their_last_bits_are_no_other_choice() -> None:
    """As after a scheduler that reads a loss of this rank: rank 0's go into checkpoints."""

    def body(engine: InProcessEngine) -> tuple[set[float], set[float]]:
        parameters, optimizer = start(engine, Compression.accordion(*TOPK, every=1), 0)
        for _ in range(2):
            one_step(engine, parameters, optimizer, 0)
            optimizer.param_groups[0]["lr"] *= 1 + 1e-9 * engine.rank
            of(optimizer).end_epoch()
        values = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        used = {round(each.ratio, 2) for each in of(optimizer).decisions.values()}
        again, other = resumed(engine, Compression.accordion(*TOPK, every=1), optimizer.state_dict(), values)
        one_step(engine, again, other, 0)
        return used, {round(each.ratio, 2) for each in of(other).decisions.values()}

    assert run_ranks(RANKS, body) == [({0.05}, {0.05})] * RANKS


@pytest.mark.filterwarnings("ignore:residuals of rank 0")
def test_sums_that_rank_0_alone_has_loaded_are_those_of_all() -> None:
    """Saved in the middle of an epoch that is compared."""

    def body(engine: InProcessEngine) -> tuple[list[float], list[float]]:
        request = Compression.accordion(*(Compression.topk(r).by(collective="allgather") for r in (1.0, 0.05)), every=1)
        parameters, optimizer = start(engine, request, 0)
        for at in range(4):
            one_step(engine, parameters, optimizer, at)
        state, values = optimizer.state_dict(), {n: p.detach().clone() for n, p in parameters.items()}
        kept = remembered(copy.deepcopy(state)["hvd_compress"])["states"][RESULT_SUM]
        again, other = start(engine, request, 0)
        for name, parameter in again.items():
            parameter.data.copy_(values[name])
        if engine.rank == 0:
            other.load_state_dict(copy.deepcopy(state))
        one_step(engine, again, other, 4)
        one_step(engine, parameters, optimizer, 4)
        sums = [remembered(each.state_dict()["hvd_compress"])["states"][RESULT_SUM] for each in (optimizer, other)]
        assert kept.keys() == sums[0].keys()
        return [[float(sum_[name].norm()) for name in sorted(sum_)] for sum_ in sums]  # type: ignore[return-value]

    for uninterrupted, gone_on in run_ranks(RANKS, body):
        assert gone_on == pytest.approx(uninterrupted)


def test_what_is_loaded_while_training_leaves_the_epoch_that_goes_on() -> None:
    def body(engine: InProcessEngine) -> bool:
        parameters, optimizer = start(engine, Compression.accordion(*TOPK), 0)
        one_step(engine, parameters, optimizer, 0)
        state = copy.deepcopy(optimizer.state_dict())
        one_step(engine, parameters, optimizer, 1)
        before = remembered(copy.deepcopy(optimizer.state_dict())["hvd_compress"])["states"][RESULT_SUM]
        optimizer.load_state_dict(state)
        after = remembered(optimizer.state_dict()["hvd_compress"])["states"][RESULT_SUM]
        return all(torch.equal(before[name], after[name]) for name in before)

    assert run_ranks(RANKS, body) == [True] * RANKS


@pytest.mark.parametrize("figures", [["a"], [None], [[1.0]]])
def test_figures_are_numbers(figures: list[object]) -> None:
    def body(engine: InProcessEngine) -> list[list[float]]:
        parameters, optimizer = start(engine, Compression.dense(), 0)
        one_step(engine, parameters, optimizer, 0)
        with pytest.raises(ConfigError, match="figures must be numbers"):
            of(optimizer).gather_figures(figures)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="ranks bring 1, 2 figures"):
            of(optimizer).gather_figures([1.0] * (engine.rank + 1))
        return of(optimizer).gather_figures([math.inf])

    assert run_ranks(RANKS, body) == [[[math.inf]] * RANKS] * RANKS


def test_norms_do_not_depend_on_a_loss_scale() -> None:
    """Which doubles from one epoch to the next."""

    def body(engine: InProcessEngine, scales: tuple[float, float]) -> list[float]:
        parameters, optimizer = start(engine, Compression.accordion(*TOPK, every=1), 0)
        scaler = torch.amp.GradScaler("cpu", init_scale=scales[0], growth_interval=10_000)
        of(optimizer).follow_loss_scale(scaler)
        for at in range(2):
            for step in range(PER_EPOCH):
                optimizer.zero_grad()
                where = partial(scaled, scales[at])
                scaler.scale(torch.ones(()))  # as a loss does
                backward(parameters, engine.rank, step, where)
                optimizer.synchronize()
                with optimizer.skip_synchronize():
                    scaler.step(optimizer)
                scaler.update(scales[at])
            if at == 0:
                scaler.update(scales[1])
            of(optimizer).end_epoch()
        return [round(each.ratio, 2) for each in of(optimizer).decisions.values()]

    def scaled(scale: float, *where: object) -> torch.Tensor:
        return scale * gradient(*where)  # type: ignore[arg-type]

    assert run_ranks(RANKS, lambda engine: body(engine, (2.0, 4.0))) == [[0.05, 0.05]] * RANKS
