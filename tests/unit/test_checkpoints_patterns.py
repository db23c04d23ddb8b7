"""Names by what they have in common, the orders of a layout, and what a load teaches."""

from __future__ import annotations

import msgspec
import pytest

from vfs.checkpoints.layout import Layout, build
from vfs.checkpoints.learned import Learned
from vfs.checkpoints.patterns import Order, Patterns, block, generalise


def layout(names: list[str]) -> Layout:
    """Return a layout whose members lie in this order, ten bytes each."""
    return build("safetensors", 10 * len(names), (0, 0), [(name, 10 * at, 10) for at, name in enumerate(names)])


def in_order(found: Layout, members: list[int]) -> list[str]:
    return [found.names[member] for member in members]


@pytest.mark.parametrize(
    ("name", "pattern", "numbers"),
    [
        ("model.layers.12.attn.q.bias", "model.layers.*.attn.q.bias", (12,)),
        ("embed", "embed", ()),
        ("experts.3.w1", "experts.*.w1", (3,)),
        ("block_7/conv-2/fc1", "block_*/conv-*/fc1", (7, 2)),
        ("w@768,0", "w@*,*", (768, 0)),
        ("000123.jpg", "*.jpg", (123,)),
        ("h100.x", "h100.x", ()),
        ("9" * 19, "9" * 19, ()),
        ("", "", ()),
    ],
)
def test_numbers_between_separators_become_wildcards(name: str, pattern: str, numbers: tuple[int, ...]) -> None:
    assert generalise(name) == (pattern, numbers)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("model.layers.*.attn.q", "model.layers.*.attn"),
        ("model.layers.*.attn.q.bias", "model.layers.*.attn"),
        ("model.layers.*.self_attn.q_proj.weight", "model.layers.*.self_attn"),
        ("model.layers.*.mlp.experts.*.w1.weight", "model.layers.*.mlp.experts.*.w1"),
        ("embed", ""),
        ("data/*", ""),
    ],
)
def test_relatives_share_the_component_after_the_last_wildcard(pattern: str, expected: str) -> None:
    assert block(pattern) == expected


def test_orders_of_a_layout() -> None:
    found = layout(["l.10.a", "l.2.a", "l.2.b", "l.10.b"])
    patterns = Patterns(found)
    assert in_order(found, list(patterns.sequence(Order.OFFSET)[0])) == ["l.10.a", "l.2.a", "l.2.b", "l.10.b"]
    assert in_order(found, list(patterns.sequence(Order.NAME)[0])) == ["l.10.a", "l.10.b", "l.2.a", "l.2.b"]
    assert in_order(found, list(patterns.sequence(Order.LAYER)[0])) == ["l.2.a", "l.2.b", "l.10.a", "l.10.b"]
    assert in_order(found, list(patterns.sequence(Order.PATTERN)[0])) == ["l.2.a", "l.10.a", "l.2.b", "l.10.b"]
    assert list(patterns.sequence(Order.LAYER)[1]) == [2, 0, 1, 3]


def test_what_was_learned_orders_a_layout_with_more_layers() -> None:
    learned = Learned("safetensors", ("l.*.v", "l.*.q"), Order.LAYER)
    found = layout(["l.0.q", "l.0.v", "l.0.mlp", "l.1.q", "l.1.v", "l.1.mlp", "l.2.q", "l.2.v"])
    assert in_order(found, learned.apply(Patterns(found))) == ["l.0.v", "l.0.q", "l.1.v", "l.1.q", "l.2.v", "l.2.q"]


def test_what_was_learned_backwards_keeps_the_order_inside_a_layer() -> None:
    learned = Learned("safetensors", ("l.*.v", "l.*.q"), Order.LAYER, backwards=True)
    found = layout(["l.0.q", "l.0.v", "l.1.q", "l.1.v"])
    assert in_order(found, learned.apply(Patterns(found))) == ["l.1.v", "l.1.q", "l.0.v", "l.0.q"]


def test_what_was_learned_of_other_names_says_nothing() -> None:
    assert Learned("safetensors", ("x",)).apply(Patterns(layout(["a", "b"]))) == []


def test_patterns_of_other_shards_are_kept() -> None:
    earlier = Learned("safetensors", ("embed", "l.*.a", "l.*.b"))
    now = Learned("safetensors", ("l.*.a",)).since(earlier, Patterns(layout(["l.0.a", "l.0.b"])))
    assert now.patterns == ("l.*.a", "embed")


def test_what_was_learned_survives_storing() -> None:
    learned = Learned("dcp", ("a",), Order.PATTERN, True, 0.5, 4096, 8192)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(learned), type=Learned) == learned
