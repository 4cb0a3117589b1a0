"""``make automations``: installs the automations of ``automations/*.yaml`` on a server.

In these files a deployment is named ``flow/deployment`` and a block ``type/name``; here they become their ids, so that
an automation answers to our deployments only. The blocks of notifications are made from the environment:

=============================  ==================================================================
``FIRSTDIFF_NOTIFY_WEBHOOK``   an address that gets a POST of JSON
``FIRSTDIFF_NOTIFY_SLACK``     an incoming webhook of Slack
``FIRSTDIFF_NOTIFY_EMAIL``     an address for e-mail through SendGrid, with
                               ``FIRSTDIFF_SENDGRID_KEY`` and ``FIRSTDIFF_SENDGRID_FROM``
=============================  ==================================================================

Blocks that exist on the server already are used as they are. What has no block is left out, and said. Installing again
replaces what is there.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flows import settings
from flows.station import port_of
from probe.config import read_yaml
from probe.errors import FirstdiffError, InconclusiveError, UsageError

FOLDER = Path(__file__).resolve().parent.parent / "automations"
_DEPLOYMENT = "prefect.deployment."


def install(folder: Path = FOLDER) -> list[str]:
    """Installs every automation of a folder.

    Args:
        folder: The folder of ``.yaml`` files.

    Returns:
        What was done, one line each.

    Raises:
        UsageError: A deployment is not on the server, or a file or a variable is wrong.
    """
    from prefect.client.orchestration import get_client

    blocks = list(_blocks())
    with get_client(sync_client=True) as client:
        for name, block in blocks:
            block.save(name, overwrite=True)
        return [_install(client, file) for file in sorted(folder.glob("*.yaml"))]


def _installed() -> list[str]:
    import httpx

    try:
        return install()
    except httpx.TransportError as error:
        address = os.environ["PREFECT_API_URL"]
        raise InconclusiveError(f"{address}: no server answers ({error}); make serve starts one") from error


def _install(client: Any, file: Path) -> str:
    from prefect.automations import Automation
    from prefect.exceptions import ObjectNotFound

    raw = read_yaml(file)
    related = raw["trigger"]["match_related"]
    ids = []
    for name in related["prefect.resource.id"]:
        try:
            ids.append(f"{_DEPLOYMENT}{client.read_deployment_by_name(name).id}")
        except ObjectNotFound as error:
            raise UsageError(
                f"{file}: {name} is not deployed; prefect deploy --all, or make serve, does that"
            ) from error
    related["prefect.resource.id"] = ids
    for action in raw["actions"]:
        if (block := action.get("block_document_id")) is None:
            continue
        kind, _, name = block.partition("/")
        try:
            action["block_document_id"] = str(client.read_block_document_by_name(name, kind).id)
        except ObjectNotFound:
            return f"{raw['name']}: left out, there is no block {name} ({file.name} says what makes it)"
    automation = Automation.model_validate(raw)
    for old in client.read_automations_by_name(raw["name"]):
        client.delete_automation(old.id)
    automation.create()
    return f"{raw['name']}: installed"


def _blocks() -> Iterator[tuple[str, Any]]:
    """The blocks that the environment asks for."""
    from prefect.blocks.notifications import SendgridEmail, SlackWebhook
    from prefect.blocks.webhook import Webhook

    if url := _address("FIRSTDIFF_NOTIFY_WEBHOOK", "http", "https"):
        yield "firstdiff-webhook", Webhook(method="POST", url=url, headers={"Content-Type": "application/json"})
    if url := _address("FIRSTDIFF_NOTIFY_SLACK", "https"):
        yield "firstdiff-slack", SlackWebhook(url=url)
    if address := _mailbox("FIRSTDIFF_NOTIFY_EMAIL"):
        key, sender = os.environ.get("FIRSTDIFF_SENDGRID_KEY"), _mailbox("FIRSTDIFF_SENDGRID_FROM")
        if not key or not sender:
            raise UsageError("FIRSTDIFF_NOTIFY_EMAIL: needs FIRSTDIFF_SENDGRID_KEY and FIRSTDIFF_SENDGRID_FROM too")
        if not key.isascii() or not key.isprintable() or " " in key:
            raise UsageError("FIRSTDIFF_SENDGRID_KEY: must be a key of SendGrid, of printable ASCII without blanks")
        yield "firstdiff-email", SendgridEmail(api_key=key, sender_email=sender, to_emails=[address])


def _address(variable: str, *schemes: str) -> str:
    """A web address from the environment; empty where none is given. It may be a secret, and is never shown.

    Raises:
        UsageError: It is none.
    """
    text = os.environ.get(variable, "")
    try:
        parts = urlsplit(text)
        good = parts.scheme in schemes and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if text and not (good and text.isprintable() and " " not in text):
        raise UsageError(f"{variable}: must be an address such as {schemes[-1]}://host/path")
    return text


def _mailbox(variable: str) -> str:
    """An e-mail address from the environment; empty where none is given.

    Raises:
        UsageError: It is none.
    """
    text = os.environ.get(variable, "")
    if text and re.fullmatch(r"[!-?A-~]+@[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*", text) is None:
        raise UsageError(f"{variable}: must be one e-mail address, as you@example.org")
    return text


def main(arguments: list[str] | None = None) -> int:
    """``python -m flows.automations``."""
    parser = argparse.ArgumentParser(prog="python -m flows.automations", description=__doc__.partition("\n")[0])
    parser.add_argument("--port", default="4200", help="the server's port, unless PREFECT_API_URL names one")
    asked = parser.parse_args(arguments)
    settings.prepare(verbose=False)
    try:
        os.environ.setdefault("PREFECT_API_URL", f"http://127.0.0.1:{port_of(asked.port)}/api")
        for line in _installed():
            sys.stdout.write(f"{line}\n")
    except FirstdiffError as error:
        sys.stderr.write(f"firstdiff: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
