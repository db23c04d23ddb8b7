"""What the reads of a file say about its members."""

from __future__ import annotations

from vfs.checkpoints.layout import build
from vfs.extents.evidence import Evidence

KIB = 1024
WINDOW = 32 * KIB
START = 50_073_640
SIZE = 1_179_648
NAMES = ("attn.k", "attn.o", "attn.q", "attn.v", "mlp.down")


def test_a_copy_that_touches_both_ends_first_is_not_taken_for_its_neighbour() -> None:
    """Recorded from safetensors 0.8 with numpy on a mount with 32 KiB of read-ahead: head, tail, then the middle."""
    items = [(name, START + index * SIZE, SIZE if name != "mlp.down" else 4 * SIZE) for index, name in enumerate(NAMES)]
    layout = build("safetensors", START + 8 * SIZE, (0, 4096), items)
    evidence = Evidence(layout, around_bytes=WINDOW, ahead_bytes=5 * WINDOW)
    found: list[str] = []
    for index in range(4):  # the attention's tensors in turn; the one after them is never asked for
        head, tail = items[index][1], items[index][1] + SIZE - 1
        for fault in (head, tail):
            page = fault // 4096 * 4096
            seen = evidence.read(page - WINDOW // 2, page + WINDOW // 2)
            found += [NAMES[member] for member in seen.wanted]
    assert found == ["attn.k", "attn.o", "attn.q", "attn.v"]
