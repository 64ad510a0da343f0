"""The layers of a worker under watch: wrapped after load_model, looked at after each step, and what that cost."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from kvformat.dump import Dump
from kvformat.errors import InputError
from kvformat.recipes.catalogue import recipe as find_recipe
from kvformat.verify import check
from kvformat.verify.report import Report
from kvformat.vllm.expected import Expected, architecture, expected, unwatched
from kvformat.vllm.layer import Captured, Layer, Shapes
from kvformat.vllm.settings import Settings

#: a line with the cost so far after the first step and each so-manyth
SAID_EVERY = 64


class Session:
    """All watched layers of a worker, and what was seen of them."""

    def __init__(self, settings: Settings, version: str, rank: int | None = None, out: TextIO | None = None) -> None:
        self.settings, self.version, self.rank, self._out = settings, version, rank, out
        self.gpu: str | None = None
        self.layers: list[Layer] = []
        self.unwatched: dict[str, str] = {}
        self.step = -1
        self.judged = self.tokens = self.compared = self.differing = self.saved = 0
        #: seconds in the engine's own steps, and in what is done after them
        self.engine = self.cost = 0.0

    def say(self, line: str) -> None:
        """One line to stderr, or where the session was told to."""
        out = self._out or sys.stderr
        out.write(line + "\n")
        out.flush()

    def attach(self, layers: Mapping[str, Any], tokens: int, dtype: Any, device: Any) -> None:
        """Wrap the writers of the layers; a step has at most so many tokens. Raises InputError if none can be wrapped.

        dtype, device: the model's, which K and V have when they come to the writer. Raises InputError too where dumps
        of an earlier run lie where this one's would.
        """
        self._clear()
        self.gpu = _gpu(device)
        for number, (name, layer) in enumerate(layers.items()):
            impl = getattr(layer, "impl", None)
            if impl is None or number not in self.settings.layers:
                continue
            why = unwatched(impl, layer)
            if why is None:
                try:
                    self._watch(number, name, layer, tokens, dtype, device)
                except InputError as error:
                    why = str(error)
            if why is not None:
                self.unwatched[name] = why
        for name, why in self.unwatched.items():
            self.say(f"kvformat: not watched: {name}: {why}")
        self._something()
        held = sum(layer.captured.size for layer in self.layers)
        first = self.layers[0].expected
        self.say(
            f"kvformat: {len(self.layers)} layers watched, {len(self.unwatched)} not; {first.layout}, mode "
            f"{first.mode}; buffers of {held / 2**20:,.1f} MiB for {tokens:,} tokens a step"
        )

    def _clear(self) -> None:
        """Nothing of an earlier run is overwritten, or taken for this one's."""
        folder = self.settings.saves
        if folder is not None and any(folder.glob(self._file("*", "*"))):
            raise InputError(f"{folder} has dumps of an earlier run: move them, or name another folder")

    def _file(self, step: str, layer: str) -> str:
        """The name of a dump. Each of several workers has its own: it has its own heads, layers or requests."""
        rank = "" if self.rank is None else f".rank-{self.rank:03}"
        return f"step-{step}.layer-{layer}{rank}.safetensors"

    def _something(self) -> None:
        if not self.layers:
            raise InputError("nothing is watched: no layer's writes can be seen or judged")

    def _watch(self, number: int, name: str, layer: Any, tokens: int, dtype: Any, device: Any) -> None:
        size = layer.head_size
        size_v = getattr(layer, "head_size_v", None) or size
        shapes = Shapes(layer.num_heads, layer.num_kv_heads, size, size_v, dtype, device)
        buffers = Captured.allocated(tokens, shapes, attention=self.settings.dump is not None)
        self.layers.append(Layer(number, name, layer, self._expected(layer), buffers))

    def _expected(self, layer: Any) -> Expected:
        """What the layer's pages should be."""
        layout, recipe = self.settings.layout, self.settings.recipe
        if layout and recipe:
            return Expected(layout, find_recipe(recipe).mode, recipe)
        dtype = str(getattr(layer.impl, "kv_cache_dtype", "auto"))
        found = expected(dtype, self.version, _backend(layer), getattr(layer, "isa", None), self.gpu)
        layout, recipe = layout or found.layout, recipe or found.recipe
        made = Expected(layout, found.mode, recipe)
        if made.declared is not None and made.declared.mode != found.mode:
            raise InputError(f"KVFORMAT_RECIPE {recipe} is of another mode than the layer's, {found.mode}")
        return made

    def run(self, execute: Callable[[], Any], *, whole: bool = False) -> Any:
        """One step of the engine, and what it wrote looked at.

        whole: the step's tokens are all of one sequence: its query and output can be judged with it.
        """
        start = time.perf_counter()
        for layer in self.layers:
            layer.begin()
        began = time.perf_counter()
        result = execute()
        done = time.perf_counter()
        self._look(whole=whole)
        end = time.perf_counter()
        self.engine += done - began
        self.cost += (began - start) + (end - done)
        if self.step >= 0 and self.step % SAID_EVERY == 0:
            self.say(self.summary())
        return result

    def _settle(self) -> None:
        """Take leave of layers that turn out to have other pages: the CPU backend chooses them after load_model."""
        for layer in tuple(self.layers):
            try:
                self._expected(layer.layer)
            except InputError as error:
                self.unwatched[layer.name] = str(error)
                self.layers.remove(layer)
                self.say(f"kvformat: not watched: {layer.name}: {error}")
        self._something()

    def _look(self, *, whole: bool) -> None:
        """Judge and save what the step wrote, layer by layer; a step that wrote nothing has no number."""
        if self.step < 0:
            self._settle()
        # all layers write the same tokens: the first that wrote any is asked, for each answer waits for the device
        tokens = next((count for layer in self.layers if (count := layer.written())), 0)
        if not tokens:
            return
        self.step += 1
        self.tokens += tokens
        folder = self.settings.dump if self.settings.dumps(self.step) else None
        if folder is None and self.settings.watch is None:
            return
        for layer in self.layers:
            dump = layer.dump()
            if dump is None:
                continue
            if folder is not None:
                self._save(folder, layer, (layer.dump(sequence=True) if whole else None) or dump)
            if self.settings.watch is not None:
                self._judge(layer, dump)

    def _judge(self, layer: Layer, dump: Dump) -> None:
        report = check(dump)
        self.judged += 1
        self.compared += report.compared
        if report.ok:
            return
        self.differing += 1
        saved = self._save(self.settings.saves, layer, dump) if self.settings.watch == "save" else None
        self.say(json.dumps(self._difference(layer, report, saved)))
        if self.settings.watch == "raise":
            raise AssertionError(f"{layer.name}, step {self.step}: {report}")

    def _difference(self, layer: Layer, report: Report, saved: str | None) -> dict[str, Any]:
        return {
            "kvformat": "difference",
            "step": self.step,
            "layer": layer.number,
            "name": layer.name,
            "recipe": report.recipe,
            "layout": report.layout["name"],
            "compared": report.compared,
            "mismatches": report.mismatches,
            "first": None if report.first is None else dict(report.first),
            "saved": saved,
        }

    def _save(self, folder: Any, layer: Layer, dump: Dump) -> str:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / self._file(f"{self.step:05}", f"{layer.number:03}")
        if not path.exists():  # a chosen step's dump that differs is there already
            dump.save(path)
            self.saved += 1
        return str(path)

    def summary(self) -> str:
        """What was seen, and what it cost."""
        steps = max(1, self.step + 1)
        share = self.cost / self.engine if self.engine else 0.0
        missed = sum(layer.missed for layer in self.layers)
        unseen = f"{missed:,} writes not seen, for they had more tokens than planned; " if missed else ""
        return (
            f"kvformat: {self.step + 1} steps, {self.tokens:,} tokens; {self.judged:,} writes judged, "
            f"{self.compared:,} codes and scales, {self.differing} writes differ; {self.saved} dumps saved; "
            f"{unseen}cost {1000 * self.cost / steps:.1f} ms a step, {share:.0%} of the engine's own "
            f"{1000 * self.engine / steps:.1f} ms"
        )


def _backend(layer: Any) -> str:
    """The name of a layer's attention backend."""
    backend: Any = getattr(layer, "attn_backend", None)
    return type(layer.impl).__name__ if backend is None else str(backend.get_name())


def _gpu(device: Any) -> str | None:
    """The architecture of a device, of those that the catalogue names; None for one that is no GPU."""
    import torch

    if getattr(device, "type", None) != "cuda":
        return None
    if torch.version.hip:
        return str(torch.cuda.get_device_properties(device).gcnArchName).partition(":")[0]
    return architecture(torch.cuda.get_device_capability(device))
