"""Judges the end of an episode: the answer, or the state of the sandbox, by the rules of the profile.

Default rules keep the agent's hands off the scales. A reference answer is computed in another sandbox, which only the
sample's own scripts have touched; where that cannot be right (volatility.py) it is computed in the agent's sandbox, up
to three times where it does not bear the answer out, and never if the system's programs were tampered with. Check
scripts run there as fresh processes with a fixed PATH, under the same condition. Conditions of generated samples are
judged on facts that process 1 looks up itself (state.py).

The profile `agentbench` runs references and checks in the agent's sandbox, after it, as AgentBench does.

Not here: what makes an answer right (checks.py), what must hold (state.py).
"""

import posixpath
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentbench_fc.errors import TaskError
from agentbench_fc.tasks.os import checks, state
from agentbench_fc.tasks.os.boxes import Boxes, run_script, set_up
from agentbench_fc.tasks.os.sandbox.base import Entry, Sandbox
from agentbench_fc.tasks.os.volatility import IN_PLACE

CHECK_ENV = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin",
    "LD_LIBRARY_PATH": "/usr/lib/x86_64-linux-gnu:/usr/lib/aarch64-linux-gnu:/usr/lib",
    "PYTHONNOUSERSITE": "1",
}
"""The system's folders come first: what an agent adds to /usr/local, or to the linker's cache, shadows nothing."""
_TOOLS = ("/usr/bin/", "/usr/sbin/", "/bin/", "/sbin/", "/lib", "/usr/lib", "/etc/alternatives/", "/etc/pam.d/")
_PROGRAMS = ("/usr/bin/", "/usr/sbin/", "/bin/", "/sbin/")
_LOADED = re.compile(
    r"/(?:usr/)?lib(?:64|32)?/(?:[^/]+\.so[^/]*|[\w]+-linux-gnu\w*/.+|ld[^/]*|python3(?!.*\.opt-[12]\.pyc$).+)"
    r"|.*/python3[^/]*/(?:(?:site|dist)-packages/)?(?:[^/]+\.pth|(?:site|user)customize\b.*)"
    r"|/etc/(?:ld\.so\.preload|nsswitch\.conf|profile|profile\.d/.+|environment)"
)
"""What programs load without being told to: there, a new file does as much harm as a changed one.

Not what `python3 -O` compiles on its way, which nothing else loads.
"""
_CHECK_TIMEOUT_S = 60.0
AGING_S = 1.5
"""`find -mtime -7` still takes a file of 7 days for one second; an agent, which comes later, does not see that."""
_RUN_TIMEOUT_S = 20.0
MOMENTS = 3
"""How often a reference that is computed in place is asked before an answer is wrong.

What it counts differs by the moment: `ps -A | wc -l` sees its own `wc` or, when `ps` was quicker, does not.
"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the episode was won, and what the metrics say about it."""

    passed: bool
    metrics: Mapping[str, Any] = field(default_factory=dict)


class References:
    """Reference answers that are the same whenever they are computed: one small text a sample, for all sessions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, str] = {}

    def get(self, sample_id: str) -> str | None:
        """The answer, where it was computed before."""
        with self._lock:
            return self._known.get(sample_id)

    def put(self, sample_id: str, answer: str) -> None:
        """Remembers it."""
        with self._lock:
            self._known[sample_id] = answer


@dataclass(frozen=True, slots=True)
class Known:
    """What was found out before the agent came."""

    reference: str | None = None
    """The reference's output; None: there is none, or it has to be computed in place."""
    changed: frozenset[str] = frozenset()
    """Programs of the image that the sample's own scripts changed."""


@dataclass(frozen=True, slots=True)
class Grader:
    """Grades the samples of one task."""

    boxes: Boxes
    references: References
    agentbench: bool

    def find_reference(self, sample_id: str, data: Mapping[str, Any]) -> str | None:
        """The reference's output in a sandbox of its own, which is closed again; None where it is not to be had so.

        Called before the agent's sandbox is opened: nobody holds one sandbox while waiting for another.

        Raises:
            TaskError: the sample's own scripts fail, so nobody can win.
            InfrastructureError: there is no sandbox.
        """
        if self.agentbench or {"kind": "reference"} not in data["checks"] or IN_PLACE & set(data["volatile"]):
            return None
        known = self.references.get(sample_id)
        if known is None:
            with self.boxes.open(data["image"]) as pristine:
                set_up(pristine, sample_id, data)
                if "dated" in data["volatile"]:
                    time.sleep(AGING_S)
                known = _output(sample_id, data, pristine)
            if not data["volatile"]:
                self.references.put(sample_id, known)
        return known

    def find_changed(self, data: Mapping[str, Any], box: Sandbox) -> frozenset[str]:
        """The programs that are changed already; looked for only where a script will run in the agent's sandbox."""
        trusts = {step["kind"] for step in data["checks"]} & {"script", "reference"}
        return frozenset() if self.agentbench or not trusts else frozenset(_changed_tools(box))

    def grade(self, sample_id: str, data: Mapping[str, Any], answer: str | None, box: Sandbox, known: Known) -> Verdict:
        """The verdict on an episode that ends with this answer (None: without one), in this sandbox.

        Raises:
            TaskError: the sample's own script fails, so nobody can win.
            InfrastructureError: the sandbox failed.
        """
        if data["match"] is not None:
            return Verdict(checks.match_passes(data["match"], answer, agentbench=self.agentbench))
        if self.agentbench:
            return _grade_in_place(data, answer or "", box)
        for _ in range(MOMENTS):
            verdict = self._grade_now(sample_id, data, answer, box, known)
            if verdict.passed or answer is None or verdict.metrics.get("reference") != "in place":
                break
        return verdict

    def _grade_now(
        self, sample_id: str, data: Mapping[str, Any], answer: str | None, box: Sandbox, known: Known
    ) -> Verdict:
        outputs: list[str] = []
        metrics: dict[str, Any] = {}
        for step in data["checks"]:
            passed = True
            if step["kind"] == "stock":
                passed = answer is not None and checks.answer_passes(
                    step["name"], answer, outputs[0] if outputs else ""
                )
                outputs.append("")
            elif step["kind"] == "state":
                difference = state.unmet(step["conditions"], BoxView(box))
                passed = difference is None
                metrics |= {"difference": difference} if difference else {}
            elif step["kind"] == "reference" and known.reference is not None:
                metrics["reference"] = "pristine"
                outputs.append(known.reference)
            elif tampered := sorted(_changed_tools(box) - known.changed)[:5]:
                passed = False
                metrics["tampered"] = tampered
            elif step["kind"] == "reference":
                metrics["reference"] = "in place"
                outputs.append(_output(sample_id, data, box))
            else:
                result = run_script(box, step, [answer or "", *outputs], _CHECK_TIMEOUT_S, CHECK_ENV)
                passed = result.ok
                outputs.append(result.stdout.decode("utf-8", "replace"))
            if not passed:
                return Verdict(False, metrics)
        return Verdict(True, metrics)


def _grade_in_place(data: Mapping[str, Any], answer: str, box: Sandbox) -> Verdict:
    """AgentBench's chain: each script is given the answer and the outputs of those before; any failure is wrong."""
    outputs: list[str] = []
    if {step["kind"] for step in data["checks"]} & {"script", "reference"}:
        box.expose()  # there, a reference that finds one folder closed has failed
    for step in data["checks"]:
        if step["kind"] == "stock":
            passed = checks.answer_passes(step["name"], answer, outputs[0] if outputs else "", agentbench=True)
            outputs.append("")
        elif step["kind"] == "state":
            passed = state.unmet(step["conditions"], BoxView(box)) is None
        else:
            script = data["reference"] if step["kind"] == "reference" else step
            result = run_script(box, script, [answer, *outputs], _CHECK_TIMEOUT_S)
            passed = result.ok
            outputs.append(result.stdout.decode("utf-8", "replace"))
        if not passed:
            return Verdict(False)
    return Verdict(True)


def _changed_tools(box: Sandbox) -> set[str]:
    """Changed programs and libraries, and what was added where it takes the place of one."""
    changed, added = set(), set()
    for change in box.changes():
        if _LOADED.fullmatch(change.path) or (change.path.startswith(_TOOLS) and change.kind != "added"):
            changed.add(change.path)
        elif change.path.startswith(_PROGRAMS):
            added.add(change.path)
    siblings = {path: [each + posixpath.basename(path) for each in _PROGRAMS[:2]] for path in sorted(added)[:200]}
    found = box.look(sorted({each for names in siblings.values() for each in names})) if siblings else {}
    shadows = {path for path, names in siblings.items() if any(found[name] for name in names if name not in added)}
    return changed | shadows


def _output(sample_id: str, data: Mapping[str, Any], box: Sandbox) -> str:
    """What the reference prints. Its exit code says little: `find` fails for one folder that it may not read."""
    result = run_script(box, data["reference"], [], _CHECK_TIMEOUT_S, CHECK_ENV)
    text = result.stdout.decode("utf-8", "replace")
    if result.timed_out or result.truncated or (result.code and not text.strip()):
        how = "timed out" if result.timed_out else f"ended with status {result.code}"
        raise TaskError(f"the reference script {how} [{sample_id}]. Exclude this sample.")
    return text


@dataclass(frozen=True, slots=True)
class BoxView:
    """The view of state.py on a sandbox."""

    box: Sandbox

    def look(self, paths: Sequence[str]) -> Mapping[str, Entry | None]:
        """Each path as it is, by process 1 of the sandbox itself."""
        return self.box.look(paths, content=state.MAX_CONTENT)

    def run(self, argv: Sequence[str], stdin: str, files: Mapping[str, str]) -> tuple[int, str]:
        """A fresh process with a fixed PATH."""
        for path, text in files.items():
            self.box.put(path, text.encode())
        result = self.box.exec(list(argv), timeout_s=_RUN_TIMEOUT_S, stdin=stdin.encode(), env=CHECK_ENV)
        return result.code, result.stdout.decode("utf-8", "replace")
