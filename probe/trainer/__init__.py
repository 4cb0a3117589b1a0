"""The integrated trainer: GRPO with actor, rollout, reference and rule reward on one device.

Started as ``python -m probe.trainer --config FILE`` on a MindSpeed-RL style file. It is real, small, and reproducible
when asked to be: the thing that Firstdiff is shown on, and a model of how a trainer calls the probe.
"""

from __future__ import annotations
