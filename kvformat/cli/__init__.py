"""The command line: one thin file per command. Exit status 0 = holds, 1 = a difference, 2 = cannot be judged."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (that of the process, if none is given) and return its exit status."""
    if arguments is not None:
        return _run(list(arguments))
    try:
        closed = _open_all_streams()
        _end_in_order()
        if "stdout" in closed:  # an answer that cannot arrive is an error
            from kvformat.cli.outcome import refuse

            return refuse("cannot write: stdout is closed", as_json=False)
        return _run(sys.argv[1:])
    except KeyboardInterrupt:  # while modules are imported, where nobody else takes it
        from kvformat.cli.outcome import INTERRUPTED, complain

        complain("interrupted")
        return INTERRUPTED


def _run(arguments: list[str]) -> int:
    from kvformat.cli.outcome import refuse

    as_json = "--json" in arguments
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ModuleNotFoundError as error:
        return refuse(f"the commands need {error.name}: pip install 'kvformat[cli]'", as_json=as_json)
    from kvformat.cli.app import run

    return run(arguments, as_json=as_json)


def _open_all_streams() -> list[str]:
    """Put /dev/null where a stream is closed, and say which ones were: else the next file would get its number."""
    closed = []
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
            setattr(sys, name, os.fdopen(number, mode))
            closed.append(name)
    return closed


def _end_in_order() -> None:
    """SIGTERM and SIGHUP end the process as an exception does: half-written files go away."""

    def end(signum: int, _: object) -> None:
        raise SystemExit(128 + signum)

    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, end)
