"""`hvd-compress choose`."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from hvd_compress.cli.main import main

ARGUMENTS = {"numel": "25557032", "ratio": "0.01", "world-size": "8", "latency": "1ms", "bandwidth": "5gbit"}


def choose(*flags: str, **changed: str):
    options = {**ARGUMENTS, **{name.replace("_", "-"): value for name, value in changed.items()}}
    return CliRunner().invoke(main, ["choose", *flags, *(f"--{name}={value}" for name, value in options.items())])


def test_json_has_the_promised_shape() -> None:
    result = choose("--json", candidates="allgather,artopk-ring,artopk-tree")
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert set(found) == {"candidates", "winner"}
    names = [(row["collective"], row["algorithm"]) for row in found["candidates"]]
    assert names == [("allgather", "auto"), ("artopk", "ring"), ("artopk", "tree")]
    assert all(set(row) == {"collective", "algorithm", "seconds"} for row in found["candidates"])
    k, alpha, beta = 255_570, 1e-3, 8 / 5e9
    expected = [3 * alpha + 56 * k * beta, 17 * alpha + 19 * k * beta, 9 * alpha + 36 * k * beta]  # section 3-D, Eq. 4
    assert [row["seconds"] for row in found["candidates"]] == pytest.approx(expected)
    assert found["winner"] == found["candidates"][2]


def test_numbers_may_be_written_as_people_write_them() -> None:
    assert choose(numel="25.557032M", ratio="1%").output == choose().output


def test_table_marks_the_fastest_of_what_training_can_run() -> None:
    result = choose()
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert len(lines) == 9
    assert lines[0].startswith("artopk-recursive_doubling")
    assert [line for line in lines if "<- fastest" in line] == lines[:1]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"latency": "1"}, "latency '1' has no unit"),
        ({"latency": "-1ms"}, "not negative"),
        ({"bandwidth": "5"}, "bandwidth '5' has no unit"),
        ({"bandwidth": "0gbit"}, "more than zero"),
        ({"ratio": "0"}, "outside (0, 1]"),
        ({"ratio": "nan"}, "outside (0, 1]"),
        ({"ratio": "5%%"}, "'5%%' is not a ratio, such as 0.01 or 1%"),
        ({"numel": "0"}, "numel"),
        ({"world_size": "0"}, "world-size"),
        ({"candidates": "allgather,gossip"}, "unknown path 'gossip'"),
        ({"candidates": "dense-bruck"}, "unknown algorithm of dense 'bruck'"),
    ],
)
def test_bad_input_is_one_clear_message(changed: dict[str, str], says: str) -> None:
    result = choose(**changed)
    assert result.exit_code == 2
    assert says in result.output
    assert "Traceback" not in result.output
