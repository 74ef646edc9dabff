"""Which of AgentBench's samples give another answer in another sandbox, or a moment later.

A reference answer is computed away from the agent, in a sandbox that only the sample's own scripts have touched. That
is right only where two sandboxes agree. Where they need not (processes, the state of the host, a clock that is read,
random data) the reference is computed in the agent's own sandbox. An answer that depends on the date alone (ages of
files, `today`) is still computed away from the agent, but it is not remembered.

>>> volatility({"init": [], "start": "", "checks": [], "reference": {"language": "bash", "code": "ps -A | wc -l"}})
['processes']

Not here: the rule that follows from it (grading.py).
"""

import re
from collections.abc import Mapping
from typing import Any

IN_PLACE = frozenset({"processes", "host", "clock", "random"})
"""The reference is computed in the agent's own sandbox."""

_WORD = r"(?<![\w./~\\-])(?:{})(?![\w./-])"
_IN_REFERENCE = {
    "processes": re.compile(
        _WORD.format("ps|pgrep|top|pidof|pstree|lsof|jobs|ss|netstat|pmap|fuser") + r"|/proc/\S*\d|\$!"
    ),
    "host": re.compile(
        _WORD.format("free|vmstat|uptime|df|iostat|mpstat|who|w|last|ifconfig|lsblk|env")
        + r"|/proc/(?!self\b|sys/|\d)\w|stat\b.*%i|\bls -\w*i\w*\s|\bfind /\s[^|]*\|.*\bwc\b"
    ),
    "clock": re.compile(
        _WORD.format("date") + r"(?:\s*(?:[)|;\n]|$)|(?!\s*(?:-d|--date))[^|;)\n]*%[sHMTRNS])|\bls\s+-\w*t"
    ),
}
_ANYWHERE = {"random": re.compile(r"\bRANDOM\b|/dev/u?random|\bshuf\b|\bmktemp\b|\buuidgen\b|import random")}
_DATED = re.compile(r"-[mac]time\b|\btouch\s+-(?:\w*d|-date|\w*t)\b|-newer|(?<![\w./~-])date(?=\s|\))|\bago\b")
_BACKGROUND = re.compile(r"(?<![&>|<])&(?![&>\d])|\bnohup\b|\bsetsid\b")


def volatility(sample: Mapping[str, Any]) -> list[str]:
    """Why the sample may come out differently: a sorted part of `IN_PLACE` and of {"background", "dated"}."""
    setup = "\n".join([*(script["code"] for script in sample["init"]), sample["start"]])
    reference = sample["reference"]["code"] if sample["reference"] else ""
    checks = "\n".join(step.get("code", "") for step in sample["checks"])
    code = "\n".join(line for line in reference.splitlines() if not line.lstrip().startswith("#"))
    reasons = {name for name, pattern in _IN_REFERENCE.items() if pattern.search(code)}
    reasons |= {name for name, pattern in _ANYWHERE.items() if pattern.search(f"{setup}\n{code}")}
    if _DATED.search(f"{setup}\n{code}\n{checks}"):
        reasons.add("dated")
    if _BACKGROUND.search(setup):
        reasons.add("background")
    return sorted(reasons)
