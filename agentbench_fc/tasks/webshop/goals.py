"""Products -> goals, in the original's order, with prices and price limits that depend on nothing but seed and product.

The original draws prices and limits from one unseeded generator at load, so that they differ at every start; here each
has a generator of its own, and a converted catalogue is the same everywhere.

Source: WebShop at 64fa2a5: human and synthetic goals, the limit among the next four multiples of ten, the shuffle.
"""

import hashlib
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentbench_fc.tasks.webshop.records import NO_PRICE_LIMIT, Goal, Product

SHUFFLE_SEED = 233
LIMITS = range(10, 1000, 10)


def product_price(product: Product, seed: int) -> float:
    """What a product costs, in dollars: its price, or a draw from its range."""
    if len(product.prices) == 1:
        return product.prices[0]
    return _generator("price", seed, product.asin).uniform(*product.prices)


def price_limit(product: Product, seed: int, number: int = 0) -> tuple[float, str]:
    """The most that a shopper pays, and how the instruction says so."""
    price = product_price(product, seed)
    above = [limit for limit in LIMITS if limit > price][:4]
    if len(above) < 2:
        return NO_PRICE_LIMIT, ""
    limit = float(max(_generator("limit", seed, product.asin, number).sample(above, 2)))
    return limit, f", and price lower than {limit:.2f} dollars"


def human_goals(product: Product, instructions: Sequence[Mapping[str, Any]], seed: int) -> Iterator[Goal]:
    """One goal for each written instruction that names an attribute."""
    for number, entry in enumerate(instructions):
        if entry["instruction_attributes"]:
            limit, text = price_limit(product, seed, number)
            yield _goal(
                product,
                entry["instruction"].strip(".") + text,
                entry["instruction_attributes"],
                tuple(entry["instruction_options"]),
                limit,
            )


def synthetic_goals(product: Product, about: Mapping[str, Any], seed: int) -> Iterator[Goal]:
    """One goal for every combination of the product's option values; none without an instruction."""
    instruction, attributes = about.get("instruction"), about.get("instruction_attributes")
    if instruction is None or not attributes:
        return
    limit, price_text = price_limit(product, seed)
    names = sorted(product.options)
    for values in itertools.product(*(product.options[name] for name in names)):
        options = dict(zip(names, values, strict=True))
        wanted = ", and ".join(f"{name}: {value}" for name, value in options.items())
        text = f"{instruction}{' with ' + wanted if wanted else ''}{price_text}"
        yield _goal(product, text, attributes, options, limit)


def shuffled(count: int) -> list[int]:
    """Goal index -> position in product order."""
    order = list(range(count))
    random.Random(SHUFFLE_SEED).shuffle(order)
    return order


def _goal(
    product: Product,
    instruction: str,
    attributes: Sequence[str],
    options: tuple[str, ...] | Mapping[str, str],
    limit: float,
) -> Goal:
    return Goal(
        asin=product.asin,
        instruction=instruction,
        attributes=tuple(attributes),
        options=options,
        price_upper=limit,
        query=product.query,
        product_category=product.product_category,
        category=product.category,
        nouns=product.nouns,
    )


def _generator(*key: object) -> random.Random:
    text = "\x1f".join(map(str, key))
    return random.Random(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big"))
