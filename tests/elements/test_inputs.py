"""What may be handed in: number types, shapes, byte orders, strides; and that neither strides nor threads matter."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import kvformat as kvf
from kvformat.elements import threads
from tests.elements import twin
from tests.elements.compare import assert_same_codes, assert_same_values
from tests.elements.domains import BFLOAT16

#: values with many significant bits, both zeros, Inf, NaN and subnormals
_X = np.array([1.0625001, -0.0, 0.0, np.inf, -np.inf, np.nan, 1e-40, -3.3, 465, 2**-10, 0.2, -7.7], np.float32)


@pytest.mark.parametrize(
    "x, codes",
    [
        (1.5, 0x3C),
        (1, 0x38),
        (-2, 0xC0),
        (np.float32(1.5), 0x3C),
        (np.float64(1.5), 0x3C),
        (np.float16(1.5), 0x3C),
        (ml_dtypes.bfloat16(1.5), 0x3C),
        ([1.0, 2], [0x38, 0x40]),
        ([1, 2], [0x38, 0x40]),
        ((1.0, 2.0), [0x38, 0x40]),
        ([[1.0], [2.0]], [[0x38], [0x40]]),
        ([np.float32(1), 2.0], [0x38, 0x40]),
        (2**53, 0x7E),
        (-(2**60), 0xFE),
    ],
)
def test_python_numbers_lists_and_scalars_encode(x, codes):
    found = kvf.encode(x, "e4m3fn")
    assert found.dtype == np.uint8
    assert found.tolist() == codes


@pytest.mark.parametrize("name", ["e4m3fn", "int8", "int4"])
def test_a_single_number_gives_an_array_of_no_dimensions(name):
    for x in (1.0, np.float32(1), np.array(1.0)):
        codes = kvf.encode(x, name)
        assert isinstance(codes, np.ndarray)
        assert codes.shape == ()
        values = kvf.decode(codes, name)
        assert isinstance(values, np.ndarray)
        assert values.shape == ()
        assert values == 1


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 4)])
@pytest.mark.parametrize("name", ["e4m3fn", "int4"])
def test_empty_arrays_keep_their_shape(name, shape):
    codes = kvf.encode(np.zeros(shape, np.float32), name)
    assert codes.shape == shape
    assert kvf.decode(codes, name).shape == shape


@pytest.mark.parametrize("dtype", [">f2", ">f4", ">f8", "<f2", "<f4", "<f8"])
def test_every_byte_order_is_read_right(dtype):
    native = _X.astype(np.dtype(dtype).newbyteorder("="))
    assert_same_codes(kvf.encode(native.astype(dtype), "e4m3fn"), kvf.encode(native, "e4m3fn"), native)


def _strided(x):
    fortran = np.asfortranarray(x.reshape(3, 4))
    yield x[::2], x[::2].copy()
    yield x[::-1], x[::-1].copy()
    yield x.reshape(3, 4).T, x.reshape(3, 4).T.copy()
    yield x.reshape(3, 4)[:, 1:3], x.reshape(3, 4)[:, 1:3].copy()
    yield fortran, x.reshape(3, 4).copy()
    yield np.broadcast_to(x, (2, x.size)), np.stack([x, x])
    yield x.reshape(1, 3, 1, 4)[:, ::-1, :, ::3], x.reshape(1, 3, 1, 4)[:, ::-1, :, ::3].copy()


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16, np.float32, np.float64], ids=str)
def test_codes_do_not_depend_on_strides(dtype):
    for strided, copy in _strided(_X.astype(dtype)):
        assert_same_codes(kvf.encode(strided, "e4m3fn"), kvf.encode(copy, "e4m3fn"), copy)
        assert_same_codes(kvf.encode(strided, "int8"), kvf.encode(copy, "int8"), copy)


def test_values_do_not_depend_on_strides():
    for strided, copy in _strided(np.arange(12, dtype=np.uint8) * 21):
        assert_same_values(kvf.decode(strided, "e4m3fn"), kvf.decode(copy, "e4m3fn"))


def test_read_only_input_is_left_alone():
    x = _X.copy()
    x.flags.writeable = False
    assert_same_codes(kvf.encode(x, "e4m3fn"), kvf.encode(_X, "e4m3fn"), x)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, BFLOAT16], ids=str)
def test_codes_do_not_depend_on_the_number_of_threads(monkeypatch, dtype):
    rng = np.random.default_rng(5)
    size = threads.SERIAL + 4099
    x = (rng.standard_normal(size) * np.exp2(rng.integers(-14, 10, size))).astype(dtype)
    expected = twin.encode(x, "e4m3fn")
    for count in (1, 2, 3, 7):
        monkeypatch.setenv("KVFORMAT_NUM_THREADS", str(count))
        assert_same_codes(kvf.encode(x, "e4m3fn"), expected, x)
        assert_same_values(kvf.decode(expected, "e4m3fn"), kvf.element("e4m3fn").values()[expected])


@pytest.mark.parametrize("items", [1, 2, 3, 100])
@pytest.mark.parametrize("count", ["1", "2", "3", "64"])
def test_pieces_of_a_threaded_run_cover_everything_once(monkeypatch, items, count):
    monkeypatch.setenv("KVFORMAT_NUM_THREADS", count)
    touched = np.zeros(items, int)

    def kernel(start, stop):
        assert start < stop
        touched[start:stop] += 1

    threads.over(items, threads.SERIAL + 1, kernel)
    assert (touched == 1).all()


def test_an_error_in_a_thread_reaches_the_caller(monkeypatch):
    monkeypatch.setenv("KVFORMAT_NUM_THREADS", "2")

    def kernel(start, stop):
        raise MemoryError(start, stop)

    with pytest.raises(MemoryError):
        threads.over(10, threads.SERIAL + 1, kernel)


@pytest.mark.parametrize("setting", ["", "0", "-3", "many", "2.5", "²"])
def test_a_senseless_number_of_threads_means_all_cores(monkeypatch, setting):
    monkeypatch.delenv("KVFORMAT_NUM_THREADS", raising=False)
    default = threads.count()
    monkeypatch.setenv("KVFORMAT_NUM_THREADS", setting)
    assert threads.count() == default >= 1


@pytest.mark.filterwarnings("ignore:Creating an ndarray from ragged")  # NumPy below 1.24
@pytest.mark.parametrize(
    "x, message",
    [
        (np.zeros(2, np.int32), "x must be float32, float16, bfloat16 or float64; got int32"),
        (np.zeros(2, bool), "got bool"),
        ([True, False], "got bool"),
        (np.zeros(2, complex), "got complex128"),
        ("1.5", "x must be float32"),
        (None, "got object"),
        ([1, None], "got object"),
        ([2**53 + 1], "an integer beyond 2\\*\\*53 has no exact float64; pass floats"),
        (2**200, "x must be"),
        (np.zeros(2, ml_dtypes.float8_e4m3fn), "got float8_e4m3fn"),
        ([[1.0, 2.0], [3.0]], "x"),
    ],
)
def test_input_that_is_no_float_is_refused_in_one_line(x, message):
    with pytest.raises(kvf.InputError, match=message) as error:
        kvf.encode(x, "e4m3fn")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "codes, name, message",
    [
        (np.zeros(2, np.int64), "e4m3fn", "codes of e4m3fn are uint8; got int64"),
        (np.zeros(2, np.int8), "e4m3fn", "codes of e4m3fn are uint8; got int8"),
        (np.zeros(2, np.float32), "int8", "codes of int8 are int8 or uint8; got float32"),
        (np.array([3, 16], np.uint8), "e2m1fn", r"e2m1fn has patterns 0..15, one per byte; got 16 \(packed\?\)"),
        (np.array([16], np.uint8), "int4", "int4 has patterns 0..15"),
        (np.array([8], np.int8), "int4", r"int4 has codes -8..7"),
        (np.array([-9], np.int8), "int4", r"int4 has codes -8..7"),
        ([256], "e4m3fn", r"e4m3fn has codes 0..255; got 256..256"),
        ([-1], "e4m3fn", r"e4m3fn has codes 0..255"),
        ([-129], "int8", r"int8 has codes -128..255"),
        ([16], "e2m1fn", r"e2m1fn has codes 0..15"),
    ],
)
def test_codes_that_the_format_lacks_are_refused_in_one_line(codes, name, message):
    with pytest.raises(kvf.InputError, match=message) as error:
        kvf.decode(codes, name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "codes, name, values",
    [
        (0x7E, "e4m3fn", 448),
        ([0x7E, 0xFE], "e4m3fn", [448, -448]),
        ([-1, 127, 255, 128], "int8", [-1, 127, -1, -128]),
        (np.array([-8, 7, -1], np.int8), "int4", [-8, 7, -1]),
        (np.array([8, 7, 15], np.uint8), "int4", [-8, 7, -1]),
        (np.array([0x80, 0xFF], np.uint8), "int8", [-128, -1]),
    ],
)
def test_codes_come_as_patterns_or_as_integers(codes, name, values):
    found = kvf.decode(codes, name)
    assert found.dtype == np.float32
    assert found.tolist() == values


@pytest.mark.parametrize("dtype", [np.int32, ">f4", bool, "float8", "c8", object])
def test_values_come_only_as_floats_of_16_to_64_bits(dtype):
    with pytest.raises(kvf.InputError, match="float32, float16, bfloat16 or float64") as error:
        kvf.decode(np.zeros(1, np.uint8), "e4m3fn", dtype=dtype)
    assert "\n" not in str(error.value)
