"""The shop's pages as text: what is seen, and what can be clicked. Pure functions of values.

A page is a list of parts, joined by " [SEP] ", as WebShop's text mode shows them, to the byte.

Not here: how one page leads to the next (shop.py).
Source: WebShop at 64fa2a5, text observations of its HTML pages, restated and compared page by page in the tests.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agentbench_fc.tasks.webshop.records import Product

SEPARATOR = " [SEP] "
RESULTS_PER_PAGE = 10
SUB_PAGES = ("description", "features", "reviews")
BACK, PREVIOUS, NEXT, BUY = "back to search", "< prev", "next >", "buy now"
_HEAD = ("Instruction:",)
_RECEIPT = (
    *("attrs", "None", "category", "None", "query", "None", "product category", "None", "Target", "asin", "options"),
    *("attrs", "price upper", "instuction text", "category", "product category", "query", "Goal", "None", "Reward"),
    "Your score (min 0.0, max 1.0)",
)


@dataclass(frozen=True, slots=True)
class Page:
    """What the agent sees. `clickables` are in lower case, in the order of the page."""

    text: str
    clickables: tuple[str, ...]
    has_search_bar: bool = False


def search_page(instruction: str) -> Page:
    """The start: a search box."""
    return Page(_join(("WebShop", *_HEAD, instruction, "Search")), ("search",), has_search_bar=True)


def results_page(instruction: str, products: Sequence[Product], number: int, total: int) -> Page:
    """Page `number` (from 1) of `total` results; past the end it shows none."""
    first = number == 1
    parts = [*_HEAD, instruction, "Back to Search", f"Page {number} (Total results: {total})"]
    parts += [*([] if first else ["< Prev"]), "Next >"]
    for product in products:
        parts += [product.asin, product.title, product.price_tag]
    buttons = [BACK, *([] if first else [PREVIOUS]), NEXT]
    return Page(_join(parts), (*buttons, *(product.asin.lower() for product in products)))


def item_page(instruction: str, product: Product) -> Page:
    """A product with its options. The page never shows which are chosen."""
    parts = [*_HEAD, instruction, "Back to Search", "< Prev"]
    for name, choices in product.options.items():
        parts += [name, *choices]
    parts += [product.title, f"Price: {product.price_tag}", "Rating: N.A.", "Description", "Features", "Reviews"]
    values = [value for values in product.options.values() for value in values]
    return Page(_join([*parts, "Buy Now"]), tuple(dict.fromkeys((BACK, PREVIOUS, *SUB_PAGES, BUY, *values))))


def sub_page(instruction: str, product: Product, kind: str) -> Page:
    """Description, features or reviews (of which there are never any) of a product."""
    content = {"description": (product.description,), "features": product.bullets, "reviews": ()}[kind]
    return Page(_join((*_HEAD, instruction, "Back to Search", "< Prev", *content)), (BACK, PREVIOUS))


def done_page(asin: str, options: Mapping[str, str], reward: float) -> Page:
    """The receipt, with the score."""
    thanks = ("Thank you for shopping with us!", "Your code:", "None", "(Paste it in your MTurk interface.)")
    bought = ("Purchased", "asin", asin, "options", json.dumps(dict(options)))
    return Page(_join((*thanks, *bought, *_RECEIPT, str(reward), "Reward Details", "None")), ())


def _join(parts: Iterable[str]) -> str:
    """An empty text gives no part; one of spaces alone an empty part, unless it has a newline: HTML's rule."""
    return SEPARATOR.join(part.strip() for part in parts if part and (part.strip() or "\n" not in part))
