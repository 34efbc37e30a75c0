/* The kernels that every instruction set provides, as one table of functions. MHLA_KERNEL_LIST is the registry: its
 * rows make the prototypes, the table of each instruction set, and the list that tests walk. The bodies stand in
 * kernels/, each file compiled once per instruction set.
 *
 * Kernels trust their caller. Buffers of our own are padded so that whole vectors may be read and written. */
#ifndef MHLA_SIMD_KERNELS_H
#define MHLA_SIMD_KERNELS_H

#include <mhla/mhla.h>
#include <stddef.h>
#include <stdint.h>

/* How the n columns of a right-hand matrix are cut into panels of whole vectors. Panel p starts at column
 * mhla_panel_begin(p). A matrix [rows][n] stored "panelled" has panel p at offset rows * begin(p), as [rows][width]. */
typedef struct mhla_panels {
    int n;           /* columns that mean something */
    int unit;        /* lanes of a vector */
    int vectors;     /* ceil(n / unit) */
    int count;       /* panels */
    int base, extra; /* a panel has `base` vectors, the first `extra` ones one more */
} mhla_panels;

/* AVX-512: the CPU takes a vector of 512 bits in two steps, as Zen 4 does, so that half a vector costs half. dispatch.c
 * finds out. */
extern int mhla_half_vectors;

static inline int mhla_panel_begin(const mhla_panels *p, int i) {
    return (i * p->base + (i < p->extra ? i : p->extra)) * p->unit;
}
static inline int mhla_panels_width(const mhla_panels *p) { return p->vectors * p->unit; }

/* Rows of a matrix in the caller's memory: row i is at base + (idx ? idx[i] : i) * stride elements. */
typedef struct mhla_rows {
    void *base;
    const int32_t *idx;
    int64_t stride;
    mhla_dtype dtype;
} mhla_rows;

/* Rows to be brought towards L2 while a product runs, spread over its tiles. */
typedef struct mhla_prefetch {
    mhla_rows rows;
    int n;     /* rows */
    int bytes; /* of a row */
} mhla_prefetch;

/* One factor pair of a product: A(i,p) = a[i*a_row + p*a_k], one of the two strides being 1; B panelled with b_rows
 * rows (b_k = 0), or row-major with row stride b_k, or (a_row = 1 only) row p at b_list[p]. */
typedef struct mhla_factor {
    int k; /* length of the sum; may be 0 */
    const float *a;
    int64_t a_row, a_k;
    const float *b;
    int64_t b_rows, b_k;
    const float *const *b_list;
} mhla_factor;

typedef enum mhla_store {
    MHLA_STORE_SET, /* C = */
    MHLA_STORE_ADD, /* C += */
    MHLA_STORE_ROWS /* caller's rows = or += row_scale[i] * */
} mhla_store;

/* C [m,n] = A B (+ A2 B2). Each element is a chain of fused multiply-adds in the order of k, then of the second
 * factor, whatever the tiling, so that a result never depends on how the work was cut. */
typedef struct mhla_gemm {
    int m;
    mhla_panels n;
    mhla_factor f, f2; /* f2.k = 0: absent */
    int f2_lower;      /* the second A is lower triangular: row i uses its first i + f2_lead columns, lead 0 or 1 */
    int f2_lead;
    mhla_store store;
    float *c; /* SET, ADD: panelled with c_rows rows (c_row = 0) or row-major with row stride c_row */
    int64_t c_rows, c_row;
    const float *row_decay; /* ADD: C = row_decay[i] C + A B; NULL = 1. mhla_gemm_narrowed does not know it */
    mhla_rows out;          /* ROWS */
    const float *row_scale; /* [m] or NULL */
    int accumulate;
    const mhla_prefetch *prefetch; /* [n_prefetch] */
    int n_prefetch;
} mhla_gemm;

/* Brings n rows of q or k into dst [n][ld] as float32 features: x -> phi(x) -> rotary. Columns from K to
 * the next multiple of 16 become 0. */
typedef struct mhla_pack {
    float *dst;
    int64_t ld;
    mhla_rows src;
    int n, K;
    mhla_feature feature;
    float eps;
    mhla_rope rope;
    int rope_dim;
    const float *cos, *sin; /* row i uses table row (src.idx ? src.idx[i] : i) + rope_row */
    int64_t rope_row;
    float *plain;   /* un-rotated features too, [n][ld], or NULL */
    float *sum;     /* [ld]: column sums of the un-rotated features are added, or NULL */
    const float *z; /* [ld]; then den[i] = un-rotated row . z */
    float *den;
} mhla_pack;

/* The way back: dx[i] (=, +=) phi'(x[i]) * (unrotate(d[i]) + w[i] * z + plain[i]), each part optional. */
typedef struct mhla_unpack {
    mhla_rows dx;
    mhla_rows x;
    int n, K;
    int64_t ld;
    mhla_feature feature;
    float eps;
    mhla_rope rope;
    int rope_dim;
    const float *cos, *sin;
    int64_t rope_row;
    const float *d;     /* [n][ld] gradient of the rotated features, or NULL */
    const float *plain; /* [n][ld] gradient of the un-rotated ones, or NULL */
    const float *w, *z; /* w [n] (NULL = 1), z [K] (NULL = none) */
    int accumulate;
} mhla_unpack;

/* The focusing map of Focused LA on n rows of a head: a = (max(x,0) + eps) inverse, f = gain[i] (reach[i] a)^power.
 * focus_norms makes reach, gain and unit from whole tokens, whose `heads` heads lie `head` elements apart (inverse [heads][ld]);
 * focus_pack makes f; focus_unpack takes df back to dx. inverse is 0 from K to the next multiple of 16. */
typedef struct mhla_focus {
    mhla_rows x;
    int n, K, heads;
    int64_t head, ld;
    const float *inverse; /* [ld] 1 / softplus of the channel's scale */
    float eps;
    int power;
    float *reach;       /* [n] 1 / max a */
    float *gain;        /* [n] |a| / |(reach a)^power| */
    float *unit;        /* [n] 1 / |a|^2 */
    float *f;           /* [n][ld]; 0 from K to the next multiple of 16 */
    const float *df;    /* [n][ld] */
    const float *along; /* [n] df . f / |a|^2 over the whole token */
    mhla_rows dx;       /* (=, +=); base NULL: not wanted */
    int accumulate;
    float *sum; /* [ld] += sum_i a[i] da[i] */
} mhla_focus;

/* A tile of softmax scores s [m][ld]: rows are queries, columns 0..n-1 keys. Row i sees columns first(i) .. last(i)-1:
 * all of them, or, where `masked` is set, those below last + i and, where `windowed` is set too, from first + i on.
 * Nothing is said about the others, before or after. */
typedef struct mhla_scores {
    float *s;
    int64_t ld;
    int m, n;
    int masked, windowed, first, last;
    float *max;         /* [m] largest score of the row so far */
    float *sum;         /* [m] of exp(score - max) */
    float *o;           /* online: [m][ldo] what was summed under the old maximum; whole rows are rescaled */
    int64_t ldo;        /* a multiple of 16 */
    float *ds;          /* weights, grad: [m][ld] gradient of the weights, then of the scores */
    float *dot;         /* [m] weights: += sum of weight * ds; grad: what is subtracted */
    const float *slope; /* grad: [m][ld] times this; NULL = 1 */
} mhla_scores;

/* The end of a linear layer, over a tile src [m][ld] of the product: y (=, +=) activation(src + bias) + residual. All
 * pointers are at the tile's first column. */
typedef struct mhla_epilogue {
    const float *src;
    int64_t ld;
    int m, n;
    const float *bias; /* [n] or NULL */
    mhla_activation activation;
    float *y;
    int64_t ldy;
    const float *residual; /* or NULL; may be y */
    int64_t ldr;
    float *pre; /* src + bias is kept here; or NULL */
    int64_t ldpre;
    int accumulate;
} mhla_epilogue;

/* C [m,width] (=, +=) A B in bfloat16 with float32 sums, two products at a time: pair p of row i of A is at
 * a + i*a_row + 2*p, B in one panel [pairs][width][2], width 16, 32, 48 or 64. */
typedef struct mhla_gemm_bf16 {
    int m, width, pairs;
    const uint16_t *a, *b;
    int64_t a_row;
    float *c;
    int64_t c_row;
    int add;
    const mhla_prefetch *prefetch;
    int n_prefetch;
} mhla_gemm_bf16;

/* C [m,width] (=, +=) A B of few rows straight from a weight of bfloat16, panels [ceil(k/2)][width][2]: element by element
 * what gemm makes of the widened panel. Up to MHLA_FEW_PANELS panels of `vectors` vectors at once. */
enum { MHLA_FEW_ROWS = 8, MHLA_FEW_PANELS = 2 };
typedef struct mhla_few {
    int m, k; /* rows, 1 to MHLA_FEW_ROWS; length of the sums */
    int vectors, panels;
    const float *a;
    int64_t a_row;
    const void *b[MHLA_FEW_PANELS];
    float *c[MHLA_FEW_PANELS];
    int64_t c_row;
    int add;
} mhla_few;

/* C [m,width] (=, +=) A B: A [m][a_row] and its scales [m][a_row/32] as narrow_q8 makes them; B one panel of Q8_0, blocks
 * {float16 d[width]; int8 q[16][width][2]} of 32 rows; k a multiple of 32. Block by block, whatever the number of rows. */
typedef struct mhla_gemm_q8 {
    int m, width, k;
    const int16_t *a;
    int64_t a_row;
    const float *scale;
    const void *b;
    float *c;
    int64_t c_row;
    int add;
    const mhla_prefetch *prefetch;
    int n_prefetch;
} mhla_gemm_q8;

/* A norm of each group of `group` columns: y = (x - mean) rstd w + b, times silu(gate) where there is one; RMS: mean = 0.
 * Backward reads what forward kept in mean and rstd [rows * cols/group]. */
typedef struct mhla_norm {
    int64_t rows;
    int cols, group;
    int centred;
    float eps;
    const float *w, *b; /* [group] or NULL */
    int plus_one;       /* 1 + w instead of w */
    const float *x, *gate;
    int64_t ldx, ldgate;
    float *mean, *rstd; /* forward: NULL = not kept */
    float *y;
    int64_t ldy;
    const float *dy;
    float *dx, *dgate; /* (=, +=), or NULL */
    int64_t lddy, lddx, lddgate;
    int add, add_gate;
    float *dw, *db; /* [group], added to, or NULL */
} mhla_norm;

/* Rows y (=, +=) alpha x (z + beta) + r; z NULL = 1, r NULL = 0; a row stride of 0 broadcasts. y may be x or r. */
typedef struct mhla_blend {
    int64_t n, cols;
    float *y;
    const float *x, *z, *r;
    int64_t ldy, ldx, ldz, ldr;
    float alpha, beta;
    int add;
} mhla_blend;

/* Depthwise k x k convolution of a band of a grid, from a copy with its borders: tile [rows+k-1][W+k-1][ct], 0 where there
 * is nothing and from channel C on; ct, a multiple of 16, is the stride of channels of w [k*k][ct] and bias [ct] too. */
typedef struct mhla_depthwise {
    int k, rows, W;
    int64_t C, ct;
    const float *tile, *w, *bias;
    const float *residual; /* or NULL */
    int64_t r_row, r_col;
    float *y; /* (=, +=); depthwise_weight: the gradient that arrives */
    int64_t y_row, y_col;
    int add;
    float *dw; /* [k*k][ct], added to */
} mhla_depthwise;
enum { MHLA_WIDEST_DEPTHWISE = 31 };

/* n tokens of a selective scan for a tile of MHLA_SCAN_TILE channels, of which `channels` are there; [16] below is a tile. Rows u,
 * delta, z, y and their gradients are the caller's, at the tile's first channel. scan_forward makes step, x and sum, moves h on
 * and writes y; scan_backward then needs states and decays kept, and moves g back. */
enum { MHLA_SCAN_TILE = 16 };
typedef struct mhla_scan {
    int n, channels, N;
    int softplus;
    const float *u, *delta, *z; /* z NULL: no gate */
    int64_t ldu, lddelta, ldz;
    const float *B, *C; /* [n][ld], N numbers each */
    int64_t ldB, ldC;
    const float *A;         /* [N][16] */
    const float *D, *bias;  /* [16] */
    float *h;               /* [N][16] the state before the tokens, then after them */
    float *y;               /* NULL: not wanted */
    int64_t ldy;            /* of dy too */
    int accumulate;         /* y += */
    float *step, *x, *sum;  /* [n][16] d, d u, h C */
    float *states, *decays; /* [n][N][16] h before each token, exp(d A); NULL: not kept */
    /* backward */
    const float *dy;
    float *g;                /* [N][16] gradient of the state after the tokens, then before them */
    float *du, *ddelta, *dz; /* or NULL */
    int64_t lddu, ldddelta, lddz;
    int add;                  /* gradients of tokens += */
    float *dsum, *dx, *dstep; /* [n][16] scratch */
    float *dB, *dC;           /* [n][N][16] added to: the share of each channel */
    float *dA;                /* [N][16] added to */
    float *dD, *dbias;        /* [16] added to */
} mhla_scan;

/* n tokens of a short convolution: y_t = activation(bias + sum_j w[j] rows[t+j]), rows [n+W-1] pointers to the inputs from W-1
 * tokens before on, w [W][ld]. With dy, y = dy activation'(...) instead. taps_weight: dw[j] += sum_t y_t rows[t+j], dbias += sum_t y_t. */
typedef struct mhla_taps {
    int n, W;
    int64_t cols, ld;
    const float *const *rows;
    const float *w, *bias; /* bias NULL = 0 */
    mhla_activation activation;
    float *y;
    int64_t ldy;
    int accumulate;  /* y += */
    const float *dy; /* not NULL: y = dy activation'(...) */
    int64_t lddy;
    float *dw, *dbias; /* or NULL */
} mhla_taps;
enum { MHLA_WIDEST_TAPS = 64 };

/* A token of a linear recurrence, some columns of a head: S [K][lds] = decay S + k u^T and o = scale S^T q, with u = v or, in the
 * delta rule, u = beta (v - (decay S)^T k). */
typedef struct mhla_recur {
    int K, cols;
    float *S;
    int64_t lds;
    const float *q, *k, *decay; /* [K] */
    const float *v;             /* [cols] */
    int delta;
    float beta, scale;
    float *o; /* [cols] */
} mhla_recur;

/* p = decay p - step m / (sqrt(v) inverse_sqrt_bias2 + eps) with the moments of grad_scale * g */
typedef struct mhla_adamw {
    float grad_scale, one_minus_beta1, beta2, one_minus_beta2, inverse_sqrt_bias2, eps, step, decay;
} mhla_adamw;

struct mhla_rng;

#define MHLA_KERNEL_LIST(X)                                                                                                \
    /* the cut into panels that suits n columns */                                                                         \
    X(panels, (mhla_panels * p, int n))                                                                                    \
    X(gemm, (const mhla_gemm *g))                                                                                          \
    X(pack, (const mhla_pack *p))                                                                                          \
    X(unpack, (const mhla_unpack *u))                                                                                      \
    X(focus_norms, (const mhla_focus *p))                                                                                  \
    X(focus_pack, (const mhla_focus *p))                                                                                   \
    X(focus_unpack, (const mhla_focus *p))                                                                                 \
    /* rows [n][ld] of the caller (float32 or bfloat16), times scale[i] if not NULL, as float32; columns to ld = 0 */      \
    X(copy_rows, (float *dst, int64_t ld, const mhla_rows *src, int n, int cols, const float *scale))                      \
    /* the same into panels: dst panelled [n][p->n] */                                                                     \
    X(copy_panels, (float *dst, const mhla_panels *p, const mhla_rows *src, int n, const float *scale))                    \
    /* the way back: dst rows (=, +=) src [n][ld] */                                                                       \
    X(store_rows, (const mhla_rows *dst, const float *src, int64_t ld, int n, int cols, int accumulate))                   \
    /* dst panelled over `cols` (panels p, p->n = number of src rows): dst[c][r] = src[r][c]; columns beyond p->n = 0 */   \
    X(transpose, (float *dst, const mhla_panels *p, const float *src, int64_t ld, int cols))                               \
    /* panelled [rows][from->n] -> panelled [from->n][rows], to->n = rows */                                               \
    X(transpose_panels, (float *dst, const mhla_panels *to, const float *src, const mhla_panels *from))                    \
    /* c[i*ldc + j] (=, +=) x_i . y_j over k elements, k a multiple of 16 */                                               \
    X(dots, (float *c, int64_t ldc, const float *x, int64_t ldx, int m, const float *y, int64_t ldy, int n, int64_t k,     \
             int accumulate))                                                                                              \
    /* the same for vectors in pieces: element e of piece p of x_i is at x[i*x_row + p*x_step + e] */                      \
    X(dots_pieces, (float *c, int64_t ldc, const float *x, int64_t x_row, int64_t x_step, int m, const float *y,           \
                    int64_t y_row, int64_t y_step, int n, int pieces, int width, int accumulate))                          \
    /* d[i] = x_i . y_i over rows of cols elements, both float32 [n][ld] */                                                \
    X(row_dots, (float *d, const float *x, int64_t ldx, const float *y, int64_t ldy, int n, int cols))                     \
    /* y += a x */                                                                                                         \
    X(axpy, (float *y, float a, const float *x, int64_t n))                                                                \
    /* softmax: max; s = exp(s - max), sum, o rescaled; s, sum, dot; ds = s * (ds - dot) */                                \
    X(scores_max, (const mhla_scores *t))                                                                                  \
    X(scores_online, (const mhla_scores *t))                                                                               \
    X(scores_weights, (const mhla_scores *t))                                                                              \
    X(scores_grad, (const mhla_scores *t))                                                                                 \
    /* y = cap tanh(x / cap), in place is allowed; slope = dy/dx, NULL: not wanted */                                      \
    X(softcap, (float *y, float *slope, const float *x, int64_t n, float cap))                                             \
    /* softmax of few queries, from the caller's rows: s [m][lds] = q k^T over K columns; o [m][ldo] += s v.             \
     * Meanwhile as many rows of `next`, which may be NULL, are brought towards L2 */ \
    X(few_scores, (float *s, int64_t lds, const float *q, int64_t ldq, int m, const mhla_rows *k, int n, int K,            \
                   const mhla_rows *next))                                                                                 \
    X(few_sums, (float *o, int64_t ldo, const float *s, int64_t lds, int m, const mhla_rows *v, int n, int V,              \
                 const mhla_rows *next))                                                                                   \
    /* dst [n][ld] = factor * scale[i] * rows (scale NULL = 1), 0 up to a multiple of 16 columns; and the way back */      \
    X(scores_in, (float *dst, int64_t ld, const mhla_rows *src, int n, int cols, float factor, const float *scale))        \
    X(scores_out,                                                                                                          \
      (const mhla_rows *out, const float *o, int64_t ldo, int n, int cols, const float *scale, int accumulate))            \
    /* linear layers: the end of one; dpre = dy * activation'(pre), in place is allowed */                                 \
    X(epilogue, (const mhla_epilogue *e))                                                                                  \
    X(activation_backward, (float *dpre, const float *dy, const float *pre, int64_t n, mhla_activation activation))        \
    /* layers */                                                                                                           \
    X(norm_forward, (const mhla_norm *p))                                                                                  \
    X(norm_backward, (const mhla_norm *p))                                                                                 \
    X(blend, (const mhla_blend *p))                                                                                        \
    /* y = silu(gate) up; dgate (=, +=) dy up silu'(gate), dup (=, +=) dy silu(gate), either NULL: not wanted */           \
    X(swiglu, (float *y, const float *gate, const float *up, int64_t n))                                                   \
    X(swiglu_backward, (float *dgate, int add_gate, float *dup, int add_up, const float *dy, const float *gate,            \
                        const float *up, int64_t n))                                                                       \
    /* s [cols] += sum over n rows of x z, z NULL = 1 */                                                                   \
    X(column_sums, (float *s, const float *x, int64_t ldx, const float *z, int64_t ldz, int64_t n, int64_t cols))          \
    X(depthwise, (const mhla_depthwise *p))                                                                                \
    X(depthwise_weight, (const mhla_depthwise *p))                                                                         \
    /* y (=, +=) x / (1 - rate) or 0, by the words of rng from `block` on, four to a block */                              \
    X(dropout, (float *y, const float *x, int64_t n, const struct mhla_rng *rng, uint32_t block, float rate, int add))     \
    X(scan_forward, (const mhla_scan *p))                                                                                  \
    X(scan_backward, (const mhla_scan *p))                                                                                 \
    /* short convolutions: y, or with dy what arrives before the activation; the sums of the weight's gradient */          \
    X(taps, (const mhla_taps *p))                                                                                          \
    X(taps_weight, (const mhla_taps *p))                                                                                   \
    X(adamw, (float *p, float *m, float *v, const float *g, int64_t n, const mhla_adamw *a))                               \
    /* bfloat16 in pairs: [k][width] <-> [ceil(k/2)][width][2]; width whole vectors, an odd end is 0 */                    \
    X(narrow_pairs, (uint16_t * dst, const float *src, int k, int width))                                                  \
    X(widen_pairs, (float *dst, const uint16_t *src, int k, int width))                                                    \
    /* Q8_0: rows in 16 bits, dst [n][ld] of src [n][lds], and the scales of blocks of 32, [n][ld/32]; the product */      \
    X(narrow_q8, (int16_t * dst, float *scale, int64_t ld, const float *src, int64_t lds, int n, int cols))                \
    X(gemm_q8, (const mhla_gemm_q8 *g))                                                                                    \
    X(few, (const mhla_few *g))                                                                                            \
    /* bfloat16 rows [n][ld] of src [n][lds]; columns to ld = 0 */                                                         \
    X(narrow_rows, (uint16_t * dst, int64_t ld, const float *src, int64_t lds, int n, int cols))                           \
    /* columns as such rows: dst [cols][ld], dst[j][i] = src[i][j]; behind an odd n a 0 */                                 \
    X(narrow_columns, (uint16_t * dst, int64_t ld, const float *src, int64_t lds, int n, int cols))                        \
    /* rows of either type into panels of bfloat16 pairs of rows: dst panel [ceil(n/2)][width][2]; what is missing is 0 */ \
    X(zip_rows, (uint16_t * dst, const mhla_panels *p, const mhla_rows *src, int n))                                       \
    X(recur, (const mhla_recur *p))                                                                                        \
    /* element-wise, in place is allowed */                                                                                \
    X(vexp, (float *y, const float *x, int64_t n))

typedef struct mhla_kernels {
    const char *name;
#define X(name, args) void(*name) args;
    MHLA_KERNEL_LIST(X)
#undef X
    /* multiply-adds per second, in 1e9 flops, of one thread over `seconds`; bytes read */
    double (*fma_flops)(int64_t iterations);
    double (*bf16_flops)(int64_t iterations); /* NULL: no such instruction */
    float (*read_sum)(const float *p, int64_t n);
    void (*gemm_bf16)(const mhla_gemm_bf16 *g); /* NULL: no such instruction */
    void (*same_bits)(const mhla_gemm_bf16 *g); /* what gemm_bf16 computes, in plain C: one of the two below */
} mhla_kernels;

/* ---- emulate.c: gemm_bf16 in plain C, bit for bit. What is subnormal counts as 0. ---- */

/* vdpbf16ps. c + a b + a' b' of two pairs: the odd (upper) halves first, then the even ones, each rounded. */
float mhla_dot_bf16(float c, uint32_t a, uint32_t b);
void mhla_emulated_gemm_bf16(const mhla_gemm_bf16 *g);

/* tdpbf16ps. c plus MHLA_TILE_PAIRS pairs or, at the end of k, fewer: the even products of them are one chain of fused
 * multiply-adds from 0, the odd ones another; the sum of the two is added to c. */
enum { MHLA_TILE_PAIRS = 16 };
float mhla_dots_amx(float c, const uint32_t *a, const uint32_t *b, int pairs);
void mhla_emulated_gemm_amx(const mhla_gemm_bf16 *g);

/* narrow.c: gemm with bfloat16 products where that pays; of a table that has them. */
void mhla_gemm_narrowed(const mhla_kernels *kernels, const mhla_gemm *g);

/* The chosen table. The first call chooses. */
const mhla_kernels *mhla_kernels_get(void);

/* Every table that runs on this CPU, best last; returns how many. For tests. */
int mhla_kernels_available(const mhla_kernels *tables[], int capacity);

/* Those of them without products of bfloat16, with emulated ones: "plain-bf16", "plain-amx", ... mhla_set_isa and MHLA_ISA know
 * their names; nothing else chooses them. */
int mhla_kernels_emulated(const mhla_kernels *tables[], int capacity);

#endif
