"""The vLLM plugin on layers with vLLM's interface: right writes pass in silence, each planted fault is found."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from importlib import metadata

import numpy as np
import pytest

import kvformat as kvf
from kvformat.cache_dtypes import ARCHITECTURES
from kvformat.errors import InputError
from kvformat.vllm import hook, register
from kvformat.vllm.expected import architecture, expected
from kvformat.vllm.layer import Layer
from kvformat.vllm.settings import Numbers, Settings, from_environment
from tests.vllm.fakes import SIZE, make_layer, make_worker, step


def run(layers, steps, /, **settings):
    """The session and what it said, after the worker ran the steps."""
    out = io.StringIO()
    worker = make_worker()
    version = settings.pop("version", "0.32.0")
    hook.hook(worker, Settings(**settings), version, out)
    made = worker(layers)
    assert made.load_model() == "loaded"
    for each in steps:
        assert made.execute_model(each) == "result"
    return made.kvformat, out.getvalue()


def one_byte(cache, layout, slots):
    """Flip a bit of the last token's value, head 1, dim 5."""
    block, place = divmod(int(slots[-1]), layout.block_size)
    cache.pages[block, layout.locate(side="v", slot=place, head=1, dim=5).byte] ^= 1


def truncated_row(cache, layout, slots):
    """The last token's key of head 0 ends after half its dims."""
    block, place = divmod(int(slots[-1]), layout.block_size)
    for dim in range(SIZE // 2, SIZE):
        byte = layout.locate(side="k", slot=place, head=0, dim=dim).byte
        cache.pages[block, byte : byte + (2 if layout.mode == "none" else 1)] = 0


STEPS = [step(range(3, 40)), step([40], new=False), step([41, -1], new=False)]


@pytest.mark.parametrize("dtype, version", [("auto", "0.32"), ("fp8", "0.32"), ("fp8", "0.33")])
def test_right_writes_are_judged_in_silence_and_the_cost_is_said(dtype, version):
    layers = {f"model.layers.{n}.attn": make_layer(dtype, version) for n in range(2)}
    out = io.StringIO()
    worker = make_worker()
    hook.hook(worker, Settings(watch="raise"), f"{version}.0", out)
    made = worker(layers)
    made.load_model()
    for each in STEPS:
        made.execute_model(each)
    session = made.kvformat
    assert (session.judged, session.differing, session.tokens) == (6, 0, 39)
    assert session.compared == 2 * 39 * 2 * 2 * SIZE
    assert "difference" not in out.getvalue()
    assert re.search(r"cost \d+\.\d ms a step, \d+% of the engine's own", session.summary())


def test_the_releases_are_told_apart():
    with pytest.raises(AssertionError, match=r"layer, step 0: .*vllm-0.33/cpu"):
        run({"layer": make_layer("fp8", "0.33")}, STEPS, watch="raise")


@pytest.mark.parametrize("fault, side, head, dim", [(one_byte, "v", 1, 5), (truncated_row, "k", 0, SIZE // 2)])
@pytest.mark.parametrize("dtype", ["auto", "fp8"])
def test_a_planted_fault_is_one_json_line_with_the_first_wrong_byte(fault, side, head, dim, dtype):
    layers = {"right": make_layer(dtype), "wrong": make_layer(dtype, fault=fault)}
    session, said = run(layers, STEPS[:1], watch="log")
    (line,) = [json.loads(each) for each in said.splitlines() if each.startswith("{")]
    assert (line["layer"], line["name"], line["step"], line["saved"]) == (1, "wrong", 0, None)
    first = line["first"]
    assert (first["side"], first["head"], first["dim"], first["token"]) == (side, head, dim, 36)
    assert line["mismatches"] == (1 if fault is one_byte else SIZE // 2)
    assert session.differing == 1


def test_a_difference_is_saved_as_a_dump_that_check_judges_alike(tmp_path):
    session, said = run({"a": make_layer("fp8", fault=one_byte)}, STEPS[:1], watch="save", differences=tmp_path)
    (path,) = tmp_path.iterdir()
    (line,) = [json.loads(each) for each in said.splitlines() if each.startswith("{")]
    assert line["saved"] == str(path)
    report = kvf.check(kvf.Dump.load(path))
    assert (report.mismatches, report.recipe) == (1, "vllm-0.32/cpu/fp8_per_tensor")
    assert session.saved == 1


def test_chosen_layers_and_steps_are_dumped_with_query_and_output(tmp_path):
    given = {"KVFORMAT_DUMP": str(tmp_path), "KVFORMAT_LAYERS": "1", "KVFORMAT_STEPS": "0,2-5"}
    layers = {f"layer {n}": make_layer("fp8") for n in range(3)}
    out, worker = io.StringIO(), make_worker()
    hook.hook(worker, from_environment(given), "0.32.0", out)
    made = worker(layers)
    made.load_model()
    for each in STEPS:
        made.execute_model(each)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["step-00000.layer-001.safetensors", "step-00002.layer-001.safetensors"]
    first, later = (kvf.Dump.load(tmp_path / name) for name in names)
    assert first.query.shape == first.output.shape == (37, 2, SIZE)
    assert np.array_equal(first.query.view(np.uint16), first.output.view(np.uint16))  # what the fake attention does
    assert later.query is None
    assert kvf.check(later).ok
    assert later.tokens == 1  # padding is not part of it


def test_each_worker_has_dumps_of_its_own(tmp_path):
    worker = make_worker(tensor=2, data=2)
    hook.hook(worker, Settings(dump=tmp_path), "0.32.0", io.StringIO())
    for rank in range(4):
        made = worker({"only": make_layer()}, rank)
        made.load_model()
        made.execute_model(STEPS[0])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"step-00000.layer-000.rank-{rank:03}.safetensors" for rank in range(4)
    ]


def test_an_earlier_run_is_not_overwritten(tmp_path, capsys):
    run({"only": make_layer()}, STEPS[:1], dump=tmp_path)
    (path,) = tmp_path.iterdir()
    before = path.read_bytes()
    with pytest.raises(SystemExit) as stopped:
        run({"only": make_layer()}, STEPS[1:], dump=tmp_path)
    assert stopped.value.code == 2
    assert f"{tmp_path} has dumps of an earlier run" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_after_the_chosen_steps_no_dump_is_assembled(tmp_path, monkeypatch):
    calls, real = [], Layer.dump
    monkeypatch.setattr(Layer, "dump", lambda self, **named: calls.append(named) or real(self, **named))
    session, _ = run({"only": make_layer()}, STEPS, dump=tmp_path, steps=Numbers((range(1, 2),)))
    assert (session.step, session.saved, calls) == (2, 1, [{}])


def test_a_step_that_is_too_large_is_counted_and_the_engine_goes_on():
    session, _ = run({"only": make_layer()}, [step(range(65)), *STEPS[1:]], watch="raise")
    assert (session.judged, session.tokens) == (2, 2)
    assert "1 writes not seen, for they had more tokens than planned; cost" in session.summary()


def test_what_is_captured_lies_in_the_same_memory_all_along():
    """A CUDA graph replays its copies into the addresses that it was captured with."""
    worker = make_worker()
    hook.hook(worker, Settings(watch="raise"), "0.32.0", io.StringIO())
    made = worker({"only": make_layer()})
    made.load_model()
    held = made.kvformat.layers[0].captured
    tensors = (held.key, held.value, held.slots)
    before = [each.data_ptr() for each in tensors]
    assert [len(each) for each in tensors] == [64] * 3  # a step's most tokens
    for each in STEPS:
        made.execute_model(each)
        assert [each.data_ptr() for each in tensors] == before
        assert made.kvformat.layers[0].captured is held


def test_layers_that_cannot_be_watched_are_listed():
    fused, shared, latent, other = (make_layer() for _ in range(4))
    fused.impl.do_kv_cache_update = None
    shared.impl.kv_sharing_target_layer_name = "right"
    latent.impl.kv_lora_rank = 512
    other.isa = "amx"
    layers = {"right": make_layer(), "fused": fused, "shared": shared, "latent": latent, "other": other}
    session, said = run(layers, [], watch="log")
    assert list(session.unwatched) == ["fused", "shared", "latent", "other"]
    assert said.count("not watched: ") == 4
    assert "1 layers watched, 4 not" in said


@pytest.mark.parametrize("late", [False, True])
def test_nothing_watched_is_status_2(late, capsys):
    layer, worker = make_layer(), make_worker()
    layer.isa = None if late else "amx"
    hook.hook(worker, Settings(watch="log"), "0.32.0", io.StringIO())
    made = worker({"only": layer})
    if late:  # the CPU backend chooses its pages after load_model
        made.load_model()
        layer.isa = "amx"
    with pytest.raises(SystemExit) as stopped:
        made.execute_model(STEPS[0]) if late else made.load_model()
    assert stopped.value.code == 2
    assert "nothing is watched" in capsys.readouterr().err


def test_hooking_twice_is_hooking_once():
    worker = make_worker()
    for _ in range(2):
        hook.hook(worker, Settings(watch="raise"), "0.32.0", io.StringIO())
    layer = make_layer()
    made = worker({"a": layer})
    made.load_model()
    made.execute_model(STEPS[0])
    assert (layer.impl.written, made.kvformat.layers[0].calls) == (1, 1)


def test_without_the_variables_nothing_is_hooked(monkeypatch):
    monkeypatch.delenv("KVFORMAT_DUMP", raising=False)
    monkeypatch.delenv("KVFORMAT_WATCH", raising=False)
    monkeypatch.setattr(hook, "install", lambda: pytest.fail("hooked"))
    register()


@pytest.mark.parametrize(
    "given, message",
    [
        ({"WATCH": "shout"}, "KVFORMAT_WATCH"),
        ({"LAYERS": "3-1"}, "3-1 is empty"),
        ({"STEPS": "a"}, "numbers and ranges such as 0,3-5"),
        ({"STEPS": "-1"}, "numbers and ranges such as 0,3-5"),
    ],
)
def test_a_wrong_variable_is_one_clear_line(given, message):
    with pytest.raises(InputError, match=message):
        from_environment({f"KVFORMAT_{name}": value for name, value in given.items()})


@pytest.mark.parametrize(
    "dtype, version, backend, layout, recipe",
    [
        ("fp8", "0.32.0", "CPU_ATTN", "vllm-0.32-cpu", None),
        ("fp8_e4m3", "0.33.1+cpu", "CPU_ATTN", "vllm-0.33-cpu", None),
        ("auto", "0.33.0", "FLASH_ATTN", "vllm-0.33", "golden/none"),
        ("fp8", "0.33.0", "FLASH_ATTN", "vllm-0.33", "vllm-0.33/csrc/fp8_per_tensor"),
        ("fp8", "0.33.0", "TRITON_ATTN", "vllm-0.33", "vllm-0.33/triton/fp8_per_tensor"),
        ("int8_per_token_head", "0.33.0", "TRITON_ATTN", "vllm-0.33", "vllm-0.33/triton/int8_per_token_head"),
    ],
)
def test_dtype_string_version_and_backend_name_a_layout_and_a_recipe(dtype, version, backend, layout, recipe):
    found = expected(dtype, version, backend)
    assert (found.layout, found.recipe) == (layout, recipe)
    assert found.declared is None or found.declared.mode == found.mode


@pytest.mark.parametrize(
    "dtype, version, backend",
    [("fp8_e5m2", "0.32.0", "CPU_ATTN"), ("fp8", "0.31.0", "CPU_ATTN"), ("fp8", "0.34.0", "CPU_ATTN"),
     ("fp8", "dev", "CPU_ATTN"), ("fp8", "0.32.0", "FLASH_ATTN"), ("fp8", "0.34.0", "FLASH_ATTN"),
     ("turboquant_k8v4", "0.33.0", "TRITON_ATTN")],
)  # fmt: skip
def test_what_the_catalogue_does_not_know_is_not_judged(dtype, version, backend):
    with pytest.raises(InputError):
        expected(dtype, version, backend)


@pytest.mark.parametrize(
    "dtype, gpu, recipe",
    [
        ("nvfp4", "sm_100", "vllm-0.33/csrc/nvfp4"),
        ("fp8_per_token_head", "sm_90", "vllm-0.33/triton/fp8_per_token_head"),
        ("fp8_per_token_head", "sm_89", "vllm-0.33/triton-sm89/fp8_per_token_head"),
        ("auto", "gfx942", "golden/none"),
    ],
)
def test_the_gpu_decides_where_one_string_means_several_bytes(dtype, gpu, recipe):
    assert expected(dtype, "0.33.0", "TRITON_ATTN", gpu=gpu).recipe == recipe


@pytest.mark.parametrize("dtype, gpu", [("nvfp4", "sm_120"), ("fp8", "gfx942"), ("fp8_per_token_head", "sm_80")])
def test_a_gpu_whose_bytes_are_others_is_not_judged(dtype, gpu):
    with pytest.raises(InputError, match=gpu):
        expected(dtype, "0.33.0", "FLASH_ATTN", gpu=gpu)


def test_a_capability_is_a_family_of_the_architectures():
    named = {(8, 0): "sm_80", (8, 6): "sm_80", (8, 9): "sm_89", (9, 0): "sm_90", (10, 3): "sm_100", (12, 1): "sm_120"}
    assert {capability: architecture(capability) for capability in named} == named
    assert set(named.values()) <= set(ARCHITECTURES)


def test_a_named_layout_and_recipe_are_judged_by_for_any_version():
    named = {"layout": "vllm-0.32-cpu", "recipe": "golden/none"}
    session, _ = run({"only": make_layer()}, STEPS, watch="raise", version="0.99", **named)
    assert session.judged == 3


def test_the_hook_loads_no_numba_before_the_model_is_loaded():
    code = "import sys, kvformat.vllm, kvformat.vllm.hook; print({'numba', 'llvmlite'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"


def test_vllm_finds_the_plugin_by_its_entry_point():
    found = metadata.distribution("kvformat").entry_points.select(group="vllm.general_plugins")
    if not found:
        pytest.skip("this installation is older than the entry point")
    assert {each.load() for each in found} == {register}
