"""LMCache 0.5.6: how its storage serializers quantize."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def _asym(granularity: str, notes: str) -> Mapping[str, Any]:
    return {
        "name": f"lmcache-0.5/asym-k16-v8/fp8_{granularity}",
        "mode": f"fp8_{granularity}",
        "element": "e4m3fn",
        "scales": [
            {
                "name": "s",
                "granularity": granularity,
                "program": "a = amax(x)\ns = select(lt(0, a), div(a, 448), 1)",
                "may_be_given": granularity == "per_tensor",
            }
        ],
        "code": "c = encode(clamp(div(x, s), -448, 448), e4m3fn)",
        "value": "v = mul(c, s)",
        "source": "lmcache 0.5.6, lmcache/v1/kv_codec/asym_k16_v8.py",
        "notes": f"V only; K is kept in its own dtype. {notes} An amax of NaN counts as none: the scale is 1 and the "
        "other elements keep their values.",
    }


ENTRIES: tuple[Mapping[str, Any], ...] = (
    _asym("per_tensor", "The default scope."),
    _asym("per_head", "Scope PER_LAYER_HEAD."),
    {
        "name": "lmcache-0.5/serde/fp8_unscaled",
        "mode": "fp8_unscaled",
        "element": "e4m3fn",
        "code": "c = encode(x, e4m3fn)",
        "value": "v = mul(c, 1)",
        "source": "lmcache 0.5.6, lmcache/v1/distributed/serde/fp8.py L42, L86",
        "notes": "A plain cast of K and V, one byte an element, no scale and no metadata. Overflow is what torch's "
        "cast does: saturation, of Inf too, since torch 2.12.",
    },
)
