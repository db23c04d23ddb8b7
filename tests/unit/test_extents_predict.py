"""Prediction by members: what is fetched ahead when a checkpoint is read through page faults, in any order.

The files have the shape of a multimodal checkpoint: 24 layers of 18 tensors, two thirds of them 3 KiB, laid out as the
official writer does (large element types first, then by name), so that small tensors lie together and large ones alternate.
`stalls` are READs of which something had to be fetched on demand: each is a round trip that the reader waits.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pagefaults import MappedFile
from vfs.checkpoints.layout import Layout, Member, build
from vfs.checkpoints.learned import Learned
from vfs.checkpoints.patterns import Order, Patterns
from vfs.extents.evidence import Evidence
from vfs.extents.follow import Follow
from vfs.extents.predict import Prediction, PredictionKnobs
from vfs.extents.spans import Spans

KIB, MIB = 1 << 10, 1 << 20
HEADER = 40 * KIB + 8
READ_AHEAD = 64 * KIB
KNOBS = PredictionKnobs(around_bytes=READ_AHEAD, ahead_bytes=5 * READ_AHEAD)
SMALL = (
    *("ln1.weight", "ln1.bias", "ln2.weight", "ln2.bias", "attn.q.bias", "attn.k.bias", "attn.v.bias", "attn.o.bias"),
    *("mlp.down.bias", "q_norm", "k_norm", "gate.bias"),
)


def checkpoint(layers: Iterable[int] = range(24), width: int = 768) -> Layout:
    """Return the layout of one shard."""
    tensors: dict[str, tuple[int, int]] = {"embed": (2, 32_000 * width * 2)}
    for layer in layers:
        tensors |= {f"model.layers.{layer}.{name}": (4, 4 * width) for name in SMALL}
        tensors |= {f"model.layers.{layer}.attn.{name}": (2, 2 * width * width) for name in "qkvo"}
        tensors |= {f"model.layers.{layer}.mlp.{name}": (2, 8 * width * width) for name in ("up", "down")}
    items = []
    at = HEADER
    for name, (_, size) in sorted(tensors.items(), key=lambda tensor: (-tensor[1][0], tensor[0])):
        items.append((name, at, size))
        at += size
    return build("safetensors", at, (0, HEADER), items)


@dataclass
class Load:
    """What one load did.

    Attributes:
        wanted: bytes of the tensors that were read.
        demanded: bytes that the kernel read for that.
        fetched: bytes that crossed the line: demanded or predicted.
    """

    prediction: Prediction
    wanted: int
    demanded: int
    fetched: int
    reads: int
    stalls: int

    @property
    def amplification(self) -> float:
        return self.fetched / self.wanted


def load(
    layout: Layout,
    readers: Sequence[Sequence[str]],
    *,
    learned: Learned | None = None,
    read_ahead: int = READ_AHEAD,
    limit_bytes: int = 256 * MIB,
    with_prediction: bool = True,
) -> Load:
    """Read tensors as safetensors and numpy do: the header, then of each tensor both ends and all. Readers take turns."""
    knobs = PredictionKnobs(around_bytes=read_ahead, ahead_bytes=5 * read_ahead)
    prediction = Prediction(layout, learned=learned, knobs=knobs)
    present, demanded = Spans(), Spans()
    reads = stalls = 0

    def read(offset: int, length: int) -> None:
        nonlocal reads, stalls
        reads += 1
        stalls += bool(present.gaps(offset, offset + length))
        demanded.add(offset, offset + length)
        present.add(offset, offset + length)
        if with_prediction:
            for start, size in prediction.read(offset, length, limit_bytes=limit_bytes):
                present.add(start, start + size)

    file = MappedFile(layout.size, read, read_ahead_bytes=read_ahead)
    file.touch(0, HEADER)
    members = {member.name: member for member in layout}
    names = list(chain(*zip(*readers, strict=True)))
    for name in names:
        member = members[name]
        file.touch(member.offset, 1)
        file.touch(member.end - 1, 1)
        file.touch(member.offset, member.length)
    wanted = sum(members[name].length for name in set(names))
    return Load(prediction, wanted, demanded.total, present.total, reads, stalls)


def names(layout: Layout, part: str = "") -> list[str]:
    return sorted(name for name in layout.names if part in name)


MODULES = [f"model.layers.{layer}.attn.{name}" for layer in range(24) for name in ("q", "q.bias", "k", "v", "v.bias", "o")]
BY_PATTERN = [f"model.layers.{layer}.attn.{name}" for name in "qkvo" for layer in range(24)]


@pytest.mark.parametrize(
    ("readers", "stalls_max"),
    [
        pytest.param([names(checkpoint(), ".attn.")], 10, id="in the order of names"),
        pytest.param([names(checkpoint(), ".attn.")[::-1]], 10, id="in the reverse order of names"),
        pytest.param([MODULES], 10, id="in the order of layers and modules"),
        pytest.param([BY_PATTERN], 10, id="pattern by pattern"),
        pytest.param([BY_PATTERN[::-1]], 10, id="pattern by pattern, backwards"),
        pytest.param([MODULES[:72], MODULES[72:]], 14, id="two readers of a half each"),
        pytest.param([MODULES[at : at + 36] for at in range(0, 144, 36)], 20, id="four readers of a quarter each"),
    ],
)
def test_one_modality_is_fetched_ahead(readers: list[list[str]], stalls_max: int) -> None:
    done = load(checkpoint(), readers)
    print(f"{done.reads} reads, {done.stalls} stalls, {done.amplification:.3f} of the bytes wanted")
    assert done.stalls <= stalls_max
    assert done.amplification <= 1.10
    assert not done.prediction.is_off


def test_without_prediction_the_same_load_stalls_at_each_read() -> None:
    done = load(checkpoint(), [names(checkpoint(), ".attn.")], with_prediction=False)
    assert done.stalls == done.reads > 500


@pytest.mark.parametrize(
    "order",
    [
        pytest.param(lambda found: list(found.names), id="in the order of offsets"),
        pytest.param(names, id="in the order of names"),
        pytest.param(lambda found: names(found)[::-1], id="in the reverse order of names"),
    ],
)
def test_everything_is_fetched_ahead_and_once(order: object) -> None:
    layout = checkpoint()
    done = load(layout, [order(layout)])  # type: ignore[operator]
    print(f"{done.reads} reads, {done.stalls} stalls")
    assert done.stalls <= 8
    assert done.fetched <= layout.size
    assert done.prediction.unread_bytes == 0


def test_the_first_read_of_the_first_layer_predicts_all_layers_nearest_first() -> None:
    layout = checkpoint()
    prediction = Prediction(layout, knobs=KNOBS)
    assert prediction.read(0, HEADER) == []
    first = next(member for member in layout if member.name == "model.layers.0.attn.k")
    at = first.offset // 4096 * 4096 - READ_AHEAD
    found = prediction.read(at, 2 * READ_AHEAD, limit_bytes=1 << 30)
    keys = [name for name in (covered(layout, part) for part in found) if name and name.endswith(".attn.k")]
    assert keys[:3] == ["model.layers.0.attn.k", "model.layers.1.attn.k", "model.layers.10.attn.k"]
    assert len(keys) == 24
    assert not any(covered(layout, part) in ("model.layers.0.mlp.up", "model.layers.0.mlp.down") for part in found)


def covered(layout: Layout, part: tuple[int, int]) -> str:
    """Return the largest member that the range touches."""
    return max(layout.at(*part), key=lambda member: min(member.end, sum(part)) - max(member.offset, part[0])).name


def test_the_second_step_is_predicted_at_the_first_read() -> None:
    first = load(checkpoint(), [names(checkpoint(), ".attn.")])
    learned = first.prediction.learned()
    assert learned is not None
    assert {f"model.layers.*.attn.{name}" for name in "qkvo"} < set(learned.patterns)
    assert not {"embed", "model.layers.*.mlp.up", "model.layers.*.mlp.down"} & set(learned.patterns)
    larger = checkpoint(range(20), 1024)
    second = load(larger, [names(larger, ".attn.")], learned=learned)
    print(f"{second.reads} reads, {second.stalls} stalls, {second.amplification:.3f} of the bytes wanted")
    assert second.stalls <= 1
    assert second.amplification <= 1.10


def test_another_shard_of_the_same_checkpoint_profits_from_the_first_one() -> None:
    learned = load(checkpoint(), [names(checkpoint(), ".attn.")]).prediction.learned()
    other = checkpoint(range(24, 48))
    assert load(other, [names(other, ".attn.")], learned=learned).stalls <= 1


def test_a_load_of_another_modality_than_before_gives_up_the_first_one() -> None:
    learned = load(checkpoint(), [names(checkpoint(), ".attn.")]).prediction.learned()
    layout = checkpoint()
    done = load(layout, [names(layout, ".mlp.")], learned=learned, limit_bytes=16 * MIB)
    assert done.amplification <= 1.35
    found = done.prediction.learned()
    assert found is None or "model.layers.*.mlp.up" in found.patterns


def test_the_order_of_the_first_read_is_what_order_tells() -> None:
    assert load(checkpoint(), [BY_PATTERN]).prediction.order()[:4] == [f"model.layers.*.attn.{name}" for name in "qkvo"]


def test_the_order_that_was_followed_is_learned() -> None:
    learned = load(checkpoint(), [BY_PATTERN]).prediction.learned()
    assert learned is not None
    assert (learned.order, learned.backwards) == (Order.PATTERN, False)


def test_one_reader_going_through_the_file_is_not_taken_for_one_pattern_after_the_other() -> None:
    learned = load(checkpoint(), [names(checkpoint(), "mlp")]).prediction.learned()
    assert learned is not None
    assert (learned.order, learned.backwards) == (Order.OFFSET, False)


# Readers without an order


def experts(count: int = 4000) -> Layout:
    """Return a layout of 4 GB: as many members of 1 MiB."""
    return build(
        "safetensors", 8 + count * MIB, (0, 8), [(f"experts.{index}.w", 8 + index * MIB, MIB) for index in range(count)]
    )


def test_random_reads_of_4_mib_turn_it_off_and_waste_little() -> None:
    layout, chance = experts(), random.Random(3)
    prediction = Prediction(layout, knobs=KNOBS)
    for _ in range(200):
        offset = chance.randrange(layout.size - 4 * MIB) // 4096 * 4096
        for part in range(0, 4 * MIB, 128 * KIB):
            prediction.read(offset + part, 128 * KIB, limit_bytes=64 * MIB)
    assert prediction.is_off
    assert prediction.explain()["off"] != ""
    assert prediction.unread_bytes < 64 * MIB
    assert prediction.read(0, 128 * KIB) == []
    assert prediction.learned() is None


def test_random_members_of_a_large_file_turn_it_off() -> None:
    layout, chance = experts(), random.Random(5)
    prediction = Prediction(layout, knobs=KNOBS)
    for index in chance.sample(range(4000), 100):
        prediction.read(layout.offsets[index], MIB, limit_bytes=64 * MIB)
    assert prediction.is_off
    assert prediction.unread_bytes < 64 * MIB


def test_random_pages_predict_nothing() -> None:
    layout, chance = experts(), random.Random(7)
    prediction = Prediction(layout, knobs=KNOBS)
    for _ in range(1000):
        assert prediction.read(chance.randrange(layout.size) // 4096 * 4096 + 8192, 4096) == []
    assert prediction.explain()["wanted_bytes"] == 0


def test_scattered_reads_turn_it_off_before_their_books_grow() -> None:
    layout = experts()
    prediction = Prediction(layout, knobs=KNOBS)
    for index in range(50_002):
        prediction.read(8192 + 16384 * index, 4096)
    assert prediction.explain()["off"] == "the reads are scattered"


def test_readers_of_the_first_half_of_each_member_turn_it_off() -> None:
    layout = experts()
    prediction = Prediction(layout, knobs=KNOBS)
    for member in layout:
        for part in range(0, member.length // 2, 128 * KIB):
            prediction.read(member.offset + part, 128 * KIB, limit_bytes=16 * MIB)
        if prediction.is_off:
            break
    assert prediction.is_off
    assert "not read when they were due" in prediction.explain()["off"]


def test_sixteen_threads_are_no_random_access() -> None:
    layout = experts()
    prediction = Prediction(layout, knobs=KNOBS)
    present = Spans()
    misses = 0
    for step in range(100):
        for thread in range(16):
            member = layout[250 * thread + step]
            for offset in range(member.offset, member.end, 128 * KIB):
                misses += bool(present.gaps(offset, offset + 128 * KIB))
                present.add(offset, offset + 128 * KIB)
                for start, size in prediction.read(offset, 128 * KIB):
                    present.add(start, start + size)
    assert not prediction.is_off
    assert misses < 16 * 10


@pytest.mark.parametrize(("is_along", "is_laid_out_anew"), [(False, True), (True, False)])
def test_what_comes_next_is_not_laid_out_anew_for_the_last_of_many_members_of_one_read(
    is_along: bool, is_laid_out_anew: bool
) -> None:
    """Further from the first one than a predecessor is looked for; of 10**4 members the queue began anew with each read."""
    follow = Follow(Patterns(experts()))
    for member in range(4):
        follow.observe(member, {0}, jumped=False, is_first=False)
    assert follow.observe(40, {0}, jumped=False, is_first=False, is_along=is_along) is is_laid_out_anew


def test_small_members_of_which_a_read_has_many_are_fetched_far_ahead() -> None:
    layout = build("safetensors", 8192 + 48 * MIB, (0, 8192), [(f"{at}", 8192 + at * 2048, 2048) for at in range(24 * 1024)])
    prediction = Prediction(layout, knobs=KNOBS)
    for offset in range(8192, 16 * MIB, 64 * KIB):
        prediction.read(offset, 64 * KIB)
    assert prediction.outstanding_bytes > 24 * MIB


# Evidence


def seen(reads: list[tuple[int, int]]) -> list[str]:
    """Return the members of a small layout that the reads show to be wanted."""
    members = [("a", 8192, MIB), ("b", 8192 + MIB, MIB), ("s", 8192 + 2 * MIB, 3000), ("c", 8192 + 2 * MIB + 3000, MIB)]
    layout = build("safetensors", 8192 + 3 * MIB + 3000, (0, 8192), members)
    evidence = Evidence(layout, around_bytes=128 * KIB, ahead_bytes=512 * KIB)
    return [layout.names[member] for offset, length in reads for member in evidence.read(offset, offset + length).wanted]


B = 8192 + MIB


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        pytest.param([(0, 128 * KIB)], [], id="what the header's read spills"),
        pytest.param([(B - 128 * KIB, 256 * KIB)], ["b"], id="read-around of a head"),
        pytest.param([(B - 64 * KIB, 192 * KIB)], ["b"], id="read-around whose begin was there"),
        pytest.param([(B, 128 * KIB)], ["b"], id="a read that begins at a head"),
        pytest.param([(B - 256 * KIB, 256 * KIB)], [], id="a read that ends at a head"),
        pytest.param([(B + 128 * KIB, 256 * KIB)], [], id="a read in the middle"),
        pytest.param([(B + 256 * KIB, 768 * KIB)], ["b"], id="more than half, from the middle"),
        pytest.param([(B, MIB), (B + MIB, 256 * KIB)], ["b"], id="what a sequential read spills"),
        pytest.param([(B - MIB, MIB), (B, 512 * KIB)], ["a"], id="as far as the kernel reads ahead"),
        pytest.param([(B - MIB, MIB), (B, 516 * KIB)], ["a", "b"], id="one page beyond what the kernel reads ahead"),
        pytest.param([(8192 + 2 * MIB, 4096)], ["s"], id="exactly the page of a small one"),
        pytest.param([(8192 + 2 * MIB, 3000)], ["s"], id="exactly a small one"),
        pytest.param([(8192 + 2 * MIB - 128 * KIB, 256 * KIB)], ["c"], id="a fault in the page that two members share"),
    ],
)
def test_reads_show_what_is_wanted(reads: list[tuple[int, int]], expected: list[str]) -> None:
    assert seen(reads) == expected


# The window


def test_what_is_outstanding_stays_within_the_limit_and_moves_on_with_the_reads() -> None:
    layout = experts(200)
    prediction = Prediction(layout, knobs=KNOBS)
    handed = 0
    for member in layout:
        for offset in range(member.offset, member.end, 128 * KIB):
            handed += sum(size for _, size in prediction.read(offset, 128 * KIB, limit_bytes=8 * MIB))
            assert prediction.outstanding_bytes <= 8 * MIB
    assert handed > 180 * MIB
    assert prediction.outstanding_bytes == 0


def test_what_the_line_takes_is_handed_out_to_the_end_of_a_member_and_the_rest_when_it_takes_more() -> None:
    layout = experts(10)
    members = [(member.offset, member.length) for member in layout]
    prediction = Prediction(layout, knobs=KNOBS)
    assert prediction.read(*members[0], limit_bytes=1 << 40, room_bytes=members[1][1] + 1) == members[1:3]
    assert prediction.more(1 << 40, 0) == []
    assert not prediction.is_drained
    assert prediction.more(1 << 40, 1) == members[3:4]
    assert prediction.more(1 << 40) == members[4:]
    assert prediction.is_drained


def test_where_the_order_is_known_all_of_it_is_handed_out_whatever_the_line_takes() -> None:
    layout = experts(10)
    prediction = Prediction(layout, knobs=KNOBS, whole=True)
    assert prediction.read(0, 8, room_bytes=1) == [(member.offset, member.length) for member in layout]


def test_what_turns_out_to_be_wanted_goes_before_what_the_line_has_not_taken() -> None:
    layout = checkpoint()
    prediction = Prediction(layout, knobs=KNOBS)
    for name in "koqv":
        member = next(each for each in layout if each.name == f"model.layers.0.attn.{name}")
        prediction.read(member.offset, member.length, room_bytes=0)
    found = [covered(layout, part).rpartition(".attn.")[0] for part in prediction.more(1 << 30, 12 * MIB)]
    assert list(dict.fromkeys(found)) == ["model.layers.1", "model.layers.10", "model.layers.11"]


def test_a_dcp_load_is_followed_in_the_order_of_names_from_the_first_read() -> None:
    names_of = [f"layers.{layer}.{name}" for layer in range(24) for name in ("q", "up")]
    layout = build("dcp", 48 * MIB, (0, 0), [(name, place * MIB, MIB) for place, name in enumerate(names_of)])
    prediction = Prediction(layout, knobs=KNOBS)
    found = prediction.read(0, MIB) + prediction.read(MIB, MIB)
    assert [covered(layout, part) for part in found if part[1] >= MIB // 2][:4] == [
        *("layers.1.q", "layers.10.q", "layers.11.q", "layers.12.q"),
    ]


def test_what_spills_beyond_the_ends_of_a_dcp_file_is_not_taken_for_the_order_of_the_file() -> None:
    names_of = [f"layers.{layer}.{name}" for layer in range(24) for name in ("up", "q", "o", "down")]
    layout = build("dcp", 96 * MIB, (0, 0), [(name, place * MIB, MIB) for place, name in enumerate(names_of)])
    prediction = Prediction(layout, knobs=KNOBS)
    for name in sorted(names_of)[:40]:  # as torch does: the end first, beyond which the kernel reads
        start = names_of.index(name) * MIB
        prediction.read(start + MIB - 64 * KIB, 64 * KIB + 512 * KIB)
        prediction.read(start, MIB - 64 * KIB)
        assert prediction.explain()["order"] == "name"


def test_along_with_a_member_without_a_layer_come_those_behind_it_that_are_cheap_next_to_it() -> None:
    layout = checkpoint()
    members = {member.name: member for member in layout}
    found = Prediction(layout, knobs=KNOBS).read(members["embed"].offset, 2 * MIB)
    beyond = [(offset, length) for offset, length in found if offset >= members["embed"].end]
    assert covered(layout, beyond[0]) == "model.layers.0.attn.k"
    assert 0 < sum(length for _, length in beyond) <= members["embed"].length // 10


def test_a_member_at_the_begin_of_a_file_is_wanted_at_its_first_read() -> None:
    layout = build("dcp", 49 * MIB, (0, 0), [("embed", 0, 48 * MIB), ("norm", 48 * MIB, MIB)])
    evidence = Evidence(layout, around_bytes=READ_AHEAD, ahead_bytes=5 * READ_AHEAD)
    assert evidence.read(0, 128 * KIB).wanted == [0]


def test_a_member_larger_than_the_limit_is_handed_out_in_parts() -> None:
    layout = build("safetensors", 64 * MIB + 4096, (0, 8), [("a", 4096, 64 * MIB)])
    prediction = Prediction(layout, knobs=KNOBS, whole=True)
    first = prediction.read(0, 4096, limit_bytes=16 * MIB)
    assert first == [(4096, 16 * MIB)]
    assert prediction.read(4096, MIB, limit_bytes=16 * MIB) == []
    assert prediction.read(4096 + MIB, MIB, limit_bytes=16 * MIB) == [(4096 + 16 * MIB, 2 * MIB)]


def test_whole_hands_out_everything_in_the_order_of_offsets() -> None:
    layout = experts(10)
    prediction = Prediction(layout, knobs=KNOBS, whole=True)
    assert prediction.read(0, 8) == [(member.offset, member.length) for member in layout]


def test_whole_follows_the_learned_order_first() -> None:
    layout = build("safetensors", 308, (0, 8), [("a", 8, 100), ("b", 108, 100), ("c", 208, 100)])
    prediction = Prediction(layout, learned=Learned("safetensors", ("c", "a"), Order.PATTERN), whole=True)
    assert prediction.read(0, 8) == [(208, 100), (8, 100), (108, 100)]


def test_what_was_learned_of_another_format_is_ignored() -> None:
    layout = build("safetensors", 108, (0, 8), [("a", 8, 100)])
    assert Prediction(layout, learned=Learned("dcp", ("a",))).read(0, 8) == []


def test_pushed_bytes_make_room_and_count_as_read() -> None:
    layout = experts(10)
    prediction = Prediction(layout, knobs=KNOBS, whole=True)
    assert len(prediction.read(0, 8, limit_bytes=2 * MIB)) == 2
    prediction.pushed(8, 2 * MIB)
    assert prediction.outstanding_bytes == 0
    assert prediction.unread_bytes == 0
    assert len(prediction.read(0, 8, limit_bytes=2 * MIB)) == 2


def test_reads_outside_the_file_say_nothing() -> None:
    prediction = Prediction(experts(10), knobs=KNOBS)
    assert prediction.read(10 * MIB + 8, 4096) == []
    assert prediction.read(0, 0) == []


def test_a_layout_without_members_predicts_nothing() -> None:
    prediction = Prediction(build("safetensors", 10, (0, 10), []), whole=True)
    assert prediction.read(0, 10) == []
    assert prediction.learned() is None
    assert prediction.order() == []


@st.composite
def scenes(draw: st.DrawFn) -> tuple[Layout, Learned | None, bool, list[tuple[int, int, int]]]:
    """Return a layout, what was learned, whether all is wanted, and reads with their limits."""
    items = []
    at = draw(st.integers(0, 5000))
    header = (0, at)
    for index in range(draw(st.integers(0, 30))):
        length = draw(st.sampled_from([1, 100, 3000, 4096, 50_000, 300_000, 900_000]))
        at += draw(st.sampled_from([0, 0, 0, 17, 4096]))
        items.append((draw(st.sampled_from([f"l.{index}.a", f"l.{index}.b.c", f"x{index}"])), at, length))
        at += length
    layout = build("safetensors", at + 1, header, items)
    patterns = draw(st.permutations(["l.*.a", "l.*.b.c", "nothing"]))
    learned = Learned(
        "safetensors",
        tuple(patterns),
        draw(st.sampled_from(Order)),
        draw(st.booleans()),
        0.5,
        draw(st.sampled_from([0, 70_000])),
        draw(st.sampled_from([0, 300_000])),
    )
    reads = draw(
        st.lists(
            st.tuples(st.integers(0, layout.size), st.integers(0, 400_000), st.sampled_from([0, 10_000, 5 * MIB])),
            max_size=40,
        )
    )
    return layout, learned if draw(st.booleans()) else None, draw(st.booleans()), reads


@given(scenes())
@settings(max_examples=200, deadline=None)
def test_whatever_is_read_nothing_is_handed_out_twice_or_outside_the_file(
    scene: tuple[Layout, Learned | None, bool, list[tuple[int, int, int]]],
) -> None:
    layout, learned, whole, reads = scene
    prediction = Prediction(layout, learned=learned, whole=whole, knobs=KNOBS)
    asked, read = Spans(), Spans()
    for offset, length, limit in reads:
        before = prediction.outstanding_bytes
        read.add(offset, min(offset + length, layout.size))
        for start, size in prediction.read(offset, length, limit_bytes=limit):
            assert size > 0
            assert 0 <= start < start + size <= layout.size
            assert asked.measure(start, start + size) == 0
            asked.add(start, start + size)
        assert prediction.outstanding_bytes <= max(limit, before)
        assert 0 <= prediction.unread_bytes <= prediction.predicted_bytes <= asked.total
        prediction.explain()
    found = prediction.learned()
    assert found is None or set(found.patterns) - set(learned.patterns if learned else ()) <= set(prediction.patterns.names)


def test_members_know_their_end() -> None:
    assert Member("a", 10, 5).end == 15
