"""Compiles C++ at first need, once for every user and kind of machine.

What is loaded runs with the user's rights. So it lies in a folder that is the caller's and closed to everybody else, in
which no link is followed, and a record beside every library says of what it was made and what its bytes hash to. The
folder is opened once and then named by its descriptor, which nobody can move.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import platform
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from catnat._native import are_wanted
from catnat.core import fits

LOG = logging.getLogger("catnat")
HERE = Path(__file__).parent
FLAGS = ["-std=c++20", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-fvisibility=hidden"]
WIDEST = ["-mprefer-vector-width=512"] if platform.machine() in ("x86_64", "AMD64") else []  # if it has them at all
LOOPS_FLAGS = ["-O3", *WIDEST]  # the other part runs once per tensor
_one_at_a_time = Lock()  # a process has many threads, and one of them compiles


class Operator(NamedTuple):
    """The loops, and a source that makes them functions of a framework."""

    framework: str
    source: Path
    flags: list[str]
    link: list[str]
    versions: list[str]  # of all that it is compiled against


@cache
def load(find_operator: Callable[[], Operator], open_library: Callable[[str], Any]) -> Any:
    """The compiled operator, as `open_library` makes it of a path; None, and a line in the log, where there is none."""
    try:
        with _one_at_a_time:
            name, made_of = _recipe(find_operator())
            given = os.environ.get("XDG_CACHE_HOME", "")  # where it is not absolute it is invalid, says its standard
            path = Path(given if os.path.isabs(given) else Path.home() / ".cache") / "catnat"
            try:
                folder = _folder_with(name, made_of, path)
            except OSError as error:
                folder = _folder_with(name, made_of, _private_folder(f"{path} {error.strerror}"))
            try:
                return open_library(f"/proc/self/fd/{folder}/{name}")
            finally:
                os.close(folder)
    except Exception as error:  # whatever is amiss with a compiler, the plain walk goes on
        said = str(getattr(error, "stderr", "") or error).strip().splitlines() or [repr(error)]
        LOG.warning("no compiled operator for the CPU, so slower code is used: %s", said[0])
        return None


def load_if_wanted(find_operator: Callable[[], Operator], open_library: Callable[[str], Any]) -> Any:
    """The same, and None where the user goes without."""
    return load(find_operator, open_library) if are_wanted() else None


def _folder_with(name: str, made_of: dict[str, Any], path: Path) -> int:
    """The descriptor of a folder that is the caller's alone, with a sound library of that name in it."""
    if not path.is_absolute():
        raise OSError(0, "is not an absolute path")
    if path.is_symlink() and path.lstat().st_uid == os.geteuid():  # the caller's own: to another disk, say
        path = Path(os.path.realpath(path))
    for each in (*reversed(path.parents), path):
        if not each.exists():
            each.mkdir(0o700, exist_ok=True)  # another process may be as far
    opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        found = os.fstat(opened)
        if found.st_uid != os.geteuid():
            raise OSError(0, "belongs to another user")
        if found.st_mode & 0o077:
            os.fchmod(opened, 0o700)
        _provide(f"/proc/self/fd/{opened}", name, made_of)
        return opened
    except BaseException:
        os.close(opened)
        raise


@cache
def _private_folder(reason: str) -> Path:
    folder = tempfile.mkdtemp(prefix="catnat-")
    atexit.register(_remove_of_process, folder, os.getpid())
    LOG.warning("%s, so this process keeps its compiled operators in a folder of its own: %s", reason, folder)
    return Path(folder)


def _remove_of_process(folder: str, process: int) -> None:
    if os.getpid() == process:  # not in a child
        shutil.rmtree(folder, ignore_errors=True)


def _read(path: str) -> bytes:
    """The bytes of a plain file of the caller's."""
    opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(opened, "rb") as file:
        found = os.fstat(opened)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise OSError(f"{path} is no plain file of the user's")
        return file.read()


def _recipe(operator: Operator) -> tuple[str, dict[str, Any]]:
    """The name of a library, and all that it is made of."""
    if sys.platform != "linux":
        raise OSError("it wants Linux")
    asked = shlex.split(os.environ.get("CXX") or "c++")  # with arguments, perhaps
    compiler = shutil.which(asked[0])
    if compiler is None:
        raise FileNotFoundError(f"it wants a C++ compiler, and {asked[0]} (or what CXX names) is not there")
    fitted = [f"-DFIT_{n}={','.join(map(repr, getattr(fits, n).coefficients))}" for n in ("EXP", "LOG_ONE_PLUS")]
    commands = [  # the two parts at once, then both together
        ["-c", f"{HERE}/loops.cpp", "-o", "loops.o", *LOOPS_FLAGS, *FLAGS, *fitted],
        ["-c", str(operator.source), "-o", "calls.o", "-O1", *FLAGS, f"-I{HERE}", *operator.flags],
        ["-shared", "loops.o", "calls.o", "-o", "library.so", *operator.link],
    ]
    made_of = {
        "commands": [[compiler, *asked[1:], *command] for command in commands],
        "compiler": f"{os.path.realpath(compiler)} of {os.stat(compiler).st_mtime}",
        "versions": operator.versions,
        "processor": re.findall("^(?:flags|Features).*", Path("/proc/cpuinfo").read_text(), re.M)[:1],  # -march=native
        "sources": [sha256((HERE / s).read_bytes()).hexdigest() for s in ("loops.h", "loops.cpp", operator.source)],
    }
    key = sha256(json.dumps(made_of).encode()).hexdigest()[:16]
    return f"{operator.framework}-{key}.so", made_of


def _provide(folder: str, name: str, made_of: dict[str, Any]) -> None:
    """Compile the library now, unless it lies there and is sound."""
    import fcntl  # not on every system

    with suppress(OSError):
        os.utime(f"{folder}/{name}", follow_symlinks=False)  # it is in use
    if _is_sound(f"{folder}/{name}", made_of):
        return
    lock = os.open(f"{folder}/lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of many processes one compiles and the others wait
        if not _is_sound(f"{folder}/{name}", made_of):
            LOG.warning(
                "compiling a C++ operator for %s on this CPU, once per environment, within a minute: %s. "
                "CATNAT_COMPILE=0 or catnat.compile_operators(False) goes without it.",
                name.partition("-")[0], f"{os.path.realpath(folder)}/{name}",
            )  # fmt: skip
            _compile(folder, name, made_of)
    finally:
        os.close(lock)


def _is_sound(library: str, made_of: dict[str, Any]) -> bool:
    with suppress(OSError, ValueError):
        record = json.loads(_read(f"{library}.json"))
        return bool(record == {"made_of": made_of, "sha256": sha256(_read(library)).hexdigest()})
    return False


def _compile(folder: str, name: str, made_of: dict[str, Any]) -> None:
    for left in Path(folder).glob("work-*"):  # by who was killed: nobody else compiles now
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="work-", dir=folder) as work, ThreadPoolExecutor(2) as pool:
        environment = {**os.environ, "TMPDIR": "."}
        run = partial(subprocess.run, cwd=work, env=environment, check=True, capture_output=True, text=True)
        *parts, link = made_of["commands"]
        list(pool.map(run, parts))
        run(link)
        library = _read(f"{work}/library.so")
        Path(work, "record").write_text(json.dumps({"made_of": made_of, "sha256": sha256(library).hexdigest()}))
        for made, kept in (("library.so", name), ("record", f"{name}.json")):  # the record tells if both are whole
            os.chmod(f"{work}/{made}", 0o600)
            os.replace(f"{work}/{made}", f"{folder}/{kept}")
    for old in Path(folder).glob("*-*.so"):
        if old.lstat().st_mtime < time.time() - 90 * 86400:  # nobody has loaded it for 90 days
            Path(f"{old}.json").unlink(missing_ok=True)
            old.unlink()
