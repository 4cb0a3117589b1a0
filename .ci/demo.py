"""``make demo``: runs the check of profiles/demo.yaml and makes sure that it found what is planted there.

Exit status 0 when it did; the last line names verdict, step, stage, module and report.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROFILE = Path(__file__).resolve().parent.parent / "profiles" / "demo.yaml"


def main() -> int:
    """Runs the check and compares its answer with the profile's fault."""
    from probe.config import load_profile

    fault = load_profile(str(PROFILE)).faults[0]
    planted = f"{fault.role}.{fault.module}"
    check = subprocess.run(
        [sys.executable, "-m", "flows.cli", "check", str(PROFILE), "--json"], stdout=subprocess.PIPE, text=True
    )
    try:
        verdict = json.loads(check.stdout)
        found = (verdict["verdict"], verdict["first"]["step"], verdict["cause"]["name"])
    except (ValueError, KeyError, TypeError):
        found = None
    if check.returncode == 1 and found == ("divergent", fault.step, planted):
        return 0
    sys.stderr.write(f"the demo did not find what is planted: {planted} at step {fault.step} (it said {found})\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
