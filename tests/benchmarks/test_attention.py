"""The scripts of benchmarks/attention: a training runs, and methods cost nothing where they must cost nothing."""

from __future__ import annotations

import tests.unit.attention.supported  # noqa: F401

# isort: split

import json
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from rich.progress import Progress

from hvd_compress.attention import find_clusters
from hvd_compress.errors import ConfigError
from tests.benchmarks.scripts import load

HEADS, LAYERS, CONTEXT, WINDOWS = 8, 2, 48, 6
PLANTED = [0, 0, 0, 3, 3, 5, 5, 5]
"""Of layer 0, by whose scores those of each head are."""
DISTINCT = [3, HEADS]


@pytest.fixture
def quality(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load("attention/quality.py", monkeypatch)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, text: Any) -> Any:
    """A model after a few steps, whose scores are far from uniform."""
    train = load("attention/train.py", monkeypatch)
    made = train.new_model(1, heads=HEADS, width=32, layers=LAYERS, context=CONTEXT)
    with torch.no_grad():
        for block in made.transformer.h:
            block.attn.c_attn.weight.mul_(3.0)
    with Progress(disable=True) as progress:
        train.train(made, text, steps=5, batch=4, seed=1, progress=progress)
    return made


@pytest.fixture
def text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    for number in range(40):
        body = "".join(
            f"def f_{each}(x):\n    return x * {each * 7919 % 1009}\n" for each in range(number, number + 40)
        )
        (tmp_path / f"m{number}.py").write_text(body)
    return load("time_to_accuracy/text.py", monkeypatch).Text.read(tmp_path)


def _setting(quality: ModuleType, model: Any, text: Any) -> Any:
    held_out, samples = (make(text, CONTEXT, WINDOWS) for make in (quality.held_out, quality.samples))
    return quality.Setting.of(model, held_out, samples)


def _plant(model: Any) -> None:
    with torch.no_grad():
        attention = model.transformer.h[0].attn.c_attn
        for parameter in (attention.weight, attention.bias):
            for part in parameter.chunk(3, -1)[:2]:
                heads = part.unflatten(-1, (HEADS, -1))
                heads.copy_(heads[..., PLANTED, :].clone())


def _loss(row: Any) -> float:
    return sum(row.windows) / len(row.windows)


def test_training_repeats_and_learns(monkeypatch: pytest.MonkeyPatch, text: Any) -> None:
    train = load("attention/train.py", monkeypatch)
    found = []
    for steps in (1, 40, 40):
        made = train.new_model(1, heads=4, width=32, layers=1, context=CONTEXT)
        with Progress(disable=True) as progress:
            train.train(made, text, steps, batch=4, seed=1, progress=progress)
        assert not made.training
        found.append(float(train.losses(made, train.held_out(text, CONTEXT, WINDOWS)).mean()))
    assert found[1] < found[0]
    assert found[1] == found[2]


def test_the_learning_rate_rises_and_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    train = load("attention/train.py", monkeypatch)
    shares = [train.rate_share(step, 1000) for step in range(1001)]
    assert shares.index(max(shares)) in (train.WARMUP - 1, train.WARMUP)
    assert shares[-1] == pytest.approx(train.LOWEST)


def test_planted_heads_cost_chai_nothing_and_random_clusters_something(
    quality: ModuleType, model: Any, text: Any
) -> None:
    _plant(model)
    at = _setting(quality, model, text)
    none, counts = _loss(quality.full(at)), at.static_counts(DISTINCT)
    whole = quality.score_products(model, at.text)
    for row in (
        quality.clustered(at, at.static_counts([HEADS] * LAYERS), False, "one head a cluster"),
        quality.clustered(at, counts, False, "CHAI"),
        quality.clustered(at, counts, True, "CHAI-static"),
        quality.clustered_by(at, DISTINCT, whole, quality.WHOLE),
    ):
        assert _loss(row) == pytest.approx(none, abs=1e-5), row.method
    assert row.share == counts.cache_share == quality.share_of(DISTINCT, HEADS)
    drawn = quality.ClusterCounts.of(quality.random_heads(HEADS, DISTINCT, 0).tolist())
    assert abs(_loss(quality.clustered(at, drawn, True, "random")) - none) > 1e-4


def test_losses_of_a_layer_end_where_its_heads_are_distinct(quality: ModuleType, model: Any, text: Any) -> None:
    _plant(model)
    at = _setting(quality, model, text)
    none = float(quality.losses(model, at.seen).mean())
    first, second = quality.loss_curves(at, static=True)
    assert len(first) == len(second) == HEADS
    assert first[2:] == pytest.approx([none] * (HEADS - 2), abs=1e-5)
    assert second[-1] == pytest.approx(none, abs=1e-5)
    assert abs(first[0] - none) > 1e-4


def test_clusters_told_by_five_tokens_are_those_of_chai(quality: ModuleType, model: Any, text: Any) -> None:
    at, clusters = _setting(quality, model, text), [3, 5]
    five = quality.score_products(model, at.text, quality.FIRST)
    told = quality.clustered_by(at, clusters, five, "told by 5 tokens")
    assert told.windows == pytest.approx(quality.clustered(at, at.static_counts(clusters), False, "CHAI").windows)


def test_static_clusters_are_those_of_find_clusters(quality: ModuleType, model: Any, text: Any) -> None:
    at = _setting(quality, model, text)
    plateau, clusters = quality.by_plateau(at.curves, quality.clusters_of(0.8, LAYERS, HEADS))
    found = find_clusters(model, list(quality.samples(text, CONTEXT, WINDOWS)), plateau=plateau)
    assert found.clusters == tuple(clusters)
    assert found.cache_share <= 0.8
    assert [layer.membership for layer in at.static_counts(clusters).layers] == [e.membership for e in found.layers]


def test_a_head_whose_output_counts_for_nothing_is_dropped_for_nothing(
    quality: ModuleType, model: Any, text: Any
) -> None:
    with torch.no_grad():
        model.transformer.h[1].attn.c_proj.weight.unflatten(0, (HEADS, -1))[[2, 6]] = 0
    at = _setting(quality, model, text)
    none = quality.full(at)
    row = quality.dropped(at, [HEADS, HEADS - 4])
    assert quality.least(at.importances, 2) == [(1, 2), (1, 6)]
    assert row.windows == none.windows
    assert row.share == 1 - 2 / (LAYERS * HEADS)
    more = quality.dropped(at, [HEADS, HEADS - 6])
    assert _loss(more) != _loss(none)
    assert quality.full(at).windows == none.windows, "heads are there again"


def test_random_clusters_have_as_many_heads_as_asked(quality: ModuleType) -> None:
    for seed in range(20):
        for source, k in zip(quality.random_heads(HEADS, (1, 5, HEADS), seed), (1, 5, HEADS), strict=True):
            assert len(set(source.tolist())) == k
            assert torch.equal(source[source], source)


def test_clusters_are_shared_out_among_layers(quality: ModuleType) -> None:
    curves = [(100.0, 50.0, 1.0, 0.0), (8.0, 4.0, 2.0, 0.0)]
    assert quality.by_plateau(curves, 8)[1] == [4, 4]
    plateau, clusters = quality.by_plateau(curves, 6)
    assert (clusters, plateau) == ([3, 3], pytest.approx(0.25, rel=1e-4))
    assert quality.by_total_error(curves, 5) == [3, 2]
    assert quality.alike(curves, 5) == [3, 2]
    assert quality.clusters_of(quality.share_of([3, 2], 4), 2, 4) == 5
    with pytest.raises(ConfigError, match="a larger share"):
        quality.by_plateau(curves, 1)


def test_windows_of_the_text_do_not_overlap(quality: ModuleType) -> None:
    text = SimpleNamespace(validation=torch.arange(200, dtype=torch.uint8), train=torch.arange(100, dtype=torch.uint8))
    windows = quality.held_out(text, 48, 4)
    assert windows.flatten().unique().numel() == windows.numel()
    assert int(windows[-1, -1]) == 199
    with pytest.raises(AssertionError, match="overlap"):
        quality.samples(text, 48, 4)


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load("attention/quality_page.py", monkeypatch)


def _figures(page: ModuleType, increase: float) -> Any:
    """Figures of two windows where all but the whole cache lose `increase` nats."""

    def row(method: str, share: float, more: float, clusters: list[int]) -> dict[str, Any]:
        losses = [1.0 + more, 2.0 + more]
        return {
            "method": method,
            "share": share,
            "clusters": clusters,
            "plateau": 0.1,
            "windows": losses,
            "late": losses,
        }

    rows = [row("full", 1.0, 0.0, [])]
    for share, k in ((0.9, 3), (0.8, 2)):
        rows += [row(name, share, increase, [k]) for name in ("CHAI", "CHAI-static", page.WHOLE, "dropped heads")]
        rows += [row(f"random clusters {seed}", share, increase * seed, [k]) for seed in (1, 3)]
    rows += [row(f"{name}, the same k", 0.8, increase, [2]) for name in ("CHAI", "CHAI-static", page.WHOLE)]
    layer = {"clusters": 2, "correlation": [[1.0, 0.85], [0.85, 1.0]], "errors": [4.0, 1.0]}
    return page.Figures({"about": {}, "rows": rows, "layers": [{**layer, "agreement": {"five": 0.5, "static": 1.0}}]})


def test_tables_say_what_was_lost(page: ModuleType) -> None:
    figures = _figures(page, 0.0099503309)  # log(1.01)
    text = page.text_of(figures)
    assert "| 80.0% | 2 | 0.100 | 1.00 (1.00 to 1.00) |" in text
    assert "2.01 (1.00 to 3.03)" in text, "random clusters: mean, lowest and highest of seeds"
    assert "| the same k | 80.0% | 2 | 1.00 (1.00 to 1.00) |" in text
    assert "| 0 | 2 | 0.250 | 0.85, 0.85, 0.85 | 0, 0, 2 | 0.50 | 1.00 |" in text


def test_a_page_is_renewed_between_its_marks(page: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "attention.md"
    file.write_text("# Title\n\n")
    for name, text in (("quality", "first"), ("speed", "fast"), ("quality", "second")):
        page.renew(file, name, text)
    text = file.read_text()
    assert text.startswith("# Title\n\n<!-- quality")
    assert "first" not in text
    assert text.index("second") < text.index("<!-- speed") < text.index("fast")
    page.renew(file, "quality", "second")
    assert file.read_text() == text


def test_the_picture_is_drawn(page: ModuleType, tmp_path: Path) -> None:
    page.draw(_figures(page, 0.01), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("script", ["train", "quality", "quality_page"])
def test_a_script_says_what_it_does(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(load(f"attention/{script}.py", monkeypatch).main, ["--help"])
    assert done.exit_code == 0, done.output
    assert "python benchmarks/attention" in done.output


def test_heads_that_begin_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    train = load("attention/train.py", monkeypatch)
    model = train.new_model(1, heads=HEADS, width=32, layers=1, context=8)
    before = model.transformer.h[0].attn.c_attn.weight.clone()
    train.begin_alike(model, 2)
    after = model.transformer.h[0].attn.c_attn.weight
    for part in range(2):
        heads = after[:, 32 * part : 32 * part + 32].unflatten(-1, (HEADS // 2, 2, 4))
        assert torch.equal(heads[:, :, 0], heads[:, :, 1])
        assert torch.equal(
            heads[:, :, 0], before[:, 32 * part : 32 * part + 32].unflatten(-1, (HEADS // 2, 2, 4))[:, :, 0]
        )
        assert not torch.equal(heads[:, 0, 0], heads[:, 1, 0])
    assert torch.equal(after[:, 64:], before[:, 64:])


@pytest.mark.parametrize(
    ("next_of_all_keys", "own", "verdict"), [(0.91, 0.6, "kept"), (0.93, 0.6, "missed"), (0.91, 1.04, "missed")]
)
def test_the_page_of_speed_tells_what_is_missed(
    next_of_all_keys: float, own: float, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speed = load("attention/speed_page.py", monkeypatch)

    def figure(kind: str, nbytes: int, ratio: float, of_all_keys: float) -> dict[str, Any]:
        ratios = {"first_ratio": [1.0] * 3, "next_ratio": [ratio] * 3, "next_of_all_keys": [of_all_keys] * 3}
        return {"kind": kind, "length": 4096, **ratios, "cache_share": 0.8, "step_bytes": nbytes, "floor": nbytes / 100}

    found = {
        "figures": [
            figure("full", 100, 1.0, 2.0),
            figure("all keys", 100, 0.7, 1.0),
            figure("CHAI", 80, own, next_of_all_keys),
        ],
        **{"layers": 1, "heads": 8, "key_heads": 8, "dtype": "float32", "batch": 1, "threads": 1},
        **{"rounds": 9, "prefills": 3, "weight_bytes": 10**6, "model": "small"},
    }  # fmt: skip
    file, page = tmp_path / "found.json", tmp_path / "page.md"
    file.write_text(json.dumps(found))
    done = CliRunner().invoke(speed.main, [str(file), "--page", str(page)])
    assert done.exit_code == 0, done.output
    (line,) = [line for line in page.read_text().splitlines() if "| CHAI |" in line]
    assert line.endswith(f"| {verdict} |")
    assert f"{next_of_all_keys:.3f} ({next_of_all_keys:.3f} to {next_of_all_keys:.3f}) | 0.800 |" in line
