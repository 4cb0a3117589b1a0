"""The flow that removes old checks, as a deployment runs it: in a process of its own, against a real server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from probe.config import load_profile, to_yaml
from probe.history import begin

CODE = """
import json, sys
from flows import settings
settings.prepare(verbose=False)
from flows.prune import prune_checks
print(json.dumps(prune_checks(checks=sys.argv[1], max_checks=1)))
"""


def _asked(api: str, path: str, content: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"{api}/{path}", json.dumps(content).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def test_the_flow_says_what_it_removed(prefect_api: str, root: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("trainer: {kind: command, command: [python, train.py]}\n")
    profile = load_profile(str(tmp_path / "mine.yaml"))
    for name in ("one", "two"):
        folder = tmp_path / "checks" / name
        folder.mkdir(parents=True)
        (folder / "profile.yaml").write_text(to_yaml(profile))
        begin(folder, str(tmp_path / "mine.yaml"), profile)
        (folder / "verdict.json").write_text('{"format": 1, "verdict": "identical"}')
    done = subprocess.run(
        [sys.executable, "-c", CODE, tmp_path / "checks"],
        env={**os.environ, "PREFECT_API_URL": prefect_api, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["removed"]) == 1 and found["removed"][0]["reason"] == "more than 1 checks"
    assert len(found["kept"]) == 1 and found["kept"][0]["reason"] == "within the limits"
    removed, kept = found["removed"][0]["folder"], found["kept"][0]["folder"]
    (artifact,) = _asked(prefect_api, "artifacts/filter", {"artifacts": {"key": {"any_": ["prune"]}}})
    wanted = {"flow_run_id": {"any_": [artifact["flow_run_id"]]}}
    deadline, logged = time.monotonic() + 20, ""
    while "kept" not in logged and time.monotonic() < deadline:
        logged = "\n".join(line["message"] for line in _asked(prefect_api, "logs/filter", {"logs": wanted}))
    for text in (artifact["data"], logged):
        assert f"removed {removed} (identical" in text and "): more than 1 checks" in text
        assert f"kept {kept}: within the limits" in text
    assert len([path for path in (tmp_path / "checks").iterdir() if path.is_dir()]) == 1
