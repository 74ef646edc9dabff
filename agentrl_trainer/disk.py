"""The run's folder as a place on a disk: made, held by one run at a time, and written to with faults that name a cure.

Not here: what is written (report.py, checkpoint.py, shards.py).
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from agentbench_fc.errors import CallerError, Conflict, InfrastructureError

LOCK = ".lock"
FULL = ("PytorchStreamWriter", "inline_container", "iostream error")
"""By these words torch says in a RuntimeError that a file could not be written."""


@contextlib.contextmanager
def writing(what: str, folder: Path) -> Iterator[None]:
    """Turns the faults of a disk within the block into one of ours.

    Raises:
        InfrastructureError: no room, no permission, or the folder is gone.
    """
    try:
        yield
    except Exception as error:
        full = isinstance(error, RuntimeError) and any(word in str(error) for word in FULL)
        # a class of its own that nothing but the weights' files raise
        if not (isinstance(error, OSError) or full or type(error).__name__ == "SafetensorError"):
            raise
        raise InfrastructureError(
            f"{what} cannot be written: {error} [{folder}]. Free space or mend the folder, then go on with resume=auto."
        ) from error


class RunFolder:
    """Holds the folder of one run: a second run in it would tear both their files.

    The hold ends with the process, however that ends.
    """

    def __init__(self, path: Path, *, setting: str = "output=") -> None:
        """Makes the folder where it is missing.

        Args:
            path: The folder.
            setting: By which another one is chosen, for messages.

        Raises:
            CallerError: it cannot be made or written to.
            Conflict: another run that has not ended uses it.
        """
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._file: IO[str] = (path / LOCK).open("a", encoding="utf-8")
        except OSError as error:
            raise CallerError(
                f"the run's folder cannot be written: {error.strerror} [{path}]. Choose another one with {setting}."
            ) from error
        if not _locked(self._file):
            self._file.close()
            raise Conflict(
                f"another run is at work in this folder [{path}]. Wait for its end, or choose another with {setting}."
            )

    def close(self) -> None:
        """Lets it go; safe to repeat."""
        if not self._file.closed:
            with contextlib.suppress(OSError):
                (self.path / LOCK).unlink()
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _locked(file: IO[str]) -> bool:
    """Takes the lock unless somebody has it; where there are no locks, everybody gets it."""
    try:
        import fcntl
    except ImportError:  # not a Unix
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    with contextlib.suppress(FileNotFoundError):  # whoever held it may just have removed it: then it is not the lock
        return os.path.samestat(os.fstat(file.fileno()), Path(file.name).stat())
    return False
