"""kvformat scales: the K and V scales of a checkpoint, what engines load of them, and better ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvformat.cli.outcome import HOLDS, print_json, printable, say
from kvformat.errors import InputError

if TYPE_CHECKING:
    from kvformat.checkpoint.calibrate import Scales
    from kvformat.checkpoint.states import States


def scales(
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="A folder, a safetensors file, or a JSON file of scales.")
    ],
    kv: Annotated[
        str | None, typer.Option(help="K and V to judge the scales by: safetensors with layerN.key and layerN.value.")
    ] = None,
    text: Annotated[
        str | None, typer.Option(help="Instead: a text file that the checkpoint's model is run on.")
    ] = None,
    tokens: Annotated[int, typer.Option(help="With --text: how many tokens of it.")] = 512,
    engine: Annotated[str | None, typer.Option(help="Judge for this engine alone.")] = None,
    calibrate: Annotated[
        str | None, typer.Option(help="Make new scales: by amax, percentile or (least) error. Needs --kv or --text.")
    ] = None,
    per_head: Annotated[bool, typer.Option("--per-head", help="With --calibrate: one scale per KV head.")] = False,
    spelling: Annotated[
        str, typer.Option(help="With --calibrate: how they are named: attention, projection or projection output.")
    ] = "attention",
    output: Annotated[
        str | None, typer.Option("-o", "--output", help="With --calibrate: the safetensors file to write.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """List the scales of a checkpoint: what is wrong with them, and which each engine loads. Status 1: something is.

    Scales that an engine does not find are 1.0, silently: the cache then clips or underflows.
    """
    if kv and text:
        raise InputError("K and V come from --kv or from --text, not from both")
    if calibrate is None:
        from kvformat.checkpoint.reading import read_checkpoint
        from kvformat.checkpoint.report import ScalesReport

        report = ScalesReport.of(read_checkpoint(checkpoint), _states(checkpoint, kv, text, tokens), engine)
        if as_json:
            return print_json(report.to_json(), report.status)
        for line in str(report).splitlines():
            say(line[: len(line) - len(line.lstrip())] + printable(line))
        return report.status
    if output is None:
        raise InputError("--calibrate writes a file: name it with --output")
    states = _states(checkpoint, kv, text, tokens)
    if states is None:
        raise InputError("--calibrate needs K and V: from --kv FILE, or from the model by --text FILE")
    from kvformat.checkpoint.calibrate import calibrate as make
    from kvformat.checkpoint.calibrate import save_scales

    made = make(states, calibrate, per_head=per_head)
    save_scales(made, output, spelling)
    return _made(made, output, as_json=as_json)


def _states(checkpoint: str, kv: str | None, text: str | None, tokens: int) -> States | None:
    if kv:
        from kvformat.checkpoint.states import read_states

        return read_states(kv)
    if text is None:
        return None
    words = read_text(Path(text))
    try:
        from kvformat.transformers.states import load_model, run, tokens_of
    except ModuleNotFoundError as error:
        raise InputError(f"running a model needs {error.name}: pip install 'kvformat[transformers]'") from None
    model, tokenizer = load_model(checkpoint)
    return run(model, tokens_of(tokenizer, words, tokens))


def _made(made: Scales, output: str, *, as_json: bool) -> int:
    if as_json:
        rows = [
            {"layer": layer, "side": side, "values": [repr(float(value)) for value in values]}
            for (layer, side), values in made.items()
        ]
        return print_json({"output": output, "scales": rows})
    for (layer, side), values in made.items():
        say(f"layer {layer} {side.upper()}: {', '.join(str(value) for value in values)}")
    say(f"{printable(output)}: {len(made)} scales")
    return HOLDS


def read_text(path: Path) -> str:
    """A text file, UTF-8. Raises InputError, one line, where it is none."""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text: {error}") from error
