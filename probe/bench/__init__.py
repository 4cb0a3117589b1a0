"""``firstdiff bench``: what recording and comparing cost, as ratios between contenders that ran side by side.

Every contender of a benchmark does the same work in the same call, in turns, so that a machine that is slow or busy
slows all of them: seconds differ from machine to machine, ratios much less.

``probe.bench.suite`` is the command's. Nothing is imported here: the processes that measure hold only what they need.
"""

from __future__ import annotations
