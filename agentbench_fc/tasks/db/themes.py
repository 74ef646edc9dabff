"""The worlds of the generated tables: themes, their columns, and pools of simple words and small numbers.

A theme is a kind of thing with a noun; its columns are drawn from the kind's pool by a seed of its own, so each theme
has one schema. Train, dev and test have no theme in common. Words are short and common: a policy of a million
parameters has to copy them.

Not here: questions (questions.py), rows and samples (generate.py).
"""

import random
from dataclasses import dataclass
from functools import cache

Range = tuple[int, int]

PEOPLE = """
Ada Alan Alice Amos Anna Aron Basil Bella Boris Bruno Carla Cleo Clara Conan Daisy Dana David Dora Edgar Ella
Elmer Emma Ernst Esme Fanny Felix Flora Frank Gina Grace Greta Hanna Harry Hazel Hugo Ida Igor Irene Isaac Ivan
Jack Jane Jasper Joan Jonas Julia Karl Kate Klara Lars Laura Leon Lily Linus Louis Lucy Luna Magda Marco Maria
Max Mia Milo Nadia Nina Noah Nora Olga Oscar Otto Paula Peter Pia Quinn Ralph Rita Rosa Ruth Sam Sara Simon
Sonia Tessa Thea Theo Tina Tom Ursula Vera Victor Walter Wanda Willy Xenia Yara Yuri Zoe
""".split()
NAMES = """
Acorn Amber Anchor Arrow Aspen Atlas Aurora Badger Bamboo Basin Beacon Birch Bison Blaze Breeze Bronze Canyon
Castle Cedar Cherry Cliff Clover Cobra Comet Copper Coral Cosmos Cotton Crane Crystal Dawn Delta Desert Diamond
Dolphin Dragon Eagle Echo Ember Falcon Fern Flame Forest Fox Frost Galaxy Garnet Ginger Glacier Gold Granite
Harbor Hawk Hazel Heron Horizon Iris Ivory Jade Jasmine Jet Jungle Lagoon Lantern Laurel Lemon Lion Lotus Lynx
Magnet Mango Maple Marble Meadow Meteor Mint Moon Nebula Oak Oasis Ocean Olive Onyx Opal Orbit Orchid Otter
Panda Pearl Pepper Phoenix Pine Planet Prism Quartz Rain Raven Reef River Robin Ruby Saffron Sage Sapphire
Shadow Silver Sky Spark Spruce Star Storm Summit Sun Swan Thunder Tiger Topaz Tulip Valley Velvet Violet Walnut
Wave Willow Wind Wolf Zephyr
""".split()
PLACES = """
Alder Ashby Barrow Benton Brook Burton Calder Camden Carlow Colby Corin Dalton Denby Dover Dunmore Easton Elgin
Fairview Farley Felton Garrow Glenby Granby Halton Harwick Hilton Holmby Hyde Ilford Kelso Kirby Lakeside
Langley Linton Lowell Malden Marlow Melford Milton Newton Norby Norwood Oakley Orford Oxley Penrith Preston
Radley Redford Rigby Romney Rugby Salton Selby Shelby Stanton Sutton Thorpe Tilbury Upton Walden Warwick Welby
Weston Whitby Wilton Winton York
""".split()

WORDS: dict[str, list[str]] = {
    "brand": "Apex Bolt Crest Dyna Evo Flex Gala Halo".split(),
    "city": "Athens Berlin Cairo Dublin Geneva Lima London Madrid Oslo Paris Rome Vienna".split(),
    "class": "bronze copper gold iron silver steel".split(),
    "color": "black blue brown green gray orange pink purple red white yellow".split(),
    "country": "Chile China Cuba Egypt Fiji France Ghana India Iran Italy Japan Kenya Peru Spain".split(),
    "crop": "barley beans corn oats potato rice soy wheat".split(),
    "diet": "fish fruit grain grass insects leaves meat nuts seeds".split(),
    "flavor": "apple banana cherry lemon mango mint peach plum vanilla".split(),
    "fuel": "coal diesel gas hydrogen petrol steam wood".split(),
    "genre": "comedy crime drama fantasy history horror music romance travel war".split(),
    "home": "barn cave farm field forest garden house lake park shed stable zoo".split(),
    "host": "Adams Baker Clark Davis Evans Foster Green Hill Jones King Lewis Moore".split(),
    "job": "artist chef clerk cook doctor driver editor farmer judge nurse painter teacher".split(),
    "language": "Arabic Czech Dutch English French German Greek Hindi Latin Polish Spanish".split(),
    "maker": "Arco Bravo Cirrus Delco Ensign Forge Gecko Hero Indigo Jumbo".split(),
    "material": "brass clay cotton glass iron leather paper silk steel stone wood wool".split(),
    "month": "January February March April May June July August September October November December".split(),
    "mood": "angry bold calm happy lazy quiet sad shy wild".split(),
    "owner": "Abel Bond Cole Drake Ellis Ford Grant Hunt Irwin Jordan Knox Lane".split(),
    "region": "central coast east hills north north-east south south-west west".split(),
    "shape": "cone cube disc oval ring round square star".split(),
    "size": "huge large medium small tiny".split(),
    "soil": "chalk clay gravel loam peat sand silt".split(),
    "sport": "boxing chess cycling diving golf hockey polo rowing rugby running sailing skiing tennis".split(),
    "status": "active closed hidden lost new old open ready sold".split(),
    "taste": "bitter bland hot mild salty sour spicy sweet".split(),
    "team": "Bears Bulls Colts Crows Ducks Foxes Hawks Jets Lions Owls Rams Wolves".split(),
    "weather": "cloudy cold dry foggy mild rainy snowy sunny warm wet windy".split(),
}
NUMBERS: dict[str, Range] = {
    "age": (18, 89), "area": (20, 950), "beds": (10, 400), "calories": (40, 900), "capacity": (20, 980),
    "cost": (5, 990), "depth": (10, 900), "distance": (3, 480), "fee": (2, 250), "goals": (10, 120),
    "guests": (12, 640), "height": (20, 980), "hours": (2, 96), "length": (4, 700), "members": (15, 880),
    "minutes": (15, 240), "pages": (40, 980), "pay": (200, 990), "people": (20, 970), "points": (10, 990),
    "power": (40, 880), "price": (2, 480), "rooms": (10, 320), "sales": (10, 990), "score": (10, 100),
    "seats": (2, 420), "speed": (20, 360), "staff": (4, 260), "stock": (10, 900), "sugar": (1, 90),
    "visits": (20, 990), "weight": (2, 900), "width": (2, 120), "wins": (2, 90),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Family:
    """A kind of things: what names them, what is said and counted about them, and its nouns by split."""

    key: str
    pool: str
    words: str
    numbers: str
    train: str
    dev: str
    test: str


_FAMILIES = (
    _Family("name", "people", "city country job team sport language mood", "age pay score height points wins hours",
            "pilots nurses players singers farmers drivers", "sailors actors", "dancers bakers"),
    _Family("name", "people", "color home diet owner mood size", "age weight height speed price length",
            "pets horses cows birds goats", "dogs", "cats"),
    _Family("item", "names", "color material brand shape status size", "price stock weight width height sales",
            "tools toys lamps chairs bags clocks", "cups", "shoes"),
    _Family("name", "names", "flavor taste color country brand size", "price calories sugar weight stock sales",
            "cakes drinks soups sweets", "cheeses", "salads"),
    _Family("place", "places", "country region weather language crop soil", "people area height distance visits length",
            "towns islands parks farms lakes", "rivers", "castles"),
    _Family("model", "names", "color maker fuel class status country", "price speed seats power weight length",
            "cars boats trains planes", "trucks", "ships"),
    _Family("title", "names", "city month host weather sport status", "guests cost minutes distance fee points",
            "races shows trips courses", "fairs", "games"),
    _Family("title", "names", "genre language country host mood color", "pages price minutes sales score visits",
            "books songs films", "plays", "poems"),
    _Family("name", "names", "city region owner sport class status", "members fee staff rooms sales points",
            "clubs shops schools banks", "labs", "firms"),
    _Family("name", "names", "color shape soil region weather size", "height age width depth weight distance",
            "trees flowers stones", "shrubs", "hills"),
)  # fmt: skip
_POOLS = {"people": PEOPLE, "names": NAMES, "places": PLACES}
SPLITS = ("train", "dev", "test")


@dataclass(frozen=True, slots=True)
class Theme:
    """One schema: a noun in the plural, the column that names a row, columns of words and columns of numbers."""

    noun: str
    key: str
    pool: tuple[str, ...]
    words: tuple[str, ...]
    numbers: tuple[str, ...]


@cache
def themes(split: str) -> tuple[Theme, ...]:
    """The themes of a split, in a fixed order."""
    found: list[Theme] = []
    for family in _FAMILIES:
        for noun in getattr(family, split).split():
            rng = random.Random(f"db/theme/{noun}")
            words = rng.sample(family.words.split(), 4)
            numbers = rng.sample(family.numbers.split(), 4)
            found.append(Theme(noun, family.key, tuple(_POOLS[family.pool]), tuple(words), tuple(numbers)))
    return tuple(found)
