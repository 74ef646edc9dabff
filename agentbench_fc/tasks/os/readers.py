"""AgentBench's own OS samples, by path: its JSON files and script folders -> the data of samples.

AgentBench keeps problems in `os_interaction/data` and `train_0317`, and the scripts that they name in
`os_interaction/scripts`. A script file that is not there, a language that is not bash or Python, and an image of its
own make a sample unplayable: it stays in the list, says why, and fails at its start. Numbers of AgentBench's own
samples differ from machine to machine (it never sorts its files); the ids here do not: `os/std/7/bootstrap#84` is
sample 84 of `data/7/bootstrap.json`, `os/dev/24` sample 24 of `data/dev.json`.

Not here: generated samples (generate.py); what a check means (checks.py).
Source: AgentBench data/os_interaction at 578c5e9.
"""

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from agentbench_fc.errors import CallerError, TaskError
from agentbench_fc.tasks.os.checks import STOCK
from agentbench_fc.tasks.os.volatility import volatility

logger = logging.getLogger(__name__)

IMAGES = ("default", "packages", "ubuntu")
LANGUAGES = ("bash", "python")
_SINGLE = {"dev": ("data/dev.json", "dev"), "train": ("train_0317/training.json", "7")}
"""Split -> its file, and the folder of its scripts."""


class Unplayable(Exception):
    """Why a sample cannot be played; kept with the sample, raised again at its start."""


@dataclass(frozen=True, slots=True)
class Source:
    """One JSON file of problems."""

    path: Path
    scripts: Path
    prefix: str
    """What comes before the number in an id, e.g. `7/bootstrap#`."""


def find_sources(data: str | Path) -> dict[str, list[Source]]:
    """Split -> files in id order; of one JSON file, of `os_interaction/`, or of the folder above it.

    `agentbench` means the folder that `AGENTBENCH_DATA` names.

    Raises:
        CallerError: nothing of the kind is there.
    """
    if str(data) == "agentbench":
        data = os.environ.get("AGENTBENCH_DATA") or ""
        if not data:
            raise CallerError("AGENTBENCH_DATA is not set [task os, data=agentbench]. Name AgentBench's data folder.")
    path = Path(data).expanduser()
    if path.is_file():
        return _of_file(path)
    folder = path / "os_interaction" if (path / "os_interaction").is_dir() else path
    scripts = folder / "scripts"
    found = {
        split: [Source(folder / name, scripts / used, "")]
        for split, (name, used) in _SINGLE.items()
        if (folder / name).is_file()
    }
    numbered = sorted((folder / "data").glob("[0-9]*/*.json"), key=lambda file: (len(file.parent.name), file))
    if numbered:
        found["std"] = [
            Source(file, scripts / file.parent.name, f"{file.parent.name}/{file.stem}#") for file in numbered
        ]
    if not found:
        raise CallerError(
            f"no os_interaction data: {path} [task os, data]. "
            "Name AgentBench's os_interaction folder, the folder above it, or one of its JSON files."
        )
    return found


def _of_file(path: Path) -> dict[str, list[Source]]:
    """One file makes one split; a file of a numbered folder belongs to `std`."""
    resolved = path.resolve()
    if resolved.parent.name.isdigit():
        root = resolved.parents[2]
        folder = resolved.parent.name
        return {"std": [Source(path, root / "scripts" / folder, f"{folder}/{path.stem}#")]}
    root = resolved.parents[1]
    for split, (name, used) in _SINGLE.items():
        if resolved.name == PurePosixPath(name).name:
            return {split: [Source(path, root / "scripts" / used, "")]}
    return {path.stem: [Source(path, root / "scripts" / path.stem, "")]}


def read_split(sources: Sequence[Source], folder: Path, exclude_suspect: bool, split: str) -> list[dict[str, Any]]:
    """The samples of a split in id order; an id keeps its number when others are left out.

    Raises:
        TaskError: a file is no JSON file of problems.
    """
    faults = known_faults(folder).get(split, {})
    samples: list[dict[str, Any]] = []
    for source in sources:
        for number, raw in enumerate(_rows(source.path)):
            name = f"{source.prefix}{number}"
            fault = faults.get(name)
            sample = _sample(raw, source) | {
                "id": f"os/{split}/{name}",
                "fault": list(fault["reasons"]) if fault else [],
            }
            if exclude_suspect and (sample["unplayable"] or (fault is not None and fault["suspect"])):
                continue
            samples.append(sample)
    unplayable = [sample["id"] for sample in samples if sample["unplayable"]]
    if unplayable:
        logger.warning("%d samples cannot be played, their start says why: %s", len(unplayable), ", ".join(unplayable))
    return samples


def known_faults(folder: Path) -> dict[str, dict[str, Any]]:
    """Split -> what follows `os/<split>/` in the id -> what is wrong with the sample."""
    faults: dict[str, dict[str, Any]] = json.loads((folder / "known_faults.json").read_text(encoding="utf-8"))["faults"]
    return faults


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """The problems of a file: a list of them, or a single one."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TaskError(f"no problems can be read: {error} [{path}]. Restore the file.") from error
    for number, row in enumerate(content if isinstance(content, list) else [content]):
        if not isinstance(row, dict) or not isinstance(row.get("description"), str):
            raise TaskError(f"item {number} is no OS problem [{path}]. It needs a description; mend or remove it.")
        yield row


def _sample(raw: Mapping[str, Any], source: Source) -> dict[str, Any]:
    """The sample of a problem; what is wrong with one must not hide the others of its file."""
    create = raw.get("create")
    create = create if isinstance(create, dict) else {}  # a list by mistake in two problems of AgentBench
    evaluation = raw.get("evaluation")
    evaluation = evaluation if isinstance(evaluation, dict) else {}
    sample: dict[str, Any] = {
        "question": raw["description"],
        "level": "",
        "family": ", ".join(str(label) for label in raw.get("labels", ())),
        "image": create.get("local") or "default",
        "init": [],
        "start": "",
        "match": None,
        "checks": [],
        "reference": None,
        "unplayable": "",
    }
    try:
        _need_image(create)
        sample["init"] = _scripts(create.get("init"), source.scripts)
        start = raw.get("start")
        sample["start"] = _script(start, source.scripts)["code"] if start else ""
        given = evaluation.get("example", raw.get("example"))
        sample["reference"] = _script(given, source.scripts) if given else None
        sample["match"] = _match(evaluation.get("match"))
        sample["checks"] = [_check(step, source.scripts) for step in _as_list(evaluation.get("check"))]
        if not sample["match"] and not sample["checks"]:
            raise Unplayable("it has neither match nor check")
        if {"kind": "reference"} in sample["checks"] and not sample["reference"]:
            raise Unplayable("its check runs an example, and there is none")
    except Unplayable as reason:
        sample["unplayable"] = str(reason)
    return sample | {"volatile": volatility(sample)}


def _need_image(create: Mapping[str, Any]) -> None:
    image = create.get("local") or "default"
    if image not in IMAGES:
        raise Unplayable(f"it needs an image {image!r}; there are {', '.join(IMAGES)}")


def _match(given: Any) -> dict[str, Any] | None:
    if given is None:
        return None
    if isinstance(given, str):
        return {"answer": given, "strip": True}
    if isinstance(given, dict) and ("answer" in given) != ("regex" in given):
        key = "answer" if "answer" in given else "regex"
        if key == "regex":
            try:
                re.compile(str(given[key]))
            except re.error as error:
                raise Unplayable(f"its match is no regular expression: {error}") from error
        return {key: str(given[key]), "strip": bool(given.get("strip", True))}
    raise Unplayable("its match is neither a text nor one of answer and regex")


def _check(step: Any, scripts: Path) -> dict[str, Any]:
    if step is None:
        return {"kind": "reference"}
    if isinstance(step, dict) and isinstance(step.get("file"), str):
        name = PurePosixPath(step["file"])
        if name.suffix == ".py" and name.stem in STOCK:
            return {"kind": "stock", "name": name.stem}
    return {"kind": "script", **_script(step, scripts)}


def _scripts(given: Any, scripts: Path) -> list[dict[str, str]]:
    return [_script(each, scripts) for each in _as_list(given)]


def _script(given: Any, scripts: Path) -> dict[str, str]:
    """Language and code of a script given as text, as `{"code"}` or as `{"file"}`."""
    if isinstance(given, str):
        return {"language": "bash", "code": given}
    if not isinstance(given, dict) or not isinstance(given.get("code", given.get("file")), str):
        raise Unplayable("a script is neither a text nor one of code and file")
    language = given.get("language", "bash")
    if language not in LANGUAGES:
        raise Unplayable(f"a script is in {language!r}; only {' and '.join(LANGUAGES)} are run")
    if "code" in given:
        return {"language": language, "code": given["code"]}
    name = PurePosixPath(given["file"])
    if name.is_absolute() or ".." in name.parts:
        raise Unplayable(f"the script file {name} leads out of the scripts folder")
    try:
        return {"language": language, "code": (scripts / name).read_text(encoding="utf-8")}
    except (OSError, ValueError) as error:
        raise Unplayable(f"the script file scripts/{scripts.name}/{name} is not there") from error


def _as_list(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [] if given is None else [given]
