/* Dot products of vectors that are stored in pieces: what the gradient of a mixing matrix is made of. */
#include "simd/kernels/isa.h"

/* Tile: as many sums as registers allow beside the loads. */
enum { PM = REGISTERS == 32 ? 6 : 4, PN = REGISTERS == 32 ? 4 : 2 };

typedef struct side {
    const float *at;
    int64_t row, step; /* from one vector to the next, from one piece to the next */
} side;

INLINE void piece_tile(float *c, int64_t ldc, side x, const int m, side y, const int n, int pieces, int width,
                       int accumulate) {
    vf acc[PM][PN];
#pragma GCC unroll 6
    for (int i = 0; i < m; i++)
#pragma GCC unroll 4
        for (int j = 0; j < n; j++) acc[i][j] = vset(0.0f);
    const int whole = width / LANES * LANES;
    for (int p = 0; p < pieces; p++, x.at += x.step, y.at += y.step) {
        for (int e = 0; e < whole; e += LANES) {
            vf b[PN];
#pragma GCC unroll 4
            for (int j = 0; j < n; j++) b[j] = vload(y.at + j * y.row + e);
#pragma GCC unroll 6
            for (int i = 0; i < m; i++) {
                const vf a = vload(x.at + i * x.row + e);
#pragma GCC unroll 4
                for (int j = 0; j < n; j++) acc[i][j] += a * b[j];
            }
        }
        if (whole < width) /* half vectors: pieces of 8 or 24 floats where a vector has 16 */
            for (int i = 0; i < m; i++)
                for (int j = 0; j < n; j++)
                    acc[i][j] += vload_n(x.at + i * x.row + whole, width - whole) *
                                 vload_n(y.at + j * y.row + whole, width - whole);
    }
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            const float s = vsum(acc[i][j]);
            c[i * ldc + j] = accumulate ? c[i * ldc + j] + s : s;
        }
}

void KERNEL(dots_pieces)(float *c, int64_t ldc, const float *x, int64_t x_row, int64_t x_step, int m, const float *y,
                         int64_t y_row, int64_t y_step, int n, int pieces, int width, int accumulate) {
    for (int i = 0; i < m; i += PM)
        for (int j = 0; j < n; j += PN) {
            const side a = {x + i * x_row, x_row, x_step}, b = {y + j * y_row, y_row, y_step};
            float *at = c + i * ldc + j;
            if (m - i >= PM && n - j >= PN) {
                piece_tile(at, ldc, a, PM, b, PN, pieces, width, accumulate);
                continue;
            }
            const int mm = m - i < PM ? m - i : PM, nn = n - j < PN ? n - j : PN;
            for (int k = 0; k < mm; k++) {
                const side ak = {a.at + k * x_row, x_row, x_step};
                if (nn == PN) {
                    piece_tile(at + k * ldc, ldc, ak, 1, b, PN, pieces, width, accumulate);
                    continue;
                }
                for (int l = 0; l < nn; l++) {
                    const side bl = {b.at + l * y_row, y_row, y_step};
                    piece_tile(at + k * ldc + l, ldc, ak, 1, bl, 1, pieces, width, accumulate);
                }
            }
        }
}
