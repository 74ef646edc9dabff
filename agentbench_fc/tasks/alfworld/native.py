"""Fast Downward's state machine, as TextWorld drives it: which operators apply in a state, and what they change.

The library keeps its task in global variables, so each task needs a copy of the library of its own. It numbers the
states that it meets and can go back to any of them: one copy serves all sessions of one game.

A copy is the loadable part of the file, 1 MB of 34. It is loaded from memory, so that a process which is killed leaves
nothing behind; closing the copy frees all of it.

Not here: what operators and atoms mean (engine.py); how a task is made (translation.py).
"""

import ctypes
import importlib.util
import itertools
import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentbench_fc.errors import CallerError, InfrastructureError

NAME_BYTES = 1024
"""Room for the name of an operator or atom in the library's structs; a longer name would overflow it."""
OPERATOR_INTS = (4 + NAME_BYTES + 4) // 4
"""An operator is its number, its name, and how many atoms it sets: so many ints."""
DYNAMIC_SYMBOLS, SYMBOL_BYTES, GLOBAL, UNIQUE = 11, 24, 1, 10
"""Of the ELF format: a kind of section, the size of its entries, and two kinds of symbols."""
INSTALL = "Install the engine: pip install 'agentbench-fc[alfworld]'"


class _Operator(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("name", ctypes.c_char * NAME_BYTES), ("effects", ctypes.c_int))


def library_file() -> Path:
    """Where the library is installed.

    Raises:
        CallerError: it is not.
    """
    spec = importlib.util.find_spec("fast_downward")
    path = Path(spec.origin).with_name("libdownward.so") if spec is not None and spec.origin else None
    if path is None or not path.is_file():
        raise CallerError(f"there is no fast_downward library [task alfworld]. {INSTALL}.")
    return path


def check_installed() -> None:
    """Refuses to go on without the packages that play games; none of them is imported.

    Raises:
        CallerError: one is missing.
    """
    missing = [name for name in ("alfworld", "textworld", "fast_downward") if importlib.util.find_spec(name) is None]
    if missing:
        raise CallerError(f"not installed: {', '.join(missing)} [task alfworld]. {INSTALL}.")


def separable(content: bytes) -> bytes:
    """A shared library so changed that copies of it have nothing in common; other formats stay as they are.

    Left out is what follows the loadable segments: symbols and debug data. And its unique symbols become ordinary ones.
    The loader gives all copies of a library one instance of a unique symbol. Here that is a registry, which would
    keep pointers into copies that were closed: after some dozens of them the process crashes.
    """
    if content[:6] != b"\x7fELF\x02\x01":
        return content
    changed = bytearray(content)
    sections, section_size, section_count = _table(content, 0x28, 0x3A)
    for at in range(sections, sections + section_size * section_count, section_size):
        (kind,) = struct.unpack_from("<I", content, at + 4)
        if kind == DYNAMIC_SYMBOLS:
            first, length = struct.unpack_from("<QQ", content, at + 24)
            for info in range(first + 4, first + length, SYMBOL_BYTES):
                if changed[info] >> 4 == UNIQUE:
                    changed[info] = GLOBAL << 4 | changed[info] & 15
    programs, program_size, program_count = _table(content, 0x20, 0x36)
    end = 0
    for at in range(programs, programs + program_size * program_count, program_size):
        (offset,) = struct.unpack_from("<Q", content, at + 8)
        (length,) = struct.unpack_from("<Q", content, at + 32)
        end = max(end, offset + length)
    struct.pack_into("<Q", changed, 0x28, 0)  # where the section headers were
    struct.pack_into("<HH", changed, 0x3C, 0, 0)
    return bytes(changed[:end])


def _table(content: bytes, place: int, shape: int) -> tuple[int, int, int]:
    """Offset, size of an entry and count of one of the two tables of an ELF file."""
    (offset,) = struct.unpack_from("<Q", content, place)
    size, count = struct.unpack_from("<HH", content, shape)
    return offset, size, count


class Library:
    """One loaded copy. Its states are numbers that stay valid until the next `load`.

    Args:
        content: The library's file, made `separable`.
    """

    def __init__(self, content: bytes) -> None:
        self._library = _loaded(content)
        self._closed = False
        self._room = 128
        self._operators = (_Operator * self._room)()
        self._atoms = ctypes.create_string_buffer(64 * NAME_BYTES)
        self._library.load_sas.argtypes = [ctypes.c_char_p]
        self._library.get_applicable_operators.argtypes = [ctypes.c_void_p]
        self._library.apply_operator.argtypes = [ctypes.c_int, ctypes.c_void_p]
        self._library.check_goal.restype = ctypes.c_bool
        self._library.set_state_id.argtypes = [ctypes.c_int]

    def load(self, task: bytes) -> int:
        """Takes a task in place of the present one.

        Returns:
            The number of its initial state.
        """
        self._library.load_sas(task)
        return int(self._library.get_state_id())

    def applicable(self, state: int) -> list[int]:
        """The numbers of the operators that apply in a state, in the library's order."""
        self._library.set_state_id(state)
        count = int(self._library.get_applicable_operators_count())
        if count > self._room:
            self._room = 2 * count
            self._operators = (_Operator * self._room)()
        self._library.get_applicable_operators(ctypes.addressof(self._operators))
        numbers = ctypes.cast(self._operators, ctypes.POINTER(ctypes.c_int))
        return numbers[0 : count * OPERATOR_INTS : OPERATOR_INTS]

    def described(self, count: int) -> dict[int, tuple[str, int]]:
        """Number -> name and count of effects, for the operators that `applicable` has just given."""
        return {op.id: (op.name.decode("cp1252"), op.effects) for op in self._operators[:count]}

    def apply(self, state: int, operator: int) -> int:
        """The state after an operator that applies."""
        self._library.set_state_id(state)
        self._library.apply_operator(operator, None)
        return int(self._library.get_state_id())

    def effects(self, state: int, operator: int, count: int) -> list[str]:
        """The names of the `count` atoms that an operator sets; `state` is one in which it applies."""
        if count * NAME_BYTES > len(self._atoms):
            self._atoms = ctypes.create_string_buffer(count * NAME_BYTES)
        self._library.set_state_id(state)
        self._library.apply_operator(operator, ctypes.addressof(self._atoms))
        raw = self._atoms.raw
        return [raw[at : raw.index(b"\0", at)].decode("cp1252") for at in range(0, count * NAME_BYTES, NAME_BYTES)]

    def is_goal(self, state: int) -> bool:
        """Whether a state is a goal."""
        self._library.set_state_id(state)
        return bool(self._library.check_goal())

    def close(self) -> None:
        """Unloads the copy; safe to repeat."""
        if not self._closed:
            self._closed = True
            self._library.cleanup()
            _unload(self._library._handle)

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.close()


_numbers = itertools.count(1)


def _loaded(content: bytes) -> ctypes.CDLL:
    """A copy that shares nothing with those loaded before."""
    try:
        with _in_memory(content) as path:
            return ctypes.CDLL(path)
    except (AttributeError, OSError):  # not Linux, no /proc, or a system that runs nothing from memory
        pass
    path = ""
    try:
        with tempfile.TemporaryDirectory(prefix="agentbench-fc-alfworld-") as folder:
            path = os.path.join(folder, "libdownward.so")
            Path(path).write_bytes(content)
            return ctypes.CDLL(path)
    except OSError as error:
        raise InfrastructureError(
            f"the planning library cannot be loaded: {error} [{path}]. "
            "Point TMPDIR to a folder with free space that allows execution."
        ) from error


@contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """The path of a file that no folder holds.

    A loader that has met a path gives the old copy again, and descriptors have the same few numbers over and over. So
    each path is written in another way: a number in binary, `./` for 1 and `/` for 0.
    """
    handle = os.memfd_create("libdownward.so", os.MFD_CLOEXEC)
    try:
        with open(handle, "wb", closefd=False) as file:
            file.write(content)
        detour = "".join("./" if bit == "1" else "/" for bit in f"{next(_numbers):b}")
        yield f"/proc/self/fd/{detour}{handle}"
    finally:
        os.close(handle)


def _unload(handle: int) -> None:
    close = ctypes.CDLL(None).dlclose
    close.argtypes = [ctypes.c_void_p]
    close(handle)
