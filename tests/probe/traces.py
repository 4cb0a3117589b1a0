"""Traces to test on: a small training's events, as a collector would write them, and dumps that hold them."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from probe.store.digest import hasher
from probe.store.writer import DumpWriter

Event = dict[str, Any]


def digest(text: object) -> str:
    """A digest of anything that has a name."""
    return hashlib.md5(str(text).encode()).hexdigest()


def item(path: str, content: object, shape: tuple[int, ...] = (2, 4), dtype: str = "float32") -> list[Any]:
    return [path, dtype, list(shape), digest(content)]


class Recorder:
    """Records events as a trainer's run makes them, with calls counted as the collector counts them."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.step = 0
        self.stage: str | None = None
        self.micro_step = 0
        self._calls: Counter[tuple[str, str]] = Counter()

    def add(self, kind: str, name: str, *items: list[Any], call: int | None = None, **more: Any) -> Event:
        event = {
            "step": self.step, "stage": self.stage, "micro_step": self.micro_step, "kind": kind, "name": name,
            "call": call, "items": list(items), **more,
        }  # fmt: skip
        self.events.append(event)
        return event

    def enter(self, stage: str, micro_step: int = 0) -> None:
        self.stage, self.micro_step = stage, micro_step
        self._calls.clear()
        self.add("stage_start", stage)

    def leave(self) -> None:
        self.add("stage_end", str(self.stage))
        self.stage, self.micro_step = None, 0

    def of_module(self, kind: str, name: str, content: object, **more: Any) -> None:
        call = self._calls[kind, name]
        self._calls[kind, name] += 1
        path = "args.0" if kind == "forward_input" else "out" if kind == "forward_output" else "grad.0"
        self.add(kind, name, item(path, (kind, name, content)), call=call, module="Linear", **more)

    def forward(self, role: str, content: object, layers: int = 2, **more: Any) -> None:
        """A model of layers with two projections each, entered and left."""
        self.of_module("forward_input", role, content, **more)
        for layer in range(layers):
            inner = f"{role}.layers.{layer}"
            self.of_module("forward_input", inner, content, **more)
            for name in ("up", "down"):
                self.of_module("forward_input", f"{inner}.{name}", content, **more)
                self.of_module("forward_output", f"{inner}.{name}", content, **more)
            self.of_module("forward_output", inner, content, **more)
        self.of_module("forward_output", role, content, **more)

    def backward(self, role: str, content: object, layers: int = 2) -> None:
        """Its backward: the root's inputs are integers, which get no gradient."""
        self.of_module("grad_output", role, content)
        for layer in reversed(range(layers)):
            inner = f"{role}.layers.{layer}"
            self.of_module("grad_output", inner, content)
            for name in ("down", "up"):
                self.of_module("grad_output", f"{inner}.{name}", content)
                weight = f"{inner}.{name}.weight"
                self.add("param_grad", weight, item("grad", ("param_grad", weight, content)))
                self.of_module("grad_input", f"{inner}.{name}", content)
            self.of_module("grad_input", inner, content)

    def state(self, role: str, version: object, layers: int = 2) -> None:
        names = [f"layers.{layer}.{name}.weight" for layer in range(layers) for name in ("up", "down")]
        self.add("weights", role, *[item(name, ("weights", name, version)) for name in names])
        self.add("buffers", role, item("rotary.inv_freq", "constant", (8,)))
        self.add("rng", "torch.cpu", item("state", ("rng", self.step, self.stage), (5056,), "uint8"))

    def save(self, tag: str, rows: list[object], path: str = "", with_rows: bool = True) -> None:
        found = {"rows": {path: [digest(row) for row in rows]}} if with_rows else {}
        self.add("data", tag, item(path, rows, (len(rows), 4), "int64"), call=0, **found)


def training(steps: int = 3, tokens: int = 3, rank: int = 0) -> list[Event]:
    """The events of one rank in a small GRPO training: deterministic, with every kind but ``not_observed``."""
    run = Recorder()
    for step in range(steps):
        run.step = step
        run.save("prompts", [(rank, step, row) for row in range(4)])
        run.enter("actor_generate_sequences")
        run.state("actor", step)
        for token in range(tokens):
            run.forward("actor", (rank, step, "generate", token))
        run.save("responses", [(rank, step, "response", row) for row in range(4)])
        run.leave()
        run.save("rewards", [(rank, step, "reward", row) for row in range(4)], with_rows=False)
        run.enter("reference_compute_log_prob")
        run.state("reference", "frozen")
        run.forward("reference", (rank, step))
        run.save("ref_log_prob", [(rank, step, "ref", row) for row in range(4)])
        run.leave()
        run.save("advantages", [(rank, step, "advantage", row) for row in range(4)])
        for micro_step in range(2):
            run.enter("actor_update", micro_step)
            run.state("actor", step)
            run.forward("actor", (rank, step, micro_step))
            run.save("log_prob", [(rank, step, micro_step, "log_prob")])
            run.save("loss", [(rank, step, micro_step, "loss")])
            run.backward("actor", (rank, step, micro_step))
            if micro_step == 1:
                weights = [f"layers.{layer}.{name}.weight" for layer in range(2) for name in ("up", "down")]
                run.add("param_grad", f"actor.{weights[0]}", item("grad", ("reduced", step)), note="reduced")
                for what in ("gradients", "grad_norm", "clipped", "state", "weights"):
                    names = [""] if what == "grad_norm" else weights
                    made = {name: (what, name, step) for name in names}
                    if what == "gradients":  # as the backward, and the reduction, left them
                        made = {name: ("param_grad", f"actor.{name}", (rank, step, micro_step)) for name in names}
                        made[weights[0]] = ("reduced", step)
                    run.add("optimizer", f"actor:{what}", *[item(name, content) for name, content in made.items()])
            run.leave()
        run.save("grad_norm", [(step, "norm")])
    return run.events


def trace_bytes(events: Iterable[Event]) -> bytes:
    """The file of a trace: positions are put in here."""
    lines = [
        json.dumps({**event, "i": position}, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        for position, event in enumerate(events)
    ]
    return "".join(f"{line}\n" for line in lines).encode()


def write_traces(
    folder: Path,
    ranks: dict[int, list[Event]],
    complete: bool = True,
    algorithms: tuple[str, ...] | None = ("xxh3-128",),
    save: Callable[[DumpWriter], None] | None = None,
) -> Path:
    """A dump folder with traces.

    Args:
        folder: Made here.
        ranks: The events of each rank.
        complete: Whether the run ended as it should.
        algorithms: What the manifest says of the digests in the events; None leaves it out.
        save: Writes key data.
    """
    folder.mkdir(parents=True)
    writer = DumpWriter(folder, folder.name, keep_values=True)
    if save is not None:
        save(writer)
    writer.finish_step(max((event["step"] for events in ranks.values() for event in events), default=0))
    writer.close(complete)
    (folder / "trace").mkdir()
    for rank, events in ranks.items():
        (folder / "trace" / f"rank{rank}.jsonl").write_bytes(trace_bytes(events))
    seal(folder, sorted(ranks), algorithms)
    return folder


def seal(folder: Path, ranks: Iterable[int], algorithms: tuple[str, ...] | None = ("xxh3-128",)) -> None:
    """Puts into the manifest what the trace files are now."""
    said: dict[str, Any] = {}
    for rank in ranks:
        content = (folder / "trace" / f"rank{rank}.jsonl").read_bytes()
        taken = hasher()
        taken.update(content)
        said[str(rank)] = {"digest": taken.hexdigest(), "events": content.count(b"\n")}
        if algorithms is not None:
            said[str(rank)]["algorithms"] = list(algorithms)
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "traces": said}))
