"""`hvd-compress whatif`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from matplotlib.figure import Figure

from hvd_compress.cli.main import main
from hvd_compress.compression.named import names
from hvd_compress.compressors import COMPRESSORS
from hvd_compress.profiler.profiles import NAMES
from tests.absurd import ABSURD, LEAVES, put, said
from tests.unit.profiler import profile_files

TENSORS = [
    {"name": "bias", "numel": 1000, "backward_us": 10_000},
    {"name": "weight", "numel": 20_000_000, "backward_us": 90_000},
]
MODEL: dict[str, Any] = {"model": "tiny [red]net", "tensors": TENSORS}
TIMES = {"numel": [1000, 100_000_000], "us": [10.0, 40_000.0]}
COMPRESSOR: dict[str, Any] = {
    "compressor": {"name": "topk", "ratio": 0.01},
    "payload": {"per_element_bytes": 0.08},
    "devices": {"training": {"compress": TIMES, "decompress": TIMES}},
}
LINK = {"alpha_us": 10.0, "bytes_per_s": 1.25e9}
NETWORK = ("--world-size", "8", "--bandwidth", "5gbit", "--latency", "10us")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return _written(tmp_path / "model.json", MODEL)


def _written(path: Path, said: dict[str, Any]) -> Path:
    path.write_text(json.dumps(said))
    return path


def whatif(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "100"}).invoke(main, ["whatif", *map(str, arguments)])


def answers(*arguments: object) -> dict[str, Any]:
    result = whatif(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)
    return found


def test_json_by_hand(model: Path) -> None:
    """80.004 MB in 4 buckets; dense: 3 buckets of 26.2144 MB and one of 1.3608; 7/8 * 2 of that at 625 MB/s."""
    found = answers(model, *NETWORK, "--payload", "1%", "--encode", "20ms", "--decode", "1ms")
    assert found["buckets"] == 4
    assert found["gradient_bytes"] == 4 * 20_001_000
    latency_s, per_byte_s = 14 * 10e-6, 1.75 / 625e6
    transfer_s = 4 * latency_s + 80_004_000 * per_byte_s
    assert found["dense"]["total_s"] == pytest.approx(transfer_s)
    compressed_s = 0.1 + 0.021 + latency_s + 800_040 * per_byte_s
    assert found["compressed"]["total_s"] == pytest.approx(compressed_s)
    assert found["speedup"] == pytest.approx(transfer_s / compressed_s)
    there = found["pays_below_bytes_per_s"]
    assert 4 * latency_s + 1.75 * 80_004_000 / there == pytest.approx(0.121 + latency_s + 1.75 * 800_040 / there)
    assert found["pays_above_bytes_per_s"] is None
    assert found["coding_budget_s"] == pytest.approx(transfer_s - compressed_s + 0.021)
    assert found["compute"][0]["times"] == 1
    assert found["compute"][0]["speedup"] == pytest.approx(found["speedup"])
    assert {row["l"] for row in found["tradeoff"]} == {1, 2, 3}
    assert [row["dense"]["total_s"] for row in found["bandwidths"]] == sorted(
        (row["dense"]["total_s"] for row in found["bandwidths"]), reverse=True
    )


def test_one_screen_says_whether_it_pays(model: Path) -> None:
    result = whatif(model, *NETWORK, "--payload", "1%", "--encode", "20ms")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].startswith("a payload of 1% would pay for tiny [red]net: 122.4 ms a step instead of 224.6, 1.84")
    assert len(lines) <= 35
    assert max(map(len, lines)) <= 100
    assert any(line.startswith("- It pays at bandwidths below 9.") for line in lines)
    slower = whatif(model, *NETWORK, "--payload", "1%", "--encode", "200ms")
    assert "would not pay for" in slower.output


def test_a_compressor_by_its_name(model: Path) -> None:
    found = answers(model, *NETWORK, "--compressor", "topk:ratio=0.01", "--encode", "5ms")
    assert found["compression"] == {"name": "topk:ratio=0.01", "payload_bytes": 8 * 200_010, "summable": False}
    by_hand = answers(model, *NETWORK, "--payload", 8 * 200_010, "--gather", "--encode", "5ms")
    assert by_hand["compressed"] == found["compressed"]


def test_a_compressor_by_the_name_of_its_compression(model: Path) -> None:
    found, as_in_a_plan = (answers(model, *NETWORK, "--compressor", name) for name in ("int4", "blocks:bits=4"))
    assert found["compression"].pop("name") == "int4"
    assert as_in_a_plan["compression"].pop("name") == "blocks:bits=4"
    assert found == as_in_a_plan


def test_a_folder_of_a_profile(tmp_path: Path) -> None:
    folder = profile_files.write(tmp_path / "profile")
    files = answers(folder / "model.json", *said_by(folder / "system.json", folder / "compressor.json"))
    assert answers(folder, *said_by(folder, folder)) == files


def said_by(system: Path, compressor: Path) -> tuple[object, ...]:
    return "--system", system, "--compressor-profile", compressor


def test_a_measured_compressor_and_system(model: Path, tmp_path: Path) -> None:
    compressor = _written(tmp_path / "compressor.json", COMPRESSOR)
    system = {"hosts": 4, "ranks_per_host": 2, "within": LINK | {"bytes_per_s": 1e10}, "across": LINK}
    found = answers(model, "--system", _written(tmp_path / "system.json", system), "--compressor-profile", compressor)
    assert found["network"] == {"alpha_s": pytest.approx(1e-5), "bytes_per_s": pytest.approx(1.25e9), "world_size": 8}
    assert found["compression"]["payload_bytes"] == pytest.approx(0.08 * 20_001_000)
    assert found["compressed"]["decode_s"] == pytest.approx(8 * found["compressed"]["encode_s"])


@pytest.mark.parametrize("columns", [80, 120])
def test_lines_are_broken_between_words(model: Path, columns: int) -> None:
    arguments = ["whatif", str(model), *NETWORK, "--payload", "1%", "--encode", "20ms"]
    result = CliRunner(env={"COLUMNS": str(columns)}).invoke(main, arguments)
    assert max(map(len, result.output.splitlines())) <= columns
    words = set(result.output.split())
    assert {"compressed", "1.5x", "bandwidths", "hidden.", "communication"} <= words, result.output
    assert "Payload of a rank: 800 kB, summed on its way" in " ".join(result.output.split())


def test_where_it_pays_is_said_in_words(model: Path) -> None:
    """With many buckets and a long latency dense loses on a fast network, too."""
    result = whatif(model, "--world-size", 8, "--bandwidth", "100gbit", "--payload", "200%", "--gamma", "1.5")
    said = " ".join(result.output.split())
    assert "It pays at bandwidths above " in said
    assert "and, with --gamma, the slower backward pass" in said


def test_the_backward_pass_can_be_given(model: Path) -> None:
    assert answers(model, *NETWORK, "--payload", "1%", "--backward", "1s")["compressed"]["backward_s"] == 1.0


def test_nothing_to_compute_and_nothing_to_send_is_no_crash(model: Path) -> None:
    found = answers(model, *NETWORK[:4], "--payload", "0%", "--backward", "0ms")
    assert found["speedup"] is None
    assert whatif(model, *NETWORK[:4], "--payload", "0%", "--backward", "0ms").exit_code == 0


def test_pictures(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "plots"
    result = whatif(model, *NETWORK, "--payload", "1%", "--plots", folder)
    assert result.exit_code == 0, result.output
    assert {path.name for path in folder.iterdir()} == {
        f"{name}.png" for name in ("ranks", "needed", "bandwidth", "compute", "tradeoff")
    }
    for path in folder.iterdir():
        assert path.read_bytes().startswith(b"\x89PNG")
        assert f"wrote {path}" in result.output.replace("\n", "")


def test_titles_of_pictures_say_what_network_it_is(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, str] = {}

    def spy(figure: Figure, path: Path, **_: object) -> None:
        (axes,) = figure.axes
        seen[path.stem] = axes.get_title().splitlines()[-1]

    monkeypatch.setattr(Figure, "savefig", spy)
    assert whatif(model, *NETWORK, "--payload", "1%", "--plots", tmp_path).exit_code == 0
    assert seen == {
        "ranks": "5 Gbit/s, latency 10 us",
        "needed": "8 ranks, latency 10 us",
        "bandwidth": "8 ranks, latency 10 us",
        "compute": "8 ranks, 5 Gbit/s, latency 10 us",
        "tradeoff": "8 ranks, 5 Gbit/s, latency 10 us",
    }


@pytest.mark.level2
def test_pictures_of_what_has_no_crossover(model: Path, tmp_path: Path) -> None:
    for options in (("--payload", "0%"), ("--payload", "200%"), ("--backward", "0ms", "--payload", "1%")):
        result = whatif(model, *NETWORK, *options, "--plots", tmp_path / "plots")
        assert result.exit_code == 0, result.output


def test_pictures_that_cannot_be_written(model: Path) -> None:
    result = whatif(model, *NETWORK, "--payload", "1%", "--plots", model / "plots")
    assert result.exit_code == 2
    assert "cannot write" in result.output


@pytest.mark.level2
def test_numbers_alone_import_no_torch(model: Path) -> None:
    arguments = ["whatif", str(model), *NETWORK, "--payload", "1%"]
    script = f"import sys; from hvd_compress.cli.main import main; main({arguments!r}, standalone_mode=False); "
    done = subprocess.run([sys.executable, "-c", script + "assert 'torch' not in sys.modules"], capture_output=True)
    assert done.returncode == 0, done.stderr


PAYLOAD = ("--payload", "1%")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((*NETWORK,), "which compression? Give one of --compressor, --payload and --compressor-profile"),
        ((*NETWORK, *PAYLOAD, "--compressor", "signsgd"), "which compression?"),
        (PAYLOAD, "which network? Give --world-size and --bandwidth, or --system"),
        (("--world-size", 1, "--bandwidth", "1gbit", *PAYLOAD), "with one rank nothing is communicated"),
        (("--world-size", 0, "--bandwidth", "1gbit", *PAYLOAD), "--world-size"),
        (("--world-size", 2, "--bandwidth", "0gbit", *PAYLOAD), "must be more than zero"),
        (("--world-size", 2, "--bandwidth", "10", *PAYLOAD), "bandwidth '10' has no unit: write it as 10gbit"),
        ((*NETWORK, *PAYLOAD, "--latency", "-1ms"), "must be a finite number that is not negative"),
        ((*NETWORK, *PAYLOAD, "--encode", "-45ms"), "encode '-45ms' must be a finite number that is not negative"),
        ((*NETWORK, *PAYLOAD, "--encode", "45"), "encode '45' has no unit: write it as 45ms"),
        ((*NETWORK, *PAYLOAD, "--backward", "nanms"), "backward 'nanms' must be a finite number"),
        ((*NETWORK, *PAYLOAD, "--gamma", "0.5"), "gamma = 0.5 is not a number, 1 or more"),
        ((*NETWORK, *PAYLOAD, "--bucket-mb", "0"), "bucket_bytes = 0.0 is not a number above 0"),
        ((*NETWORK, "--payload", "much"), "'much' is not a number of elements"),
        ((*NETWORK, "--payload", "-1%"), "is not a number, 0 or more"),
        ((*NETWORK, *PAYLOAD, "--system", "system.json"), "--system says what --world-size says"),
        ((*NETWORK, "--compressor", "topk", "--gather"), "--gather is for --payload"),
        ((*NETWORK, "--compressor", "topkk"), "unknown compressor 'topkk'; did you mean topk?"),
        (
            (*NETWORK, "--compressor", "topk:share=0.1"),
            "topk has no setting 'share'; it has values, ",
        ),
        ((*NETWORK, "--compressor", "int4:blok=64"), "stochastic, coded, seed; did you mean block?"),
        ((*NETWORK, "--compressor", "topk:ratio=2"), "outside (0, 1]"),
        ((*NETWORK, "--compressor", "dense"), "--compressor dense compresses nothing"),
        ((*NETWORK, "--compressor", "topk:0.01"), "'0.01' is no setting, such as ratio=0.01"),
        ((*NETWORK, "--compressor", "powersgd"), "tensors.0.shape of 'bias'"),
        ((*NETWORK, "--compressor-profile", "missing.json"), "cannot read the profile of a compressor missing.json"),
        ((*NETWORK, "--compressor-profile", "x.json", "--encode", "1ms"), "leave out --encode and --decode"),
    ],
)
def test_bad_input_is_one_clear_message(model: Path, options: tuple[object, ...], says: str) -> None:
    result = whatif(model, *options)
    assert result.exit_code == 2, result.output
    assert says in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"model": "tiny"}, "tensors: is missing"),
        ({"model": "tiny", "tensors": [{"name": "w", "numel": 1}]}, "tensors.0.backward_us: is missing"),
        ({"model": "tiny", "tensors": [TENSORS[0] | {"backward_us": 0}]}, "give the time of the backward pass"),
        (None, "cannot read the profile of a model"),
    ],
)
def test_a_bad_profile_is_named_by_its_path(tmp_path: Path, said: dict[str, Any] | None, says: str) -> None:
    path = tmp_path / "model.json"
    if said is not None:
        _written(path, said)
    result = whatif(path, *NETWORK, *PAYLOAD)
    assert result.exit_code == 2
    assert says in result.output


def test_quantisers_travel_by_owners_of_shards_and_not_by_an_all_gather(tmp_path: Path) -> None:
    """As int4() does: its time does not grow with the ranks, and it pays on a slow network."""
    model = {"model": "one", "tensors": [{"name": "w", "numel": 4_000_000, "backward_us": 1000.0}]}
    (tmp_path / "model.json").write_text(json.dumps(model))
    words = ["whatif", str(tmp_path / "model.json"), "--world-size", "64", "--bandwidth", "1gbit", "--json"]
    found = {}
    for name in ("blocks:bits=4", "topk:ratio=0.0625"):
        result = CliRunner().invoke(main, [*words, "--compressor", name])
        assert result.exit_code == 0, result.output
        found[name] = json.loads(result.output)["compression"]["summable"]
    assert found == {"blocks:bits=4": True, "topk:ratio=0.0625": False}


def test_files_of_two_runs_are_no_profile(tmp_path: Path) -> None:
    folder = profile_files.write(tmp_path / "profile")
    for name, run in (("model", "a"), ("compressor", "b")):
        path = folder / f"{name}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"run": run}))
    assert whatif(folder, *NETWORK, "--payload", "1%").exit_code == 0
    done = whatif(folder, *NETWORK, "--compressor-profile", folder)
    assert done.exit_code == 2
    assert "are of different runs, a and b" in done.output


@pytest.mark.parametrize("leaf", ABSURD, ids=repr)
def test_whatif_says_so_too(leaf: Any, tmp_path: Path) -> None:
    for path in LEAVES[::3]:
        profile_files.write(tmp_path, **put(said(), path, leaf))
        files = {name: str(tmp_path / file) for name, file in NAMES.items()}
        command = ["whatif", files["model"], "--system", files["system"], "--compressor-profile", files["compressor"]]
        done = CliRunner().invoke(main, [*command, "--json"])
        assert done.exit_code in (0, 2), (path, done.exception)
        assert done.exit_code == 0 or done.output.startswith("Error: "), (path, done.output)


@pytest.mark.parametrize("name", [*names(), *(name for name in COMPRESSORS if name not in names())])
def test_whatif_takes_every_compressor_by_name(name: str, tmp_path: Path) -> None:
    """Those that compress nothing are told so, by name."""
    text = f"{name}:tau=1.0" if name == "threshold" else f"{name}:bits=4" if name == "blocks" else name
    folder = profile_files.write(tmp_path, **profile_files.said())
    done = CliRunner().invoke(
        main, ["whatif", str(folder), "--world-size", "8", "--bandwidth", "1gbit", "--compressor", text]
    )
    if name in ("dense", "cast"):
        assert done.exit_code == 2
        assert f"--compressor {name} compresses nothing" in done.output
    else:
        assert done.exit_code == 0, done.output
        assert text in done.output
