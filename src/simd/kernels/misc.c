/* Transposes, dot products of rows, and small element-wise kernels. */
#include "simd/kernels/math.h"

/* dst[c][r] = src[r][c] for r < rows, c < cols, 0 for r up to width. Goes through the source by squares, so that both
 * sides stay in the nearest cache. */
static void transpose_block(float *dst, int64_t dst_ld, int width, const float *src, int64_t src_ld, int rows,
                            int cols) {
    enum { SIDE = 16 };
    for (int c0 = 0; c0 < cols; c0 += SIDE) {
        const int c1 = c0 + SIDE < cols ? c0 + SIDE : cols;
        for (int r0 = 0; r0 < rows; r0 += SIDE) {
            const int r1 = r0 + SIDE < rows ? r0 + SIDE : rows;
            for (int c = c0; c < c1; c++)
                for (int r = r0; r < r1; r++) dst[c * dst_ld + r] = src[r * src_ld + c];
        }
        for (int c = c0; c < c1; c++)
            for (int r = rows; r < width; r++) dst[c * dst_ld + r] = 0.0f;
    }
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
enum { DM = REGISTERS == 32 ? 6 : 4, DN = REGISTERS == 32 ? 4 : 2 };

INLINE void dots_tile(float *c, int64_t ldc, const float *x, int64_t ldx, const int m, const float *y, int64_t ldy,
                      const int n, int64_t k, int accumulate) {
    vf acc[DM][DN];
#pragma GCC unroll 6
    for (int i = 0; i < m; i++)
#pragma GCC unroll 4
        for (int j = 0; j < n; j++) acc[i][j] = vset(0.0f);
    for (int64_t p = 0; p < k; p += LANES) {
        vf b[DN];
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

void KERNEL(dots)(float *c, int64_t ldc, const float *x, int64_t ldx, int m, const float *y, int64_t ldy, int n,
                  int64_t k, int accumulate) {
    for (int i = 0; i < m; i += DM)
        for (int j = 0; j < n; j += DN) {
            const float *xi = x + i * ldx, *yj = y + j * ldy;
            float *at = c + i * ldc + j;
            if (m - i >= DM && n - j >= DN) {
                dots_tile(at, ldc, xi, ldx, DM, yj, ldy, DN, k, accumulate);
                continue;
            }
            const int mm = m - i < DM ? m - i : DM, nn = n - j < DN ? n - j : DN;
            for (int a = 0; a < mm; a++)
                for (int b = 0; b < nn; b++)
                    dots_tile(at + a * ldc + b, ldc, xi + a * ldx, ldx, 1, yj + b * ldy, ldy, 1, k, accumulate);
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

void KERNEL(vexp)(float *y, const float *x, int64_t n) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) vstore(y + i, vexpf(vload(x + i)));
    if (i < n) vstore_n(y + i, vexpf(vload_n(x + i, (int)(n - i))), (int)(n - i));
}
