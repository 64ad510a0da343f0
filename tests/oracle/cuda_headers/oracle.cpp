// NVIDIA's own conversions, as their headers do them on a CPU, one loop per conversion with C linkage.
// Built by build.py with plain g++ against the header wheels; nothing of NVIDIA's is in this file.
#include <cstddef>
#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp4.h>
#include <cuda_fp8.h>

static __half_raw half_bits(uint16_t bits) { __half_raw r; r.x = bits; return r; }
static __nv_bfloat16_raw bfloat_bits(uint16_t bits) { __nv_bfloat16_raw r; r.x = bits; return r; }

#define LOOP(name, from, to, expression) \
    extern "C" void name(const from *in, to *out, size_t n) { for (size_t i = 0; i < n; ++i) { const from x = in[i]; out[i] = expression; } }

// name: FORMAT_POLICY_SOURCE
LOOP(e4m3fn_saturate_float32, float, uint8_t, __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3))
LOOP(e4m3fn_saturate_float64, double, uint8_t, __nv_cvt_double_to_fp8(x, __NV_SATFINITE, __NV_E4M3))
LOOP(e4m3fn_saturate_float16, uint16_t, uint8_t, __nv_cvt_halfraw_to_fp8(half_bits(x), __NV_SATFINITE, __NV_E4M3))
LOOP(e4m3fn_saturate_bfloat16, uint16_t, uint8_t, __nv_cvt_bfloat16raw_to_fp8(bfloat_bits(x), __NV_SATFINITE, __NV_E4M3))
LOOP(e4m3fn_ieee_float32, float, uint8_t, __nv_cvt_float_to_fp8(x, __NV_NOSAT, __NV_E4M3))
LOOP(e4m3fn_ieee_float64, double, uint8_t, __nv_cvt_double_to_fp8(x, __NV_NOSAT, __NV_E4M3))
LOOP(e4m3fn_ieee_float16, uint16_t, uint8_t, __nv_cvt_halfraw_to_fp8(half_bits(x), __NV_NOSAT, __NV_E4M3))
LOOP(e4m3fn_ieee_bfloat16, uint16_t, uint8_t, __nv_cvt_bfloat16raw_to_fp8(bfloat_bits(x), __NV_NOSAT, __NV_E4M3))

LOOP(e5m2_saturate_float32, float, uint8_t, __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2))
LOOP(e5m2_saturate_float64, double, uint8_t, __nv_cvt_double_to_fp8(x, __NV_SATFINITE, __NV_E5M2))
LOOP(e5m2_saturate_float16, uint16_t, uint8_t, __nv_cvt_halfraw_to_fp8(half_bits(x), __NV_SATFINITE, __NV_E5M2))
LOOP(e5m2_saturate_bfloat16, uint16_t, uint8_t, __nv_cvt_bfloat16raw_to_fp8(bfloat_bits(x), __NV_SATFINITE, __NV_E5M2))
LOOP(e5m2_ieee_float32, float, uint8_t, __nv_cvt_float_to_fp8(x, __NV_NOSAT, __NV_E5M2))
LOOP(e5m2_ieee_float64, double, uint8_t, __nv_cvt_double_to_fp8(x, __NV_NOSAT, __NV_E5M2))
LOOP(e5m2_ieee_float16, uint16_t, uint8_t, __nv_cvt_halfraw_to_fp8(half_bits(x), __NV_NOSAT, __NV_E5M2))
LOOP(e5m2_ieee_bfloat16, uint16_t, uint8_t, __nv_cvt_bfloat16raw_to_fp8(bfloat_bits(x), __NV_NOSAT, __NV_E5M2))

LOOP(e2m1fn_saturate_float32, float, uint8_t, __nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundNearest))
LOOP(e2m1fn_saturate_float64, double, uint8_t, __nv_cvt_double_to_fp4(x, __NV_E2M1, cudaRoundNearest))
LOOP(e2m1fn_saturate_float16, uint16_t, uint8_t, __nv_cvt_halfraw_to_fp4(half_bits(x), __NV_E2M1, cudaRoundNearest))
LOOP(e2m1fn_saturate_bfloat16, uint16_t, uint8_t, __nv_cvt_bfloat16raw_to_fp4(bfloat_bits(x), __NV_E2M1, cudaRoundNearest))

LOOP(e8m0fnu_up_saturate_float32, float, uint8_t, __nv_cvt_float_to_e8m0(x, __NV_SATFINITE, cudaRoundPosInf))
LOOP(e8m0fnu_up_saturate_float64, double, uint8_t, __nv_cvt_double_to_e8m0(x, __NV_SATFINITE, cudaRoundPosInf))
LOOP(e8m0fnu_up_saturate_bfloat16, uint16_t, uint8_t, __nv_cvt_bfloat16raw_to_e8m0(bfloat_bits(x), __NV_SATFINITE, cudaRoundPosInf))
LOOP(e8m0fnu_up_ieee_float32, float, uint8_t, __nv_cvt_float_to_e8m0(x, __NV_NOSAT, cudaRoundPosInf))
LOOP(e8m0fnu_up_ieee_float64, double, uint8_t, __nv_cvt_double_to_e8m0(x, __NV_NOSAT, cudaRoundPosInf))
LOOP(e8m0fnu_up_ieee_bfloat16, uint16_t, uint8_t, __nv_cvt_bfloat16raw_to_e8m0(bfloat_bits(x), __NV_NOSAT, cudaRoundPosInf))
LOOP(e8m0fnu_down_saturate_float32, float, uint8_t, __nv_cvt_float_to_e8m0(x, __NV_SATFINITE, cudaRoundZero))
LOOP(e8m0fnu_down_saturate_float64, double, uint8_t, __nv_cvt_double_to_e8m0(x, __NV_SATFINITE, cudaRoundZero))
LOOP(e8m0fnu_down_saturate_bfloat16, uint16_t, uint8_t, __nv_cvt_bfloat16raw_to_e8m0(bfloat_bits(x), __NV_SATFINITE, cudaRoundZero))
LOOP(e8m0fnu_down_ieee_float32, float, uint8_t, __nv_cvt_float_to_e8m0(x, __NV_NOSAT, cudaRoundZero))
LOOP(e8m0fnu_down_ieee_float64, double, uint8_t, __nv_cvt_double_to_e8m0(x, __NV_NOSAT, cudaRoundZero))
LOOP(e8m0fnu_down_ieee_bfloat16, uint16_t, uint8_t, __nv_cvt_bfloat16raw_to_e8m0(bfloat_bits(x), __NV_NOSAT, cudaRoundZero))

// decoders give the bits of a float16 (fp8, fp4) or bfloat16 (e8m0)
LOOP(e4m3fn_decode, uint8_t, uint16_t, __nv_cvt_fp8_to_halfraw(x, __NV_E4M3).x)
LOOP(e5m2_decode, uint8_t, uint16_t, __nv_cvt_fp8_to_halfraw(x, __NV_E5M2).x)
LOOP(e2m1fn_decode, uint8_t, uint16_t, __nv_cvt_fp4_to_halfraw(x, __NV_E2M1).x)
LOOP(e8m0fnu_decode, uint8_t, uint16_t, __nv_cvt_e8m0_to_bf16raw(x).x)

// the x2 packer: n bytes out of 2n numbers
LOOP(e2m1fn_pack_float32, float2, uint8_t, __nv_cvt_float2_to_fp4x2(x, __NV_E2M1, cudaRoundNearest))

extern "C" int toolkit_version(void) { return CUDART_VERSION; }
