"""Packages that can be called: `kvformat.fuzz` is a package and the search, `kvformat.lint` one and the linter."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class CallablePackage(ModuleType):
    """A package that is called as its main function is.

    Importing a module of a package sets the package as an attribute of `kvformat`: a function of the same name would be
    gone after that. So the package takes the call and hands it to `home`.
    """

    #: the module and the function that a call goes to; it is imported by the first call
    home: tuple[str, str]

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """What the function at `home` returns."""
        module, function = self.home
        return getattr(import_module(module), function)(*arguments, **options)


def callable_package(name: str, module: str, function: str) -> Any:
    """The loaded package `name`, which from now on is called as `module`.`function` is."""
    package: Any = sys.modules[name]
    package.__class__ = CallablePackage
    package.home = (module, function)
    return package
