"""`policies/README.md` and `schema.json` say what the code does."""

import json
import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from vfs.policy import schema
from vfs.policy.cases import CaseFile
from vfs.policy.facts import PathGlobs
from vfs.policy.loader import Text, decode_document_value, parse, shipped_directory, shipped_names

POLICIES = Path(str(shipped_directory() / "README.md")).parent
README = (POLICIES / "README.md").read_text(encoding="utf-8")
REMEDY = "run: python -m vfs.policy.schema policies"


def test_schema_is_current():
    assert (POLICIES / "schema.json").read_text(encoding="utf-8") == schema.schema_text(), REMEDY


def test_tables_of_the_page_are_current():
    assert schema.fill_readme(README) == README, REMEDY


def test_writing_what_is_generated_changes_nothing_else(tmp_path):
    (tmp_path / "README.md").write_text(re.sub(r"(generated -->\n).*?(<!-- end)", r"\1\2", README, flags=re.DOTALL))
    schema.main([str(tmp_path)])
    assert (tmp_path / "README.md").read_text() == README
    assert (tmp_path / "schema.json").read_text() == schema.schema_text()


def test_schema_is_printed_without_a_directory(capsys):
    schema.main([])
    assert json.loads(capsys.readouterr().out)["title"] == "Foremount policy document"


def test_examples_of_the_page_can_be_used():
    examples = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    assert len(examples) == 4
    assert [rule.name for rule in parse(Text("site.toml", False, examples[0])).rules] == [
        "data-is-read-once",
        "but-the-small-set-stays",
    ]
    assert tomllib.loads(examples[1])["policies"] == ["pretraining", "/etc/foremount/policies"]
    assert len(parse(Text("site.toml", False, examples[2])).rules) == 1
    assert len(msgspec.convert(tomllib.loads(examples[3]), CaseFile, dec_hook=decode_document_value).cases) == 1


def test_patterns_of_the_page_match_as_it_says():
    rows = re.findall(r"^\| (`\S+`) \| (`.+?) \| (`.+?) \|$", README, re.MULTILINE)
    assert len(rows) == 6
    for pattern, matching, others in rows:
        glob = PathGlobs(pattern.strip("`"))
        assert [path for path in re.findall(r"`(.+?)`", matching) if not glob.matches(path)] == []
        assert [path for path in re.findall(r"`(.+?)`", others) if glob.matches(path)] == []


def test_page_names_every_shipped_document():
    named = set(re.findall(r"^\| `([a-z-]+)` \| [^|]+ \|$", README, re.MULTILINE))
    assert set(shipped_names()) - {"defaults"} <= named


def value_schema(name: str) -> dict:
    return schema.schema()["$defs"]["Settings"]["properties"][name]


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("staleness", ["immutable", "ttl=30s", "pinned=v1.2"], ["ttl", "ttl=30", "immutablex"]),
        ("hedge", ["off", "after=500ms", "after=2*p95", "after=p95"], ["on", "after=2"]),
        ("fetch_size", ["1MiB", "1MiB..16MiB"], ["1MiB..", "x"]),
        ("bandwidth", ["unlimited", "200MB/s"], ["200MB"]),
    ],
)
def test_schema_takes_what_the_loader_takes(name, good, bad):
    pattern = value_schema(name)["pattern"]
    assert all(re.search(pattern, text) for text in good)
    assert not any(re.search(pattern, text) for text in bad)


def test_schema_takes_no_null_and_no_unknown_key():
    text = schema.schema_text()
    assert "null" not in text
    for name in ("PolicyFile", "Rule", "Match", "Settings"):
        assert schema.schema()["$defs"][name]["additionalProperties"] is False
