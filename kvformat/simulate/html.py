"""One self-contained HTML file of results: tables, what they say, and plots drawn by matplotlib as inline SVG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from kvformat.errors import InputError
from kvformat.files import write_whole
from kvformat.simulate.experiments.result import Plot, Result

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a }
table { border-collapse: collapse; font-size: 13px; display: block; overflow-x: auto }
td, th { padding: .15rem .6rem; border-bottom: 1px solid #ddd; text-align: left; white-space: nowrap }
td.number { text-align: right; font-variant-numeric: tabular-nums }
svg { max-width: 100%; height: auto }
"""


def check_target(path: Path) -> None:
    """Raises InputError before anything is computed: no matplotlib, or no folder to write to."""
    _matplotlib()
    if path.is_dir():
        raise InputError(f"{path}: is a directory; --report takes a file")
    if not path.parent.is_dir():
        raise InputError(f"{path.parent}: there is no such folder to write the report to")


def write(path: Path, results: Sequence[Result]) -> None:
    """Write the report. The path holds the whole file or stays as it was."""
    text = page(results)
    write_whole(path, lambda finished: finished.write_text(text, encoding="utf-8"))


def page(results: Sequence[Result]) -> str:
    """The whole report as HTML; nothing in it is loaded from elsewhere."""
    sections = "\n".join(_section(result) for result in results)
    head = f'<meta charset="utf-8"><title>kvformat simulate</title><style>{_STYLE}</style>'
    body = f"<h1>kvformat simulate</h1>\n{sections}"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def _section(result: Result) -> str:
    says = "".join(f"<li>{escape(line)}</li>" for line in result.says)
    plots = "\n".join(f"<figure>{svg(plot)}</figure>" for plot in result.plots)
    numbers = f"<details><summary>numbers</summary>{_table(result)}</details>"
    return f"<h2>{escape(result.title)}</h2><ul>{says}</ul>\n{plots}\n{numbers}"


def _table(result: Result) -> str:
    names = list(result.rows[0]) if result.rows else []
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(_cell(value) for value in row.values())}</tr>" for row in result.rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f'<td class="number">{value:.4g}</td>'
    return f"<td>{'' if value is None else escape(str(value))}</td>"


def svg(plot: Plot) -> str:
    """A plot as an SVG element, the same bytes for the same data."""
    matplotlib = _matplotlib()
    from matplotlib.figure import Figure

    # fixed ids and text as text: the file is small and does not change without its data
    with matplotlib.rc_context({"svg.hashsalt": "kvformat", "svg.fonttype": "none"}):
        figure = Figure(figsize=(9, 4.2))
        axes = figure.add_axes((0.09, 0.13, 0.58, 0.78))  # the legend stands to the right
        for name, points in plot.series.items():
            drawn = [(x, y) for x, y in points if not plot.log_y or y > 0]
            xs, ys = [x for x, _ in drawn], [y for _, y in drawn]
            marker = "o" if plot.kind == "points" or len(drawn) < 32 else None
            axes.plot(xs, ys, label=name, marker=marker, markersize=4, linewidth=0 if plot.kind == "points" else 1.4)
        axes.set(title=plot.title, xlabel=plot.x, ylabel=plot.y)
        if plot.log_x:
            axes.set_xscale("log", base=2)
        if plot.log_y:
            axes.set_yscale("log")
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _matplotlib() -> Any:
    try:
        import matplotlib as mpl
    except ModuleNotFoundError as error:
        raise InputError(f"a report needs {error.name}: pip install 'kvformat[plots]'") from None
    return mpl
