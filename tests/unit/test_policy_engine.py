"""Which rule gives which value."""

import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfs.policy.engine import DEFAULT, REMEMBERED_MAX, Document, Origin, Rule, RuleSet, decide, explain
from vfs.policy.facts import Access, Accesses, CountRange, Facts, Ids, Match, NameGlobs, OneOf, PathGlobs, SizeRange, mismatch
from vfs.policy.values import DEFAULTS, VALUES, Settings, settings_of
from vfs.policy.written import Staleness
from vfs.units import Bytes


def document(*rules: Rule, name: str = "doc", shipped: bool = False) -> Document:
    return Document(name, f"{name}.toml", shipped, rules)


def rule(name: str, path: str | None = None, *, set: Settings, **conditions: object) -> Rule:  # noqa: A002
    return Rule(name, Match(path=PathGlobs(path) if path else None, **conditions), set)


KEEP, STREAM, WHOLE = Settings(cache="keep"), Settings(cache="stream"), Settings(prefetch="whole")


def test_without_rules_every_value_is_its_default():
    decision = decide(RuleSet([]), Facts("a/b"))
    assert decision.values == DEFAULTS
    assert dict(decision.origins) == dict.fromkeys(VALUES, DEFAULT)
    assert decision.matched == ()
    assert str(DEFAULT) == "default"


def test_later_rule_wins_value_by_value():
    rules = RuleSet(
        [
            document(
                rule("first", "data/**", set=Settings(cache="stream", prefetch="whole")),
                rule("second", "data/a/**", set=KEEP),
            )
        ]
    )
    decision = decide(rules, Facts("data/a/x"))
    assert (decision.values.cache, decision.values.prefetch) == ("keep", "whole")
    assert decision.origins["cache"] == Origin("doc", 1, "second")
    assert str(decision.origins["prefetch"]) == "doc/first"
    assert decision.origins["hedge"] == DEFAULT
    assert decision.matched == (Origin("doc", 0, "first"), Origin("doc", 1, "second"))


def test_what_an_admin_wrote_beats_a_shipped_document_that_is_named_after_it():
    shipped = document(rule("s", set=STREAM), name="shipped", shipped=True)
    own = document(rule("o", set=KEEP), name="own")
    assert str(decide(RuleSet([own, shipped]), Facts("a")).origins["cache"]) == "own/o"


def test_documents_of_one_kind_keep_their_order():
    documents = [document(rule("r", set=KEEP), name=name) for name in ("b", "a", "c")]
    assert [found.name for found in RuleSet(documents).documents] == ["b", "a", "c"]
    assert str(decide(RuleSet(documents), Facts("x")).origins["cache"]) == "c/r"


FACTS = Facts("a/b.bin", 4096, uid=7, gid=8, job="eval-1", site="hdfs", access=Access.READ, format="dcp", world=64, host="n1")
CONDITIONS = [
    ("path", PathGlobs("a/*.bin"), PathGlobs("b/*")),
    ("size", SizeRange("4KiB..8KiB"), SizeRange(">4KiB")),
    ("uid", Ids([7]), Ids(["8-9"])),
    ("gid", Ids("1-8"), Ids(7)),
    ("job", NameGlobs("eval-*"), NameGlobs("train-*")),
    ("site", OneOf(["s3", "hdfs"]), OneOf("s3")),
    ("access", Accesses(["open", "read"]), Accesses("write")),
    ("format", OneOf("dcp"), OneOf("safetensors")),
    ("world", CountRange(">=64"), CountRange("<64")),
    ("host", NameGlobs("n*"), NameGlobs("m*")),
]


@pytest.mark.parametrize(("fact", "holds", "fails"), CONDITIONS, ids=[row[0] for row in CONDITIONS])
def test_condition_selects_by_its_fact(fact, holds, fails):
    for condition, expected in ((holds, "keep"), (fails, "normal")):
        rules = RuleSet([document(Rule("r", Match(**{fact: condition}), KEEP))])
        assert decide(rules, FACTS).values.cache == expected


@pytest.mark.parametrize("fact", [row[0] for row in CONDITIONS if row[0] != "path"])
def test_condition_on_an_unknown_fact_does_not_hold(fact):
    condition = {"job": NameGlobs("*"), "host": NameGlobs("*"), "size": SizeRange(">=0"), "world": CountRange(">=0")}
    holds = condition.get(fact) or next(row[1] for row in CONDITIONS if row[0] == fact)
    rules = RuleSet([document(Rule("r", Match(**{fact: holds}), KEEP))])
    assert decide(rules, msgspec.structs.replace(FACTS, **{fact: None})).values.cache == "normal"
    assert decide(rules, FACTS).values.cache == "keep"


def test_all_conditions_must_hold():
    both = Match(path=PathGlobs("a/**"), uid=Ids(7))
    rules = RuleSet([document(Rule("r", both, KEEP))])
    found = [decide(rules, facts).values.cache for facts in (Facts("a/x", uid=7), Facts("a/x", uid=8), Facts("b", uid=7))]
    assert found == ["keep", "normal", "normal"]


def test_rule_with_two_patterns_matches_either_by_different_landmarks():
    rules = RuleSet([document(Rule("r", Match(path=PathGlobs(["ckpt/**", "**/*.pt", "**/latest", "**/x*y"])), KEEP))])
    cached = {path: decide(rules, Facts(path)).values.cache for path in ("ckpt", "a/b.pt", "q/latest", "xzy", "a/b.pth", "")}
    assert cached == {
        "ckpt": "keep", "a/b.pt": "keep", "q/latest": "keep", "xzy": "keep", "a/b.pth": "normal", "": "normal",
    }  # fmt: skip


def test_explain_says_of_each_rule_why_it_does_not_match_or_what_it_gives():
    rules = RuleSet(
        [
            document(
                rule("loses", set=STREAM),
                rule("other", "b/**", set=WHOLE),
                rule("wins", "a/**", set=KEEP),
                rule("w", set=WHOLE),
            )
        ]
    )
    verdicts = [(verdict.origin.rule, verdict.mismatch, verdict.wins) for verdict in explain(rules, Facts("a/x"))]
    assert verdicts == [("loses", None, ()), ("other", "path", ()), ("wins", None, ("cache",)), ("w", None, ("prefetch",))]


def test_decision_can_not_be_changed_by_who_got_it():
    decision = decide(RuleSet([document(rule("r", set=KEEP))]), Facts("a"))
    with pytest.raises(TypeError):
        decision.origins["cache"] = DEFAULT
    with pytest.raises(AttributeError):
        decision.values.cache = "stream"


def test_memories_of_a_rule_set_are_bounded():
    rules = RuleSet([document(*(rule(f"r{i}", uid=Ids(i), set=KEEP) for i in range(16)))])
    for job in range(REMEMBERED_MAX + 10):
        decide(rules, Facts("a", uid=job % 16, job=str(job)))
    assert len(rules._by_narrow) <= REMEMBERED_MAX
    assert len(rules._decisions) == 16


words = st.sampled_from(["a", "b", "ab", "a.x", "b.y", ".x"])
paths = st.lists(words, max_size=4).map("/".join)
globs = st.lists(
    st.sampled_from(["a", "b", "*", "**", "*.x", "a.?", "[ab]", "a.x", "*b*", "*.y"]), min_size=1, max_size=4
).map("/".join)
settings = st.builds(
    Settings,
    cache=st.sampled_from([None, "keep", "normal", "stream"]),
    prefetch=st.sampled_from([None, "off", "whole"]),
    read_ahead=st.sampled_from([None, Bytes(1), Bytes(2)]),
    staleness=st.sampled_from([None, Staleness("immutable"), Staleness("ttl=1s")]),
)
matches = st.builds(
    Match,
    path=st.none() | st.lists(globs, min_size=1, max_size=3, unique=True).map(PathGlobs),
    size=st.none() | st.sampled_from([">=10", "<10", "5..20", "10", "..7"]).map(SizeRange),
    uid=st.none() | st.sampled_from([0, "1-2", 2]).map(Ids),
    job=st.none() | st.sampled_from(["a*", "b", "*"]).map(NameGlobs),
    access=st.none() | st.sampled_from(["open", "read"]).map(Accesses),
    world=st.none() | st.sampled_from([">=8", "4"]).map(CountRange),
)
all_facts = st.builds(
    Facts,
    paths,
    size=st.none() | st.integers(0, 25),
    uid=st.none() | st.integers(0, 3),
    job=st.none() | st.sampled_from(["a", "ab", "b", "c"]),
    access=st.none() | st.sampled_from(list(Access)),
    world=st.none() | st.sampled_from([4, 7, 8, 9]),
)
rule_lists = st.lists(st.tuples(matches, settings), max_size=12).map(
    lambda pairs: [Rule(f"r{index}", match, found) for index, (match, found) in enumerate(pairs)]
)


@given(rule_lists, st.lists(all_facts, min_size=1, max_size=4))
def test_decision_is_what_trying_all_rules_in_order_gives(rules, many_facts):
    compiled = RuleSet([document(*rules)])
    for facts in many_facts:
        values, origins = {}, {}
        for found in rules:
            if mismatch(found.match, facts) is None:
                values |= settings_of(found.set)
                origins |= dict.fromkeys(settings_of(found.set), found.name)
        decision = decide(compiled, facts)
        assert decision.values == msgspec.structs.replace(DEFAULTS, **values)
        assert {name: origin.rule for name, origin in decision.origins.items() if origin != DEFAULT} == origins


@given(rule_lists, rule_lists, all_facts, st.data())
def test_decision_does_not_depend_on_rules_that_do_not_match(rules, others, facts, data):
    silent = [found for found in others if mismatch(found.match, facts) is not None]
    mixed = list(rules)
    for index, found in enumerate(silent):
        at = data.draw(st.integers(0, len(mixed)))
        mixed.insert(at, msgspec.structs.replace(found, name=f"silent{index}"))
    alone, together = decide(RuleSet([document(*rules)]), facts), decide(RuleSet([document(*mixed)]), facts)
    assert together.values == alone.values
    assert [origin.rule for origin in together.origins.values()] == [origin.rule for origin in alone.origins.values()]


@given(rule_lists, all_facts, settings)
def test_rule_that_matches_everything_and_comes_last_has_the_last_word(rules, facts, last):
    decision = decide(RuleSet([document(*rules, Rule("last", Match(), last))]), facts)
    for name, value in settings_of(last).items():
        assert getattr(decision.values, name) == value
        assert decision.origins[name].rule == "last"


@given(rule_lists, all_facts)
def test_deciding_twice_gives_the_same(rules, facts):
    compiled = RuleSet([document(*rules)])
    assert decide(compiled, facts) == decide(compiled, facts) == decide(RuleSet([document(*rules)]), facts)


def two_hundred_rules() -> RuleSet:
    """Return rules as a large site might have: by run, data set, extension, file name, and wildcards within a team."""
    kinds = ["ckpt/run{0}/**", "**/*.ext{0}", "data/set{0}/**/*.parquet", "**/meta{0}.json", "team{0}/*/part-*"]
    rules = [rule(f"r{index}", kinds[index % 5].format(index), set=KEEP, size=SizeRange(">=1KiB")) for index in range(200)]
    return RuleSet([document(*rules)])


def test_200_rules_are_decided_for_a_new_path_well_within_a_millisecond():
    rules = two_hundred_rules()
    many = [Facts(f"ckpt/run{n % 300}/step_{n}/x.ext{n % 7}", size=n, uid=1000, job="run") for n in range(4000)]
    for facts in many[:500]:
        decide(rules, facts)
    started = time.process_time()
    for facts in many:
        decide(rules, facts)
    per_second = len(many) / (time.process_time() - started)
    assert per_second * 200 > 2_000_000  # rules by paths; measured 25,000,000 on one core, the goal is 100,000
