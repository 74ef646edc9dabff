"""WebShop's product records -> `Product`, as the original prepares them.

Not here: goals (goals.py); the noun tagger (nouns.py); streaming whole files (convert.py).
Source: WebShop at 64fa2a5, `load_products` and `parse_price`-like steps, restated from its behaviour.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from agentbench_fc.errors import TaskError
from agentbench_fc.tasks.webshop.records import Product

MAX_ASIN = 10
DEFAULT_PRICE = 100.0
NO_ATTRIBUTES = ("DUMMY_ATTR",)
Tagger = Callable[[str], Sequence[str]]


def distinct(records: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The records of products in the order given, without repeats and ids that are no product ids."""
    seen: set[str] = set()
    for position, record in enumerate(records):
        asin = record.get("asin") if isinstance(record, Mapping) else None
        if not isinstance(asin, str):
            raise TaskError(f"product {position} has no asin [products]. Is this a file of WebShop's products?")
        if asin != "nan" and len(asin) <= MAX_ASIN and asin.isascii() and asin not in seen:
            seen.add(asin)
            yield record


def prepare_products(
    records: Iterable[Mapping[str, Any]], attributes: Mapping[str, Mapping[str, Any]], tagger: Tagger
) -> Iterator[Product]:
    """Prepared products in the order given."""
    return (prepare_product(record, attributes.get(record["asin"], {}), tagger) for record in distinct(records))


def prepare_product(record: Mapping[str, Any], about: Mapping[str, Any], tagger: Tagger) -> Product:
    """One prepared product."""
    bullets = record.get("small_description") or ()
    prices, tag = read_prices(record.get("pricing") or "")
    title = record["name"]
    return Product(
        asin=record["asin"],
        title=title,
        description=record.get("full_description") or "",
        bullets=(bullets,) if isinstance(bullets, str) else tuple(bullets),
        prices=prices,
        price_tag=tag,
        category=record.get("category") or "",
        query=(record.get("query") or "").lower().strip(),
        product_category=record.get("product_category") or "",
        options=_options(record.get("customization_options") or {}),
        attributes=tuple(about.get("attributes") or NO_ATTRIBUTES),
        nouns=tuple(tagger(title)),
    )


def read_prices(pricing: str) -> tuple[tuple[float, ...], str]:
    """Price, or the two ends of a range, and the text that the page shows.

    >>> read_prices("$1,200.00"), read_prices("from $3.5 - $2"), read_prices("")
    (((1200.0,), '$1200.0'), ((3.5, 2.0), '$3.5 to $2.0'), ((100.0,), '$100.0'))
    """
    numbers = [re.sub(r"[^\d.]", "", piece) for piece in pricing.split("$")[1:]]
    prices = tuple(float(number) for number in numbers if number and number.count(".") <= 1 and number != ".")[:2]
    if not prices:
        return (DEFAULT_PRICE,), f"${DEFAULT_PRICE}"
    if len(prices) == 1:
        return prices, f"${prices[0]}"
    return prices, f"${prices[0]} to ${prices[1]}"


def _options(raw: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    return {
        name.lower(): tuple(content["value"].strip().replace("/", " | ").lower() for content in contents)
        for name, contents in raw.items()
        if contents is not None
    }


def index_text(product: Product) -> str:
    """What the search engine sees of a product: title, description, first bullet and options."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options.items())
    first_bullet = product.bullets[0] if product.bullets else ""
    return " ".join([product.title, product.description, first_bullet, options]).lower()
