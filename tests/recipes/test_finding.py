"""Recipes are found by what they store, best first, with what each has and lacks."""

from __future__ import annotations

import json

import pytest

from kvformat.cli import main
from kvformat.errors import InputError
from kvformat.recipes.finding import like, wanted


@pytest.mark.parametrize(
    "text, first",
    [
        (
            "int8 group 32 scale fp16",
            {f"ggml-0.25/{platform}/q8_0" for platform in ("avx", "neon", "reference", "wasm")},
        ),
        ("u4 with a zero point per token and head", {"openvino-2026.4/by-token/uint4_per_token_head"}),
        ("llama.cpp q5_1", {"ggml-0.25/reference/q5_1"}),
        ("fp4 g16 e4m3 vllm", None),
    ],
)
def test_what_is_asked_comes_first(text, first):
    found = like(text)
    best = {match.recipe.name for match in found if not match.lacks}
    assert best if first is None else best == first
    assert [len(match.lacks) for match in found] == sorted(len(match.lacks) for match in found)


def test_words_are_read_as_people_write_them():
    assert wanted("INT8, block 32 (scale: fp16)") == ["int8", "group 32", "scale float16"]
    assert wanted("g64 i4 truncated") == ["group 64", "int4", "truncates"]
    assert wanted("per token head") == ["per-token", "per-head"]


@pytest.mark.parametrize("text", ["", "with the", "xyzzy", "\x00"])
def test_nothing_to_look_for_is_one_line(text):
    with pytest.raises(InputError) as raised:
        like(text)
    assert str(raised.value).isprintable()


def test_the_command_prints_rows_and_json(capsys):
    assert main(["recipes", "find", "--like", "int8 group 32 scale fp16"]) == 0
    assert "ggml-0.25/reference/q8_0" in capsys.readouterr().out
    assert main(["recipes", "find", "--like", "int8 group 32 scale fp16 truncate", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["recipes"]
    assert rows[0] == {
        "name": "ggml-0.25/wasm/q8_0", "mode": "q8_0", "has": ["int8", "group 32", "scale float16", "truncates"],
        "lacks": [],
    }  # fmt: skip
    assert main(["recipes", "find", "--like", "xyzzy"]) == 2
