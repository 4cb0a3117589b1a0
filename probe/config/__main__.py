"""``python -m probe.config``: writes the profiles' JSON schema beside them."""

from __future__ import annotations

import json

from probe.config.loading import SHIPPED_PROFILES, profile_schema

if __name__ == "__main__":
    file = SHIPPED_PROFILES / "profile.schema.json"
    file.write_text(json.dumps(profile_schema(), indent=2) + "\n", encoding="utf-8")
