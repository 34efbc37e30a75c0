#include "train/parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/parallel.h"
#include "core/status.h"
#include "dist/dist.h"
#include "nn/op.h"

/* A bucket is what travels at once: enough stretches that each owner's share is a long message. */
enum { BUCKET = 64, EACH = 4, RING = 4, NODES = 2 * 40, TAG_SUM = 1, TAG_VALUE = 2 };

/* Sum of parts index << level .. of the tree. The values are in `room`, or, of the newest one, in the parameters' gradients. */
typedef struct node {
    int level;
    int64_t index;
} node;

typedef struct nodes {
    node list[NODES];
    int count;
} nodes;

/* A bucket under way. */
typedef struct flight {
    int64_t bucket; /* -1: none */
    float *out, *in;
    mhla_message_t *messages; /* [2 ranks] */
} flight;

struct mhla_parts {
    mhla_params *params;
    mhla_optim *optim;
    int64_t count, first, last;
    int rank, ranks;

    nodes own;          /* that wait for their neighbours, the newest one last */
    float *room[NODES]; /* [elements] values of own.list[i], of all but the newest */
    unsigned char *has; /* [NODES][params] which parameters have a gradient there */
    int64_t *offset;    /* [params] in `room` */
    int64_t elements;
    int folds, fold[NODES]; /* how the newest node came about: own.list[fold[i]] + newest, i = 0, 1, .. */
    unsigned char
        *was; /* [NODES][params] rows of `has` of those that it was joined with, which it takes the place of */
    unsigned char *now; /* [params] which gradients it has itself, bucket by bucket in the last pass */

    nodes *theirs;          /* [ranks] what each sends at the end */
    int most;               /* nodes of a rank, at most */
    unsigned char *all_has; /* [ranks][most][params] */

    int64_t stretches, buckets, size; /* size: stretches of a bucket */
    flight ring[RING];
    int64_t next, done; /* buckets begun and finished, counted from the last one backwards */
    int *expected;      /* [params] times that a backward pass touches it; NULL: not known yet */
    unsigned char *had; /* [params] which the last part itself has */
    mhla_status status; /* of what went wrong in the middle of a backward pass */
    int overlapping;
    const mhla_context *context;

    double *squares;        /* [ranks][each] */
    int followers;          /* numbers of running statistics */
    float *before, *follow; /* [followers], [own parts][followers] */
    int64_t *batches;       /* [own parts] */
};

/* ---- The tree ---- */

void mhla_parts_own(int64_t count, int rank, int ranks, int64_t *first, int64_t *last) {
    *first = rank * count / ranks;
    *last = (rank + 1) * count / ranks;
}

/* Parts that begin at `at` of this level: is there a node? */
static int exists(int64_t count, int level, int64_t index) {
    return level >= 0 && index * ((int64_t)1 << level) < count;
}

/* Adds part `part` to the list: joined[i] are the entries, from the last one backwards, that it is added to. */
static int add_node(nodes *n, int64_t count, int64_t part, int *joined) {
    node new = {0, part};
    int folds = 0;
    for (;;) {
        const node *before = n->count ? &n->list[n->count - 1] : NULL;
        const int right = (int)(new.index & 1);
        if (right && before && before->level == new.level && before->index == new.index - 1) {
            joined[folds++] = --n->count;
        } else if (right || exists(count, new.level, new.index + 1) || (new.index == 0)) {
            break; /* its neighbour is another rank's, or comes later; or it is the root */
        }
        new.index >>= 1;
        new.level++;
    }
    n->list[n->count++] = new;
    return folds;
}

static void nodes_of(nodes *n, int64_t count, int rank, int ranks) {
    int64_t first, last;
    int joined[NODES];
    n->count = 0;
    mhla_parts_own(count, rank, ranks, &first, &last);
    for (int64_t part = first; part < last; part++) add_node(n, count, part, joined);
}

/* The most nodes that a rank has at any time. */
static int most_nodes(int64_t count, int64_t first, int64_t last) {
    nodes n = {.count = 0};
    int joined[NODES], most = 0;
    for (int64_t part = first; part < last; part++) {
        most = n.count + 1 > most ? n.count + 1 : most;
        add_node(&n, count, part, joined);
    }
    return most;
}

double mhla_parts_sum(double *list, int64_t n) {
    for (; n > 1; n = (n + 1) / 2)
        for (int64_t i = 0; i < n; i += 2) list[i / 2] = i + 1 < n ? list[i] + list[i + 1] : list[i];
    return n ? list[0] : 0.0;
}

/* ---- Making ---- */

static int64_t bucket_size(int ranks) { return EACH * ranks > BUCKET ? EACH * ranks : BUCKET; }

size_t mhla_parts_bytes(const mhla_params *params, int64_t count, int ranks) {
    int64_t most = 1, nodes_sent = 1;
    for (int r = 0; r < ranks; r++) {
        int64_t first, last;
        nodes n;
        mhla_parts_own(count, r, ranks, &first, &last);
        const int own = most_nodes(count, first, last);
        nodes_of(&n, count, r, ranks);
        most = own > most ? own : most;
        nodes_sent = n.count > nodes_sent ? n.count : nodes_sent;
    }
    const size_t values = (size_t)mhla_params_elements(params) * sizeof(float);
    const size_t bucket = (size_t)(bucket_size(ranks) * 16384) * sizeof(float);
    const size_t messages = ranks > 1 ? 2 * RING * (size_t)nodes_sent * (bucket < values ? bucket : values) : 0;
    return (size_t)(most - 1) * values + messages;
}

static int64_t count_followers(const mhla_params *ps) {
    int64_t n = 0;
    for (int i = 0; i < mhla_params_count(ps); i++)
        if (mhla_params_at(ps, i)->kept > 0.0f) n += mhla_params_at(ps, i)->count;
    return n;
}

static void stretch_range(const mhla_parts *x, int64_t bucket, int64_t *first, int64_t *last) {
    *first = bucket * x->size;
    *last = *first + x->size < x->stretches ? *first + x->size : x->stretches;
}

static int64_t first_of(const mhla_parts *x, int64_t first, int rank) {
    return first + ((rank - first) % x->ranks + x->ranks) % x->ranks;
}

/* Numbers of a bucket that belong to a rank and travel: `head` of each stretch, and its elements. */
static int64_t share_of(const mhla_parts *x, int64_t bucket, int rank, int head) {
    int64_t first, last, n = 0;
    stretch_range(x, bucket, &first, &last);
    for (int64_t s = first_of(x, first, rank); s < last; s += x->ranks) {
        const mhla_stretch t = mhla_optim_stretch(x->optim, s);
        if (mhla_param_trains(t.param)) n += head + t.count;
    }
    return n;
}

enum {
    VALUES,
    SUMS
}; /* heads: before the elements of a sum stands 1, or 0 where the parameter has no gradient there */

/* Room for what goes out and comes in with a bucket: gradients of each node, then values. */
static void measure_buckets(const mhla_parts *x, int64_t *out, int64_t *in) {
    int64_t coming = 0;
    for (int r = 0; r < x->ranks; r++) coming += r == x->rank ? 0 : x->theirs[r].count;
    *out = *in = 0;
    for (int64_t b = 0; b < x->buckets; b++) {
        int64_t all = 0;
        const int64_t mine = share_of(x, b, x->rank, SUMS);
        for (int r = 0; r < x->ranks; r++) all += share_of(x, b, r, SUMS);
        if (all * x->most > *out) *out = all * x->most;
        if (mine * coming > *in) *in = mine * coming;
        if (all > *in) *in = all;
    }
}

static int make_messages(mhla_parts *x) {
    int64_t out, in;
    measure_buckets(x, &out, &in);
    for (int i = 0; i < RING; i++) {
        flight *f = &x->ring[i];
        f->bucket = -1;
        f->out = mhla_alloc((size_t)(out + 1) * sizeof *f->out);
        f->in = mhla_alloc((size_t)(in + 1) * sizeof *f->in);
        f->messages = calloc(2 * (size_t)x->ranks, sizeof *f->messages);
        if (f->out == NULL || f->in == NULL || f->messages == NULL) return 0;
    }
    return 1;
}

mhla_status mhla_parts_create(mhla_parts **parts, mhla_params *params, mhla_optim *optim, int64_t count) {
    const int n = mhla_params_count(params);
    mhla_parts *x = *parts = calloc(1, sizeof *x);
    if (x == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for the parts of a batch");
    x->params = params;
    x->optim = optim;
    x->count = count;
    x->rank = mhla_dist_rank();
    x->ranks = mhla_dist_ranks();
    mhla_parts_own(count, x->rank, x->ranks, &x->first, &x->last);
    x->stretches = mhla_optim_stretches(optim);
    x->size = bucket_size(x->ranks);
    x->buckets = (x->stretches + x->size - 1) / x->size;
    x->followers = (int)count_followers(params);
    const size_t own = (size_t)(x->last - x->first), each = (size_t)(x->stretches / x->ranks + 1);
    x->theirs = calloc((size_t)x->ranks, sizeof *x->theirs);
    x->offset = calloc((size_t)n + 1, sizeof *x->offset);
    x->had = calloc((size_t)n + 1, 1);
    x->squares = calloc((size_t)(x->ranks + 1) * each, sizeof *x->squares);
    x->before = calloc((size_t)x->followers + 1, sizeof *x->before);
    x->follow = calloc(own * (size_t)x->followers + 1, sizeof *x->follow);
    x->batches = calloc(own + 1, sizeof *x->batches);
    x->has = calloc((size_t)n * NODES + 1, 1);
    x->was = calloc((size_t)n * NODES + 1, 1);
    x->now = calloc((size_t)n + 1, 1);
    int ok = x->was && x->now && x->theirs && x->offset && x->had && x->squares && x->before && x->follow &&
             x->batches && x->has;
    for (int i = 0; ok && i < n; i++) {
        x->offset[i] = x->elements;
        x->elements += mhla_params_at(params, i)->count;
    }
    for (int r = 0; ok && r < x->ranks; r++) {
        nodes_of(&x->theirs[r], count, r, x->ranks);
        if (x->theirs[r].count > x->most) x->most = x->theirs[r].count;
    }
    ok = ok && (x->all_has = calloc((size_t)(x->ranks + 1) * (size_t)x->most * (size_t)n + 1, 1)) != NULL;
    if (ok && x->ranks > 1) ok = make_messages(x);
    return ok ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for the parts of a batch");
}

void mhla_parts_free(mhla_parts *x) {
    if (x == NULL) return;
    for (int i = 0; i < NODES; i++) mhla_free(x->room[i]);
    for (int i = 0; i < RING; i++) {
        mhla_free(x->ring[i].out);
        mhla_free(x->ring[i].in);
        free(x->ring[i].messages);
    }
    free(x->theirs);
    free(x->offset);
    free(x->had);
    free(x->expected);
    free(x->squares);
    free(x->before);
    free(x->follow);
    free(x->batches);
    free(x->has);
    free(x->was);
    free(x->now);
    free(x->all_has);
    free(x);
}

/* ---- Running statistics of batch norms: each part begins with zeros and leaves what it would add; they follow one another when all
 * parts are there. ---- */

static void statistics(mhla_parts *x, float *to, int clear) {
    for (int i = 0; i < mhla_params_count(x->params); i++) {
        mhla_param *p = mhla_params_at(x->params, i);
        if (!(p->kept > 0.0f)) continue;
        if (to) memcpy(to, p->data, (size_t)p->count * sizeof *to), to += p->count;
        if (clear) memset(p->data, 0, (size_t)p->count * sizeof *p->data);
    }
}

/* before + all parts in their order, into the parameters. */
static void follow(mhla_parts *x, const float *all, const int64_t *batches) {
    int64_t at = 0;
    for (int i = 0; i < mhla_params_count(x->params); i++) {
        mhla_param *p = mhla_params_at(x->params, i);
        if (!(p->kept > 0.0f)) continue;
        for (int64_t e = 0; e < p->count; e++) {
            float value = x->before[at + e];
            for (int64_t part = 0; part < x->count; part++)
                value = (float)(pow((double)p->kept, (double)batches[part]) * (double)value +
                                (double)all[part * x->followers + at + e]);
            p->data[e] = value;
        }
        at += p->count;
        mhla_param_touch(p);
    }
}

static mhla_status gather_statistics(mhla_parts *x) {
    if (x->followers == 0) return MHLA_OK;
    const size_t each = (size_t)((x->count + x->ranks - 1) / x->ranks) + 1, row = (size_t)x->followers;
    float *mine = calloc(each * row, sizeof *mine), *theirs = malloc((size_t)x->ranks * each * row * sizeof *theirs);
    float *all = calloc((size_t)x->count * row, sizeof *all);
    int64_t *n = calloc(each, sizeof *n), *ns = malloc((size_t)x->ranks * each * sizeof *ns),
            *batches = calloc((size_t)x->count, sizeof *batches);
    mhla_status status = mine && theirs && all && n && ns && batches
                             ? MHLA_OK
                             : mhla_fail(MHLA_ENOMEM, "no memory for the statistics of batch norms");
    if (status == MHLA_OK) {
        memcpy(mine, x->follow, (size_t)(x->last - x->first) * row * sizeof *mine);
        memcpy(n, x->batches, (size_t)(x->last - x->first) * sizeof *n);
        status = mhla_dist_gather_all(theirs, mine, each * row * sizeof *mine);
    }
    if (status == MHLA_OK) status = mhla_dist_gather_all(ns, n, each * sizeof *n);
    for (int r = 0; status == MHLA_OK && r < x->ranks; r++) {
        int64_t first, last;
        mhla_parts_own(x->count, r, x->ranks, &first, &last);
        memcpy(all + (size_t)first * row, theirs + (size_t)r * each * row, (size_t)(last - first) * row * sizeof *all);
        memcpy(batches + first, ns + (size_t)r * each, (size_t)(last - first) * sizeof *batches);
    }
    if (status == MHLA_OK) follow(x, all, batches);
    free(mine);
    free(theirs);
    free(all);
    free(n);
    free(ns);
    free(batches);
    return status;
}

/* ---- Own parts ---- */

void mhla_parts_begin(mhla_parts *x) {
    if (x->own.count == 0) { /* of a step */
        statistics(x, x->before, 0);
        x->next = x->done = 0;
        x->status = MHLA_OK;
        x->overlapping = 0;
    }
    statistics(x, NULL, 1);
    mhla_params_clear_grads(x->params);
}

/* grad = left + grad of a stretch, where `left` has one, for all that the newest node was joined with. */
static void fold_stretch(mhla_parts *x, const mhla_stretch *s, int present) {
    for (int i = 0; i < x->folds; i++) {
        if (!x->was[(size_t)i * (size_t)mhla_params_count(x->params) + (size_t)s->index]) continue;
        const float *left = x->room[x->fold[i]] + x->offset[s->index] + s->at;
        float *grad = s->param->grad + s->at;
        for (int64_t e = 0; e < s->count; e++) grad[e] = present ? left[e] + grad[e] : left[e];
        present = 1;
    }
}

/* The newest node is that of this part, joined with what waited for it. */
static void join(mhla_parts *x, int64_t part) {
    const size_t n = (size_t)mhla_params_count(x->params);
    x->folds = add_node(&x->own, x->count, part, x->fold);
    for (int i = 0; i < x->folds; i++) memcpy(x->was + (size_t)i * n, x->has + (size_t)x->fold[i] * n, n);
}

static mhla_status need_grad(mhla_param *p) {
    if (p->grad == NULL && (p->grad = mhla_alloc((size_t)p->count * sizeof(float))) == NULL)
        return mhla_fail(MHLA_ENOMEM, "no memory for the gradient of %s", p->name);
    return MHLA_OK;
}

static void fold_task(void *arg, int64_t i, int worker) {
    mhla_parts *x = arg;
    (void)worker;
    const mhla_stretch s = mhla_optim_stretch(x->optim, i);
    if (mhla_param_trains(s.param)) fold_stretch(x, &s, x->had[s.index]);
}

static int in_last_pass(const mhla_parts *x, int64_t part) { return part == x->last - 1 && x->overlapping; }

mhla_status mhla_parts_end(mhla_parts *x, int64_t part, int64_t batches, const mhla_context *context) {
    const int n = mhla_params_count(x->params);
    statistics(x, x->follow + (part - x->first) * x->followers, 0);
    x->batches[part - x->first] = batches;
    if (!in_last_pass(x, part)) join(x, part);
    const int newest = x->own.count - 1;
    mhla_status status = x->status;
    for (int i = 0; i < n && status == MHLA_OK; i++) {
        mhla_param *p = mhla_params_at(x->params, i);
        x->had[i] = p->has_grad != 0;
        for (int k = 0; k < x->folds; k++) p->has_grad |= x->was[(size_t)k * (size_t)n + (size_t)i];
        if (p->has_grad) status = need_grad(p);
    }
    MHLA_TRY(status);
    if (x->folds > 0 && !in_last_pass(x, part)) mhla_parallel(context, x->stretches, fold_task, x);
    for (int i = 0; i < n; i++)
        x->has[(size_t)newest * (size_t)n + (size_t)i] = x->now[i] = mhla_params_at(x->params, i)->has_grad != 0;
    if (part == x->last - 1) return MHLA_OK; /* stays in the gradients */
    if (x->room[newest] == NULL) x->room[newest] = mhla_alloc((size_t)(x->elements + 1) * sizeof(float));
    if (x->room[newest] == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for the gradient of a part");
    for (int i = 0; i < n; i++) {
        const mhla_param *p = mhla_params_at(x->params, i);
        if (p->has_grad) memcpy(x->room[newest] + x->offset[i], p->grad, (size_t)p->count * sizeof(float));
    }
    return MHLA_OK;
}

/* ---- Buckets ---- */

static int64_t bucket_at(const mhla_parts *x, int64_t order) { return x->buckets - 1 - order; }

/* Where the values of own node `k` of a stretch are; NULL: the parameter has no gradient there. */
static const float *own_values(const mhla_parts *x, int k, const mhla_stretch *s) {
    const int newest = k == x->own.count - 1;
    if (!(newest ? x->now : x->has + (size_t)k * (size_t)mhla_params_count(x->params))[s->index]) return NULL;
    return newest ? s->param->grad + s->at : x->room[k] + x->offset[s->index] + s->at;
}

static mhla_status launch(mhla_parts *x, flight *f, int64_t bucket) {
    int64_t first, last, out = 0, in = 0;
    int used = 0;
    f->bucket = bucket;
    stretch_range(x, bucket, &first, &last);
    for (int r = 0; r < x->ranks; r++) {
        if (r == x->rank) continue;
        const int64_t begin = out, coming = share_of(x, bucket, x->rank, SUMS) * x->theirs[r].count;
        for (int k = 0; k < x->own.count; k++)
            for (int64_t i = first_of(x, first, r); i < last; i += x->ranks) {
                const mhla_stretch s = mhla_optim_stretch(x->optim, i);
                if (!mhla_param_trains(s.param)) continue;
                const float *values = own_values(x, k, &s);
                f->out[out++] = values ? 1.0f : 0.0f;
                if (values)
                    memcpy(f->out + out, values, (size_t)s.count * sizeof *values);
                else
                    memset(f->out + out, 0, (size_t)s.count * sizeof *values);
                out += s.count;
            }
        MHLA_TRY(mhla_dist_receive(&f->messages[used++], f->in + in, (size_t)coming * sizeof(float), r, TAG_SUM));
        MHLA_TRY(
            mhla_dist_send(&f->messages[used++], f->out + begin, (size_t)(out - begin) * sizeof(float), r, TAG_SUM));
        in += coming;
    }
    return MHLA_OK;
}

/* ---- The rest of the tree, by the owner ---- */

typedef struct summing {
    mhla_parts *x;
    const flight *f;
    int64_t first, last, share; /* stretches of the bucket; own elements of it */
} summing;

/* Values of a node of a stretch, `at` elements into the own share; NULL: the parameter has no gradient there. A sum is written over its
 * left half, which nobody needs any more. */
static float *value_of(const summing *w, const mhla_stretch *s, int64_t at, int level, int64_t index) {
    const mhla_parts *x = w->x;
    if (!exists(x->count, level, index)) return NULL;
    float *in = w->f->in;
    for (int r = 0; r < x->ranks; r++) {
        const nodes *t = &x->theirs[r];
        for (int k = 0; k < t->count; k++) {
            if (t->list[k].level != level || t->list[k].index != index) continue;
            if (r == x->rank) return (float *)(uintptr_t)own_values(x, k, s);
            float *sent = in + k * w->share + at;
            return *sent != 0.0f ? sent + SUMS : NULL;
        }
        if (r != x->rank) in += w->share * t->count;
    }
    float *left = value_of(w, s, at, level - 1, 2 * index), *right = value_of(w, s, at, level - 1, 2 * index + 1);
    for (int64_t e = 0; left && right && e < s->count; e++) left[e] = left[e] + right[e];
    return left ? left : right;
}

static int root_level(int64_t count) {
    int level = 0;
    while ((int64_t)1 << level < count) level++;
    return level;
}

static void sum_task(void *arg, int64_t i, int worker) {
    const summing *w = arg;
    (void)worker;
    int64_t at = 0;
    const int64_t mine = first_of(w->x, w->first, w->x->rank) + i * w->x->ranks;
    for (int64_t s = first_of(w->x, w->first, w->x->rank); s < mine; s += w->x->ranks) {
        const mhla_stretch t = mhla_optim_stretch(w->x->optim, s);
        if (mhla_param_trains(t.param)) at += SUMS + t.count;
    }
    const mhla_stretch s = mhla_optim_stretch(w->x->optim, mine);
    if (!mhla_param_trains(s.param)) return;
    const float *sum = value_of(w, &s, at, root_level(w->x->count), 0);
    if (sum && sum != s.param->grad + s.at) memcpy(s.param->grad + s.at, sum, (size_t)s.count * sizeof *sum);
}

static void sum_bucket(mhla_parts *x, const flight *f, const mhla_context *context) {
    summing w = {.x = x, .f = f, .share = share_of(x, f->bucket, x->rank, SUMS)};
    stretch_range(x, f->bucket, &w.first, &w.last);
    const int64_t mine = first_of(x, w.first, x->rank);
    if (mine < w.last) mhla_parallel(context, (w.last - mine + x->ranks - 1) / x->ranks, sum_task, &w);
}

/* ---- While the last backward pass runs ---- */

static int bucket_ready(mhla_parts *x, int64_t bucket) {
    int64_t first, last;
    stretch_range(x, bucket, &first, &last);
    for (int64_t s = first; s < last; s++) {
        const mhla_stretch t = mhla_optim_stretch(x->optim, s);
        const int expected = x->expected[t.index];
        if (mhla_param_trains(t.param) && (expected == 0 || t.param->touched < expected)) return 0;
    }
    return 1;
}

/* The newest node of a bucket becomes complete. over: the pass is, and has_grad tells of the node already. */
static mhla_status complete(mhla_parts *x, int64_t bucket, int over) {
    int64_t first, last;
    stretch_range(x, bucket, &first, &last);
    for (int64_t s = first; s < last; s++) {
        const mhla_stretch t = mhla_optim_stretch(x->optim, s);
        if (!mhla_param_trains(t.param)) continue;
        MHLA_TRY(need_grad(t.param));
        fold_stretch(x, &t, over ? x->had[t.index] : t.param->has_grad);
        if (over) continue;
        x->now[t.index] = t.param->has_grad != 0;
        for (int i = 0; i < x->folds; i++)
            x->now[t.index] |= x->was[(size_t)i * (size_t)mhla_params_count(x->params) + (size_t)t.index];
    }
    return MHLA_OK;
}

/* The oldest buckets that have arrived make room for others. */
static mhla_status take_arrived(mhla_parts *x) {
    int all = 1;
    while (all && x->done < x->next) {
        flight *f = &x->ring[x->done % RING];
        MHLA_TRY(mhla_dist_test(f->messages, 2 * x->ranks, &all));
        if (all) sum_bucket(x, f, x->context), x->done++;
    }
    for (int64_t b = x->done + 1; b < x->next; b++)
        MHLA_TRY(mhla_dist_test(x->ring[b % RING].messages, 2 * x->ranks, &all));
    return MHLA_OK;
}

static void after(void *arg) {
    mhla_parts *x = arg;
    if (x->status == MHLA_OK) x->status = take_arrived(x);
    while (x->status == MHLA_OK && x->next < x->buckets && x->next - x->done < RING &&
           bucket_ready(x, bucket_at(x, x->next))) {
        const int64_t bucket = bucket_at(x, x->next);
        x->status = complete(x, bucket, 0);
        if (x->status == MHLA_OK) x->status = launch(x, &x->ring[x->next++ % RING], bucket);
    }
}

void mhla_parts_overlap(mhla_parts *x, mhla_tape *tape, const mhla_context *context) {
    for (int i = 0; i < mhla_params_count(x->params); i++) mhla_params_at(x->params, i)->touched = 0;
    if (x->ranks == 1 || x->expected == NULL) return;
    join(x, x->last - 1);
    x->context = context;
    x->overlapping = 1;
    mhla_tape_after(tape, after, x);
}

/* ---- Together ---- */

/* Which gradients are where, at all ranks; has_grad of a parameter where any part has it. */
static mhla_status gather_presence(mhla_parts *x) {
    const int n = mhla_params_count(x->params);
    const size_t each = (size_t)x->most * (size_t)n;
    unsigned char *mine = x->all_has + (size_t)x->ranks * each;
    memset(mine, 0, each);
    memcpy(mine, x->has, (size_t)x->own.count * (size_t)n);
    MHLA_TRY(mhla_dist_gather_all(x->all_has, mine, each));
    for (int i = 0; i < n; i++) {
        mhla_param *p = mhla_params_at(x->params, i);
        p->has_grad = 0;
        for (int k = 0; k < x->ranks * x->most; k++) p->has_grad |= x->all_has[(size_t)k * (size_t)n + (size_t)i];
        if (p->has_grad && mhla_param_trains(p)) MHLA_TRY(need_grad(p));
    }
    return MHLA_OK;
}

static mhla_status gather_squares(mhla_parts *x, const mhla_context *context) {
    const int64_t each = x->stretches / x->ranks + 1;
    double *squares = mhla_optim_measure(x->optim, context), *mine = x->squares + x->ranks * each;
    for (int64_t k = 0, s = x->rank; s < x->stretches; k++, s += x->ranks) mine[k] = squares[s];
    MHLA_TRY(mhla_dist_gather_all(x->squares, mine, (size_t)each * sizeof *mine));
    for (int64_t s = 0; s < x->stretches; s++) squares[s] = x->squares[s % x->ranks * each + s / x->ranks];
    return MHLA_OK;
}

/* How often a pass touches each parameter, from one that is over; a pass that differs from the one before was sent too early. */
static mhla_status remember_touches(mhla_parts *x) {
    const int n = mhla_params_count(x->params);
    const mhla_param *wrong = NULL;
    for (int i = 0; x->next > 0 && i < n; i++)
        if (x->expected[i] > 0 && mhla_params_at(x->params, i)->touched > x->expected[i])
            wrong = mhla_params_at(x->params, i);
    if (wrong)
        return mhla_fail(MHLA_ERANGE,
                         "%s got a gradient after it was sent: this model cannot be trained by several processes",
                         wrong->name);
    if (x->expected == NULL) x->expected = calloc((size_t)n + 1, sizeof *x->expected);
    if (x->expected == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for the parts of a batch");
    for (int i = 0; i < n; i++)
        if (mhla_params_at(x->params, i)->touched > x->expected[i])
            x->expected[i] = mhla_params_at(x->params, i)->touched;
    return MHLA_OK;
}

static mhla_status exchange(mhla_parts *x, const mhla_context *context) {
    for (; x->done < x->buckets; x->done++) {
        while (x->next < x->buckets && x->next - x->done < RING) {
            const int64_t bucket = bucket_at(x, x->next);
            if (x->overlapping) MHLA_TRY(complete(x, bucket, 1));
            MHLA_TRY(launch(x, &x->ring[x->next++ % RING], bucket));
        }
        flight *f = &x->ring[x->done % RING];
        MHLA_TRY(mhla_dist_wait(f->messages, 2 * x->ranks));
        sum_bucket(x, f, context);
        f->bucket = -1;
    }
    return MHLA_OK;
}

mhla_status mhla_parts_reduce(mhla_parts *x, const mhla_context *context) {
    if (x->ranks > 1) {
        MHLA_TRY(remember_touches(x));
        MHLA_TRY(gather_presence(x));
        MHLA_TRY(exchange(x, context));
    }
    x->own.count = 0;
    MHLA_TRY(gather_statistics(x));
    return gather_squares(x, context);
}

/* ---- New values, to all ---- */

static void pack_values(const mhla_parts *x, float *buffer, int64_t bucket, int rank, int unpack) {
    int64_t first, last;
    stretch_range(x, bucket, &first, &last);
    for (int64_t i = first_of(x, first, rank); i < last; i += x->ranks) {
        const mhla_stretch s = mhla_optim_stretch(x->optim, i);
        if (!mhla_param_trains(s.param)) continue;
        if (unpack)
            memcpy(s.param->data + s.at, buffer, (size_t)s.count * sizeof *buffer);
        else
            memcpy(buffer, s.param->data + s.at, (size_t)s.count * sizeof *buffer);
        buffer += s.count;
    }
}

static mhla_status launch_values(mhla_parts *x, flight *f, int64_t bucket) {
    int used = 0;
    int64_t in = 0;
    const size_t mine = (size_t)share_of(x, bucket, x->rank, VALUES) * sizeof(float);
    f->bucket = bucket;
    pack_values(x, f->out, bucket, x->rank, 0);
    for (int r = 0; r < x->ranks; r++) {
        if (r == x->rank) continue;
        const int64_t coming = share_of(x, bucket, r, VALUES);
        MHLA_TRY(mhla_dist_receive(&f->messages[used++], f->in + in, (size_t)coming * sizeof(float), r, TAG_VALUE));
        MHLA_TRY(mhla_dist_send(&f->messages[used++], f->out, mine, r, TAG_VALUE));
        in += coming;
    }
    return MHLA_OK;
}

mhla_status mhla_parts_share(mhla_parts *x) {
    if (x->ranks == 1) return MHLA_OK;
    for (int64_t next = 0, done = 0; done < x->buckets; done++) {
        for (; next < x->buckets && next - done < RING; next++) MHLA_TRY(launch_values(x, &x->ring[next % RING], next));
        flight *f = &x->ring[done % RING];
        MHLA_TRY(mhla_dist_wait(f->messages, 2 * x->ranks));
        int64_t in = 0;
        for (int r = 0; r < x->ranks; r++) {
            if (r == x->rank) continue;
            pack_values(x, f->in + in, f->bucket, r, 1);
            in += share_of(x, f->bucket, r, VALUES);
        }
        f->bucket = -1;
    }
    return MHLA_OK;
}
