"""Values and conditions as documents write them."""

import math

import pytest

from vfs.policy.facts import Accesses, CountRange, Ids, NameGlobs, SizeRange
from vfs.policy.values import DEFAULTS, VALUES, Settings, Values, value_text
from vfs.policy.written import (
    UNLIMITED,
    Allowance,
    FetchSize,
    Hedge,
    Names,
    Rate,
    SiteOrder,
    Staleness,
    duration_text,
    size_text,
)
from vfs.units import Bytes, Seconds


@pytest.mark.parametrize(
    ("text", "kind", "ttl_s", "snapshot"),
    [
        ("immutable", "immutable", math.inf, ""),
        ("close-to-open", "close-to-open", 0.0, ""),
        ("ttl=90s", "ttl", 90.0, ""),
        ("ttl=250ms", "ttl", 0.25, ""),
        ("pinned=2025-05-01", "pinned", math.inf, "2025-05-01"),
    ],
)
def test_staleness_class_says_how_long_a_version_is_believed(text, kind, ttl_s, snapshot):
    staleness = Staleness(text)
    assert (staleness.kind, staleness.ttl_s, staleness.snapshot) == (kind, ttl_s, snapshot)


@pytest.mark.parametrize(
    "text", ["", "forever", "ttl", "ttl=", "ttl=5", "immutable=1", "pinned=", "pinned=a/b", "pinned=../x"]
)
def test_what_is_no_staleness_class_is_refused(text):
    with pytest.raises(ValueError, match=r"write|quantity|duration"):
        Staleness(text)


def test_equal_durations_are_equal_staleness_classes():
    assert Staleness("ttl=60s") == Staleness("ttl=1m") == "ttl=1m"


@pytest.mark.parametrize(
    ("text", "delay_s"),
    [("off", math.inf), ("after=500ms", 0.5), ("after=p95", 0.2), ("after=2*p95", 0.4), ("after = 1.5 * p95", 0.3)],
)
def test_hedge_delay_follows_from_the_latency_so_far(text, delay_s):
    assert Hedge(text).delay_s(0.2) == pytest.approx(delay_s)


@pytest.mark.parametrize("text", ["", "on", "after", "after=", "after=2", "after=p99", "off=1", "after=-1s"])
def test_what_is_no_hedging_is_refused(text):
    with pytest.raises(ValueError, match=r"write|quantity|duration"):
        Hedge(text)


@pytest.mark.parametrize(
    ("text", "limits", "canonical"),
    [
        ("on", (True, UNLIMITED, UNLIMITED, 1.0, 0.25), "on"),
        ("off", (False, UNLIMITED, UNLIMITED, 1.0, 0.25), "off"),
        ("hourly=1GiB,size = 1TiB", (True, 1 << 40, 1 << 30, 1.0, 0.25), "size=1TiB, hourly=1GiB"),
        ("share=50 %, stop=0%", (True, UNLIMITED, UNLIMITED, 0.5, 0.0), "share=50%, stop=0%"),
    ],
    ids=["on", "off", "in any order", "shares"],
)
def test_allowance_says_what_a_mechanism_may_take(text, limits, canonical):
    found = Allowance(text)
    assert (found.on, found.size, found.hourly, found.share, found.stop) == limits
    assert found == canonical == Allowance(canonical)


@pytest.mark.parametrize(
    "text", ["", "yes", "size", "size=", "size=1GiB, size=2GiB", "share=0%", "share=101%", "stop=x", "off, size=1B"]
)
def test_what_is_no_allowance_is_refused(text):
    with pytest.raises(ValueError, match=r"write|quantity|size"):
        Allowance(text)


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [("64KiB", 65536, 65536), ("1MiB..16MiB", 1 << 20, 16 << 20), ("1MiB .. 1MiB", 1 << 20, 1 << 20)],
)
def test_fetch_size_has_a_least_and_a_most(text, least, most):
    assert (FetchSize(text).least, FetchSize(text).most) == (least, most)


@pytest.mark.parametrize("text", ["65535B", "0", "2MiB..1MiB", "1MiB..", "..1MiB", "a..b"])
def test_fetch_size_below_a_block_or_backwards_is_refused(text):
    with pytest.raises(ValueError, match=r"at least 64KiB|smaller size first|quantity"):
        FetchSize(text)


def test_rate_is_bytes_per_second():
    assert (Rate("200MB/s"), Rate("1KiB / s"), Rate("unlimited")) == (200e6, 1024.0, math.inf)


@pytest.mark.parametrize("text", ["200MB", "200MB/h", "0/s", "", "fast"])
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(ValueError, match=r"rate|quantity"):
        Rate(text)


def test_names_may_be_one_or_a_list_but_none_twice():
    assert Names("eu") == ("eu",)
    assert Names(["eu", "us"]) == ("eu", "us")
    for wrong in (["eu", "eu"], [""], [1]):
        with pytest.raises(ValueError, match=r"twice|write a name"):
            Names(wrong)


def test_site_order_names_at_least_one():
    with pytest.raises(ValueError, match="at least one"):
        SiteOrder([])


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        (">=64KiB", [65536, 10**15], [65535, 0]),
        (">64KiB", [65537], [65536]),
        ("<64KiB", [0, 65535], [65536]),
        ("<=64KiB", [65536], [65537]),
        ("1MiB..1GiB", [1 << 20, (1 << 30) - 1], [(1 << 20) - 1, 1 << 30]),
        ("1MiB..", [1 << 20], [(1 << 20) - 1]),
        ("..1MiB", [0, (1 << 20) - 1], [1 << 20]),
        ("4KiB", [4096], [4095, 4097]),
        ("0", [0], [1]),
        ("> 1 KiB", [1025], [1024]),
    ],
)
def test_size_range_is_exact_at_its_bounds(text, inside, outside):
    found = SizeRange(text)
    assert [found.matches(size) for size in inside] == [True] * len(inside)
    assert [found.matches(size) for size in outside] == [False] * len(outside)


@pytest.mark.parametrize("text", ["", "big", ">=", "=>1MiB", "1GiB..1MiB", "1MiB..1MiB", "<0", "5 apples", "1..2..3"])
def test_size_range_that_holds_nothing_or_is_none_is_refused(text):
    with pytest.raises(ValueError, match=r"range|holds nothing|quantity|size"):
        SizeRange(text)


def test_count_range_takes_no_units():
    assert CountRange(">=1024").matches(1024)
    assert not CountRange("8..64").matches(64)
    with pytest.raises(ValueError, match="no number"):
        CountRange(">=1KiB")


@pytest.mark.parametrize(
    ("written", "inside", "outside"),
    [(1000, [1000], [999, 1001]), ("1000-1999", [1000, 1999], [999, 2000]), ([0, "5-6"], [0, 5, 6], [1, 4, 7])],
)
def test_id_range_includes_both_ends(written, inside, outside):
    ids = Ids(written)
    assert all(ids.matches(number) for number in inside)
    assert not any(ids.matches(number) for number in outside)


@pytest.mark.parametrize("written", [[], "root", "5-", "-5", "9-1", [True], [1.5]])
def test_what_is_no_id_is_refused(written):
    with pytest.raises(ValueError, match="id"):
        Ids(written)


def test_name_glob_matches_the_whole_name_and_tells_case():
    jobs = NameGlobs(["eval-*", "run?"])
    assert [jobs.matches(name) for name in ("eval-", "eval-a/b", "run7", "run", "Eval-1", "my-eval-1")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


def test_unknown_kind_of_access_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="open, read, write, list, prefetch"):
        Accesses("mmap")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Bytes(16 << 20), "16MiB"), (Bytes(200_000_000), "200MB"), (Bytes(4097), "4097B"), (Bytes(0), "0B"),
        (Seconds(90), "90s"), (Seconds(0.25), "250ms"), (Seconds(7200), "2h"), (Seconds(0), "0s"),
        (Rate("unlimited"), "unlimited"), (Rate("1GB/s"), "1GB/s"), (Names([]), "(none)"), (Names(["a", "b"]), "a, b"),
    ],
)  # fmt: skip
def test_value_is_shown_as_a_document_writes_it(value, text):
    assert value_text(value) == text


def test_shown_sizes_and_durations_are_exact():
    assert size_text((1 << 30) + 1) == "1073741825B"
    assert duration_text(61.5) == "61.5s"


def test_every_value_has_unit_default_effect_and_reason():
    assert list(VALUES) == list(Values.__struct_fields__) == list(Settings.__struct_fields__)
    for name, about in VALUES.items():
        assert about.text and about.unit and about.why, name
        assert about.effect in ("next open", "at once")
        assert getattr(DEFAULTS, name) is not None


def test_budgets_and_deadlines_take_effect_at_once():
    assert {name for name, about in VALUES.items() if about.effect == "at once"} == {
        "deadline",
        "bandwidth",
        "write_durability",
        "upload_bandwidth",
        "commit_marker",
        "copy_encryption",
        "copy_retention",
        "copy_deletion",
        "eval_copies",
        "hot_copies",
        "samples_ahead",
    }
