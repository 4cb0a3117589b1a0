"""What people read, in English or Chinese: sentences that keep what they were made of, and one catalogue of them.

Code makes a sentence with ``tell`` from an English template and values. It is its English wherever text is wanted, so
that what programs read (``verdict.json``, logs) is English whatever people read. ``said`` puts it into the language of
people at the end. Standard library only.
"""

from __future__ import annotations

from probe.language.catalogue import CATALOGUE, catalogue, recall, said, say
from probe.language.choice import LANGUAGES, VARIABLE, Language, chosen_language, language, speaking
from probe.language.text import Joined, Text, join, tell
from probe.language.words import counted, status_word, verdict_word

__all__ = [
    "CATALOGUE",
    "LANGUAGES",
    "VARIABLE",
    "Joined",
    "Language",
    "Text",
    "catalogue",
    "chosen_language",
    "counted",
    "join",
    "language",
    "recall",
    "said",
    "say",
    "speaking",
    "status_word",
    "tell",
    "verdict_word",
]
