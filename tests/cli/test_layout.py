"""kvformat layout: the bytes of small pages, counted by hand."""

from __future__ import annotations

import json

import pytest

from kvformat.cli import main

# a cell is K 16, K scale 4, V 16, V scale 4 = 40 bytes; NHD: (slot 1, head 1) of 2 heads is cell 3, from byte 120
INT8 = ("vllm-0.33", "--mode", "int8_per_token_head", "--block-size", "4", "--num-kv-heads", "2", "--head-size", "16")


def layout(capsys, *arguments):
    status = main(["layout", *arguments, "--json"])
    captured = capsys.readouterr()
    assert captured.err == ""
    document = json.loads(captured.out)
    assert document["status"] == status
    return document


@pytest.mark.parametrize(
    "byte, side, part, dims", [(120, "k", "code", [0, 0]), (135, "k", "code", [15, 15]), (137, "k", "scale", [0, 15]),
                               (140, "v", "code", [0, 0]), (159, "v", "scale", [0, 15])],
)  # fmt: skip
def test_a_byte_is_explained(capsys, byte, side, part, dims):
    found = layout(capsys, *INT8, "--byte", str(byte))
    assert (found["side"], found["part"], found["dims"]) == (side, part, dims)
    assert (found["slot"], found["head"]) == (1, 1)


def test_the_order_moves_the_cell(capsys):
    found = layout(capsys, *INT8, "--order", "HND", "--byte", "120")  # [head][slot]: cell 3 is head 0, slot 3
    assert (found["slot"], found["head"]) == (3, 0)


def test_locate_is_the_inverse_of_byte(capsys):
    assert layout(capsys, *INT8, "--locate", "k,1,1,15")["byte"] == 135
    found = layout(capsys, *INT8, "--locate", "v, 1, 1, 0, scale")
    assert (found["byte"], found["bits"]) == (156, 32)


def test_a_nibble_is_located_by_its_bits(capsys):
    nvfp4 = ("flashinfer", "--mode", "nvfp4", "--block-size", "4", "--num-kv-heads", "1", "--head-size", "16")
    assert main(["layout", *nvfp4, "--locate", "k,1,0,3"]) == 0  # rows of 8 bytes, dims 2 and 3 in the second
    assert capsys.readouterr().out == "code of k, slot 1, head 0, dim 3: byte 9, bits 4..7\n"


def test_regions_list_offset_and_strides(capsys):
    found = layout(capsys, *INT8)
    regions = [(r["part"], r["side"], r["offset"], r["slot_stride"], r["head_stride"]) for r in found["regions"]]
    assert regions == [("code", "k", 0, 80, 40), ("scale", "k", 16, 80, 40), ("code", "v", 20, 80, 40),
                       ("scale", "v", 36, 80, 40)]  # fmt: skip
    assert (found["page_bytes"], found["natural_bytes"]) == (320, 320)


def test_the_text_shows_regions_padding_and_bytes_per_token(capsys):
    assert main(["layout", *INT8, "--page-bytes", "400"]) == 0
    text = capsys.readouterr().out
    rows = [line.split() for line in text.splitlines()]
    assert ["padding", "320", "80", "-", "-", "-", "-"] in rows
    assert "400 bytes per page, 100 per token" in text


def test_padding_is_explained_as_padding(capsys):
    assert main(["layout", *INT8, "--page-bytes", "400", "--byte", "399"]) == 0
    assert capsys.readouterr().out == "byte 399: padding\n"


@pytest.mark.parametrize(
    "arguments, says",
    [
        (("vllm-0.3", *INT8[1:]), "unknown layout 'vllm-0.3'; did you mean vllm-0.33"),
        ((*INT8, "--mode", "int8_per_token"), "did you mean int8_per_token_head"),
        ((*INT8, "--mode", "nvfp4", "--head-size", "24"), "16"),
        ((*INT8, "--head-size", "0"), "head_size"),
        ((*INT8, "--page-bytes", "319"), "at least 320"),
        ((*INT8, "--byte", "320"), "0..319"),
        ((*INT8, "--byte", "-1"), "0..319"),
        ((*INT8, "--byte", "1", "--locate", "k,0,0,0"), "one at a time"),
        ((*INT8, "--locate", "k,0,0"), "k,3,2,17"),
        ((*INT8, "--locate", "k,0,0,x"), "k,3,2,17"),
        ((*INT8, "--locate", "q,0,0,0"), "unknown side 'q'"),
        ((*INT8, "--locate", "k,4,0,0"), "0..3"),
        ((*INT8, "--locate", "k,0,0,0,zero"), "unknown part 'zero'"),
        ((*INT8, "--block-size", "four"), "--block-size"),
        (INT8[:-2], "needs head_size"),
        ((*INT8, "--order", "NDH"), "unknown order 'NDH'"),
    ],
)
def test_pages_that_cannot_be_are_refused_in_one_line(capsys, arguments, says):
    assert main(["layout", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert says in captured.err
