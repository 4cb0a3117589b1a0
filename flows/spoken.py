"""Which language the artifacts and states of a flow run speak."""

from __future__ import annotations

from typing import Literal

from probe.config.request import SOURCE
from probe.language import Language, chosen_language

AS_ON_WORKER: Literal["as on the worker"] = "as on the worker"
"""The choice that leaves it to the worker: its ``FIRSTDIFF_LANG``, else its locale."""
Lang = Literal["as on the worker", "en", "zh"]


def spoken_by(lang: str | None) -> Language:
    """The language that a flow's parameter asks for.

    Args:
        lang: The parameter.

    Raises:
        UsageError: There is no such language.
    """
    return chosen_language(None if lang == AS_ON_WORKER else lang, source=f"{SOURCE}: lang")
