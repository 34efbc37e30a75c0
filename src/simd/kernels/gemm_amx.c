/* The product of bfloat16 pairs in tiles of 16 rows and 16 columns (tdpbf16ps). A row of tiles of a panel is summed at once. Each
 * call configures the tiles and releases them, so that threads of callers are left as they were.
 *
 * MHLA_TILE_PAIRS pairs are taken at a time, counted from the first; what is left is taken by tiles of that many pairs. */
#include "simd/kernels/isa.h"

#if defined(__AMX_BF16__)
#include <immintrin.h>

enum { SIDE = 16, FULL = 64 }; /* rows of a tile, bytes of one */

/* Tiles 0-3 are sums. */
#define A 4
#define B 5
#define LAST_A 6 /* the last pairs, fewer than MHLA_TILE_PAIRS */
#define LAST_B 7

typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16]; /* of a row of each tile */
    uint8_t rows[16];
} tile_config;

/* Intrinsics of gcc do not say what memory they read. */
#define MEMORY_IS_READ() __asm__ volatile("" ::: "memory")

static void configure(int rows, int last) {
    const tile_config c = {
        .palette = 1,
        .bytes = {FULL, FULL, FULL, FULL, FULL, FULL, (uint16_t)(4 * last), FULL},
        .rows = {(uint8_t)rows, (uint8_t)rows, (uint8_t)rows, (uint8_t)rows, (uint8_t)rows, SIDE, (uint8_t)rows,
                 (uint8_t)last},
    };
    __asm__ volatile("" ::"r"(&c) : "memory");
    _tile_loadconfig(&c);
}

#define BEGIN(j)                                                                                                       \
    if (nv > (j)) {                                                                                                    \
        if (g->add)                                                                                                    \
            _tile_loadd(j, c + SIDE * (j), 4 * g->c_row);                                                              \
        else                                                                                                           \
            _tile_zero(j);                                                                                             \
    }
#define MULTIPLY(j, a, b)                                                                                              \
    if (nv > (j)) {                                                                                                    \
        _tile_loadd(b, from + 2 * SIDE * (j), b_row);                                                                  \
        _tile_dpbf16ps(j, a, b);                                                                                       \
    }
#define END(j)                                                                                                         \
    if (nv > (j)) _tile_stored(j, c + SIDE * (j), 4 * g->c_row);

/* Rows row .. of C, as many as the tiles have; *line and those behind it are fetched, line_step times a few at each step. */
INLINE void row_of_tiles(const mhla_gemm_bf16 *g, int row, const int nv, const char *const *line, int64_t line_step) {
    const uint16_t *a = g->a + row * g->a_row, *from = g->b;
    const int64_t a_row = 2 * g->a_row, b_row = (int64_t)4 * SIDE * nv;
    float *c = g->c + row * g->c_row;
    const int last = g->pairs % MHLA_TILE_PAIRS;
    BEGIN(0) BEGIN(1) BEGIN(2) BEGIN(3) for (int p = MHLA_TILE_PAIRS; p <= g->pairs; p += MHLA_TILE_PAIRS) {
        _tile_loadd(A, a, a_row);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) __builtin_prefetch(line[i * line_step], 0, 2);
        line += 4 * line_step;
        MULTIPLY(0, A, B) MULTIPLY(1, A, B) MULTIPLY(2, A, B) MULTIPLY(3, A, B) a += 2 * MHLA_TILE_PAIRS;
        from += (int64_t)MHLA_TILE_PAIRS * 2 * SIDE * nv;
    }
    if (last) {
        _tile_loadd(LAST_A, a, a_row);
        MULTIPLY(0, LAST_A, LAST_B) MULTIPLY(1, LAST_A, LAST_B) MULTIPLY(2, LAST_A, LAST_B) MULTIPLY(3, LAST_A, LAST_B)
    }
    END(0) END(1) END(2) END(3)
}

void KERNEL(gemm_bf16)(const mhla_gemm_bf16 *g) {
    const int steps = g->pairs / MHLA_TILE_PAIRS, last = g->pairs % MHLA_TILE_PAIRS;
    const char *line[MAX_LINES + LANES];
    const int lines = list_lines(line, g->prefetch, g->n_prefetch);
    MEMORY_IS_READ();
    for (int row = 0, at = 0, configured = 0; row < g->m; row += SIDE) {
        const int rows = g->m - row < SIDE ? g->m - row : SIDE, some = lines - at >= 4 * steps;
        if (rows != configured) configure(configured = rows, last ? last : MHLA_TILE_PAIRS);
        const char *const *near = some ? line + at : &no_line;
        if (some)
            at += 4 * steps;
        else
            for (; at < lines; at++) __builtin_prefetch(line[at], 0, 2);
        switch (g->width / SIDE) {
        case 1: row_of_tiles(g, row, 1, near, some); break;
        case 2: row_of_tiles(g, row, 2, near, some); break;
        case 3: row_of_tiles(g, row, 3, near, some); break;
        default: row_of_tiles(g, row, 4, near, some); break;
        }
    }
    _tile_release();
}

double KERNEL(tile_flops)(int64_t iterations) {
    const int64_t n = iterations / 16; /* a tile is that much work */
    configure(SIDE, MHLA_TILE_PAIRS);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(A);
    _tile_zero(B);
    for (int64_t i = 0; i < n; i++) {
        _tile_dpbf16ps(0, A, B);
        _tile_dpbf16ps(1, A, B);
        _tile_dpbf16ps(2, A, B);
        _tile_dpbf16ps(3, A, B);
    }
    _tile_release();
    return 4.0 * 2.0 * SIDE * SIDE * 2 * MHLA_TILE_PAIRS * (double)n;
}

#endif
