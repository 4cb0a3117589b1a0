"""The disk that checks take: what one will need, what is kept of it after the verdict, and what is removed later."""

from __future__ import annotations

from probe.disk.prune import Pruned, prune, pruned_lines
from probe.disk.room import Need, estimate, require_room
from probe.disk.settle import compress, expire, keep_digests, settle
from probe.disk.sizes import folder_size, parse_size, show_size

__all__ = [
    "Need",
    "Pruned",
    "compress",
    "estimate",
    "expire",
    "folder_size",
    "keep_digests",
    "parse_size",
    "prune",
    "pruned_lines",
    "require_room",
    "settle",
    "show_size",
]
