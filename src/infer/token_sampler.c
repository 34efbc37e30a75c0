/* Which token comes next. All truncations (top k, top p, min p) keep a prefix of the tokens sorted by logit, so nothing
 * more than that prefix is ever sorted: logits are counted into buckets of equal width from the largest down, the
 * buckets say how far the prefix reaches, and only what lies in them is collected and sorted. One pass over the
 * vocabulary for each step of that; probabilities in double. */
#include "infer/token_sampler.h"

#include <math.h>
#include <stdlib.h>

#include "core/memory.h"
#include "core/rng.h"
#include "core/status.h"

enum { BUCKETS = 1024 };
#define DEPTH 64.0 /* what is further below the best than this shares the last bucket: exp(-64) counts for nothing */

mhla_status mhla_token_sampler_init(mhla_token_sampler *s, int vocabulary) {
    const size_t n = (size_t)vocabulary;
    *s = (mhla_token_sampler){.vocabulary = vocabulary};
    s->logits = mhla_alloc(n * sizeof *s->logits);
    s->pick = mhla_alloc(n * sizeof *s->pick);
    s->seen = mhla_alloc_zero(n * sizeof *s->seen);
    if (s->logits && s->pick && s->seen) return MHLA_OK;
    mhla_token_sampler_release(s);
    return mhla_fail(MHLA_ENOMEM, "no memory to sample from %d tokens", vocabulary);
}

void mhla_token_sampler_release(mhla_token_sampler *s) {
    mhla_free(s->logits);
    mhla_free(s->pick);
    mhla_free(s->seen);
    *s = (mhla_token_sampler){0};
}

mhla_status mhla_sampling_check(mhla_sampling *to, const mhla_sampling *from, int vocabulary) {
    mhla_sampling s = {0};
    MHLA_TRY(mhla_struct_in(&s, sizeof s, from, "mhla_sampling"));
    const struct {
        const char *name;
        double value, least;
    } reals[] = {{"temperature", s.temperature, 0.0},
                 {"top_p", s.top_p, 0.0},
                 {"min_p", s.min_p, 0.0},
                 {"repeat_penalty", s.repeat_penalty, 0.0},
                 {"presence_penalty", s.presence_penalty, -HUGE_VAL},
                 {"frequency_penalty", s.frequency_penalty, -HUGE_VAL}};
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
        if (!isfinite(reals[i].value) || reals[i].value < reals[i].least)
            return mhla_fail(MHLA_EINVAL, "%s is %g: expected a finite number%s", reals[i].name, reals[i].value,
                             reals[i].least == 0.0 ? ", 0 or more" : "");
    if (s.top_p > 1.0) return mhla_fail(MHLA_EINVAL, "top_p is %g: expected 0 to 1", s.top_p);
    if (s.min_p > 1.0) return mhla_fail(MHLA_EINVAL, "min_p is %g: expected 0 to 1", s.min_p);
    if (s.top_k < 0) return mhla_fail(MHLA_EINVAL, "top_k is %d: expected 0 (off) or more", s.top_k);
    if (s.repeat_last < -1) return mhla_fail(MHLA_EINVAL, "repeat_last is %d: expected -1 or more", s.repeat_last);
    if (s.order != MHLA_SAMPLING_LLAMA && s.order != MHLA_SAMPLING_HF)
        return mhla_fail(MHLA_EINVAL, "the order of sampling is %d, which is none", (int)s.order);
    if (s.biases < 0 || (s.biases > 0 && s.bias == NULL))
        return mhla_fail(MHLA_EINVAL, "biases is %d and bias is %s", s.biases, s.bias ? "given" : "NULL");
    for (int i = 0; i < s.biases; i++) {
        if (s.bias[i].id < 0 || s.bias[i].id >= vocabulary)
            return mhla_fail(MHLA_EINVAL, "bias %d is of token %d; tokens are 0 to %d", i, (int)s.bias[i].id,
                             vocabulary - 1);
        if (isnan(s.bias[i].bias) || s.bias[i].bias == INFINITY)
            return mhla_fail(MHLA_EINVAL, "the bias of token %d is %g", (int)s.bias[i].id, (double)s.bias[i].bias);
    }
    if (s.repeat_last == 0) s.repeat_last = 64;
    if (s.repeat_penalty == 0.0) s.repeat_penalty = 1.0;
    if (s.top_p == 0.0) s.top_p = 1.0;
    if (s.top_k == 0 || s.top_k > vocabulary) s.top_k = vocabulary;
    if (s.min_keep < 1) s.min_keep = 1;
    if (s.min_keep > vocabulary) s.min_keep = vocabulary;
    if (s.top_k < s.min_keep) s.top_k = s.min_keep;
    *to = s;
    return MHLA_OK;
}

static void penalise(mhla_token_sampler *s, const mhla_sampling *p, const int32_t *recent, int64_t n) {
    if (p->repeat_penalty == 1.0 && p->presence_penalty == 0.0 && p->frequency_penalty == 0.0) return;
    if (p->repeat_last > 0 && n > p->repeat_last) {
        recent += n - p->repeat_last;
        n = p->repeat_last;
    }
    for (int64_t i = 0; i < n; i++)
        if (recent[i] >= 0 && recent[i] < s->vocabulary) s->seen[recent[i]]++;
    for (int64_t i = 0; i < n; i++) {
        if (recent[i] < 0 || recent[i] >= s->vocabulary || s->seen[recent[i]] == 0) continue;
        double *x = &s->logits[recent[i]];
        *x = *x <= 0.0 ? *x * p->repeat_penalty : *x / p->repeat_penalty;
        *x -= (double)s->seen[recent[i]] * p->frequency_penalty + p->presence_penalty;
        s->seen[recent[i]] = 0;
    }
}

static mhla_status find_range(mhla_token_sampler *s) {
    double top = -INFINITY, low = INFINITY;
    int wrong = 0;
    for (int i = 0; i < s->vocabulary; i++) {
        const double x = s->logits[i];
        wrong |= !(x < INFINITY);
        top = x > top ? x : top;
        low = x < low && x > -INFINITY ? x : low;
    }
    if (wrong)
        for (int i = 0; i < s->vocabulary; i++)
            if (!(s->logits[i] < INFINITY))
                return mhla_fail(MHLA_EDATA, "the logit of token %d is %g", i, s->logits[i]);
    if (top == -INFINITY) return mhla_fail(MHLA_EDATA, "no token is possible: all logits are -inf");
    s->top = top;
    s->low = low;
    return MHLA_OK;
}

/* Logits after bias and penalties, and after the temperature where that comes first or nothing comes between. */
static mhla_status prepare(mhla_token_sampler *s, const mhla_sampling *p, const float *logits, const int32_t *recent,
                           int64_t n, int *tempered) {
    for (int i = 0; i < s->vocabulary; i++) s->logits[i] = (double)logits[i];
    for (int i = 0; i < p->biases; i++) s->logits[p->bias[i].id] += (double)p->bias[i].bias;
    penalise(s, p, recent, n);
    const int whole = p->top_k == s->vocabulary && p->top_p == 1.0 && p->min_p == 0.0;
    *tempered = p->temperature > 0.0 && (p->order == MHLA_SAMPLING_HF || whole);
    if (*tempered && p->temperature != 1.0)
        for (int i = 0; i < s->vocabulary; i++) s->logits[i] /= p->temperature;
    return find_range(s);
}

/* ---- Selection ---- */

static int bucket_of(const mhla_token_sampler *s, double scale, double x) {
    const double d = (s->top - x) * scale; /* never decreases from a larger x to a smaller one, rounding included */
    return d < (double)(BUCKETS - 1) ? (int)d : BUCKETS - 1;
}

static int better(const void *a, const void *b) {
    const mhla_pick *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* Collects and sorts at least: the `count` best; or, if mass < 1, those that hold `mass` of all probability (*total is
 * that of all, exp(top) being 1); or those from `least` on. The smallest of the three, but `keep` at least. Returns how
 * many there are. */
static int gather(mhla_token_sampler *s, int count, double mass, double least, int keep, double *total) {
    const double range = s->top - s->low, depth = range < DEPTH ? range : DEPTH;
    const double scale = depth > 0.0 ? (double)BUCKETS / depth : 0.0;
    int in[BUCKETS] = {0};
    double weight[BUCKETS] = {0};
    *total = 0.0;
    if (mass < 1.0) {
        for (int i = 0; i < s->vocabulary; i++) {
            const int b = bucket_of(s, scale, s->logits[i]);
            in[b]++;
            weight[b] += exp(s->logits[i] - s->top);
        }
        for (int b = 0; b < BUCKETS; b++) *total += weight[b];
    } else {
        for (int i = 0; i < s->vocabulary; i++) in[bucket_of(s, scale, s->logits[i])]++;
    }
    const int floor = bucket_of(s, scale, least);
    int last = -1, n = 0;
    double reached = 0.0;
    while (last < BUCKETS - 1 && (n < keep || (n < count && last < floor && !(reached > mass * *total)))) {
        n += in[++last];
        reached += weight[last];
    }
    if (last == BUCKETS - 1) {
        for (int i = 0; i < s->vocabulary; i++) s->pick[i] = (mhla_pick){s->logits[i], i};
    } else {
        n = 0;
        const double border = s->top - (double)(last + 2) / scale; /* cheap and a little too far, then exact */
        for (int i = 0; i < s->vocabulary; i++)
            if (s->logits[i] >= border && bucket_of(s, scale, s->logits[i]) <= last)
                s->pick[n++] = (mhla_pick){s->logits[i], i};
    }
    qsort(s->pick, (size_t)n, sizeof *s->pick, better);
    return n;
}

/* What survives: s->pick, best first, logits after the temperature. */
static int survivors(mhla_token_sampler *s, const mhla_sampling *p, int tempered) {
    const int by_count = p->top_k < s->vocabulary;
    const double least = p->min_p > 0.0 ? s->top + log(p->min_p) : -INFINITY;
    double total;
    int n;
    if (p->temperature <= 0.0) return gather(s, 1, 1.0, -INFINITY, 1, &total) > 0;
    if (by_count) /* then probabilities are of the k that are left */
        n = gather(s, p->top_k, 1.0, -INFINITY, p->min_keep, &total);
    else
        n = gather(s, s->vocabulary, p->top_p, least, p->min_keep, &total);
    if (n > p->top_k) n = p->top_k;
    if (p->top_p < 1.0) {
        if (by_count) {
            total = 0.0;
            for (int i = 0; i < n; i++) total += exp(s->pick[i].logit - s->top);
        }
        double reached = 0.0;
        int i = 0;
        while (i < n && (i < p->min_keep || !(reached >= p->top_p * total)))
            reached += exp(s->pick[i++].logit - s->top);
        n = i;
    }
    while (n > p->min_keep && s->pick[n - 1].logit < least) n--;
    if (!tempered && p->temperature != 1.0)
        for (int i = 0; i < n; i++) s->pick[i].logit /= p->temperature;
    return n;
}

/* ---- Drawing ---- */

static double uniform(uint64_t seed, uint64_t draw) {
    mhla_rng r = mhla_rng_make(seed, draw, 0, MHLA_PLACE_TOKENS);
    const uint32_t high = mhla_rng_next(&r) >> 5, low = mhla_rng_next(&r) >> 6;
    return ((double)high * 0x1p26 + (double)low) * 0x1p-53;
}

mhla_status mhla_token_sampler_draw(mhla_token_sampler *s, const mhla_sampling *p, const float *logits,
                                    const int32_t *recent, int64_t n, uint64_t draw, int32_t *id) {
    int tempered;
    MHLA_TRY(prepare(s, p, logits, recent, n, &tempered));
    if (p->temperature <= 0.0) {
        int best = 0;
        for (int i = 1; i < s->vocabulary; i++)
            if (s->logits[i] > s->logits[best]) best = i;
        *id = best;
        return MHLA_OK;
    }
    const double u = uniform(p->seed, draw);
    const int whole = p->top_k == s->vocabulary && p->top_p == 1.0 && p->min_p == 0.0;
    double total = 0.0;
    int count;
    if (whole) { /* the one at which the sum passes u: of all the others no order is needed */
        count = gather(s, s->vocabulary, u, -INFINITY, 1, &total);
    } else {
        count = survivors(s, p, tempered);
        for (int i = 0; i < count; i++) total += exp(s->pick[i].logit - s->pick[0].logit);
    }
    double reached = 0.0;
    const double top = s->pick[0].logit;
    int at = 0;
    for (int i = 0; i < count; i++) {
        const double w = exp(s->pick[i].logit - top);
        if (w > 0.0) at = i; /* rounding may leave the sum short of u at the very end */
        reached += w;
        if (reached > u * total) break;
    }
    *id = s->pick[at].id;
    return MHLA_OK;
}

mhla_status mhla_token_sampler_logprobs(mhla_token_sampler *s, const float *logits, int32_t id, float *logprob,
                                        int tops, mhla_candidate *top) {
    for (int i = 0; i < s->vocabulary; i++) s->logits[i] = (double)logits[i];
    MHLA_TRY(find_range(s));
    double sum = 0.0;
    for (int i = 0; i < s->vocabulary; i++) sum += exp(s->logits[i] - s->top);
    const double all = s->top + log(sum);
    *logprob = (float)(s->logits[id] - all);
    if (tops == 0) return MHLA_OK;
    double total;
    gather(s, tops, 1.0, -INFINITY, 1, &total);
    for (int i = 0; i < tops; i++) top[i] = (mhla_candidate){s->pick[i].id, (float)(s->pick[i].logit - all)};
    return MHLA_OK;
}

/* ---- Public ---- */

static mhla_status check_call(const float *logits, int vocabulary, const int32_t *recent, int64_t n, const void *out) {
    if (logits == NULL || out == NULL) return mhla_fail(MHLA_EINVAL, "%s is NULL", logits ? "the result" : "logits");
    if (vocabulary < 1) return mhla_fail(MHLA_EINVAL, "vocabulary is %d: expected 1 or more", vocabulary);
    if (n < 0 || (n > 0 && recent == NULL))
        return mhla_fail(MHLA_EINVAL, "n is %lld and recent is %s", (long long)n, recent ? "given" : "NULL");
    return MHLA_OK;
}

mhla_status mhla_sample_candidates(const mhla_sampling *sampling, const float *logits, int vocabulary,
                                   const int32_t *recent, int64_t n, mhla_candidate *candidates, int *count) {
    mhla_sampling p = {0};
    mhla_token_sampler s;
    int tempered;
    if (count == NULL) return mhla_fail(MHLA_EINVAL, "count is NULL");
    MHLA_TRY(check_call(logits, vocabulary, recent, n, candidates));
    MHLA_TRY(mhla_sampling_check(&p, sampling, vocabulary));
    MHLA_TRY(mhla_token_sampler_init(&s, vocabulary));
    const mhla_status status = prepare(&s, &p, logits, recent, n, &tempered);
    if (status == MHLA_OK) {
        *count = survivors(&s, &p, tempered);
        double total = 0.0;
        for (int i = 0; i < *count; i++) total += exp(s.pick[i].logit - s.pick[0].logit);
        for (int i = 0; i < *count; i++)
            candidates[i] = (mhla_candidate){s.pick[i].id, (float)(exp(s.pick[i].logit - s.pick[0].logit) / total)};
    }
    mhla_token_sampler_release(&s);
    return status;
}

mhla_status mhla_sample(const mhla_sampling *sampling, const float *logits, int vocabulary, const int32_t *recent,
                        int64_t n, uint64_t draw, int32_t *id) {
    mhla_sampling p = {0};
    mhla_token_sampler s;
    MHLA_TRY(check_call(logits, vocabulary, recent, n, id));
    MHLA_TRY(mhla_sampling_check(&p, sampling, vocabulary));
    MHLA_TRY(mhla_token_sampler_init(&s, vocabulary));
    const mhla_status status = mhla_token_sampler_draw(&s, &p, logits, recent, n, draw, id);
    mhla_token_sampler_release(&s);
    return status;
}
