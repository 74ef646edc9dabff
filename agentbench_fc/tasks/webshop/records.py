"""Product and Goal: the two records of a catalogue, and how they are stored.

Not here: how WebShop's own files become products (prepare.py) and goals (goals.py).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

NO_PRICE_LIMIT = 1_000_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One product, prepared: texts as shown, options in lower case, the nouns of its title precomputed."""

    asin: str
    title: str
    description: str = ""
    bullets: tuple[str, ...] = ()
    prices: tuple[float, ...] = (100.0,)
    """One price, or the two ends of a range (in the order given)."""
    price_tag: str = "$100.0"
    category: str = ""
    query: str = ""
    product_category: str = ""
    """Path of categories, joined by U+203A."""
    options: Mapping[str, tuple[str, ...]]
    attributes: tuple[str, ...] = ()
    nouns: tuple[str, ...] = ()
    """Lower-cased nouns of the title, in order, repeats kept."""

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Product":
        """The record from JSON, whose lists become tuples."""
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in data.items()
        }
        fields["options"] = {name: tuple(values) for name, values in data["options"].items()}
        return cls(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a shopper wants, and what the purchase is scored against."""

    asin: str
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str, ...] | Mapping[str, str] = ()
    """Wanted values; human goals give a list, synthetic ones name -> value, which the original scores differently."""
    price_upper: float = NO_PRICE_LIMIT
    query: str = ""
    product_category: str = ""
    category: str = ""
    nouns: tuple[str, ...] = ()
    """Nouns of the target's title."""
    weight: float = 1.0
    level: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Goal":
        """The record from JSON, whose lists become tuples."""
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in data.items()
        }
        return cls(**fields)
