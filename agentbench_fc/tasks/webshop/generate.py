"""The default catalogue: products and goals from word lists and a seed, with families of near-duplicates.

Every number that makes a level easier or harder stands in `LEVELS`; `benchmarks/webshop.py --agents` prints how well
scripted shoppers do on each, beside what they reach on WebShop's own thousand products.

Not here: the words (tasks/webshop/world.yaml).
"""

import functools
import hashlib
import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentbench_fc.cache import only_one
from agentbench_fc.errors import NotFound, TaskError
from agentbench_fc.tasks.webshop.catalogue import Catalogue, default_folder, write_catalogue
from agentbench_fc.tasks.webshop.goals import price_limit
from agentbench_fc.tasks.webshop.records import Goal, Product

logger = logging.getLogger(__name__)

VERSION = 1
BUILD_WAIT_S = 100.0
"""How long one process waits for another one's build."""
PRODUCTS = 2000
GOALS_PER_PRODUCT = 2
_OPTION_NAMES = {
    "shoe_size": "size", "ounces": "size", "dimensions": "size", "bed": "size", "storage": "capacity",
    "flavor": "flavor name", "fit": "fit type", "pack": "pack", "count": "count",
}  # fmt: skip
_AUDIENCES = ("for Women", "for Men", "for Home", "for Travel", "for Kids", "for the Office", "for Families", "")


@dataclass(frozen=True, slots=True)
class Level:
    """What makes shopping easy or hard."""

    family: tuple[int, int]
    """Near-duplicates of a product: same kind and line, other properties, options and price."""
    properties: tuple[int, int]
    in_title: tuple[int, int]
    """Properties that the title names; the others stand in bullets and description."""
    wanted: tuple[int, int]
    """Properties that a goal asks for."""
    no_options: float
    """Share of goals that ask for no option at all."""
    name_line: float
    """How often an instruction names the line of the product, which its near-duplicates share."""
    name_brand: float
    """How often an instruction names the brand, which makes the product easy to find."""
    paraphrase: float
    """How often an instruction calls the kind of product by another name."""
    typo: float
    """Share of instruction words that are misspelt."""
    tight: bool
    """The limit is the lowest of its candidates, so that a dearer sibling does not fit."""


LEVELS: Mapping[str, Level] = {
    "easy": Level((1, 2), (3, 4), (2, 3), (1, 3), 0.65, 0.9, 0.95, 0.0, 0.0, False),
    "medium": Level((1, 4), (4, 7), (0, 2), (3, 5), 0.5, 0.9, 0.95, 0.1, 0.0, False),
    "hard": Level((4, 8), (4, 8), (0, 1), (3, 5), 0.2, 0.3, 0.1, 0.6, 0.05, True),
}


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of product."""

    name: str
    others: tuple[str, ...]
    groups: tuple[str, ...]
    prices: tuple[float, float]
    category: str
    path: str
    properties: tuple[str, ...]


def generated_catalogue(folder: Path, *, level: str = "medium", seed: int = 0, products: int = PRODUCTS) -> Catalogue:
    """The generated catalogue of a level and seed, made once per host and words; a damaged one is made again."""
    words = (folder / "world.yaml").read_bytes()
    made_of = hashlib.sha256(words + repr((VERSION, LEVELS[level])).encode()).hexdigest()[:12]
    target = default_folder(f"generated-{level}-{products}-{seed}-{made_of}")
    try:
        return Catalogue(target)
    except (NotFound, TaskError):  # absent or damaged: made by one process, while the others wait for it
        with only_one(target.with_name(f".{target.name}.lock"), BUILD_WAIT_S):
            try:
                return Catalogue(target)
            except NotFound:
                pass
            except TaskError as error:
                logger.warning("a generated catalogue is made again: %s", error)
            generate(folder, target, level=level, seed=seed, products=products)
            return Catalogue(target)


def generate(folder: Path, out: Path, *, level: str, seed: int, products: int = PRODUCTS) -> dict[str, Any]:
    """Writes a generated catalogue and returns its metadata."""
    import yaml

    world = yaml.safe_load((folder / "world.yaml").read_text(encoding="utf-8"))
    maker = _Maker(world, LEVELS[level], seed)
    meta = {"source": "generated", "seed": seed, "level": level, "generator": VERSION, "tagger": "known"}
    order = functools.partial(_order, seed=seed)
    return write_catalogue(out, maker.products(products), maker.goals, meta=meta, order=order)


def _order(count: int, *, seed: int) -> Sequence[int]:
    """Goals shuffled by product, so that contiguous ranges of goals are disjoint by product."""
    starts = list(range(0, count, GOALS_PER_PRODUCT))
    random.Random(f"order|{seed}").shuffle(starts)
    return [start + n for start in starts for n in range(GOALS_PER_PRODUCT)]


class _Maker:
    """Makes products, family by family, and their goals."""

    def __init__(self, world: Mapping[str, Any], level: Level, seed: int) -> None:
        self._world = world
        self._level = level
        self._seed = seed
        self._kinds = [_kind(line, category) for category in world["categories"] for line in category["types"]]
        self._kind_of = {kind.name: kind for kind in self._kinds}
        self._line: dict[str, tuple[str, str]] = {}

    def products(self, count: int) -> Iterator[Product]:
        """Families of every kind in turn, until there are `count` products."""
        rng = random.Random(f"products|{self._seed}")
        made = 0
        while made < count:
            for kind in self._kinds:
                series = rng.choice(self._world["series"])
                shared = rng.sample(kind.properties, rng.randint(1, 2))
                for _ in range(min(rng.randint(*self._level.family), count - made)):
                    yield self._product(rng, kind, series, shared, made)
                    made += 1

    def _product(self, rng: random.Random, kind: _Kind, series: str, shared: Sequence[str], number: int) -> Product:
        brand = rng.choice(self._world["brands"])
        own = [p for p in rng.sample(kind.properties, rng.randint(*self._level.properties)) if p not in shared]
        properties = rng.sample([*shared, *own], len(shared) + len(own))
        in_title = properties[: rng.randint(*self._level.in_title)]
        audience = rng.choice(_AUDIENCES)
        called = kind.name if rng.random() < 0.45 else rng.choice(kind.others)
        code = f"{rng.choice('ABCDEFGHKLMNPRSTVWXZ')}{rng.choice('ABCDEFGHKLMNPRSTVWXZ')}{rng.randint(100, 999)}"
        head = f"{brand} {series} {called.title()} {audience}".strip()
        title = ", ".join([head, *(p.title() for p in in_title), f"Model {code}"])
        nouns = f"{brand} {series} {called}"  # what names the product; "model" and "for women" would match anything
        prices, tag = self._price(rng, kind)
        asin = f"FC{_base32(number, self._seed)}"
        self._line[asin] = (series, kind.name)
        return Product(
            asin=asin,
            title=title,
            description=self._description(rng, brand, series, called, properties),
            bullets=self._bullets(rng, properties),
            prices=prices,
            price_tag=tag,
            category=kind.category,
            query=kind.name,
            product_category=f"{kind.path} \u203a {kind.name.title()}s \u203a {series} {kind.name.title()}s",
            options={_OPTION_NAMES.get(group, group): self._values(rng, group) for group in kind.groups},
            attributes=tuple(properties),
            nouns=tuple(nouns.lower().split()),
        )

    def _price(self, rng: random.Random, kind: _Kind) -> tuple[tuple[float, ...], str]:
        low, high = kind.prices
        price = round(rng.uniform(low, high), 2)
        draw = rng.random()
        if draw < 0.65:
            return (price,), f"${price}"
        if draw < 0.9:
            dearer = round(price * rng.uniform(1.1, 1.6), 2)
            return (price, dearer), f"${price} to ${dearer}"
        return (100.0,), "$100.0"

    def _values(self, rng: random.Random, group: str) -> tuple[str, ...]:
        pool = [str(value) for value in self._world["pools"][group]]
        chosen = set(rng.sample(pool, rng.randint(2, min(6, len(pool)))))
        return tuple(value for value in pool if value in chosen)

    def _bullets(self, rng: random.Random, properties: Sequence[str]) -> tuple[str, ...]:
        told = [rng.choice(self._world["bullets"]).format(p=p) for p in properties]
        lines = [*told, *rng.sample(self._world["filler"], rng.randint(1, 3))]
        rng.shuffle(lines)
        return tuple(line[0].upper() + line[1:] for line in lines)

    def _description(self, rng: random.Random, brand: str, series: str, called: str, properties: Sequence[str]) -> str:
        told = f"It is {', '.join(rng.sample(properties, min(1, len(properties))))}."
        text: str = rng.choice(self._world["descriptions"]).format(brand=brand, series=series, type=called, p=told)
        return f"{text} {rng.choice(self._world['filler'])}"

    def goals(self, product: Product) -> Iterator[Goal]:
        """Two goals of a product."""
        for number in range(GOALS_PER_PRODUCT):
            yield self._goal(product, number)

    def _goal(self, product: Product, number: int) -> Goal:
        rng = random.Random(f"goal|{self._seed}|{product.asin}|{number}")
        level = self._level
        series, name = self._line[product.asin]
        wanted = rng.sample(product.attributes, min(rng.randint(*level.wanted), len(product.attributes)))
        groups = rng.sample(sorted(product.options), rng.randint(1, len(product.options)))
        if rng.random() < level.no_options:
            groups = []
        options = {group: rng.choice(product.options[group]) for group in sorted(groups)}
        limit, price_text = price_limit(product, self._seed, number)
        if level.tight and price_text:
            limit = min(limit, float((int(product.prices[-1]) // 10 + 1) * 10))
            price_text = f", and price lower than {limit:.2f} dollars"
        called = rng.choice(self._kind_of[name].others) if rng.random() < level.paraphrase else name
        brand = product.title.split(f" {series} ")[0].lower()
        named = [brand] * (rng.random() < level.name_brand) + [series.lower()] * (rng.random() < level.name_line)
        text = self._instruction(rng, " ".join([*named, called]), wanted, options)
        return Goal(
            asin=product.asin,
            instruction=_misspell(rng, text, level.typo) + price_text,
            attributes=tuple(wanted),
            options=tuple(options.values()),
            price_upper=limit,
            query=product.query,
            product_category=product.product_category,
            category=product.category,
            nouns=product.nouns,
        )

    def _instruction(self, rng: random.Random, called: str, wanted: Sequence[str], options: Mapping[str, str]) -> str:
        opening = rng.choice(self._world["openings"])
        chosen = [f"{name}: {value}" if rng.random() < 0.5 else f"{value} {name}" for name, value in options.items()]
        option_text = f"{rng.choice((', ', ' with ', ' in '))}{' and '.join(chosen)}" if chosen else ""
        match rng.randrange(4):
            case 0:
                return f"{opening} {' '.join(wanted[:1])} {called}{option_text}{_that_is(wanted[1:])}"
            case 1:
                return f"{opening} {called} that is {' and '.join(wanted)}{option_text}"
            case 2:
                return f"{opening} {called}{option_text}. it should be {', '.join(wanted)}"
        return f"{opening} {', '.join(wanted)} {called}{option_text}"


def _that_is(properties: Sequence[str]) -> str:
    return f". it must also be {' and '.join(properties)}" if properties else ""


def _misspell(rng: random.Random, text: str, share: float) -> str:
    if not share:
        return text
    words = text.split(" ")
    for i, word in enumerate(words):
        if len(word) > 4 and word.isalpha() and rng.random() < share:
            at = rng.randrange(1, len(word) - 2)
            words[i] = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    return " ".join(words)


def _kind(line: str, category: Mapping[str, Any]) -> _Kind:
    name, others, groups, prices = (part.strip() for part in line.split("|"))
    low, high = map(float, prices.split())
    return _Kind(
        name,
        tuple(other.strip() for other in others.split(",")),
        tuple(groups.split()),
        (low, high),
        category["name"],
        category["path"],
        tuple(category["properties"]),
    )


def _base32(number: int, seed: int) -> str:
    """Eight characters that look like the end of a product id; ids of real products begin otherwise."""
    mixed = (number * 2_654_435_761 + seed * 97) % 32**7
    alphabet = "0123456789ABCDEFGHJKLMNPQRSTUVWX"
    return "".join(alphabet[mixed // 32**i % 32] for i in range(7, -1, -1))
