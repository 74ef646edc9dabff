"""What a purchase earns: WebShop's formula with a breakdown.

reward = r_type * (attributes found + options found + price kept) / (attributes + options + 1)

Not here: which price a product with a price range has (goals.py).
Source: Yao et al., WebShop, arXiv 2207.01206, section 3.3; details measured on the original at 64fa2a5.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agentbench_fc.tasks.webshop.fuzzy import token_set_ratio
from agentbench_fc.tasks.webshop.records import Goal, Product

MATCH = 85
"""A fuzzy match must lie above this percentage."""
# WebShop's list of colour words; the first that occurs inside a text, in this order, stands for the whole text.
COLORS = tuple(
    """
    alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo
    caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream
    crystal dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather
    indigo ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha
    multicolor mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal
    rust sand sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise
    violet walnut wheat white wine yellow
    """.split()
)


@dataclass(frozen=True, slots=True)
class Score:
    """A purchase's reward in [0, 1] and where it comes from."""

    reward: float
    r_type: float
    title_score: float
    query_match: bool
    category_match: bool
    attributes_found: int
    options_found: int
    price_kept: bool

    def metrics(self) -> dict[str, float | int | bool]:
        """The breakdown, for a reply's metrics."""
        return {name: getattr(self, name) for name in self.__slots__}


def score(product: Product, goal: Goal, price: float, options: Mapping[str, str]) -> Score:
    """Scores buying `product` at `price` dollars with the chosen `options` (name -> value)."""
    r_type, title_score, query_match, category_match = _type_reward(product, goal)
    attributes = sum(_has_attribute(product, wanted) for wanted in goal.attributes)
    chosen = [_color_or_text(value) for value in options.values()]
    found = sum(any(token_set_ratio(value, want) > MATCH for value in chosen) for want in _wanted_options(goal))
    kept = price <= goal.price_upper
    share = (attributes + found + kept) / (len(goal.attributes) + len(goal.options) + 1)
    return Score(share * r_type, r_type, title_score, query_match, category_match, attributes, found, kept)


def _type_reward(product: Product, goal: Goal) -> tuple[float, float, bool, bool]:
    query_match = product.query == goal.query
    category_match = len(_path(product.product_category) & _path(goal.product_category)) >= 2
    shared = len(set(product.nouns) & set(goal.nouns))
    title_score = shared / len(goal.nouns) if goal.nouns else 0.2
    r_type = 1.0 if query_match or category_match or title_score > 0.2 else 0.5
    if title_score < 0.1:
        r_type = 0.1
    if title_score == 0:
        r_type = 0.0
    return r_type, title_score, query_match, category_match


def _path(product_category: str) -> set[str]:
    return {part.strip() for part in product_category.split("\u203a")}


def _has_attribute(product: Product, wanted: str) -> bool:
    if any(token_set_ratio(own, wanted) > MATCH for own in product.attributes):
        return True
    return (
        wanted in product.title.lower()
        or wanted in " ".join(product.bullets).lower()
        or wanted in product.description.lower()
    )


def _wanted_options(goal: Goal) -> Iterable[str]:
    if isinstance(goal.options, Mapping):
        # The original matches the text of the pair, unless one of the two is exactly a colour word.
        return [next((c for c in COLORS if c in pair), str(pair)) for pair in goal.options.items()]
    return [_color_or_text(value) for value in goal.options]


def _color_or_text(text: str) -> str:
    return next((color for color in COLORS if color in text), text)
