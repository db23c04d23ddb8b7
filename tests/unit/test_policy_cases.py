"""The shipped decision tables, and how tables are read."""

from pathlib import Path

import pytest

from vfs.errors import InvalidPolicy
from vfs.policy.cases import Result, check_file
from vfs.policy.engine import explain
from vfs.policy.facts import Facts
from vfs.policy.loader import load, shipped_directory, shipped_names

TABLES = sorted(Path(str(shipped_directory() / "cases" / "defaults.toml")).parent.glob("*.toml"))
RESULTS = [result for table in TABLES for result in check_file(table)]


@pytest.mark.parametrize("result", RESULTS, ids=[f"{Path(result.file).stem}: {result.case}" for result in RESULTS])
def test_shipped_case_comes_out_as_written(result):
    assert result.wrong == ()


def test_every_shipped_document_has_a_table():
    assert [table.stem for table in TABLES] == list(shipped_names())


@pytest.mark.parametrize("name", shipped_names())
def test_every_shipped_rule_says_why(name):
    rules = load([name])
    assert all(rule.why for rule in rules.rules)
    assert all(document.about for document in rules.documents)
    assert len(explain(rules, Facts("a"))) == len(rules.rules)


def write_table(directory: Path, body: str) -> Path:
    (directory / "own.toml").write_text(
        'format = 1\n[[rules]]\nname = "r"\nmatch = { size = ">=1MiB" }\nset = { cache = "keep" }\n'
    )
    table = directory / "table.toml"
    table.write_text(f'policies = ["own.toml"]\n{body}')
    return table


def test_wrong_value_and_wrong_rule_are_both_told(tmp_path):
    table = write_table(
        tmp_path,
        '[[cases]]\nname = "big"\nfacts = { path = "a", size = "1MiB" }\n'
        'expect = { cache = "stream" }\nrule = { cache = "own/other", hedge = "default" }\n',
    )
    wrong = ("cache is keep (from own/r), expected stream", "cache comes from own/r, expected from own/other")
    assert check_file(table) == [Result(str(table), "big", wrong)]


def test_value_written_in_another_unit_is_the_same_value(tmp_path):
    table = write_table(
        tmp_path, '[[cases]]\nname = "t"\nfacts = { path = "a" }\nexpect = { deadline = "60000ms", read_ahead = 67108864 }\n'
    )
    assert check_file(table)[0].wrong == ()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('[[cases]]\nname = "t"\nfacts = { path = "a", sise = 1 }\nexpect = {}\n', "unknown field `sise`"),
        ('[[cases]]\nname = "t"\nfacts = { path = "a", size = "big" }\nexpect = {}\n', "no quantity"),
        ('[[cases]]\nname = "t"\nfacts = { path = "a" }\nexpect = { cashe = "keep" }\n', "unknown field `cashe`"),
        ("[[cases]\n", "is no TOML"),
    ],
)
def test_table_that_can_not_be_used_is_refused_with_its_name(tmp_path, body, message):
    table = write_table(tmp_path, body)
    with pytest.raises(InvalidPolicy, match=message) as caught:
        check_file(table)
    assert caught.value.subject == str(table)


def test_table_over_a_broken_document_is_refused_with_the_document(tmp_path):
    table = write_table(tmp_path, "cases = []\n")
    (tmp_path / "own.toml").write_text("format = 1\nrule = []\n")
    with pytest.raises(InvalidPolicy, match=r"own\.toml:2: rule"):
        check_file(table)


def test_missing_table_is_refused(tmp_path):
    with pytest.raises(InvalidPolicy, match="can't be read"):
        check_file(tmp_path / "none.toml")
