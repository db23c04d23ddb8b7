"""`foremount policy …` on files."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from vfs.cli import main

GOOD = (
    'format = 1\n[[rules]]\nname = "r"\nwhy = "w"\nmatch = { path = "a/**", uid = 7 }\n'
    'set = { cache = "keep", deadline = "5s" }\n'
)
TABLE = 'policies = ["../own.toml"]\n[[cases]]\nname = "kept"\nfacts = { path = "a/x", uid = 7 }\nexpect = { cache = "%s" }\n'


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["policy", *arguments])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "own.toml").write_text(GOOD)
    (tmp_path / "cases").mkdir()
    (tmp_path / "cases" / "own.toml").write_text(TABLE % "keep")
    return tmp_path


def test_check_without_paths_checks_what_is_shipped():
    result = run("check")
    assert result.exit_code == 0
    assert result.stdout.startswith("6 documents, ")
    assert result.stdout.endswith(" cases: 0 errors, 0 wrong decisions\n")


def test_check_of_a_directory_runs_the_tables_in_it(directory):
    result = run("check", str(directory))
    assert (result.exit_code, result.stdout) == (0, "2 documents, 1 cases: 0 errors, 0 wrong decisions\n")


def test_check_names_what_a_rule_about_callers_can_not_decide(directory):
    (directory / "own.toml").write_text(GOOD.replace('cache = "keep"', 'cache = "keep", eval_copies = "off"'))
    assert run("check", str(directory)).stdout == (
        "note   own/r, line 2: never sets eval_copies: it is decided for nobody, who has no uid\n"
        "2 documents, 1 cases: 0 errors, 0 wrong decisions\n"
    )


def test_check_of_a_table_runs_it(directory):
    result = run("check", str(directory / "cases" / "own.toml"))
    assert (result.exit_code, result.stdout) == (0, "1 documents, 1 cases: 0 errors, 0 wrong decisions\n")


def test_check_fails_on_a_wrong_decision(directory):
    (directory / "cases" / "own.toml").write_text(TABLE % "stream")
    result = run("check", str(directory))
    assert result.exit_code == 1
    assert "own.toml: kept: cache is keep (from own/r), expected stream" in result.stdout


def test_check_names_the_faults_of_all_documents(directory):
    (directory / "bad1.toml").write_text(GOOD.replace("cache", "cashe"))
    (directory / "bad2.toml").write_text(GOOD.replace('"keep"', '"sometimes"'))
    result = run("check", str(directory), "--json")
    fact = json.loads(result.stdout)
    assert result.exit_code == 1
    assert [error["subject"] for error in fact["errors"]] == [
        f"{directory}/bad1.toml:6: rules[0].set.cashe",
        f"{directory}/bad2.toml:6: rules[0].set.cache",
    ]
    assert fact["errors"][0]["hint"] == "did you mean 'cache'?"
    assert fact["cases"] == [{"file": f"{directory}/cases/own.toml", "case": "kept", "wrong": []}]


def test_check_with_a_configuration_refuses_sites_that_it_does_not_know(directory):
    config = directory / "foremount.toml"
    config.write_text(
        'policies = ["own.toml"]\n[sites.here]\nkind = "local"\npath = "/srv"\n[[mounts]]\nprefix = "/"\nsite = "here"\n'
    )
    assert run("check", "--config", str(config)).exit_code == 0
    (directory / "own.toml").write_text(GOOD.replace("uid = 7", 'site = "there"'))
    result = run("check", "--config", str(config))
    assert result.exit_code == 1
    assert "names the unknown site 'there' (known sites: here)" in result.stderr
    assert run("check", str(directory / "own.toml")).exit_code == 0


def test_check_of_a_configuration_names_what_its_documents_state_to_no_effect(directory):
    config = directory / "foremount.toml"
    config.write_text(
        'policies = ["own.toml"]\n[sites.here]\nkind = "local"\npath = "/srv"\n[[mounts]]\nprefix = "/"\nsite = "here"\n'
    )
    (directory / "own.toml").write_text(GOOD.replace('cache = "keep"', 'residency = ["eu"]'))
    result = CliRunner().invoke(main, ["config", "check", str(config)])
    assert [line for line in result.stdout.splitlines() if line.startswith("note")] == [
        "note: own/r, line 2: never sets residency: it is decided for nobody, who has no uid",
    ]


def test_explain_with_a_configuration_has_its_limits_as_defaults(directory):
    config = directory / "foremount.toml"
    config.write_text(
        '[sites.here]\nkind = "local"\npath = "/srv"\n[[mounts]]\nprefix = "/"\nsite = "here"\n'
        '[limits]\norigin_deadline = "7s"\n'
    )
    lines = run("explain", "a", "--config", str(config)).stdout.splitlines()
    assert "deadline          7s                      default" in lines


def test_show_lists_rules_in_force_order(directory):
    result = run("show", "--policy", str(directory), "--policy", "workstation")
    names = [line.split(":")[0].strip() for line in result.stdout.splitlines() if not line.startswith("      ")]
    assert names.index("own (" + str(directory / "own.toml") + ")") == len(names) - 2
    assert "  r: path a/**, uid 7\n      cache = keep, deadline = 5s\n" in result.stdout


def test_show_as_json_has_sizes_in_bytes_and_durations_in_seconds(directory):
    rules = json.loads(run("show", "--policy", str(directory), "--json").stdout)["rules"]
    assert rules[-1] == {
        "document": "own", "index": 0, "rule": "r", "line": 2, "why": "w",
        "match": {"path": "a/**", "uid": "7"}, "set": {"cache": "keep", "deadline": 5.0},
    }  # fmt: skip


def test_diff_of_two_files_compares_rules_whatever_the_files_are_called(directory):
    (directory / "next.toml").write_text(GOOD.replace('"5s"', '"9s"'))
    result = run("diff", str(directory / "own.toml"), str(directory / "next.toml"))
    assert (result.exit_code, result.stdout) == (0, "changed next/r set.deadline: 5s -> 9s\n")
    assert run("diff", str(directory / "own.toml"), str(directory / "own.toml")).stdout == "no differences\n"


def test_diff_as_json(directory):
    (directory / "next.toml").write_text(GOOD.replace(", uid = 7", ""))
    result = run("diff", str(directory / "own.toml"), str(directory / "next.toml"), "--json")
    assert json.loads(result.stdout) == {
        "changes": [
            {"kind": "changed", "document": "next", "rule": "r", "key": "match.uid", "before": "7", "after": ""},
        ]
    }


def test_explain_names_the_rule_and_line_of_each_value(directory):
    lines = run("explain", "/a/x", "--uid", "7", "--policy", str(directory)).stdout.splitlines()
    assert "deadline          5s                      own/r, line 2" in lines
    assert "cache             keep                    own/r, line 2" in lines
    assert "listing_ttl       1m                      default" in lines


def test_explain_with_all_facts_says_why_rules_do_not_match(directory):
    result = run(
        "explain", "a/x", "--size", "4KiB", "--uid", "8", "--gid", "1", "--job", "j", "--site", "s", "--access", "read",
        "--format", "dcp", "--world", "8", "--host", "h", "--policy", str(directory), "--rules",
    )  # fmt: skip
    assert result.exit_code == 0
    assert "\npath a/x, size 4KiB, uid 8, gid 1, job j, site s, access read, format dcp, world 8, host h\n" in result.stdout
    assert "own/r: no, uid is 8, the rule wants 7\n" in result.stdout


def test_explain_as_json_names_value_origin_and_every_rule(directory):
    fact = json.loads(run("explain", "a/x", "--uid", "7", "--policy", str(directory), "--json").stdout)
    assert fact["path"] == "a/x"
    own = {"document": "own", "index": 0, "rule": "r", "line": 2}
    assert fact["values"]["deadline"] == {"value": 5.0, "from": own}
    assert fact["values"]["cache"] == {"value": "keep", "from": own}
    assert fact["values"]["bandwidth"]["value"] is None
    assert fact["rules"][-1] == {"rule": "own/r", "mismatch": None, "wins": ["cache", "deadline"]}


def test_size_that_is_none_is_wrong_usage():
    result = run("explain", "a", "--size", "big")
    assert result.exit_code == 2
    assert "'big' is no quantity" in result.stderr


def test_unknown_source_fails_with_what_there_is():
    result = run("show", "--policy", "pretrainin")
    assert result.exit_code == 1
    assert "pretrainin: is no policy document" in result.stderr
    assert "pretraining" in result.stderr
