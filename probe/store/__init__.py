"""The dump folder: where everything lies in it, how it is written and read back.

Nothing here imports torch; reading msprobe's layer dumps needs it only when such a dump is opened.
"""

from __future__ import annotations
