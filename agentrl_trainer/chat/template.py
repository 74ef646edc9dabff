"""Messages -> token ids and back, by the model's own chat template; a prompt is rendered once, turns are only appended.

A conversation grows as ids: the prompt, then for each turn what was sampled and what was observed. `observation_ids`
renders the observed messages behind a dummy assistant turn and cuts that turn away, so history is never rendered again.
This is right for a template that renders a turn the same whatever follows it, wherever it stands and whatever the tools
are; the check at the start plays a conversation of several turns both ways, and refuses others with a cure.

An observation begins at the end-of-turn token of the turn before it, whether or not the policy sampled that token:
`TokenBuffer` drops the doubled one. In GLM-4 that token is the header of the next role, and the same rule holds.

Not here: the ids of a trajectory and their masks (buffer.py); the formats of tool calls (agentbench_fc.parsers).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agentbench_fc.errors import CallerError, did_you_mean
from agentbench_fc.messages import (
    AgentTurn,
    Message,
    ToolCall,
    ToolSpec,
    assistant,
    function_tool,
    tool_name,
    tool_result,
    user,
)
from agentbench_fc.parsers import Parser, get_parser
from agentrl_trainer.chat.families import FAMILIES, families_of

AUTO = "auto"
_MARKERS = (
    ("<|python_tag|>", "llama3"),
    ("ipython", "llama3"),
    ("<tool_call>[", "smollm2"),
    ("<tool_call>", "hermes"),
    ("<|observation|>", "glm4"),
)
"""What in a chat template tells the format of its tool calls; the first hit decides."""
_PROBE_TOOL = function_tool("probe_tool", "Looks.", {"type": "object", "properties": {"x": {"type": "string"}}})
_PROBES: Mapping[str, list[Message]] = {"tool": [tool_result("call_1", "seen")], "user": [user("Go on.")]}
_CONVERSATION: Sequence[Message] = (
    user("Find é\u4e2d # \\ it."),
    assistant("<think>\nWhere?\n</think>\n\nI look.", [ToolCall("call_1", "probe_tool", '{"x": "\u00e9 \\" \\n"}')]),
    tool_result("call_1", " seen\n\nindented "),
    assistant("", [ToolCall("call_2", "probe_tool", "{}")]),
    tool_result("call_2", ""),
    assistant("It is\n\n  there.\n"),
    user("Once more."),
    assistant("<think>\n\n</think>\n\nDone."),
    user("Thanks."),
)
"""What the self-check plays: thoughts, odd blanks, empty texts, and both kinds of observations, twice."""
Kind = Literal["tool", "user"]


@dataclass(frozen=True, slots=True)
class _Prefix:
    """The dummy conversation that stands before observations of one kind."""

    messages: list[dict[str, Any]]
    text: str
    """Its rendering up to, not including, the end-of-turn token of its assistant turn."""
    end_id: int
    """The token that ends an assistant turn before such an observation."""


class ChatRenderer:
    """Renders prompts and observations, and parses what was sampled, for one tokenizer and template."""

    def __init__(
        self,
        path: str | Path,
        *,
        parser: str = AUTO,
        template: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Loads the tokenizer and checks it.

        Args:
            path: A folder (or hub name) with a Hugging Face tokenizer.
            parser: Format of the tool calls, or `auto`: by the template.
            template: Replaces the tokenizer's chat template: the name of a family (families.py), the path of a
                `.jinja` file, or Jinja text.
            options: Variables for the template, e.g. `{"enable_thinking": False}`.

        Raises:
            CallerError: no tokenizer or template there, or one that cannot be used for appending turns.
        """
        self.path = str(path)
        self._tokenizer = _load_tokenizer(self.path)
        self._special = sorted(self._tokenizer.get_added_vocab(), key=len, reverse=True)
        family = FAMILIES.get(template or "")
        if family is not None and (absent := sorted(family.tokens - set(self._special))):
            raise CallerError(
                f"the tokenizer has no {absent[0]} [{self.path}]. The chat template {family.name} is for "
                f"{family.models}; {self._choice()}"
            )
        if template is not None:
            self._tokenizer.chat_template = family.template if family else _template_text(template)
        self._options = dict(options or {})
        text = self._tokenizer.chat_template
        if not isinstance(text, str) or not text:
            raise CallerError(f"the tokenizer has no chat template [{self.path}]. Name one: {self._choice()}")
        if parser == AUTO:
            parser = family.parser if family else _detect(text, self.path)
        self.parser: Parser = get_parser(parser)
        self._prefixes: dict[str, _Prefix] = {kind: self._prefix(kind, probe) for kind, probe in _PROBES.items()}
        self._check_tools()
        self._check_appending()
        ends = {prefix.end_id for prefix in self._prefixes.values()}
        self.stop_ids: tuple[int, ...] = tuple(sorted(ends | _eos_ids(self._tokenizer, self.path)))
        """A turn ends after one of these."""

    def render_prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """The ids of the opening messages and tools, up to where the assistant's first token comes."""
        return self._encode(self._render([_for_template(m) for m in messages], tools, generate=True))

    def observation_ids(self, messages: Sequence[Message]) -> list[int]:
        """The ids from the end-of-turn token of the turn before up to where the assistant's next token comes.

        Args:
            messages: What the environment answered: tool messages, user messages, or both.
        """
        kind = "tool" if any(message["role"] == "tool" for message in messages) else "user"
        prefix = self._prefixes[kind]
        text = self._render([*prefix.messages, *(_for_template(m) for m in messages)], (), generate=True)
        if not text.startswith(prefix.text):
            raise self._not_preserving(kind)
        return self._encode(text[len(prefix.text) :])

    def parse(self, ids: Sequence[int]) -> AgentTurn:
        """Text and tool calls of a sampled turn; its closing stop token is no text."""
        kept = ids[:-1] if ids and ids[-1] in self.stop_ids else ids
        return self.parser(self.decode(kept))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, control tokens included."""
        text = self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return str(text)

    @property
    def vocabulary(self) -> int:
        """Number of ids, control tokens included; a model with fewer embeddings does not fit."""
        return len(self._tokenizer)

    def _render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[ToolSpec], *, generate: bool) -> str:
        import jinja2

        try:
            text = self._tokenizer.apply_chat_template(
                list(messages),
                tools=list(tools) or None,
                add_generation_prompt=generate,
                tokenize=False,
                **self._options,
            )
        except (jinja2.TemplateError, TypeError, KeyError, AttributeError) as error:
            roles = ", ".join(dict.fromkeys(str(m["role"]) for m in messages))
            raise self._refusal(f"cannot render the roles {roles}: {error}", "Save one that can") from error
        return str(text)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _prefix(self, kind: str, probe: list[Message]) -> _Prefix:
        """The dummy conversation for one kind of observation, checked on a probe of that kind."""
        call = ToolCall("call_1", "probe_tool", "{}")
        turn = assistant("", [call]) if kind == "tool" else assistant("Done.")
        dummy = [_for_template(user("Begin.")), _for_template(turn)]
        whole = self._render(dummy, (), generate=False)
        longer = self._render([*dummy, *(_for_template(m) for m in probe)], (), generate=True)
        closed = whole.rstrip()
        end = next((token for token in self._special if closed.endswith(token)), None)
        if end is not None:
            text = closed[: -len(end)]
        else:  # the header of the next role ends the turn
            end = next((token for token in self._special if longer.startswith(token, len(whole))), None)
            text = whole
        if end is None:
            raise self._refusal(
                "ends an assistant turn without a special token",
                "Use a tokenizer with an end-of-turn token such as <|im_end|>, and save a template that writes it",
            )
        if not longer.startswith(text + end):
            raise self._not_preserving(kind)
        prefix = _Prefix(dummy, text, self._tokenizer.convert_tokens_to_ids(end))
        if self._encode(longer) != self._encode(text) + self._encode(longer[len(text) :]):
            raise self._refusal(
                f"does not tokenize the text behind {end} on its own",
                "Use a tokenizer whose end-of-turn token is a special token, and a template that ends turns with it",
            )
        return prefix

    def _check_tools(self) -> None:
        text = self._render([_for_template(user("Begin."))], [_PROBE_TOOL], generate=True)
        if tool_name(_PROBE_TOOL) not in text:
            raise self._refusal("does not show tools to the model", "Save one with a `tools` branch")

    def _check_appending(self) -> None:
        """Plays a conversation at once and by appending: what a turn looks like must not depend on what follows it."""
        tools = [_PROBE_TOOL]
        messages = [_for_template(message) for message in _CONVERSATION]
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            kind = "tool" if messages[number + 1]["role"] == "tool" else "user"
            closed = self._render(messages[: number + 1], tools, generate=False)
            asked = self._render(messages[:number], tools, generate=True)
            longer = self._render(messages[: number + 2], tools, generate=True)
            prefix = self._prefixes[kind]
            end = str(self._tokenizer.convert_ids_to_tokens(prefix.end_id))
            body = closed.rstrip().removesuffix(end) if closed.rstrip().endswith(end) else closed
            if not longer.startswith(body):
                raise self._not_preserving(kind)
            observed = self.observation_ids([_CONVERSATION[number + 1]])
            if self._encode(longer[len(body) :]) != observed:
                raise self._refusal(
                    f"renders a {kind} message differently by where it stands",
                    "Use one that renders each message by itself",
                )
            if not asked.startswith(self._render(messages[:number], tools, generate=False)):
                raise self._refusal("changes what stands before the assistant's turn", "Use one that only appends")

    def _not_preserving(self, kind: str) -> CallerError:
        return self._refusal(
            f"renders an assistant turn differently once a {kind} message follows",
            "Use a prefix-preserving one, which keeps every think block",
        )

    def _refusal(self, what: str, cure: str) -> CallerError:
        return CallerError(f"the chat template {what} [{self.path}]. {cure}: {self._choice()}")

    def _choice(self) -> str:
        """What can be named as the chat template of this tokenizer."""
        ours = [family.name for family in families_of(self._special)]
        named = f"model.chat_template={ours[0]}" + (f" (or {', '.join(ours[1:])})" if ours[1:] else "") if ours else ""
        own = "model.chat_template=FILE.jinja"
        return f"{named} is ours for its tokens, {own} takes yours." if named else f"{own} takes yours."


def _load_tokenizer(path: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, KeyError) as error:
        raise CallerError(
            f"no tokenizer can be loaded: {error} [{path}]. Give a folder that holds tokenizer.json and its config."
        ) from error


def _template_text(template: str) -> str:
    if "\n" in template or "{" in template:
        return template
    if not template.endswith(".jinja"):
        raise CallerError(
            f"no chat template {template!r} [model.chat_template]. {did_you_mean(template, FAMILIES)} "
            "Or give a .jinja file."
        )
    try:
        return Path(template).read_text(encoding="utf-8")
    except OSError as error:
        raise CallerError(f"no chat template there: {error} [{template}]. Give a readable .jinja file.") from error


def _detect(template: str, path: str) -> str:
    for marker, name in _MARKERS:
        if marker in template:
            return name
    raise CallerError(
        f"the chat template does not tell its tool-call format [{path}]. "
        "Name it: model.parser=hermes, glm4, llama3 or smollm2."
    )


def _eos_ids(tokenizer: Any, path: str) -> set[int]:
    """The tokenizer's end of text, and what generation_config.json adds."""
    ids = {tokenizer.eos_token_id} if tokenizer.eos_token_id is not None else set()
    file = Path(path) / "generation_config.json"
    if file.is_file():
        given = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
        ids |= set(given if isinstance(given, list) else [] if given is None else [given])
    return ids


def _for_template(message: Message) -> dict[str, Any]:
    """The message as templates want it: call arguments as objects, a text for content."""
    plain: dict[str, Any] = dict(message) | {"content": message.get("content") or ""}
    if calls := message.get("tool_calls"):
        plain["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _arguments(call["function"]["arguments"])}}
            for call in calls
        ]
    return plain


def _arguments(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text
