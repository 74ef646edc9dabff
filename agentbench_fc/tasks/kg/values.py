"""How a member of a set is written: an id without its namespace, or a value in one spelling whatever the store.

>>> plain("http://rdf.freebase.com/ns/m.01"), plain("12.50", XSD + "double"), plain("007", XSD + "integer")
('m.01', '12.5', '7')

Virtuoso rewrites numbers when it loads them and shows six digits of a double; pyoxigraph keeps the text. Equal values
must be equal texts for sets to be compared.

Not here: the queries (expressions.py).
"""

import math

from agentbench_fc.tasks.kg.expressions import NAMESPACE

XSD = "http://www.w3.org/2001/XMLSchema#"
_WHOLE = frozenset(
    XSD + name
    for name in (
        "integer int long short byte nonNegativeInteger positiveInteger nonPositiveInteger negativeInteger "
        "unsignedInt unsignedLong unsignedShort unsignedByte"
    ).split()
)
_ROUNDED = frozenset({XSD + "double", XSD + "float"})
_DIGITS = 6


def plain(value: str, datatype: str | None = None) -> str:
    """The text that stands for a term.

    Args:
        value: An IRI, or the text of a literal.
        datatype: The literal's; None for an IRI or a plain text.
    """
    if datatype is None:
        return value.removeprefix(NAMESPACE).replace("-08:00", "")  # Freebase's dump gives some dates a time zone
    try:
        if datatype in _WHOLE:
            return str(int(value)) if len(value) < 1000 else value
        if datatype in _ROUNDED:
            return _float(f"{float(value):.{_DIGITS}g}")
        if datatype == XSD + "decimal":
            return _float(value)
    except ValueError:
        return value
    if datatype == XSD + "boolean":
        return {"1": "true", "0": "false"}.get(value, value)
    return value.replace("-08:00", "")


def _float(text: str) -> str:
    number = float(text)
    whole = math.isfinite(number) and number == int(number) and abs(number) < 1e15
    return str(int(number)) if whole else repr(number)
