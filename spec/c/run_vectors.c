/* Runs kvformat's vectors on the functions of kernel.h. Exit status: 0 all hold, 1 one does not, 2 nothing to judge.
 *
 *     cc -std=c99 -O2 run_vectors.c kernel.c -lm -o run_vectors && ./run_vectors ../vectors
 *
 * Vector files hold one group or test per line, keys in a fixed order, no spaces: that is all this reader knows. */
#include "kernel.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 1 << 22, MOST = 1 << 16 };
static char line[LINE], group[LINE];

static const char *field(const char *text, const char *name) { /* what stands behind "name": and its quote */
    char key[64];
    const char *found = (snprintf(key, sizeof key, "\"%s\":", name), strstr(text, key));
    if (!found) { fprintf(stderr, "no %s in: %.60s\n", name, text); exit(2); }
    found += strlen(key);
    return found + strspn(found, "[\"");
}

static long number(const char *text, const char *name) { return strtol(field(text, name), NULL, 10); }

static const char *hex(const char *text, int digits, uint32_t *value) { /* the next so many digits */
    char word[9] = {0};
    memcpy(word, text, (size_t)digits);
    *value = (uint32_t)strtoul(word, NULL, 16);
    return text + digits;
}

static int encode(void) {
    uint32_t x, right;
    hex(field(line, "x"), 8, &x);
    uint8_t code = encode_e4m3fn(x);
    if (!strncmp(field(line, "code"), "nan", 3)) return (code & 0x7F) == 0x7F;
    hex(field(line, "code"), 2, &right);
    return code == right;
}

static int decode(void) {
    uint32_t code, right;
    hex(field(line, "code"), 2, &code);
    uint32_t value = decode_e4m3fn((uint8_t)code);
    if (!strncmp(field(line, "value"), "nan", 3)) return (value & 0x7FFFFFFF) > 0x7F800000;
    hex(field(line, "value"), 8, &right);
    return value == right;
}

static int page(void) {
    static uint16_t key[MOST], value[MOST];
    static uint8_t pages[MOST];
    static long slots[MOST];
    long heads = number(group, "numKvHeads"), dims = number(group, "headSize"), size = number(line, "pageBytes");
    long tokens = 0, count = 0, wrong = 0;
    uint32_t word, fill;
    for (const char *at = field(line, "slotMapping"); *at != ']'; at += *at == ',')
        slots[tokens++] = strtol(at, (char **)&at, 10);
    const char *k = field(line, "key"), *v = field(line, "value"), *right = field(line, "pages");
    for (long i = 0; i < tokens * heads * dims; ++i) {
        k = hex(k, 4, &word), key[i] = (uint16_t)word;
        v = hex(v, 4, &word), value[i] = (uint16_t)word;
    }
    hex(field(line, "fill"), 2, &fill);
    memset(pages, (int)fill, sizeof pages);
    write_pages(pages, size, number(group, "blockSize"), key, value, slots, tokens, heads, dims);
    for (; *right != ']'; right += strspn(right, "\","))
        for (; *right != '"'; ++count) right = hex(right, 2, &word), wrong += pages[count] != word;
    return count > 0 && !wrong;
}

static long run(const char *folder, const char *name, const char *id, int (*holds)(void)) {
    char path[4096], head[256];
    long tests = 0, wrong = 0, inside = 0;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    snprintf(head, sizeof head, "{\"id\":\"%s\",\"type\":", id);
    FILE *file = fopen(path, "r");
    if (!file) { perror(path); exit(2); }
    while (fgets(line, LINE, file)) {
        if (!strncmp(line, head, strlen(head))) inside = 1, strcpy(group, line);
        else if (line[0] == ']') inside = 0;
        else if (inside && ++tests && !holds() && !wrong++) printf("wrong: %.100s\n", line);
    }
    fclose(file);
    printf("%s %s: %ld tests, %ld wrong\n", name, id, tests, wrong);
    if (!tests) exit(2);
    return wrong;
}

int main(int count, char **arguments) {
    const char *folder = count > 1 ? arguments[1] : "../vectors";
    long wrong = run(folder, "elements/e4m3fn_encode.json", "binary32/nearest_even/saturate", encode);
    wrong += run(folder, "elements/e4m3fn_decode.json", "binary32", decode);
    wrong += run(folder, "pages/vllm-0.33.json", "fp8_per_token_head/NHD", page);
    return wrong ? 1 : 0;
}
