"""What kernels could not do: a flag on each device, read when asked for, since reading it waits for the device."""

from __future__ import annotations

import torch

from kvformat.errors import InputError

#: per device: the largest token whose slot (0) or block (1) was past the end, plus 1
_FLAGS: dict[torch.device, torch.Tensor] = {}


def flags(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The device's flags for slots and for blocks, int64 (1,) each, which kernels raise.

    They are made by the first call on a device, which should therefore not be the one that a CUDA graph captures.
    """
    if device not in _FLAGS:
        _FLAGS[device] = torch.zeros(2, dtype=torch.int64, device=device)
    both = _FLAGS[device]
    return both[:1], both[1:]


def check_errors() -> None:
    """Wait for all devices that kernels ran on; raise InputError if one met a slot or block past the end.

    Such a slot writes nothing, and such a block reads as zeros; the flag names the last token it happened to. The flags
    are lowered. A CPU tensor needs no such call: its errors are raised where they happen.
    """
    raised = []
    for device, both in _FLAGS.items():
        slot, block = both.tolist()
        both.zero_()
        if slot:
            raised.append(f"{device}: token {slot - 1} has a slot past the end; it was not written")
        if block:
            raised.append(f"{device}: token {block - 1} lies in a block that the cache does not have; it reads as 0")
    if raised:
        raise InputError("; ".join(raised))
