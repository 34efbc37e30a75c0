/* mhla.h - Multi-Head Linear Attention on the CPU: operators, their gradients, and the baselines beside them.
 *
 * This header is the manual. It goes from the simplest use to the most demanding one:
 *
 *   1. statuses, messages, structs       6. training: gradients, the mixing matrix
 *   2. one-shot calls                    7. the matrix product of linear layers
 *   3. contexts: threads and memory      8. what this machine has
 *   4. plans and calls                   9. Mamba: selective scan and short convolution
 *   5. streaming: one token, or n, at a time
 *
 * Symbols, as in the paper: B batch, T tokens, H heads, G key/value heads (H is a multiple of G), K key size of a
 * head, V value size of a head, M blocks ("token-level heads"), C tokens of a causal chunk.
 * Tensors are token-major [B,T,H,K] unless strides say otherwise. float32, or bfloat16 with float32 arithmetic.
 *
 * Every function that can fail returns an mhla_status. mhla_message() then returns one sentence that names the argument.
 * The library never prints and never exits. A call that fails writes nothing, unless its comment says otherwise.
 * Structs begin with their size: set `.size = sizeof x`, set the fields that you need, leave the rest zero. Zero is
 * always the default. Section 1 has the rules. */
#ifndef MHLA_H
#define MHLA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MHLA_VERSION_MAJOR 0
#define MHLA_VERSION_MINOR 2
#define MHLA_VERSION_PATCH 0

#if defined(__GNUC__)
#define MHLA_API __attribute__((visibility("default")))
#else
#define MHLA_API
#endif

/* ---- 1. Statuses, messages, structs ------------------------------------------------------------------------ */

#define MHLA_STATUS_LIST(X)                                                                                            \
    X(OK, 0, "success")                                                                                                \
    X(EINVAL, 1, "invalid argument")                                                                                   \
    X(ENOMEM, 2, "out of memory")                                                                                      \
    X(ERANGE, 3, "out of range")                                                                                       \
    X(EDATA, 4, "corrupt or foreign data")                                                                             \
    X(ENOTSUP, 5, "not supported")                                                                                     \
    X(EIO, 6, "a file could not be read or written")

typedef enum mhla_status {
#define X(name, value, text) MHLA_##name = (value),
    MHLA_STATUS_LIST(X)
#undef X
} mhla_status;

/* The text of a status, never NULL. */
MHLA_API const char *mhla_status_text(mhla_status status);

/* The sentence about the last failure of a call made by this thread; "" if there was none. Valid until the thread's
 * next failing call. */
MHLA_API const char *mhla_message(void);

/* "0.1.0" */
MHLA_API const char *mhla_version(void);

/* Structs with a size. Most calls take or fill a struct whose first field is `size_t size`. Set it to sizeof the struct.
 * It says which version of the header the program was compiled with. Program and library may be of different versions:
 *
 *   - A struct that you pass in may be smaller than the library's: the missing fields count as zero. It may be larger:
 *     the fields that the library does not know must be zero, otherwise MHLA_ENOTSUP names the struct and the byte.
 *   - A struct that a call fills gets as many bytes as it has, and zeros in fields that the library does not know.
 *     `size` stays as it is.
 *   - All elements of an array have the same size, which is also the distance between them.
 *   - A struct that a callback receives has the library's size. Before you read a field that is newer than the oldest
 *     library you support, compare `size`.
 *   - MHLA_EINVAL names the struct if its size cannot be right: less than two size_t, more than 65536, not a multiple
 *     of sizeof(size_t), or too small for the pointers that you have to free.
 *
 * A new version adds fields at the end only, beyond the old sizeof, and zero means what the old version did. A struct
 * without a size never changes. */

/* ---- 2. One-shot calls --------------------------------------------------------------------------------------
 *
 * Contiguous float32, default context, relu + 1e-6 features. For anything else, and for repeated calls, make a plan.
 *
 * o [B,T,H,V] is written; q, k [B,T,H,K], v [B,T,H,V]; mix [M,M], row i = query block i (see section 6 for how to
 * make one). All memory is the caller's. */

/* Bidirectional MHLA with the denominator of Eq. 4. T is the product of the `axes` entries of grid. Axis a is cut into
 * blocks[a] pieces; M is the product of blocks. Tokens are in raster order. */
MHLA_API mhla_status mhla_attention(float *o, const float *q, const float *k, const float *v, const float *mix,
                                    int64_t B, int64_t T, int H, int K, int V, int axes, const int *grid,
                                    const int *blocks);

/* Cross attention: queries q [B,Tq,H,K] on one grid read keys k [B,Tk,H,K] and values v [B,Tk,H,V] on another; o [B,Tq,H,V],
 * mix [Mq,Mk]. The grids may have different numbers of axes. */
MHLA_API mhla_status mhla_cross_attention(float *o, const float *q, const float *k, const float *v, const float *mix,
                                          int64_t B, int64_t Tq, int64_t Tk, int H, int K, int V, int axes,
                                          const int *grid, const int *blocks, int key_axes, const int *key_grid,
                                          const int *key_blocks);

/* Causal MHLA without denominator: relu features without eps, scale K^-1/2, chunks of `chunk` tokens. Only the lower
 * triangle of mix [M,M] is read. M * chunk must be at least T. */
MHLA_API mhla_status mhla_causal_attention(float *o, const float *q, const float *k, const float *v, const float *mix,
                                           int64_t B, int64_t T, int H, int K, int V, int chunk, int M);

/* ---- 3. Contexts: threads and memory -----------------------------------------------------------------------
 *
 * A context sets the number of threads and the backend that runs them. NULL is the default: OpenMP with its own number
 * of threads. Results do not depend on it: they are bit-identical for any number of threads and any backend.
 *
 * Contexts also work in a child of fork(). There the library uses its own threads instead of OpenMP's, whose runtime may
 * hang. A call that another thread was running during the fork does not exist in the child. */

typedef struct mhla_context mhla_context;

typedef enum mhla_backend {
    MHLA_BACKEND_OPENMP = 0, /* the process's OpenMP runtime */
    MHLA_BACKEND_PTHREADS,   /* the library's own threads, which wait between calls. One call at a time uses them; a
                                concurrent call runs in its caller's thread */
    MHLA_BACKEND_CUSTOM      /* the caller's */
} mhla_backend;

/* A loop body: does task i (0 <= i < n). Two tasks that run at the same time have different `worker` numbers. */
typedef void (*mhla_task_fn)(void *arg, int64_t i, int worker);

/* The caller's own parallel for: calls task(arg, i, worker) once for each i in 0..n-1, in any order, with
 * 0 <= worker < threads, and returns when all are done. */
typedef void (*mhla_parallel_fn)(void *user, int64_t n, mhla_task_fn task, void *arg);

typedef struct mhla_context_desc {
    size_t size;
    mhla_backend backend;
    int threads; /* 0: what OpenMP would use, or the number of CPUs this process may run on */
    mhla_parallel_fn parallel;
    void *user;
} mhla_context_desc;

/* Makes a context; free it with mhla_context_free (NULL is legal) when no call uses it. May be shared by threads. */
MHLA_API mhla_status mhla_context_create(mhla_context **context, const mhla_context_desc *desc);
MHLA_API void mhla_context_free(mhla_context *context);
MHLA_API int mhla_context_threads(const mhla_context *context);

/* Replaces malloc and free for everything that the library allocates from now on; NULL, NULL restores them. Meant for
 * embedding and for tests of failing allocations. Call it while no other call runs and no object exists. */
MHLA_API void mhla_set_allocator(void *(*allocate)(size_t bytes), void (*release)(void *memory));

/* ---- 4. Plans and calls -------------------------------------------------------------------------------------
 *
 * A plan describes the operator; a call has the sizes and the memory. Plans are immutable, and several threads may use
 * one at the same time. The README.md of an operator's folder in src/ops has its mathematics. */

typedef enum mhla_kind {
    MHLA_KIND_BIDIRECTIONAL = 0, /* MHLA over a grid of blocks */
    MHLA_KIND_CAUSAL,            /* MHLA over chunks; also streams (section 5) */
    MHLA_KIND_LINEAR,            /* linear attention, bidirectional: every query reads the sum of all summaries */
    MHLA_KIND_LINEAR_CAUSAL,     /* linear attention, causal; also streams */
    MHLA_KIND_SOFTMAX,           /* softmax attention, bidirectional or causal, windowed, Tq != Tk */
    /* Linear attentions of vision models, bidirectional, each with its own feature map, scale and epsilons: */
    MHLA_KIND_FOCUSED, /* Focused LA: features sharpened by a power */
    MHLA_KIND_INLINE,  /* InLine: subtracts instead of dividing; rows sum to 1 */
    MHLA_KIND_MALA,    /* MALA: scaled and shifted by the query's own magnitude */
    MHLA_KIND_RALA,    /* RALA: keys weighed by a softmax against the mean query */
    /* Linear recurrences with decay, causal, S_t = decay_t S_{t-1} + k_t v_t^T, o_t = scale q_t^T S_t: no feature map, no
     * denominator, no rotary. Log-decays are in the call; a state is [B,H,K,V]. They stream, too. */
    MHLA_KIND_SIMPLE_GLA, /* one decay for each head and token: simple GLA, RetNet, Mamba2 */
    MHLA_KIND_GLA,        /* one decay for each key channel: gated linear attention */
    MHLA_KIND_GATED_DELTA /* Gated DeltaNet: one decay for each head and token. A token replaces the value stored under its key: with
                             S the decayed state, S_t = S + k_t (beta_t (v_t - S^T k_t))^T */
} mhla_kind;

typedef enum mhla_dtype {
    MHLA_F32 = 0,
    MHLA_BF16 = 1,
    MHLA_Q8_0 = 2 /* weights only (section 7): blocks of 32 numbers d q, {float16 d; int8 q[32]}, as GGUF has them */
} mhla_dtype;

typedef enum mhla_feature {
    MHLA_FEATURE_RELU = 0, /* max(x,0) + feature_eps */
    MHLA_FEATURE_ELU,      /* elu(x) + 1 */
    MHLA_FEATURE_IDENTITY  /* x: for features computed elsewhere */
} mhla_feature;

typedef enum mhla_denominator {
    MHLA_DEN_EQ4 = 0,  /* q~ . z' + den_eps, the paper's */
    MHLA_DEN_RELEASED, /* bidirectional only, equal blocks only: the released image models' */
    MHLA_DEN_NONE      /* 1 */
} mhla_denominator;

typedef enum mhla_order {
    MHLA_ORDER_RASTER = 0, /* tokens come in raster order of the grid, last axis fastest */
    MHLA_ORDER_BLOCKS      /* tokens come block after block, raster inside a block */
} mhla_order;

typedef enum mhla_rope {
    MHLA_ROPE_NONE = 0,
    MHLA_ROPE_HALF,       /* pairs (j, j + rope_dim/2) */
    MHLA_ROPE_INTERLEAVED /* pairs (2j, 2j+1) */
} mhla_rope;

typedef enum mhla_beyond {                        /* causal: what happens past chunk M-1 */
                           MHLA_BEYOND_ERROR = 0, /* MHLA_ERANGE, nothing is written */
                           MHLA_BEYOND_CLAMP, /* weights by distance: chunk i >= M weighs chunk b = i-d by m[M-1,M-1-d], d < M, and all
                              older ones, merged into one tail summary, by m[M-1,0] */
                           MHLA_BEYOND_CHUNK /* the plan chooses C = ceil(max_tokens / M) so that M chunks cover max_tokens; past
                              that, as ERROR */
} mhla_beyond;

typedef struct mhla_plan_desc {
    size_t size;
    mhla_kind kind;
    mhla_dtype dtype; /* storage of q, k, v, o (softmax: see kv_bfloat16); everything else is float32 */
    int heads;        /* H */
    int kv_heads;     /* G; 0 = H. Less than H only for causal, linear causal and softmax (see also key_heads) */
    int key_dim;      /* K, 1..1024 */
    int value_dim;    /* V, 1..512 (softmax: 1..1024) */

    /* Features and denominator: all kinds except softmax. FOCUSED, INLINE, MALA and RALA have fixed ones: leave `feature`
     * and `denominator` zero. For them 0 means 1e-6 in feature_eps (FOCUSED) and in den_eps (FOCUSED, MALA and RALA). */
    mhla_feature feature;
    float feature_eps; /* added by RELU */
    mhla_denominator denominator;
    float den_eps; /* added to the denominator */
    float scale;   /* multiplies q~.k~; 0 = the default: K^-1/2 for causal, linear causal, softmax, INLINE, MALA,
                              RALA (there of the softmax over keys), SIMPLE_GLA, GLA and GATED_DELTA, 1 for the others. The same
                              factor multiplies the denominator */

    /* Rotary embedding of q~ and k~ (softmax: of q and k), applied while they are read: no rotated copy is made. The
     * denominator uses the un-rotated ones. The table is in the call. Not for FOCUSED and INLINE. */
    mhla_rope rope;
    int rope_dim; /* how many of the K dims are rotated, even; 0 = K */

    /* Blocks, MHLA_KIND_BIDIRECTIONAL. Either a grid ... */
    int axes;      /* 1, 2 or 3 */
    int grid[3];   /* tokens per axis; T is their product */
    int blocks[3]; /* pieces per axis; axis a is cut at floor(i * grid[a] / blocks[a]) */
    mhla_order order;
    /* ... or, with axes = 0, any division of T tokens: block b holds tokens permutation[block_offsets[b]] ..
     * permutation[block_offsets[b+1] - 1]; permutation NULL means 0..T-1. Both arrays are copied. */
    int64_t n_blocks;             /* M */
    int64_t n_tokens;             /* T */
    const int64_t *block_offsets; /* [M+1], from 0 to T, no block empty */
    const int32_t *permutation;   /* [T], each token once */

    /* The mixing matrix, both kinds of MHLA. */
    int mix_per_head; /* 0: mix is [M,M]; 1: [H,M,M] */

    /* Chunks, MHLA_KIND_CAUSAL. For LINEAR_CAUSAL `chunk` affects only speed and rounding. */
    int chunk;      /* C; 0 = 64 */
    int64_t chunks; /* M, the side of the mixing matrix */
    mhla_beyond beyond;
    int64_t max_tokens; /* MHLA_BEYOND_CHUNK: the length of the longest sequence that will follow */

    /* Softmax. */
    int causal;     /* token t of Tq sees keys up to t + Tk - Tq */
    int64_t window; /* causal: a token sees only the last `window` of those; 0 = all */
    int kv_bfloat16; /* k and v are bfloat16 for any dtype: a cache of half the size. Gradients are float32 */

    /* Focused LA. */
    int focus_power; /* p of the focusing map, 1 to 16; 0 = 3 */

    /* SIMPLE_GLA and GATED_DELTA: heads of q and k, a divisor of H; 0 = H. Head h of v, o, decays, beta and states reads head
     * h / (H / key_heads) of q and k, as in the groups of Mamba2. `chunk` affects only speed and rounding. */
    int key_heads;

    /* GATED_DELTA: 1 divides q and k of each token and head by sqrt(sum of squares + 1e-6). */
    int qk_l2norm;

    /* Cross attention, MHLA_KIND_BIDIRECTIONAL: the layout of keys and values, described like that of the queries above;
     * `order` applies to both. All zero: the queries' layout. The mixing matrix is then [Mq,Mk], and the kv_tokens of a call
     * are the tokens of this layout. MHLA_DEN_RELEASED needs equal layouts. */
    int64_t key_n_blocks;             /* Mk */
    int64_t key_n_tokens;             /* Tk */
    const int64_t *key_block_offsets; /* [Mk+1] */
    const int32_t *key_permutation;   /* [Tk] */
    int key_axes;
    int key_grid[3];
    int key_blocks[3];

    /* Softmax: a score s becomes softcap tanh(s / softcap) before the mask; 0 = as it is. */
    double softcap;
} mhla_plan_desc;

typedef struct mhla_plan mhla_plan;

/* Checks and copies desc. Free the plan with mhla_plan_free (NULL is legal). */
MHLA_API mhla_status mhla_plan_create(mhla_plan **plan, const mhla_plan_desc *desc);
MHLA_API void mhla_plan_free(mhla_plan *plan);
MHLA_API int64_t mhla_plan_blocks(const mhla_plan *plan); /* M: rows of the mixing matrix */
MHLA_API int64_t mhla_plan_tokens(const mhla_plan *plan); /* T of a bidirectional plan, else 0 */
MHLA_API int64_t mhla_plan_key_blocks(const mhla_plan *plan); /* Mk: its columns */
MHLA_API int64_t mhla_plan_key_tokens(const mhla_plan *plan); /* Tk of a bidirectional plan, else 0 */
MHLA_API int mhla_plan_chunk(const mhla_plan *plan);      /* C as chosen, else 0 */

/* Strides of a [B,T,H,*] tensor, in elements; the last axis is always contiguous. All zero = contiguous. With strides
 * you can pass slices of a fused qkv, [B,H,T,*] and broadcast inputs (stride 0) without a copy. Elements of an output
 * must not overlap. */
typedef struct mhla_strides {
    int64_t batch, token, head;
} mhla_strides;

typedef struct mhla_call {
    size_t size;
    const mhla_context *context; /* NULL = default */
    int64_t batch;               /* B */
    int64_t tokens;              /* T, of queries (Tq) */
    int64_t kv_tokens;           /* Tk; 0 = T, or the tokens of the plan's key layout. May differ from T in softmax, LINEAR, cross attention */
    mhla_strides q, k, v, o;     /* do, the incoming gradient, has the strides of o */

    /* Packed sequences, all causal kinds and softmax: batch is 1, sequence s is tokens cu_seqlens[s] ..
     * cu_seqlens[s+1]-1. The offsets rise from 0 to T and may repeat. Sequences do not see each other. Softmax: the same
     * offsets for q and k. */
    const int64_t *cu_seqlens; /* [sequences + 1] or NULL */
    int64_t sequences;

    /* Rotary table [rope_rows, rope_dim/2] each; the row of a token is its index in its sequence, plus `past`. Softmax:
     * query t of Tq uses row t + Tk - Tq, key u row u. See also key_rope_cos. */
    const float *rope_cos, *rope_sin;
    int64_t rope_rows;

    /* A second pair for the denominator. It gets the feature map, but no rotary embedding. NULL = q and k. */
    const void *q2, *k2;
    mhla_strides q2_strides, k2_strides;

    /* Causal kinds: the states before and after the call, contiguous float32. With sequences, B counts them.
     * MHLA: `past` tokens are summarised in N0 = ceil(past/C) chunks, the last of which may be open. The final state
     * has N1 = ceil((past+T)/C) chunks (a shorter sequence fills the rest with zeros). Under CLAMP with past or past+T
     * beyond M chunks only the summaries that can still be read are kept: see src/ops/causal.
     * Linear attention and the recurrences with decay: N0 = N1 = 1 for any `past`; in the recurrences G is H. */
    int64_t past;               /* the same for all sequences of the call */
    const float *initial_state; /* [B,N0,G,K,V]. NULL = zeros; for MHLA only if past = 0 */
    const float *initial_z;     /* [B,N0,G,K], needed only with a denominator */
    float *final_state;         /* [B,N1,G,K,V] or NULL */
    float *final_z;             /* [B,N1,G,K] or NULL */

    int accumulate; /* o += instead of o = */

    /* MHLA_KIND_FOCUSED: the scale of each channel, [H*K], shared by q and k. The call applies softplus to it. */
    const float *focus;

    /* MHLA_BF16: forward and backward round both factors of products of tokens with tokens or summaries to bfloat16 and sum in
     * float32, if the CPU multiplies bfloat16 and the products are large enough. Otherwise they are float32. Mixtures,
     * denominators, softmax, masked triangles, inputs and outputs do not change. MHLA_F32: see mhla_forward. */
    mhla_dtype precision;

    /* Recurrences: the logarithms of the decays, float32, [B,T,H], for GLA [B,T,H,K]; strides like those of q, zero = contiguous.
     * A value above 0 is MHLA_EINVAL; the message has its position. -inf forgets everything before its token. NaN gives NaN. */
    const float *decay;
    mhla_strides decay_strides;

    /* GATED_DELTA: the share of a key's stored value that is replaced, float32, [B,T,H]. Usually from 0 to 1, or to 2; any
     * number is allowed. */
    const float *beta;
    mhla_strides beta_strides;

    /* BIDIRECTIONAL and LINEAR: the table of keys, [key_rope_rows, rope_dim/2]. NULL: the queries' table. */
    const float *key_rope_cos, *key_rope_sin;
    int64_t key_rope_rows;
} mhla_call;

/* Bytes of scratch memory that forward and backward need for this call: the summaries, their mixtures and a block per
 * thread, but nothing of size T*T. 0 if the call is invalid; mhla_message has the reason. */
MHLA_API size_t mhla_forward_workspace(const mhla_plan *plan, const mhla_call *call);
MHLA_API size_t mhla_backward_workspace(const mhla_plan *plan, const mhla_call *call);

/* Attention of every query over the mixture that its block has learned.
 *
 *   o    [B,T,H,V]  written, or added to; may not overlap an input
 *   q    [B,T,H,K], k [B,Tk,G,K], v [B,Tk,G,V]; the call applies the feature map
 *        SIMPLE_GLA and GATED_DELTA: q and k have key_heads heads, v has H
 *   mix  [M,Mk] or [H,M,Mk], row i = query block i; causal: the lower triangle is read. NULL for the baselines
 *   ws   the workspace above, 64-byte aligned; NULL lets the call allocate
 *
 * A bfloat16 plan of MHLA_KIND_BIDIRECTIONAL or LINEAR rounds q~, k~, v and mixtures to bfloat16 before it multiplies them, if the
 * CPU multiplies bfloat16. All sums are float32. Other kinds, and the backward of all kinds, read and write bfloat16 but
 * compute in float32, unless call->precision is MHLA_BF16. */
MHLA_API mhla_status mhla_forward(const mhla_plan *plan, const mhla_call *call, void *o, const void *q, const void *k,
                                  const void *v, const float *mix, void *ws);

/* The same by definition: simple loops in double on one thread. Every fast path is tested against it. bfloat16 inputs
 * are read exactly, and the result is rounded once. */
MHLA_API mhla_status mhla_forward_reference(const mhla_plan *plan, const mhla_call *call, void *o, const void *q,
                                            const void *k, const void *v, const float *mix);

/* ---- 5. Streaming -------------------------------------------------------------------------------------------
 *
 * A state holds one sequence of a causal plan, all heads. For MHLA and linear attention these are the finished summaries,
 * the open chunk, and the mixture of earlier chunks that the open chunk reads. For a recurrence with decay it is an array
 * [H,K,V]. You feed it one or more tokens at a time, in any split. Outputs equal those of mhla_forward to rounding.
 * Forks share finished summaries, which never change. A state does not keep a reference to its plan or mix; pass the same
 * ones at each step (a fingerprint of mix is checked). Only one thread at a time may use a state. */

typedef struct mhla_state mhla_state;

/* An empty state. mix as in mhla_forward; NULL for all but MHLA. */
MHLA_API mhla_status mhla_state_create(mhla_state **state, const mhla_plan *plan, const float *mix);
MHLA_API void mhla_state_free(mhla_state *state); /* NULL is legal */

/* Feeds the next tokens to states[s], for each s in 0..n-1 (the decode batch of a server). No state may occur twice.
 * Without cu_seqlens, call->batch is n and each state gets call->tokens tokens; with it, state s gets tokens
 * cu_seqlens[s] .. cu_seqlens[s+1]-1. `past`, initial and final state of the call must be zero. The rotary row is the
 * position in the state's sequence; decays and beta are those of the tokens. If it fails with MHLA_ERANGE or
 * MHLA_EINVAL, no state has changed. */
MHLA_API mhla_status mhla_step(const mhla_plan *plan, const mhla_call *call, mhla_state *const *states, int64_t n,
                               void *o, const void *q, const void *k, const void *v, const float *mix);

/* Tokens seen so far. */
MHLA_API int64_t mhla_state_tokens(const mhla_state *state);

/* Bytes of memory that the state occupies, shared summaries included. */
MHLA_API size_t mhla_state_bytes(const mhla_state *state);

/* A copy that shares the finished summaries. */
MHLA_API mhla_status mhla_state_fork(mhla_state **copy, const mhla_state *state);

/* Goes back to `tokens` tokens, exactly as if the later ones had never been fed. MHLA: any chunk boundary that is still
 * kept (all of them; under CLAMP, beyond M chunks, the last M-1), or the present position. Linear attention and the
 * recurrences: 0 or the present position. MHLA_ERANGE otherwise, and the state is unchanged. */
MHLA_API mhla_status mhla_state_rollback(mhla_state *state, int64_t tokens, const mhla_plan *plan, const float *mix);

/* The largest number of tokens, not above `tokens`, that mhla_state_rollback can go back to. 0 always works. */
MHLA_API int64_t mhla_state_nearest(const mhla_state *state, int64_t tokens);

/* Saving writes mhla_state_save_size bytes to `bytes`. Loading returns MHLA_EDATA for bytes that are truncated, altered,
 * or of another version, plan or mixing matrix; *state is then not set. */
MHLA_API size_t mhla_state_save_size(const mhla_state *state);
MHLA_API mhla_status mhla_state_save(const mhla_state *state, void *bytes, size_t capacity);
MHLA_API mhla_status mhla_state_load(mhla_state **state, const void *bytes, size_t size, const mhla_plan *plan,
                                     const float *mix);

/* ---- 6. Training --------------------------------------------------------------------------------------------
 *
 * Keep the inputs of the forward call. Backward recomputes everything else. */

typedef struct mhla_grads {
    size_t size;
    /* One array for each gradient, float32 also for bfloat16 inputs; NULL = not computed. Strides zero = contiguous. */
    float *dq, *dk, *dv; /* [B,T,H,K], [B,T,G,K], [B,T,G,V] */
    mhla_strides dq_strides, dk_strides, dv_strides;
    float *dmix;      /* like mix; causal: entries above the diagonal get 0 */
    float *dq2, *dk2; /* of the second pair */
    mhla_strides dq2_strides, dk2_strides;
    float *dinitial_state, *dinitial_z;   /* like initial_state, initial_z */
    const float *dfinal_state, *dfinal_z; /* incoming gradients of final_state, final_z; NULL = 0 */
    int accumulate;                       /* gradients are added to the arrays */
    float *dfocus;                        /* [H*K], of call->focus */
    float *ddecay;                        /* like call->decay, of the logarithms */
    mhla_strides ddecay_strides;
    float *dbeta; /* like call->beta */
    mhla_strides dbeta_strides;
} mhla_grads;

/* dO [B,T,H,V] has o's dtype and strides (call->o). The other arguments are those of the forward call (call's
 * final_state and final_z are not used). */
MHLA_API mhla_status mhla_backward(const mhla_plan *plan, const mhla_call *call, const mhla_grads *grads,
                                   const void *dO, const void *q, const void *k, const void *v, const float *mix,
                                   void *ws);
MHLA_API mhla_status mhla_backward_reference(const mhla_plan *plan, const mhla_call *call, const mhla_grads *grads,
                                             const void *dO, const void *q, const void *k, const void *v,
                                             const float *mix);

/* The mixing matrix. dist(i,j) is the Euclidean distance between block centres in block units. */
#define MHLA_MIX_LIST(X)                                                                                               \
    X(PAPER, "paper")                     /* 1 - dist / max_k dist(i,k), rows sum to 1 */                              \
    X(RELEASED_LINEAR, "released-linear") /* 1 - dist / dmax, columns sum to 1 */                                      \
    X(COS, "cos")                         /* cos(pi/4 dist / dmax), columns */                                         \
    X(EXP, "exp")                         /* exp(-dist / param), param 0 = 3, columns */                               \
    X(GAUSSIAN, "gaussian")               /* exp(-dist^2 / (2 (dmax/3)^2)), not normalised */                          \
    X(LOCAL, "local")                     /* 1 where dist <= param, param 0 = 1.5, columns */                          \
    X(UNIFORM, "uniform")                 /* 1/M */                                                                    \
    X(CAUSAL, "causal")                   /* lower triangle, row i: 1/(i+1) */

typedef enum mhla_mix_init {
#define X(name, text) MHLA_MIX_##name,
    MHLA_MIX_LIST(X)
#undef X
} mhla_mix_init;

/* Fills mix [M,M], M the product of blocks[0..axes-1]; M = 1 gives 1. */
MHLA_API mhla_status mhla_mix_fill(float *mix, mhla_mix_init init, int axes, const int *blocks, double param);

/* The same for cross attention, mix [Mq,Mk]; `blocks` are those of queries. Both grids are scaled to the same extent. Distances
 * are between centres, along each axis in blocks of the coarser grid (README.md in src/ops/mixing). CAUSAL needs equal blocks.
 * For UNIFORM the numbers of axes may differ: pass each grid as one axis of M blocks. */
MHLA_API mhla_status mhla_mix_fill_cross(float *mix, mhla_mix_init init, int axes, const int *blocks,
                                         const int *key_blocks, double param);

/* The name of an initialisation ("paper"), or NULL; and the initialisation of a name, MHLA_EINVAL if it is unknown. */
MHLA_API const char *mhla_mix_name(mhla_mix_init init);
MHLA_API mhla_status mhla_mix_from_name(mhla_mix_init *init, const char *name);

/* After an optimiser step: clips mix [rows,cols] to [low, high] (the paper's (0,1): 1e-6, 1). If renormalise is set, it
 * then divides each row by its sum, except where the sum is 0. causal: only columns 0 .. i mod cols of row i are read and
 * changed, so [H,M,M] is clipped as H*M rows. */
MHLA_API mhla_status mhla_mix_clip(float *mix, int64_t rows, int64_t cols, float low, float high, int renormalise,
                                   int causal);

/* A rotary table: cos, sin [positions, rope_dim/2]. Axis a of the grid rotates dims[a] dims (even; their sum is
 * rope_dim), pair j by the angle position_a * base^(-2j/dims[a]). positions = product of grid, in raster order.
 * One axis: grid = {positions}, dims = {rope_dim}. Angles are computed in double. */
MHLA_API mhla_status mhla_rope_table(float *cos, float *sin, int axes, const int *grid, const int *dims, double base);

/* ---- 7. The matrix product of linear layers -----------------------------------------------------------------
 *
 * y = epilogue(x W^T), with W [N,K] packed once. */

typedef struct mhla_weight mhla_weight;

typedef enum mhla_activation {
    MHLA_ACT_NONE = 0,
    MHLA_ACT_GELU_ERF,
    MHLA_ACT_GELU_TANH,
    MHLA_ACT_SILU
} mhla_activation;

/* Packs W [N,K] (row stride ldw, 0 = K) of float32, bfloat16 or Q8_0; the handle owns the copy. A packed bfloat16 weight
 * takes half the memory. If the CPU multiplies bfloat16, x is rounded to bfloat16 and sums are float32; otherwise the
 * weight is widened and x is not rounded. Q8_0 takes 8.5 bits per number and is multiplied as integers: x is narrowed to
 * 16 bits with a scale for each 32 numbers (a value that is not finite makes its row NaN). A handle keeps using the
 * kernels (section 8) that were chosen when it was packed. Threads may share it while none updates it. */
MHLA_API mhla_status mhla_weight_pack(mhla_weight **weight, const void *w, mhla_dtype dtype, int64_t N, int64_t K,
                                      int64_t ldw);
MHLA_API void mhla_weight_free(mhla_weight *weight);

/* Packs new values of the same shape into an existing handle (after an optimiser step). dtype is that of w; the handle
 * keeps its own. */
MHLA_API mhla_status mhla_weight_update(mhla_weight *weight, const void *w, mhla_dtype dtype, int64_t ldw);

/* The same in pieces. _create makes a handle of zeros that stores its numbers as `dtype`. _set_rows writes rows first ..
 * first+count-1 from w [count,K] of any type and rounds them to the handle's type (Q8_0 like ggml's reference: d =
 * largest/127). _get_rows reads them as float32. For Q8_0, K and the row stride must be multiples of 32. */
MHLA_API mhla_status mhla_weight_create(mhla_weight **weight, mhla_dtype dtype, int64_t N, int64_t K);
MHLA_API mhla_status mhla_weight_set_rows(mhla_weight *weight, int64_t first, int64_t count, const void *w,
                                          mhla_dtype dtype, int64_t ldw);
MHLA_API mhla_status mhla_weight_get_rows(const mhla_weight *weight, int64_t first, int64_t count, float *w,
                                          int64_t ldw);
MHLA_API mhla_dtype mhla_weight_dtype(const mhla_weight *weight);
MHLA_API size_t mhla_weight_bytes(const mhla_weight *weight); /* of its numbers, all of which each row of x reads */

typedef struct mhla_linear_desc {
    size_t size;
    const mhla_context *context;
    int64_t rows;
    int64_t ldx, ldy;  /* row strides of x and y; 0 = contiguous */
    const float *bias; /* [N] or NULL */
    mhla_activation activation;
    const float *residual; /* added after the activation, row stride ldr (0 = N); may be y itself */
    int64_t ldr;
    float *pre_activation; /* if not NULL: x W^T + bias is written here, row stride N, for the backward */
    int accumulate;        /* y += */
    void *workspace;       /* mhla_linear_workspace bytes, 64-byte aligned; NULL lets the call allocate */
    /* Of the two backward products. MHLA_BF16: if the CPU multiplies bfloat16, dy and the other factor (x or the weight) are
     * rounded to bfloat16 and sums are float32; otherwise like MHLA_F32. The weight's type decides the forward product. */
    mhla_dtype precision;
} mhla_linear_desc;

/* Bytes of scratch memory that suffice for any of the calls below with this description and a weight W [N,K] packed
 * from `dtype`. 0 if the description is invalid (mhla_message says why). */
MHLA_API size_t mhla_linear_workspace(const mhla_linear_desc *desc, int64_t N, int64_t K, mhla_dtype dtype);

/* y [rows,N] = activation(x [rows,K] W^T + bias) + residual. y must not overlap x. The result of a row depends on this
 * row only, not on the number of rows or threads. */
MHLA_API mhla_status mhla_linear_forward(const mhla_linear_desc *desc, float *y, const float *x,
                                         const mhla_weight *weight);

/* The same by definition: in double, on one thread, from the unpacked W. */
MHLA_API mhla_status mhla_linear_forward_reference(const mhla_linear_desc *desc, float *y, const float *x,
                                                   const void *w, mhla_dtype dtype, int64_t N, int64_t K, int64_t ldw);

/* dx [rows,K] = dy [rows,N] W. Strides: ldx of dx, ldy of dy; context, rows and accumulate are used. Each call transposes
 * the packed weight into N*K numbers of scratch memory and keeps no second copy. A bfloat16 weight is widened and dy stays
 * float32, unless `precision` is MHLA_BF16. */
MHLA_API mhla_status mhla_linear_backward_input(const mhla_linear_desc *desc, float *dx, const float *dy,
                                                const mhla_weight *weight);

/* dw [N,K] = dy^T x, db [N] = column sums of dy (either may be NULL). Strides: ldx of x, ldy of dy, dw contiguous; context, rows
 * and accumulate are used. */
MHLA_API mhla_status mhla_linear_backward_weight(const mhla_linear_desc *desc, float *dw, float *db, const float *dy,
                                                 const float *x, int64_t N, int64_t K);

/* dpre [count] = dy * activation'(pre); contiguous; in place (dpre = dy or pre) is allowed. */
MHLA_API mhla_status mhla_activation_backward(float *dpre, const float *dy, const float *pre, int64_t count,
                                              mhla_activation activation, const mhla_context *context);

/* ---- 8. What this machine has -------------------------------------------------------------------------------
 *
 * Kernels exist once per instruction set. The first call chooses the best set that the CPU runs, or the set that the
 * environment variable MHLA_ISA names ("plain", "avx2", "avx512", "avx512bf16", "neon"). "plain-bf16", "avx2-bf16",
 * "avx512-bf16" and "neon-bf16" emulate bfloat16 products bit for bit and very slowly, for tests. */

typedef struct mhla_cpu_info {
    size_t size;
    const char *isa;       /* the chosen kernels */
    const char *why;       /* one phrase: "best of this CPU", "MHLA_ISA", "MHLA_ISA=... is not available here" */
    const char *available; /* "plain avx2 avx512" */
    const char *model;     /* as the CPU names itself */
    int cpus;              /* that this process may run on */
    int threads;           /* of the default context */
    size_t l1d, l2, l3;    /* bytes; 0 = unknown */
} mhla_cpu_info;

MHLA_API mhla_status mhla_cpu_query(mhla_cpu_info *info);

/* Chooses the kernels by name, as MHLA_ISA does (NULL = best). Not while other calls run. MHLA_ENOTSUP if this CPU
 * lacks them. */
MHLA_API mhla_status mhla_set_isa(const char *name);

/* Measures the rate of fused multiply-adds, GFLOP/s (2 per element), in the chosen instruction set on `threads` threads
 * for about `seconds`; dtype BF16 measures the bfloat16 dot product (0 where there is none). */
MHLA_API double mhla_measure_peak(mhla_dtype dtype, const mhla_context *context, double seconds);

/* Measures the rate of reading memory outside all caches, GB/s. 0 if memory cannot be allocated. */
MHLA_API double mhla_measure_bandwidth(const mhla_context *context, double seconds);

/* ---- 9. Mamba: selective scan and short convolution ---------------------------------------------------------
 *
 * The two operators of Mamba. Many linear attentions also apply the short convolution to q, k and v. Tensors are float32
 * and token-major [B,T,I], I channels. Strides are those of section 4; `head` is the stride of groups in B and C and is
 * not used elsewhere. All zero = contiguous. States and gradients of parameters are contiguous. Results are bit-identical
 * for any number of threads and for any split of a sequence into calls. */

/* Selective scan, as mamba_ssm's selective_scan_fn (README.md in src/ops/scan):
 *
 *   d_t = delta_t + delta_bias, then softplus of it if delta_softplus is set
 *   h_t = exp(d_t A) h_{t-1} + (d_t u_t) B_t^T          h [I,N]
 *   y_t = h_t C_t + D u_t,  times silu(z_t) if there is a z */
typedef struct mhla_scan_call {
    size_t size;
    const mhla_context *context; /* NULL = default */
    int64_t batch, tokens;       /* B, T */
    int64_t channels;            /* I */
    int64_t states;              /* N, 1..1024 */
    int64_t groups;              /* G of B and C, a divisor of I; 0 = 1. Channel i reads group i / (I / G) */
    int delta_softplus;
    mhla_strides u, delta, B, C, y; /* dy, the incoming gradient, has the strides of y */
    const float *D;                 /* [I] or NULL */
    const float *delta_bias;        /* [I] or NULL */
    const float *z;                 /* [B,T,I] or NULL */
    mhla_strides z_strides;
    /* Packed sequences: batch is 1, sequence s is tokens cu_seqlens[s] .. cu_seqlens[s+1]-1. They do not see each other. */
    const int64_t *cu_seqlens; /* [sequences + 1] or NULL */
    int64_t sequences;
    /* With sequences, B counts them. */
    const float *initial_state; /* [B,I,N]; NULL = zeros */
    float *final_state;         /* [B,I,N] or NULL; may be initial_state */
    int accumulate;             /* y += instead of y = */
} mhla_scan_call;

typedef struct mhla_scan_grads {
    size_t size;
    /* One array for each gradient; NULL = not computed. */
    float *du, *ddelta, *dz; /* [B,T,I] */
    float *dB, *dC;          /* [B,T,G,N] */
    mhla_strides du_strides, ddelta_strides, dz_strides, dB_strides, dC_strides;
    float *dA;                 /* [I,N] */
    float *dD, *ddelta_bias;   /* [I] */
    float *dinitial_state;     /* [B,I,N] */
    const float *dfinal_state; /* incoming gradient of final_state; NULL = 0 */
    int accumulate;            /* gradients are added to the arrays */
} mhla_scan_grads;

/* Bytes of scratch memory; 0 if the call is invalid (mhla_message says why). No array of size T*I*N is needed. */
MHLA_API size_t mhla_scan_forward_workspace(const mhla_scan_call *call);
MHLA_API size_t mhla_scan_backward_workspace(const mhla_scan_call *call);

/* y [B,T,I] is written, or added to; u, delta [B,T,I]; A [I,N] contiguous; B, C [B,T,G,N]. y may not overlap an input.
 * ws as above, 64-byte aligned; NULL lets the call allocate. */
MHLA_API mhla_status mhla_scan_forward(const mhla_scan_call *call, float *y, const float *u, const float *delta,
                                       const float *A, const float *B, const float *C, void *ws);

/* Needs only the inputs: states are recomputed. The call's final_state is not used. */
MHLA_API mhla_status mhla_scan_backward(const mhla_scan_call *call, const mhla_scan_grads *grads, const float *dy,
                                        const float *u, const float *delta, const float *A, const float *B,
                                        const float *C, void *ws);

/* The same by definition: in double, one thread. */
MHLA_API mhla_status mhla_scan_forward_reference(const mhla_scan_call *call, float *y, const float *u,
                                                 const float *delta, const float *A, const float *B, const float *C);
MHLA_API mhla_status mhla_scan_backward_reference(const mhla_scan_call *call, const mhla_scan_grads *grads,
                                                  const float *dy, const float *u, const float *delta, const float *A,
                                                  const float *B, const float *C);

/* Short convolution: causal, depthwise, W taps (README.md in src/ops/short_conv):
 *
 *   y_t = activation( bias + sum_j w[:,j] x_{t-W+1+j} ),  j = 0..W-1 */
typedef struct mhla_short_conv_call {
    size_t size;
    const mhla_context *context;
    int64_t batch, tokens; /* B, T */
    int64_t channels;      /* D */
    int width;             /* W, 1..64 */
    mhla_activation activation;
    mhla_strides x, y;         /* dy, the incoming gradient, has the strides of y */
    const float *bias;         /* [D] or NULL */
    const int64_t *cu_seqlens; /* [sequences + 1] or NULL: as above */
    int64_t sequences;
    /* The last W inputs of a sequence, oldest first, [B,D,W]; with sequences, B counts them. The oldest of the W is never
     * read. NULL = zeros. final_cache may be the same array as initial_cache. */
    const float *initial_cache;
    float *final_cache; /* or NULL */
    int accumulate;     /* y += instead of y = */
} mhla_short_conv_call;

typedef struct mhla_short_conv_grads {
    size_t size;
    float *dx; /* [B,T,D]; NULL = not computed, here and below */
    mhla_strides dx_strides;
    float *dw;                 /* [D,W] */
    float *dbias;              /* [D] */
    float *dinitial_cache;     /* [B,D,W] */
    const float *dfinal_cache; /* incoming gradient of final_cache; NULL = 0 */
    int accumulate;            /* gradients are added to the arrays */
} mhla_short_conv_grads;

MHLA_API size_t mhla_short_conv_forward_workspace(const mhla_short_conv_call *call);
MHLA_API size_t mhla_short_conv_backward_workspace(const mhla_short_conv_call *call);

/* y [B,T,D]; x [B,T,D]; w [D,W] contiguous, the same memory as [D,1,W] in a checkpoint. ws as above. */
MHLA_API mhla_status mhla_short_conv_forward(const mhla_short_conv_call *call, float *y, const float *x, const float *w,
                                             void *ws);
MHLA_API mhla_status mhla_short_conv_backward(const mhla_short_conv_call *call, const mhla_short_conv_grads *grads,
                                              const float *dy, const float *x, const float *w, void *ws);
MHLA_API mhla_status mhla_short_conv_forward_reference(const mhla_short_conv_call *call, float *y, const float *x,
                                                       const float *w);
MHLA_API mhla_status mhla_short_conv_backward_reference(const mhla_short_conv_call *call,
                                                        const mhla_short_conv_grads *grads, const float *dy,
                                                        const float *x, const float *w);

/* Streaming. A channel state holds the memory of one sequence: the state of a scan, or the last inputs of a convolution.
 * You feed it one or more tokens at a time, in any split. Outputs are bit-identical to those of one call. Only one thread
 * at a time may use a state. */
typedef struct mhla_channel_state mhla_channel_state;

/* An empty state: for a scan with I channels and N states, or for a convolution with D channels and W taps. */
MHLA_API mhla_status mhla_scan_state_create(mhla_channel_state **state, int64_t channels, int64_t states);
MHLA_API mhla_status mhla_short_conv_state_create(mhla_channel_state **state, int64_t channels, int width);
MHLA_API void mhla_channel_state_free(mhla_channel_state *state); /* NULL is legal */

/* Feeds the next tokens to states[s], for each s in 0..n-1. No state may occur twice. Without cu_seqlens, call->batch is n
 * and each state gets call->tokens tokens; with it, state s gets tokens cu_seqlens[s] .. cu_seqlens[s+1]-1. Initial and
 * final state or cache of the call must be NULL. If it fails, no state has changed. */
MHLA_API mhla_status mhla_scan_step(const mhla_scan_call *call, mhla_channel_state *const *states, int64_t n, float *y,
                                    const float *u, const float *delta, const float *A, const float *B, const float *C);
MHLA_API mhla_status mhla_short_conv_step(const mhla_short_conv_call *call, mhla_channel_state *const *states,
                                          int64_t n, float *y, const float *x, const float *w);

MHLA_API int64_t mhla_channel_state_tokens(const mhla_channel_state *state); /* seen so far */
MHLA_API size_t mhla_channel_state_bytes(const mhla_channel_state *state);   /* of memory */
MHLA_API mhla_status mhla_channel_state_fork(mhla_channel_state **copy, const mhla_channel_state *state);

/* Goes back to `tokens` tokens: 0 or the present number. MHLA_ERANGE otherwise, and the state is unchanged. To be able to
 * go back to another position, fork there. */
MHLA_API mhla_status mhla_channel_state_rollback(mhla_channel_state *state, int64_t tokens);

/* Saving writes mhla_channel_state_save_size bytes to `bytes`. Loading needs a state of the same operator and sizes. It
 * returns MHLA_EDATA for bytes that are truncated, altered, or of another version or size; the state is then unchanged. */
MHLA_API size_t mhla_channel_state_save_size(const mhla_channel_state *state);
MHLA_API mhla_status mhla_channel_state_save(const mhla_channel_state *state, void *bytes, size_t capacity);
MHLA_API mhla_status mhla_channel_state_load(mhla_channel_state *state, const void *bytes, size_t size);

#ifdef __cplusplus
}
#endif
#endif
