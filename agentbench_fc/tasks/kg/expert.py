"""The expert: plays a sample's gold plan, and reads what comes back before it goes on.

It names entities as the question does, takes the numbers of its variables from the replies, and looks at a list before
it uses a name from it. Where a plan does not hold, it answers with what it has, and loses.

Not here: gold plans as text (plans.py); other players (players.py).
"""

import json
import re
from collections.abc import Sequence

from agentbench_fc.episode import Expert, Sample, Turn
from agentbench_fc.messages import ToolCall
from agentbench_fc.tasks.kg.plans import MAKES_VARIABLE, PARAMETERS, read_action

_NUMBER = re.compile(r"#([0-9]+)")
_LISTED_BY = {"get_neighbors": "relation", "argmax": "attribute", "argmin": "attribute"}


def play(sample: Sample, *, in_words: bool) -> Expert:
    """Plays the gold plan of a sample.

    Args:
        sample: Has AgentBench's `actions` and `entities`.
        in_words: End with the text `Final Answer: #n` instead of a `submit_answer` call.
    """
    names = {entity: name for name, entity in reversed(sample.data["entities"].items())}
    variables: list[str] = []
    listed: set[str] = set()
    for step, action in enumerate(sample.data["actions"]):
        name, values = read_action(action)
        arguments = {
            parameter: _written(value, variables, names)
            for parameter, value in zip(PARAMETERS[name], values, strict=True)
        }
        wanted = arguments.get(_LISTED_BY.get(name, ""))
        if wanted is not None and listed and wanted not in listed:
            break
        turn = yield ToolCall(f"call_{step}", name, json.dumps(arguments, ensure_ascii=False))
        reply = _last_text(turn)
        if turn.finish:
            return
        if reply.startswith("Error"):
            break
        if name in MAKES_VARIABLE:
            number = _NUMBER.search(reply)
            if number is None:
                break
            variables.append(number[0])
        else:
            listed = set(re.split(r"[\s,\[\]]+", reply))
    answer = variables[-1] if variables else "#0"
    if in_words:
        yield f"Final Answer: {answer}"
    else:
        yield ToolCall("call_answer", "submit_answer", json.dumps({"variable": answer}))


def _written(value: str, variables: Sequence[str], names: dict[str, str]) -> str:
    if value.startswith("#") and value[1:].isdigit() and int(value[1:]) < len(variables):
        return variables[int(value[1:])]
    return names.get(value, value)


def _last_text(turn: Turn) -> str:
    return str(turn.messages[-1]["content"] or "") if turn.messages else ""
