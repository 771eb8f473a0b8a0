"""The images: where they come from, and which of them a rank sees."""

from __future__ import annotations

import gzip
import struct
import zlib
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from hvd_compress.extras import needed

IMAGE_SIZE = 28
CLASSES = 10
DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")  # of the package dataset-fashion-mnist
_UNSIGNED_BYTE = 0x08  # type code of the idx format


class DataError(ValueError):
    """A data file is missing, damaged, or not what its name says."""


@dataclass(frozen=True)
class Split:
    """Images (uint8, count x 1 x 28 x 28) with their labels (int64, count)."""

    images: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the chosen images as float32 in [-1, 1], and their labels."""
        return self.images[indices].float() / 127.5 - 1, self.labels[indices]


@dataclass(frozen=True)
class ImageData:
    """A data set, split for training and testing, and where it was found."""

    name: str
    origin: str
    train: Split
    test: Split


def load_images(data_dir: Path | None = None, installed: Path = DEBIAN_FASHION_MNIST) -> ImageData:
    """Load Fashion-MNIST from `data_dir`, else from where it is installed, else scikit-learn's digits.

    Raises:
        DataError: `data_dir` was given, or the installed folder exists, but a file in it is missing or damaged.
    """
    if data_dir is not None:
        return load_fashion_mnist(data_dir)
    return load_fashion_mnist(installed) if installed.is_dir() else load_digits()


def load_fashion_mnist(folder: Path) -> ImageData:
    """Load the four idx files of Fashion-MNIST (or MNIST), each with or without .gz."""
    train, test = (_load_split(folder, part) for part in ("train", "t10k"))
    return ImageData("Fashion-MNIST", str(folder), train, test)


def load_digits() -> ImageData:
    """Load the 1797 digits that come with scikit-learn, scaled up from 8 x 8; every fifth is for testing."""
    with needed("sklearn", "load_digits"):  # here, since it takes a second, and Fashion-MNIST does not need it
        from sklearn import datasets

    pixels, labels = datasets.load_digits(return_X_y=True)
    small = torch.from_numpy(pixels).float().view(-1, 1, 8, 8) * (255 / 16)
    images = functional.interpolate(small, IMAGE_SIZE, mode="bilinear").round().to(torch.uint8)
    labels = torch.from_numpy(labels).long()
    is_test = torch.arange(len(labels)) % 5 == 0
    train, test = (Split(images[chosen], labels[chosen]) for chosen in (~is_test, is_test))
    return ImageData("digits", "scikit-learn", train, test)


def rank_batches(
    count: int, batch_size: int, *, rank: int, world_size: int, seed: int, epoch: int
) -> tuple[torch.Tensor, ...]:
    """Return the indices of this rank's batches in one epoch.

    All ranks shuffle alike and take every world_size-th index, so that no image is seen twice. Up to world_size - 1
    images (others in each epoch) are left out, so that all ranks have equally many batches of equal sizes: a rank with
    one batch more would wait for ever in its collectives, and averaging is exact only over batches of one size.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(count, generator=generator)[: count - count % world_size]
    return order[rank::world_size].split(batch_size)


def read_idx(path: Path) -> torch.Tensor:
    """Read a file of unsigned bytes in the idx format, plain or gzip-compressed.

    Raises:
        DataError: the file cannot be read, is damaged, or holds something else.
    """
    content = _read_bytes(path)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UNSIGNED_BYTE:
        raise DataError(f"{path} is not an idx file of unsigned bytes: it starts with {content[:4].hex() or 'nothing'}")
    dimensions = content[3]
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise DataError(f"{path} is cut off within its header")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    if len(content) - start != prod(shape):
        sizes = " x ".join(map(str, shape))
        raise DataError(f"{path} announces {sizes} bytes of data but holds {len(content) - start}")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy())


def _load_split(folder: Path, part: str) -> Split:
    images_path, labels_path = (_find(folder, f"{part}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.shape[1:] != (IMAGE_SIZE, IMAGE_SIZE):
        raise DataError(f"{images_path} has shape {tuple(images.shape)}, not count x {IMAGE_SIZE} x {IMAGE_SIZE}")
    if labels.shape != images.shape[:1]:
        raise DataError(f"{labels_path} has shape {tuple(labels.shape)}, but there are {len(images)} images")
    if len(labels) == 0 or labels.max() >= CLASSES:
        raise DataError(f"{labels_path} must hold labels from 0 to {CLASSES - 1}")
    return Split(images.unsqueeze(1), labels.long())


def _find(folder: Path, name: str) -> Path:
    candidates = [folder / name, folder / f"{name}.gz"]
    found = [path for path in candidates if path.is_file()]
    if not found:
        raise DataError(f"no file {name} or {name}.gz in {folder}: expected the four idx files of Fashion-MNIST there")
    return found[0]


def _read_bytes(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {error}") from error
