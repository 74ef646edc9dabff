"""The WebShop task: tools, observations and splits over a catalogue.

Not here: pages and moves (pages.py, shop.py); the reward (reward.py); the catalogue (generate.py, convert.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

from agentbench_fc.episode import Expert, Reply, Sample
from agentbench_fc.errors import CallerError, NotFound, did_you_mean
from agentbench_fc.messages import Message, system, user
from agentbench_fc.spec import TaskSpec
from agentbench_fc.tasks.webshop.catalogue import Catalogue
from agentbench_fc.tasks.webshop.expert import buy_target
from agentbench_fc.tasks.webshop.shop import Shop

GENERATED_SPLITS = {"test": (0, 500), "dev": (500, 1000), "train": (1000, 4000)}
ORIGINAL_SPLITS: Mapping[str, tuple[int, int | None]] = {"test": (0, 500), "dev": (500, 1500), "train": (1500, None)}
AGENTBENCH_SPLITS = {"std": (0, 200), "train": (1000, 12000)}


class WebShopTask:
    """Goals of one catalogue as samples. The catalogue is read-only and shared by all sessions."""

    def __init__(self, spec: TaskSpec, catalogue: Catalogue) -> None:
        self.spec = spec
        self.catalogue = catalogue
        self.backend = f"catalogue {catalogue.meta['source']}, {catalogue.meta['products']} products"
        generated = catalogue.meta["source"] == "generated"
        agentbench = spec.profile == "agentbench" and not generated
        self._ranges = AGENTBENCH_SPLITS if agentbench else GENERATED_SPLITS if generated else ORIGINAL_SPLITS

    def samples(self, split: str) -> Sequence[Sample]:
        """The goals of a split, in the catalogue's order."""
        if split not in self._ranges:
            raise NotFound(f"no split {split!r} [task webshop]. {did_you_mean(split, self._ranges)}")
        start, end = self._ranges[split]
        goals = self.catalogue.goal_count
        if start >= goals or (end is not None and self.spec.profile == "agentbench" and end > goals):
            needed = f"goals {start} to {end}" if end is not None else f"more than {start} goals"
            raise CallerError(
                f"split {split!r} needs {needed}, there are {goals} [{self.catalogue.folder.name}]. "
                "Convert more of WebShop's products, or use another split."
            )
        return GoalRange(split, start, min(end or goals, goals))

    def open(self, sample: Sample, seed: int) -> "WebShopEpisode":
        """A shopping trip; nothing in it is random."""
        goal = self.catalogue.goal(sample.data["goal"])
        return WebShopEpisode(Shop(self.catalogue, goal), self.spec)

    def expert(self, sample: Sample) -> Expert:
        """Buys the goal's own product with the wanted options."""
        goal = self.catalogue.goal(sample.data["goal"])
        return buy_target(goal, self.catalogue.product(goal.asin))

    def close(self) -> None:
        """Nothing to free: the files are mapped read-only."""


class GoalRange(Sequence[Sample]):
    """The samples of a range of goals, made when they are asked for."""

    def __init__(self, split: str, start: int, end: int) -> None:
        self._split = split
        self._goals = range(start, end)

    def __len__(self) -> int:
        return len(self._goals)

    @overload
    def __getitem__(self, index: int) -> Sample: ...

    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...

    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        goal = self._goals[index]
        position = goal - self._goals.start
        return Sample(f"webshop/{self._split}/{position}", position, self._split, {"goal": goal})

    def __iter__(self) -> Iterator[Sample]:
        return (self[i] for i in range(len(self)))


class WebShopEpisode:
    """One trip. `agentbench` shows what AgentBench shows; `default` adds chosen options and why nothing happened."""

    def __init__(self, shop: Shop, spec: TaskSpec) -> None:
        self._shop = shop
        self._spec = spec

    def start(self) -> list[Message]:
        """The rules, then the search page."""
        page = self._page()
        opening = f"The initial observation:\n{page}" if self._original else page
        return [system(self._spec.prompts["system"]), user(opening)]

    def call(self, name: str, arguments: dict[str, Any]) -> Reply:
        """Searches or clicks."""
        shop = self._shop
        if name == "search_action":
            action, happened = f"search[{arguments['keywords']}]", shop.search(arguments["keywords"])
        else:
            action, happened = f"click[{arguments['value']}]", shop.click(arguments["value"])
        if self._original:
            text = f"Action: {action}\n\nObservation:\n{self._page()}"
        else:
            text = self._page() if happened else f"{self._why_nothing(name, arguments)}\n\n{self._page()}"
        if shop.score is None:
            return Reply(text)
        score = shop.score
        return Reply(text, score.reward, score.reward == 1.0, done=True, metrics=score.metrics())

    def say(self, text: str) -> Reply | None:
        """A turn without a call shows the page again, as AgentBench does; by default the session asks for a call."""
        if not self._original:
            return None
        complaint = "There was no tool call in that turn. Call a tool."
        return Reply(f"Observation:\n{complaint}\n\n{self._actions()}")

    def fork(self) -> "WebShopEpisode":
        """An independent trip in the same state."""
        return WebShopEpisode(self._shop.copy(), self._spec)

    def close(self) -> None:
        """Nothing to free."""

    @property
    def _original(self) -> bool:
        return self._spec.profile == "agentbench"

    def _page(self) -> str:
        page = self._shop.page
        text = f"{page.text}\n\n{self._actions()}"
        chosen = self._shop.view.options
        if self._original or self._shop.view.kind not in ("item", "sub") or not chosen:
            return text
        options = ", ".join(f"{name}: {value}" for name, value in chosen.items())
        return f"{page.text}\n\nChosen: {options}\n\n{self._actions()}"

    def _actions(self) -> str:
        page = self._shop.page
        actions = {"has_search_bar": page.has_search_bar, "clickables": list(page.clickables)}
        return f"Available Actions:\n{actions}"

    def _why_nothing(self, name: str, arguments: Mapping[str, Any]) -> str:
        if name == "search_action":
            return "Nothing happened: the keywords are empty."
        value = arguments["value"][:80]
        if value.lower() == "search":
            return "Nothing happened: search with search_action(keywords)."
        return f"Nothing happened: {value!r} cannot be clicked on this page."
