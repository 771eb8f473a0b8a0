"""The examples' parts: data files, shares of ranks, network, bookkeeping; and one run on one rank."""

from __future__ import annotations

import gzip
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner
from torch.nn import functional

from hvd_compress import of

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
sys.path.insert(0, str(EXAMPLES))  # as Python does for a script in that folder

import train_ddp  # noqa: E402
import train_images  # noqa: E402
from images.data import DataError, load_digits, load_images, rank_batches, read_idx  # noqa: E402
from images.model import SmallConvNet  # noqa: E402
from images.progress import track  # noqa: E402
from images.report import EpochReport, describe_choices  # noqa: E402
from images.timing import StepMeter  # noqa: E402

from hvd_compress.compressors import Cast, TopK  # noqa: E402
from hvd_compress.cost import paths  # noqa: E402
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks  # noqa: E402
from hvd_compress.request.decision import Decision  # noqa: E402
from hvd_compress.request.request import Request  # noqa: E402
from hvd_compress.settings import Settings  # noqa: E402
from tests.harness import backward, on_engine  # noqa: E402


def idx_bytes(values: torch.Tensor) -> bytes:
    header = bytes([0, 0, 0x08, values.dim()]) + struct.pack(f">{values.dim()}I", *values.shape)
    return header + values.to(torch.uint8).numpy().tobytes()


@pytest.fixture
def images_and_labels() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (40, 28, 28), generator=generator, dtype=torch.uint8)
    return images, (torch.arange(40) % 10).to(torch.uint8)


@pytest.fixture
def folder(tmp_path: Path, images_and_labels: tuple[torch.Tensor, torch.Tensor]) -> Path:
    """A tiny data set in the files of Fashion-MNIST: the training half compressed, the other not."""
    images, labels = (idx_bytes(values) for values in images_and_labels)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(images)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(labels)
    return tmp_path


class TestFiles:
    def test_plain_and_compressed_files_give_what_was_written(self, folder, images_and_labels):
        images, labels = images_and_labels
        data = load_images(folder)
        for split in (data.train, data.test):
            assert torch.equal(split.images, images.unsqueeze(1))
            assert torch.equal(split.labels, labels.long())
        assert str(folder) in data.origin

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "nothing"),
            (b"\x89PNG\r\n\x1a\n", "not an idx file"),
            (b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", "not an idx file"),  # floats
            (b"\0\0\x08\x03\0\0\0\x01", "cut off within its header"),
            (b"\0\0\x08\x01\0\0\0\x05abcd", "announces 5 bytes of data but holds 4"),
            (b"\0\0\x08\x01\0\0\0\x03abcd", "announces 3 bytes of data but holds 4"),
        ],
    )
    def test_what_is_no_idx_file_is_refused(self, tmp_path, content, message):
        path = tmp_path / "file"
        path.write_bytes(content)
        with pytest.raises(DataError, match=message) as caught:
            read_idx(path)
        assert str(path) in str(caught.value)

    @pytest.mark.parametrize("damage", ["cut off", "flipped", "checksum", "not gzip"])
    def test_damaged_gzip_files_are_refused(self, tmp_path, damage):
        good = bytearray(gzip.compress(idx_bytes(torch.arange(200))))
        if damage == "cut off":
            good = good[:-20]
        elif damage == "flipped":
            good[30] ^= 0xFF
        elif damage == "checksum":
            good[-6] ^= 0xFF
        else:
            good = bytearray(b"plain text")
        path = tmp_path / "file.gz"
        path.write_bytes(good)
        with pytest.raises(DataError, match="cannot read"):
            read_idx(path)

    @pytest.mark.parametrize("name", ["train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte"])
    def test_missing_files_are_named(self, folder, name):
        (folder / name).unlink()
        with pytest.raises(DataError, match=name.removesuffix(".gz")):
            load_images(folder)

    @pytest.mark.parametrize(
        ("name", "values", "message"),
        [
            ("t10k-labels-idx1-ubyte", torch.zeros(39), "there are 40 images"),
            ("t10k-labels-idx1-ubyte", torch.full((40,), 10), "labels from 0 to 9"),
            ("t10k-images-idx3-ubyte", torch.zeros(40, 8, 8), "28 x 28"),
            ("t10k-images-idx3-ubyte", torch.zeros(40), "28 x 28"),
        ],
    )
    def test_files_that_do_not_fit_together_are_refused(self, folder, name, values, message):
        (folder / name).write_bytes(idx_bytes(values))
        with pytest.raises(DataError, match=message):
            load_images(folder)


class TestChoice:
    def test_installed_files_are_used_when_there(self, folder):
        assert load_images(installed=folder).name == "Fashion-MNIST"

    def test_digits_stand_in_when_nothing_is_installed(self, tmp_path):
        assert load_images(installed=tmp_path / "absent").name == "digits"

    def test_a_named_folder_is_never_replaced_by_something_else(self, tmp_path, folder):
        with pytest.raises(DataError, match="absent"):
            load_images(tmp_path / "absent", installed=folder)

    def test_installed_but_incomplete_is_an_error(self, folder):
        (folder / "t10k-labels-idx1-ubyte").unlink()
        with pytest.raises(DataError, match="t10k-labels"):
            load_images(installed=folder)


def test_digits_are_complete_and_look_like_fashion_mnist():
    data = load_digits()
    assert len(data.train) + len(data.test) == 1797
    for split in (data.train, data.test):
        assert split.images.dtype == torch.uint8
        assert split.images.shape[1:] == (1, 28, 28)
        assert split.images.min() == 0
        assert split.images.max() > 200
        assert sorted(set(split.labels.tolist())) == list(range(10))


def test_batches_are_scaled_to_one(folder):
    images, labels = load_images(folder).train.batch(torch.tensor([3, 5]))
    assert images.dtype == torch.float32
    assert images.shape == (2, 1, 28, 28)
    assert -1 <= images.min() < images.max() <= 1
    assert labels.tolist() == [3, 5]


class TestShares:
    @staticmethod
    def shares(count: int, world_size: int, **change: int) -> list[tuple[torch.Tensor, ...]]:
        place = {"batch_size": 8, "seed": 1, "epoch": 0, **change}
        return [rank_batches(count, rank=rank, world_size=world_size, **place) for rank in range(world_size)]

    @pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
    @pytest.mark.parametrize("count", [56, 57, 100, 107])
    def test_ranks_see_everything_without_overlap_in_equal_batches(self, count, world_size):
        shares = self.shares(count, world_size)
        seen = torch.cat([torch.cat(share) for share in shares])
        assert len(seen) == len(set(seen.tolist())) == count - count % world_size
        assert 0 <= seen.min() <= seen.max() < count
        sizes = {tuple(len(batch) for batch in share) for share in shares}
        assert len(sizes) == 1
        assert all(0 < size <= 8 for size in sizes.pop())

    def test_the_order_follows_seed_and_epoch(self):
        def order(**change: int) -> list[int]:
            return torch.cat(self.shares(64, 1, **change)[0]).tolist()

        assert order() == order()
        assert len({tuple(order(seed=seed, epoch=epoch)) for seed in (1, 2) for epoch in (0, 1)}) == 4

    def test_every_image_comes_in_some_epoch(self):
        seen = {
            int(index) for epoch in range(20) for share in self.shares(57, 4, epoch=epoch) for index in torch.cat(share)
        }
        assert seen == set(range(57))


class TestModel:
    def test_one_to_two_million_parameters(self):
        assert 1e6 < sum(parameter.numel() for parameter in SmallConvNet().parameters()) < 2e6

    @pytest.mark.parametrize("batch", [1, 5])
    def test_scores_for_each_class(self, batch):
        scores = SmallConvNet()(torch.zeros(batch, 1, 28, 28))
        assert scores.shape == (batch, 10)

    def test_every_parameter_gets_a_gradient(self):
        torch.manual_seed(0)
        model = SmallConvNet()
        functional.cross_entropy(model(torch.rand(8, 1, 28, 28)), torch.arange(8)).backward()
        assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())


class TestMeter:
    def test_reported_phases_are_averaged(self):
        meter = StepMeter(parameters=10, value_bytes=4, world_size=4)
        for seconds in (1.0, 3.0):
            meter.end_step(
                SimpleNamespace(
                    compress_s=seconds,
                    communicate_s=2 * seconds,
                    decompress_s=0.0,
                    sent_bytes=8,
                    dense_bytes=60,
                    finite=True,
                )
            )
        means = meter.means()
        assert (means["compress_s"], means["communicate_s"], means["decompress_s"]) == (2.0, 4.0, 0.0)
        assert (means["sent_bytes"], means["dense_bytes"]) == (8, 60)

    def test_without_a_report_waiting_is_communication_and_a_ring_is_assumed(self):
        meter = StepMeter(parameters=10, value_bytes=2, world_size=4)
        for _ in range(3):
            with meter.phase("backward_s"):
                pass
            with meter.phase("wait_s"):
                pass
            meter.end_step(None)
        means = meter.means()
        assert means["communicate_s"] == pytest.approx(means["wait_s"])
        assert means["communicate_s"] > 0
        assert (means["sent_bytes"], means["dense_bytes"]) == pytest.approx((2 * 3 / 4 * 2 * 10, 2 * 3 / 4 * 4 * 10))
        assert means["step_s"] == pytest.approx(sum(means[name] for name in ("backward_s", "wait_s")))

    def test_an_epoch_tells_every_phase_and_the_bytes(self):
        meter = StepMeter(parameters=1_000_000, value_bytes=2, world_size=2)
        meter.end_step(None)
        text = EpochReport(1, 0.5, 0.875, 1.0, meter.means()).text()
        assert "87.50%" in text
        for word in ("backward", "compress", "communicate", "decompress", "sent 2.000 of 4.000 MB (50.0% of dense)"):
            assert word in text

    def test_seconds_of_a_phase_within_another_are_moved(self):
        meter = StepMeter(parameters=1, value_bytes=4, world_size=2)
        with meter.phase("backward_s"):
            pass
        before = meter._sums["backward_s"]
        meter.move(before / 4, "backward_s", "wait_s")
        meter.end_step(None)
        means = meter.means()
        assert (means["backward_s"], means["wait_s"]) == pytest.approx((0.75 * before, 0.25 * before))
        assert means["step_s"] == pytest.approx(before)


class TestProgress:
    def test_in_a_log_there_are_lines_only(self, capsys, monkeypatch):
        monkeypatch.setattr("images.progress.LINE_EVERY_S", 0.0)
        assert list(track(range(3), "label", show=True)) == [0, 1, 2]
        assert capsys.readouterr().out == "label: 0/3\nlabel: 1/3\nlabel: 2/3\n"

    def test_in_a_terminal_there_is_a_bar_that_is_removed_at_the_end(self, capsys, monkeypatch):
        monkeypatch.setattr("images.progress.output_is_terminal", lambda: True)
        monkeypatch.setattr("images.progress.BAR_EVERY_S", 0.0)
        assert list(track(range(2), "label", show=True)) == [0, 1]
        *bars, blank, end = capsys.readouterr().out.split("\r")[1:]
        assert [bar.startswith("label [") for bar in bars] == [True, True]
        assert blank.isspace()
        assert len(blank) == len(bars[0])
        assert end == ""

    def test_other_ranks_are_silent(self, capsys):
        assert list(track(range(3), "label", show=False)) == [0, 1, 2]
        assert capsys.readouterr().out == ""


@pytest.mark.level2
def test_one_rank_trains_and_writes_its_results(folder, tmp_path):
    result = tmp_path / "run.json"
    options = ["--compression", "star", "--epochs", "2", "--batch-size", "8", "--data-dir", folder, "--json", result]
    done = subprocess.run(
        [sys.executable, EXAMPLES / "train_images.py", *options],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert f"Fashion-MNIST from {folder}" in done.stdout
    assert "nothing is communicated by one rank" in done.stdout
    assert "\r" not in done.stdout
    content = json.loads(result.read_text())
    assert (content["world_size"], content["settings"]["compression"]) == (1, "star")
    assert [epoch["epoch"] for epoch in content["results"]["star"]] == [1, 2]
    assert content["results"]["star"][0]["step"]["sent_bytes"] == 0
    assert "chosen:" not in done.stdout


@pytest.mark.level2
@pytest.mark.parametrize(("compression", "ranks"), [("int4", 3)])
def test_ddp_trains_by_torchrun_without_horovod(folder, tmp_path, compression, ranks):
    (tmp_path / "absent" / "horovod").mkdir(parents=True)
    (tmp_path / "absent" / "horovod" / "__init__.py").write_text("raise ImportError('Horovod is not installed')")
    result = tmp_path / "run.json"
    options = ["--compression", compression, "--epochs", "1", "--batch-size", "8", "--data-dir", folder]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    done = subprocess.run(
        [*torchrun, EXAMPLES / "train_ddp.py", *options, "--json", result],
        env={**os.environ, "PYTHONPATH": f"{tmp_path / 'absent'}:{ROOT}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert f"Fashion-MNIST from {folder}" in done.stdout
    content = json.loads(result.read_text())
    assert (content["world_size"], content["settings"]["compression"]) == (ranks, compression)
    (epoch,) = content["results"][compression]
    assert 0 < epoch["step"]["sent_bytes"] < epoch["step"]["dense_bytes"]
    assert 0 < epoch["step"]["wait_s"] < epoch["step"]["step_s"]


@pytest.mark.parametrize("script", [train_images, train_ddp], ids=lambda script: script.__name__)
def test_both_scripts_take_the_same_options(script):
    done = CliRunner().invoke(script.main, ["--help"])
    assert done.exit_code == 0, done.output
    assert "[none|fp16|bf16|dense|auto|topk|star|var|artopk|efsign|int8|int4|int3|int2|powersgd|covap]" in done.stdout
    for option in ("--ratio", "--algorithm", "--engine", "--epochs", "--seed", "--json", "--device", "--demo"):
        assert f"  {option} " in done.stdout


def test_the_last_line_says_what_was_chosen_and_why():
    star = Decision(TopK(0.01), paths.Path("star", "ring"), reason="4.00 ms measured, next dense with 9.00")
    dense = Decision(Cast(), paths.Path("dense"), reason="no compression pays here")
    one = describe_choices({("w", "b"): star})
    assert one == "chosen: star-ring with ratio 0.01, because 4.00 ms measured, next dense with 9.00"
    assert describe_choices({("w",): star, ("b",): dense}).splitlines()[1] == (
        "chosen: bucket 1 (b ...): dense, because no compression pays here"
    )


def test_after_too_few_steps_nothing_is_chosen_yet(tmp_path, monkeypatch):
    """A search takes several steps; long before its end there are decisions, which are tried."""
    monkeypatch.setenv("HVD_COMPRESS_CACHE", str(tmp_path))
    settings = Settings(600, 60, adapt=True, calibration_s=0.0)

    def body(engine: InProcessEngine) -> list[str]:
        parameters, optimizer = on_engine(engine, Request(TopK(0.05)), settings=settings)
        told: list[str] = []
        while not told or ("nothing chosen" in told[-1] and len(told) < 300):  # the same on both ranks
            optimizer.zero_grad()
            backward(parameters, engine.rank, len(told))
            optimizer.step()
            told.append(describe_choices(of(optimizer).decisions))
        return told

    early, *_, late = run_ranks(2, body)[0]
    assert len(early.splitlines()) == len(late.splitlines()) == 3
    for line in early.splitlines():
        assert "nothing chosen yet: trials go on" in line
        assert "chosen: bucket" not in line
    assert all(line.startswith("chosen: bucket") for line in late.splitlines())


@pytest.mark.level2
@pytest.mark.parametrize("script", ["train_images.py", "train_ddp.py"])
def test_a_missing_folder_is_one_clear_sentence(tmp_path, script):
    done = subprocess.run(
        [sys.executable, EXAMPLES / script, "--data-dir", tmp_path / "absent"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "no file train-images-idx3-ubyte" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("script", ["lightning_images.py", "accelerate_lm.py", "transformers_lm.py", "fsdp_lm.py"])
def test_where_a_library_drives_it_is_short(script):
    assert len((EXAMPLES / script).read_text().splitlines()) < 60
