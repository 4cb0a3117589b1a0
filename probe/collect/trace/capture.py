"""Capturing one call of a module whole: what it got, what it holds, what it gave, and the gradients.

Everything is copied where the trace sees it, and written when the stage has ended. What cannot be captured is a note in
``capture.json``, and never an error of the training.
"""

from __future__ import annotations

import os
import random
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from probe.collect.trace.digests import Digests
from probe.collect.trace.events import Place
from probe.collect.trace.internals import casts, is_sharded, plain_class, without_modes
from probe.collect.trace.items import Leaf, Leaves
from probe.collect.trace.pickled import pickled
from probe.collect.trace.registry import gathered_parameters
from probe.collect.values import dtype_name, raw_bytes, to_host
from probe.errors import RecordError
from probe.store import capture as store
from probe.store import layout
from probe.store.writer import write_atomic, write_json
from probe.types import CaptureRequest, roles_of_stage

MOST_BYTES = 4 << 30
"""Bytes of tensors that are captured at most."""
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_VARIABLES = (
    *("CUBLAS_WORKSPACE_CONFIG", "HCCL_DETERMINISTIC", "LCCL_DETERMINISTIC", "ATB_MATMUL_SHUFFLE_K_ENABLE"),
    *("CLOSE_MATMUL_K_SHIFT", "PYTHONHASHSEED", "OMP_NUM_THREADS", "MKL_NUM_THREADS"),
)


class Capture:
    """Captures the first call that is the one asked for.

    Args:
        folder: The dump folder.
        request: Which call.
    """

    def __init__(self, folder: Path, request: CaptureRequest) -> None:
        self._folder = folder / layout.CAPTURE
        self._request = request
        self._place: Place | None = None
        self._elsewhere = False
        """Whether the call runs in another stage than the one whose gradients are captured."""
        self._note: str | None = "the call never came"
        self._info: dict[str, Any] = {}
        self._pickles: dict[str, bytes] = {}
        self._tensors: dict[str, torch.Tensor] = {}
        self._described: dict[str, dict[str, Any]] = {}
        self._parameters: set[str] = set()
        self._awaited: dict[str, dict[str, Any]] = {}
        """Parameters of which this rank has a part until a module inside gathers them."""
        self._bytes = 0
        self._open = True

    def enter(
        self,
        place: Place,
        step: int,
        name: str,
        call: int,
        module: torch.nn.Module,
        given: tuple[tuple[Any, ...], dict[str, Any]],
    ) -> bool:
        """A module is entered. Returns whether it is captured.

        Args:
            place: The open stage.
            step: The training step.
            name: The module's name.
            call: Number of the call.
            module: The module.
            given: Its arguments.
        """
        asked = self._request
        if not self._open or self._place is not None:
            return False
        if (name, call, step, place.rank) != (asked.name, asked.call, asked.step, asked.rank):
            return False
        if (place.stage, place.micro_step) != (asked.stage, asked.micro_step):
            if not (asked.backward and name.partition(".")[0] not in roles_of_stage(asked.stage)):
                return False
            self._elsewhere = True  # another model's backward leads through it, in that one's stage
        self._place, self._note = place, None
        grad = torch.is_grad_enabled()  # which is another thing below
        try:
            with torch.no_grad(), without_modes():
                self._take(module, given, grad)
        except Exception as error:  # noqa: BLE001  (classes of the trainer's raise anything; the training goes on)
            self._give_up(error)
        return True

    def _take(self, module: torch.nn.Module, given: Any, grad: bool) -> None:
        names = {id(one): f"weights.{name}" for name, one in module.named_parameters()}
        self._parameters = {name for name, _ in module.named_parameters()}
        names |= {id(one): f"buffers.{name}" for name, one in module.named_buffers()}
        leaves = Leaves(set())
        leaves.add("args", given[0])
        leaves.add("kwargs", given[1])
        for path, value in leaves.found:
            if isinstance(value, torch.Tensor):
                names.setdefault(id(value), f"inputs.{path}")
        inside = {path: one for path, one in module.named_modules() if is_sharded(one)}
        sharded = {id(one) for child in inside.values() for _, one in gathered_parameters(child)}
        held: dict[int, torch.Tensor] = {}

        def keep(tensor: torch.Tensor) -> str:
            name = names.setdefault(id(tensor), f"other.{len(names)}")
            if id(tensor) not in held:
                held[id(tensor)] = tensor
                if id(tensor) in sharded and _is_part(tensor):
                    self._awaited[name] = {**_description(tensor), "device": "meta"}
                else:
                    self._keep(name, tensor)
            return name

        self._random_states()
        self._pickles = {store.MODULE: pickled(module, keep)}
        self._pickles[store.CALL] = pickled(given, keep)
        for name, parameter in module.named_parameters():
            if parameter.grad is not None and f"weights.{name}" not in self._awaited:
                self._keep(f"before.{name}", parameter.grad)
        kind = plain_class(module)
        self._info |= {"module": f"{kind.__module__}.{kind.__qualname__}"}
        self._info["casts"] = {path: list(map(_short, casts(one))) for path, one in inside.items() if path}
        self._info |= {"inputs": _items(leaves.found), "settings": _settings(module, grad), "path": sys.path}
        self._info["code"] = store.code_of({plain_class(one).__module__ for one in module.modules()})

    def gathered(self, place: Place, name: str, module: torch.nn.Module) -> None:
        """A module of FSDP2 is entered, and has its whole weights."""
        if not self._awaited or place is not self._place or self._note is not None:
            return
        prefix = f"{name}.".removeprefix(f"{self._request.name}.")
        try:
            for path, weight in gathered_parameters(module):
                key = f"{prefix}{path}"
                if self._awaited.pop(f"weights.{key}", None) is not None:
                    self._keep(f"weights.{key}", weight)
                    if weight.grad is not None:
                        self._keep(f"before.{key}", weight.grad)
        except RecordError as error:
            self._give_up(error)

    def leave(self, found: list[Leaf]) -> None:
        """The captured call has returned these."""
        if self._note is not None or not self._open or "output" in self._info:
            return
        try:
            self._described |= self._awaited  # those that no module gathered, since none used them
            self._awaited = {}
            self._info["output"] = _items(found)
            for path, value in found:
                if isinstance(value, torch.Tensor):
                    self._keep(f"output.{path}", value)
        except RecordError as error:
            self._give_up(error)

    def gradient(self, place: Place, kind: str, name: str, call: int | None, leaves: list[Leaf]) -> None:
        """Gradients arrived, were passed on, or collected by a parameter."""
        if not self._open or self._note is not None or not self._is_awaited(place):
            return
        module = self._request.name
        path = name.removeprefix(f"{module}.")
        own = kind == "param_grad" and path in self._parameters and name.startswith(f"{module}.")
        if not own and (name, call) != (module, self._request.call):
            return
        try:
            for inner, gradient in leaves:
                if gradient is None:
                    continue
                key = f"{kind}.{path}" if own else f"{kind}.{inner}"
                if kind == "grad_input":  # the parts of a sum, in the order of the sum
                    key += f".{sum(known.startswith(f'{key}.') for known in self._tensors)}"
                if key not in self._tensors:
                    self._keep(key, gradient)
        except RecordError as error:
            self._give_up(error)

    def stage_end(self, place: Any) -> None:
        """A stage has ended: what was captured in it is written."""
        if self._open and place is not None and self._is_awaited(place):
            self.close()

    def _is_awaited(self, place: Place) -> bool:
        """Whether a stage is the one whose gradients are captured: that of the call, unless the call was earlier."""
        if self._elsewhere:
            return (place.stage, place.micro_step) == (self._request.stage, self._request.micro_step)
        return place is self._place

    def close(self) -> None:
        """Writes what there is."""
        if not self._open:
            return
        self._open = False
        if self._note is None and "output" not in self._info:
            self._note = "the module never returned"
        try:
            self._folder.mkdir(exist_ok=True)
            document: dict[str, Any] = {"format": store.FORMAT, "request": asdict(self._request)}
            if self._note is None:
                for name, content in self._pickles.items():
                    write_atomic(self._folder / name, content)
                tensors = ((k, (dtype_name(t), tuple(t.shape), raw_bytes(t))) for k, t in self._tensors.items())
                store.write_tensors(self._folder / store.TENSORS, tensors)
                document |= {**self._info, "tensors": self._described}
            else:
                document["note"] = self._note
            write_json(self._folder / store.INFO, document)
        except OSError as error:
            sys.stderr.write(f"firstdiff: {self._request.name} is not captured ({error.strerror})\n")
        self._tensors.clear()
        self._pickles.clear()

    def _give_up(self, error: Exception) -> None:
        self._note = f"{self._request.name}: {' '.join(str(error).split())[:300] or type(error).__name__}"
        self._tensors.clear()
        self._pickles.clear()

    def _keep(self, name: str, tensor: torch.Tensor) -> None:
        if _is_part(tensor):
            raise RecordError(f"{name} is a DTensor, of which each rank has a part")
        if name.startswith(("weights.", "buffers.", "inputs.")) and type(tensor) not in _PLAIN:
            raise RecordError(f"{name} is a {type(tensor).__name__}")
        self._bytes += tensor.nbytes if tensor.layout is torch.strided else 0
        if self._bytes > MOST_BYTES:
            raise RecordError(f"it needs more than {MOST_BYTES >> 30} GiB")
        try:
            with torch.no_grad(), without_modes():
                self._tensors[name] = to_host(tensor)
        except (RuntimeError, MemoryError, NotImplementedError) as error:  # no memory, or no storage
            raise RecordError(f"{name}: {error}") from error
        self._described[name] = _description(tensor)

    def _random_states(self) -> None:
        kind, words, spare = random.getstate()
        self._info["python_rng"] = {"version": kind, "words": list(words), "spare": spare}
        state: Any = np.random.get_state(legacy=True)
        self._keep("rng.numpy", torch.from_numpy(np.asarray(state[1]).astype(np.int64)))
        self._info["numpy_rng"] = [str(state[0]), int(state[2]), int(state[3]), float(state[4])]
        self._keep("rng.cpu", torch.get_rng_state())
        for device in ("cuda", "npu"):
            backend: Any = getattr(torch, device, None)
            if backend is not None and backend.is_available() and backend.is_initialized():
                for index in range(backend.device_count()):
                    self._keep(f"rng.{device}:{index}", backend.get_rng_state(index))


def _is_part(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "to_local")


def _description(tensor: torch.Tensor) -> dict[str, Any]:
    return {
        "dtype": dtype_name(tensor),
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "device": str(tensor.device),
        "requires_grad": tensor.requires_grad,
        "parameter": isinstance(tensor, torch.nn.Parameter),
    }


def _short(dtype: torch.dtype | None) -> str | None:
    return None if dtype is None else str(dtype).removeprefix("torch.")


def _items(found: list[Leaf]) -> list[Any]:
    digests = Digests()
    made = [digests.item(path, value) for path, value in found]
    return [[*item[:3], item[3] if isinstance(item[3], str) else item[3].text()] for item in made]


def _settings(module: torch.nn.Module, grad: bool) -> dict[str, Any]:
    """The settings of torch that are in effect."""
    kinds = {"cpu", *(one.device.type for one in module.parameters())} - {"meta"}
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "grad": grad,
        "inference": torch.is_inference_mode_enabled(),
        "training": module.training,
        "matmul": torch.get_float32_matmul_precision(),
        "cudnn": [torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark],
        "default_dtype": _short(torch.get_default_dtype()),
        "autocast": {
            kind: _short(torch.get_autocast_dtype(kind)) for kind in sorted(kinds) if torch.is_autocast_enabled(kind)
        },
        "variables": {name: os.environ.get(name) for name in _VARIABLES},
    }
