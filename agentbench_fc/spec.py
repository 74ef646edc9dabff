"""TaskSpec: what is fixed about a task (tools, limits, prompts, splits), and how task.yaml is read into it.

A spec is resolved: profile and prompt style are chosen when it is made, so nobody downstream asks again. Profile
`agentbench` overlays the keys below `profiles.agentbench`; prompt style `compact` takes the short texts and drops the
descriptions from the tools, which small models cannot use and pay for in context.

Not here: where a task's folder is found (registry.py); what the limits do (session.py).
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from agentbench_fc.errors import CallerError, TaskError, did_you_mean
from agentbench_fc.messages import ToolSpec, tool_name

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

Affinity = Literal["any", "thread", "process"]
CallsPerTurn = Literal["all", "first"]
Profile = Literal["default", "agentbench"]
MAX_TIMEOUT_S = 30 * 24 * 3600.0
"""Longer deadlines overflow what threads can wait for."""
PROFILES: tuple[str, ...] = get_args(Profile)


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """The fixed facts of a task under one profile and prompt style."""

    name: str
    version: str = "0.0.0"
    summary: str = ""
    tools: tuple[ToolSpec, ...] = ()
    finish_tool: str | None = None
    """The tool that ends an episode; the no-op and constant players call it."""
    max_turns: int = 20
    """Agent turns; the last one that does not finish ends as `task limit reached`."""
    max_output_chars: int = 10_000
    """Longer tool outputs are cut, with a note of how much is missing."""
    max_invalid_calls: int | None = None
    """Invalid calls and turns without a call before `agent invalid action`; None: only the turn limit."""
    start_timeout_s: float = 60.0
    call_timeout_s: float | None = 30.0
    """Deadline of one tool call in seconds; None runs calls on the caller's own thread, without a deadline."""
    affinity: Affinity = "any"
    calls_per_turn: CallsPerTurn = "all"
    prompts: Mapping[str, str] = field(default_factory=dict)
    """The texts of the chosen prompt style: `system`, `user` and whatever else the task needs."""
    splits: Mapping[str, str] = field(default_factory=dict)
    """Name -> one line about it."""
    metrics: Mapping[str, str] = field(default_factory=dict)
    profile: str = "default"
    prompt: str = "default"

    def __post_init__(self) -> None:
        for name, least in (("max_turns", 1), ("max_output_chars", 1), ("max_invalid_calls", 0)):
            value = getattr(self, name)
            if value is None and name == "max_invalid_calls":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise CallerError(f"{name} is {value!r:.80} [task {self.name}]. Use a whole number >= {least}.")
        for name in ("start_timeout_s", "call_timeout_s"):
            value = getattr(self, name)
            if value is None and name == "call_timeout_s":
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= MAX_TIMEOUT_S:
                raise CallerError(
                    f"{name} is {value!r:.80} [task {self.name}]. Use seconds > 0, at most {MAX_TIMEOUT_S:,.0f}."
                )
        for name, allowed in (("affinity", get_args(Affinity)), ("calls_per_turn", get_args(CallsPerTurn))):
            if getattr(self, name) not in allowed:
                raise CallerError(f"{name} is {getattr(self, name)!r} [task {self.name}]. Known: {', '.join(allowed)}.")

    @cached_property
    def digest(self) -> str:
        """Hash of everything that shapes an episode; transcripts carry it."""
        text = json.dumps(asdict(self), sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @cached_property
    def validators(self) -> "Mapping[str, Validator]":
        """Tool name -> compiled JSON schema validator; made once, shared by all sessions.

        Raises:
            TaskError: a tool's schema is not a JSON schema.
        """
        from jsonschema import Draft202012Validator, SchemaError

        validators = {}
        for tool in self.tools:
            try:
                Draft202012Validator.check_schema(tool["function"]["parameters"])
            except SchemaError as error:
                where = f"[task {self.name}, tool {tool_name(tool)}]"
                raise TaskError(f"the schema of a tool is wrong: {error.message} {where}. Mend it.") from error
            validators[tool_name(tool)] = Draft202012Validator(tool["function"]["parameters"])
        return validators


def load_spec(path: Path, *, profile: str = "default", prompt: str = "default", **overrides: Any) -> TaskSpec:
    """Reads a task.yaml under one profile and prompt style; `overrides` replace single fields.

    Raises:
        CallerError: unknown profile, prompt style or override.
        TaskError: the file itself is wrong.
    """
    import yaml

    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise TaskError(f"task.yaml cannot be read: {error} [{path}]. Restore it from the package.") from error
    profiles = raw.pop("profiles", {})
    if profile != "default":
        if not isinstance(profile, str) or profile not in profiles:
            raise CallerError(f"no profile {profile!r} [task {raw['name']}]. {did_you_mean(profile, PROFILES)}")
        raw |= profiles[profile]
    styles = raw.pop("prompts", {})
    if styles and (not isinstance(prompt, str) or prompt not in styles):
        raise CallerError(f"no prompt style {prompt!r} [task {raw['name']}]. {did_you_mean(prompt, styles)}")
    tools = raw.pop("tools", [])
    if names := raw.pop("only_tools", None):
        tools = [tool for tool in tools if tool_name(tool) in names]
    known = {f.name for f in fields(TaskSpec)} - {"profile", "prompt", "prompts", "tools"}
    for key in overrides:
        if key not in known:
            raise CallerError(f"unknown option {key!r} [task {raw['name']}]. {did_you_mean(key, known)}")
    if unknown := set(raw) - known:
        raise TaskError(f"unknown key {sorted(unknown)} [{path}]. {did_you_mean(min(unknown), known)}")
    return TaskSpec(
        **(raw | overrides),
        tools=tuple(_without_descriptions(tool) if prompt == "compact" else tool for tool in tools),
        prompts=styles.get(prompt, {}),
        profile=profile,
        prompt=prompt,
    )


def _without_descriptions(tool: ToolSpec) -> ToolSpec:
    def strip(node: Any) -> Any:
        if isinstance(node, dict):
            kept = {k: v for k, v in node.items() if not (k == "description" and isinstance(v, str))}
            return {k: strip(v) for k, v in kept.items()}
        return [strip(item) for item in node] if isinstance(node, list) else node

    function = tool["function"]
    return {"type": "function", "function": {"name": function["name"], "parameters": strip(function["parameters"])}}
