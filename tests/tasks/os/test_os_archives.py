"""Archives that are weapons: each is told to be none, soon, and this process neither grows nor stops."""

import bz2
import gzip
import io
import random
import resource
import tarfile
import time
import zipfile
import zlib

import pytest

from agentbench_fc.tasks.os.archives import MAX_UNPACKED, Unreadable, unpack

MAX_CONTENT = 256 * 1024


def a_sparse_tar(size: int) -> bytes:
    """GNU's old form: 512 bytes that claim a file of any size."""
    info = tarfile.TarInfo("a")
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[156:157] = tarfile.GNUTYPE_SPARSE
    block[483:495] = b"\x80" + size.to_bytes(11, "big")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + b"\0" * 1024


def a_pax_tar(text: bytes) -> bytes:
    """A header with a comment that the reader's own patterns brood over."""
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, len(text)
    return info.tobuf() + text + b"\0" * (-len(text) % 512 + 1024)


def a_zip(members: int, size: int, method: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for number in range(members):
            archive.writestr(f"m{number}", b"\0" * size)
    return buffer.getvalue()


def a_broken_stream() -> bytes:
    data = bytearray(gzip.compress(b"hello" * 1000))
    data[12] ^= 0xFF
    data[15] ^= 0x55
    with pytest.raises(zlib.error):
        gzip.decompress(bytes(data))
    return bytes(data)


WEAPONS = {
    "a sparse file of a terabyte": ("tar", a_sparse_tar(1 << 40)),
    "a sparse file of fifty gigabytes, packed": ("tar.gz", gzip.compress(a_sparse_tar(50 << 30))),
    "digits in a header": ("tar.gz", gzip.compress(a_pax_tar(b"9" * 3_000_000))),
    "many large members": ("zip", a_zip(40, MAX_UNPACKED // 2, zipfile.ZIP_DEFLATED)),
    "bzip2 in a zip": ("zip", a_zip(30, MAX_UNPACKED // 2, zipfile.ZIP_BZIP2)),
    "bzip2": ("tar.bz2", bz2.compress(b"\0" * (64 << 20))),
    "a broken stream": ("gz", a_broken_stream()),
    "nothing": ("tar.xz", b""),
}


@pytest.mark.parametrize("weapon", WEAPONS)
def test_an_archive_that_is_a_weapon_hurts_nobody(weapon: str) -> None:
    form, data = WEAPONS[weapon]
    assert len(data) <= MAX_CONTENT or form == "tar"
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(Unreadable):
        unpack(data, form)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
    assert time.process_time() - began < 2


def test_a_sound_archive_is_read_whole() -> None:
    assert unpack(a_zip(3, 5, zipfile.ZIP_BZIP2), "zip") == {f"m{number}": "\0" * 5 for number in range(3)}
    assert unpack(gzip.compress(b"a\xff\n"), "gz") == {"": "a\N{REPLACEMENT CHARACTER}\n"}


def test_no_damage_makes_another_error() -> None:
    rng = random.Random(7)
    sound = {"zip": a_zip(3, 50, zipfile.ZIP_DEFLATED), "gz": gzip.compress(b"x" * 500)}
    for form, data in sound.items():
        for _ in range(3):
            broken = bytearray(data)
            for _ in range(4):
                broken[rng.randrange(len(broken))] = rng.randrange(256)
            try:
                unpack(bytes(broken), form)
            except Unreadable:
                continue
