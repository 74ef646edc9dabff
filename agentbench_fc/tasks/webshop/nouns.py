"""The nouns of a title, found once, when a catalogue is built.

The original tags titles with spaCy at every purchase. Here a catalogue stores the nouns: of a generated product they
are known; for WebShop's own files `spacy` gives the original's tags (where it is installed), `rules` an approximation
that needs nothing: in a title nearly every content word is tagged as a noun. The catalogue's metadata names the tagger.
"""

import re
from collections.abc import Sequence

from agentbench_fc.errors import CallerError
from agentbench_fc.tasks.webshop.prepare import Tagger

TAGGERS = ("rules", "spacy")
_WORD = re.compile(r"\w+(?:'\w+)?")
_FUNCTION_WORDS = frozenset(
    """a about above after all also an and any are as at be before below best both but by can do each easy every extra
    few fit for free from fully great has have her high his how if in inside into is it its large less light long low
    made make makes many more most much multi my natural new no non not of off on one only or other our out outdoor over
    per perfect plus pure real small so soft some strong such super than that the their them these this those through to
    too two ultra under up use used using very via was we what when which while who will with within without you
    your""".split()
)
_ADJECTIVE = re.compile(r"(?:able|ible|ful|less|ous|ive|ish|ly)$")


def tagger(name: str) -> Tagger:
    """The tagger of that name.

    Raises:
        CallerError: unknown, or spaCy or its small English model is not installed.
    """
    if name == "rules":
        return title_nouns
    if name == "spacy":
        return _spacy_tagger()
    raise CallerError(f"there is no tagger {name!r} [webshop]. Use one of: {', '.join(TAGGERS)}.")


def title_nouns(title: str) -> Sequence[str]:
    """The words of a title that are likely nouns, in order, in lower case.

    >>> title_nouns("Women's Waterproof Hiking Boots with Removable Insole, Size 10")
    ["women's", 'waterproof', 'hiking', 'boots', 'insole', 'size']
    """
    words = [word.lower() for word in _WORD.findall(title)]
    return [w for w in words if not w[0].isdigit() and w not in _FUNCTION_WORDS and not _ADJECTIVE.search(w)]


def _spacy_tagger() -> Tagger:
    try:
        import spacy  # type: ignore[import-not-found,unused-ignore]

        nlp = spacy.load("en_core_web_sm", exclude=["parser", "ner", "lemmatizer"])
    except (ImportError, OSError) as error:
        raise CallerError(
            f"spaCy's small English model is not there: {error} [webshop convert]. "
            "Install spacy and en_core_web_sm, or use --tagger rules."
        ) from error
    return lambda title: [t.text.lower() for t in nlp(title) if t.pos_ in ("NOUN", "PROPN")]
