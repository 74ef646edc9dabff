"""The child's side of procs.py, run as `python procs_child.py package.module:callable PARENT_PID`.

Reads calls from stdin, writes answers to stdout, and ends with its parent: at the end of stdin when idle, by the
kernel's death signal at any other time.

Not here: who starts and kills it (procs.py).
"""

import ctypes
import importlib
import json
import os
import signal
import struct
import sys
import traceback
from collections.abc import Mapping
from typing import Any, BinaryIO

PR_SET_PDEATHSIG = 1
HEADER = struct.Struct(">I")


def main() -> None:
    """Serves until stdin ends."""
    target, parent = sys.argv[1], int(sys.argv[2])
    _die_with(parent)
    requests, answers = _take_pipes()
    served: Any = None
    while (request := _read(requests)) is not None:
        try:
            if request["method"]:
                answer = {"result": _method(served, request["method"])(**request["params"])}
            else:
                served = _find(target)(**request["params"])
                answer = {"result": None}
            body = json.dumps({"id": request["id"], **answer}).encode()
        except Exception as error:  # whatever the served code raises is the caller's to judge
            body = json.dumps({"id": request["id"], "error": _describe(error)}).encode()
        answers.write(HEADER.pack(len(body)) + body)
        answers.flush()
    if callable(close := getattr(served, "close", None)):
        close()


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)


def _take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """The pipes, moved out of the way of code that prints or reads."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return requests, answers


def _read(requests: BinaryIO) -> dict[str, Any] | None:
    header = requests.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    body = requests.read(HEADER.unpack(header)[0])
    request: dict[str, Any] | None = json.loads(body) if len(body) == HEADER.unpack(header)[0] else None
    return request


def _find(target: str) -> Any:
    from agentbench_fc.errors import CallerError

    module, _, attribute = target.partition(":")
    try:
        found = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise CallerError(f"the target cannot be found: {error} [{target}]. Give 'package.module:callable'.") from error
    return found


def _method(served: Any, name: str) -> Any:
    from agentbench_fc.errors import CallerError

    method = None if name.startswith("_") else getattr(served, name, None)
    if not callable(method):
        raise CallerError(f"no method {name!r} [{type(served).__name__}]. Call a public one.")
    return method


def _describe(error: Exception) -> Mapping[str, Any]:
    from agentbench_fc.errors import AgentBenchError

    ours = isinstance(error, AgentBenchError)
    trace = "" if ours else "".join(traceback.format_exception(error))[-10_000:]
    return {"type": type(error).__name__, "text": str(error)[:10_000], "ours": ours, "trace": trace}


if __name__ == "__main__":
    main()
