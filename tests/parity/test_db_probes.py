"""Statements as agents write them, on the embedded backend and on MariaDB: the same rows, or an error on both.

Each form is written once and filled with several columns, so that texts, numbers kept as texts, NULLs, dates, accents
and capitals meet each kind of expression. Rows are compared as multisets unless the statement orders them; a number is
compared by value.
"""

import importlib.util
import itertools
import re
from collections import Counter
from collections.abc import Iterator

import pytest
from conftest import missing

from agentbench_fc.errors import InfrastructureError
from agentbench_fc.tasks.db.backend import Backend, Row, SqlError, SqliteBackend, Table, Value
from agentbench_fc.tasks.db.mysql import MysqlBackend
from agentbench_fc.tasks.db.private import PrivateServer, find_server

FILMS = Table(
    "Films Seen",
    tuple((name, "TEXT") for name in ("Title", "Year", "Director", "Gross ($)", "Score", "Released", "Country")),
    (
        ("Alpha Road", "1999", "Ann Lee", "1,200,000", "7.5", "1999-03-05", "France"),
        ("alpha road", "2004", "ann lee", "850000", "8", "2004-07-21", "france"),
        ("Café Noir", "2004", "Élan Vu", "95000", "6.25", "2004-01-01", "France"),
        ("Cafe Noir", "2010", "Bo Diaz", "1000000", "10", "2010-12-31", "Spain"),
        ("The 50% Man", "2010", "Bo Diaz", "None", "9.1", "not known", "Spain"),
        ("Zero_Hour", "1987", "Cy O'Hara", "0", "3", "1987-10-09", "Italy"),
        ("  Padded  ", "1987", "Dee", "12 kg", "", "1987-02-28", "Italy "),
        ("Über Alles", "2021", "Dee", "77", "7.50", "2021-02-28", "Germany"),
        ("Echo", "2021", "Eve Stone-Fox", "-5", "1e1", "2021-06-15", "USA"),
        ("Echo", "2021", "Eve Stone-Fox", "-5", "1e1", "2021-06-15", "USA"),
        ("Xylo", "n/a", "NULL", "3.14159", "abc", "June 5, 2001", "usa"),
        ("日本", "2015", "佐藤", "500", "5", "2015-05-05", "Japan"),
    ),
)
STAFF = Table(
    "staff",
    (("id", "INT"), ("name", "TEXT"), ("team", "TEXT"), ("pay", "INT"), ("boss", "INT"), ("joined", "TEXT")),
    (
        (1, "Ann", "Red", 100, None, "2020-01-15"),
        (2, "Bob", "red", 80, 1, "2021-02-10"),
        (3, "Cid", "Blue", None, 1, "2019-11-30"),
        (4, "Dan", None, 120, 2, None),
        (5, "Eve", "Blue", 95, 2, "2021-02-28"),
        (6, "ann", "Green", -10, 3, "2022-12-01"),
        (7, "Flo", "Green", 0, 3, "2018-06-30"),
    ),
)
TEAMS = Table(
    "teams",
    (("team", "TEXT"), ("city", "TEXT"), ("size", "INT")),
    (("Red", "Oslo", 3), ("Blue", "Rome", 2), ("Green", None, 5), ("Gold", "Oslo", 0)),
)
F = "`Films Seen`"
TEXTS = ("Title", "Year", "`Gross ($)`", "Score", "Country")
NUMBERS = ("Year", "`Gross ($)`", "Score")


def forms() -> Iterator[str]:
    """The statements that read."""
    for c in TEXTS:
        yield from (
            f"SELECT {c} FROM {F}",
            f"SELECT DISTINCT {c} FROM {F}",
            f"SELECT COUNT({c}), COUNT(DISTINCT {c}) FROM {F}",
            f"SELECT {c}, COUNT(*) FROM {F} GROUP BY {c} ORDER BY COUNT(*) DESC, {c}",
            f"SELECT {c}, COUNT(*) AS n FROM {F} GROUP BY {c} HAVING n > 1",
            f"SELECT MAX({c}), MIN({c}) FROM {F}",
            f"SELECT Title FROM {F} ORDER BY {c}, Released, Title LIMIT 3",
            f"SELECT Title FROM {F} ORDER BY {c} DESC, Released DESC LIMIT 2 OFFSET 1",
            f"SELECT Title FROM {F} WHERE {c} IS NULL OR {c} = ''",
            f"SELECT LENGTH({c}), CHAR_LENGTH({c}), UPPER({c}), LOWER({c}) FROM {F}",
            f"SELECT Title FROM {F} WHERE {c} LIKE '%a%'",
            f"SELECT Title FROM {F} WHERE {c} NOT LIKE '_l%'",
            f"SELECT CONCAT({c}, '-', Year), CONCAT_WS('/', {c}, Country) FROM {F}",
            f"SELECT TRIM({c}), LEFT({c}, 2), RIGHT({c}, 2), SUBSTRING({c}, 2, 3), REVERSE({c}) FROM {F}",
            f"SELECT REPLACE({c}, ',', ''), LOCATE('a', {c}), INSTR({c}, 'O') FROM {F}",
            f"SELECT SUBSTRING_INDEX({c}, ' ', 1), SUBSTRING_INDEX({c}, ' ', -1) FROM {F}",
            f"SELECT CASE WHEN {c} > 'D' THEN 'late' ELSE 'early' END FROM {F}",
            f"SELECT Title FROM {F} WHERE {c} REGEXP '^[0-9]+$'",
            f"SELECT GROUP_CONCAT(DISTINCT {c} ORDER BY {c} SEPARATOR '; ') FROM {F}",
            f"SELECT IFNULL({c}, 'x'), NULLIF({c}, 'Echo'), COALESCE(NULL, {c}) FROM {F}",
        )
    for c in NUMBERS:
        yield from (
            f"SELECT SUM({c}) FROM {F}",
            f"SELECT AVG({c}) FROM {F}",
            f"SELECT ROUND(AVG({c}), 2) FROM {F}",
            f"SELECT MAX(CAST({c} AS DECIMAL(12, 2))) FROM {F}",
            f"SELECT MIN(CAST({c} AS SIGNED)) FROM {F}",
            f"SELECT Title FROM {F} WHERE {c} > 2000",
            f"SELECT Title FROM {F} WHERE {c} BETWEEN 5 AND 2005",
            f"SELECT Title FROM {F} WHERE {c} = 2004",
            f"SELECT Title FROM {F} WHERE {c} <> 10",
            f"SELECT Title FROM {F} WHERE {c} IN (2004, 2010, 77)",
            f"SELECT Title FROM {F} WHERE {c} < '3'",
            f"SELECT Title FROM {F} ORDER BY {c} + 0 DESC, Title, Released LIMIT 4",
            f"SELECT Title FROM {F} ORDER BY CAST({c} AS UNSIGNED), Title, Released LIMIT 4",
            f"SELECT {c} + 1, {c} * 2, {c} - 0.5, -{c} FROM {F}",
            f"SELECT {c} / 3, {c} DIV 3, {c} % 7 FROM {F}",
            f"SELECT ROUND({c}), ROUND({c}, 1), FLOOR({c}), CEIL({c}), ABS({c}) FROM {F}",
            f"SELECT SUM({c} > 100), COUNT(IF({c} > 5, 1, NULL)) FROM {F}",
            f"SELECT SUM(REPLACE({c}, ',', '')) FROM {F}",
            f"SELECT AVG(CAST(REPLACE({c}, ',', '') AS UNSIGNED)) FROM {F}",
            f"SELECT Title FROM {F} WHERE {c} = (SELECT MAX({c} + 0) FROM {F})",
            f"SELECT Title FROM {F} WHERE {c} > (SELECT AVG({c}) FROM {F})",
            f"SELECT Country, SUM({c}) AS s FROM {F} GROUP BY Country ORDER BY s DESC, Country LIMIT 2",
            f"SELECT Country, AVG({c}) FROM {F} GROUP BY Country HAVING AVG({c}) > 10",
            f"SELECT GREATEST({c} + 0, 100), LEAST({c} + 0, 100) FROM {F}",
            f"SELECT Title FROM {F} WHERE NOT {c}",
        )
    yield from f"""
SELECT * FROM {F} LIMIT 5
SELECT * FROM {F} WHERE Title = 'ALPHA ROAD'
SELECT * FROM {F} WHERE Title = 'Cafe noir'
SELECT * FROM {F} WHERE Country = 'Italy'
SELECT COUNT(*) FROM {F} WHERE Country IN ('USA', 'spain')
SELECT Title FROM {F} WHERE Title LIKE '%\\%%'
SELECT Title FROM {F} WHERE Title LIKE '%\\_%'
SELECT Title FROM {F} WHERE Title LIKE 'caf%'
SELECT Title FROM {F} WHERE Title = "Echo"
SELECT Title FROM {F} WHERE Director = 'Cy O''Hara'
SELECT Title FROM {F} WHERE Director = 'Cy O\\'Hara'
SELECT Title AS t, Year AS `the year` FROM {F} WHERE Year = '2010' ORDER BY t
SELECT f.Title FROM {F} f WHERE f.Year >= 2010 AND f.Country <> 'USA'
SELECT `Films Seen`.Title FROM `Films Seen` WHERE `Films Seen`.`Year` = 1987
SELECT YEAR(Released), MONTH(Released), DAY(Released) FROM {F} WHERE Released LIKE '____-__-__'
SELECT DATE_FORMAT(Released, '%d/%m/%Y'), DATE_FORMAT(Released, '%M %e, %y') FROM {F} WHERE Released LIKE '____-__-__'
SELECT DATEDIFF(Released, '2000-01-01') FROM {F} WHERE Released LIKE '____-__-__'
SELECT STR_TO_DATE(Released, '%M %e, %Y') FROM {F} WHERE Released LIKE 'J%'
SELECT Title FROM {F} WHERE Released > '2004-01-01' AND Released < '2022'
SELECT Title FROM {F} WHERE YEAR(Released) = 2021
SELECT MONTHNAME(Released), DAYNAME(Released), QUARTER(Released) FROM {F} WHERE Released LIKE '2%-%'
SELECT DATE_ADD('2020-01-31', INTERVAL 1 MONTH), DATE_SUB('2020-03-31', INTERVAL 1 DAY), LAST_DAY('2020-02-03')
SELECT TIMESTAMPDIFF(YEAR, '2000-05-05', '2020-05-04'), TIMESTAMPDIFF(DAY, '2020-01-01', '2020-03-01')
SELECT CURDATE(), NOW(), CURRENT_DATE, CURTIME()
SELECT 7 / 2, 7 DIV 2, 7 % 2, 7 MOD 2, 1 / 3, 2 / 0
SELECT 1 + '1', '2' * '3', 'abc' + 1, '3 apples' + 1, 1.5 + '1.5'
SELECT 'a' = 'A', 'a' = 'b', 1 = '1', 1 = '01', 'é' = 'E', NULL = NULL, NULL <=> NULL
SELECT 'a' || 'b', 1 || 0, 1 && 0, NOT 1, ! 0, 1 XOR 1
SELECT TRUE, FALSE, 1 IN (1, 2), 3 BETWEEN 1 AND 5, ISNULL(NULL), ISNULL(1)
SELECT IF(1 > 2, 'yes', 'no'), IFNULL(NULL, 'x'), NULLIF(1, 1), COALESCE(NULL, NULL, 3)
SELECT ROUND(2.5), ROUND(-2.5), ROUND(1.005, 2), ROUND(1234.567, -2), TRUNCATE(1.999, 2), TRUNCATE(-1.999, 1)
SELECT POW(2, 10), SQRT(16), EXP(0), LN(1), LOG10(1000), MOD(10, 3), SIGN(-3), PI()
SELECT UPPER('abc'), LCASE('ABC'), LPAD('5', 3, '0'), RPAD('5', 3, 'x'), REPEAT('ab', 3), SPACE(2), ASCII('A')
SELECT FORMAT(1234567.891, 2), FORMAT(1234567, 0), CONV('ff', 16, 10), HEX(255), BIN(5), OCT(8)
SELECT MD5('a'), SHA1('a'), CRC32('a'), LENGTH('é'), CHAR_LENGTH('é')
SELECT FIELD('b', 'a', 'b'), ELT(2, 'a', 'b'), FIND_IN_SET('b', 'a,b'), STRCMP('a', 'b'), INSERT('abcd', 2, 2, 'X')
SELECT CAST('12abc' AS SIGNED), CAST('3.7' AS SIGNED), CAST(3.7 AS SIGNED), CAST('2.555' AS DECIMAL(10, 2))
SELECT CAST(12 AS CHAR), CAST('2020-01-02' AS DATE), CONVERT('5', SIGNED), CAST('abc' AS CHAR(2))
SELECT GREATEST(1, 2, 3), LEAST('b', 'a'), GREATEST('10', 9)
SELECT GROUP_CONCAT(name ORDER BY id), GROUP_CONCAT(DISTINCT team ORDER BY team SEPARATOR '|') FROM staff
SELECT team, AVG(pay), SUM(pay), COUNT(pay), COUNT(*) FROM staff GROUP BY team ORDER BY team
SELECT team, MAX(pay) FROM staff GROUP BY team HAVING MAX(pay) > 90 ORDER BY 2 DESC
SELECT name FROM staff WHERE pay > (SELECT AVG(pay) FROM staff) ORDER BY pay
SELECT name FROM staff WHERE team IS NULL
SELECT name FROM staff WHERE team <> 'Red'
SELECT name FROM staff WHERE team NOT IN ('Red', 'Blue')
SELECT name FROM staff ORDER BY pay
SELECT name FROM staff ORDER BY pay DESC, name LIMIT 2, 2
SELECT s.name, t.city FROM staff s JOIN teams t ON s.team = t.team ORDER BY s.id
SELECT s.name, t.city FROM staff s LEFT JOIN teams t ON s.team = t.team ORDER BY s.id
SELECT t.team, COUNT(s.id) FROM staff s RIGHT JOIN teams t USING (team) GROUP BY t.team ORDER BY t.team
SELECT t.city, SUM(s.pay) FROM staff s, teams t WHERE s.team = t.team GROUP BY t.city ORDER BY t.city
SELECT a.name, b.name FROM staff a JOIN staff b ON a.boss = b.id ORDER BY a.id
SELECT name FROM staff s WHERE EXISTS (SELECT 1 FROM staff b WHERE b.boss = s.id) ORDER BY id
SELECT team FROM teams WHERE team NOT IN (SELECT team FROM staff WHERE team IS NOT NULL)
SELECT team FROM staff UNION SELECT team FROM teams
SELECT team FROM staff UNION ALL SELECT team FROM teams
SELECT COUNT(*) FROM (SELECT DISTINCT team FROM staff) AS x
WITH top AS (SELECT * FROM staff WHERE pay > 50) SELECT team, COUNT(*) FROM top GROUP BY team ORDER BY team
WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 5) SELECT SUM(i) FROM n
SELECT name, RANK() OVER (ORDER BY pay DESC) AS r FROM staff ORDER BY id
SELECT name, ROW_NUMBER() OVER (PARTITION BY team ORDER BY pay, id) FROM staff ORDER BY id
SELECT team, pay, SUM(pay) OVER (PARTITION BY team) FROM staff ORDER BY id
SELECT name, LAG(name) OVER (ORDER BY id) FROM staff ORDER BY id
SELECT YEAR(joined), COUNT(*) FROM staff WHERE joined IS NOT NULL GROUP BY YEAR(joined) ORDER BY 1
SELECT name FROM staff WHERE joined BETWEEN '2020-01-01' AND '2021-02-28' ORDER BY joined
SELECT MAX(pay) - MIN(pay), STDDEV(pay), VARIANCE(pay) FROM staff
SELECT SUM(pay) / COUNT(*), AVG(pay) * 2, SUM(pay) * 1.0 FROM staff
SELECT pay * 1.1, pay / 3, pay DIV 3, pay % 7 FROM staff ORDER BY id
SELECT AVG(CASE WHEN team = 'red' THEN pay END) FROM staff
SELECT SUM(team = 'Red'), SUM(IF(pay > 90, 1, 0)) FROM staff
SELECT COUNT(*) FROM staff WHERE name REGEXP '^a'
SELECT name FROM staff WHERE name LIKE BINARY 'a%'
SELECT name FROM staff WHERE BINARY name = 'ann'
SELECT name, pay FROM staff WHERE (team, pay) = ('Red', 100)
SELECT name FROM staff WHERE pay >= ALL (SELECT pay FROM staff WHERE pay IS NOT NULL)
SELECT DISTINCT team, boss FROM staff ORDER BY team, boss
SELECT 1 FROM DUAL
SELECT DATABASE()
SHOW TABLES
SHOW TABLES LIKE 'te%'
SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()
SELECT column_name FROM information_schema.columns WHERE table_name = 'teams' ORDER BY ordinal_position
SELECT column_name FROM information_schema.columns WHERE table_schema = 'db' AND table_name = 'staff'
SELECT * FROM Staff
SELECT nope FROM staff
SELECT * FROM nope
SELECT COUNT(*) FORM staff
SELECT name FROM staff WHERE
SELECT team, name FROM staff GROUP BY team
SELECT SUM(pay) FROM staff WHERE SUM(pay) > 3
SELECT TO_CHAR(pay, '9') FROM staff
SELECT name FROM staff LIMIT -1
SELECT team FROM staff JOIN teams ON staff.team = teams.team
SELECT TOP 3 name FROM staff
SELECT name FROM staff FETCH FIRST 2 ROWS ONLY
SELECT name::text FROM staff
SELECT STRFTIME('%Y', joined) FROM staff
SELECT name FROM staff WHERE name ILIKE 'a%'
SELECT 'it''s', 'say "hi"', 'tab\\tend', 'back\\\\slash'
SELECT `name` FROM `staff` WHERE `id` IN (SELECT MAX(`id`) FROM `staff`)
SELECT name -- the name
SELECT /* all */ COUNT(*) FROM staff # end
SELECT JSON_EXTRACT('{{"a": 5}}', '$.a')
SELECT COUNT(DISTINCT team, boss) FROM staff
SELECT name FROM staff ORDER BY FIELD(team, 'Green', 'Blue', 'Red'), id
SELECT name FROM staff ORDER BY LENGTH(name), name, id
SELECT AVG(`size`), MAX(city) FROM teams
SELECT IF(city IS NULL, 'none', city) FROM teams ORDER BY team
SELECT (SELECT COUNT(*) FROM staff WHERE staff.team = teams.team) AS n FROM teams ORDER BY team
""".strip().splitlines()
    yield from (line.replace("FILMS", F) for line in QUESTIONS.strip().splitlines())


QUESTIONS = r"""
SELECT Title, Score FROM FILMS WHERE CAST(Score AS DECIMAL(10,2)) >= 7.5 ORDER BY Title, Released
SELECT Director, COUNT(*) AS films FROM FILMS GROUP BY Director ORDER BY films DESC, Director LIMIT 3
SELECT Country, GROUP_CONCAT(Title ORDER BY Title, Year SEPARATOR ', ') FROM FILMS GROUP BY Country ORDER BY Country
SELECT COUNT(*) FROM FILMS WHERE Year BETWEEN '2000' AND '2015'
SELECT Title FROM FILMS WHERE LOWER(Title) LIKE LOWER('%ROAD%')
SELECT Title FROM FILMS WHERE Country = 'france' AND CAST(Year AS UNSIGNED) > 2000
SELECT AVG(CAST(Score AS DECIMAL(4,2))) FROM FILMS WHERE Country = 'Spain'
SELECT SUM(CAST(REPLACE(`Gross ($)`, ',', '') AS DECIMAL(15,2))) FROM FILMS WHERE Country LIKE 'Fran%'
SELECT Title FROM FILMS ORDER BY CAST(Score AS DECIMAL(5,2)) DESC, Title LIMIT 1
SELECT * FROM FILMS WHERE `Title` = 'Echo' LIMIT 1
SELECT Year FROM FILMS GROUP BY Year HAVING COUNT(*) = (SELECT COUNT(*) c FROM FILMS GROUP BY Year ORDER BY c LIMIT 1)
SELECT Title FROM FILMS WHERE Released = (SELECT MAX(Released) FROM FILMS WHERE Released LIKE '____-__-__')
SELECT COUNT(*) FROM FILMS WHERE `Gross ($)` = 'None' OR `Gross ($)` IS NULL
SELECT Title FROM FILMS WHERE Director != 'Dee' AND Director != 'Bo Diaz' ORDER BY Title, Released
SELECT DISTINCT Country FROM FILMS ORDER BY Country
SELECT COUNT(DISTINCT Director) FROM FILMS
SELECT MIN(Year), MAX(Year), MAX(Year) - MIN(Year) FROM FILMS
SELECT Title, Year FROM FILMS WHERE Year > (SELECT Year FROM FILMS WHERE Title = 'Cafe Noir' LIMIT 1)
SELECT ROUND(AVG(Score), 1) AS avg_score FROM FILMS GROUP BY Year ORDER BY avg_score DESC LIMIT 2
SELECT Title FROM FILMS WHERE Title REGEXP '^[A-C]'
SELECT Title FROM FILMS WHERE Director REGEXP '[[:space:]]'
SELECT SUBSTRING(Released, 1, 4) AS y, COUNT(*) FROM FILMS GROUP BY y ORDER BY y
SELECT Title FROM FILMS WHERE STR_TO_DATE(Released, '%Y-%m-%d') > '2010-01-01' AND Released LIKE '____-__-__'
SELECT IF(Score > 7, 'good', 'bad') AS verdict, COUNT(*) FROM FILMS GROUP BY verdict ORDER BY verdict
SELECT CASE Country WHEN 'USA' THEN 1 WHEN 'Spain' THEN 2 ELSE 3 END AS k, COUNT(*) FROM FILMS GROUP BY k ORDER BY k
SELECT Title FROM FILMS WHERE TRIM(Title) = 'Padded'
SELECT CHAR_LENGTH(Title) AS n, Title FROM FILMS ORDER BY n DESC, Title LIMIT 3
SELECT SUM(CASE WHEN Country = 'USA' THEN 1 ELSE 0 END) / COUNT(*) FROM FILMS
SELECT SUM(CASE WHEN Country = 'USA' THEN 1 ELSE 0 END) * 100.0 / COUNT(*) AS pct FROM FILMS
SELECT COUNT(*) * 100 / (SELECT COUNT(*) FROM FILMS) FROM FILMS WHERE Country = 'Spain'
SELECT t1.Title, t2.Title FROM FILMS t1 JOIN FILMS t2 ON t1.Director = t2.Director AND t1.Title < t2.Title
SELECT Title FROM FILMS WHERE (Country, Year) IN (('Spain', '2010'), ('USA', '2021')) ORDER BY Title, Released
SELECT Title FROM FILMS WHERE Year = '2004' UNION SELECT name FROM staff WHERE pay > 100
SELECT MAX(LENGTH(Title)) FROM FILMS
SELECT COUNT(*) FROM FILMS WHERE Score REGEXP '^[0-9.]+$'
SELECT name FROM staff WHERE pay = (SELECT MAX(pay) FROM staff)
SELECT name, pay FROM staff WHERE pay IS NOT NULL ORDER BY ABS(pay - 90), id LIMIT 2
SELECT team, COUNT(*) c FROM staff WHERE team IS NOT NULL GROUP BY team HAVING c >= 2 ORDER BY c DESC, team
SELECT name FROM staff WHERE joined LIKE '2021%' ORDER BY id
SELECT COUNT(*) FROM staff WHERE MONTH(joined) = 2
SELECT name, DATEDIFF('2023-01-01', joined) AS days FROM staff WHERE joined IS NOT NULL ORDER BY days
SELECT DATE_FORMAT(joined, '%Y-%m') AS m, COUNT(*) FROM staff WHERE joined IS NOT NULL GROUP BY m ORDER BY m
SELECT s.name, b.name AS boss FROM staff s LEFT JOIN staff b ON s.boss = b.id ORDER BY s.id
SELECT t.city, COUNT(s.id) AS n FROM teams t LEFT JOIN staff s ON s.team = t.team GROUP BY t.city ORDER BY n, t.city
SELECT t.team FROM teams t LEFT JOIN staff s ON t.team = s.team WHERE s.id IS NULL
SELECT name FROM staff WHERE team IN (SELECT team FROM teams WHERE city = 'Oslo') ORDER BY id
SELECT AVG(pay) FROM staff WHERE team = 'Blue'
SELECT SUM(pay) FROM staff WHERE team = 'Nope'
SELECT COUNT(*), SUM(pay) FROM staff WHERE 1 = 0
SELECT name FROM staff ORDER BY name
SELECT name FROM staff ORDER BY name DESC, id LIMIT 3
SELECT name FROM staff ORDER BY RAND() LIMIT 0
SELECT MAX(joined), MIN(joined) FROM staff
SELECT name FROM staff WHERE pay NOT BETWEEN 0 AND 100 ORDER BY id
SELECT name FROM staff WHERE NOT (pay > 90 OR team = 'Green') ORDER BY id
SELECT IFNULL(pay, 0) + 10, IFNULL(team, 'none') FROM staff ORDER BY id
SELECT COALESCE(team, 'unassigned') AS t, COUNT(*) FROM staff GROUP BY t ORDER BY t
SELECT UPPER(LEFT(name, 1)), COUNT(*) FROM staff GROUP BY UPPER(LEFT(name, 1)) ORDER BY 1
SELECT team, name, pay FROM staff s WHERE pay = (SELECT MAX(pay) FROM staff x WHERE x.team = s.team) ORDER BY team
SELECT team, MAX(pay) - MIN(pay) AS spread FROM staff GROUP BY team ORDER BY spread DESC, team
SELECT @n := 3
SELECT VERSION() LIKE '%.%'
DESC teams
SHOW FULL TABLES
SHOW TABLES FROM db
SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'db'
SELECT * FROM staff WHERE name = Ann
SELECT * FROM staff WHERE name = "Ann"
SELECT 'name' FROM staff LIMIT 1
SELECT "name" FROM staff LIMIT 1
SELECT name, FROM staff
SELECT COUNT(name FROM staff
SELECT * FROM `staff` s WHERE s.`pay` > 80 AND s.`team` IS NOT NULL ORDER BY s.id
SELECT staff.name, teams.city FROM staff INNER JOIN teams ON staff.team = teams.team WHERE size > 2 ORDER BY staff.id
SELECT name FROM staff NATURAL JOIN teams ORDER BY id
SELECT * FROM staff CROSS JOIN teams WHERE id = 1 ORDER BY city, size
SELECT FLOOR(AVG(pay)), CEIL(AVG(pay)), ROUND(AVG(pay)), TRUNCATE(AVG(pay), 1) FROM staff
SELECT CAST(AVG(pay) AS SIGNED), CAST(AVG(pay) AS DECIMAL(10,1)), CAST(AVG(pay) AS CHAR) FROM staff
SELECT pay, IF(pay IS NULL, -1, pay), NULLIF(pay, 0) FROM staff ORDER BY id
SELECT MOD(id, 2) AS odd, SUM(pay) FROM staff GROUP BY odd ORDER BY odd
SELECT id, id & 1, id | 8, id << 1, ~0 & 7 FROM staff WHERE id < 3
SELECT YEAR('2021-02-03') - YEAR('2000-01-01'), DAYOFWEEK('2021-02-03'), WEEK('2021-02-03'), DAYOFYEAR('2021-02-03')
SELECT TIME('10:20:30'), HOUR('10:20:30'), MINUTE('10:20:30'), SECOND('10:20:30'), TIME_TO_SEC('00:01:40')
SELECT '2020-01-01' + INTERVAL 1 MONTH, DATE('2020-05-06 07:08:09'), EXTRACT(YEAR FROM '2020-05-06')
SELECT TRIM(LEADING '0' FROM '0012'), TRIM(BOTH 'x' FROM 'xxaxx'), LTRIM('  a'), RTRIM('a  ')
SELECT POSITION('b' IN 'abc'), LOCATE('c', 'abcabc', 4), MID('abcdef', 2, 3), SUBSTR('abcdef', -3)
SELECT REGEXP_REPLACE('a1b2', '[0-9]', ''), REGEXP_SUBSTR('ab12', '[0-9]+')
SELECT 5 = 5.0, '5' = 5.0, 'a' < 'B', 'Z' > 'a', 10 > 9, '10' > '9', NULL IS NULL, NULL = 1
SELECT 0.1 + 0.2, 1.10, 10 / 4, 10 / 5, 1e2, 3 * 1.50, -7 / 2, 100 * 1.1
SELECT 1.0 / 3, 2 / 3 * 3, 10.5 % 3, 7.5 DIV 2, SQRT(2), POW(2, 0.5)
SELECT CONCAT(1.50, '|', 7 / 2, '|', 10 / 5, '|', AVG(pay)) FROM staff
SELECT CONCAT(name, ': ', pay) FROM staff ORDER BY id
SELECT team, ROUND(SUM(pay) / COUNT(*), 2) FROM staff GROUP BY team ORDER BY team
SELECT DENSE_RANK() OVER (ORDER BY pay DESC) AS r, name FROM staff WHERE pay IS NOT NULL ORDER BY r, name
SELECT name FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY team ORDER BY pay DESC) AS n FROM staff) x WHERE n = 1
SELECT NTILE(2) OVER (ORDER BY id), FIRST_VALUE(name) OVER (ORDER BY id) FROM staff ORDER BY id
SELECT id, SUM(pay) OVER (ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) FROM staff ORDER BY id
"""

CHANGES = f"""
INSERT INTO staff VALUES (8, 'Gus', 'Red', 50, 1, '2023-01-01')
INSERT INTO staff (id, name) VALUES (8, 'Gus'), (9, 'Hal')
INSERT INTO staff SET id = 8, name = 'Gus'
INSERT INTO staff SELECT id + 10, name, team, pay, boss, joined FROM staff WHERE pay > 90
INSERT INTO staff VALUES (8, 'Gus')
INSERT INTO staff (id, nope) VALUES (8, 'x')
INSERT INTO staff (id, name) VALUES ('eight', 'x')
INSERT INTO {F} (Title, Year) VALUES ('New', 2024)
INSERT INTO {F} VALUES ('A', 1, 'B', 2.5, 3, '2020-01-01', NULL)
INSERT INTO {F} (Title) VALUES ('it''s'), ('quote"d')
UPDATE staff SET pay = pay * 1.1 WHERE team = 'RED'
UPDATE staff SET pay = pay + 5, team = 'Gold' WHERE id IN (1, 2)
UPDATE staff SET pay = NULL WHERE name LIKE 'a%'
UPDATE staff SET pay = (SELECT MAX(size) FROM teams) WHERE pay IS NULL
UPDATE staff SET name = CONCAT(name, ' ', team)
UPDATE staff SET pay = 'abc' WHERE id = 1
UPDATE staff SET team = UPPER(team) ORDER BY id LIMIT 2
UPDATE staff s JOIN teams t ON s.team = t.team SET s.pay = t.size
UPDATE {F} SET Year = Year + 1 WHERE Title = 'Echo'
UPDATE {F} SET Score = '9' WHERE Year = '2004' AND Country = 'France'
UPDATE {F} SET Score = 9 WHERE Year > 2005
UPDATE {F} SET `Gross ($)` = '5' WHERE Title = 'cafe noir'
UPDATE {F} SET Country = REPLACE(Country, 'usa', 'US')
UPDATE {F} SET Score = ROUND(Score, 1) WHERE Title LIKE 'Alpha%'
UPDATE nope SET a = 1
DELETE FROM staff WHERE pay < 50
DELETE FROM staff WHERE team IS NULL OR name = 'ANN'
DELETE FROM staff ORDER BY pay DESC LIMIT 1
DELETE FROM staff
DELETE FROM {F} WHERE Year = '2021' AND Title = 'echo'
DELETE FROM {F} WHERE Year = 2021
DELETE FROM {F} WHERE Score < 5
DELETE s FROM staff s JOIN teams t ON s.team = t.team WHERE t.city = 'Rome'
TRUNCATE TABLE staff
REPLACE INTO teams VALUES ('Red', 'Bergen', 4)
ALTER TABLE staff ADD COLUMN note TEXT
ALTER TABLE staff DROP COLUMN boss
ALTER TABLE staff RENAME COLUMN pay TO wage
DROP TABLE teams
CREATE TABLE copy AS SELECT * FROM staff
CREATE TABLE staff (a INT)
INSERT INTO {F} (`Title`, `Year`, `Gross ($)`, `Released`) VALUES ('Nova', '2022', '1,000', '2022-01-01')
INSERT INTO staff (id, name, team, pay, boss, joined) VALUES (8, 'Hal', 'Red', 75.6, 1, '2024-01-01')
INSERT INTO staff (id, name, pay) VALUES (8, 'Hal', '75')
INSERT INTO staff (name, team) SELECT team, city FROM teams
INSERT IGNORE INTO teams VALUES ('Red', 'Oslo', 3)
INSERT INTO teams (team, city, size) VALUES ('Pink', NULL, NULL), ('Grey', '', 0)
INSERT INTO teams VALUES ('Pink', 'Rome', 3, 4)
INSERT INTO teams (team, size) VALUES ('x', 3.5), ('y', -2.5)
UPDATE {F} SET Score = Score + 1 WHERE Country = 'Spain'
UPDATE {F} SET Score = Score * 1.1 WHERE Year = '2010'
UPDATE {F} SET Year = '2000', Country = 'UK' WHERE Title LIKE '%noir'
UPDATE {F} SET `Gross ($)` = NULL WHERE `Gross ($)` = 'None'
UPDATE {F} SET Released = DATE_FORMAT(Released, '%d.%m.%Y') WHERE Year = '1999'
UPDATE {F} SET Title = TRIM(Title)
UPDATE {F} SET Score = 10 ORDER BY Title, Released LIMIT 1
UPDATE staff SET pay = CASE WHEN team = 'Red' THEN pay + 10 ELSE pay - 10 END
UPDATE staff SET pay = pay / 3 WHERE id < 4
UPDATE staff SET team = (SELECT team FROM teams ORDER BY size DESC LIMIT 1) WHERE team IS NULL
UPDATE staff SET joined = DATE_ADD(joined, INTERVAL 1 DAY) WHERE joined IS NOT NULL
UPDATE staff SET pay = 1, pay = 2 WHERE id = 1
UPDATE staff, teams SET staff.pay = teams.size WHERE staff.team = teams.team AND teams.city = 'Oslo'
UPDATE staff SET nope = 3
UPDATE staff SET pay = 'n/a' WHERE id = 99
DELETE FROM {F} WHERE Country IN ('Spain', 'USA')
DELETE FROM {F} WHERE Title LIKE 'Alpha%' AND Score > 7.6
DELETE FROM staff WHERE id NOT IN (SELECT boss FROM staff WHERE boss IS NOT NULL)
DELETE FROM staff WHERE joined < '2020-01-01'
DELETE FROM teams WHERE city IS NULL OR size = 0
DELETE FROM teams WHERE size = (SELECT MAX(size) FROM teams)
DELETE teams FROM teams JOIN staff ON teams.team = staff.team WHERE staff.pay > 100
ALTER TABLE teams ADD COLUMN note VARCHAR(20) DEFAULT 'x'
ALTER TABLE teams MODIFY size TEXT
ALTER TABLE teams RENAME TO squads
RENAME TABLE teams TO squads
CREATE TABLE copy (a INT, b VARCHAR(10) NOT NULL, c DECIMAL(5,2))
CREATE TABLE IF NOT EXISTS copy LIKE staff
CREATE INDEX i ON staff (id)
""".strip().splitlines()

KNOWN = {
    f"SELECT Title FROM {F} ORDER BY CAST(`Gross ($)` AS UNSIGNED), Title, Released LIMIT 4": "no unsigned numbers",
    f"SELECT AVG(CAST(REPLACE(`Gross ($)`, ',', '') AS UNSIGNED)) FROM {F}": "no unsigned numbers",
    "SELECT team, MAX(pay) - MIN(pay) AS spread FROM staff GROUP BY team ORDER BY spread DESC, team": (
        "which of two spellings stands for a group"
    ),
    "SELECT @n := 3": "no variables",
    "DESC teams": "no more than name and type of a column",
    "SELECT YEAR('2021-02-03') - YEAR('2000-01-01'), DAYOFWEEK('2021-02-03'), WEEK('2021-02-03'), "
    "DAYOFYEAR('2021-02-03')": "no WEEK",
    "SELECT TIME('10:20:30'), HOUR('10:20:30'), MINUTE('10:20:30'), SECOND('10:20:30'), TIME_TO_SEC('00:01:40')": (
        "no times of more than a day, and few functions of time"
    ),
    "SELECT REGEXP_REPLACE('a1b2', '[0-9]', ''), REGEXP_SUBSTR('ab12', '[0-9]+')": "REGEXP alone",
    "SELECT 1.0 / 3, 2 / 3 * 3, 10.5 % 3, 7.5 DIV 2, SQRT(2), POW(2, 0.5)": "no exact decimals",
    "SELECT CONCAT(1.50, '|', 7 / 2, '|', 10 / 5, '|', AVG(pay)) FROM staff": "no exact decimals",
    "ALTER TABLE teams MODIFY size TEXT": "no change of a column's type",
    "SELECT name FROM staff WHERE pay >= ALL (SELECT pay FROM staff WHERE pay IS NOT NULL)": "no ALL, no ANY",
    "SELECT JSON_EXTRACT('{\"a\": 5}', '$.a')": "no JSON",
}
"""Where the embedded backend is known to differ, and why; the card lists the reasons."""


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MysqlBackend]:
    try:
        find_server()
    except InfrastructureError as error:
        missing(str(error))
    if importlib.util.find_spec("pymysql") is None:
        missing("PyMySQL is not installed")
    backend = MysqlBackend(PrivateServer())
    yield backend
    backend.close()


def comparable(value: Value) -> Value:
    if isinstance(value, str) and re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", value):
        value = float(value)
    return float(f"{value:.6g}") if isinstance(value, int | float) else value


def outcome(backend: Backend, sql: str, *, change: bool) -> object:
    """The rows, or what the tables hold after a change, in a form that can be compared; "error" for an error."""
    database = backend.open([FILMS, STAFF, TEAMS])
    try:
        result = database.execute(sql)
        rows: list[Row] = list(result.rows)
        if change:
            rows = [
                (name, *row)
                for name in (FILMS.name, "staff", "teams", "copy")
                for row in database.rows(name) or [("no such table",)]
            ]
        shaped = [tuple(map(comparable, row)) for row in rows]
        ordered = "ORDER BY" in sql.upper() and not change
        return shaped if ordered else Counter(shaped)
    except SqlError:
        return "error"
    finally:
        database.close()


def test_probes_agree(mariadb: MysqlBackend) -> None:
    embedded = SqliteBackend()
    reading = [(sql, False) for sql in forms()]
    probes = list(itertools.chain(reading, ((sql, True) for sql in CHANGES)))
    assert len({sql for sql, _ in probes}) == len(probes) >= 300
    differ = {
        sql for sql, change in probes if outcome(embedded, sql, change=change) != outcome(mariadb, sql, change=change)
    }
    print(f"{len(probes) - len(differ)} of {len(probes)} probes agree")
    assert differ == set(KNOWN)
    assert len(differ) <= 0.03 * len(probes)
