"""What is measured on the real model, as data: which recipe stores K and V, quantizes the weights, or both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from kvformat.simulate.storage import BF16, Side, Storage

#: where a per-tensor scale comes from: computed over what is written, 1.0 as engines take it without a calibration, or
#: the amax of another part of the text
ScaleFrom = Literal["", "1.0", "calibrated"]


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    name: str
    key: str = "golden/none"
    value: str = "golden/none"
    scale: ScaleFrom = ""
    #: the recipe that the linear layers' weights go through, each output channel a row
    weights: str | None = None
    #: layers whose keys get a constant of the size that Qwen2.5's edge layers have; attention takes it off exactly
    profile: str = ""
    #: that constant is known, and taken away before the keys are stored
    debias: bool = False

    def storage(self, k_scale: float | None, v_scale: float | None) -> Storage:
        """How one layer is stored, with its scales."""
        sides = (Side(self.key, k_scale), Side(self.value, v_scale))
        key, value = (side if side.mode in TENSOR_SCALED else replace(side, scale=None) for side in sides)
        return Storage(key, value)

    @property
    def recipe(self) -> str:
        """The recipe that the case is about."""
        return next((each for each in (self.key, self.value) if each != BF16.recipe), self.weights or BF16.recipe)


TENSOR_SCALED = ("fp8_per_tensor", "nvfp4")

_FORMATS = {
    "INT8 per token head": "golden/int8_per_token_head",
    "FP8 per token head": "golden/fp8_per_token_head",
    "NVFP4": "golden/nvfp4",
}


def _both(name: str, recipe: str, scale: ScaleFrom = "") -> Case:
    return Case(name, recipe, recipe, scale)


#: the cache that every other one is compared with
BASE = Case("bf16")

CASES: tuple[Case, ...] = (
    _both("INT8 per token head", "golden/int8_per_token_head"),
    _both("FP8 per token head", "golden/fp8_per_token_head"),
    _both("FP8 per tensor, scale 1.0", "golden/fp8_per_tensor", "1.0"),
    _both("FP8 per tensor, calibrated", "golden/fp8_per_tensor", "calibrated"),
    _both("NVFP4, calibrated", "golden/nvfp4", "calibrated"),
    _both("NVFP4, scale 1.0", "golden/nvfp4", "1.0"),
    *(Case(f"{name}, K only", key=recipe, scale="calibrated") for name, recipe in _FORMATS.items()),
    *(Case(f"{name}, V only", value=recipe, scale="calibrated") for name, recipe in _FORMATS.items()),
    *(Case(f"{name}, weights only", weights=recipe) for name, recipe in _FORMATS.items()),
    Case("K FP8 per token head, V NVFP4", "golden/fp8_per_token_head", "golden/nvfp4", "calibrated"),
    _both("vLLM INT8 per token head", "vllm-0.33/triton/int8_per_token_head"),
    _both("vLLM FP8 per token head", "vllm-0.33/triton/fp8_per_token_head"),
    _both("vLLM NVFP4, scale 1.0", "vllm-0.33/csrc/nvfp4", "1.0"),
    _both("vLLM NVFP4 4over6, scale 1.0", "vllm-0.33/csrc/nvfp4_4over6", "1.0"),
    Case("bf16, biased keys", profile="qwen_edge"),
    *(
        Case(
            f"{name}, biased keys{', debias' if debias else ''}",
            recipe,
            recipe,
            "calibrated",
            None,
            "qwen_edge",
            debias,
        )
        for name, recipe in _FORMATS.items()
        for debias in (False, True)
    ),
)
