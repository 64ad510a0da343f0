"""kvformat size: the table, the bars and the document say the same bytes."""

from __future__ import annotations

import json

import pytest

from kvformat.cli import main


def size(capsys, *arguments):
    status = main(["size", *arguments, "--json"])
    captured = capsys.readouterr()
    assert captured.err == ""
    document = json.loads(captured.out)
    assert document["status"] == status
    return document


def test_the_document_has_exact_bytes(capsys):
    document = size(capsys, "llama-2-70b", "--context", "32768")
    modes = {each["mode"]: each for each in document["modes"]}
    assert list(modes) == ["none", "fp8_per_tensor", "fp8_per_token_head", "int8_per_token_head", "int4_per_token_head",
                           "nvfp4"]  # fmt: skip
    assert modes["none"]["bytes"] == 10 << 30
    int8 = modes["int8_per_token_head"]
    assert (int8["scales"], int8["scale_bytes"]) == (41_943_040, 160 << 20)
    assert int8["parts"][0]["scales"] == 524_288
    assert int8["parts"][0]["layout"]["name"] == "vllm-0.33"
    assert all(type(each["bytes"]) is int for each in modes.values())


def test_one_mode_is_asked_for_by_name(capsys):
    document = size(capsys, "deepseek-v3.2", "--context", "64", "--mode", "fp8_ds_mla")
    (mode,) = document["modes"]
    assert (mode["bytes"], mode["bytes_per_token"]) == (64 * (656 + 132) * 61, (656 + 132) * 61)
    assert [part["bytes"] for part in mode["parts"]] == [64 * 656, 64 * 132]


def test_the_text_has_a_row_and_a_bar_for_every_mode(capsys):
    assert main(["size", "llama-2-70b", "--context", "32768"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "llama-2-70b, one sequence of 32,768 tokens"
    assert lines[1] == "- 80 layers: 8 heads of 128: K and V"
    rows = {words[0]: words[1:] for words in map(str.split, lines) if len(words) > 8}
    assert rows["none"] == ["4,096", "320.00", "KiB", "0", "10.00", "GiB", "0", "B", "0", "B", "1.00"]
    assert rows["nvfp4"][-1] == "3.56"
    bars = {line.split()[0]: line.split()[1] for line in lines if "█" in line}
    assert {name: len(bar) for name, bar in bars.items()} == {
        "none": 40, "fp8_per_tensor": 20, "fp8_per_token_head": 21, "int8_per_token_head": 21,
        "int4_per_token_head": 11, "nvfp4": 11,
    }  # fmt: skip
    assert bars["nvfp4"] == "█" * 10 + "░"  # one ninth of it is scales


def test_a_mode_alone_is_compared_with_bfloat16(capsys):
    assert main(["size", "llama-2-70b", "--context", "16", "--mode", "nvfp4"]) == 0
    assert " 3.56 " in capsys.readouterr().out


def test_a_config_json_is_a_model(capsys, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps({"num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 80, "_name_or_path": "x/y"})
    )
    document = size(capsys, str(path), "--context", "16")
    assert (document["model"], document["layers"]) == ("x/y", 2)
    assert document["modes"][0]["bytes"] == 16 * 2 * 2 * 4 * 80 * 2


def test_a_mode_that_such_heads_cannot_have_is_said_and_the_others_are_shown(capsys, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 72}))
    document = size(capsys, str(path), "--context", "16")
    assert document["refused"] == {"nvfp4": "mode nvfp4 needs head_size to be a multiple of 16; got 72"}
    assert main(["size", str(path), "--context", "16"]) == 0
    assert (
        "- nvfp4 is not possible: mode nvfp4 needs head_size to be a multiple of 16; got 72" in capsys.readouterr().out
    )
    assert main(["size", str(path), "--context", "16", "--mode", "nvfp4"]) == 2


@pytest.mark.parametrize(
    "arguments, says",
    [
        (("llama-2-7", "--context", "1"), "unknown model 'llama-2-7'; did you mean llama-2-7b or llama-2-70b"),
        (("llama-2-70b", "--context", "1", "--mode", "fp8"), "unknown mode of llama-2-70b: 'fp8'"),
        (("llama-2-70b", "--context", "0"), "context must be an integer of at least 1; got 0"),
        (("llama-2-70b",), "--context"),
        (("llama-2-70b", "--context", "many"), "--context"),
        (("llama-2-70b", "--context", "1", "--block-size", "0"), "block_size must be an integer of at least 1; got 0"),
        (("none.json", "--context", "1"), "none.json: no readable config.json"),
    ],
)
def test_what_cannot_be_counted_is_one_line(capsys, arguments, says):
    assert main(["size", *arguments]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert says in captured.err
