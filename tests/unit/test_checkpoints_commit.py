"""Commit rules: what each format's marker covers, and that no marker is shown before all that it covers is durable."""

from __future__ import annotations

import io
import json
import pickle

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from vfs.checkpoints import commit
from vfs.checkpoints.commit import Blocker, Cover, Here, blockers, rule_for, step_of
from vfs.checkpoints.manifest import ManifestFile, object_digest, rank_of, save_id_of
from vfs.model import SitePath, Version


def cover(path: str, body: bytes = b"", commit_marker: str = "") -> Cover | None:
    rule = rule_for(path, commit_marker)
    return None if rule is None else rule(path, body)


@pytest.mark.parametrize(
    "path",
    [
        "run/model.safetensors",
        "run/__0_0.distcp",
        "run/.metadata.tmp",
        "run/metadata",
        "run/latest.pt",
        "run/index.json",
        "x",
    ],
)
def test_ordinary_files_commit_nothing(path: str) -> None:
    assert rule_for(path) is None


def test_an_index_covers_the_shards_that_it_names() -> None:
    body = json.dumps(
        {"metadata": {}, "weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors", "c": "m-2.safetensors"}}
    )
    found = cover("run/checkpoint-500/model.safetensors.index.json", body.encode())
    assert found == Cover(
        "huggingface",
        "run/checkpoint-500",
        named={"run/checkpoint-500/m-1.safetensors": 1, "run/checkpoint-500/m-2.safetensors": 1},
        step=500,
        tensors=3,
    )


@pytest.mark.parametrize("body", [b"", b"{", b'{"weight_map": {"a": "../up"}}', b"[]"])
def test_an_index_that_names_nothing_usable_is_an_ordinary_file(body: bytes) -> None:
    assert cover("run/model.safetensors.index.json", body) is None


@pytest.mark.parametrize(
    ("body", "below", "step"),
    [
        (b"123\n", ("run/iter_0000123", "run/global_step_123"), 123),
        (b"0", ("run/iter_0000000", "run/global_step_0"), 0),
        (b"release", ("run/release",), None),
    ],
)
def test_a_tracker_covers_the_iteration_that_it_names(body: bytes, below: tuple[str, ...], step: int | None) -> None:
    found = cover("run/latest_checkpointed_iteration.txt", body)
    assert found is not None
    assert (found.below, found.step) == (below, step)


@pytest.mark.parametrize("body", [b"", b"-1", b"../x", b"1e9", b"9" * 40, b"\xff"])
def test_a_tracker_of_another_content_is_an_ordinary_file(body: bytes) -> None:
    assert cover("run/latest_checkpointed_iteration.txt", body) is None


@pytest.mark.parametrize("name", ["latest", "latest_universal"])
def test_deepspeeds_latest_covers_the_tag(name: str) -> None:
    found = cover(f"run/{name}", b"global_step1000\n")
    assert found is not None
    assert (found.format, found.below, found.step) == ("deepspeed", ("run/global_step1000",), 1000)


@pytest.mark.parametrize("body", [b"", b"..", b"a/b", b"x" * 300, b"a\nb"])
def test_a_latest_that_is_no_tag_is_an_ordinary_file(body: bytes) -> None:
    assert cover("run/latest", body) is None


def test_a_success_file_covers_its_directory() -> None:
    assert cover("out/day=1/_SUCCESS") == Cover("success", "out/day=1", below=("out/day=1",))
    assert cover("_SUCCESS") == Cover("success", "", below=("",))


def test_the_policys_glob_makes_a_file_a_marker() -> None:
    assert cover("out/all.done") is None
    assert cover("out/all.done", b"", "*.done") == Cover("glob", "out", below=("out",))


def torch_metadata(items: dict[str, tuple[str, int, int]]) -> bytes:
    """Return what torch writes for (tensor → file, offset, length), without torch: the classes by name only."""

    names = {"Metadata": "metadata", "MetadataIndex": "metadata", "_StorageInfo": "filesystem"}
    made = {}
    for name, module in names.items():
        made[name] = type(name, (), {"__module__": f"torch.distributed.checkpoint.{module}"})
    storage = {}
    for tensor, (file, offset, length) in items.items():
        index, place = made["MetadataIndex"](), made["_StorageInfo"]()
        index.__dict__.update(fqn=tensor, offset=None, index=None)
        place.__dict__.update(relative_path=file, offset=offset, length=length)
        storage[index] = place
    whole = made["Metadata"]()
    whole.__dict__.update(state_dict_metadata={}, planner_data=None, storage_data=storage)
    out = io.BytesIO()
    _ByName(out, made.values()).dump(whole)
    return out.getvalue()


class _ByName(pickle._Pickler):  # type: ignore[misc]
    """Writes classes that can't be imported by their names."""

    def __init__(self, out: io.BytesIO, kinds: object) -> None:
        super().__init__(out, protocol=4)
        self._kinds = set(kinds)  # type: ignore[call-overload]

    def save_global(self, value: object, name: str | None = None) -> None:
        if value in self._kinds:
            self.save(value.__module__)
            self.save(value.__name__)  # type: ignore[attr-defined]
            self.write(pickle.STACK_GLOBAL)
            self.memoize(value)
            return
        super().save_global(value, name)


def test_torch_metadata_covers_each_file_as_long_as_its_last_item_reaches() -> None:
    body = torch_metadata({"w": ("__0_0.distcp", 0, 100), "b": ("__0_0.distcp", 100, 20), "v": ("__1_0.distcp", 7, 5)})
    found = cover("run/step_12/.metadata", body)
    assert found == Cover(
        "dcp",
        "run/step_12",
        named={"run/step_12/__0_0.distcp": 120, "run/step_12/__1_0.distcp": 12},
        below=("run/step_12",),
        step=12,
        tensors=3,
    )


def test_metadata_that_cannot_be_read_covers_its_directory() -> None:
    assert cover("run/step_12/.metadata", b"?") == Cover("dcp", "run/step_12", below=("run/step_12",), step=12)


@pytest.mark.parametrize(
    ("path", "step"),
    [
        ("run7/step_0012000/model", 12000),
        ("a/iter_0000123", 123),
        ("checkpoint-500", 500),
        ("global_step7", 7),
        ("run7", None),
        ("laststep", None),
        ("epoch=3-step=100", 100),
    ],
)
def test_steps_are_read_from_paths(path: str, step: int | None) -> None:
    assert step_of(path) == step


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("__3_0.distcp", 3),
        ("opt__12_1.distcp", 12),
        ("zero_pp_rank_2_mp_rank_00_optim_states.pt", 2),
        ("mp_rank_01_model_states.pt", 1),
        ("extra_state/extra_state_rank_7.pt", 7),
        ("model-00002-of-00005.safetensors", 2),
        (".metadata", None),
    ],
)
def test_ranks_are_read_from_names(path: str, rank: int | None) -> None:
    assert rank_of(path) == rank


# Blockers

PATHS = [f"run/ckpt/{name}" for name in ("a", "b", "c", "sub/d")] + ["run/e", "other/f"]
COVERS = st.builds(
    Cover,
    format=st.just("dcp"),
    directory=st.just("run/ckpt"),
    named=st.dictionaries(st.sampled_from(PATHS), st.integers(0, 10)),
    below=st.lists(st.sampled_from(["run/ckpt", "run", "other", ""]), max_size=2).map(tuple),
)
HERE = st.dictionaries(st.sampled_from(PATHS), st.builds(Here, durable=st.booleans(), earlier=st.booleans()))
THERE = st.dictionaries(st.sampled_from(PATHS), st.none() | st.integers(0, 10))


@given(COVERS, HERE, THERE)
def test_a_marker_is_free_only_when_all_that_it_covers_is_durable(
    cover: Cover, here: dict[str, Here], there: dict[str, int | None]
) -> None:
    if blockers(cover, here, there):
        return
    for path, size in cover.named.items():
        if path in here:
            assert here[path].durable
        else:
            assert (there.get(path) or 0) >= size
            assert there.get(path) is not None
    for path, state in here.items():
        below = any(not directory or path.startswith(directory + "/") for directory in cover.below)
        assert state.durable or not (state.earlier and below)


@given(COVERS, HERE, THERE, st.sampled_from(PATHS))
def test_a_file_that_becomes_durable_never_blocks_more(
    cover: Cover, here: dict[str, Here], there: dict[str, int | None], path: str
) -> None:
    after = here | {path: Here(durable=True, earlier=True)}
    assert {each.path for each in blockers(cover, after, there)} <= {each.path for each in blockers(cover, here, there)}


@given(COVERS, HERE, THERE)
def test_what_is_not_covered_never_blocks(cover: Cover, here: dict[str, Here], there: dict[str, int | None]) -> None:
    for path, _ in blockers(cover, here, there):
        assert path in cover.named or commit.covers(cover, path, earlier=here[path].earlier)


def test_blockers_say_what_is_wrong_with_each() -> None:
    named = Cover("dcp", "d", named={"d/a": 10, "d/b": 10, "d/c": 10, "d/e": 10})
    here = {"d/c": Here(durable=False, earlier=False, why="is still being written")}
    assert blockers(named, here, {"d/a": 10, "d/b": 9, "d/e": None}) == [
        Blocker("d/c", "is still being written"),
        Blocker("d/b", "has 9 bytes at the origin, 10 are needed"),
        Blocker("d/e", "is not at the origin, and not on this host"),
    ]


# Manifest


def file(path: str, digest: str, size: int = 1) -> ManifestFile:
    return ManifestFile(path, size, digest, SitePath(path), Version(size))


def test_a_save_id_depends_on_content_and_not_on_order() -> None:
    one, two = file("a", "x"), file("b", "y")
    assert save_id_of("m", [one, two]) == save_id_of("m", [two, one])
    others = [save_id_of("n", [one, two]), save_id_of("m", [one]), save_id_of("m", [one, file("b", "z")])]
    assert len({save_id_of("m", [one, two]), *others}) == 4


def test_the_digest_of_a_file_is_that_of_its_blocks_digests() -> None:
    blocks = [b"a" * 65536, b"b"]
    digests = b"".join(xxhash.xxh3_64_intdigest(block).to_bytes(8, "little") for block in blocks)
    assert object_digest(digests) == "xxh3-64k:" + xxhash.xxh3_128_hexdigest(digests)
