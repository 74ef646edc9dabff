"""The embedded back end means what MySQL means; the expected values are MySQL's."""

from collections.abc import Iterator

import pytest

from agentbench_fc.tasks.db.backend import SqlError, Table
from agentbench_fc.tasks.db.sqlite import SqliteDatabase

PEOPLE = Table(
    "people",
    (("name", "TEXT"), ("age", "INT"), ("pay", "TEXT"), ("born", "TEXT"), ("a b%", "TEXT")),
    (
        ("Ann", 30, "9", "1990-03-05", "x"),
        ("bob", 40, "10", "1985-12-31", None),
        ("Élan", 50, "1,200", "2001-01-15", "z"),
        ("Dan", None, "12 kg", "not known", "it's"),
    ),
)


@pytest.fixture
def database() -> Iterator[SqliteDatabase]:
    made = SqliteDatabase([PEOPLE], seed=3)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        # division and arithmetic
        ("7 / 3", 2.3333),
        ("6 / 2", 3.0),
        ("1 / 0", None),
        ("7 DIV 2", 3),
        ("-7 DIV 2", -3),
        ("-7 % 3", -1),
        ("5 MOD 0", None),
        ("'3' + '4'", 7.0),
        ("'3 apples' * 2", 6.0),
        ("5 ^ 1", 4),
        ("1 XOR 1", 0),
        ("ROUND(2.5)", 3),
        ("ROUND(-2.5)", -3),
        ("ROUND(1.005, 2)", 1.01),
        ("TRUNCATE(1.999, 1)", 1.9),
        ("CEIL(1.2) + FLOOR(-1.2)", 0),
        ("POW(2, 10)", 1024),
        ("SQRT(-1)", None),
        # comparison: case, accents and trailing spaces do not count; a text against a number is a number
        ("'a' = 'A'", 1),
        ("'e' = 'É'", 1),
        ("'a' = 'a  '", 1),
        ("'10' > 9", 1),
        ("'10' > '9'", 0),
        ("'abc' = 0", 1),
        ("NULL = NULL", None),
        ("NULL <=> NULL", 1),
        ("'a' <> 'A'", 0),
        ("BINARY 'a' = 'A'", 0),
        ("'b' BETWEEN 'A' AND 'C'", 1),
        ("2 IN ('2', '3')", 1),
        ("NULL IN (1, NULL)", None),
        # || is OR
        ("1 || 0", 1),
        ("0 || 0", 0),
        # patterns
        ("'Abc' LIKE 'a%'", 1),
        ("'50%' LIKE '50\\%'", 1),
        ("'505' LIKE '50\\%'", 0),
        ("'a_c' LIKE 'a|_c' ESCAPE '|'", 1),
        ("'abc' NOT LIKE 'A_C'", 0),
        ("'abc' NOT LIKE 'a|_c' ESCAPE '|'", 1),
        ("NULL LIKE 'a'", None),
        ("'ABC1' REGEXP '^[a-c]+[[:digit:]]$'", 1),
        ("'xyz' NOT REGEXP 'y'", 0),
        ("'xyz' RLIKE 'q|z$'", 1),
        # texts
        ("CONCAT('a', 1, NULL)", None),
        ("CONCAT('a', 1)", "a1"),
        ("CONCAT_WS('-', 'a', NULL, 'b')", "a-b"),
        ("SUBSTRING_INDEX('a.b.c', '.', -2)", "b.c"),
        ("SUBSTRING('hello', -3, 2)", "ll"),
        ("SUBSTRING('hello' FROM 2 FOR 3)", "ell"),
        ("MID('hello', 2, 3)", "ell"),
        ("LEFT('hello', 2)", "he"),
        ("RIGHT('hello', 3)", "llo"),
        ("LOCATE('L', 'hello')", 3),
        ("LOCATE('l', 'hello', 4)", 4),
        ("INSTR('hello', 'o')", 5),
        ("POSITION('e' IN 'hello')", 2),
        ("MD5('a')", "0cc175b9c0f1b6a831c399e269772661"),
        ("LENGTH('é')", 2),
        ("CHAR_LENGTH('é')", 1),
        ("UPPER('é')", "É"),
        ("LPAD('7', 3, '0')", "007"),
        ("TRIM(LEADING 'x' FROM 'xxaxx')", "axx"),
        ("TRIM('  a ')", "a"),
        ("REPLACE('1,200', ',', '')", "1200"),
        ("REPEAT('ab', 3)", "ababab"),
        ("REVERSE('abc')", "cba"),
        ("FORMAT(1234567.891, 1)", "1,234,567.9"),
        ("FIELD('b', 'a', 'B')", 2),
        ("ELT(2, 'a', 'b')", "b"),
        ("FIND_IN_SET('b', 'a,b')", 2),
        ("GREATEST(2, '10')", 10.0),
        ("STRCMP('a', 'B')", -1),
        ("HEX('a')", "61"),
        # NULL and choice
        ("IF(1 > 2, 'x', 'y')", "y"),
        ("IFNULL(NULL, 3)", 3),
        ("NULLIF('a', 'A')", None),
        ("COALESCE(NULL, 'z')", "z"),
        ("ISNULL(NULL)", 1),
        ("CASE 'A' WHEN 'a' THEN 1 ELSE 2 END", 1),
        # casts
        ("CAST('12 kg' AS SIGNED)", 12),
        ("CAST('1.9' AS SIGNED)", 1),
        ("CAST(1.9 AS SIGNED)", 2),
        ("CAST('1.55' AS DECIMAL(10, 1))", 1.6),
        ("CAST('1.5' AS DECIMAL)", 2),
        ("CAST(12 AS CHAR(1))", "1"),
        ("CONVERT('2024-03-05 10:00:00', DATE)", "2024-03-05"),
        # dates; the clock stands still
        ("YEAR('2024-03-05')", 2024),
        ("MONTHNAME('2024-03-05')", "March"),
        ("DATE_FORMAT('2024-03-05', '%d %b %Y')", "05 Mar 2024"),
        ("STR_TO_DATE('March 5, 2024', '%M %d, %Y')", "2024-03-05"),
        ("DATEDIFF('2024-03-05', '2024-02-28')", 6),
        ("DATE_ADD('2024-01-31', INTERVAL 1 MONTH)", "2024-02-29"),
        ("'2024-01-01' - INTERVAL 1 DAY", "2023-12-31"),
        ("TIMESTAMPDIFF(YEAR, '2000-06-01', '2024-05-31')", 23),
        ("EXTRACT(MONTH FROM '2024-03-05')", 3),
        ("DAYNAME('not a date')", None),
        ("CURDATE()", "2026-01-01"),
        ("NOW() = CURRENT_TIMESTAMP", 1),
        ("DATABASE()", "db"),
        ('"text"', "text"),
    ],
)
def test_an_expression_has_mysqls_value(database: SqliteDatabase, expression: str, value: object) -> None:
    assert database.execute(f"SELECT {expression}").rows == ((value,),)


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT name FROM people WHERE name = 'BOB'", [("bob",)]),
        ("SELECT name FROM people WHERE name = 'elan'", [("Élan",)]),
        ("SELECT name FROM people ORDER BY name", [("Ann",), ("bob",), ("Dan",), ("Élan",)]),
        ("SELECT name FROM people WHERE pay > 9 ORDER BY age", [("Dan",), ("bob",)]),
        ("SELECT MAX(pay) FROM people", [("9",)]),
        ("SELECT SUM(pay) FROM people", [(32.0,)]),
        ("SELECT AVG(age), COUNT(age), COUNT(*) FROM people", [(40.0, 3, 4)]),
        ("SELECT SUM(pay) / 2 FROM people", [(16.0,)]),
        ('SELECT COUNT(*) FROM people WHERE `a b%` LIKE "it\'s"', [(1,)]),
        ("SELECT GROUP_CONCAT(name ORDER BY age DESC SEPARATOR '/') FROM people WHERE age > 0", [("Élan/bob/Ann",)]),
        ("SELECT name FROM people WHERE born LIKE '%-12-%'", [("bob",)]),
        ("SELECT YEAR(born) FROM people WHERE name = 'Dan'", [(None,)]),
        ("SELECT name FROM db.people AS p WHERE p.age = (SELECT MIN(age) FROM people)", [("Ann",)]),
        ("SELECT a.name FROM people a JOIN people b ON a.age < b.age GROUP BY a.name HAVING COUNT(*) = 2", [("Ann",)]),
        ("SELECT name, RANK() OVER (ORDER BY age DESC) FROM people WHERE age > 35", [("Élan", 1), ("bob", 2)]),
        ("SELECT COUNT(*) FROM (SELECT name FROM people WHERE age > 35 UNION SELECT 'BOB') AS u", [(2,)]),
        ("SELECT DISTINCT LEFT(born, 2) FROM people WHERE born < '1995'", [("19",)]),
        ("SELECT name FROM people ORDER BY age LIMIT 1, 1", [("Ann",)]),
        ("WITH old AS (SELECT * FROM people WHERE age >= 40) SELECT COUNT(*) FROM old", [(2,)]),
        ("SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()", [("people",)]),
        (
            "SELECT COLUMN_NAME FROM information_schema.columns WHERE table_name = 'people' LIMIT 2",
            [("name",), ("age",)],
        ),
        ("SHOW TABLES", [("people",)]),
        ("SHOW TABLES LIKE 'PEO%'", [("people",)]),
        ("SHOW DATABASES", [("db",)]),
        ("DESC `people`", [("name", "text"), ("age", "int"), ("pay", "text"), ("born", "text"), ("a b%", "text")]),
    ],
)
def test_a_query_gives_mysqls_rows(database: SqliteDatabase, sql: str, rows: list[tuple[object, ...]]) -> None:
    assert list(database.execute(sql).rows) == rows


def test_columns_are_named_as_mysql_names_them(database: SqliteDatabase) -> None:
    result = database.execute("SELECT name, age AS years, COUNT(*), age / 2 FROM people GROUP BY name, age")
    assert result.columns == ("name", "years", "COUNT(*)", "age / 2")
    assert database.execute("SELECT * FROM people").columns == ("name", "age", "pay", "born", "a b%")


@pytest.mark.parametrize(
    ("sql", "changed", "check", "rows"),
    [
        ("INSERT INTO people (name, age) VALUES ('E', '7'), ('F', 8)", 2, "SELECT MIN(age) FROM people", [(7,)]),
        ("INSERT INTO people SET name = 'Eve'", 1, "SELECT COUNT(*) FROM people", [(5,)]),
        ("REPLACE INTO people (name) VALUES ('Eve')", 1, "SELECT COUNT(*) FROM people", [(5,)]),
        ("UPDATE people SET age = age + 1 WHERE name = 'ann'", 1, "SELECT age FROM people WHERE name = 'Ann'", [(31,)]),
        ("UPDATE people SET pay = pay + 1 WHERE name = 'bob'", 1, "SELECT pay FROM people WHERE age = 40", [("11",)]),
        ("UPDATE people SET pay = 1 ORDER BY age DESC LIMIT 1", 1, "SELECT pay FROM people WHERE age = 50", [("1",)]),
        ("DELETE FROM people WHERE age > 30 LIMIT 1", 1, "SELECT age FROM people WHERE age > 0", [(30,), (50,)]),
        ("DELETE FROM people WHERE pay = 12", 1, "SELECT COUNT(*) FROM people", [(3,)]),
        ("TRUNCATE TABLE people", 4, "SELECT COUNT(*) FROM people", [(0,)]),
        ("CREATE TABLE t (n VARCHAR(9), i INT) ENGINE=InnoDB", 0, "DESCRIBE t", [("n", "text"), ("i", "int")]),
        ("ALTER TABLE people ADD COLUMN note TEXT", 0, "SELECT note FROM people LIMIT 1", [(None,)]),
        ("DROP TABLE IF EXISTS nothing", 0, "SHOW TABLES", [("people",)]),
    ],
)  # fmt: skip
def test_a_change_is_mysqls(
    database: SqliteDatabase, sql: str, changed: int, check: str, rows: list[tuple[object, ...]]
) -> None:
    assert database.execute(sql).changed == changed
    assert list(database.execute(check).rows) == rows


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT nope FROM people", "Unknown column 'nope'. DESCRIBE lists"),
        ("SELECT `nope` FROM people", "Unknown column 'nope'"),
        ("SELECT * FROM People", "Table 'People' doesn't exist. SHOW TABLES"),
        ("DESCRIBE nothing", "Table 'nothing' doesn't exist"),
        ("SELEC 1", "SELEC statements cannot be run here"),
        ("SELECT FROM WHERE", "You have an error in your SQL syntax near"),
        ("SELECT 'open", "a quote is open"),
        ("", "There is no SQL statement"),
        ("SELECT 1; SELECT 2", "2 statements in one call. Send one"),
        ("INSERT INTO people VALUES ('x')", "Column count doesn't match value count"),
        ("INSERT INTO people (nope) VALUES ('x')", "Unknown column 'nope' in table 'people'"),
        ("INSERT INTO people (age) VALUES ('x')", "Incorrect value for column 'age'"),
        ("UPDATE people SET age = 1 WHERE pay = 9", "Truncated incorrect DOUBLE value: '1,200'"),
        ("SELECT NOSUCH(1)", "FUNCTION NOSUCH does not exist"),
        ("SELECT LEFT('a')", "Incorrect parameter count in the call to function 'LEFT'"),
        ("SELECT 'a' REGEXP '('", "missing ')' in the regular expression"),
        ("SELECT name FROM people WHERE COUNT(*) > 1", "Invalid use of a group function"),
        ("SELECT name FROM people a, people b", "Column 'name' is ambiguous"),
        ("SHOW GRANTS", "This SHOW statement is not available"),
        ("USE mysql", "Unknown database"),
        ("SELECT * FROM other.people", "Unknown database 'other'"),
        ("CREATE TABLE people (a INT)", "Table 'people' already exists"),
    ],
)
def test_a_wrong_statement_says_what_is_wrong(database: SqliteDatabase, sql: str, message: str) -> None:
    before = database.rows("people")
    with pytest.raises(SqlError) as caught:
        database.execute(sql)
    assert message in str(caught.value)
    assert database.rows("people") == before


def test_an_update_that_fails_half_way_leaves_nothing_behind() -> None:
    database = SqliteDatabase([Table("t", (("a", "TEXT"),), (("1",), ("2",), ("x",)))])
    with pytest.raises(SqlError, match="Truncated incorrect DOUBLE value: 'x'"):
        database.execute("UPDATE t SET a = a + 1")
    assert database.rows("t") == [("1",), ("2",), ("x",)]
    database.close()


def test_rand_is_the_seeds_and_a_fork_goes_on_alike() -> None:
    first, second = SqliteDatabase(seed=5), SqliteDatabase(seed=5)
    draw = "SELECT RAND()"
    assert first.execute(draw).rows == second.execute(draw).rows
    copy = first.fork()
    assert copy.execute(draw).rows == first.execute(draw).rows == second.execute(draw).rows
    assert first.execute(draw).rows == copy.execute(draw).rows
    for database in (first, second, copy):
        database.close()
