"""What a search loses over always taking the best arm, on a clock that is not real (a minute, no network):

    python -m benchmarks.auto.regret

The trainings of tests/unit/policies/auto/test_simulation.py, 500 steps, and the paths of top-k, replayed with the times
of benchmarks/results/controller-grid.json.
"""

from __future__ import annotations

import random
from statistics import mean, median

from benchmarks.auto.grid import read_grid
from tests.unit.policies.auto.test_replay import SEEDS, searched
from tests.unit.policies.auto.test_simulation import SCENARIOS, STEPS, VARIED, Training, trainings


def varied() -> list[Training]:
    found = [Training(seed=seed, **VARIED) for seed in range(40)]
    for training in found:
        training.run(STEPS)
    return found


def main() -> None:
    print("| training | lost, mean of seeds | most | steps of the first search, most |")
    print("| --- | ---: | ---: | ---: |")
    for name in (*SCENARIOS, "batches by length"):
        found = [training for training, _ in trainings(name)] if name in SCENARIOS else varied()
        lost = [training.regret for training in found]
        steps = max(training.settled_at[0] for training in found)
        print(f"| {name} | {mean(lost):.1%} | {max(lost):.1%} | {steps} |")
    cells = read_grid()
    before = [cell["measured"][cell["chosen"]] / min(cell["measured"].values()) - 1 for cell in cells]
    means, worst, most = [], [], 0
    for seed in range(SEEDS):
        noise, lost = random.Random(seed), []
        for cell in cells:
            path, steps = searched(cell["measured"], cell["predicted"], noise)
            lost.append(cell["measured"][path] / min(cell["measured"].values()) - 1)
            most = max(most, steps)
        means.append(mean(lost))
        worst.append(max(lost))
    print(f"\ntop-k's paths in {len(cells)} cells, {SEEDS} seeds, up to {most} steps, lost to the best path:")
    print(f"by a search {mean(means):.1%} in the mean and {median(worst):.0%} in the worst cell,")
    print(f"by the controller of before {mean(before):.1%} and {max(before):.0%}")


if __name__ == "__main__":
    main()
