"""The disk that checks take: what one will need, what is kept of it after the verdict, and what is removed later."""

from __future__ import annotations

__all__: list[str] = []
