"""The set in force, and how it is replaced."""

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vfs.errors import InvalidPolicy
from vfs.policy.diff import Change
from vfs.policy.engine import decide
from vfs.policy.facts import Facts
from vfs.policy.store import PolicyStore
from vfs.policy.watch import watch


def write(path: Path, cache: str) -> None:
    """Replace the document in one step, as editors do."""
    fresh = path.with_suffix(".new")
    fresh.write_text(f'format = 1\n[[rules]]\nname = "r"\nmatch = {{}}\nset = {{ cache = "{cache}" }}\n')
    fresh.replace(path)


def cache_of(store: PolicyStore) -> str:
    return decide(store.current.rules, Facts("a")).values.cache


def test_reload_puts_the_new_set_in_force_and_says_what_changed(tmp_path):
    write(tmp_path / "a.toml", "keep")
    store = PolicyStore([str(tmp_path)])
    before = store.current.version
    write(tmp_path / "a.toml", "stream")
    reload = store.reload()
    assert cache_of(store) == "stream"
    assert (reload.before, reload.after) == (before, store.current.version)
    assert reload.changes == (Change("changed", "a", "r", "set.cache", "keep", "stream"),)


def test_set_before_stays_in_force_when_one_document_of_two_is_broken(tmp_path):
    write(tmp_path / "a.toml", "keep")
    write(tmp_path / "b.toml", "stream")
    store = PolicyStore([str(tmp_path)])
    before = store.current
    write(tmp_path / "a.toml", "stream")
    write(tmp_path / "b.toml", "nonsense")
    with pytest.raises(InvalidPolicy, match=r"b\.toml:5"):
        store.reload()
    assert store.current is before
    assert cache_of(store) == "stream"
    assert store.error is not None and store.error.subject.endswith("b.toml:5: rules[0].set.cache")
    write(tmp_path / "b.toml", "normal")
    assert [change.document for change in store.reload().changes] == ["a", "b"]
    assert store.error is None


def test_set_before_stays_in_force_when_a_document_vanishes(tmp_path):
    document = tmp_path / "a.toml"
    write(document, "keep")
    store = PolicyStore([str(document)])
    document.unlink()
    with pytest.raises(InvalidPolicy, match="is no policy document"):
        store.reload_if_changed()
    assert cache_of(store) == "keep"
    assert store.reload_if_changed() is None
    write(document, "stream")
    assert store.reload_if_changed() is not None
    assert cache_of(store) == "stream"


def test_first_set_that_can_not_be_used_is_refused(tmp_path):
    write(tmp_path / "a.toml", "nonsense")
    with pytest.raises(InvalidPolicy):
        PolicyStore([str(tmp_path)])


def test_nothing_is_reloaded_when_nothing_changed(tmp_path):
    write(tmp_path / "a.toml", "keep")
    store = PolicyStore([str(tmp_path), "pretraining"])
    before = store.current
    assert store.reload_if_changed() is None
    assert store.current is before


def test_same_size_and_time_in_another_file_counts_as_a_change(tmp_path):
    document = tmp_path / "a.toml"
    write(document, "normal")
    store = PolicyStore([str(document)])
    status = document.stat()
    write(document, "stream")
    os.utime(document, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert store.reload_if_changed() is not None
    assert cache_of(store) == "stream"


def test_broken_document_is_complained_of_once_until_it_changes_again(tmp_path):
    document = tmp_path / "a.toml"
    write(document, "keep")
    store = PolicyStore([str(document)])
    write(document, "nonsense")
    with pytest.raises(InvalidPolicy):
        store.reload_if_changed()
    assert store.reload_if_changed() is None
    write(document, "more nonsense")
    with pytest.raises(InvalidPolicy):
        store.reload_if_changed()


def test_document_that_is_added_to_or_removed_from_a_directory_is_seen(tmp_path):
    write(tmp_path / "a.toml", "keep")
    store = PolicyStore([str(tmp_path)])
    write(tmp_path / "b.toml", "stream")
    assert store.reload_if_changed().changes == (Change("added", "b"),)
    (tmp_path / "b.toml").unlink()
    assert store.reload_if_changed().changes == (Change("removed", "b"),)
    assert cache_of(store) == "keep"


def test_version_follows_from_the_texts(tmp_path):
    write(tmp_path / "a.toml", "keep")
    one, two = PolicyStore([str(tmp_path)]), PolicyStore([str(tmp_path)])
    assert one.current.version == two.current.version
    write(tmp_path / "a.toml", "stream")
    assert one.reload().after != two.current.version


def test_site_unknown_to_the_configuration_is_refused_at_reload(tmp_path):
    document = tmp_path / "a.toml"
    write(document, "keep")
    store = PolicyStore(["a.toml"], base=str(tmp_path), sites={"hdfs"})
    document.write_text('format = 1\n[[rules]]\nname = "r"\nmatch = {}\nset = { sites = "hdsf" }\n')
    with pytest.raises(InvalidPolicy, match="hdsf"):
        store.reload()
    assert cache_of(store) == "keep"


@settings(max_examples=25, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["keep", "stream", "nonsense"]), st.sampled_from(["off", "whole", "bad"])), max_size=5
    )
)
def test_values_in_force_always_come_from_one_good_state_of_all_documents(tmp_path_factory, steps):
    directory = tmp_path_factory.mktemp("policies")

    def put(cache: str, prefetch: str) -> None:
        write(directory / "a.toml", cache)
        text = f'format = 1\n[[rules]]\nname = "p"\nmatch = {{}}\nset = {{ prefetch = "{prefetch}" }}\n'
        (directory / "b.toml").write_text(text)

    put("stream", "tensor")
    store, good = PolicyStore([str(directory)]), ("stream", "tensor")
    for cache, prefetch in steps:
        put(cache, prefetch)
        if cache == "nonsense" or prefetch == "bad":
            with pytest.raises(InvalidPolicy):
                store.reload()
        else:
            store.reload()
            good = (cache, prefetch)
        values = decide(store.current.rules, Facts("a")).values
        assert (values.cache, values.prefetch) == good


async def test_watch_yields_good_and_bad_changes_and_goes_on(tmp_path):
    document = tmp_path / "a.toml"
    write(document, "keep")
    store = PolicyStore([str(document)])
    outcomes: asyncio.Queue[object] = asyncio.Queue()

    async def follow() -> None:
        async for outcome in watch(store, in_thread=asyncio.to_thread, poll_ms=200):
            await outcomes.put(outcome)

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        task = group.create_task(follow())
        write(document, "nonsense")
        assert isinstance(await outcomes.get(), InvalidPolicy)
        assert cache_of(store) == "keep"
        write(document, "stream")
        assert (await outcomes.get()).changes == (Change("changed", "a", "r", "set.cache", "keep", "stream"),)
        assert cache_of(store) == "stream"
        task.cancel()


async def test_watch_without_files_of_its_own_waits_without_reloading(tmp_path):
    store = PolicyStore(["pretraining"])
    before = store.current
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            async for _ in watch(store, in_thread=asyncio.to_thread):
                raise AssertionError("nothing can have changed")
    assert store.current is before
