"""The page in a real Chromium: clicked through as somebody would who is called because a job is slow."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lake import wait_until, why_no_mount
from tests.mount.observed import TOKENS, Observed, observed, why_no_tls
from tests.servers.wan_origin import Fault, WanOrigin

selenium = pytest.importorskip("selenium", reason="selenium is not installed")
from selenium.webdriver import Chrome, ChromeOptions, ChromeService, Keys  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402


def why_no_browser() -> str:
    """Return why the page can't be looked at here, or ""."""
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        return "needs chromium and chromium-driver"
    return why_no_mount() or why_no_tls()


pytestmark = [
    pytest.mark.mount,
    pytest.mark.root,
    pytest.mark.skipif(bool(why_no_browser()), reason=why_no_browser()),
]


@pytest.fixture(scope="module")
def mount(wan_origin_server: WanOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    """A mount on which a job has waited for an origin."""
    with observed(tmp_path_factory.mktemp("page"), wan_origin_server, "page") as mount:
        (mount.origin / "ckpt/model.safetensors").write_bytes(os.urandom(8 << 20))
        (mount.origin / "ckpt/later").write_bytes(os.urandom(8 << 20))
        wan_origin_server.shape(rtt_ms=120, mbit=100)
        read(mount, "ckpt/model.safetensors")
        wait_until(lambda: mount.get("/v1/stats")["slow"], "slow operations")
        yield mount
        wan_origin_server.shape(rtt_ms=0, mbit=0)


def read(mount: Observed, path: str) -> None:
    environ = {**os.environ, "FOREMOUNT_JOB": "run7-eval"}
    subprocess.run(["cat", str(mount.lake.root / path)], stdout=subprocess.DEVNULL, check=True, env=environ)


@pytest.fixture(scope="module")
def browser(mount: Observed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """A Chromium that has logged in."""
    options = ChromeOptions()
    for word in ("--headless=new", "--no-sandbox", "--ignore-certificate-errors", "--disable-gpu", "--window-size=1280,1500",
                 f"--user-data-dir={tmp_path_factory.mktemp('chromium')}", "--disable-background-networking"):  # fmt: skip
        options.add_argument(word)
    options.binary_location = shutil.which("chromium") or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = Chrome(options, ChromeService(shutil.which("chromedriver") or ""))
    try:
        started.get(mount.url)
        see(started, "#login")
        started.find_element(By.ID, "token").send_keys("not-a-token-at-all" + Keys.ENTER)
        wait_until(lambda: "not known" in text(started, "#login-error"), "the refusal")
        started.find_element(By.ID, "token").send_keys(TOKENS["admin"] + Keys.ENTER)
        see(started, "#main")
        yield started
    finally:
        started.quit()


def see(browser: Chrome, selector: str) -> Any:
    """Return the first element that is shown, once it is."""

    def shown() -> Any:
        found = browser.find_elements(By.CSS_SELECTOR, selector)
        return found and found[0].is_displayed() and found[0]

    return wait_until(shown, f"{selector} on the page")


def text(browser: Chrome, selector: str) -> str:
    """Return what an element says right now, whatever is redrawn meanwhile."""
    said: str = browser.execute_script("return document.querySelector(arguments[0])?.innerText ?? ''", selector)
    return said


def shows(browser: Chrome, selector: str, words: str) -> None:
    wait_until(lambda: words in text(browser, selector), f"{words!r} in {selector}")


def picture(browser: Chrome, name: str) -> None:
    """Keep a picture where FOREMOUNT_PICTURES says, for people."""
    if directory := os.environ.get("FOREMOUNT_PICTURES"):
        height = browser.execute_script("return document.documentElement.scrollHeight")
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": browser.execute_script("return innerWidth"), "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        browser.save_screenshot(str(Path(directory) / f"{name}.png"))
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_health_is_one_line(browser: Chrome, mount: Observed) -> None:
    shows(browser, "#health", "all 2 sites answer")
    assert str(mount.lake.root) in text(browser, "#place")


def test_job_and_slow_operations_are_there_with_their_reason(browser: Chrome) -> None:
    shows(browser, "#jobs", "run7-eval")
    shows(browser, "#slow", "/ckpt/model.safetensors")
    shows(browser, "#slow", "latency")
    picture(browser, "light")


def test_why_is_a_click_away_and_names_a_policy_value(browser: Chrome) -> None:
    wait_until(lambda: _click(browser, "#jobs button"), "the button")
    shows(browser, "#why-body", "prefetch = ")
    assert "run7-eval" in text(browser, "#h-why")
    assert browser.execute_script("return document.activeElement.id") == "why"
    picture(browser, "why")
    _click(browser, "#why-close")
    assert not browser.find_element(By.ID, "why").is_displayed()


def _click(browser: Chrome, selector: str) -> bool:
    """Click in the page's own turn: a table that is redrawn leaves no stale element."""
    clicked: bool = browser.execute_script(
        "const found = document.querySelector(arguments[0]); if (found) found.click(); return !!found", selector
    )
    return clicked


def test_charts_follow_what_is_read(browser: Chrome, mount: Observed) -> None:
    read(mount, "ckpt/later")
    shows(browser, "#throughput", "origin")
    assert browser.find_elements(By.CSS_SELECTOR, "#throughput polygon")
    label = browser.find_element(By.CSS_SELECTOR, "#waits svg").get_attribute("aria-label")
    assert label and "Seconds waited" in label


def test_chart_is_read_with_the_keyboard(browser: Chrome) -> None:
    chart = browser.find_element(By.CSS_SELECTOR, "#throughput svg")
    chart.send_keys(Keys.ARROW_LEFT)
    wait_until(lambda: browser.find_elements(By.CSS_SELECTOR, "#throughput .cursor"), "the cursor")


def test_changed_document_is_read_and_shown(browser: Chrome, mount: Observed) -> None:
    document = (
        'format = 1\nabout = "written while it runs"\n[[rules]]\nname = "patient"\nmatch = {}\nset = { deadline = "90s" }\n'
    )
    (mount.lake.base / "policies/ours.toml").write_text(document)
    _click(browser, "#reload")
    shows(browser, "#policy", "written while it runs")
    shows(browser, "#policy", "patient")
    shows(browser, "#events", "in force")


@pytest.mark.slow
def test_site_that_goes_is_named_as_trouble_and_its_return_is_told(
    browser: Chrome, mount: Observed, wan_origin: WanOrigin
) -> None:
    wan_origin.inject(Fault("reset", "*"))
    with pytest.raises(OSError):
        os.listdir(mount.lake.root / "elsewhere")
    shows(browser, "#health", "does not answer")
    picture(browser, "trouble")
    wan_origin.heal()
    shows(browser, "#events", "answers again")
    shows(browser, "#health", "all 2 sites answer")


@contextlib.contextmanager
def as_phone(browser: Chrome) -> Iterator[None]:
    """Show the page as wide as a phone is until the block ends."""
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    )
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def wider_than_phone(browser: Chrome, nodes: str) -> list[str]:
    """Return the beginnings of those of the nodes that reach out of the picture."""
    found: list[str] = browser.execute_script(
        "return [...document.querySelectorAll(arguments[0])].filter(node => node.getBoundingClientRect().right > 391 && "
        "!node.closest('.sr, .skip, thead')).map(node => node.outerHTML.slice(0, 120))", nodes
    )  # fmt: skip
    return found


def test_phone_shows_everything_without_scrolling_sideways(browser: Chrome) -> None:
    with as_phone(browser):
        assert wider_than_phone(browser, "body *") == []
        if directory := os.environ.get("FOREMOUNT_PICTURES"):
            height = browser.execute_script("return document.documentElement.scrollHeight")
            browser.execute_cdp_cmd(
                "Emulation.setDeviceMetricsOverride", {"width": 390, "height": height, "deviceScaleFactor": 1, "mobile": True}
            )
            browser.save_screenshot(str(Path(directory) / "phone.png"))


def choose_theme(browser: Chrome, name: str) -> None:
    browser.execute_script(
        "const theme = document.getElementById('theme'); theme.value = arguments[0];"
        "theme.dispatchEvent(new Event('change'))", name
    )  # fmt: skip


def test_dark_and_light_have_enough_contrast(browser: Chrome) -> None:
    for name in ("light", "dark"):
        choose_theme(browser, name)
        poor = browser.execute_script(CONTRAST)
        assert poor == [], name
    picture(browser, "dark")


def test_everything_that_acts_has_a_name_and_every_table_a_caption(browser: Chrome) -> None:
    nameless = browser.execute_script(
        "return [...document.querySelectorAll('button,select,input,a,progress,svg[role=img]')].filter(node =>"
        "!(node.getAttribute('aria-label') || node.innerText || node.labels?.length)).map(node => node.outerHTML)"
    )
    assert nameless == []
    assert browser.execute_script("return [...document.querySelectorAll('table')].every(node => node.caption)")
    assert browser.execute_script("return document.documentElement.lang") == "en"


def test_nothing_comes_from_elsewhere_and_nothing_goes_wrong(browser: Chrome, mount: Observed) -> None:
    names = browser.execute_script("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert names
    assert all(name.startswith((mount.url, "data:")) for name in names)
    said = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]  # type: ignore[no-untyped-call]
    assert [line for line in said if "401" not in line] == []  # the two looks without a valid token


CONTRAST = """
const channel = value => { value /= 255; return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4; };
const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
function behind(node) {
  for (let at = node; at; at = at.parentElement) {
    const found = numbers(getComputedStyle(at).backgroundColor);
    if (found.length === 3 || found[3] > 0.99) return found;
  }
  return [255, 255, 255];
}
const poor = new Set();
for (const node of document.querySelectorAll('main *, header *, footer *')) {
  if (!node.offsetParent || node.closest('.sr, select, progress')) continue;
  if (![...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim())) continue;
  const [a, b] = [light(numbers(getComputedStyle(node).color)), light(behind(node))].sort((x, y) => y - x);
  if ((a + 0.05) / (b + 0.05) < 4.5)
    poor.add(`${node.tagName}.${node.className}: ${node.textContent.trim().slice(0, 30)} ${(a + 0.05) / (b + 0.05)}`);
}
return [...poor];
"""
