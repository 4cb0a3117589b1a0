"""Comparing two dump folders that exist, as a flow that a deployment runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run

from flows.names import now, plain
from flows.page import show, warning
from flows.spoken import AS_ON_WORKER, Lang, spoken_by
from flows.states import state_of, state_of_error
from probe.config.request import OptionalText
from probe.errors import ConfigError, FirstdiffError
from probe.language import said, speaking, tell
from tasks.compare import compare_two_dumps
from tasks.runners import require_runner


def comparison_name() -> str:
    """The name of the flow run: both folders and the date."""
    names = [plain(_label(Path(str(flow_run.parameters.get(name, ""))))) for name in ("dump_a", "dump_b")]
    return f"{' against '.join(names)} · {now()}"


@flow(
    name="compare",
    flow_run_name=comparison_name,
    validate_parameters=False,
    persist_result=False,
    log_prints=False,
)
def compare(
    dump_a: str,
    dump_b: str,
    allow_different: list[str] = [],  # noqa: B006  (Prefect's form shows it; nothing changes it)
    out: OptionalText = "",
    lang: Lang = AS_ON_WORKER,
) -> State[Any]:
    """Compares what exists: two dumps, ours, msprobe's or a trainer's, or two checkpoints.

    Args:
        dump_a: A dump folder (msprobe_dump) or a checkpoint on the worker's machine.
        dump_b: Another.
        allow_different: Keys of the experiment, or sections of them, that are meant to differ.
        out: Folder for verdict, report and tables, new or empty. Empty writes none.
        lang: Language of the report and of what this page shows, en or zh.

    Returns:
        A final state by the name of the verdict.
    """
    try:
        spoken = spoken_by(lang)
    except FirstdiffError as error:
        return state_of_error(error)
    with speaking(spoken):
        return _compared(dump_a, dump_b, allow_different, out)


def _compared(dump_a: str, dump_b: str, allow_different: list[str], out: str | None) -> State[Any]:
    try:
        for name, value in (("dump_a", dump_a), ("dump_b", dump_b)):
            if not isinstance(value, str) or not value.strip():
                raise ConfigError("parameters", name, f"must be the path of a folder, not {value!r:.60}")
        if not isinstance(allow_different, list) or not all(isinstance(key, str) for key in allow_different):
            raise ConfigError("parameters", "allow_different", f"must be a list of keys, not {allow_different!r:.60}")
        require_runner()
        folder = Path(out).absolute() if out else None
        document = compare_two_dumps(Path(dump_a), Path(dump_b), folder, allow_different)
    except (FirstdiffError, OSError) as error:
        return state_of_error(error, out or "")
    with warning("the page does not show the comparison"):
        title = said(tell("{a} against {b}", a=_label(Path(dump_a)), b=_label(Path(dump_b))))
        show("compare", title, document, folder)
    return state_of(document)


def _label(dump: Path) -> str:
    """A dump's name: its check and run, as ``demo-20260101-120000/a``."""
    parts = dump.parts[:-1] if dump.name == "msprobe_dump" else dump.parts
    return "/".join(parts[-2:])
