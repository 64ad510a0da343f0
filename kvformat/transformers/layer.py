"""One layer of a simulated cache: the layer that transformers made, with pages between the model and attention."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kvformat.arrays import array, tensor
from kvformat.errors import InputError
from kvformat.transformers.error import CacheError
from kvformat.transformers.pages import SequencePages, Stored


class SimulatedLayer:
    """What is put in front of a class of `transformers.cache_utils`: its `keys` and `values` hold what was read back.

    Lengths, masks, windows and cropping are those of the class behind. Positions count from the first token that the
    layer was given; `given` and `seen` have all of them, those that a sliding window has left included.
    """

    stored: Stored
    #: tokens at the start and at the end that are not quantized
    keep_first: int
    keep_last: int
    #: None until the first update shows the model's heads
    pages: SequencePages | None
    #: positions below this one were stored, but for the first `keep_first`
    quantized: int
    #: K and V as the model gave them, and as attention sees them: (batch, heads, tokens, head size)
    given: tuple[torch.Tensor, torch.Tensor]
    seen: tuple[torch.Tensor, torch.Tensor]
    #: of the class behind: the K and V that the next update goes on from, None or empty before the first one
    keys: torch.Tensor | None
    values: torch.Tensor | None

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Store the new tokens, and return what the class behind returns for the K and V that were read back."""
        self._append(key_states.detach(), value_states.detach())
        length = self._length
        before = length - key_states.shape[-2]
        start, stop = max(self.quantized, self.keep_first), length - self.keep_last
        if stop > start:
            self._store(start, stop)
        if self.keys is not None and self.keys.numel():  # a token that leaves the last ones changes in there as well
            held = self.keys.shape[-2]
            self.keys, self.values = (each[..., before - held : before, :] for each in self.seen)
        new = (each[..., before:, :] for each in self.seen)
        return super().update(*new, *args, **kwargs)  # type: ignore[misc]

    @property
    def _length(self) -> int:
        """Tokens that the layer was given and has not cropped."""
        return 0 if self.pages is None else self.given[0].shape[-2]

    def _append(self, key: torch.Tensor, value: torch.Tensor) -> None:
        if self.pages is None:
            batch, heads, _, head_size = key.shape
            if value.shape[1] != heads:
                raise InputError(f"K has {heads} heads and V {value.shape[1]}; pages have one number of heads")
            self.pages = SequencePages(self.stored, batch, heads, head_size, value.shape[-1])
            self.given = key.clone(), value.clone()
            self.seen = key.clone(), value.clone()
            return
        new = key, value
        self.given = _pair(torch.cat([old, more], dim=-2) for old, more in zip(self.given, new, strict=True))
        self.seen = _pair(torch.cat([old, more], dim=-2) for old, more in zip(self.seen, new, strict=True))

    def _store(self, start: int, stop: int) -> None:
        """Write positions start..stop-1 to the pages; what is read back is what attention sees."""
        assert self.pages is not None
        key, value = (np.ascontiguousarray(array(each[..., start:stop, :].cpu()).swapaxes(1, 2)) for each in self.given)
        for seen, back in zip(self.seen, self.pages.write(key, value, start), strict=True):
            seen[..., start:stop, :] = tensor(np.ascontiguousarray(back.swapaxes(1, 2))).to(seen.device)
        self.quantized = stop

    def given_tokens(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]:
        """Key, value (batch * tokens, heads, head size) and slots; a token that is not in the pages has slot -1."""
        assert self.pages is not None
        slots = self.pages.slots(0, self._length).reshape(self.pages.batch, -1)
        slots[:, : self.keep_first] = -1
        slots[:, self.quantized :] = -1
        key, value = (array(each.cpu()).swapaxes(1, 2) for each in self.given)
        return key.reshape(-1, *key.shape[2:]), value.reshape(-1, *value.shape[2:]), slots.reshape(-1)

    def error(self) -> CacheError:
        """The error of what attention sees, per token."""
        given, seen = (tuple(array(each.cpu()) for each in pair) for pair in (self.given, self.seen))
        return CacheError.of(given, seen)

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens; a negative number, as in transformers. Their bytes stay in the pages."""
        super().crop(tokens_to_remove)  # type: ignore[misc]
        if self.pages is None or not tokens_to_remove:
            return
        self._each(lambda x: x[..., :tokens_to_remove, :])
        self.quantized = min(self.quantized, self._length)

    def reset(self) -> None:
        """Forget everything; the next update makes new pages."""
        super().reset()  # type: ignore[misc]
        self.pages, self.quantized = None, 0

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Go on with these sequences (beam search)."""
        super().reorder_cache(beam_idx)  # type: ignore[misc]
        self._select(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each sequence so many times."""
        super().batch_repeat_interleave(repeats)  # type: ignore[misc]
        if self.pages is not None:
            self._select(torch.arange(self.pages.batch).repeat_interleave(repeats))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Only these sequences."""
        super().batch_select_indices(indices)  # type: ignore[misc]
        if self.pages is not None:
            self._select(torch.arange(self.pages.batch)[indices.cpu()])

    def _select(self, sequences: torch.Tensor) -> None:
        if self.pages is None:
            return
        self._each(lambda x: x.index_select(0, sequences.to(x.device)))
        self.pages.select(sequences.cpu().numpy())

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Change all that is kept per token and sequence in one way."""
        self.given, self.seen = _pair(map(change, self.given)), _pair(map(change, self.seen))


def simulated(layer: Any, stored: Stored, keep_first: int, keep_last: int) -> Any:
    """The layer, not used yet, with pages in front of it."""
    kind: Any = type(layer)
    made: Any = object.__new__(_in_front_of(kind))
    vars(made).update(vars(layer))
    made.stored, made.keep_first, made.keep_last = stored, keep_first, keep_last
    made.pages, made.quantized = None, 0
    return made


@cache
def _in_front_of(kind: Any) -> Any:
    # a class that names a layer type would be registered by transformers in place of the one that it stands before
    return type(f"Simulated{kind.__name__}", (SimulatedLayer, kind), {"_layer_type": None})


def _pair(tensors: Iterable[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    first, second = tensors
    return first, second
