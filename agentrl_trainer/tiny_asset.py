"""The tiny policy as it ships: its folder, its manifest, and the checks that its parts belong together.

A tokenizer that was trained again makes a good model worthless without a word, and so do tasks whose prompts or tools
have changed. The manifest says which files and which tasks the weights were made with.

>>> task_digest({"tools": [], "prompts": {"system": "Use SQL."}})
'91c4c994a603bde1'

Not here: how it is made (make_tiny.py).
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentbench_fc.errors import CallerError
from agentrl_trainer.config import TINY

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from agentbench_fc.spec import TaskSpec

FOLDER = Path(__file__).parent / "assets" / TINY
MANIFEST = "manifest.json"
FORMAT = 1
SEALED = ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
"""Files whose hashes the manifest holds."""
_REBUILD = "Install the package again, or rebuild the folder: `python -m agentrl_trainer.make_tiny`"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a policy folder says about itself."""

    folder: Path
    data: Mapping[str, Any]

    @property
    def tasks(self) -> Mapping[str, Mapping[str, Any]]:
        """By task: how it was loaded (`options`, `prompt`), its `digest`, and what was measured on it."""
        tasks: Mapping[str, Mapping[str, Any]] = self.data["tasks"]
        return tasks


def read_manifest(folder: Path = FOLDER) -> Manifest:
    """The manifest of a policy folder.

    Raises:
        CallerError: none there, or of another format.
    """
    path = folder / MANIFEST
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CallerError(f"the manifest cannot be read: {error} [{path}]. {_REBUILD}.") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise CallerError(f"the manifest has another format than {FORMAT} [{path}]. {_REBUILD}.")
    return Manifest(folder, data)


def check_asset(folder: Path = FOLDER, specs: Mapping[str, "TaskSpec"] | None = None) -> list[str]:
    """Checks that files and weights belong together, and whether tasks are those it was made for.

    Args:
        folder: A folder that `make_tiny` wrote.
        specs: Tasks that the policy is about to play, by name, as they are loaded for it.

    Returns:
        Warnings: one for each task whose prompts or tools are not those it has learnt. It can play such a task, badly.

    Raises:
        CallerError: a file is missing or not the one the weights were made with.
    """
    manifest = read_manifest(folder)
    hashes = manifest.data["files"]
    for name in SEALED:
        found = file_hash(folder / name) if (folder / name).is_file() else "missing"
        if found != hashes.get(name):
            raise CallerError(f"{name} is not the file that the weights were made with [{folder}]. {_REBUILD}.")
    warnings = []
    for name, spec in (specs or {}).items():
        known = manifest.tasks.get(name)
        if known is None:
            learnt = ", ".join(manifest.tasks)
            warnings.append(f"{TINY} has never seen task {name}; it knows {learnt}. Give it a supervised start first.")
        elif known["digest"] != spec_digest(spec):
            warnings.append(
                f"prompts or tools of task {name} are not those that {TINY} has learnt "
                f"(prompt style {known['prompt']}). Load it with prompt={known['prompt']}, or run make_tiny again."
            )
    return warnings


def load_asset(folder: Path = FOLDER) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """The checked policy and its tokenizer.

    Raises:
        CallerError: see `check_asset`.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    check_asset(folder)
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder)
    return model, tokenizer


def seal(folder: Path, facts: Mapping[str, Any]) -> Manifest:
    """Writes the manifest of a folder: the hashes of its files, and `facts` (tasks, measurements, versions …)."""
    data = {"name": TINY, "format": FORMAT, "files": {n: file_hash(folder / n) for n in SEALED}, **facts}
    (folder / MANIFEST).write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return Manifest(folder, data)


def spec_digest(spec: "TaskSpec") -> str:
    """Hash of what a policy learns by heart about a task: its tools and prompts, not its limits."""
    return task_digest({"tools": list(spec.tools), "prompts": dict(spec.prompts)})


def task_digest(facts: Mapping[str, Any]) -> str:
    """Hash of plain data."""
    text = json.dumps(facts, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def file_hash(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
