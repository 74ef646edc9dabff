"""What is shown can be read back, and never in two ways."""

from hypothesis import given
from hypothesis import strategies as st

from agentbench_fc.tasks.db.backend import Result, Value
from agentbench_fc.tasks.db.observation import AGENTBENCH_CHARS, NO_ROWS, read, render, render_agentbench

WORDS = st.one_of(
    st.text(max_size=10), st.sampled_from(["NULL", "null", "", " a", "a | b", "x\ny", '"q"', "(no rows)", "[1]"])
)
CELLS: st.SearchStrategy[Value] = st.one_of(st.none(), st.integers(-(10**9), 10**9), WORDS)


@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.tuples(*[CELLS] * n), min_size=1, max_size=6)))
def test_rows_survive_the_round_trip(rows: list[tuple[Value, ...]]) -> None:
    result = Result(tuple(f"c{i}" for i in range(len(rows[0]))), tuple(rows))
    assert read(render(result)) == [[None if v is None else str(v) for v in row] for row in rows]


def test_the_forms() -> None:
    assert render(Result(changed=1)) == "OK, 1 row changed"
    assert render(Result(changed=0)) == "OK, 0 rows changed"
    assert render(Result(("a",))) == NO_ROWS
    assert render(Result(("AVG(a)",), ((0.1 + 0.2,), (7.0,), (7.3333,)))) == "AVG(a)\n0.3\n7\n7.3333"
    assert render(Result(("a",), (("NULL",), ("x | y",), (None,)))) == 'a\n"NULL"\n"x | y"\nNULL'


def test_many_rows_are_cut_and_say_so() -> None:
    text = render(Result(("a",), tuple((i,) for i in range(150))))
    assert text.endswith("99\n(only the first 100 rows are shown)")
    assert len(read(text)) == 100
    assert render(Result(("a",), ((1,),), more=True)).endswith("(only the first 1 rows are shown)")


def test_agentbenchs_form() -> None:
    assert render_agentbench(Result(("a", "b"), (("x", None), ("it's", 2)))) == "[('x', None), (\"it's\", 2)]"
    assert render_agentbench(Result(changed=3)) == "[]"
    long = render_agentbench(Result(("a",), tuple(("x" * 50,) for _ in range(40))))
    assert len(long) == AGENTBENCH_CHARS + len("[TRUNCATED]")
    assert long.endswith("[TRUNCATED]")
    assert read("[('x', None)]") == [["x", None]]
