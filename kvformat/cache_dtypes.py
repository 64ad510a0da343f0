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
class Writer:
    """A kernel that writes a cache of some dtype: whose it is, where it runs, and the source that says so."""

    backend: str
    architectures: tuple[str, ...]
    source: str


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
    #: the kernels that write it, as read in vLLM's source
    writers: tuple[Writer, ...]
    traps: tuple[str, ...] = ()

    @property
    def native(self) -> tuple[str, ...]:
        """The architectures on which some kernel writes it, in the order of ARCHITECTURES."""
        return tuple(each for each in ARCHITECTURES if any(each in writer.architectures for writer in self.writers))


_NVIDIA = ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120")
_AMD = ("gfx942", "gfx950")
#: what the writers name; fp8_inc's Gaudi stands outside
ARCHITECTURES = (*_NVIDIA, *_AMD, "cpu", "gaudi")

_COPY = Writer("csrc", (*_NVIDIA, *_AMD), "csrc/cache_kernels.cu L251-421, kAuto: bits are copied")
_COPY_TRITON = Writer("triton", (*_NVIDIA, *_AMD), "vllm/v1/attention/ops/triton_reshape_and_cache_flash.py L32-154")
_COPY_CPU = Writer("cpu", ("cpu",), "csrc/cpu/cpu_attn.cpp L130-135")
# below SM 8.9 NVIDIA's header converts in software, with the same bits
_FP8_CSRC = Writer("csrc", _NVIDIA, "csrc/cache_kernels.cu L251-421, nvidia/quant_utils.cuh L221-272")
_FP8_AMD = Writer("csrc", _AMD, "csrc/quantization/w8a8/fp8/amd/quant_utils.cuh L258-363")
_FP8_TRITON = Writer(
    "triton", (*_NVIDIA[1:], *_AMD), "vllm/v1/attention/ops/triton_reshape_and_cache_flash.py L25-26, L32-154"
)
_FP8_CPU = Writer("cpu", ("cpu",), "csrc/cpu/cpu_attn_fp8.hpp L30-58")
_HEADS = "vllm/v1/attention/ops/triton_reshape_and_cache_flash.py L168-374"
_INT8_HEADS = Writer("triton", (*_NVIDIA, *_AMD), _HEADS)
_FP8_HEADS = Writer("triton", (*_NVIDIA[1:], *_AMD), f"{_HEADS}; fp8 needs SM 8.9, L25-26")
_INT4_HEADS = Writer("triton", (*_NVIDIA, *_AMD), "vllm/v1/attention/ops/int4_per_token_head.py L65-255")
_NVFP4_CSRC = Writer("csrc", ("sm_100",), "csrc/nvfp4_kv_cache_kernels.cu L169-303, V scales swizzled")
_NVFP4_FLASHINFER = Writer(
    "flashinfer", ("sm_80", "sm_90", "sm_120"), "vllm/v1/attention/backends/flashinfer.py L114-115, L2822-2834, linear"
)
_DS_MLA = Writer("csrc", ("sm_90", "sm_100"), "csrc/cache_kernels.cu L530-635; mla/flashmla_sparse.py L156-175")
_NVFP4_DS_MLA = Writer("csrc", ("sm_100",), "csrc/nvfp4_ds_mla_cache_kernels.cu")
_TURBO = Writer("triton", _NVIDIA, "vllm/v1/attention/ops/triton_turboquant_store.py")
_ULTRA = Writer("triton", (*_NVIDIA, *_AMD), "vllm/v1/attention/ops/ultraquant/triton_store.py")
_OCTAVE = Writer("rocm", _AMD, "vllm/v1/attention/ops/rocm_octave.py")
_GAUDI = Writer("gaudi", ("gaudi",), "vllm/utils/torch_utils.py L40-66; the plug-in of Intel Gaudi writes it")

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
_ONE_FORMAT = "fp8 and fp8_e4m3 are one format, but the transfer handshake compares the strings"

_M = KVQuantMode
_PLAIN = (_COPY, _COPY_TRITON, _COPY_CPU)
_FP8 = (_FP8_CSRC, _FP8_AMD, _FP8_TRITON, _FP8_CPU)
_DTYPES = (
    CacheDtype("auto", _M.NONE, "model", "golden/none", "vllm-0.33", _PLAIN,
               ("a modelopt checkpoint resolves it to fp8_e4m3 or nvfp4",)),
    CacheDtype("float16", _M.NONE, "float16", "golden/none", "vllm-0.33", _PLAIN, (_SAME,)),
    CacheDtype("bfloat16", _M.NONE, "bfloat16", "golden/none", "vllm-0.33", _PLAIN, (_SAME,)),
    CacheDtype("fp8", _M.FP8_PER_TENSOR, "uint8", _CSRC_FP8, "vllm-0.33", _FP8, (_FNUZ, _SCALE_ONE, _PREFIX)),
    CacheDtype("fp8_e4m3", _M.FP8_PER_TENSOR, "uint8", _CSRC_FP8, "vllm-0.33", _FP8, (_FNUZ, _SCALE_ONE, _ONE_FORMAT)),
    CacheDtype("fp8_e5m2", _M.FP8_PER_TENSOR, "uint8", "vllm-0.33/csrc-e5m2/fp8_per_tensor", "vllm-0.33",
               (_FP8_CSRC, _FP8_TRITON, _FP8_CPU), (_E5M2, "refused with fp8 checkpoints, except weight-only ones")),
    CacheDtype("fp8_inc", _M.FP8_PER_TENSOR, "float8_e4m3fn", None, None, (_GAUDI,), ("Intel Gaudi only",)),
    CacheDtype("fp8_ds_mla", _M.FP8_PER_TENSOR, "uint8", "vllm-0.33/csrc/fp8_ds_mla", "vllm-0.33-mla", (_DS_MLA,),
               (_NOT_A_TENSOR, "the sparse MLA backend rewrites other fp8 strings to it")),
    CacheDtype("nvfp4_ds_mla", _M.NVFP4_DS_MLA, "uint8", "vllm-0.33/csrc/nvfp4_ds_mla", "vllm-0.33-mla",
               (_NVFP4_DS_MLA,), (_TWO_RECORDS,)),
    CacheDtype("turboquant_k8v4", _M.TURBOQUANT_K8V4, "uint8", None, None, (_TURBO,),
               ("K is e4b15 below SM 8.9, e4m3 otherwise: not portable between GPUs",)),
    CacheDtype("turboquant_4bit_nc", _M.TURBOQUANT_4BIT_NC, "uint8", None, None, (_TURBO,)),
    CacheDtype("turboquant_k3v4_nc", _M.TURBOQUANT_K3V4_NC, "uint8", None, None, (_TURBO,)),
    CacheDtype("turboquant_3bit_nc", _M.TURBOQUANT_3BIT_NC, "uint8", None, None, (_TURBO,)),
    CacheDtype("octave_k3v4", _M.OCTAVE_K3V4, "uint8", None, None, (_OCTAVE,), (_ALIAS,)),
    CacheDtype("octave_k3v3", _M.OCTAVE_K3V3, "uint8", None, None, (_OCTAVE,)),
    CacheDtype("octave_k3v3_compact", _M.OCTAVE_K3V3_COMPACT, "uint8", None, None, (_OCTAVE,)),
    CacheDtype("ultraquant_4bit", _M.ULTRAQUANT_4BIT, "uint8", None, None, (_ULTRA,)),
    CacheDtype("int4_per_token_head", _M.INT4_PER_TOKEN_HEAD, "uint8", "vllm-0.33/triton/int4_per_token_head",
               "vllm-0.33", (_INT4_HEADS,),
               ("the zero point lies in the low 4 bits of the float32 scale",
                "its Hadamard transform has three implementations with different bits")),
    CacheDtype("int8_per_token_head", _M.INT8_PER_TOKEN_HEAD, "int8", "vllm-0.33/triton/int8_per_token_head",
               "vllm-0.33", (_INT8_HEADS,), ("the scale is at least 1e-6", _PREFIX)),
    CacheDtype("fp8_per_token_head", _M.FP8_PER_TOKEN_HEAD, "uint8", "vllm-0.33/triton/fp8_per_token_head",
               "vllm-0.33", (_FP8_HEADS,), (_FNUZ, "the scale is at least 1e-6")),
    CacheDtype("nvfp4", _M.NVFP4, "uint8", "vllm-0.33/csrc/nvfp4", "vllm-0.33", (_NVFP4_CSRC, _NVFP4_FLASHINFER),
               (_V_SCALES, _SCALE_ONE, "refused for MLA models")),
    CacheDtype("nvfp4_4over6", _M.NVFP4, "uint8", "vllm-0.33/csrc/nvfp4_4over6", "vllm-0.33", (_NVFP4_CSRC,),
               ("which candidate wins depends on the order in which the build sums errors",)),
)  # fmt: skip

#: every --kv-cache-dtype string by name
CACHE_DTYPES: Mapping[str, CacheDtype] = MappingProxyType({each.name: each for each in _DTYPES})


def mode(name: str) -> CacheDtype:
    """What a --kv-cache-dtype string means. Raises InputError, naming the close ones, for an unknown one."""
    if name not in CACHE_DTYPES:
        raise unknown_name("--kv-cache-dtype", name, CACHE_DTYPES)
    return CACHE_DTYPES[name]
