"""Documents: read whole or not at all, and errors that say where."""

import tomllib

import msgspec
import pytest

from vfs.errors import InvalidPolicy
from vfs.policy.diff import Change, diff
from vfs.policy.engine import RuleSet, decide
from vfs.policy.facts import Facts
from vfs.policy.loader import PolicyFile, Text, compile_rules, decode_document_value, expand, load, parse, shipped_names

RULE = '[[rules]]\nname = "r"\nmatch = {}\nset = { cache = "keep" }\n'


def parse_text(text: str):
    return parse(Text("doc.toml", False, text))


def refused(text: str) -> InvalidPolicy:
    with pytest.raises(InvalidPolicy) as caught:
        parse_text(text)
    return caught.value


def test_document_holds_rules_with_their_lines():
    document = parse_text(f'format = 1\nabout = "x"\n\n{RULE}\n# a comment\n{RULE.replace(chr(34) + "r", chr(34) + "s")}')
    assert (document.name, document.about, document.lines) == ("doc", "x", (4, 10))
    assert [rule.name for rule in document.rules] == ["r", "s"]


HEAD = "format = 1\n"
FAULTS = [
    ("unknown value", HEAD + '[[rules]]\nname = "r"\nmatch = {}\nset = { cashe = "keep" }\n',
     "doc.toml:5: rules[0].set.cashe", "unknown key", "did you mean 'cache'?"),
    ("unknown fact", HEAD + '[[rules]]\nname = "r"\n[rules.match]\npaths = "a"\n[rules.set]\ncache = "keep"\n',
     "doc.toml:5: rules[0].match.paths", "unknown key", "did you mean 'path'?"),
    ("value among the facts", HEAD + '[[rules]]\nname = "r"\nmatch = { hedge = "off" }\nset = { cache = "keep" }\n',
     "doc.toml:4: rules[0].match.hedge", "unknown key", "'hedge' belongs into 'set'"),
    ("nothing like it", HEAD + "zzz = 1\n" + RULE,
     "doc.toml:2: zzz", "unknown key", "known here: format, rules, about"),
    ("wrong choice in the second rule", HEAD + RULE + '[[rules]]\nname = "s"\nmatch = {}\nset = { prefetch = "all" }\n',
     "doc.toml:9: rules[1].set.prefetch", "Invalid enum value 'all'", ""),
    ("wrong text form", HEAD + '[[rules]]\nname = "r"\nmatch = {}\n[rules.set]\ncache = "keep"\nstaleness = "old"\n',
     "doc.toml:7: rules[0].set.staleness",
     "'old' is no staleness class: write immutable, close-to-open, ttl=30s or pinned=SNAPSHOT", ""),
    ("number where text belongs", HEAD + '[[rules]]\nname = "r"\nmatch = {}\nset = { hedge = 2 }\n',
     "doc.toml:5: rules[0].set.hedge", "2 is no text: write it in quotes", ""),
    ("bad pattern", HEAD + '[[rules]]\nname = "r"\nmatch = { path = [\n  "a/**",\n  "b**",\n] }\nset = { cache = "keep" }\n',
     "doc.toml:4: rules[0].match.path", "'b**': \"**\" stands for whole components: write **/*b", ""),
    ("negative duration", HEAD + '[[rules]]\nname = "r"\nmatch = {}\nset = { deadline = -1 }\n',
     "doc.toml:5: rules[0].set.deadline", "-1 is no quantity: write for example 64MiB or 30s", ""),
    ("zero deadline", HEAD + '[[rules]]\nname = "r"\nmatch = {}\nset = { deadline = "0s" }\n',
     "doc.toml:5: rules[0].set.deadline", "0 would fail every access", "write a larger one"),
    ("no format", RULE, "doc.toml", "'format' is missing", "begin the document with: format = 1"),
    ("no match", HEAD + '[[rules]]\nname = "r"\nset = { cache = "keep" }\n',
     "doc.toml:2: rules[0]", "'match' is missing", "write match = {} for a rule that holds everywhere"),
    ("sets nothing", HEAD + '[[rules]]\nname = "r"\nmatch = {}\nset = {}\n',
     "doc.toml:5: rules[0]", "sets nothing", "set a value, or drop the rule"),
    ("same name twice", HEAD + RULE + RULE, "doc.toml:7: rules[1]", "the name 'r' is taken", "rename it"),
    ("name with a slash", HEAD + RULE.replace('"r"', '"a/b"'),
     "doc.toml:3: rules[0]", "'a/b' is no name", "use letters, digits, '.', '_' and '-'"),
    ("key in a comment is not taken for it", HEAD + '[[rules]]\nname = "r" # cashe = 1\nmatch = {}\nset = { cashe = "x" }\n',
     "doc.toml:5: rules[0].set.cashe", "unknown key", "did you mean 'cache'?"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "subject", "reason", "hint"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS])
def test_fault_is_named_with_line_and_remedy(text, subject, reason, hint):
    error = refused(text)
    assert (error.subject, error.reason, error.hint) == (subject, reason, hint)


def test_syntax_error_is_named_with_its_line():
    error = refused("format = 1\n[[rules]\n")
    assert error.subject == "doc.toml:2"
    assert error.reason.startswith("is no TOML")


def test_unknown_format_is_refused():
    assert refused(RULE.join(["format = 2\n", ""])).subject == "doc.toml:1: format"


def test_directory_stands_for_its_documents_by_name(tmp_path):
    for name in ("20-b.toml", "10-a.toml", ".hidden.toml", "README.md", "old.toml~"):
        (tmp_path / name).write_text("format = 1\n" + RULE)
    assert expand([str(tmp_path)]) == [f"{tmp_path}/10-a.toml", f"{tmp_path}/20-b.toml"]


def test_relative_source_starts_from_the_base(tmp_path):
    (tmp_path / "own.toml").write_text("format = 1\n" + RULE)
    assert expand(["own.toml"], str(tmp_path)) == [f"{tmp_path}/own.toml"]


def test_shipped_document_is_named_without_path(tmp_path):
    assert expand(["pretraining", "shipped:workstation"], str(tmp_path)) == ["shipped:pretraining", "shipped:workstation"]


def test_file_of_that_name_is_taken_before_the_shipped_document_unless_it_is_asked_for(tmp_path):
    (tmp_path / "pretraining").write_text("format = 1\n" + RULE)
    assert expand(["pretraining", "shipped:pretraining"], str(tmp_path)) == [f"{tmp_path}/pretraining", "shipped:pretraining"]


@pytest.mark.parametrize("source", ["nowhere.toml", "shipped:nothing", "pretrainin"])
def test_unknown_source_is_refused_with_what_there_is(source, tmp_path):
    with pytest.raises(InvalidPolicy, match="fine-tuning") as caught:
        expand([source], str(tmp_path))
    assert caught.value.subject == source


def test_shipped_sets_are_found():
    assert shipped_names() == (
        "defaults", "evaluation-site", "fine-tuning", "inference-startup", "pretraining", "workstation",
    )  # fmt: skip


def test_shipped_defaults_lie_beneath_all_others(tmp_path):
    (tmp_path / "own.toml").write_text('format = 1\n[[rules]]\nname = "r"\nmatch = {}\nset = { prefetch = "off" }\n')
    own, none = load([str(tmp_path)]), load([])
    tensors = Facts("a.safetensors")
    assert str(decide(none, tensors).origins["prefetch"]) == "defaults/tensors-in-header-order"
    assert str(decide(own, tensors).origins["prefetch"]) == "own/r"
    assert decide(own, tensors).origins["prefetch"].line == 2


def test_two_documents_of_one_name_are_refused(tmp_path):
    for directory in ("a", "b"):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "x.toml").write_text("format = 1\n" + RULE)
    with pytest.raises(InvalidPolicy, match="same name as"):
        load([str(tmp_path / "a"), str(tmp_path / "b")])


def test_document_named_twice_counts_once(tmp_path):
    (tmp_path / "x.toml").write_text("format = 1\n" + RULE)
    assert len(load([str(tmp_path), str(tmp_path / "x.toml")]).rules) == len(load([]).rules) + 1


@pytest.mark.parametrize(
    ("body", "where"),
    [('match = { site = "mars" }\nset = { cache = "keep" }', "match.site"),
     ('match = {}\nset = { sites = ["nearest", "mars"] }', "set.sites")],
)  # fmt: skip
def test_site_that_the_configuration_does_not_know_is_refused(body, where):
    text = Text("doc.toml", False, f'format = 1\n[[rules]]\nname = "r"\n{body}\n')
    assert isinstance(compile_rules([text], None), RuleSet)
    assert isinstance(compile_rules([text], {"mars"}), RuleSet)
    with pytest.raises(InvalidPolicy, match="names the unknown site 'mars'") as caught:
        compile_rules([text], {"earth", "moon"})
    assert where in caught.value.subject
    assert caught.value.hint == "known sites: earth, moon"


def test_file_that_is_no_utf8_is_refused(tmp_path):
    (tmp_path / "x.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidPolicy, match="UTF-8"):
        load([str(tmp_path / "x.toml")])


def rules_of(*documents: tuple[str, str]) -> RuleSet:
    return compile_rules([Text(f"{name}.toml", False, f"format = 1\n{body}") for name, body in documents])


def named(name: str, match: str = "", values: str = 'cache = "keep"') -> str:
    return f'[[rules]]\nname = "{name}"\nmatch = {{ {match} }}\nset = {{ {values} }}\n'


def test_diff_of_equal_sets_is_empty_whatever_the_comments():
    assert diff(rules_of(("a", named("r"))), rules_of(("a", "# new\n" + named("r")))) == []


def test_diff_names_documents_and_rules_that_came_went_and_moved():
    before = rules_of(("gone", named("r")), ("a", named("x") + named("y") + named("old")))
    after = rules_of(("a", named("y") + named("x") + named("new")), ("fresh", named("r")))
    assert diff(before, after) == [
        Change("removed", "gone"),
        Change("removed", "a", "old"),
        Change("moved", "a", "y"),
        Change("moved", "a", "x"),
        Change("added", "a", "new"),
        Change("added", "fresh"),
    ]


def test_diff_names_conditions_and_values_before_and_after():
    before = rules_of(("a", named("r", 'path = "a/**", uid = ["5-9", 3]', 'deadline = "5s"')))
    after = rules_of(("a", named("r", 'path = "b/**"', 'deadline = "60s", read_ahead = "1MiB"')))
    assert diff(before, after) == [
        Change("changed", "a", "r", "match.path", "a/**", "b/**"),
        Change("changed", "a", "r", "match.uid", "5-9, 3", ""),
        Change("changed", "a", "r", "set.read_ahead", "", "1MiB"),
        Change("changed", "a", "r", "set.deadline", "5s", "1m"),
    ]


def test_diff_of_documents_in_another_order_says_so():
    one, two = ("a", named("r")), ("b", named("r"))
    assert diff(rules_of(one, two), rules_of(two, one)) == [Change("moved", "b"), Change("moved", "a")]
    assert [str(change) for change in diff(rules_of(one), rules_of(one, two))] == ["added b"]


@pytest.mark.parametrize(
    ("match", "where", "reason"),
    [
        ('path = "a/**", job = "x"', "rules[0].match.job", "can't decide whether a path is pinned"),
        ('size = ">1MiB"', "rules[0].match.size", "can't decide whether a path is pinned"),
        ('access = "open"', "rules[0].match.access", "can't decide whether a path is pinned"),
        ('path = ["a/**", "a/*.tar"]', "rules[0].match.path", "does not pin a whole tree"),
        ('path = "a/*"', "rules[0].match.path", "does not pin a whole tree"),
    ],
    ids=["job", "size", "access", "some files", "one level"],
)
def test_rule_that_would_pin_half_a_tree_is_refused(match: str, where: str, reason: str) -> None:
    with pytest.raises(InvalidPolicy, match=reason) as refused:
        rules_of(("a", named("r", match, 'staleness = "pinned=v1"')))
    assert refused.value.subject == f"a.toml:4: {where}"


@pytest.mark.parametrize("match", ["", 'path = "**"', 'path = ["a/**", "{b,c}/**/d/**"]', 'site = "s", host = "h*"'])
def test_rule_that_pins_whole_trees_is_taken(match: str) -> None:
    assert rules_of(("a", named("r", match, 'staleness = "pinned=v1"'))).pinning == (0,)


IN_ONE_GO = {
    "a header inside a string": 'why = """\n[[rules]]\nname = "no rule"\n"""\n' + "match = {}\nset = { prefetch = 'off' }",
    "tables of their own": '[rules.match]\npath = "a"\n[rules.set]\nprefetch = "off"',
    "spaces in the header": "match = {}\nset = { cache = 'keep' }\n  [[ rules ]]\nname = 'b'\n"
    + 'match = {}\nset = { prefetch = "off" }',
}


@pytest.mark.parametrize("body", IN_ONE_GO.values(), ids=IN_ONE_GO.keys())
def test_document_that_is_read_rule_by_rule_says_what_it_says_as_a_whole(body: str) -> None:
    text = f'format = 1\nabout = "x"\n[[rules]]\nname = "a"\n{body}\n'
    stated = msgspec.convert(tomllib.loads(text), PolicyFile, dec_hook=decode_document_value)
    parsed = parse(Text("a.toml", False, text))
    assert (parsed.about, list(parsed.rules)) == (stated.about, stated.rules)


def test_who_reads_many_rules_can_let_others_run_between_them() -> None:
    text = "format = 1\n" + "".join(named(f"r{number}", f'path = "d{number}/**"') for number in range(100))
    breaths = []
    compile_rules([Text("a.toml", False, text)], breathe=lambda: breaths.append(1))
    assert len(breaths) >= 300  # while they are read, checked and indexed
