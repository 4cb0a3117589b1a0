"""What a script's Python processes run first: it waits for ``import torch``, and then has the adapters observe.

It stands as ``sitecustomize`` in a folder of its own at the front of ``PYTHONPATH``, runs the environment's own
``sitecustomize`` after itself, and takes its folder off the path again. Where torch is never imported, nothing else
happens. Standard library only, and little of that: every Python process that a script starts runs this.

Firstdiff's package is loaded under the name ``firstdiff_probe`` here, so that a script may have a module ``probe`` of
its own. A script that imports Firstdiff's ``probe`` gets those same modules.
"""

from __future__ import annotations

import builtins
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader

TYPE_CHECKING = False  # typing costs more than all else here
if TYPE_CHECKING:
    from typing import Any

SPEC = "FIRSTDIFF_SPEC"
ALIAS = "firstdiff_probe"
"""What our package is called in a script's process."""
OURS = "probe"
"""What it is called elsewhere."""
TRAINER = "FIRSTDIFF_TRAINER"
"""Variable with the name of a trainer that has an adapter of its own, in place of that of any script."""
WATCHED = {"torch": "script", "transformers.trainer": "hf_trainer", "ray": "ray_workers"}
"""Libraries, or a module of one, and the module of ``probe.adapters`` whose ``install`` is called when one has been
imported."""
WATCHED_OF = {"mindspeed_rl": {"mindspeed_rl.utils.utils": "mindspeed_rl"}}
"""The same, where the environment names a trainer."""
SEEN = "processes"
"""The folder beside the spec in which processes leave word."""
_OLDEST = (3, 10)


class Finder:
    """Finds our modules, and notices when a watched library has been imported.

    It is the one object of ours that a process has from its start: what observes the process hangs on it.

    Args:
        package: The folder of our package.
        seen: The folder in which processes leave word.
    """

    def __init__(self, package: str, seen: str) -> None:
        self.observer: Any = None
        """What observes the process: an ``Adapter``; None before torch, and after the script opened a Probe itself."""
        self._package = package
        self._seen = seen
        self._watched_modules = WATCHED_OF.get(os.environ.get(TRAINER, ""), WATCHED)
        self._looking: set[str] = set()
        self._installed: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """See ``importlib.abc.MetaPathFinder``."""
        if name in self._watched_modules:
            return self._watched(name, path, target)
        top = name.partition(".")[0]
        if top == ALIAS:
            return self._own(name, path)
        if top == OURS and name not in self._looking:
            return self._shared(name, path, target)
        return None

    def taken_over(self) -> Any:
        """The script opens a ``Probe`` itself: nothing else observes it from now on.

        Returns:
            The probe that is open already; None where there is none.
        """
        observer, self.observer = self.observer, None
        self._installed |= set(self._watched_modules)
        return None if observer is None else observer.step_back()

    def report(self, what: str, text: str = "") -> None:
        """Leaves word for whoever started the script."""
        leave_word(self._seen, what, text)

    def problem(self, text: str) -> None:
        """Leaves word of what keeps the recording from being whole."""
        self.report(f"problem-{os.getpid()}-{abs(hash(text)) % 10**6}", text)

    def _watched(self, name: str, path: Any, target: Any) -> ModuleSpec | None:
        if name in self._looking or name in self._installed:
            return None
        spec = self._elsewhere(name, path, target)
        loader: Any = None if spec is None else spec.loader
        if loader is None:
            return spec
        run = loader.exec_module

        def exec_module(module: Any) -> None:
            del loader.exec_module
            run(module)
            self._imported(name)

        loader.exec_module = exec_module
        return spec

    def _imported(self, name: str) -> None:
        if name in self._installed:
            return
        self._installed.add(name)
        self.report(name)
        try:
            if sys.version_info < _OLDEST:
                raise ImportError(f"Python {sys.version.split()[0]} is too old, {_OLDEST[0]}.{_OLDEST[1]} is needed")
            adapter = __import__(f"{ALIAS}.adapters.{self._watched_modules[name]}", fromlist=["install"])
            adapter.install(self)
        except Exception as error:  # noqa: BLE001  (whatever keeps us from observing, the script's import succeeds)
            self.problem(f"a process could not be observed ({type(error).__name__}: {error})")

    def _own(self, name: str, path: Any) -> ModuleSpec | None:
        if name == ALIAS:
            file = os.path.join(self._package, "__init__.py")
            whole = ModuleSpec(name, Loader(name, file), origin=file, is_package=True)
            whole.submodule_search_locations = [self._package]
            whole.has_location = True
            return whole
        found = PathFinder.find_spec(name, path)
        if found is not None and isinstance(found.loader, SourceFileLoader):
            found.loader = Loader(name, found.loader.path)
        return found

    def _shared(self, name: str, path: Any, target: Any) -> ModuleSpec | None:
        """A script's ``probe``: its own where it has one, else ours."""
        if name == OURS:
            spec = self._elsewhere(name, path, target)
            if spec is not None and not _is_ours(spec):
                return spec
        elif sys.modules.get(OURS) is not sys.modules.get(ALIAS):
            return None
        same: Any = Same(ALIAS + name[len(OURS) :])
        return ModuleSpec(name, same)

    def _elsewhere(self, name: str, path: Any, target: Any) -> ModuleSpec | None:
        """What the other finders find."""
        self._looking.add(name)
        try:
            for finder in sys.meta_path:
                find = getattr(finder, "find_spec", None)
                if finder is self or find is None:
                    continue
                spec: ModuleSpec | None = find(name, path, target)
                if spec is not None:
                    return spec
        finally:
            self._looking.discard(name)
        return None


def leave_word(folder: str, what: str, text: str) -> None:
    """Leaves word for whoever started a script; of the same words, the first stay.

    Args:
        folder: Where such words are left.
        what: The word.
        text: What belongs to it.
    """
    try:
        with open(os.path.join(folder, what), "x", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        return  # it was said already, or there is nobody to be told any more


class Loader(SourceFileLoader):
    """Loads a module of ours, in which ``probe`` means our package whatever the script calls ``probe``."""

    def exec_module(self, module: Any) -> None:
        """See ``importlib.abc.Loader``."""
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _import}
        super().exec_module(module)


class Same:
    """Loads a module of ours under another name: it is the same one.

    Args:
        name: Its name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._spec: Any = None

    def create_module(self, spec: ModuleSpec) -> Any:
        """See ``importlib.abc.Loader``."""
        module = __import__(self._name, fromlist=["__name__"])
        self._spec = module.__spec__
        return module

    def exec_module(self, module: Any) -> None:
        """See ``importlib.abc.Loader``."""
        module.__spec__ = self._spec


def _import(name: str, *more: Any, **named: Any) -> Any:
    if name == OURS or name.startswith(f"{OURS}."):
        name = ALIAS + name[len(OURS) :]
    return builtins.__import__(name, *more, **named)


def _is_ours(spec: ModuleSpec) -> bool:
    """Whether what was found is Firstdiff's, of whatever version: the one that observes stands for it."""
    return os.path.isfile(os.path.join(os.path.dirname(spec.origin or ""), "collect", "probe.py"))


def _begin() -> None:
    spec = os.environ.get(SPEC)
    if spec:
        package = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
        finder = Finder(package, os.path.join(os.path.dirname(spec), SEEN))
        sys.meta_path.insert(0, finder)
        finder.report("python")


def _run_the_next() -> None:
    """Runs the ``sitecustomize`` that the environment would have without us.

    Raises:
        ModuleNotFoundError: There is none. ``site`` says nothing about it, and a script's own module of that name is
            found later, as without us.
    """
    own = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != own or not entry]
    ours = sys.modules.pop(__name__)
    found = False
    try:
        __import__(__name__)
        found = True
    except ModuleNotFoundError as error:
        if error.name == __name__:
            raise ModuleNotFoundError(f"No module named {__name__!r}", name=__name__) from None
        raise
    finally:
        if not found:
            sys.modules.setdefault(__name__, ours)


if __name__ == "sitecustomize":
    _begin()
    _run_the_next()
