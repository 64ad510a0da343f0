"""The scales of a checkpoint as they lie in its files: only headers and the scales themselves are read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kvformat.checkpoint.spellings import SIDES, SPELLINGS, SUSPECT, Side
from kvformat.errors import InputError

#: no K or V scale has more values than heads; a larger tensor of such a name is something else
MOST_VALUES = 4096
_DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
}
_LAYER = re.compile(r"(?:.*?\.)?(?P<layer>\d+)\.(?P<tail>.+)")


@dataclass(frozen=True)
class Scale:
    """A scale of one layer and side.

    values: float64 (1,) or (KV heads,). spelling: "" where nothing is known that loads such a name.
    """

    layer: int
    side: Side
    name: str
    spelling: str
    values: NDArray[np.float64]
    file: str


@dataclass(frozen=True)
class Checkpoint:
    """What was read. layers: how many the model has, from its config or, without one, from the tensors.

    quantization: its quantization_config; empty where it has none.
    """

    path: str
    layers: int
    quantization: Mapping[str, Any]
    scales: tuple[Scale, ...]

    @property
    def method(self) -> str:
        """The quant_method of its quantization_config, "" without one."""
        return str(self.quantization.get("quant_method", ""))

    def of(self, layer: int, side: Side) -> tuple[Scale, ...]:
        """The scales of a layer and side; more than one where two spellings name it."""
        return tuple(each for each in self.scales if (each.layer, each.side) == (layer, side))


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read the K and V scales of a checkpoint.

    Parameters
    ----------
    path : str or Path
        A folder with safetensors files (and config.json, hf_quant_config.json where they are there), one safetensors
        file, or a JSON file of scales as SGLang's `--quantization-param-path` takes it.

    Raises
    ------
    InputError
        For a path without any of these, files that cannot be read, and a layer whose name cannot be told.

    """
    where = Path(path)
    if where.suffix == ".json" and where.is_file():
        scales = tuple(_of_json(where))
        return Checkpoint(str(path), 1 + max((each.layer for each in scales), default=-1), {}, scales)
    files = sorted(where.glob("*.safetensors")) if where.is_dir() else [where]
    if not files or not files[0].is_file():
        raise InputError(f"{path}: no safetensors file; a checkpoint's folder, a safetensors or a JSON file is wanted")
    config = _json(where / "config.json") if where.is_dir() else {}
    exported = _json(where / "hf_quant_config.json") if where.is_dir() else {}
    found: list[Scale] = []
    highest = -1
    for file in files:
        for layer, scale in _of_safetensors(file):
            highest = max(highest, layer)
            found.extend(scale)
    text = config.get("text_config", {})
    layers = config.get("num_hidden_layers", text.get("num_hidden_layers", highest + 1))
    if not isinstance(layers, int) or layers < 1:
        raise InputError(f"{path}: num_hidden_layers in config.json must be a number of layers; got {layers!r}")
    quantization = config.get("quantization_config") or _modelopt(exported)
    found.sort(key=lambda each: (each.layer, each.side, each.name))
    return Checkpoint(str(path), layers, quantization, tuple(found))


def _modelopt(exported: Mapping[str, Any]) -> Mapping[str, Any]:
    """ModelOpt's hf_quant_config.json as a quantization_config."""
    section = exported.get("quantization")
    return {"quant_method": "modelopt", **section} if isinstance(section, dict) else {}


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise InputError(f"{path}: must be a JSON object; got {type(document).__name__}")
    return document


def _of_json(path: Path) -> Iterator[Scale]:
    """{"kv_cache": {"scaling_factor": {"0": {"3": 0.02}}}}: tensor-parallel rank, layer, one scale for K and V."""
    section = _json(path).get("kv_cache")
    ranks = section.get("scaling_factor") if isinstance(section, dict) else None
    if not isinstance(ranks, dict):
        raise InputError(f"{path}: has no kv_cache.scaling_factor, which a file of scales holds")
    for rank, layers in ranks.items():
        if not isinstance(layers, dict):
            raise InputError(f"{path}: scaling_factor.{rank} must map layers to numbers")
        for layer, value in layers.items():
            if not str(layer).isdecimal() or not isinstance(value, (int, float)):
                raise InputError(f"{path}: scaling_factor.{rank}.{layer} must be a layer's number and a scale")
            for side in SIDES:
                name = f"kv_cache.scaling_factor.{rank}.{layer}"
                yield Scale(int(layer), side, name, "one for both", np.array([value], np.float64), path.name)


def _of_safetensors(path: Path) -> Iterator[tuple[int, list[Scale]]]:
    """Each tensor that belongs to a layer: the layer, and the scales of K and V that it is, if any."""
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError:
        raise InputError("checkpoints are safetensors files; pip install 'kvformat[cli]'") from None
    try:
        with safe_open(path, framework="numpy") as tensors:
            for name in tensors.keys():  # noqa: SIM118 it is no dict
                found = _LAYER.fullmatch(name)
                if found is None:
                    continue
                spelling, sides = _spelt(found["tail"])
                scales = []
                if sides:
                    values = _values(path, name, tensors.get_slice(name), tensors)
                    scales = [Scale(int(found["layer"]), side, name, spelling, values, path.name) for side in sides]
                yield int(found["layer"]), scales
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: cannot be read as safetensors: {error}") from error


def _spelt(tail: str) -> tuple[str, tuple[Side, ...]]:
    for spelling in SPELLINGS:
        sides = spelling.match(tail)
        if sides:
            return spelling.name, sides
    found = SUSPECT.fullmatch(tail)
    if found is None or re.search(r"weight|input|proj\.", tail):
        return "", ()
    first = found["side"][:2].lower()
    return "", SIDES if first == "kv" else ("k",) if first[0] == "k" else ("v",)


def _values(path: Path, name: str, header: Any, tensors: Any) -> NDArray[np.float64]:
    """A scale's values, float64, flat."""
    shape, dtype = header.get_shape(), header.get_dtype()
    if dtype not in _DTYPES or int(np.prod(shape)) > MOST_VALUES or 0 in shape:
        raise InputError(f"{path}: {name} is {dtype} of shape {tuple(shape)}; a scale is one float, or one per head")
    flat: NDArray[np.float64] = np.asarray(tensors.get_tensor(name)).astype(np.float64).reshape(-1)
    return flat
