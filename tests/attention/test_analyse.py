"""hvd-compress chai analyse, on models of 2 layers that are saved here."""

from __future__ import annotations

import tests.supported_transformers  # noqa: F401

# isort: split

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from click.testing import CliRunner, Result
from matplotlib.image import imread
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel, OPTConfig, OPTForCausalLM, PreTrainedTokenizerFast

from hvd_compress.attention import ClusterCounts, apply, find_clusters, losses, plot, remove
from hvd_compress.attention.samples import Cut, read_samples
from hvd_compress.attention.tokens import ByteTokens, ModelTokens
from hvd_compress.cli.main import main
from tests.attention.models import FAMILIES, HEADS, LAYERS, VOCABULARY, build, plant, sequences
from tests.unit.cli.test_hostile_files import TEXTS

PLANTED = ([0, 0, 2, 2, 0, 0, 6, 6], [0, 0, 2, 2, 4, 4, 2, 2])
SAMPLES = sequences([24, 17, 30, 5], seed=3)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with planted models of each family, samples, one of bytes, and one of another family."""
    folder = tmp_path_factory.mktemp("models")
    for family in FAMILIES:
        model = build(family)
        for layer, membership in enumerate(PLANTED):
            plant(model, layer, membership)
        model.save_pretrained(folder / family)
    write_ids(folder / "ids.jsonl", SAMPLES)
    (folder / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 9)
    GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_embd=32, n_layer=2, n_head=4)).save_pretrained(
        folder / "bytes"
    )
    opt = OPTConfig(vocab_size=61, hidden_size=32, ffn_dim=32, num_hidden_layers=1, num_attention_heads=4)
    OPTForCausalLM(opt).save_pretrained(folder / "opt")
    return folder


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    asked: list[object] = []

    def refuse(*what: object, **_: object) -> None:
        asked.append(what)
        raise OSError("no network here")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    yield
    assert not asked


def write_ids(path: Path, samples: Sequence[Sequence[int]]) -> None:
    path.write_text("".join(json.dumps({"ids": each}) + "\n\n" for each in samples))


def analyse(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "120"}).invoke(main, ["chai", "analyse", *map(str, arguments)])


def test_planted_heads_are_found_and_written(folders: Path, tmp_path: Path) -> None:
    out, picture = tmp_path / "counts.json", tmp_path / "picture.png"
    samples = ("--samples", folders / "ids.jsonl")
    done = analyse(folders / "gpt2", *samples, "--out", out, "--plot", picture)
    assert done.exit_code == 0, done.output
    counts = ClusterCounts.load(out)
    assert [list(layer.membership) for layer in counts.layers] == list(PLANTED)
    assert "GPT2LMHeadModel: 2 layers of 8 heads; 4 samples, 76 tokens" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines() if line.strip()[:1].isdigit()]
    head_bytes = 4 * 32 // HEADS
    assert [row[3:6] for row in rows] == [["3", "of", "8"]] * 2
    assert [row[6:] for row in rows] == [["0.0000", str((3 + 8) * head_bytes), "68.8%"]] * 2
    first = torch.tensor(counts.layers[0].correlation)
    pairs = first[torch.triu(torch.ones(HEADS, HEADS), 1) > 0]
    assert rows[0][1:3] == [f"{pairs.mean():.3f}", f"{(pairs > 0.95).float().mean():.1%}"]
    assert "plateau 0.05: the cache keeps 68.8% of its bytes, 352 B a token of 512 B" in done.stdout
    assert "perplexity of 4 samples" in done.stdout
    assert "CHAI +0.0%, CHAI-static +0.0%" in done.stdout
    assert f"wrote {out}" in done.stdout
    assert imread(picture).std() > 0.1


@pytest.mark.parametrize("family", FAMILIES)
def test_json_says_what_find_clusters_finds(family: str, folders: Path) -> None:
    model, share = build(family, seed=1), 0.7
    folder = folders / f"{family}-random"
    model.save_pretrained(folder)
    done = analyse(folder, "--samples", folders / "ids.jsonl", "--cache-share", "70%", "--json")
    assert done.exit_code == 0, done.output
    report, counts = json.loads(done.stdout), find_clusters(model, SAMPLES, cache_share=share)
    assert report["plateau"] == counts.plateau
    assert [layer["clusters"] for layer in report["layers"]] == list(counts.clusters)
    assert report["key_heads"] == getattr(model.config, "num_key_value_heads", HEADS)
    assert report["cache_share"] <= share
    assert report["cache_share"] == pytest.approx(
        sum(layer["cache_bytes"] for layer in report["layers"]) / sum(layer["full_bytes"] for layer in report["layers"])
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_what_clusters_cost(family: str, folders: Path) -> None:
    """The perplexities are those of the definition, and what is advised follows from them."""
    model = build(family, seed=1)
    folder = folders / f"{family}-random"
    model.save_pretrained(folder)
    options = ("--samples", folders / "ids.jsonl", "--cache-share", "70%")
    cost = json.loads(analyse(folder, *options, "--json").stdout)["perplexity"]
    counts = find_clusters(model, SAMPLES, cache_share=0.7)
    for kind in ("own", "chai", "static"):
        if kind != "own":
            apply(model, counts, static=kind == "static")
        with torch.no_grad():
            found = torch.cat(
                [cross_entropy(model(ids).logits[0, :-1], ids[0, 1:], reduction="none") for ids in map(ids_of, SAMPLES)]
            )
        assert cost[kind] == pytest.approx(float(found.mean().exp()), rel=1e-4), kind
        if kind != "own":
            remove(model)
    assert cost["samples"] == 4
    told = analyse(folder, *options).stdout
    cheapest, chai = min(cost["chai"], cost["static"]) / cost["own"], cost["chai"] / cost["own"]
    assert ("a larger --cache-share" in told) == (cheapest > 1.01)
    assert ("static=True" in told) == (cheapest <= 1.01 < chai)
    assert "perplexity" not in analyse(folder, *options, "--no-perplexity").stdout


def ids_of(sample: Sequence[int]) -> torch.Tensor:
    return torch.as_tensor(sample).unsqueeze(0)


def test_of_many_samples_some_are_measured_that_are_spread_over_all(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("gpt2")
    counts = find_clusters(model, SAMPLES)
    many = [[1, 2, each // 3] for each in range(130)]
    seen: list[list[int]] = []
    own = losses._perplexity
    monkeypatch.setattr(losses, "_perplexity", lambda model, some: seen.extend(some) or own(model, some))
    assert losses.perplexities(model, counts, many).samples == 64
    assert len({each[2] for each in seen}) > 40
    assert seen[:64] == seen[64:128] == seen[128:]


def test_a_model_without_a_head_has_no_perplexity(folders: Path, tmp_path: Path) -> None:
    build("llama").model.save_pretrained(tmp_path / "model")
    done = analyse(tmp_path / "model", "--samples", folders / "ids.jsonl")
    assert done.exit_code == 0, done.output
    assert "has no head" in done.stdout


def test_a_model_of_the_hub_that_was_fetched_before(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files lie as huggingface_hub lays them."""
    kept = tmp_path / "models--someone--planted"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("0" * 40)
    shutil.copytree(folders / "gpt2", kept / "snapshots" / ("0" * 40))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    done = analyse("someone/planted", "--samples", folders / "ids.jsonl", "--json")
    assert done.exit_code == 0, done.output
    assert [layer["clusters"] for layer in json.loads(done.stdout)["layers"]] == [3, 3]


def test_grouped_queries_are_told_as_a_bound(folders: Path) -> None:
    done = analyse(folders / "llama-gqa", "--samples", folders / "ids.jsonl")
    assert "8 heads, which share the keys of 4" in done.stdout
    assert "the cache keeps at most 87.5% of its bytes" in done.stdout


def test_text_of_bytes(folders: Path) -> None:
    done = analyse(folders / "bytes", "--samples", folders / "text.txt", "--tokens", "bytes", "--json")
    report = json.loads(done.stdout)
    assert (report["samples"], report["tokens"]) == (7, 9 * 45)  # 6 windows of 64 positions, and the rest
    few = analyse(folders / "bytes", "--samples", folders / "text.txt", "--tokens", "bytes", "--json", "--length", 20,
                  "--limit", 3)  # fmt: skip
    assert (json.loads(few.stdout)["samples"], json.loads(few.stdout)["tokens"]) == (3, 60)


def test_the_tokenizer_of_a_model(folders: Path, tmp_path: Path) -> None:
    """Each sample begins with the token that the tokenizer begins with."""
    words = {"<s>": 0, "?": 1, "the": 2, "fox": 3, "dog": 4}
    backend = Tokenizer(models.WordLevel(words, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", unk_token="?").save_pretrained(tmp_path)
    build("llama").save_pretrained(tmp_path)
    (tmp_path / "text.txt").write_text("the fox the dog the")
    (tmp_path / "lines.jsonl").write_text('{"text": "the dog", "url": 1}\n{"text": ""}\n{"ids": [5, 6]}\n')
    tokens, cut = ModelTokens(str(tmp_path), False, ""), Cut(4, 9, VOCABULARY)
    assert read_samples(tmp_path / "text.txt", tokens, cut) == [[0, 2, 3, 2], [0, 4, 2]]
    assert read_samples(tmp_path / "lines.jsonl", tokens, cut) == [[0, 2, 4], [5, 6]]
    done = analyse(tmp_path, "--samples", tmp_path / "text.txt", "--json")
    assert json.loads(done.stdout)["tokens"] == 6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("{}/gpt2", "--samples", "{}/none.txt", "--tokens", "bytes"), "cannot read {}/none.txt: No such file"),
        (("{}/gpt2", "--samples", "{}/text.txt", "--tokens", "bytes"), "token 84 is not among the 61 of the model"),
        (("{}/gpt2", "--samples", "{}/text.txt"), "{}/gpt2 has no tokenizer: pass --tokens bytes"),
        (("{}/llama", "--samples", "{}/text.txt"), "cannot read the tokenizer of {}/llama"),
        (("{}/opt", "--samples", "{}/ids.jsonl"), "knows GPT-2 and Llama of transformers (gpt2, llama), and {}/opt is"),
        (("{}/none", "--samples", "{}/ids.jsonl"), "nor a model of the Hub that was fetched before: --download"),
        (("gpt2-of-nobody", "--samples", "{}/ids.jsonl"), "gpt2-of-nobody is neither a folder"),
        (("{}/ids.jsonl", "--samples", "{}/ids.jsonl"), "{}/ids.jsonl"),
        (("{}/gpt2", "--samples", "{}/ids.jsonl", "--plateau", "0.1", "--cache-share", "0.8"), "give one of them"),
        (("{}/gpt2", "--samples", "{}/ids.jsonl", "--plateau", "2"), "a share of the error of one cluster"),
        (("{}/gpt2", "--samples", "{}/ids.jsonl", "--cache-share", "0.51"), "leaves 0.5625 of the cache"),
        (("{}/gpt2", "--samples", "{}/ids.jsonl", "--length", "161"), "--length 161 is more than {}/gpt2 has"),
        (("{}/gpt2", "--samples", "{}/ids.jsonl", "--device", "moon"), "--device moon is none"),
        (("{}/gpt2", "--samples", "{}/ids.jsonl", "--out", "{}/ids.jsonl"), "is an input of this command"),
        (("{}/gpt2", "--samples", "{}/ids.jsonl", "--plot", "x.bmp"), "the name of a picture ends in"),
        (("{}/gpt2", "--samples", "{}/ids.jsonl", "--out", "{}/none/x.json"), "there is no folder"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], words: str, folders: Path) -> None:
    done = analyse(*(each.format(folders) for each in arguments))
    assert done.exit_code == 2, done.output
    assert isinstance(done.exception, SystemExit), done.exception
    assert words.format(folders) in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"ids": [1, "2"]}', '"ids" are not a list of whole numbers'),
        ('{"ids": [1, true]}', '"ids" are not a list of whole numbers'),
        ('{"ids": 7}', '"ids" are not a list of whole numbers'),
        ('{"ids": [1, 61]}', "token 61 is not among the 61 of the model"),
        ('{"ids": [1]}', "1 token ids: 2 or more are a sample"),
        ('{"text": 5}', '"text" is 5'),
        ('{"text": "a", "ids": [1, 2]}', "not an object with"),
        ("[1, 2]", "not an object with"),
    ],
)
def test_a_line_that_is_no_sample(line: str, words: str, folders: Path, tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text('{"ids": [1, 2]}\n' + line)
    done = analyse(folders / "gpt2", "--samples", path, "--tokens", "bytes")
    assert done.exit_code == 2, done.output
    assert f"Error: {path}, line 2: {words}" in " ".join(done.stderr.split())


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_files_that_are_no_samples(text: bytes, folders: Path, tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_bytes(text)
    done = analyse(folders / "gpt2", "--samples", path, "--tokens", "bytes")
    assert done.exit_code == 2, (done.output, done.exception)
    assert isinstance(done.exception, SystemExit), done.exception
    assert f"{path}" in done.stderr
    assert len(done.output) < 3000


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_models_that_are_none(name: str, tmp_path: Path, folders: Path) -> None:
    build("gpt2").save_pretrained(tmp_path)
    for text in (b"", b"{}", b"[]", b"null", TEXTS["bytes"], TEXTS["lists in lists"], TEXTS["a half"]):
        (tmp_path / name).write_bytes(text)
        done = analyse(tmp_path, "--samples", folders / "ids.jsonl")
        assert done.exit_code == 2, (text[:20], done.output, done.exception)
        assert isinstance(done.exception, SystemExit), done.exception
        assert str(tmp_path) in done.stderr


def test_weights_that_are_missing(tmp_path: Path, folders: Path) -> None:
    model = build("llama")
    weights: dict[str, Any] = model.state_dict()
    del weights["model.layers.1.self_attn.q_proj.weight"]
    model.save_pretrained(tmp_path, state_dict=weights)
    done = analyse(tmp_path, "--samples", folders / "ids.jsonl")
    assert done.exit_code == 2
    assert "lacks 1 weights of LlamaForCausalLM, such as model.layers.1.self_attn.q_proj.weight" in " ".join(
        done.stderr.split()
    )


def test_bytes_of_text_are_its_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("\ufeffä.")
    assert read_samples(path, ByteTokens(), Cut(8, 1, 256)) == [[0xC3, 0xA4, ord(".")]]


@pytest.mark.parametrize(("layers", "shown"), [(1, [0]), (2, [0, 1]), (4, [0, 1, 2, 3]), (32, [0, 10, 21, 31])])
def test_layers_of_the_picture(layers: int, shown: list[int]) -> None:
    assert plot.shown_layers(layers) == shown


@pytest.mark.parametrize("layers", [1, 14])
def test_pictures_of_one_layer_and_of_many(layers: int, tmp_path: Path) -> None:
    counts = find_clusters(build("gpt2"), SAMPLES)
    changed = counts.model_copy(update={"layers": (counts.layers * LAYERS * 4)[:layers]})
    plot.draw(changed, tmp_path / "picture.png")
    assert imread(tmp_path / "picture.png").std() > 0.1


def test_what_is_advised_where_no_heads_are_alike_enough(folders: Path, tmp_path: Path) -> None:
    model = build("gpt2", seed=2)
    model.save_pretrained(tmp_path / "model")
    done = analyse(tmp_path / "model", "--samples", folders / "ids.jsonl", "--plateau", "0")
    assert "8 of 8" in done.stdout
    assert "see what --cache-share 0.8 costs" in " ".join(done.stdout.split())


def test_json_that_is_no_lines_is_refused(folders: Path, tmp_path: Path) -> None:
    (tmp_path / "samples.json").write_text("[[1, 2, 3]]")
    done = analyse(folders / "gpt2", "--samples", tmp_path / "samples.json", "--tokens", "bytes")
    assert done.exit_code == 2
    assert "samples are .jsonl" in done.stderr


@pytest.mark.level2
def test_the_command_is_found_without_torch_and_transformers() -> None:
    """Its help is quick, and is there where neither is installed."""
    loaded = "{'torch', 'transformers', 'matplotlib'} & sys.modules.keys()"
    words = f"import sys, hvd_compress.attention.cli.chai; print({loaded})"
    assert subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True).stdout == "set()\n"
