"""Reads what SGLang's pinned release accepts from its wheel, without installing it: names of fields and routes.

    python scripts/sglang_contract.py                 # downloads the wheel (39 MB) and prints the contract as JSON
    python scripts/sglang_contract.py --wheel FILE    # reads a wheel that is here already
    python scripts/sglang_contract.py > tests/sglang_contract.json     # after a new pin

The fake server of the tests refuses whatever is not in that file, and a test holds the file against the wheel.

Not here: the pin itself (pyproject.toml, extra `sglang`).
"""

import argparse
import ast
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DATACLASSES = {
    "/generate": "GenerateReqInput",
    "/update_weights_from_disk": "UpdateWeightFromDiskReqInput",
    "/pause_generation": "PauseGenerationReqInput",
    "/continue_generation": "ContinueGenerationReqInput",
    "/abort_request": "AbortReq",
}
"""Route -> the class in io_struct.py that its body becomes."""
RESPONSES = ("GenerateResponse", "GenerateMetaInfo", "WeightVersionSpan", "GetModelInfoResponse")
ROUTES = {*DATACLASSES, "/health", "/model_info", "/server_info", "/flush_cache"}


def pinned() -> str:
    """The release in pyproject.toml."""
    found = re.search(r'"sglang==([\w.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    if found is None:
        raise SystemExit("no sglang==… in pyproject.toml. Pin the release there.")
    return found[1]


def download(folder: Path, *, timeout_s: float = 300.0) -> Path | None:
    """The wheel of the pinned release, by pip; None: pip cannot get it here."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        f"sglang=={pinned()}",
        "-d",
        str(folder),
    ]
    try:
        subprocess.run(command, check=True, timeout=timeout_s, capture_output=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return None
    return next(folder.glob("sglang-*.whl"), None)


def contract(wheel: Path) -> dict[str, Any]:
    """Release, fields of each request, of the sampling parameters and of the answers, and the routes."""
    with zipfile.ZipFile(wheel) as archive:

        def tree(name: str) -> ast.Module:
            return ast.parse(archive.read(f"sglang/{name}"))

        structs, wire = tree("srt/managers/io_struct.py"), tree("api/v1/api_types.py")
        sampling = tree("srt/sampling/sampling_params.py")
        served = sorted(set(_routes(tree("srt/entrypoints/http_server.py"))) & ROUTES)
    # the server checks sampling parameters twice: its JSON schema refuses unknown keys, its class takes the rest
    both = set(_fields(wire, "SamplingParams")) & set(_fields(sampling, "SamplingParams"))
    return {
        "release": wheel.name.split("-")[1],
        "requests": {route: _fields(structs, name) for route, name in DATACLASSES.items()},
        "sampling_params": sorted(both),
        "responses": {name: _fields(wire, name) for name in RESPONSES},
        "routes": served,
    }


def _fields(tree: ast.Module, name: str) -> list[str]:
    """Annotated names of a class and of its bases in the same module."""
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    node = classes[name]
    own = [s.target.id for s in node.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)]
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in classes:
            own += _fields(tree, base.id)
    return sorted(set(own))


def _routes(tree: ast.Module) -> Iterator[str]:
    """First arguments of `@app.get("…")` and the like."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef):
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and call.args and isinstance(call.args[0], ast.Constant):
                    yield str(call.args[0].value)


def main() -> int:
    """Prints the contract of a wheel."""
    parser = argparse.ArgumentParser(description="Prints what SGLang's pinned release accepts, as JSON.")
    parser.add_argument("--wheel", type=Path, help="a wheel that is here already")
    given = parser.parse_args().wheel
    with tempfile.TemporaryDirectory() as folder:
        wheel = given or download(Path(folder))
        if wheel is None:
            print(f"pip cannot get sglang=={pinned()} here. Give --wheel FILE.", file=sys.stderr)
            return 4
        print(json.dumps(contract(wheel), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
