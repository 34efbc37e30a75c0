/* One register tile of a product, TILE_ROWS x TILE_VECTORS at most, for vectors of TILE_LANES floats. Included once per
 * vector length by gemm.c, with TILE_LANES defined; names carry the length.
 *
 * The body is one inline function of constants (rows mr, vectors nv); the table below instantiates it. */

#define TILE_PASTE_(a, b) a##_##b
#define TILE_PASTE(a, b) TILE_PASTE_(a, b)
#define TILE(name) TILE_PASTE(name, TILE_LANES)

typedef float TILE(tv) __attribute__((vector_size(TILE_LANES * 4), aligned(4), may_alias));

/* acc += A(:,p) B(p,:), the rows of A by pointers. */
INLINE void TILE(step)(TILE(tv) acc[TILE_MAX_ROWS][TILE_MAX_VECTORS], const int mr, const int nv,
                       const float *const row[TILE_MAX_ROWS], int p, const float *b) {
    TILE(tv) v[TILE_MAX_VECTORS];
#pragma GCC unroll 4
    for (int j = 0; j < nv; j++) v[j] = *(const TILE(tv) *)(b + j * TILE_LANES);
#pragma GCC unroll 8
    for (int i = 0; i < mr; i++) {
        const float x = row[i][p];
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) acc[i][j] += x * v[j];
    }
}

/* The same, a column of A in one piece. */
INLINE void TILE(column_step)(TILE(tv) acc[TILE_MAX_ROWS][TILE_MAX_VECTORS], const int mr, const int nv, const float *a,
                              const float *b) {
    TILE(tv) v[TILE_MAX_VECTORS];
#pragma GCC unroll 4
    for (int j = 0; j < nv; j++) v[j] = *(const TILE(tv) *)(b + j * TILE_LANES);
#pragma GCC unroll 8
    for (int i = 0; i < mr; i++) {
        const float x = a[i];
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) acc[i][j] += x * v[j];
    }
}

/* acc (+)= sum over p of A(i,p) B(p,:). With `first` the first product starts the chain. */
INLINE void TILE(accumulate)(TILE(tv) acc[TILE_MAX_ROWS][TILE_MAX_VECTORS], const int mr, const int nv, const int by_k,
                             int k, const float *a, int64_t stride, const float *b, int64_t b_step,
                             const float *const *list, int column, int first, const tile_fetch *fetch) {
    const int64_t ahead = fetch->ahead;
    const char *const *line = fetch->line;
    const int64_t line_step = fetch->step;
    /* by_k: A rows are contiguous in k and `stride` apart; else A columns are contiguous and `stride` apart. */
    int p = 0;
    if (first) {
#pragma GCC unroll 8
        for (int i = 0; i < mr; i++) {
            const float x = by_k ? a[i * stride] : a[i];
#pragma GCC unroll 4
            for (int j = 0; j < nv; j++) acc[i][j] = x * *(const TILE(tv) *)(b + j * TILE_LANES);
        }
        p = 1;
        b += b_step;
    }
    if (by_k) {
        const float *row[TILE_MAX_ROWS];
#pragma GCC unroll 8
        for (int i = 0; i < mr; i++) row[i] = a + i * stride;
        /* Two loops: fetching costs registers and slots, 7 points where nothing needs to be fetched. */
        if (fetch->step == 0 && fetch->ahead == 0) {
            for (; p < k; p++, b += b_step) TILE(step)(acc, mr, nv, row, p, b);
        } else {
            for (; p < k; p++, b += b_step) {
                __builtin_prefetch(b + ahead, 0, 3);
                if (nv * TILE_LANES > 16) __builtin_prefetch(b + ahead + 16, 0, 3);
                if (mr == 1) { /* B is all that this reads: its whole row */
#pragma GCC unroll 4
                    for (int j = 32; j < nv * TILE_LANES; j += 16) __builtin_prefetch(b + ahead + j, 0, 3);
                }
                __builtin_prefetch(*line, 0, 2);
                line += line_step;
                TILE(step)(acc, mr, nv, row, p, b);
            }
        }
    } else if (list) {
        for (a += p * stride; p < k; p++, a += stride) {
            __builtin_prefetch(*line, 0, 2);
            line += line_step;
            TILE(column_step)(acc, mr, nv, a, list[p] + column);
        }
    } else {
        for (a += p * stride; p < k; p++, a += stride, b += b_step) {
            __builtin_prefetch(*line, 0, 2);
            line += line_step;
            TILE(column_step)(acc, mr, nv, a, b);
        }
    }
}

/* The triangle on the diagonal of a lower triangular A: row i takes columns p < i + lead. Nothing that is masked is
 * touched, so that a NaN in a later row of B reaches no earlier row of C. */
INLINE void TILE(triangle)(TILE(tv) acc[TILE_MAX_ROWS][TILE_MAX_VECTORS], const int mr, const int nv, int k,
                           const float *a, int64_t a_row, int64_t a_k, const float *b, int64_t b_step, int lead) {
    for (int p = 0; p < mr + lead - 1 && p < k; p++, b += b_step) {
        TILE(tv) v[TILE_MAX_VECTORS];
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) v[j] = *(const TILE(tv) *)(b + j * TILE_LANES);
#pragma GCC unroll 8
        for (int i = 0; i < mr; i++) {
            if (p >= i + lead) continue;
            const float x = a[i * a_row + p * a_k];
#pragma GCC unroll 4
            for (int j = 0; j < nv; j++) acc[i][j] += x * v[j];
        }
    }
}

INLINE void TILE(factor)(TILE(tv) acc[TILE_MAX_ROWS][TILE_MAX_VECTORS], const int mr, const int nv,
                         const mhla_factor *f, int k, int row, int column, int width, int first,
                         const tile_fetch *fetch) {
    const float *b = f->b_list ? f->b_list[0] + column : f->b + (f->b_k ? column : f->b_rows * column);
    const int64_t b_step = f->b_k ? f->b_k : width;
    if (f->a_k == 1)
        TILE(accumulate)(acc, mr, nv, 1, k, f->a + row * f->a_row, f->a_row, b, b_step, NULL, 0, first, fetch);
    else
        TILE(accumulate)(acc, mr, nv, 0, k, f->a + row, f->a_k, b, b_step, f->b_list, column, first, fetch);
}

INLINE void TILE(store_tile)(float *c, int64_t step, TILE(tv) acc[TILE_MAX_ROWS][TILE_MAX_VECTORS], const int mr,
                             const int nv) {
#pragma GCC unroll 8
    for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) *(TILE(tv) *)(c + i * step + j * TILE_LANES) = acc[i][j];
}

/* The last panel of rows whose length is no whole number of vectors. */
INLINE void TILE(store_cut)(TILE(tv) acc[TILE_MAX_ROWS][TILE_MAX_VECTORS], const int mr, const int nv,
                            const mhla_gemm *g, int row, int column) {
#pragma GCC unroll 4
    for (int j = 0; j < nv; j++) {
        const int left = g->n.n - column - j * TILE_LANES, n = left < TILE_LANES ? (left > 0 ? left : 0) : TILE_LANES;
#pragma GCC unroll 8
        for (int i = 0; i < mr; i++) {
            const TILE(tv) x = (g->row_scale ? g->row_scale[row + i] : 1.0f) * acc[i][j];
            vf whole = {0}; /* x may be half a vector */
            memcpy(&whole, &x, sizeof x);
            vstore_n((float *)row_at(&g->out, row + i) + column + j * TILE_LANES, whole, n);
        }
    }
}

/* Into the caller's rows, scaled: float32 from here, everything else by way of memory. */
INLINE void TILE(store_rows)(TILE(tv) acc[TILE_MAX_ROWS][TILE_MAX_VECTORS], const int mr, const int nv,
                             const mhla_gemm *g, int row, int column) {
    if (g->out.dtype != MHLA_F32 || g->accumulate) {
        float tile[TILE_MAX_ROWS * TILE_MAX_VECTORS * TILE_LANES];
        TILE(store_tile)(tile, nv * TILE_LANES, acc, mr, nv);
        store_lines(g, row, column, tile, mr, nv * TILE_LANES);
        return;
    }
    if (g->n.n - column < nv * TILE_LANES) {
        TILE(store_cut)(acc, mr, nv, g, row, column);
        return;
    }
#pragma GCC unroll 8
    for (int i = 0; i < mr; i++) {
        float *o = (float *)row_at(&g->out, row + i) + column;
        const float s = g->row_scale ? g->row_scale[row + i] : 1.0f;
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) *(TILE(tv) *)(o + j * TILE_LANES) = s * acc[i][j];
    }
}

INLINE void TILE(run)(const int mr, const int nv, const mhla_gemm *g, int row, int column, const tile_fetch *fetch) {
    TILE(tv) acc[TILE_MAX_ROWS][TILE_MAX_VECTORS];
    const int width = nv * TILE_LANES;
    float *c = g->c + (g->c_row ? row * g->c_row + column : g->c_rows * column + (int64_t)row * width);
    const int64_t step = g->c_row ? g->c_row : width;
    if (g->f.k > 0) {
        TILE(factor)(acc, mr, nv, &g->f, g->f.k, row, column, width, 1, fetch);
    } else {
#pragma GCC unroll 8
        for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
            for (int j = 0; j < nv; j++) acc[i][j] = (TILE(tv)){0};
    }
    if (g->f2.k > 0) {
        const mhla_factor *f = &g->f2;
        const int dense = g->f2_lower && row < f->k ? row : f->k;
        TILE(factor)(acc, mr, nv, f, dense, row, column, width, 0, &tile_fetch_none);
        if (g->f2_lower && dense < f->k) {
            const int64_t b_step = f->b_k ? f->b_k : width;
            TILE(triangle)
            (acc, mr, nv, f->k - dense, f->a + row * f->a_row + dense * f->a_k, f->a_row, f->a_k,
             f->b + (f->b_k ? column : f->b_rows * column) + dense * b_step, b_step, g->f2_lead);
        }
    }
    if (g->store == MHLA_STORE_ROWS) {
        TILE(store_rows)(acc, mr, nv, g, row, column);
        return;
    }
    if (g->store == MHLA_STORE_ADD && g->row_decay) {
#pragma GCC unroll 8
        for (int i = 0; i < mr; i++) {
            const float d = g->row_decay[row + i];
#pragma GCC unroll 4
            for (int j = 0; j < nv; j++) acc[i][j] += d * *(const TILE(tv) *)(c + i * step + j * TILE_LANES);
        }
    } else if (g->store == MHLA_STORE_ADD) {
#pragma GCC unroll 8
        for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
            for (int j = 0; j < nv; j++) acc[i][j] += *(const TILE(tv) *)(c + i * step + j * TILE_LANES);
    }
    TILE(store_tile)(c, step, acc, mr, nv);
}

/* The instances: as many rows as tile_rows() in gemm.c asks for, no more (each is a kilobyte and a second of compiling). */
#define INSTANCE(mr, nv)                                                                                               \
    static __attribute__((noinline)) void TILE(tile_##mr##x##nv)(const mhla_gemm *g, int row, int column,              \
                                                                 const tile_fetch *fetch) {                            \
        TILE(run)(mr, nv, g, row, column, fetch);                                                                      \
    }
#define ENTRY(mr, nv) TILE(tile_##mr##x##nv)
#define TO_4(X, nv) X(1, nv) X(2, nv) X(3, nv) X(4, nv)
#define TO_6(X, nv) TO_4(X, nv) X(5, nv) X(6, nv)
#define TO_8(X, nv) TO_6(X, nv) X(7, nv) X(8, nv)
#define LISTED(mr, nv) ENTRY(mr, nv),

TO_8(INSTANCE, 1)
#if TILE_REGISTERS == 32
TO_8(INSTANCE, 2)
TO_8(INSTANCE, 3)
#else
TO_6(INSTANCE, 2)
TO_4(INSTANCE, 3)
#endif
#if TILE_VECTORS == 4
TO_6(INSTANCE, 4)
#endif

static const tile_fn TILE(tiles)[TILE_MAX_VECTORS + 1][TILE_MAX_ROWS + 1] = {
    {NULL},
    {NULL, TO_8(LISTED, 1)},
#if TILE_REGISTERS == 32
    {NULL, TO_8(LISTED, 2)},
    {NULL, TO_8(LISTED, 3)},
#else
    {NULL, TO_6(LISTED, 2)},
    {NULL, TO_4(LISTED, 3)},
#endif
#if TILE_VECTORS == 4
    {NULL, TO_6(LISTED, 4)},
#endif
};
#undef INSTANCE
#undef ENTRY
#undef LISTED
#undef TO_4
#undef TO_6
#undef TO_8
#undef TILE
#undef TILE_PASTE
#undef TILE_PASTE_
#undef TILE_LANES
#undef TILE_VECTORS
