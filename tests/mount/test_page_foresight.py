"""What the page shows of foresight, in a real Chromium: the time line, the copies by rack, and who reads from them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from tests.lake import wait_until
from tests.mount.observed import Observed, observed
from tests.servers.wan_origin import WanOrigin

pytest.importorskip("selenium", reason="selenium is not installed")

from tests.mount.test_page import (
    CONTRAST,
    Chrome,
    as_phone,
    browser,
    choose_theme,
    picture,
    see,
    shows,
    text,
    wider_than_phone,
)
from tests.mount.test_page import pytestmark as page
from tests.stated import stated
from vfs.foresight.model import Committed
from vfs.model import LakePath
from vfs.training import Training

__all__ = ["browser"]
pytestmark = [*page, pytest.mark.slow]
PATH, FILE = "ckpt/step_1000", "model.bin"
FORESIGHT = """
[sites.eval]
kind = "local"
path = "{base}/eval"
copies = "copies"
rack = "rack-7"
[foresight]
"""


@pytest.fixture(scope="module")
def mount(wan_origin_server: WanOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    """A mount at which a copy was published for an evaluation that has begun, and is being read from."""
    base = tmp_path_factory.mktemp("page")
    (base / "eval").mkdir()
    with observed(base, wan_origin_server, "foresight", more=FORESIGHT) as mount:
        told = Training("run7", [mount.lake.run_dir.foresight_socket])
        (mount.origin / PATH).mkdir(parents=True)
        (mount.origin / PATH / FILE).write_bytes(os.urandom(4 << 20))
        told.evaluation_scheduled("mmlu", 1000, "eval")
        told.save_begun(1000, PATH)
        file = asyncio.run(stated(f"{wan_origin_server.url}/foresight", f"{PATH}/{FILE}"))
        told.tell(Committed(step=1000, path=LakePath(PATH), save_id="1" * 32, marker=FILE, files=(file,)))
        wait_until(lambda: [each["phase"] for each in told.ask("/v1/state")["replicas"]] == ["published"], "the copy")
        wait_until(lambda: mount.get("/v1/rooms")["rooms"]["foresight"]["copies_offered"] == 1, "the mount to hear of it")
        with (mount.lake.root / PATH / FILE).open("rb") as reader:
            reader.read(1)
            told.evaluation_started("mmlu", 1000, "eval")
            yield mount


def test_time_line_says_when_the_copy_was_ready_and_the_evaluation_began(browser: Chrome) -> None:
    see(browser, "#foresight")
    shows(browser, "#foresight [data-part=evaluations]", "step 1000 at eval")
    shows(browser, "#foresight [data-part=evaluations]", "hit")
    label = browser.execute_script(
        "return document.querySelector('#foresight [data-part=evaluations] svg').getAttribute('aria-label')"
    )
    assert label.startswith("step 1000 at eval: saved ")
    for word in ("copied", "ready and waiting", "evaluated"):
        assert f", {word} " in label


def test_copies_are_on_the_map_by_rack(browser: Chrome) -> None:
    shows(browser, "#foresight [data-part=map]", "rack-7")
    shows(browser, "#foresight [data-part=map]", "1 published")
    assert f"/{PATH}" in text(browser, "#foresight [data-part=map]")


def test_heat_map_says_how_many_mounts_read_from_a_copy(browser: Chrome) -> None:
    shows(browser, "#foresight [data-part=heat]", "rack-7")
    label = browser.execute_script(
        "return document.querySelector('#foresight [data-part=heat] svg').getAttribute('aria-label')"
    )
    assert label == "eval: at most 1 mounts at a time, 1 now"
    assert browser.execute_script("return document.querySelectorAll('#foresight [data-part=heat] rect').length") >= 1


def test_foresight_is_named_readable_and_within_a_phone(browser: Chrome) -> None:
    for theme in ("light", "dark"):
        choose_theme(browser, theme)
        assert browser.execute_script(CONTRAST) == [], theme
        picture(browser, f"foresight-{theme}")
    assert browser.execute_script("return [...document.querySelectorAll('#foresight table')].every(node => node.caption)")
    assert browser.execute_script(
        "return [...document.querySelectorAll('#foresight svg')].every(node => node.getAttribute('aria-label'))"
    )
    with as_phone(browser):
        assert wider_than_phone(browser, "#foresight *") == []
