"""A worked example to show before the question: played on a graph of its own, so that every line of it is true.

Not here: whether it is shown (the option `one_shot`).
"""

from dataclasses import replace

from agentbench_fc.episode import Sample, Turn
from agentbench_fc.messages import Message, ToolCall, assistant, tool_result
from agentbench_fc.rewards import Status
from agentbench_fc.tasks.kg.backend import OxigraphBackend
from agentbench_fc.tasks.kg.episode import KGEpisode, Rules
from agentbench_fc.tasks.kg.expert import play
from agentbench_fc.tasks.kg.expressions import NAMESPACE, And, Entity, Join
from agentbench_fc.tasks.kg.plans import actions
from agentbench_fc.tasks.kg.schema import Schema

_CLIMBED, _PEAKS = "sports.climber.first_ascents", "geography.range.mountains"
_TRIPLES = (
    ("m.0ada", _CLIMBED, "m.0one"),
    ("m.0ada", _CLIMBED, "m.0two"),
    ("m.0ada", "people.person.nationality", "m.0land"),
    ("m.0ada", "people.person.children", "m.0kid"),
    ("m.0range", _PEAKS, "m.0two"),
    ("m.0range", _PEAKS, "m.0three"),
    ("m.0range", "geography.range.country", "m.0land"),
)
_RANGES = {
    _CLIMBED: "geography.mountain",
    _PEAKS: "geography.mountain",
    "people.person.nationality": "location.country",
    "people.person.children": "people.person",
    "geography.range.country": "location.country",
}
_THOUGHTS = (
    "The answer is a set of mountains. I look at what leads away from Ada Lindqvist.",
    "first_ascents gives the mountains that she was the first to climb.",
    "Now the mountains of the Silver Range: I list its relations.",
    "mountains is the one I need.",
    "Both variables hold mountains; the answer is what they share.",
    "#2 holds the mountains of the Silver Range that Ada Lindqvist climbed first.",
)


def worked_example(rules: Rules, *, in_words: bool) -> tuple[Message, ...]:
    """A question, the calls that solve it, their real replies, and the answer."""
    plan = actions(And(Join(_CLIMBED, Entity("m.0ada")), Join(_PEAKS, Entity("m.0range"))))
    data = {
        "question": "Which mountains of the Silver Range did Ada Lindqvist climb first?",
        "entities": {"Ada Lindqvist": "m.0ada", "Silver Range": "m.0range"},
        "actions": plan,
        "answer": [{"answer_argument": "m.0two"}],
    }
    sample = Sample("kg/example/0", 0, "example", data)
    backend = OxigraphBackend()
    backend.load_lines(f"<{NAMESPACE}{s}> <{NAMESPACE}{r}> <{NAMESPACE}{o}> ." for s, r, o in _TRIPLES)
    schema = Schema(frozenset(_RANGES), frozenset(), _RANGES)
    episode = KGEpisode(sample, replace(rules, backend=backend, schema=schema, example=()))
    messages = episode.start()[-1:]
    expert = play(sample, in_words=in_words)
    move = next(expert)
    for number, thought in enumerate(_THOUGHTS):
        if isinstance(move, str):
            messages.append(assistant(f"{thought}\n{move}"))
            break
        call = ToolCall(f"example_{number}", move.name, move.arguments)
        reply = tool_result(call.id, _answer(episode, call))
        messages += [assistant(thought, [call]), reply]
        if number + 1 < len(_THOUGHTS):
            move = expert.send(Turn("example", number + 1, [reply], [], Status.RUNNING, False, None, None))
    return tuple(messages)


def _answer(episode: KGEpisode, call: ToolCall) -> str:
    import json

    return episode.call(call.name, json.loads(call.arguments)).content
