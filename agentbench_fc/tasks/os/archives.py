"""Reads an archive that an agent packed, in a process of its own with little memory and time.

An archive of a few bytes may claim gigabytes (a sparse file in a tar, bzip2 in a zip) or hold a header over which
Python's own readers brood for hours. So the host never unpacks one: a child does, which the kernel bounds, and what it
cannot read in those bounds is no archive of a sample.

>>> import gzip
>>> unpack(gzip.compress(b"text"), "gz")
{'': 'text'}

Not here: what must be in it (state.py). This file is also run as a program, so it imports the standard library alone.
"""

import io
import json
import os
import posixpath
import resource
import subprocess
import sys

MAX_UNPACKED = 4 * 2**20
"""Bytes that an archive may hold in all."""
MAX_MEMBERS = 10_000
MEMORY = 512 * 2**20
CPU_S = 2
WALL_S = 90.0
"""Far beyond the CPU's seconds: only a machine that does nothing else for minutes gets there."""


class Unreadable(Exception):
    """Why it is no archive of the kind."""


class ReaderLost(Exception):
    """The child could not do its work, for reasons outside the archive."""


def unpack(data: bytes, form: str) -> dict[str, str]:
    """Name -> text of an archive's regular files; `gz` is a single file without a name.

    Args:
        data: The archive.
        form: gz, tar, tar.gz, tar.bz2, tar.xz or zip.

    Raises:
        Unreadable: it is none of that form, or does not stay within the bounds.
        ReaderLost: this machine could not tell.
    """
    command = [sys.executable, "-I", "-S", __file__, form]
    try:
        done = subprocess.run(command, input=data, capture_output=True, timeout=WALL_S, check=False, cwd="/")
    except (OSError, subprocess.SubprocessError) as error:
        raise ReaderLost(f"an archive could not be read: {error}") from error
    if done.returncode:
        raise Unreadable("it takes more memory or time than any that a sample asks for")
    told = json.loads(done.stdout)
    if "error" in told:
        raise Unreadable(told["error"])
    return {str(name): str(text) for name, text in told["members"].items()}


class _Room:
    """What may still be unpacked."""

    def __init__(self) -> None:
        self._left = MAX_UNPACKED
        self._members = MAX_MEMBERS

    def take(self, content: bytes) -> bytes:
        """The content, when it fits."""
        self._left -= len(content)
        self._members -= 1
        if self._left < 0 or self._members < 0:
            raise Unreadable("it holds more than any that a sample asks for")
        return content

    @property
    def probe(self) -> int:
        """One byte more than fits."""
        return self._left + 1


def _members(data: bytes, form: str) -> dict[str, str]:
    room = _Room()
    if form == "zip":
        return _unzipped(data, room)
    raw = room.take(_inflated(data, form, room.probe))
    if form == "gz":
        return {"": raw.decode("utf-8", "replace")}
    import tarfile

    room, members = _Room(), {}
    with tarfile.open(fileobj=io.BytesIO(raw), mode="r:") as archive:
        for member in archive:
            handle = archive.extractfile(member) if member.isreg() else None
            if handle is not None:
                content = room.take(handle.read(room.probe))  # a sparse one reads as zeros that nobody packed
                members[_plain(member.name)] = content.decode("utf-8", "replace")
    return members


def _unzipped(data: bytes, room: _Room) -> dict[str, str]:
    import zipfile

    members = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            if not info.is_dir():
                with archive.open(info) as handle:
                    content = handle.read(room.probe)
                members[_plain(info.filename)] = room.take(content).decode("utf-8", "replace")
    return members


def _inflated(data: bytes, form: str, most: int) -> bytes:
    """At most so many bytes; each form's reader is imported alone, for that is most of the child's time."""
    if form in {"gz", "tar.gz"}:
        import gzip

        return gzip.GzipFile(fileobj=io.BytesIO(data)).read(most)
    if form == "tar.bz2":
        import bz2

        return bz2.BZ2Decompressor().decompress(data, most)
    if form == "tar.xz":
        import lzma

        return lzma.LZMADecompressor().decompress(data, most)
    return data


def _plain(name: str) -> str:
    return posixpath.normpath(name.lstrip("/"))


def main(form: str) -> None:
    """The child: the archive on standard input, what it holds as JSON on standard output."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        told: dict[str, object] = {"members": _members(sys.stdin.buffer.read(), form)}
    except MemoryError:
        os._exit(1)
    except Unreadable as error:
        told = {"error": str(error)}
    except Exception as error:  # those readers raise a dozen kinds for broken files, not all of them documented
        told = {"error": type(error).__name__}
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
