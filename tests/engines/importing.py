"""Single files of an engine as modules; what they import of their own package is such a file too, or nothing.

An engine's package pulls in its server when it is imported; a cache writer needs none of it.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any


class _Anything(type):
    """Stands for a class, function or number that is imported and not used by what is run."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _make(f"{cls.__name__}.{name}")

    def __getitem__(cls, _: Any) -> Any:
        return cls

    def __call__(cls, *args: Any, **_: Any) -> Any:
        # a decorator gives back what it decorates
        return args[0] if len(args) == 1 and callable(args[0]) else cls

    def __iter__(cls) -> Iterator[Any]:
        return iter((cls, cls))

    def __or__(cls, _: Any) -> Any:
        return cls

    __ror__ = __or__


def _make(name: str) -> Any:
    return _Anything(name, (), {})


class _Stub(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _make(name)


class _Finder:
    """Finds the modules of one package: `real` ones by their file under root, others with what is `given`."""

    def __init__(self, root: Path, package: str, real: frozenset[str], given: Mapping[str, Mapping[str, Any]]) -> None:
        self.root, self.package, self.real, self.given = root, package, real, given

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] != self.package:
            return None
        if name in self.real:
            file = self.root.joinpath(*name.split(".")).with_suffix(".py")
            if not file.exists():
                file = self.root.joinpath(*name.split("."), "__init__.py")
            return importlib.util.spec_from_file_location(name, file, submodule_search_locations=[])
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = _Stub(spec.name)
        module.__path__ = []
        vars(module).update(self.given.get(spec.name, {}))
        return module

    def exec_module(self, module: ModuleType) -> None:
        """A stub has nothing to run."""


@contextmanager
def package(root: Path, name: str, real: set[str], given: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Within it, modules of a package come from single files.

    root: the folder that holds the package. real: the modules that are run from their files. given: attributes of
    others; what is not named there stands for nothing.
    """
    held = {key: sys.modules.pop(key) for key in [*sys.modules] if key.partition(".")[0] == name}
    finder = _Finder(root, name, frozenset(real), given)
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
    try:
        yield
    finally:
        sys.meta_path.remove(finder)  # type: ignore[arg-type]
        for key in [*sys.modules]:
            if key.partition(".")[0] == name:
                del sys.modules[key]
        sys.modules.update(held)
