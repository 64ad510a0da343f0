"""The command line: one thin file per command. Exit status 0 = holds, 1 = a difference, 2 = cannot be judged."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (that of the process, if none is given) and return its exit status."""
    if arguments is None:
        arguments = sys.argv[1:]
        if hasattr(signal, "SIGPIPE"):  # the reader of a pipe may stop early: end quietly, as other Unix tools do
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    from kvformat.cli.outcome import refuse

    as_json = "--json" in arguments
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ModuleNotFoundError as error:
        return refuse(f"the commands need {error.name}: pip install 'kvformat[cli]'", as_json=as_json)
    from kvformat.cli.app import run

    return run(list(arguments), as_json=as_json)
