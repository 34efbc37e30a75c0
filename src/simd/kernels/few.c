/* Few rows times a weight as it is stored, bfloat16: reading the weight is the work, so every number is widened in registers
 * once per tile and never written. What comes out is what gemm makes of the widened panel, bit for bit. */
#include "simd/kernels/isa.h"

enum {
    VECTORS = 4, /* most of a tile: of one panel, or of two */
    AHEAD = 4096 /* bytes: one row has to be read as fast as memory gives it */
};

/* ---- A tile: mr rows by np panels of nv vectors ---- */

/* acc += A(:,p) w, w the widened numbers of row p of B. */
INLINE void add_products(vf acc[MHLA_FEW_ROWS][VECTORS], const int mr, const int n, const float *const a[], int p,
                         const vf w[VECTORS]) {
#pragma GCC unroll 8
    for (int i = 0; i < mr; i++) {
        const float x = a[i][p];
#pragma GCC unroll 4
        for (int j = 0; j < n; j++) acc[i][j] += x * w[j];
    }
}

INLINE void sum_bf16(vf acc[MHLA_FEW_ROWS][VECTORS], const mhla_few *g, const float *const a[], const int mr,
                     const int nv, const int np) {
    const int width = nv * LANES;
    const uint16_t *b[MHLA_FEW_PANELS];
    for (int q = 0; q < np; q++) b[q] = g->b[q];
    for (int p = 0; p < g->k; p += 2) {
        vf low[VECTORS], high[VECTORS];
#pragma GCC unroll 2
        for (int q = 0; q < np; q++) {
#pragma GCC unroll 4
            for (int j = 0; j < nv; j++) {
                const vu u = *(const vu *)(b[q] + 2 * j * LANES);
                if (j * LANES % 16 == 0) __builtin_prefetch(b[q] + 2 * j * LANES + AHEAD / 2, 0, 3);
                low[q * nv + j] = (vf)(u << 16);
                high[q * nv + j] = (vf)(u & 0xffff0000u);
            }
            b[q] += 2 * width;
        }
        add_products(acc, mr, nv * np, a, p, low);
        if (p + 1 < g->k) add_products(acc, mr, nv * np, a, p + 1, high);
    }
}

INLINE void tile(const mhla_few *g, int row, const int mr, const int nv, const int np) {
    vf acc[MHLA_FEW_ROWS][VECTORS];
    const float *a[MHLA_FEW_ROWS];
#pragma GCC unroll 8
    for (int i = 0; i < mr; i++) {
        a[i] = g->a + (row + i) * g->a_row;
#pragma GCC unroll 4
        for (int j = 0; j < nv * np; j++) acc[i][j] = vset(-0.0f); /* what changes nothing that is added to it */
    }
    sum_bf16(acc, g, a, mr, nv, np);
#pragma GCC unroll 8
    for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv * np; j++) {
            float *c = g->c[j / nv] + (row + i) * g->c_row + j % nv * LANES;
            if (g->add) acc[i][j] = vload(c) + acc[i][j];
            vstore(c, acc[i][j]);
        }
}

/* Rows of a tile of n vectors: accumulators, a scale each, and something to work with. */
#define MOST_ROWS(n) (REGISTERS == 32 ? ((n) == 4 ? 6 : 8) : ((n) <= 1 ? 8 : (n) == 2 ? 5 : (n) == 3 ? 3 : 2))

#define CASE(mr)                                                                                                       \
    case mr:                                                                                                           \
        if ((mr) <= MOST_ROWS(nv * np)) tile(g, row, (mr) <= MOST_ROWS(nv * np) ? (mr) : 1, nv, np);                   \
        break;

INLINE void rows_of(const mhla_few *g, const int nv, const int np) {
    const int most = MOST_ROWS(nv * np), tiles = (g->m + most - 1) / most;
    for (int t = 0, row = 0; t < tiles; t++) {
        const int mr = g->m / tiles + (t < g->m % tiles);
        switch (mr) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) }
        row += mr;
    }
}

#define INSTANCE(name, nv, np)                                                                                         \
    static __attribute__((noinline)) void name(const mhla_few *g) { rows_of(g, nv, np); }
INSTANCE(bf_1, 1, 1)
INSTANCE(bf_2, 2, 1)
INSTANCE(bf_3, 3, 1)
INSTANCE(bf_4, 4, 1)
INSTANCE(bf_11, 1, 2)
INSTANCE(bf_22, 2, 2)

void KERNEL(few)(const mhla_few *g) {
    static void (*const table[2][VECTORS + 1])(const mhla_few *g) = {{NULL, bf_1, bf_2, bf_3, bf_4},
                                                                     {NULL, bf_11, bf_22}};
    table[g->panels == 2][g->vectors](g);
}
