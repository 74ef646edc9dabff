"""AgentBench's own dbbench files, by path: JSON lines -> the data of samples.

Every column is TEXT, as AgentBench makes it: the declared types do not hold for the cells, and the labels were made
that way. Cells that are no texts are written as AgentBench writes them. What is known to be wrong with a sample stands
in `tasks/db/known_faults.json`.

Not here: generated samples (generate.py).
Source: AgentBench data/dbbench at 578c5e9.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentbench_fc.errors import CallerError, TaskError
from agentbench_fc.tasks.db.questions import CHANGES

_SPLITS = {"standard.jsonl": "std", "dev.jsonl": "dev", "db_out_new.jsonl": "train", "extend_std.jsonl": "extend"}
_EMPTY_RESULT = "label_none_for_empty_result"


def find_files(path: Path) -> dict[str, Path]:
    """Split -> file; of one file, or of the files of a folder (or of its `dbbench/`) that have AgentBench's names.

    Raises:
        CallerError: nothing of the kind is there.
    """
    if path.is_file():
        return {_SPLITS.get(path.name, path.stem): path}
    folder = path / "dbbench" if (path / "dbbench").is_dir() else path
    found = {split: folder / name for name, split in _SPLITS.items() if (folder / name).is_file()}
    if not found:
        names = ", ".join(_SPLITS)
        raise CallerError(f"no dbbench data: {path} [task db, data]. Name a .jsonl file, or a folder with {names}.")
    return found


def read_split(files: Mapping[str, Path], folder: Path, exclude_suspect: bool, split: str) -> list[dict[str, Any]]:
    """The samples of a split in file order; an id keeps its number when others are left out.

    Raises:
        TaskError: a line is not a sample.
    """
    path = files[split]
    faults = known_faults(folder).get(split, {})
    samples: list[dict[str, Any]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        if not line.strip():
            continue
        fault = faults.get(str(number))
        if exclude_suspect and fault is not None and fault["suspect"]:
            continue
        try:
            sample = _sample(json.loads(line), fault, path.parent)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise TaskError(
                f"line {number + 1} is no dbbench sample: {error!r} [{path}]. Mend or remove it."
            ) from error
        samples.append(sample | {"id": f"db/{split}/{number}"})
    return samples


def known_faults(folder: Path) -> dict[str, dict[str, Any]]:
    """Split -> number of the sample -> what is wrong with it."""
    faults: dict[str, dict[str, Any]] = json.loads((folder / "known_faults.json").read_text(encoding="utf-8"))["faults"]
    return faults


def _sample(raw: dict[str, Any], fault: Mapping[str, Any] | None, folder: Path) -> dict[str, Any]:
    kind = str(raw["type"][0] if isinstance(raw["type"], list) else raw["type"])
    label = [str(value) for value in raw["label"]]
    file = _sqlite_file(raw["create"], folder) if raw.get("user_sqlite") else ""
    given = [] if file else raw["table"] if isinstance(raw["table"], list) else [raw["table"]]
    change = kind in CHANGES
    stored = re.search(r"[0-9a-f]{32}(?:_[0-9a-f]{32})*", str(raw.get("answer_md5") or ""))
    empty = fault is not None and _EMPTY_RESULT in fault["reasons"] and label[0].lower() == "none"
    sql = str((raw.get("sql") or {}).get("query") or "")
    return {
        "question": raw["description"],
        "evidence": raw.get("evidence") or "",
        "description": raw.get("add_description") or "",
        "kind": kind,
        "level": "",
        "shown": True,
        "look": False,
        "tables": [_table(table) for table in given],
        "sqlite_file": file,
        "plan": [sql] if sql and not (change and stored) else label[:1] if change else [],
        "label": label,
        "gold": None if change else [] if empty else [None if v.lower() in {"none", "null"} else v for v in label],
        "answer_md5": stored[0] if stored else "",
        "fault": list(fault["reasons"]) if fault else [],
    }


def _sqlite_file(create: Mapping[str, Any], folder: Path) -> str:
    """The file of a `user_sqlite` sample, below the folder of the samples or the one above."""
    name = Path(str(create["database"])) / str(create["init"])
    if name.is_absolute() or ".." in name.parts:
        raise ValueError(f"{name} leads out of the data folder")
    return str(next((path for base in (folder, folder.parent) if (path := base / name).is_file()), folder / name))


def _table(raw: Mapping[str, Any]) -> dict[str, Any]:
    info = raw["table_info"]
    names = [str(column["name"]) for column in info["columns"]]
    rows = [[str(cell) for cell in row] for row in info["rows"]]
    return {"name": str(raw["table_name"]), "columns": [[name, "TEXT"] for name in names], "rows": rows}
