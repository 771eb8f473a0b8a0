"""From the runs in build/time_to_accuracy to the one file of figures that is committed."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from benchmarks.frame.store import lines, read
from benchmarks.time_to_accuracy import lab
from benchmarks.time_to_accuracy.figures import EVERY, steps_to, with_all_rounds, without_gaps
from benchmarks.time_to_accuracy.lab import NETWORKS
from benchmarks.time_to_accuracy.losses import LONG_EVERY, LossRun
from benchmarks.time_to_accuracy.methods import METHODS
from benchmarks.time_to_accuracy.places import BEFORE, BUILD
from benchmarks.time_to_accuracy.tasks import TASKS

Kept = dict[str, Any]


def gather() -> Kept:
    """Return the figures of all runs that are there, and those that were committed before the first of them."""
    return merged(read(BEFORE), _gathered()) if BEFORE.exists() else _gathered()


def merged(before: Kept, found: Kept) -> Kept:
    """Add what was found to earlier figures, rounds after the earlier ones.

    Losses that are there stay: other methods went on until they had reached that dense's, to its last digit.
    """
    kept: Kept = {**_over(before, found), "losses": _over(found["losses"], before["losses"])}
    kept["long"] = _over(found.get("long", {}), before.get("long", {}))
    kept["circumstances"] = {
        half: [*earlier, *(each for each in found["circumstances"].get(half, []) if each not in earlier)]
        for half, earlier in before["circumstances"].items()
    }
    kept["losses"] = {task: dict(sorted(curves.items(), key=_place)) for task, curves in kept["losses"].items()}
    for task, networks in kept["seconds"].items():
        for network in networks:
            rounds = [with_all_rounds(half["seconds"]).get(task, {}).get(network, {}) for half in (before, found)]
            networks[network] = _behind(*rounds)
    return kept


def _over(before: Any, found: Any) -> Any:
    """Return what was found, and where that is an object what it lacks of the earlier one."""
    if not (isinstance(before, dict) and isinstance(found, dict)):
        return found
    return {**before, **{key: _over(before.get(key), value) for key, value in found.items()}}


def _place(curve: tuple[str, Any]) -> int:
    """Where a curve stands in methods.py; one that is no method any more comes last."""
    names = list(METHODS)
    return names.index(curve[0]) if curve[0] in names else len(names)


def _behind(before: Kept, found: Kept) -> Kept:
    """Put rounds after earlier ones. A method that took no part in a round has None there."""
    lengths = [max(map(len, half.values()), default=0) for half in (before, found)]
    names = [name for name in METHODS if name in before or name in found]
    return {name: [*before.get(name, [None] * lengths[0]), *found.get(name, [None] * lengths[1])] for name in names}


def _gathered() -> Kept:
    tasks = [task for task in TASKS if any((BUILD / "loss").glob(f"{task}-*.json"))]
    return {
        "circumstances": {
            "losses": _circumstances(_loss_runs("*") + _loss_runs("*", "long")),
            "seconds": _circumstances(_jobs()),
        },
        "parameters": {task: sum(p.numel() for p in TASKS[task].model().parameters()) for task in tasks},
        "losses": {task: _losses(task) for task in tasks},
        "long": {task: _losses(task, "long", LONG_EVERY) for task in TASKS if _loss_runs(task, "long")},
        "seconds": _by_network(list(TASKS), _seconds),
        "searches": _by_network(list(TASKS), _searches),
        "trainings": _by_network(list(TASKS), _trainings),
    }


def dumps(kept: Kept) -> str:
    """Return the figures as JSON, what is below the third level on one line."""
    kept = {**kept, "seconds": without_gaps(kept["seconds"])}
    return "{\n" + ",\n".join(f'"{key}": {_lines(value, 3)}' for key, value in kept.items()) + "\n}\n"


def _lines(value: Any, levels: int) -> str:
    if levels == 0 or not isinstance(value, dict) or not any(isinstance(each, dict | list) for each in value.values()):
        return json.dumps(value, separators=(",", ":"))
    return "{\n" + ",\n".join(f'"{key}": {_lines(each, levels - 1)}' for key, each in value.items()) + "\n}"


def _losses(task: str, kind: str = "loss", every: int = EVERY) -> dict[str, dict[str, list[float]]]:
    """Return the losses of each curve and seed, in the order of methods.py."""
    runs = _loss_runs(task, kind)
    place = {name: number for number, name in enumerate(METHODS)}
    runs.sort(key=lambda run: (place[run["method"]], run["curve"], run["seed"]))
    found: dict[str, dict[str, list[float]]] = defaultdict(dict)
    for run in runs:
        assert [steps for steps, _ in run["losses"]] == [every * (n + 1) for n in range(len(run["losses"]))]
        found[run["curve"]][str(run["seed"])] = [round(loss, 4) for _, loss in run["losses"]]
    return dict(found)


def _loss_runs(task: str, kind: str = "loss") -> list[Any]:
    """Return the runs of what is asked for now; `kind`: "loss", or "long"."""
    found = [read(file) for file in (BUILD / kind).glob(f"{task}-*.json")]
    return [run for run in found if _is_asked_for(run)]


def _is_asked_for(run: Kept) -> bool:
    task, method = run["task"], run["method"]
    if not METHODS[method].searches:
        return bool(run["asked"] == LossRun(task, method, run["seed"]).asked)
    plan = lab.plan_of(task, *run["curve"].split("-", 1))
    return plan.exists() and bool(run["asked"] == LossRun(task, method, run["seed"], plan).asked)


def _jobs() -> list[Any]:
    return [each for file in BUILD.glob("*/*.jsonl") for each in lines(file)]


def _circumstances(runs: list[Any]) -> list[Any]:
    """Return each machine and commit of the runs once."""
    found = {json.dumps(run["circumstances"], sort_keys=True) for run in runs}
    return [json.loads(each) for each in sorted(found)]


def _by_network(tasks: list[str], of: Any) -> dict[str, dict[str, Any]]:
    return {
        task: {network: found for network in NETWORKS if (found := of(task, network))}
        for task in tasks
        if any(of(task, network) for network in NETWORKS)
    }


def _seconds(task: str, network: str) -> dict[str, list[float | None]]:
    rounds = lines(lab.rounds_of(task, network))
    names = [name for name in METHODS if any(name in each for each in rounds)]
    return {name: [_rounded(each.get(name)) for each in rounds] for name in names}


def _searches(task: str, network: str) -> Kept:
    return {
        each["method"]: {
            "steps": len(each["step_s"]),
            "seconds": round(sum(each["step_s"]), 1),
            "chosen": list(dict.fromkeys(each["chosen"])),
        }
        for each in lines(lab.searches_of(task, network))
    }


def _trainings(task: str, network: str) -> Kept:
    found = {}
    for each in lines(lab.trainings_of(task, network)):
        steps = steps_to(each["losses"], each["target"])
        if steps is not None:
            whole = int(steps)
            seconds = sum(each["step_s"][:whole]) + (steps - whole) * each["step_s"][whole]
            found[each["method"]] = {"steps": round(steps, 1), "seconds": round(seconds, 1)}
            if each.get("chosen"):
                found[each["method"]]["chosen"] = each["chosen"]
    return found


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else float(f"{seconds:.3g}")
