"""`import kvformat` is light, every public name is there, and imports point down only."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import kvformat as kvf

PACKAGE = Path(kvf.__file__).parent
#: what importing the package must not load, and what no public name but a GPU one may need
HEAVY = ("numba", "torch", "hypothesis")
EXTRAS = ("torch", "triton", "hypothesis", "typer", "rich", "matplotlib", "pytest")


def _loaded_by(code):
    """The top-level modules that a fresh interpreter has after running code."""
    script = f"import sys\n{code}\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=PACKAGE.parent
    )
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


def test_import_loads_neither_numba_nor_torch_nor_hypothesis():
    loaded = _loaded_by("import kvformat")
    assert "kvformat" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_looking_at_names_formats_and_layouts_needs_no_numba():
    code = "import kvformat\ndir(kvformat)\nkvformat.element('e4m3fn').values()\nkvformat.recipe('nvfp4')\n"
    code += "kvformat.layout('vllm-0.33', mode='nvfp4', block_size=16, num_kv_heads=8, head_size=128)"
    assert _loaded_by(code).isdisjoint(HEAVY)


def test_the_core_needs_no_extra():
    assert _loaded_by("import kvformat\nkvformat.quantize, kvformat.encode, kvformat.PagedCache").isdisjoint(EXTRAS)


@pytest.mark.parametrize("name", kvf.__all__)
def test_every_public_name_resolves(name):
    assert name in dir(kvf)
    assert getattr(kvf, name) is not None


def test_dir_shows_public_names_only():
    assert {name for name in dir(kvf) if not name.startswith("__")} == set(kvf.__all__) - {"__version__"}


def test_the_public_interface_has_the_names_of_the_design():
    wanted = "encode decode element pack_nibbles unpack_nibbles quantize recipe layout PagedCache Dump check InputError"
    assert set(wanted.split()) <= set(kvf.__all__)


def test_unknown_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'kvformat' has no attribute 'quantise'"):
        _ = kvf.quantise


#: the floors of the house, from the ground up: a module imports from its own room and from floors below
FLOORS = (
    {"errors", "data", "rooms"},
    {"files"},
    {"tasks"},
    {"elements"},
    {"slots", "modes", "cache_dtypes", "toml", "candidate", "arrays"},
    {"recipes", "layouts"},  # side by side: neither knows the other
    {"cache", "sizing", "installation", "flags", "definitions", "ptx"},
    {"conversion"},
    {"prefix"},
    {"dump"},
    {"attention"},
    {"verify"},
    {"diagnose", "lint", "vectors", "checkpoint", "proofs"},
    {"fuzz", "simulate", "torch"},
    {"transformers", "many", "vllm"},
    {"cli"},
)
ROOMS = set().union(*FLOORS)


def _imports(path):
    """The kvformat modules that a file imports, lazy and typing-only imports included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "kvformat":
                    yield alias.name if "." in alias.name else "kvformat.*"
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            if (node.module or "").split(".")[0] == "kvformat":
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _floor(room):
    return next(level for level, rooms in enumerate(FLOORS) if room in rooms)


def _files():
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


def _room(path):
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def test_every_room_has_a_floor():
    rooms = {_room(path) for path in _files()}
    assert rooms <= ROOMS
    assert {"elements", "recipes", "layouts", "cache", "verify", "cli"} <= rooms


@pytest.mark.parametrize("path", _files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down_only(path):
    here = _room(path)
    for module in _imports(path):
        there = module.split(".")[1]
        if (
            there not in ROOMS
        ):  # a public name, `from kvformat import quantize`: for those above all rooms that have one
            assert _floor(here) >= _floor("verify"), f"{here} imports {module}"
        elif there != here:
            assert _floor(there) < _floor(here), f"{here} imports {module}"


#: rooms in which modules still import each other; no other one may join them
_CIRCLES = ("kvformat.diagnose.", "kvformat.ptx.")


def _name(path):
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def test_no_modules_import_each_other_not_even_later_or_for_types():
    modules = {_name(path): path for path in _files()}
    graph = {}
    for name, path in modules.items():
        found = {each if each in modules else each.rpartition(".")[0] for each in _imports(path)}
        graph[name] = (found & modules.keys()) - {name}
    while True:  # whoever imports nothing that is left is in no circle
        leaves = {name for name, found in graph.items() if not found & graph.keys()}
        if not leaves:
            break
        graph = {name: found for name, found in graph.items() if name not in leaves}
    while True:  # and whoever nobody of the rest imports
        roots = graph.keys() - set().union(*graph.values()) if graph else set()
        if not roots:
            break
        graph = {name: found for name, found in graph.items() if name not in roots}
    assert [name for name in graph if not name.startswith(_CIRCLES)] == []


@pytest.mark.parametrize("path", _files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_module_says_its_job_in_its_first_line(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith('"""')
    assert ast.get_docstring(ast.parse(text)), path


#: of the plugin only these: the hook must load before torch is there
_VLLM_WITH_TORCH = (("vllm", "layer"), ("vllm", "session"))


def test_every_module_imports():
    for path in _files():
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        if (
            parts[1] in ("torch", "transformers", "arrays")
            or parts[1:] in _VLLM_WITH_TORCH
            or parts[-1]
            in (
                "__main__",
                "torch_kernels",
                "triton_kernels",
            )
        ):
            continue
        import_module(".".join(part for part in parts if part != "__init__"))
