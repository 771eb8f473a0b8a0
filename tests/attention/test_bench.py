"""hvd-compress chai bench, on models and lengths so small that it takes no time."""

from __future__ import annotations

import tests.supported_transformers  # noqa: F401

# isort: split

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from matplotlib.image import imread

from hvd_compress.attention import ClusterCounts, ClusteredCache
from hvd_compress.attention.bench import measuring, models, plot
from hvd_compress.attention.bench.measuring import Figure, is_noise
from hvd_compress.attention.bench.models import balanced_counts, weight_bytes
from hvd_compress.attention.cli import bench as chai_bench
from hvd_compress.attention.families import geometry
from hvd_compress.cli.main import main
from hvd_compress.errors import ConfigError
from tests.attention.models import FAMILIES, HEADS, LAYERS, POSITIONS, VOCABULARY, build

FEW = ("--rounds", 3, "--prefills", 3, "--threads", 1, "--lengths", "64,128")
KINDS = ["full", "all keys (k = H)", "CHAI", "CHAI-static"]
HEAD_BYTES = 4 * 32 // HEADS


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for family in FAMILIES:
        build(family).save_pretrained(folder / family)
    ClusterCounts.of([[0, 0, 2, 2, 0, 0, 6, 6], [0] * 8]).save(folder / "counts.json")
    ClusterCounts.of([range(4)] * 3).save(folder / "others.json")
    return folder


def bench(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(main, ["chai", "bench", *map(str, arguments)])


@pytest.mark.parametrize("family", FAMILIES)
def test_json_has_every_kind_at_every_length_beside_its_bytes(family: str, folders: Path) -> None:
    done = bench(folders / family, "--counts", folders / "counts.json", *FEW, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    figures = report["figures"]
    assert [(each["length"], each["kind"]) for each in figures] == [
        (length, kind) for length in (64, 128) for kind in KINDS
    ]
    key_heads = HEADS // 2 if family == "llama-gqa" else HEADS
    weights = report["weight_bytes"]
    assert weights == weight_bytes(build(family))
    for full, keys, chai, static in (figures[:4], figures[4:]):
        token_bytes = 2 * LAYERS * key_heads * HEAD_BYTES
        assert full["cache_bytes"] == keys["cache_bytes"] == full["length"] * token_bytes
        if key_heads == HEADS:
            kept = (3 + 8 + 1 + 8) / (2 * LAYERS * HEADS)
            assert chai["cache_bytes"] == static["cache_bytes"] == kept * full["cache_bytes"]
        assert static["cache_bytes"] < full["cache_bytes"]
        for each in (full, keys, chai, static):
            assert each["first_s"] > 0
            assert each["next_s"] > 0
            assert each["cache_share"] == each["cache_bytes"] / full["cache_bytes"]
            assert each["step_bytes"] == weights + each["cache_bytes"]
            assert each["floor"] == each["step_bytes"] / full["step_bytes"]
            for ratio, low, high in (each["first_ratio"], each["next_ratio"], each["next_of_all_keys"]):
                assert low <= ratio <= high
        assert full["first_ratio"] == full["next_ratio"] == keys["next_of_all_keys"] == [1, 1, 1]
    assert (report["clusters"], report["attention"], report["threads"]) == ([3, 1], "sdpa", 1)


def test_tables_that_fit_and_a_picture(folders: Path, tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    done = bench(folders / "gpt2", "--cache-share", "70%", "--batch", 2, "--plot", picture, *FEW)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines if not line.startswith("wrote"))
    assert "…" not in done.stdout
    rows = [line for line in lines if re.match(r" +(\d+ +)?(full|all keys|CHAI)", line)]
    assert len(rows) == 2 * 2 * len(KINDS) + 2 * 2
    assert "first token, medians of 3" in done.stdout
    full = 2 * 2 * LAYERS * 32 * 64 * 4
    (chai, *_) = [line.split() for line in rows[8:] if " CHAI " in line]
    assert chai[-1] == "0.688"
    assert chai[-4] == f"{(weight_bytes(build('gpt2')) + 0.6875 * full) / (weight_bytes(build('gpt2')) + full):.3f}"
    assert "lowest to" in done.stdout
    assert "interval" not in done.stdout
    assert imread(picture).std() > 0.1


def test_ratios_of_a_busy_machine_are_as_wide_as_others() -> None:
    """Or columns would be cut off."""
    cells = [cell for ratio in ((0.5, 0.066, 9.99961), (13.327, 1.0, 123.456)) for cell in chai_bench._ratio(ratio)]
    assert cells == ["0.500 ~", "0.066-10.00", "13.33 ~", "1.000-123.5"]


def test_a_shape_with_random_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    family, settings = models.SHAPES["llama-1b"]
    small = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 100}
    monkeypatch.setitem(models.SHAPES, "llama-1b", (family, {**settings, **small}))
    state = torch.random.get_rng_state()
    done = bench("--shape", "llama-1b", *FEW, "--dtype", "bfloat16", "--json")
    assert done.exit_code == 0, done.output
    assert torch.equal(state, torch.random.get_rng_state())
    report = json.loads(done.stdout)
    assert (report["heads"], report["key_heads"], report["dtype"]) == (32, 8, "bfloat16")
    assert report["figures"][0]["cache_bytes"] == 64 * 2 * 2 * 8 * 2 * (64 // 32)
    assert all(figure["cache_share"] <= 0.8 for figure in report["figures"] if figure["kind"].startswith("CHAI"))


def test_the_named_shapes_are_those_of_the_models() -> None:
    assert tuple(models.SHAPES) == chai_bench.SHAPES
    meta = torch.device("meta")
    counted = {}
    for name in models.SHAPES:
        with meta:
            model = models.shaped(name, 1024, torch.float32, meta)
        counted[name] = sum(each.numel() for each in model.parameters())
    assert counted == {"gpt2": 124_439_808, "llama-1b": 1_235_814_400, "llama-7b": 6_738_415_616}


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_that_a_step_reads(family: str) -> None:
    """All but the table of positions, and that of tokens where the head has a matrix of its own."""
    model = build(family)
    parameters = sum(each.nbytes for each in model.parameters())
    rows = POSITIONS if family == "gpt2" else VOCABULARY
    assert weight_bytes(model) == parameters - rows * 32 * 4


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("share", [0.7, 0.8, 0.93, 1.0])
def test_balanced_clusters_come_near_a_share(family: str, share: float) -> None:
    shape = geometry(build(family))
    counts = balanced_counts(shape, share)
    kept = sum(min(k, shape.key_heads) for k in counts.clusters)
    assert share - 1 / (2 * LAYERS * shape.key_heads) < (kept / (LAYERS * shape.key_heads) + 1) / 2 <= share
    for layer in counts.layers:
        sizes = [layer.membership.count(each) for each in set(layer.membership)]
        assert max(sizes) - min(sizes) <= 1
    if share == 1:
        assert counts.clusters == (HEADS, HEADS)


@pytest.mark.parametrize("family", FAMILIES)
def test_all_steps_that_are_timed_attend_to_as_many_tokens(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = build(family), []
    monkeypatch.setattr(measuring, "timed", lambda call: (call(), seen[-1][1] / 1000)[1])
    call = measuring._Length._call

    def noted(self: Any, ids: torch.Tensor, cache: Any) -> Any:
        found = call(self, ids, cache)
        seen.append((ids.shape[1], found.get_seq_length()))
        assert isinstance(found, ClusteredCache) == (model.config._attn_implementation != "sdpa")
        return found

    monkeypatch.setattr(measuring._Length, "_call", noted)
    figures = list(measuring.measure(model, balanced_counts(geometry(model), 0.8), [128], rounds=4, prefills=1))
    assert {each for each in seen if each[0] == 1} == {(1, 128)}
    assert [each for each in seen if each[0] > 1] == [(64, 64)] * 4 + [(128, 128)] * 4
    assert len(seen) == 8 + 4 * 4 * 2
    assert {figure.next_s for figure in figures} == {0.128}
    assert model.config._attn_implementation == "sdpa"


def test_ratios_are_paired_and_have_an_interval_from_six_rounds_on() -> None:
    full = [1.0, 2.0, 4.0, 1.0, 1.0]
    taken = {"full": full, "CHAI": [0.5 * each for each in full[:4]] + [0.9]}
    assert measuring._paired(taken, "CHAI") == (0.5, 0.5, 0.9)
    taken = {"full": full * 8, "CHAI": taken["CHAI"] * 8}
    assert measuring._paired(taken, "CHAI") == (0.5, 0.5, 0.5)
    assert [is_noise(each) for each in ((0.9, 0.8, 1.0), (0.9, 0.8, 0.99), (1.2, 1.1, 1.3))] == [True, False, False]


def test_a_time_within_noise_is_marked(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def figures(*_: object, **__: object) -> list[Figure]:
        rest = {
            "length": 64,
            "first_s": 0.001,
            "next_s": 0.001,
            "next_of_all_keys": (1.1, 1.05, 1.2),
            "cache_bytes": 1,
            "cache_share": 1.0,
        }
        noisy, clear = (0.97, 0.9, 1.1), (0.8, 0.7, 0.9)
        return [Figure("CHAI", first_ratio=noisy, next_ratio=clear, step_bytes=2, floor=1.0, **rest)]

    monkeypatch.setattr(measuring, "measure", figures)
    done = bench(folders / "gpt2", "--lengths", 64, "--rounds", 9)
    rows = [" ".join(line.split()) for line in done.stdout.splitlines() if " CHAI " in line]
    assert rows == ["64 CHAI 1.0 0.970 ~ 0.900-1.100", "64 CHAI 1.0 0.800 0.700-0.900 1.000 1 B 1.000",
                    "64 CHAI 1.0 1.100 1.050-1.200 1.000"]  # fmt: skip
    assert "95 %" in done.stdout
    assert "~ within noise" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("{}/gpt2", "--shape", "gpt2"), "--shape takes the place of MODEL"),
        (("{}/gpt2", "--counts", "{}/counts.json", "--cache-share", "0.8"), "give one of them"),
        (("{}/gpt2", "--counts", "{}/others.json", "--lengths", "64"), "these cluster counts are of 3 layers with 4"),
        (("{}/gpt2", "--counts", "{}/none.json"), "cannot read the file of cluster counts {}/none.json"),
        (("{}/gpt2", "--lengths", "100"), "a length of 100 tokens is no multiple of 64"),
        (("{}/gpt2", "--lengths", "64,192"), "192 tokens is more than GPT2LMHeadModel has positions: 160"),
        (("{}/gpt2", "--lengths", "64,"), "'64,' are no lengths, such as 1024,2048"),
        (("{}/gpt2", "--lengths", "0"), "'0' are no lengths"),
        (("{}/gpt2", "--lengths", f"1{'0' * 400}"), "are no lengths"),
        (("{}/gpt2", "--cache-share", "0.5", "--lengths", "64"), "values stay, which are half"),
        (("{}/gpt2", "--cache-share", "0.52", "--lengths", "64"), "leaves 0.5625 of the cache"),
        (("{}/none", "--lengths", "64"), "{}/none is neither a folder of save_pretrained() nor a model"),
        (("{}/gpt2", "--rounds", "2"), "2 is not in the range"),
        (("{}/gpt2", "--plot", "x.txt"), "the name of a picture ends in"),
        (("{}/gpt2", "--plot", "{}/counts.json", "--counts", "{}/counts.json"), "is an input of this command"),
        (("{}/gpt2", "--device", "cuda:77", "--lengths", "64"), "cannot put GPT2LMHeadModel on cuda:77"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], words: str, folders: Path) -> None:
    done = bench(*(each.format(folders) for each in arguments))
    assert done.exit_code == 2, (done.output, done.exception)
    assert isinstance(done.exception, SystemExit), done.exception
    assert words.format(folders) in re.sub(r"\s+", " ", done.stderr)


def test_a_picture_that_cannot_be_written(tmp_path: Path) -> None:
    once = (1.0, 1.0, 1.0)
    figure = Figure(measuring.ALL_KEYS, 64, 0.1, 0.1, once, once, once, 1, 1.0, 2, 1.0)
    with pytest.raises(ConfigError, match="cannot write"):
        plot.draw([figure], "title", tmp_path / "none" / "picture.png")


def test_by_default_lengths_are_those_that_the_model_has(tmp_path: Path) -> None:
    """Of 160 positions the longest that is a multiple of 64."""
    build("gpt2").save_pretrained(tmp_path / "model")
    done = bench(tmp_path / "model", "--rounds", 3, "--prefills", 3, "--threads", 1, "--json")
    assert done.exit_code == 0, done.output
    assert {figure["length"] for figure in json.loads(done.stdout)["figures"]} == {128}
