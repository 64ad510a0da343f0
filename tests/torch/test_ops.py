"""The operators: registered, compiled, exact on the CPU, on the caller's memory, and refusing in one line."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import kvformat as kvf
import kvformat.torch as kvt
from kvformat import arrays
from tests.recipes import adversarial

MODES = ("none", "fp8_per_tensor", "fp8_per_token_head", "int8_per_token_head", "nvfp4")
HEADS, DIMS, BLOCK_SIZE, BLOCKS = 2, 128, 4, 3
TENSOR_SCALE = ("fp8_per_tensor", "nvfp4")


def layout(mode):
    return kvf.layout("vllm-0.33", mode=mode, block_size=BLOCK_SIZE, num_kv_heads=HEADS, head_size=DIMS)


def named(mode):
    return ("vllm-0.33", mode, "NHD", BLOCK_SIZE)


def key_and_value(dtype=torch.float32, finite=True):
    x = torch.from_numpy((adversarial.finite if finite else adversarial.anything)()).to(dtype)
    return x, x.flip(0)


def new_pages(mode, fill=0):
    return torch.full((BLOCKS, layout(mode).page_bytes), fill, dtype=torch.uint8)


def scale_of(mode):
    return torch.tensor(0.25) if mode in TENSOR_SCALE else None


SLOTS = torch.tensor([7, -1, 2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mode", MODES)
def test_write_and_gather_are_the_caches(mode, dtype):
    key, value = key_and_value(dtype, finite=False)
    pages, scale = new_pages(mode, 3), scale_of(mode)
    kvt.write_pages(key, value, pages, SLOTS, scale, scale, *named(mode), DIMS, mode)
    cache = kvf.PagedCache(layout(mode), BLOCKS)
    cache.pages[...] = 3
    given = None if scale is None else float(scale)
    cache.write(arrays.array(key), arrays.array(value), SLOTS.numpy(), k_scale=given, v_scale=given)
    np.testing.assert_array_equal(pages.numpy(), cache.pages)
    table = torch.tensor([2, 0, 1])
    found = kvt.gather_pages(pages, table, 11, scale, scale, *named(mode), HEADS, DIMS, mode)
    for mine, wanted in zip(found, cache.gather(table.numpy(), 11), strict=True):
        np.testing.assert_array_equal(mine.numpy(), wanted)


@pytest.mark.parametrize("recipe", [*MODES, "vllm-0.33/csrc/nvfp4", "torchao-0.18/affine/fp8_per_token_head"])
def test_quantize_and_dequantize_are_kvformats(recipe):
    x, _ = key_and_value(finite=False)
    codes, scales, shared = kvt.quantize(x, recipe)
    wanted = kvf.quantize(x.numpy(), recipe)
    np.testing.assert_array_equal(codes.numpy(), wanted.codes)
    np.testing.assert_array_equal(scales.numpy(), wanted.scales)
    assert shared.shape == (1,)
    np.testing.assert_array_equal(shared.numpy()[0], wanted.global_scale)
    values = kvt.dequantize(codes, scales, shared, recipe)
    np.testing.assert_array_equal(values.numpy(), wanted.dequantize())


@pytest.mark.parametrize("mode", MODES)
def test_opcheck(mode):
    key, value = key_and_value()
    scale, pages = scale_of(mode), new_pages(mode)
    check = torch.library.opcheck
    check(torch.ops.kvformat.write_pages, (key, value, pages, SLOTS, scale, scale, *named(mode), DIMS, mode))
    table = torch.tensor([1, 0])
    gathered = (pages, table, 7, scale, scale, *named(mode), HEADS, DIMS, mode)
    check(torch.ops.kvformat.gather_pages, gathered)
    check(torch.ops.kvformat.quantize, (key, mode))
    check(torch.ops.kvformat.dequantize, (*kvt.quantize(key, mode), mode))
    attended = (torch.ones(1, 4, DIMS), pages, table[None], torch.tensor([7]), scale, scale, *named(mode), HEADS, mode)
    check(torch.ops.kvformat.paged_attention, (*attended, 0.1))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of inductor's own imports
def test_torch_compile_takes_a_function_of_all_operators_in_one_graph():
    key, value = key_and_value(torch.bfloat16)
    mode, table = "int8_per_token_head", torch.tensor([1, 0])

    def step(key, value, pages):
        kvt.write_pages(key * 2, value, pages, SLOTS, None, None, *named(mode), DIMS, mode)
        k, _ = kvt.gather_pages(pages, table, 7, None, None, *named(mode), HEADS, DIMS, mode)
        out, _ = kvt.paged_attention(
            key[:1].repeat(1, 2, 1), pages, table[None], torch.tensor([7]), None, None, *named(mode), HEADS, mode, 0.1
        )
        return k, out, kvt.quantize(key, mode)[0]

    pages = [new_pages(mode), new_pages(mode)]
    eager = step(key, value, pages[0])
    compiled = torch.compile(step, fullgraph=True)(key, value, pages[1])
    assert torch.equal(*pages)
    for mine, wanted in zip(compiled, eager, strict=True):
        assert torch.equal(mine, wanted)


def test_strided_tensors_and_longer_pages_are_used_where_they_are():
    mode = "fp8_per_token_head"
    key, value = key_and_value()
    fused = torch.cat([key, key, value], dim=1)
    memory = torch.zeros(BLOCKS, layout(mode).page_bytes + 64, dtype=torch.uint8)
    kvt.write_pages(fused[:, :2], fused[:, 4:], memory[:, : layout(mode).page_bytes], SLOTS, None, None,
                    *named(mode), DIMS, mode)  # fmt: skip
    plain = new_pages(mode)
    kvt.write_pages(key, value, plain, SLOTS, None, None, *named(mode), DIMS, mode)
    assert torch.equal(memory[:, : layout(mode).page_bytes], plain)
    assert not memory[:, layout(mode).page_bytes :].any()


def test_arrays_share_memory_with_tensors():
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.uint8, torch.int8):
        x = torch.zeros(3, 4, dtype=dtype)[:, ::2]
        view = arrays.array(x)
        view[1, 1] = 1
        assert x[1, 1] == 1
        assert view.strides == tuple(stride * x.element_size() for stride in x.stride())
        back = arrays.tensor(view)
        assert back.data_ptr() == x.data_ptr()


def test_tokens_beyond_the_slot_mapping_are_padding():
    mode = "fp8_per_tensor"  # whose computed scale would see them
    key, value = key_and_value()
    longer = torch.cat([key, torch.full_like(key, 1e30)])
    pages = [new_pages(mode), new_pages(mode)]
    kvt.write_pages(key, value, pages[0], SLOTS, None, None, *named(mode), DIMS, mode)
    kvt.write_pages(longer, torch.cat([value, value]), pages[1], SLOTS, None, None, *named(mode), DIMS, mode)
    assert torch.equal(*pages)


def test_without_a_recipe_the_one_of_the_layouts_engine_is_meant():
    mode, pages = "int8_per_token_head", (new_pages("int8_per_token_head"), new_pages("int8_per_token_head"))
    key, value = key_and_value()
    kvt.write_pages(key, value, pages[0], SLOTS, None, None, *named(mode), DIMS, "")
    kvt.write_pages(key, value, pages[1], SLOTS, None, None, *named(mode), DIMS, layout(mode).recipe)
    assert torch.equal(*pages)


def write(mode="int8_per_token_head", **changed):
    key, value = key_and_value()
    given = {
        "key": key, "value": value, "pages": new_pages(mode), "slot_mapping": SLOTS, "k_scale": None, "v_scale": None,
        "layout": "vllm-0.33", "kv_mode": mode, "order": "NHD", "block_size": BLOCK_SIZE, "head_size": DIMS,
        "recipe": mode,
    } | changed  # fmt: skip
    kvt.write_pages(**given)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"key": torch.zeros(3, 2, 128, dtype=torch.float64)}, "key must be float32, float16 or bfloat16"),
        ({"value": torch.zeros(2, 2, 128)}, "key and value must have the same tokens"),
        ({"head_size": 64}, "key has head size 128; head_size says 64"),
        ({"pages": torch.zeros(3, 7, dtype=torch.uint8)}, "page_bytes must be at least"),
        ({"pages": torch.zeros(3, 7)}, "pages must be uint8"),
        ({"slot_mapping": torch.tensor([12, 0, 1])}, "past the end"),
        ({"slot_mapping": torch.tensor([1, 0, 1])}, "share slot 1"),
        ({"slot_mapping": torch.tensor([1.0])}, "slot_mapping must be int64 or int32"),
        ({"slot_mapping": torch.arange(4)}, "4 slots for 3 tokens"),
        ({"k_scale": torch.tensor(1.0)}, "takes no scale"),
        ({"recipe": "nvfp4"}, "is for mode nvfp4"),
        ({"recipe": "golden/int8"}, "unknown recipe"),
        ({"layout": "vllm"}, "unknown layout"),
        ({"order": "HDN"}, "unknown order"),
    ],
)
def test_bad_input_is_refused_in_one_line_and_nothing_is_written(changed, message):
    pages = changed.get("pages", new_pages("int8_per_token_head"))
    with pytest.raises(kvf.InputError, match=message) as error:
        write(**{"pages": pages, **changed})
    assert "\n" not in str(error.value)
    assert not pages.any()


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
def test_a_scale_that_is_no_scale_is_refused(scale):
    with pytest.raises(kvf.InputError, match="finite and > 0"):
        write("fp8_per_tensor", k_scale=torch.tensor(scale), v_scale=torch.tensor(1.0))


def test_a_mode_with_a_scale_per_tensor_needs_it_to_be_read():
    with pytest.raises(kvf.InputError, match="needs a k_scale"):
        kvt.gather_pages(new_pages("nvfp4"), torch.tensor([0]), 1, None, None, *named("nvfp4"), HEADS, DIMS, "nvfp4")


def test_check_errors_is_silent_where_no_kernel_ran():
    kvt.check_errors()


def test_check_errors_names_the_token_and_lowers_the_flag():
    from kvformat.torch.errors import flags

    slots, blocks = flags(torch.device("cpu"))
    slots.fill_(6)
    blocks.fill_(3)
    with pytest.raises(kvf.InputError, match=r"cpu: token 5 has a slot past the end.*token 2 lies in a block"):
        kvt.check_errors()
    kvt.check_errors()


# --- what a device's tensors go through, with the interpreter as the device --------------------------------------


@pytest.fixture
def on_device(monkeypatch):
    monkeypatch.setattr(kvt.ops, "_by_engine", lambda _: False)


through_kernels = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter computes on NumPy arrays


@through_kernels
@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("mode", MODES)
def test_operators_by_kernels_are_the_caches(mode):
    test_write_and_gather_are_the_caches(mode, torch.bfloat16)


@through_kernels
@pytest.mark.usefixtures("on_device")
def test_slots_may_be_strided_and_of_32_bits():
    pages = [new_pages("int8_per_token_head"), new_pages("int8_per_token_head")]
    write(pages=pages[0])
    write(pages=pages[1], slot_mapping=SLOTS.to(torch.int32).repeat_interleave(2)[::2])
    assert pages[0].any()
    assert torch.equal(*pages)


@through_kernels
@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("recipe", MODES)
def test_quantize_by_kernels_is_kvformats(recipe):
    test_quantize_and_dequantize_are_kvformats(recipe)


@through_kernels
@pytest.mark.usefixtures("on_device")
def test_attention_by_kernels_is_attention_by_the_engine(monkeypatch):
    mode, table, lengths = "int8_per_token_head", torch.tensor([[1, 0]]), torch.tensor([7])
    key, value = torch.randn(2, 3, HEADS, DIMS, generator=torch.Generator().manual_seed(1))
    pages = new_pages(mode)
    kvt.write_pages(key, value, pages, torch.tensor([5, 0, 4]), None, None, *named(mode), DIMS, mode)
    how = (torch.ones(1, 4, DIMS) / 8, pages, table, lengths, None, None, *named(mode), HEADS, mode, 0.1)
    out, lse = kvt.paged_attention(*how)
    monkeypatch.undo()
    wanted, wanted_lse = kvt.paged_attention(*how)
    assert (out - wanted).abs().max() <= 1e-5 * wanted.abs().max()  # test_attention.py holds it to its bound
    assert (lse - wanted_lse).abs().max() <= 1e-5


def attended(pages, table, length):
    mode = "int8_per_token_head"
    tables = torch.tensor([[*table, 2]])[:, : len(table)]  # block 2 lies behind the table: nobody may read it
    query, names = torch.ones(1, 2, DIMS) / 8, (*named(mode), HEADS, mode, 0.1)
    return kvt.paged_attention(query, pages, tables, torch.tensor([length]), None, None, *names)


@pytest.mark.parametrize("length", [9, -1])
def test_a_length_that_the_block_table_does_not_hold_is_refused_by_attention(length):
    with pytest.raises(kvf.InputError, match=r"seq_len must be in 0\.\.8, what the block table holds"):
        attended(new_pages("int8_per_token_head"), [1, 0], length)


@through_kernels
@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("table, length, last", [([1, 0], 11, 10), ([1, BLOCKS], 8, 7), ([-1, 1], 6, 3)])
def test_attention_leaves_out_tokens_of_blocks_that_are_not_there_and_raises_the_flag(table, length, last):
    key, value = torch.randn(2, 3, HEADS, DIMS, generator=torch.Generator().manual_seed(1))
    pages = new_pages("int8_per_token_head")
    write(pages=pages, key=key, value=value, slot_mapping=torch.tensor([5, 0, 4]))
    held = [block for block in table if 0 <= block < BLOCKS]
    wanted = attended(pages, held, BLOCK_SIZE * len(held) if table[0] != -1 else 2)
    kvt.check_errors()
    found = attended(pages, table, length)
    with pytest.raises(kvf.InputError, match=f"token {last} lies in a block that the cache does not have"):
        kvt.check_errors()
    for mine, right in zip(found, wanted, strict=True):
        assert torch.allclose(mine, right, rtol=1e-6, atol=0)


@through_kernels
@pytest.mark.usefixtures("on_device")
def test_a_slot_past_the_end_is_told_by_check_errors_and_at_once_with_debug():
    pages = new_pages("int8_per_token_head")
    slots = torch.tensor([0, 12, 1])
    write(pages=pages, slot_mapping=slots)
    with pytest.raises(kvf.InputError, match="token 1 has a slot past the end"):
        kvt.check_errors()
    assert pages.any()
    with pytest.raises(kvf.InputError, match="token 1 has slot 12"):
        write(pages=pages, slot_mapping=slots, debug=True)
    kvt.check_errors()


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("fp8_per_token_head", "needs sm_89 or newer"),
        ("nvfp4", "needs sm_100a, sm_103a or sm_120a"),
        ("int8_per_token_head", "ends in no conversion that is an instruction"),
        ("none", "ends in no conversion that is an instruction"),
    ],
)
def test_the_hardware_path_is_refused_where_there_is_no_instruction(mode, message):
    with pytest.raises(kvf.InputError, match=message):
        write(mode, hardware=True)
