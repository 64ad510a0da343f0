/* An example of a kernel author's own code: e4m3fn, and a cache writer that scales each token's head by itself. */
#include "kernel.h"
#include <math.h>
#include <string.h>

enum { WIDE_MANTISSA = 23, MANTISSA = 3, LOWEST_EXPONENT = 121, MAX_CODE = 0x7E, NAN_CODE = 0x7F, SIGN_SHIFT = 24,
       BIAS = 7, SCALE_BYTES = 4 };
static const uint32_t INFINITY_BITS = 0x7F800000;
static const float LARGEST = 448.0f;

static uint32_t bits_of(float x) { uint32_t bits; memcpy(&bits, &x, sizeof bits); return bits; }
static float float_of(uint32_t bits) { float x; memcpy(&x, &bits, sizeof x); return x; }

uint8_t encode_e4m3fn(uint32_t bits) {
    uint32_t size = bits & 0x7FFFFFFF, sign = bits >> SIGN_SHIFT & 0x80;
    if (size > INFINITY_BITS) return NAN_CODE;
    int32_t above = (int32_t)(size >> WIDE_MANTISSA) - LOWEST_EXPONENT;
    uint32_t significand = (size & ((1u << WIDE_MANTISSA) - 1)) | 1u << WIDE_MANTISSA;
    uint32_t shift = WIDE_MANTISSA - MANTISSA + (above < 0 ? (uint32_t)-above : 0);
    if (shift > WIDE_MANTISSA + 1) return (uint8_t)sign; /* below half of the smallest value */
    uint32_t kept = significand >> shift, rest = significand & ((1u << shift) - 1), half = 1u << (shift - 1);
    kept += rest > half || (rest == half && (kept & 1));
    if (above > 0) kept += (uint32_t)above << MANTISSA;
    return (uint8_t)(sign | (kept > MAX_CODE ? MAX_CODE : kept));
}

uint32_t decode_e4m3fn(uint8_t code) {
    int exponent = code >> MANTISSA & 15, mantissa = code & 7;
    if ((code & 0x7F) == NAN_CODE) return INFINITY_BITS + 1;
    float size = exponent ? ldexpf((float)(8 + mantissa), exponent - BIAS - MANTISSA)
                          : ldexpf((float)mantissa, 1 - BIAS - MANTISSA);
    return bits_of(code & 0x80 ? -size : size);
}

static void write_row(uint8_t *cell, const uint16_t *x, long dims) {
    float amax = 0;
    for (long d = 0; d < dims; ++d) amax = fmaxf(amax, fabsf(float_of((uint32_t)x[d] << 16)));
    float scale = amax / LARGEST;
    if (scale == 0) scale = 1;
    for (long d = 0; d < dims; ++d) cell[d] = encode_e4m3fn(bits_of(float_of((uint32_t)x[d] << 16) / scale));
    memcpy(cell + dims, &scale, sizeof scale); /* little-endian, as the page is */
}

void write_pages(uint8_t *pages, long page_bytes, long block_size, const uint16_t *key, const uint16_t *value,
                 const long *slots, long tokens, long heads, long dims) {
    for (long t = 0; t < tokens; ++t)
        for (long h = 0; h < heads && slots[t] >= 0; ++h) {
            long place = slots[t] % block_size * heads + h, side = dims + SCALE_BYTES;
            uint8_t *cell = pages + slots[t] / block_size * page_bytes + place * 2 * side;
            write_row(cell, key + (t * heads + h) * dims, dims);
            write_row(cell + side, value + (t * heads + h) * dims, dims);
        }
}
