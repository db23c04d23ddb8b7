"""Where copies go, and why not: `vfs/foresight/placing.py`."""

from __future__ import annotations

import msgspec
import pytest

from vfs.config import parse
from vfs.foresight.governance import PlaceFacts
from vfs.foresight.model import Hint, HintId, HotRange, JobName, Labels, Mechanism
from vfs.foresight.placing import Place, Rules, SiteFacts, places, site_facts
from vfs.model import LakePath, SiteName, SitePath

ORIGIN, EVAL = SiteName("origin"), SiteName("eval")
ROOT = SitePath("copies")
NODES = {
    SiteName(f"node-{index}"): SiteFacts(root=ROOT, rack=f"rack-{index // 2}", uplink=f"up-{index % 2}", readers=100)
    for index in range(6)
}
SITES = {ORIGIN: SiteFacts(), EVAL: SiteFacts(root=ROOT, place=PlaceFacts(labels=("eu",)), size=1000)}
CHECKPOINT = Hint(
    id=HintId("h"),
    job=JobName("job"),
    mechanism=Mechanism.CHECKPOINTS,
    path=LakePath("ckpt/step_1"),
    site=EVAL,
    why="",
    confidence=1.0,
    ttl_s=3600,
)
US_ONLY = Rules(duties=Labels(residency=("us",)), names={"residency": "own/us-only"})
CROWD = msgspec.structs.replace(
    CHECKPOINT, mechanism=Mechanism.HOT_FILES, site=ORIGIN, hot=(HotRange(LakePath("ckpt/step_1/.metadata"), readers=350),)
)


def placed(
    hint: Hint = CHECKPOINT,
    labels: Labels = Labels(),  # noqa: B008  immutable
    rules: Rules = Rules(),  # noqa: B008  immutable
    sites: dict[SiteName, SiteFacts] = SITES,
    bytes_needed: int = 100,
    used: dict[tuple[SiteName, Mechanism], int] | None = None,
) -> list[Place]:
    return places(hint, labels, rules, origin=ORIGIN, sites=sites, bytes_needed=bytes_needed, used=used or {})


def refusals(found: list[Place]) -> list[str]:
    return [place.refused.split(":")[0] for place in found]


def test_a_checkpoint_goes_where_it_will_be_evaluated() -> None:
    assert placed() == [Place(site=EVAL, root=ROOT, expires_in_s=3600)]


def test_refusal_says_whose_rule_it_is() -> None:
    (mine,) = placed(rules=US_ONLY)
    assert mine.refused == "residency: may lie in us; the place has eu; stated by rule own/us-only"
    (own,) = placed(labels=Labels(residency=("us",)), rules=US_ONLY)
    assert own.refused.endswith("stated by the checkpoint")


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (placed(labels=Labels(residency=("us",))), "residency"),
        (placed(rules=US_ONLY), "residency"),
        (placed(labels=Labels(residency=("eu",)), rules=US_ONLY), "residency"),
        (placed(labels=Labels(encrypted=True)), "encryption"),
        (placed(msgspec.structs.replace(CHECKPOINT, site=ORIGIN)), "place"),
        (placed(bytes_needed=1001), "quota"),
        (placed(used={(EVAL, Mechanism.HOT_FILES): 950}), "quota"),
        (placed(rules=Rules(size=99)), "quota"),
        (placed(rules=Rules(on=False, names={"on": "night"})), "checkpoints is switched off by rule night"),
        (placed(labels=Labels(residency=("us",)), bytes_needed=10_000), "residency"),
    ],
    ids=[
        "the checkpoint's residency", "the policy's", "both", "encryption", "no place for copies", "the site is small",
        "the site is full", "the mechanism's own quota", "switched off", "governance before the quota",
    ],
)  # fmt: skip
def test_what_may_not_be_copied_says_which_rule(found: list[Place], reason: str) -> None:
    assert refusals(found) == [reason]


def test_data_that_may_be_kept_for_an_hour_is_copied_for_an_hour_at_most() -> None:
    assert placed(labels=Labels(retain_s=60))[0].expires_in_s == 60


def test_a_crowd_gets_as_many_copies_as_it_needs_over_different_racks() -> None:
    found = placed(CROWD, sites=SITES | NODES)
    racks = [NODES[place.site].rack for place in found if place.site in NODES]
    assert sum(SITES.get(place.site, NODES.get(place.site, SiteFacts())).readers for place in found) >= 350
    assert len(racks) == len(set(racks))
    assert refusals(found) == [""] * len(found)


def test_each_further_copy_holds_only_what_more_readers_want_than_the_copies_before_it_bear() -> None:
    metadata, embedding = HotRange(LakePath("c/.metadata"), readers=350), HotRange(LakePath("c/m"), 0, 100, 150)
    found = placed(msgspec.structs.replace(CROWD, hot=(metadata, embedding)), sites=NODES)
    assert [place.hot for place in found] == [(metadata, embedding)] * 2 + [(metadata,)] * 2


def test_a_place_that_is_refused_is_left_out_where_others_do() -> None:
    found = placed(CROWD, sites=SITES | NODES, labels=Labels(residency=("eu",)))
    assert [place.site for place in found] == [EVAL]


def test_a_crowd_that_may_be_served_nowhere_says_why_for_each_place() -> None:
    assert refusals(placed(CROWD, sites=NODES, labels=Labels(encrypted=True))) == ["encryption"] * 6


def test_a_store_that_multiplies_by_itself_is_told_a_number() -> None:
    hdfs = {ORIGIN: SiteFacts(multiplies=True, readers=156)}
    assert placed(CROWD, sites=hdfs) == [Place(site=ORIGIN, hot=CROWD.hot, count=3, expires_in_s=3600)]


def test_the_configuration_says_what_sites_are() -> None:
    config = parse(
        """
        [sites.lake]
        kind = "webhdfs"
        url = "http://namenode:9870"
        [sites.node]
        kind = "http"
        url = "https://node/"
        writes = "put"
        copies = "/copies/"
        labels = ["eu"]
        encrypted = true
        rack = "r1"
        uplink = "u1"
        readers = 12
        copies_size = "1GiB"
        [sites.readonly]
        kind = "http"
        url = "http://x/"
        copies = "copies"
        [[mounts]]
        prefix = "/"
        site = "lake"
        """
    )
    found = site_facts(config)
    assert found[SiteName("lake")] == SiteFacts(place=PlaceFacts(transport_encrypted=False), multiplies=True)
    assert found[SiteName("node")] == SiteFacts(
        place=PlaceFacts(labels=("eu",), encrypted=True),
        root=SitePath("copies"),
        size=1 << 30,
        rack="r1",
        uplink="u1",
        readers=12,
    )
    assert found[SiteName("readonly")].root == ""
