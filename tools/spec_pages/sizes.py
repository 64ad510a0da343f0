"""The page of sizes: what `kvformat size` prints, and the arithmetic of caches set right by it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout
from typing import Any

from kvformat.cli import main
from kvformat.errors import InputError
from kvformat.sizing import MODELS, keys, modes_of, parse_config
from spec_pages.text import Statement, block, bullets, page, table, wrap

_CONTEXT = 32768
_MIB, _GIB = 1 << 20, 1 << 30
#: the modes of the table of models
_MODES = ("none", "fp8_per_tensor", "int8_per_token_head", "nvfp4")
#: one model a row, no two alike
_SHOWN = (
    "llama-2-70b", "llama-2-7b", "llama-3-8b", "qwen2.5-7b", "qwen3-8b", "qwen3-30b-a3b", "qwen3-235b-a22b",
    "gpt-oss-20b", "gpt-oss-120b", "gemma-3-27b", "gemma-2b", "falcon-7b", "qwen2.5-0.5b", "smollm2-135m",
)  # fmt: skip


def files() -> dict[str, str]:
    """Path under spec/ and text of the page."""
    values = {
        "llama": _run("size", "llama-2-70b", "--context", "32768"),
        "json": _json("size", "llama-2-70b", "--context", "32768", "--mode", "int8_per_token_head", "--json"),
        "wild": bullets(_wild()),
        "models": _models(),
        "latent": _latent(),
        "compressed": _run("size", "deepseek-v4-pro", "--context", "1048576"),
        "window": _run("size", "gpt-oss-20b", "--context", "131072", "--mode", "fp8_per_tensor"),
        "numbers": _numbers(),
        "kinds": _kinds(),
        "families": _families(),
        "harmless": "\n".join(
            wrap(f"- {why}: {', '.join(f'`{name}`' for name in names)}", indent="  ")
            for why, names in keys.HARMLESS.items()
        ),
        "refused": block(_refusal()),
        "names": wrap(
            f"MODEL is one of {', '.join(f'`{name}`' for name in MODELS)}, or the path of a `config.json` (or of the "
            "directory it lies in), as models have it on the Hugging Face Hub. `--mode` asks for one mode, "
            "`--block-size` says how many rows a page has: 16, and 64 of latent rows, if it is not given."
        ),
    }
    return {"size.md": page("size.md", values)}


_MEANINGS = {
    "layers": "layers", "heads": "query heads", "kv_heads": "heads of K and V", "head_size": "dims per head",
    "head_size_v": "dims per head of V", "hidden": "width of a token, where dims per head are not given",
    "window": "tokens that a sliding layer sees", "chunk": "tokens of a chunk", "latent": "dims of a latent row",
    "rope": "dims of its part with positions", "indexer": "dims of an indexer's key",
}  # fmt: skip
_FORMS = {
    "list": "a name for each layer", "letters": "a letter for each layer", "indices": "the layers that attend",
    "every": "the last of each so many layers attends", "period": "the layers whose number has this remainder attend",
    "all": "one name for all layers",
}  # fmt: skip


def _quoted(names: Iterable[object]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _numbers() -> str:
    rows = [(_MEANINGS[what], _quoted(names)) for what, names in keys.NUMBERS.items()]
    for kind, numbers in keys.OF_KIND.items():
        rows += [(f"{_MEANINGS[what]}, {kind} layers", _quoted(names)) for what, names in numbers.items()]
    return table(("number", "keys, the first that is there counts"), rows)


def _kinds() -> str:
    rows = []
    for kind in keys.KINDS:
        if kind.form != "all":
            name = f"`{kind.key}`" + (f", `{kind.inside}`" if kind.inside else "")
            meant = {known: [name for name in kind.names if kind.names[name] == known] for known in kind.names.values()}
            names = "; ".join(f"{known}: {_quoted(names)}" for known, names in meant.items())
            rows.append((name, _FORMS[kind.form], names if kind.form in ("list", "letters") else "full, else linear"))
    return table(("key", "what it says", "what the names mean"), rows)


def _families() -> str:
    said = (
        (family, _quoted(f"{key}: {value}" for key, value in words.items())) for family, words in keys.FAMILIES.items()
    )
    return table(("`model_type` begins with", "taken for granted"), [(f"`{family}`", words) for family, words in said])


def _refusal() -> str:
    config = {"num_hidden_layers": 32, "num_attention_heads": 32, "head_dim": 128, "num_kv_groups": 4}
    try:
        parse_config(config, name="")
    except InputError as error:
        return f"kvformat: config.json: {error}"
    raise AssertionError("a key that is not read must be refused")


def _said(*arguments: str) -> str:
    """What a command prints."""
    out = io.StringIO()
    with redirect_stdout(out):
        status = main(arguments)
    assert status == 0, arguments
    return out.getvalue()


def _run(*arguments: str) -> str:
    """A command and what it prints."""
    lines = (line.rstrip() for line in _said(*arguments).splitlines())
    return block(f"$ kvformat {' '.join(arguments)}\n" + "\n".join(lines))


def _json(*arguments: str) -> str:
    """A command and the document that it prints, indented."""
    return block(f"$ kvformat {' '.join(arguments)}\n{json.dumps(json.loads(_said(*arguments)), indent=1)}")


def _size(model: str, context: int, mode: str) -> Mapping[str, Any]:
    """The document of one mode, as the command prints it."""
    printed = _said("size", model, "--context", str(context), "--mode", mode, "--json")
    (found,) = json.loads(printed)["modes"]
    return found


def _wild() -> tuple[Statement, ...]:
    """What is said of the sizes of caches, and what they are."""
    llama = {context: _size("llama-2-70b", context, "int8_per_token_head") for context in (32768, 131072)}
    plain, fp8, nvfp4 = (_size("llama-2-70b", 32768, mode) for mode in ("none", "fp8_per_tensor", "nvfp4"))
    at32, at128 = (llama[context]["parts"][0]["scales"] for context in (32768, 131072))
    bytes32, bytes128 = (llama[context]["scale_bytes"] for context in (32768, 131072))
    layers = MODELS["llama-2-70b"].num_layers
    mla = _size("deepseek-v3", 64, "none")
    wide, small = (_per_layer("deepseek-v4-pro", mode) for mode in ("none", "fp8_ds_mla"))
    share16, share32 = bytes32 / 2 / plain["bytes"], bytes32 / fp8["bytes"]
    bits = nvfp4["bytes"] * 8 / (plain["bytes"] / 2)
    return (
        Statement(
            f'**"At 32K tokens Llama-2-70B has {at32:,} scales, 1 MB beside a cache of 10 GB."** They are the scales '
            f"of one layer. The {layers} layers have {at32 * layers:,}: {bytes32 // _MIB} MiB in float32, which vLLM "
            f"stores, {bytes32 // 2 // _MIB} MiB in float16. The cache of {plain['bytes'] / _GIB:g} GiB is that of "
            f"all layers in bfloat16: float16 scales would add {share16:.2%} to it. To the "
            f"{fp8['bytes'] / _GIB:g} GiB of 8-bit codes the float32 scales add {share32:.2%}, not 0.01%.",
            lambda: (
                (at32, llama[32768]["scales"], bytes32, plain["bytes"], fp8["bytes"])
                == (524_288, 41_943_040, 160 * _MIB, 10 * _GIB, 5 * _GIB)
            ),
        ),
        Statement(
            f"**At 128K tokens** it is {at128:,} a layer, and over all layers {bytes128 // 2 // _MIB} MiB in float16 "
            f"or {bytes128 // _MIB} MiB in float32.",
            lambda: (at128, bytes128) == (2_097_152, 640 * _MIB),
        ),
        Statement(
            f'**"NVFP4 is 4 bits, a quarter of bfloat16."** One e4m3fn scale for 16 codes makes it {bits:g} bits: '
            f"{plain['bytes'] / nvfp4['bytes']:.2f} times smaller, not 4.",
            lambda: bits == 4.5,
        ),
        Statement(
            '**"Grouped-query attention takes 4 KB a token and layer."** '
            f"{plain['bytes'] // 32768 // layers:,} bytes with 8 heads of 128 dims in bfloat16. "
            "It is 2 x heads x dims x 2 bytes: see the table of models.",
            lambda: plain["bytes"] == 32768 * layers * 2 * 8 * 128 * 2,
        ),
        Statement(
            f'**"Latent attention takes about 1.1 KB."** {mla["parts"][0]["bytes_per_token"]:,} bytes in bfloat16, '
            "(512 + 64) x 2; there is one row and no V. vLLM's quantized records have "
            f"{_row('deepseek-v3.2', 'fp8_ds_mla'):,} and {_row('deepseek-v3.2', 'nvfp4_ds_mla'):,} bytes.",
            lambda: mla["parts"][0]["bytes_per_token"] == 1152,
        ),
        Statement(
            '**"Compressed attention takes less than 0.2 KB."** A layer of DeepSeek V4 takes '
            f"{max(wide):g} (compressed sparse) or {min(wide):g} (heavily compressed) bytes a token in bfloat16, "
            f"{max(small):g} or {min(small):.2f} in vLLM's records: true of the records and of the average layer, not "
            "of a sparse layer in bfloat16.",
            lambda: (max(wide), min(wide)) == (320, 8) and max(small) < 0.2 * 1024 < max(wide),
        ),
    )


def _row(model: str, mode: str) -> int:
    """Bytes of a token in the first stream of a layer."""
    return int(_size(model, 64, mode)["parts"][0]["bytes_per_token"])


def _per_layer(model: str, mode: str) -> list[float]:
    """Bytes that a further token takes in a layer, by kind of layer: those of its streams that grow."""
    found: dict[int, float] = {}
    for part in _size(model, 1 << 20, mode)["parts"]:
        if part["window"] is None:
            found[part["layers"]] = found.get(part["layers"], 0) + part["bytes_per_token"]
    return list(found.values())


def _models() -> str:
    """Bytes of a token in all layers and of 32K tokens, by model and mode."""
    rows = []
    for name in _SHOWN:
        layers = "; ".join(map(str, MODELS[name].layers))
        found = {mode: _size(name, _CONTEXT, mode) for mode in _MODES}
        tokens = (f"{found[mode]['bytes_per_token']:,}" for mode in _MODES)
        rows.append((f"`{name}`", layers, *tokens, f"{found['none']['bytes']:,}"))
    header = ("model", "layers", *(f"`{mode}`" for mode in _MODES), "32,768 tokens, `none`")
    return table(header, rows, right=header[2:])


def _latent() -> str:
    """The same for models with latent attention, whose modes are their own."""
    rows = []
    for name, model in MODELS.items():
        if any(group.attention == "kv" for group in model.layers):
            continue
        for mode in modes_of(model):
            found = _size(name, _CONTEXT, mode)
            layers = "; ".join(f"{group.count} {group.attention}" for group in model.layers)
            rows.append((f"`{name}`", layers, f"`{mode}`", f"{found['bytes_per_token']:,.2f}", f"{found['bytes']:,}"))
    header = ("model", "layers", "mode", "bytes per token", "32,768 tokens")
    return table(header, rows, right=header[3:])
