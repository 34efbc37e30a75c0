/* The matrix product that everything stands on: C = A B (+ A2 B2), tile by tile, B in panels. */
#include "simd/kernels/isa.h"

enum { TILE_MAX_ROWS = 8, TILE_MAX_VECTORS = 4 };

/* What a tile fetches while it computes: lines of memory that will be needed later, at most a few per step of k, so
 * that they never queue up. */
typedef struct tile_fetch {
    int64_t ahead;           /* two lines that far from the present row of B */
    const char *const *line; /* one line per step */
    int step;                /* 1, or 0: always the same one */
} tile_fetch;

static const tile_fetch tile_fetch_none = {0, &no_line, 0};

typedef void (*tile_fn)(const mhla_gemm *g, int row, int column, const tile_fetch *fetch);

/* A tile [mr][width] from memory into the caller's rows: of any type, any number of columns, set or added to. */
static __attribute__((noinline)) void store_lines(const mhla_gemm *g, int row, int column, const float *tile, int mr,
                                                  int width) {
    const int cols = g->n.n - column < width ? g->n.n - column : width;
    for (int i = 0; i < mr; i++) {
        void *out = row_at(&g->out, row + i);
        const float s = g->row_scale ? g->row_scale[row + i] : 1.0f;
        for (int j = 0; j < cols; j += LANES) {
            const int n = cols - j < LANES ? cols - j : LANES;
            vf x = s * vload_n(tile + (int64_t)i * width + j, n);
            if (g->accumulate) x = row_load_n(out, g->out.dtype, column + j, n) + x;
            row_store_n(out, g->out.dtype, column + j, x, n);
        }
    }
}

/* TILE_VECTORS: the most that a panel has, see panels below. */
#if defined(__AVX512F__)
#define TILE_REGISTERS 32
#define TILE_LANES 16
#define TILE_VECTORS 4
#include "simd/kernels/tile.h"
#define TILE_LANES 8
#define TILE_VECTORS 3
#include "simd/kernels/tile.h"
#elif defined(__AVX2__)
#define TILE_REGISTERS 16
#define TILE_LANES 8
#define TILE_VECTORS 3
#include "simd/kernels/tile.h"
#elif defined(__aarch64__)
#define TILE_REGISTERS 32
#define TILE_LANES 4
#define TILE_VECTORS 4
#include "simd/kernels/tile.h"
#else
#define TILE_REGISTERS 16
#define TILE_LANES 4
#define TILE_VECTORS 3
#include "simd/kernels/tile.h"
#endif

/* Rows of a tile of nv vectors: as many accumulators as registers allow beside nv of B and one of A. */
static int tile_rows(int nv) {
    if (REGISTERS == 32) return nv == 4 ? 6 : 8;
    return nv == 1 ? 8 : nv == 2 ? 6 : 4;
}

void KERNEL(panels)(mhla_panels *p, int n) {
    /* 32 registers: up to 4 vectors a panel. 16: two, or three where the number is odd. Half vectors where they save padding
     * (72 = 9 x 8) and cost half; where they cost as much as whole ones, five of those are far quicker than nine halves. Few
     * columns gain nothing, and keep the bits that they have on other CPUs. */
    int unit = LANES, most = REGISTERS == 32 ? 4 : 2;
#if defined(__AVX512F__)
    if ((mhla_half_vectors || n <= 32) && n % 16 != 0 && n % 16 <= 8) unit = 8, most = 3;
#endif
    const int vectors = (n + unit - 1) / unit;
    int count = REGISTERS == 32 ? (vectors + most - 1) / most : vectors / most;
    if (count < 1) count = 1;
    *p = (mhla_panels){n, unit, vectors, count, vectors / count, vectors % count};
}

static tile_fn pick(int unit, int nv, int rows) {
#if defined(__AVX512F__)
    return unit == 16 ? tiles_16[nv][rows] : tiles_8[nv][rows];
#elif defined(__AVX2__)
    (void)unit;
    return tiles_8[nv][rows];
#else
    (void)unit;
    return tiles_4[nv][rows];
#endif
}

void KERNEL(gemm)(const mhla_gemm *g) {
    const mhla_panels n = g->n;
    const int m = g->m, k = g->f.k;
    const char *line[MAX_LINES + LANES];
    const int lines = list_lines(line, g->prefetch, g->n_prefetch);
    const int far = (int64_t)k * g->f.b_k > 128 * 1024; /* B is beyond L2 */
    int at = 0, of = 0, tiles = 0, rows = 0, more = 0;
    for (int p = 0; p < n.count; p++) {
        const int column = mhla_panel_begin(&n, p), end = mhla_panel_begin(&n, p + 1);
        const int nv = n.base + (p < n.extra);
        if (nv != of) { /* cut evenly, so that no tile is much smaller than the others */
            of = nv;
            tiles = (m + tile_rows(nv) - 1) / tile_rows(nv);
            rows = m / tiles, more = m % tiles;
        }
        for (int t = 0, row = 0; t < tiles; t++) {
            tile_fetch fetch = tile_fetch_none;
            /* Rows of a B that is not in panels are far apart: no hardware prefetcher sees the next panel coming. Each
             * tile fetches two lines per row of it, unless B is near enough anyway. */
            if (far && p + 1 < n.count) fetch.ahead = end - column + 32 * (t & 1);
            if (m == 1 && g->f.b_k == 0) fetch.ahead = 2048; /* one row: as fast as B streams in, and it has pages */
            if (lines - at >= k) {
                fetch.line = line + at;
                fetch.step = 1;
                at += k;
            } else {
                for (; at < lines; at++) __builtin_prefetch(line[at], 0, 2);
            }
            const int mr = rows + (t < more);
            pick(n.unit, nv, mr)(g, row, column, &fetch);
            row += mr;
        }
    }
}
