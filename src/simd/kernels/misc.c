/* Transposes, dot products of rows, and small element-wise kernels. */
#include "simd/kernels/math.h"
#include "simd/kernels/turn.h"

INLINE void transpose_square(float *dst, int64_t dst_ld, const float *src, int64_t src_ld) {
    vf a[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) a[i] = vload(src + i * src_ld);
    turn_square(a);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) vstore(dst + i * dst_ld, a[i]);
}

/* dst[c][r] = src[r][c] for r < rows, c < cols, 0 for r up to width; squares where they are whole. */
static void transpose_block(float *dst, int64_t dst_ld, int width, const float *src, int64_t src_ld, int rows,
                            int cols) {
    const int whole_rows = rows / LANES * LANES, whole_cols = cols / LANES * LANES;
    for (int c = 0; c < whole_cols; c += LANES) {
        for (int r = 0; r < whole_rows; r += LANES)
            transpose_square(dst + c * dst_ld + r, dst_ld, src + r * src_ld + c, src_ld);
        for (int e = c; e < c + LANES; e++)
            for (int r = whole_rows; r < rows; r++) dst[e * dst_ld + r] = src[r * src_ld + e];
    }
    for (int c = whole_cols; c < cols; c++)
        for (int r = 0; r < rows; r++) dst[c * dst_ld + r] = src[r * src_ld + c];
    for (int c = 0; c < cols; c++)
        for (int r = rows; r < width; r++) dst[c * dst_ld + r] = 0.0f;
}

void KERNEL(transpose)(float *dst, const mhla_panels *p, const float *src, int64_t ld, int cols) {
    for (int i = 0; i < p->count; i++) {
        const int begin = mhla_panel_begin(p, i), width = mhla_panel_begin(p, i + 1) - begin;
        const int rows = p->n - begin < width ? p->n - begin : width;
        transpose_block(dst + (int64_t)cols * begin, width, width, src + begin * ld, ld, rows, cols);
    }
}

void KERNEL(transpose_panels)(float *dst, const mhla_panels *to, const float *src, const mhla_panels *from) {
    const int rows = to->n, cols = from->n;
    for (int f = 0; f < from->count; f++) {
        const int c = mhla_panel_begin(from, f), cw = mhla_panel_begin(from, f + 1) - c;
        const float *s = src + (int64_t)rows * c;
        for (int t = 0; t < to->count; t++) {
            const int r = mhla_panel_begin(to, t), rw = mhla_panel_begin(to, t + 1) - r;
            transpose_block(dst + (int64_t)cols * r + (int64_t)c * rw, rw, rw, s + (int64_t)r * cw, cw,
                            rows - r < rw ? rows - r : rw, cols - c < cw ? cols - c : cw);
        }
    }
}

/* DM x DN dot products at once, each in one vector of partial sums. */
enum { DM = REGISTERS == 32 ? 6 : 4, DN = REGISTERS == 32 ? 4 : 2, DOTS_ROWS = 6, DOTS_COLS = 4 };

INLINE void dots_tile(float *c, int64_t ldc, const float *x, int64_t ldx, const int m, const float *y, int64_t ldy,
                      const int n, int64_t k, int accumulate) {
    vf acc[DOTS_ROWS][DOTS_COLS];
#pragma GCC unroll 6
    for (int i = 0; i < m; i++)
#pragma GCC unroll 4
        for (int j = 0; j < n; j++) acc[i][j] = vset(0.0f);
    for (int64_t p = 0; p < k; p += LANES) {
        vf b[DOTS_COLS];
#pragma GCC unroll 4
        for (int j = 0; j < n; j++) b[j] = vload(y + j * ldy + p);
#pragma GCC unroll 6
        for (int i = 0; i < m; i++) {
            const vf a = vload(x + i * ldx + p);
#pragma GCC unroll 4
            for (int j = 0; j < n; j++) acc[i][j] += a * b[j];
        }
    }
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            const float s = vsum(acc[i][j]);
            c[i * ldc + j] = accumulate ? c[i * ldc + j] + s : s;
        }
}

typedef void (*dots_fn)(float *c, int64_t ldc, const float *x, int64_t ldx, const float *y, int64_t ldy, int64_t k,
                        int accumulate);

#define INSTANCE(m, n)                                                                                                 \
    static void dots_##m##x##n(float *c, int64_t ldc, const float *x, int64_t ldx, const float *y, int64_t ldy,        \
                               int64_t k, int accumulate) {                                                            \
        dots_tile(c, ldc, x, ldx, m, y, ldy, n, k, accumulate);                                                        \
    }
#define INSTANCES(m) INSTANCE(m, 1) INSTANCE(m, 2) INSTANCE(m, 3) INSTANCE(m, 4)
INSTANCES(1)
INSTANCES(2)
INSTANCES(3)
INSTANCES(4)
INSTANCES(5)
INSTANCES(6)
#undef INSTANCES
#undef INSTANCE
#define ENTRIES(m)                                                                                                     \
    { NULL, dots_##m##x1, dots_##m##x2, dots_##m##x3, dots_##m##x4 }
static const dots_fn dots_tiles[7][5] = {{NULL},     ENTRIES(1), ENTRIES(2), ENTRIES(3),
                                         ENTRIES(4), ENTRIES(5), ENTRIES(6)};
#undef ENTRIES

void KERNEL(dots)(float *c, int64_t ldc, const float *x, int64_t ldx, int m, const float *y, int64_t ldy, int n,
                  int64_t k, int accumulate) {
    const int mt = (m + DM - 1) / DM, nt = (n + DN - 1) / DN; /* tiles, cut evenly */
    for (int s = 0; s < mt; s++) {
        const int i = s * m / mt, rows = (s + 1) * m / mt - i;
        for (int t = 0; t < nt; t++) {
            const int j = t * n / nt, cols = (t + 1) * n / nt - j;
            dots_tiles[rows][cols](c + i * ldc + j, ldc, x + i * ldx, ldx, y + j * ldy, ldy, k, accumulate);
        }
    }
}

void KERNEL(row_dots)(float *d, const float *x, int64_t ldx, const float *y, int64_t ldy, int n, int cols) {
    for (int i = 0; i < n; i++) {
        vf s = vset(0.0f);
        const float *a = x + i * ldx, *b = y + i * ldy;
        int j = 0;
        for (; j + LANES <= cols; j += LANES) s += vload(a + j) * vload(b + j);
        if (j < cols) s += vload_n(a + j, cols - j) * vload_n(b + j, cols - j);
        d[i] = vsum(s);
    }
}

void KERNEL(axpy)(float *y, float a, const float *x, int64_t n) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) vstore(y + i, vload(y + i) + a * vload(x + i));
    for (; i < n; i++) y[i] += a * x[i];
}

/* dy/dx = 1 - tanh(x / cap)^2 */
void KERNEL(softcap)(float *y, float *slope, const float *x, int64_t n, float cap) {
    const float inverse = 1.0f / cap;
    for (int64_t i = 0; i < n; i += LANES) {
        const int part = n - i < LANES ? (int)(n - i) : LANES;
        const vf t = vtanhf(inverse * (part < LANES ? vload_n(x + i, part) : vload(x + i)));
        const vf d = (1.0f - t) * (1.0f + t);
        if (part < LANES) {
            vstore_n(y + i, cap * t, part);
            if (slope) vstore_n(slope + i, d, part);
        } else {
            vstore(y + i, cap * t);
            if (slope) vstore(slope + i, d);
        }
    }
}

void KERNEL(vexp)(float *y, const float *x, int64_t n) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) vstore(y + i, vexpf(vload(x + i)));
    if (i < n) vstore_n(y + i, vexpf(vload_n(x + i, (int)(n - i))), (int)(n - i));
}
