"""Every string that vLLM 0.33 takes as --kv-cache-dtype: its mode, what it stores, who runs it, and where it bites."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType

from kvformat.errors import unknown_name


class KVQuantMode(IntEnum):
    """vLLM 0.33's KVQuantMode (vllm/v1/kv_cache_interface.py L40-118), its double use of 12 included."""

    NONE = 0
    FP8_PER_TENSOR = 1
    INT8_PER_TOKEN_HEAD = 2
    FP8_PER_TOKEN_HEAD = 3
    INT4_PER_TOKEN_HEAD = 4
    NVFP4 = 5
    TURBOQUANT_K8V4 = 6
    TURBOQUANT_4BIT_NC = 7
    TURBOQUANT_K3V4_NC = 8
    TURBOQUANT_3BIT_NC = 9
    NVFP4_DS_MLA = 10
    ULTRAQUANT_4BIT = 11
    OCTAVE_K3V4 = 12
    OCTAVE_K3V3 = 13
    OCTAVE_K3V3_COMPACT = 14
    CUSTOM = 12


@dataclass(frozen=True)
class CacheDtype:
    """What one --kv-cache-dtype string means."""

    name: str
    mode: KVQuantMode
    #: torch dtype of the cache tensor; `model`: the model's own
    storage: str
    #: recipe that the engine's default writer follows; None: no recipe describes it yet
    recipe: str | None
    #: layout whose pages it fills; None: no layout describes them yet
    layout: str | None
    #: where a kernel for it exists, as vLLM names architectures
    native: tuple[str, ...]
    traps: tuple[str, ...] = ()
    source: str = "vllm/config/cache.py L44-67, vllm/utils/torch_utils.py L40-66"


_EVERYWHERE = ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120", "gfx942", "gfx950", "cpu")
_FP8 = ("sm_89", "sm_90", "sm_100", "sm_120", "gfx942", "gfx950", "cpu")
_TRITON = ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120", "gfx942", "gfx950")
_FP8_TRITON = ("sm_89", "sm_90", "sm_100", "sm_120", "gfx942", "gfx950")
_CSRC_FP8 = "vllm-0.33/csrc/fp8_per_tensor"
_FNUZ = "gfx942 stores e4m3fnuz: the same byte means half the value, and scales are doubled"
_PREFIX = "the prefix hash does not contain the dtype: a shared store must keep the strings apart itself"
_SCALE_ONE = "without a scale in the checkpoint, 1.0 is used; nothing is calibrated at run time"
_E5M2 = "the Triton and the ROCm AITER backends store e4m3 bytes under this name; CUDA, CPU and FlashInfer store e5m2"
_V_SCALES = "SM100 swizzles the V scales inside groups of 4 tokens; SM80, 90 and 120 write them linear"
_TWO_RECORDS = "two records have this name: 352 bytes (DeepSeek V3.2) and 288 bytes (V4.1), chosen by the model"
_SAME = "must equal the model's dtype"
_NOT_A_TENSOR = "one scale per 128 dims and not per tensor, whatever the mode says"
_ALIAS = "OCTAVE_K3V4 and CUSTOM are one integer, 12"

_M = KVQuantMode
_DTYPES = (
    CacheDtype("auto", _M.NONE, "model", "golden/none", "vllm-0.33", _EVERYWHERE,
               ("a modelopt checkpoint resolves it to fp8_e4m3 or nvfp4",)),
    CacheDtype("float16", _M.NONE, "float16", "golden/none", "vllm-0.33", _EVERYWHERE, (_SAME,)),
    CacheDtype("bfloat16", _M.NONE, "bfloat16", "golden/none", "vllm-0.33", _EVERYWHERE,
               (_SAME,)),
    CacheDtype("fp8", _M.FP8_PER_TENSOR, "uint8", _CSRC_FP8, "vllm-0.33", _FP8, (_FNUZ, _SCALE_ONE, _PREFIX)),
    CacheDtype("fp8_e4m3", _M.FP8_PER_TENSOR, "uint8", _CSRC_FP8, "vllm-0.33", _FP8,
               (_FNUZ, _SCALE_ONE, "fp8 and fp8_e4m3 are one format, but the transfer handshake compares the strings")),
    CacheDtype("fp8_e5m2", _M.FP8_PER_TENSOR, "uint8", None, "vllm-0.33", _FP8,
               (_E5M2, "refused with fp8 checkpoints, except weight-only ones")),
    CacheDtype("fp8_inc", _M.FP8_PER_TENSOR, "float8_e4m3fn", None, None, ("gaudi",), ("Intel Gaudi only",)),
    CacheDtype("fp8_ds_mla", _M.FP8_PER_TENSOR, "uint8", "vllm-0.33/csrc/fp8_ds_mla", None, ("sm_90", "sm_100"),
               (_NOT_A_TENSOR, "the sparse MLA backend rewrites other fp8 strings to it")),
    CacheDtype("nvfp4_ds_mla", _M.NVFP4_DS_MLA, "uint8", "vllm-0.33/csrc/nvfp4_ds_mla", None, ("sm_100",),
               (_TWO_RECORDS,)),
    CacheDtype("turboquant_k8v4", _M.TURBOQUANT_K8V4, "uint8", None, None, _TRITON,
               ("K is e4b15 below SM 8.9, e4m3 otherwise: not portable between GPUs",)),
    CacheDtype("turboquant_4bit_nc", _M.TURBOQUANT_4BIT_NC, "uint8", None, None, _TRITON),
    CacheDtype("turboquant_k3v4_nc", _M.TURBOQUANT_K3V4_NC, "uint8", None, None, _TRITON),
    CacheDtype("turboquant_3bit_nc", _M.TURBOQUANT_3BIT_NC, "uint8", None, None, _TRITON),
    CacheDtype("octave_k3v4", _M.OCTAVE_K3V4, "uint8", None, None, ("gfx942", "gfx950"), (_ALIAS,)),
    CacheDtype("octave_k3v3", _M.OCTAVE_K3V3, "uint8", None, None, ("gfx942", "gfx950")),
    CacheDtype("octave_k3v3_compact", _M.OCTAVE_K3V3_COMPACT, "uint8", None, None, ("gfx942", "gfx950")),
    CacheDtype("ultraquant_4bit", _M.ULTRAQUANT_4BIT, "uint8", None, None, _TRITON),
    CacheDtype("int4_per_token_head", _M.INT4_PER_TOKEN_HEAD, "uint8", "vllm-0.33/triton/int4_per_token_head", None,
               _TRITON,
               ("the zero point lies in the low 4 bits of the float32 scale",
                "its Hadamard transform has three implementations with different bits")),
    CacheDtype("int8_per_token_head", _M.INT8_PER_TOKEN_HEAD, "int8", "vllm-0.33/triton/int8_per_token_head",
               "vllm-0.33", _TRITON, ("the scale is at least 1e-6", _PREFIX)),
    CacheDtype("fp8_per_token_head", _M.FP8_PER_TOKEN_HEAD, "uint8", "vllm-0.33/triton/fp8_per_token_head",
               "vllm-0.33", _FP8_TRITON, (_FNUZ, "the scale is at least 1e-6")),
    CacheDtype("nvfp4", _M.NVFP4, "uint8", "vllm-0.33/csrc/nvfp4", "vllm-0.33", ("sm_80", "sm_90", "sm_100", "sm_120"),
               (_V_SCALES, _SCALE_ONE, "refused for MLA models")),
    CacheDtype("nvfp4_4over6", _M.NVFP4, "uint8", "vllm-0.33/csrc/nvfp4_4over6", "vllm-0.33", ("sm_100",),
               ("which candidate wins depends on the order in which the build sums errors",)),
)  # fmt: skip

#: every --kv-cache-dtype string by name
CACHE_DTYPES: Mapping[str, CacheDtype] = MappingProxyType({each.name: each for each in _DTYPES})


def mode(name: str) -> CacheDtype:
    """What a --kv-cache-dtype string means. Raises InputError, naming the close ones, for an unknown one."""
    if name not in CACHE_DTYPES:
        raise unknown_name("--kv-cache-dtype", name, CACHE_DTYPES)
    return CACHE_DTYPES[name]
