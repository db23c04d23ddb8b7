"""Layouts of archives, tables and sharded checkpoints, from files by the formats' own writers and from broken ones."""

from __future__ import annotations

import io
import pickle
import sys
import tarfile
import time
import types
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vfs.checkpoints import arrow, dcp, parquet, pickled, tar, torchzip
from vfs.checkpoints.layout import Layout, Needs, NoLayout, run
from vfs.checkpoints.recognise import described_by, index_of, recognise

Parser = Callable[[int], Needs[Layout]]


def parse(parser: Parser, body: bytes) -> Layout:
    return run(parser(len(body)), lambda offset, length: body[offset : offset + length])


def asked(parser: Parser, body: bytes) -> int:
    """Return how many ranges the parser asked for."""
    count = 0

    def read(offset: int, length: int) -> bytes:
        nonlocal count
        count += 1
        return body[offset : offset + length]

    run(parser(len(body)), read)
    return count


# torch zip


def zipped(entries: dict[str, bytes], *, method: int = zipfile.ZIP_STORED, wide: bool = False) -> bytes:
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w", method) as archive:
        for name, content in entries.items():
            with archive.open(name, "w", force_zip64=wide) as file:
                file.write(content)
    return body.getvalue()


def test_entries_of_a_zip_are_members_without_the_name_of_the_archive() -> None:
    body = zipped({"model/data.pkl": b"p" * 50, "model/data/0": b"0" * 1000, "model/data/1": b"1" * 2000})
    layout = parse(torchzip.layout, body)
    assert layout.names == ("data.pkl", "data/0", "data/1")
    for member, content in zip(layout, (b"p" * 50, b"0" * 1000, b"1" * 2000), strict=True):
        assert content in body[member.offset : member.end]
        assert body[member.offset : member.offset + 4] == b"PK\3\4"
    assert layout.header == (layout[2].end, len(body) - layout[2].end)


def test_a_zip_with_fields_of_64_bits_is_read() -> None:
    body = bytearray(zipped({"a/data/0": b"x" * 100, "a/data/1": b"y" * 100}))
    start = int.from_bytes(body[-6:-2], "little")
    offset = body.rfind(b"PK\1\2")
    local = int.from_bytes(body[offset + 42 : offset + 46], "little")
    extra = b"\1\0\x18\0" + (100).to_bytes(8, "little") * 2 + local.to_bytes(8, "little")
    body[offset + 20 : offset + 28] = b"\xff" * 8
    body[offset + 42 : offset + 46] = b"\xff" * 4
    body[offset + 30 : offset + 32] = len(extra).to_bytes(2, "little")
    name_end = offset + 46 + len("a/data/1")
    body[name_end:name_end] = extra
    end = len(body) - 22
    length = end - start
    record = b"PK\6\6" + (44).to_bytes(8, "little") + b"\x2d\0\x2d\0" + bytes(8)
    record += b"".join(value.to_bytes(8, "little") for value in (2, 2, length, start))
    locator = b"PK\6\7" + bytes(4) + end.to_bytes(8, "little") + b"\1\0\0\0"
    tail = b"PK\5\6" + bytes(4) + b"\xff" * 12 + b"\0\0"
    wide = bytes(body[:end]) + record + locator + tail
    assert zipfile.ZipFile(io.BytesIO(wide)).read("a/data/1") == b"y" * 100
    assert parse(torchzip.layout, wide).names == ("data/0", "data/1")


def test_a_zip_with_a_small_directory_is_asked_for_once() -> None:
    assert asked(torchzip.layout, zipped({"m/data/0": bytes(500_000)})) == 1


def test_a_zip_with_a_large_directory_is_asked_for_twice() -> None:
    assert asked(torchzip.layout, zipped({f"m/data/{index}": b"x" for index in range(2000)})) == 2


def test_a_compressed_zip_has_no_layout() -> None:
    with pytest.raises(NoLayout, match="compressed"):
        parse(torchzip.layout, zipped({"a": bytes(1000)}, method=zipfile.ZIP_DEFLATED))


def test_a_zip_entry_that_reaches_over_the_next_has_no_layout() -> None:
    body = bytearray(zipped({"a/0": b"x" * 100, "a/1": b"y" * 100}))
    at = body.find(b"PK\1\2")
    body[at + 20 : at + 24] = (100_000).to_bytes(4, "little")
    with pytest.raises(NoLayout, match="overlaps"):
        parse(torchzip.layout, bytes(body))


# tar


def tarred(sizes: dict[str, int], format: int = tarfile.GNU_FORMAT) -> bytes:  # noqa: A002
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w", format=format) as archive:
        for name, size in sizes.items():
            member = tarfile.TarInfo(name)
            member.size = size
            archive.addfile(member, io.BytesIO(name[-1:].encode() * size))
    return body.getvalue()


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_files_of_a_tar_are_members(format: int) -> None:  # noqa: A002
    long = "/".join(["directory"] * 20) + "/n"
    names = {"000001.jpg": 1000, "000001.cls": 3, **({} if format == tarfile.USTAR_FORMAT else {long: 700}), "z": 5}
    body = tarred(names, format)
    layout = parse(tar.layout, body)
    assert {member.name: member.length for member in layout} == names
    assert all(body[member.offset : member.end] == member.name[-1:].encode() * member.length for member in layout)


def test_the_headers_of_small_files_come_together() -> None:
    assert asked(tar.layout, tarred({f"{index}.cls": 100 for index in range(100)})) == 2


def test_a_tar_of_many_large_files_is_left_to_its_index() -> None:
    header = tarred({"a": 0})[:512]

    def read(offset: int, length: int) -> bytes:
        block = bytearray(header)
        block[124:136] = b"%011o\0" % (1 << 20)
        block[148:156] = b" " * 8
        block[148:156] = b"%06o\0 " % sum(block)
        return bytes(block) + bytes(length - 512)

    with pytest.raises(NoLayout, match="index"):
        run(tar.layout(1 << 40), read)


def test_one_name_twice_in_a_tar_is_told_apart() -> None:
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w") as archive:
        for size in (10, 20):
            member = tarfile.TarInfo("a")
            member.size = size
            archive.addfile(member, io.BytesIO(bytes(size)))
    assert [member.name for member in parse(tar.layout, body.getvalue())] == ["a", "a#2"]


def test_an_index_of_offsets_gives_the_samples() -> None:
    index = b"".join(offset.to_bytes(8, "little") for offset in (0, 1024, 4096))
    assert [tuple(member) for member in tar.indexed(10240, index)] == [("sample/0", 0, 1024), ("sample/1", 1024, 3072)]


@pytest.mark.parametrize("offsets", [(0,), (5, 0), (0, 20_000)])
def test_an_index_that_does_not_fit_the_tar_is_refused(offsets: tuple[int, ...]) -> None:
    with pytest.raises(NoLayout):
        tar.indexed(10240, b"".join(offset.to_bytes(8, "little") for offset in offsets))


# Parquet and Arrow


def table(rows: int = 10_000) -> pa.Table:
    return pa.table(
        {"id": range(rows), "text": [str(row) for row in range(rows)], "box": [{"x": row} for row in range(rows)]}
    )


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_column_chunks_of_a_parquet_file_are_members(compression: str) -> None:
    body = io.BytesIO()
    pq.write_table(table(), body, row_group_size=4000, compression=compression)
    layout = parse(parquet.layout, body.getvalue())
    assert layout.names == tuple(f"{group}.{column}" for group in range(3) for column in ("id", "text", "box.x"))
    metadata = pq.ParquetFile(body).metadata
    for group in range(3):
        for column in range(3):
            chunk = metadata.row_group(group).column(column)
            member = layout[3 * group + column]
            assert (member.offset, member.length) == (chunk.dictionary_page_offset, chunk.total_compressed_size)


def test_record_batches_of_an_arrow_file_are_members() -> None:
    body = io.BytesIO()
    with pa.ipc.new_file(body, table().schema) as writer:
        writer.write_table(table(), max_chunksize=4000)
    layout = parse(arrow.layout, body.getvalue())
    assert layout.names == ("batch.0", "batch.1", "batch.2")
    batch = pa.ipc.read_record_batch(pa.ipc.read_message(body.getvalue()[layout[1].offset : layout[1].end]), table().schema)
    assert batch.column(0)[0].as_py() == 4000


def test_dictionaries_of_an_arrow_file_are_members() -> None:
    body = io.BytesIO()
    words = pa.table({"w": pa.array(["a", "b"] * 50).dictionary_encode()})
    with pa.ipc.new_file(body, words.schema) as writer:
        writer.write_table(words)
    assert parse(arrow.layout, body.getvalue()).names == ("dictionary.0", "batch.0")


# DCP


@pytest.fixture
def torch_names() -> Iterator[dict[str, type]]:
    """Classes that pickle under the names that torch and ByteCheckpoint give theirs."""
    names = {
        "torch.distributed.checkpoint.metadata": ("Metadata", "MetadataIndex", "TensorStorageMetadata"),
        "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
        "bytecheckpoint.checkpointer.meta_type": ("BcpMetadata",),
    }
    made: dict[str, type] = {}
    parents = ("torch", "bytecheckpoint")
    before = {module: sys.modules.get(module) for module in (*names, *parents)}  # the real ones, where they are installed
    for module, classes in names.items():
        sys.modules[module] = types.ModuleType(module)
        for name in classes:
            made[name] = type(name, (), {"__module__": module})
            setattr(sys.modules[module], name, made[name])
    for parent in parents:
        sys.modules[parent] = types.ModuleType(parent)
    made["Size"] = type("Size", (tuple,), {"__module__": "torch", "__reduce__": lambda self: (made["Size"], (tuple(self),))})
    sys.modules["torch"].Size = made["Size"]  # type: ignore[attr-defined]
    yield made
    for module, real in before.items():
        del sys.modules[module]
        if real is not None:
            sys.modules[module] = real


def metadata(
    names: dict[str, type], items: list[tuple[str, Any, str, int, int]], kind: str = "Metadata", **more: Any
) -> bytes:
    """Return a `.metadata` of (fqn, offset of the shard, file, offset, length)."""

    def made(name: str, **state: Any) -> Any:
        value = names[name]()
        value.__dict__.update(state)
        return value

    storage = {
        made("MetadataIndex", fqn=fqn, offset=shard if shard is None else names["Size"](shard), index=0): made(
            "_StorageInfo", relative_path=file, offset=offset, length=length, **more
        )
        for fqn, shard, file, offset, length in items
    }
    planner = {fqn: ("model", fqn) for fqn, *_ in items}
    return pickle.dumps(made(kind, state_dict_metadata={}, planner_data=planner, storage_data=storage), protocol=4)


def layouts(body: bytes) -> dict[str, Layout]:
    return run(dcp.layouts(len(body)), lambda offset, length: body[offset : offset + length])


def test_a_dcp_directory_gives_a_layout_per_file(torch_names: dict[str, type]) -> None:
    body = metadata(
        torch_names,
        [
            ("layers.0.w", (0, 0), "__0_0.distcp", 1600, 2000),
            ("layers.0.b", (0,), "__0_0.distcp", 0, 1600),
            ("layers.0.w", (768, 0), "__1_0.distcp", 0, 2000),
            ("step", None, "__0_0.distcp", 3600, 7),
        ],
    )
    found = layouts(body)
    assert [tuple(member) for member in found["__0_0.distcp"]] == [
        ("layers.0.b", 0, 1600),
        ("layers.0.w", 1600, 2000),
        ("step", 3600, 7),
    ]
    assert [tuple(member) for member in found["__1_0.distcp"]] == [("layers.0.w@768,0", 0, 2000)]
    assert found["__0_0.distcp"].format == "dcp"
    assert found["__0_0.distcp"].size == 3607


def test_bytecheckpoint_metadata_is_read_too(torch_names: dict[str, type]) -> None:
    found = layouts(metadata(torch_names, [("w", None, "__0_0.distcp", 0, 10)], kind="BcpMetadata"))
    assert found["__0_0.distcp"].format == "bytecheckpoint"


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        pytest.param(("w", None, "../x", 0, 10), "outside the directory", id="path upwards"),
        pytest.param(("w", None, "/etc/passwd", 0, 10), "outside the directory", id="absolute path"),
        pytest.param(("w", None, "a/../../x", 0, 10), "outside the directory", id="path that turns upwards"),
        pytest.param(("w", None, "x", -1, 10), "negative", id="negative offset"),
        pytest.param(("w", None, "x", 0, -10), "negative", id="negative length"),
        pytest.param(("w", None, "x", 0, 1 << 80), "outside the file", id="length of 80 bits"),
        pytest.param(("w", None, "x", 0, float("nan")), "lacks its place", id="not a number"),
        pytest.param((5, None, "x", 0, 1), "lacks its place", id="name that is a number"),
    ],
)
def test_hostile_items_make_no_layout(torch_names: dict[str, type], item: Any, reason: str) -> None:
    with pytest.raises(NoLayout, match=reason):
        layouts(metadata(torch_names, [item]))


def test_transformed_items_make_no_layout(torch_names: dict[str, type]) -> None:
    with pytest.raises(NoLayout, match="transformed"):
        layouts(metadata(torch_names, [("w", None, "x", 0, 1)], transform_descriptors=["zstd"]))


def test_twenty_thousand_items_take_less_than_five_seconds(torch_names: dict[str, type]) -> None:
    body = metadata(torch_names, [(f"layers.{index}.w", (index, 0), "x", 10 * index, 10) for index in range(20_000)])
    begin = time.process_time()
    assert len(layouts(body)["x"]) == 20_000
    assert time.process_time() - begin < 5


def test_a_pickle_that_calls_something_is_refused_and_nothing_is_called() -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return sys.exit, (3,)

    with pytest.raises(NoLayout, match=r"names sys\.exit"):
        pickled.read(pickle.dumps(Evil(), protocol=4), ("torch",))


def nested(depth: int) -> bytes:
    """Return a pickle of a dict whose key is a tuple of twice a tuple of twice …: its hash takes 2**depth steps."""
    return b"\x80\4})" + b"2\x86" * depth + b"K\1s."


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x80\4.", id="nothing on the stack"),
        pytest.param(b"\x80\4K\1K\1R.", id="calls a number"),
        pytest.param(b"\x80\4ctorch\nload\n)R)R.", id="calls an instance"),
        pytest.param(b"\x80\4ctorch\nload\n}b.", id="gives a class a state"),
        pytest.param(b"\x80\4)K\1K\1s.", id="puts an item into a tuple"),
        pytest.param(b"\x80\4}K\1a.", id="appends to a dict"),
        pytest.param(b"cos\nsystem\n.", id="names os"),
        pytest.param(b"ctorchvision\nx\n.", id="a module that only begins like an allowed one"),
        pytest.param(b"\x80\4\x82\1.", id="extension registry"),
        pytest.param(b"\x80\5\x97.", id="buffer out of band"),
        pytest.param(b"P0\n.", id="persistent id"),
        pytest.param(b"I" + b"9" * 10_000 + b"\n.", id="a number of 10,000 digits"),
        pytest.param(b"\x80\4\x8e" + b"\xff" * 7 + b"\x7fx.", id="bytes of 2**63"),
        pytest.param(b"\x80\4\x95" + b"\xff" * 7 + b"\x7f.", id="frame of 2**63"),
    ],
)
def test_a_hostile_pickle_is_refused(body: bytes) -> None:
    with pytest.raises(NoLayout):
        pickled.read(body, ("torch",))


def test_a_large_memo_index_takes_no_memory() -> None:
    assert pickled.read(b"\x80\4K\1r\xff\xff\xff\x7f.", ()) == 1


def test_a_key_that_hashes_for_ever_is_left_out() -> None:
    assert pickled.read(nested(100), ()) == {}


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_any_pickle_is_read_or_refused(body: bytes) -> None:
    try:
        pickled.read(b"\x80\4" + body, ("torch",))
    except NoLayout:
        pass


# All of them

EXAMPLES: dict[str, tuple[Parser, bytes]] = {}


def examples() -> dict[str, tuple[Parser, bytes]]:
    if not EXAMPLES:
        in_parquet, in_arrow = io.BytesIO(), io.BytesIO()
        pq.write_table(table(50), in_parquet, row_group_size=20)
        with pa.ipc.new_file(in_arrow, table(50).schema) as writer:
            writer.write_table(table(50), max_chunksize=20)
        EXAMPLES["torch"] = torchzip.layout, zipped({"a/data/0": b"x" * 50, "a/data/1": b"y" * 50})
        EXAMPLES["tar"] = tar.layout, tarred({"a" * 120: 10, "b": 600}, tarfile.PAX_FORMAT)[:5000]
        EXAMPLES["parquet"] = parquet.layout, in_parquet.getvalue()
        EXAMPLES["arrow"] = arrow.layout, in_arrow.getvalue()
    return EXAMPLES


@given(st.sampled_from(["torch", "tar", "parquet", "arrow"]), st.data())
@settings(max_examples=600, deadline=None)
def test_a_file_with_wrong_bytes_makes_a_layout_inside_the_file_or_none(format: str, data: st.DataObject) -> None:  # noqa: A002
    parser, body = examples()[format]
    broken = bytearray(body)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(1, len(body)))
        broken[-at] = data.draw(st.integers(0, 255))
    try:
        layout = parse(parser, bytes(broken))
    except NoLayout:
        return
    assert all(0 <= member.offset < member.end <= len(broken) for member in layout)


@given(st.sampled_from(["torch", "tar", "parquet", "arrow"]), st.data())
@settings(max_examples=200, deadline=None)
def test_a_file_that_was_cut_makes_no_layout_or_one_inside_it(format: str, data: st.DataObject) -> None:  # noqa: A002
    parser, body = examples()[format]
    cut = body[: data.draw(st.integers(0, len(body) - 1))]
    try:
        layout = parse(parser, cut)
    except NoLayout:
        return
    assert all(member.end <= len(cut) for member in layout)


@given(st.sampled_from([torchzip.layout, tar.layout, parquet.layout, arrow.layout]), st.binary(max_size=200), st.booleans())
@settings(max_examples=400)
def test_any_bytes_make_a_layout_or_none(parser: Parser, body: bytes, with_ending: bool) -> None:
    endings = {parquet.layout: b"\x40\0\0\0PAR1", arrow.layout: b"\x40\0\0\0ARROW1", torchzip.layout: b"PK\5\6" + bytes(18)}
    try:
        parse(parser, body + endings.get(parser, b"") if with_ending else body)
    except NoLayout:
        pass


@pytest.mark.parametrize(
    ("path", "is_known"),
    [
        ("a/model-00001-of-00002.safetensors", True),
        ("model.SAFETENSORS", True),
        ("a/pytorch_model.bin", True),
        ("rank0.pt", True),
        ("shard-000.tar", True),
        ("x.parquet", True),
        ("x.arrow", True),
        ("a.safetensors/readme", False),
        ("model.safetensors.index.json", False),
        ("safetensors", False),
        ("", False),
    ],
)
def test_a_name_promises_a_parser(path: str, is_known: bool) -> None:
    assert (recognise(path, 100) is not None) == is_known


def test_an_empty_file_has_no_parser() -> None:
    assert recognise("x.safetensors", 0) is None


def test_what_describes_a_file_from_outside() -> None:
    assert described_by("ckpt/step/__0_0.distcp") == "ckpt/step/.metadata"
    assert described_by("__0_0.distcp") == ".metadata"
    assert described_by("x.tar") is None
    assert index_of("a/x.tar") == "a/x.tar.idx"
    assert index_of("a/x.pt") is None
