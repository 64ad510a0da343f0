"""The pytest plugin: a marker and a fixture, with which a kernel's own repository searches it in five lines.

    @pytest.mark.kvformat(mode="int8_per_token_head", budget=10)
    def test_my_writer(kvformat_fuzz):
        kvformat_fuzz(my_writer)

A counterexample goes to Hypothesis's example database, by the test's name, and comes first next time.

`pytest --kvformat-emulate=sm_90,sm_100` runs every test once for each target, in `kvformat.torch.emulate`: Triton
kernels on CPU tensors run as compiled for it. A test that names the fixture `kvformat_emulation` sees the launches.

Nothing of kvformat is loaded before a test asks for a fixture.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kvformat.fuzz.report import FuzzReport

_MARKER = (
    "kvformat(mode, recipe=None, layout=None, budget=None, examples=None, seed=None, ...): what kvformat_fuzz searches"
    " with, as kvformat.fuzz takes it"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --kvformat-emulate."""
    parser.getgroup("kvformat").addoption(
        "--kvformat-emulate",
        metavar="TARGETS",
        type=lambda text: [each for each in text.split(",") if each],
        help="run each test with its Triton kernels as compiled for these GPUs (sm_90,sm_100), on CPU tensors",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test once for each target."""
    targets = metafunc.config.getoption("kvformat_emulate", None)
    if targets:
        metafunc.parametrize("kvformat_emulation", targets, indirect=True)


@pytest.fixture
def kvformat_emulation(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The emulation that the test runs in: its target, and its launches so far."""
    target = getattr(request, "param", None)
    if target is None:
        pytest.fail("kvformat_emulation needs a target: pytest --kvformat-emulate=sm_90", pytrace=False)
    # a room beside this one, loaded only where a target was named
    with import_module("kvformat.torch.emulation").emulate(target) as emulation:
        yield emulation


class _Everywhere:
    """A plugin that is there with --kvformat-emulate only: every test runs in the emulation, named or not."""

    @pytest.fixture(autouse=True)
    def _kvformat_everywhere(self, kvformat_emulation: Any) -> None:
        """Nothing but the dependency."""


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, for --strict-markers, and the emulation one of every test where it is asked for."""
    if config.getoption("kvformat_emulate", None):
        config.pluginmanager.register(_Everywhere(), "kvformat-emulate")
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture
def kvformat_fuzz(request: pytest.FixtureRequest) -> Callable[..., FuzzReport]:
    """A function that searches a candidate, with the marker's options and its own, and fails the test if one is found.

    It returns the report of a search that found nothing.
    """
    from hypothesis import settings

    from kvformat.errors import InputError, unknown_name
    from kvformat.fuzz.runner import fuzz

    known = inspect.signature(fuzz).parameters.keys() - {"candidate"}
    options: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("kvformat"))):  # the nearest one last
        if marker.args:
            pytest.fail("the marker kvformat takes its options by name: mode=...", pytrace=False)
        for name in marker.kwargs.keys() - known:
            pytest.fail(f"the marker kvformat: {unknown_name('option', name, known)}", pytrace=False)
        options |= marker.kwargs
    kept = settings.default.database if settings.default is not None else None

    def search(candidate: Any, **more: Any) -> FuzzReport:
        given = {"database": kept, "key": request.node.nodeid, **options, **more}
        if "mode" not in given:
            pytest.fail("kvformat_fuzz needs a mode: @pytest.mark.kvformat(mode=...)", pytrace=False)
        try:
            report = fuzz(candidate, **given)
        except InputError as error:
            pytest.fail(f"kvformat_fuzz cannot search: {error}", pytrace=False)
        if not report.ok:
            pytest.fail(str(report), pytrace=False)
        return report

    return search
