"""The expert: finds the goal's own product, chooses the wanted options and buys."""

import json
from collections.abc import Iterator

from agentbench_fc.episode import Expert
from agentbench_fc.messages import ToolCall
from agentbench_fc.tasks.webshop.pages import BUY, NEXT
from agentbench_fc.tasks.webshop.records import Goal, Product

PAGES = 5


def buy_target(goal: Goal, product: Product) -> Expert:
    """Searches for the product's title and pages on until it is seen; then options, then the purchase."""
    number = 0

    def call(name: str, **arguments: str) -> ToolCall:
        nonlocal number
        number += 1
        return ToolCall(f"call_{number}", name, json.dumps(arguments, ensure_ascii=False))

    turn = yield call("search_action", keywords=product.title)
    for _ in range(PAGES - 1):
        if any(product.asin in str(message["content"]) for message in turn.messages):
            break
        turn = yield call("click_action", value=NEXT)
    yield call("click_action", value=product.asin.lower())
    for value in wanted_values(goal, product):
        yield call("click_action", value=value)
    yield call("click_action", value=BUY)


def wanted_values(goal: Goal, product: Product) -> Iterator[str]:
    """The product's option values that the goal names."""
    if isinstance(goal.options, tuple):
        offered = {value for values in product.options.values() for value in values}
        yield from (value for value in goal.options if value in offered)
    else:
        yield from goal.options.values()
