"""A captured module, loaded, and run again and again from the capture. Only child processes import this."""

from __future__ import annotations

import io
import os
import pickle
import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import MethodType
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch.utils._pytree import tree_map

from probe.collect.trace.digests import Digests
from probe.collect.trace.items import Leaves
from probe.store import layout
from probe.store.capture import CALL, MODULE, TENSORS, Captured, code_of
from probe.store.digest import hasher

Result = dict[str, str]
"""Digest of each part of a result, by its path."""


class Replayed:
    """A captured module.

    Args:
        captured: The capture.

    Raises:
        Exception: It cannot be loaded: whatever its classes, pickle or safetensors raise.
    """

    def __init__(self, captured: Captured) -> None:
        self._captured = captured
        self._info = captured.info
        sys.path += [one for one in self._info["path"] if isinstance(one, str) and one and one not in sys.path]
        with layout.open_plain(captured.folder / TENSORS) as file:
            stored = safetensors.torch.load(file.read())
        _require_devices({how["device"] for how in self._info["tensors"].values()})
        held = {name: how for name, how in self._info["tensors"].items() if how["device"] != "meta"}
        self._stored = {name: _restored(stored[name], how) for name, how in held.items()}
        with layout.open_plain(captured.folder / MODULE) as file:
            module = file.read()
        with layout.open_plain(captured.folder / CALL) as file:
            self._call = file.read()
        self._own: dict[str, torch.Tensor] = {}
        self._module: Any = _Unpickler(io.BytesIO(module), self._module_tensor).load()
        for path, (given, returned) in self._info.get("casts", {}).items():
            _cast(self._module.get_submodule(path), given, returned)
        self._digests = Digests()

    def changed_code(self) -> list[str]:
        """The Python modules of its classes whose files are not what they were when it was captured."""
        known = self._info.get("code", {})
        now = code_of(known)
        return [name for name in known if now.get(name) != known[name]]

    def _module_tensor(self, name: str) -> torch.Tensor:
        if name not in self._own:
            self._own[name] = self._made(name)
        return self._own[name]

    def _made(self, name: str) -> torch.Tensor:
        how = self._info["tensors"][name]
        if how["device"] == "meta":  # of a sharded module that never ran
            tensor = torch.empty(how["shape"], dtype=getattr(torch, how["dtype"]), device="meta")
        else:
            tensor = _placed(self._stored[name], how)
        if how["parameter"]:
            return torch.nn.Parameter(tensor, requires_grad=how["requires_grad"])
        return tensor.requires_grad_(how["requires_grad"])

    def run(self, around: Any = None) -> tuple[Result, Result]:
        """Runs it once from the captured state.

        Args:
            around: A context in which the module runs; None for none.

        Returns:
            The digests of the output, and of the gradients; the latter empty where those do not count.
        """
        inputs: dict[str, torch.Tensor] = {}

        def given(name: str) -> torch.Tensor:
            if name in self._own:
                return self._own[name]
            if name not in inputs:
                inputs[name] = self._made(name)
            made = inputs[name]
            leaf = isinstance(made, torch.nn.Parameter) or not made.requires_grad
            return made if leaf else later.setdefault(name, made.clone())

        later: dict[str, torch.Tensor] = {}
        with torch.no_grad():
            for name, own in self._own.items():
                if name in self._stored:
                    own.copy_(_placed(self._stored[name], self._info["tensors"][name]))
        _set_random_states(self._info, self._stored)
        with _settings(self._info["settings"], self._captured.backward):
            args, kwargs = _Unpickler(io.BytesIO(self._call), given).load()
            own = vars(self._module).get("forward")  # a bound one is the module's, any other a tool's
            run = own if isinstance(own, MethodType) else partial(type(self._module).forward, self._module)
            with around or ExitStack():
                out = run(*args, **kwargs)
                leaves = Leaves(set())
                leaves.add("out", out)
                gradients = self._backward(dict(leaves.found), inputs) if self._captured.backward else {}
        return {path: self._digest(value) for path, value in leaves.found}, gradients

    def _backward(self, out: dict[str, Any], inputs: dict[str, torch.Tensor]) -> Result:
        arrived = {name: name.removeprefix("grad_output.") for name in self._stored if name.startswith("grad_output.")}
        if not arrived:
            raise ValueError("no gradient arrived at the module when it was captured")
        heads = {path: self._made(name) for name, path in arrived.items() if path in out}
        wanted = {f"input {name.removeprefix('inputs.')}": one for name, one in inputs.items() if one.requires_grad}
        wanted |= {
            f"parameter {name.removeprefix('weights.')}": one
            for name, one in self._own.items()
            if one.requires_grad and name.startswith("weights.")
        }
        found = torch.autograd.grad(
            [out[path] for path in heads], list(wanted.values()), list(heads.values()), allow_unused=True
        )
        made = {}
        for name, gradient in zip(wanted, found, strict=True):
            if gradient is None:
                continue
            before = self._stored.get(f"before.{name.removeprefix('parameter ')}") if name.startswith("p") else None
            made[name] = self._digest(gradient if before is None else before.to(gradient.device) + gradient)
        return made

    def captured_result(self) -> Result:
        """What the training itself had: of the output, or of the gradients."""
        if not self._captured.backward:
            return {item[0]: item[3] for item in self._info["output"]}
        found: dict[str, torch.Tensor] = {}
        for name, tensor in self._stored.items():
            if name.startswith("param_grad."):
                found[f"parameter {name.removeprefix('param_grad.')}"] = tensor
            elif name.startswith("grad_input."):
                path = f"input {name.removeprefix('grad_input.').rpartition('.')[0]}"
                found[path] = found[path] + tensor if path in found else tensor
        return {path: self._digest(tensor) for path, tensor in found.items()}

    def _digest(self, value: Any) -> str:
        digest = self._digests.item("", value)[3]
        return digest if isinstance(digest, str) else digest.text()


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, tensor: Any) -> None:
        super().__init__(stream)
        self._tensor = tensor

    def persistent_load(self, name: Any) -> Any:
        return self._tensor(name)


def digest_of(result: Result) -> str:
    """One digest of a whole result."""
    taken = hasher()
    for path, digest in sorted(result.items()):
        taken.update(f"{path}\0{digest}\0".encode())
    return taken.hexdigest()


def _restored(stored: torch.Tensor, how: dict[str, Any]) -> torch.Tensor:
    """A tensor on the host with its own dtype and shape."""
    dtype = getattr(torch, how["dtype"])
    if stored.dtype != dtype:
        stored = stored.view(dtype)
    return stored.reshape(how["shape"])


def _placed(stored: torch.Tensor, how: dict[str, Any]) -> torch.Tensor:
    """A fresh copy on the device and with the strides that it had."""
    shape, stride = how["shape"], how["stride"]
    thin = [1 if step == 0 and size > 1 else size for size, step in zip(shape, stride, strict=True)]
    extent = 1 + sum((size - 1) * step for size, step in zip(thin, stride, strict=True) if size)
    if stored.numel() == 0 or extent > 1 << 33:
        return stored.clone().to(how["device"])
    buffer = torch.zeros(extent, dtype=stored.dtype, device=how["device"])
    view = buffer.as_strided(thin, stride)
    narrow = stored
    for axis, size in enumerate(thin):
        narrow = narrow.narrow(axis, 0, size)
    view.copy_(narrow)
    return view.expand(shape).detach()


def _require_devices(devices: set[str]) -> None:
    for device in sorted(devices):
        try:
            torch.empty(0, device=device)
        except Exception as error:
            raise ValueError(f"it ran on {device}, which this machine does not have") from error


def _cast(module: torch.nn.Module, given: str | None, returned: str | None) -> None:
    """Casts what a module gets and returns as FSDP2 did around it."""

    def to(name: str, values: Any) -> Any:
        def cast(one: Any) -> Any:
            real = isinstance(one, torch.Tensor) and one.is_floating_point()
            return one.to(getattr(torch, name)) if real else one

        return tree_map(cast, values)

    if given is not None:
        module.register_forward_pre_hook(lambda _, args, kwargs: to(given, (args, kwargs)), with_kwargs=True)
    if returned is not None:
        module.register_forward_hook(lambda _, args, output: to(returned, output))


def _set_random_states(info: dict[str, Any], stored: dict[str, torch.Tensor]) -> None:
    python = info["python_rng"]
    random.setstate((python["version"], tuple(python["words"]), python["spare"]))
    name, position, has_gauss, gauss = info["numpy_rng"]
    words = stored["rng.numpy"].numpy().astype(np.uint32)
    np.random.set_state((name, words, position, has_gauss, gauss))
    for name, state in stored.items():
        if name == "rng.cpu":
            torch.set_rng_state(state)
        elif name.startswith(("rng.cuda:", "rng.npu:")):
            device, _, index = name.removeprefix("rng.").partition(":")
            getattr(torch, device).set_rng_state(state, int(index))


@contextmanager
def _settings(settings: dict[str, Any], backward: bool) -> Iterator[None]:
    torch.set_default_dtype(getattr(torch, settings["default_dtype"]))
    torch.set_float32_matmul_precision(settings["matmul"])
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = settings["cudnn"]
    with ExitStack() as stack:
        if settings["inference"] and not backward:
            stack.enter_context(torch.inference_mode())
        stack.enter_context(torch.set_grad_enabled(settings["grad"] or backward))
        for kind, dtype in settings["autocast"].items():
            stack.enter_context(torch.autocast(kind, getattr(torch, dtype)))
        yield


def set_process(settings: dict[str, Any], threads: int | None, deterministic: bool | None) -> None:
    """Sets what holds for a whole process: as it was captured, or as it is said.

    Args:
        settings: Those captured.
        threads: Threads of one operation; None for as many as there were.
        deterministic: Whether only deterministic algorithms are allowed; None for as it was.
    """
    torch.set_num_threads(threads or settings["threads"])
    wanted = settings["deterministic"] if deterministic is None else deterministic
    torch.use_deterministic_algorithms(wanted, warn_only=settings["warn_only"] and not deterministic)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8") if deterministic else None
