"""Both sets of grading rules, by their truth tables."""

import hashlib
import random
import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentbench_fc.tasks.db.backend import Row, Value
from agentbench_fc.tasks.db.grade import agentbench_answers_match, answers_match, table_hash, tables_differ


@pytest.mark.parametrize(
    ("answers", "gold", "same"),
    [
        (["7"], [7], True),
        ([" 7 "], ["7"], True),
        (["7.0"], [7], True),
        (["7.0002"], [7], False),
        (["7"], [7.5], False),
        (["7.3333"], [7.333333333], True),
        (["7.33"], [7.333333333], False),
        (["1,234"], [1234], True),
        (["1,2"], [12], False),
        (["1234567"], [1234568], False),
        (["12%"], ["12%"], True),
        (["12"], ["12%"], False),
        (["1e3"], [1000], True),
        (["abc"], ["ABC"], False),
        (["July 3, 2004"], ["July 3 2004"], False),
        (["a", "b"], ["b", "a"], True),
        (["a", "a", "b"], ["a", "b"], False),
        (["a", "b"], ["a", "a", "b"], False),
        (["a, b"], ["a", "b"], False),
        (["['a', 'b']"], ["a", "b"], False),
        (["1", "1", "2"], [1, 2, 1], True),
        # one kind of nothing is not another
        ([], [], True),
        ([], [None], False),
        ([], [0], False),
        ([], [""], False),
        ([""], [""], True),
        ([""], [0], False),
        ([""], [None], False),
        (["NULL"], [None], True),
        (["none"], [None], True),
        (["0"], [None], False),
        (["none"], [0], False),
        (["nan"], [0], False),
        (["inf"], [0], False),
        (["nan"], ["nan"], True),
        (["none"], [], False),
        (["None"], ["None"], True),
        (["%"], ["0"], False),
        (["."], ["0"], False),
    ],
)
def test_the_default_rule(answers: list[str], gold: list[Value], same: bool) -> None:
    assert answers_match(answers, gold) is same


@pytest.mark.parametrize(
    ("answer", "gold", "same"),
    [
        ("none", "0.0", True),
        ("", "0", True),
        ([], ["none"], False),
        ("1,234", "1234", True),
        ("12%", "12", True),
        ("0.12", "12%", False),
        ("3.001", "3", True),
        ("3.02", "3", False),
        ("abc", "ABC", False),
        (["a", "a", "b"], ["a", "b"], True),
        (["1", "1", "2"], ["1", "2"], False),
        ("a, b", ["a", "b"], False),
        ("inf", "0", True),
        ("July 3, 2004", "July 3 2004", True),
        (["July 3 2004"], ["July 3, 2004"], True),
        ("['a', 'b']", ["b", "a"], True),
        ("[('a',), ('b',)]", ["a", "b"], True),
        ("[1, 2]", ["2", "1.005"], True),
        ("'a'", "a", True),
        (["undefined"], ["nan"], True),
        (None, "0", True),
        ([None], ["none"], True),
        (["a"], ["a", "a"], True),
        (["1", "a"], ["a", "1.0"], False),
    ],
)
def test_agentbenchs_rule(answer: object, gold: object, same: bool) -> None:
    assert agentbench_answers_match(answer, gold) is same


@pytest.mark.parametrize(
    "text",
    [
        "[__import__('os').system('touch /tmp/db_eval')]",
        "[().__class__]",
        "[1" + "," * 99 + "]",
        "[" * 9999 + "]" * 9999,
    ],
)
def test_an_answer_is_never_run(text: str) -> None:
    assert not agentbench_answers_match([text], ["0"])
    assert not agentbench_answers_match(text, ["0"])
    assert not answers_match([text], [0])


def test_the_hash_is_mysqls_formula() -> None:
    def digest(text: str) -> str:
        return hashlib.md5(text.encode()).hexdigest()

    rows: list[Row] = [("a", None, "b"), ("c", 1, 2.0)]
    expected = digest(",".join(sorted([digest("a,b")[:5], digest("c,1,2")[:5]])))
    assert table_hash([rows]) == expected
    assert table_hash([rows[::-1]]) == expected
    assert table_hash([rows, [("x",)]]) == "_".join(sorted([expected, digest(digest("x")[:5])]))


CELLS = st.one_of(st.none(), st.integers(-999, 999), st.sampled_from(["", "a", "A", "0", "NULL", "é"]))
ROWS = st.lists(st.tuples(CELLS, CELLS), max_size=8)


@given(ROWS, st.randoms(use_true_random=False))
def test_tables_are_equal_in_any_order_and_differ_by_any_change(rows: list[Row], rng: random.Random) -> None:
    shuffled = rng.sample(rows, len(rows))
    assert tables_differ(shuffled, rows) is None
    assert tables_differ([*shuffled, ("x", "y")], rows) == "surplus row ('x', 'y')"
    if rows:
        assert str(tables_differ(shuffled[1:], rows)).startswith("missing row")
        changed = [(*shuffled[0][:1], "changed"), *shuffled[1:]]
        assert tables_differ(changed, rows) is not None


def test_cells_compare_by_value_and_kind() -> None:
    assert tables_differ([(7, 0.30000000000000004)], [(7.0, 0.3)]) is None
    assert tables_differ([("7",)], [(7,)]) is not None
    assert tables_differ([("a",)], [("A",)]) is not None
    assert tables_differ([(None,)], [("None",)]) is not None
    assert tables_differ(None, [(1,)]) == "the table is missing"
    assert tables_differ(None, None) is None


@given(st.lists(st.text(string.printable, max_size=12), max_size=5), st.randoms(use_true_random=False))
@example(["E0", "e5%", "+", ".", "-.5e1"], random.Random(0))
def test_an_answer_matches_itself_in_any_order(values: list[str], rng: random.Random) -> None:
    gold: list[Value] = [None if value.strip().lower() in {"null", "none"} else value for value in values]
    assert answers_match(rng.sample(values, len(values)), gold)
    assert not answers_match([*values, "surplus"], gold)
