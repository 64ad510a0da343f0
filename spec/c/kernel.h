/* What run_vectors.c calls. Put your own functions behind these names. */
#include <stdint.h>

uint8_t encode_e4m3fn(uint32_t binary32_bits); /* to nearest even, saturating, NaN to 0x7F */
uint32_t decode_e4m3fn(uint8_t code);          /* binary32 bits */

/* Writes tokens into pages of vllm-0.33, mode fp8_per_token_head, order NHD. key, value: bfloat16 bits
 * [tokens][heads][dims]; slots: block * block_size + place, negative: the token is not written. */
void write_pages(uint8_t *pages, long page_bytes, long block_size, const uint16_t *key, const uint16_t *value,
                 const long *slots, long tokens, long heads, long dims);
