"""Shop: the state machine behind the pages. A session is a few small values; the catalogue is shared.

Source: WebShop at 64fa2a5. Its hidden search codes (`<r>`, `<a>`, `<c>`, `<q>`) are plain words here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from agentbench_fc.tasks.webshop import pages
from agentbench_fc.tasks.webshop.pages import BACK, BUY, NEXT, PREVIOUS, RESULTS_PER_PAGE, SUB_PAGES, Page
from agentbench_fc.tasks.webshop.records import Goal, Product
from agentbench_fc.tasks.webshop.reward import Score, score


class Shelves(Protocol):
    """What the shop needs of a catalogue."""

    def product(self, asin: str) -> Product:
        """The product of that id."""
        ...

    def search(self, text: str) -> Sequence[str]:
        """Ids of the best matches, best first."""
        ...

    def price(self, product: Product) -> float:
        """What a product costs: within its range, always the same."""
        ...


@dataclass(frozen=True, slots=True)
class View:
    """Where a shopper stands."""

    kind: Literal["search", "results", "item", "sub", "done"] = "search"
    found: Sequence[str] = ()
    """Ids of the results, best first."""
    page: int = 1
    asin: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    sub: str = ""


class Shop:
    """One shopping trip for one goal."""

    __slots__ = ("_shelves", "goal", "score", "view")

    def __init__(self, shelves: Shelves, goal: Goal, view: View = View(), score: Score | None = None) -> None:
        self._shelves = shelves
        self.goal = goal
        self.view = view
        self.score = score
        """Set by the purchase."""

    def copy(self) -> "Shop":
        """An independent shop in the same state."""
        return Shop(self._shelves, self.goal, self.view, self.score)

    @property
    def page(self) -> Page:
        """What is seen now."""
        view, goal = self.view, self.goal
        match view.kind:
            case "search":
                return pages.search_page(goal.instruction)
            case "results":
                products = [self._shelves.product(asin) for asin in self._shown()]
                return pages.results_page(goal.instruction, products, view.page, len(view.found))
            case "item":
                return pages.item_page(goal.instruction, self._product())
            case "sub":
                return pages.sub_page(goal.instruction, self._product(), view.sub)
        assert self.score is not None
        return pages.done_page(view.asin, view.options, self.score.reward)

    def search(self, keywords: str) -> bool:
        """Searches, on any page; an empty text does nothing. Whether anything happened."""
        if not keywords or self.view.kind == "done":
            return False
        self.view = View("results", self._shelves.search(keywords.lower()))
        return True

    def click(self, target: str) -> bool:
        """Clicks what has that text, in any case. Whether anything happened."""
        target = target.lower()
        if target not in self.page.clickables or target == "search":
            return False
        view = self.view
        if target == BACK:
            self.view = View()
        elif target == PREVIOUS:
            self.view = self._before()
        elif view.kind == "results":
            if target == NEXT:
                self.view = replace(view, page=view.page + 1)
            else:
                asin = next(asin for asin in self._shown() if asin.lower() == target)
                self.view = replace(view, kind="item", asin=asin, options={})
        elif target == BUY:
            self._buy()
        elif target in SUB_PAGES:
            self.view = replace(view, kind="sub", sub=target)
        else:
            groups = [name for name, values in self._product().options.items() if target in values]
            self.view = replace(view, options={**view.options, groups[-1]: target})
        return True

    def _before(self) -> View:
        view = self.view
        if view.kind == "sub":
            return replace(view, kind="item", sub="")
        if view.kind == "item":
            return replace(view, kind="results", asin="", options={})
        return replace(view, page=view.page - 1)

    def _buy(self) -> None:
        product = self._product()
        self.score = score(product, self.goal, self._shelves.price(product), self.view.options)
        self.view = replace(self.view, kind="done")

    def _shown(self) -> Sequence[str]:
        end = self.view.page * RESULTS_PER_PAGE
        return self.view.found[end - RESULTS_PER_PAGE : end]

    def _product(self) -> Product:
        return self._shelves.product(self.view.asin)
