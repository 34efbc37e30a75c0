/* Judging claims: means, deviations, Welch's t-test, Holm's correction for several claims. Numbers in, verdicts out. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lab/lab.h"

static const double LEVEL = 0.05; /* of all claims of an experiment together */
static const double POWER = 0.8;  /* with which the difference that is called detectable is found */
static const double SINGLE = 4.0; /* errors of measurement that a single seed has to show */

const char mhla_judge_rule[] =
    "Each claim says that one arm is higher (or lower) than another in one measure. With two or more seeds, it is "
    "judged by Welch's two-sided t-test of the two means; if the deviation between seeds is less than the error of the "
    "test set, that error is used instead. The claims of an experiment share a level of 0.05 by Holm's method. A claim "
    "holds if the difference is "
    "significant and has the claimed sign, does not hold if it is significant and has the other one, and is undecided "
    "otherwise. With one seed, the difference must exceed four errors of the test set, which says nothing about other "
    "seeds; if that error is not known, the claim is undecided. The experiment holds if all of its claims hold, and "
    "does not hold if one of them does not.";

/* ---- Student's distribution ---- */

/* The continued fraction of the incomplete beta function, by Lentz's method. */
static double beta_fraction(double a, double b, double x) {
    const double tiny = 1e-300;
    double c = 1.0, d = 1.0 - (a + b) * x / (a + 1.0);
    if (fabs(d) < tiny) d = tiny;
    d = 1.0 / d;
    double h = d;
    for (int m = 1; m <= 1000; m++) {
        const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
        const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
        const double terms[2] = {even, odd};
        double change = 1.0;
        for (int i = 0; i < 2; i++) {
            d = 1.0 + terms[i] * d;
            c = 1.0 + terms[i] / c;
            if (fabs(d) < tiny) d = tiny;
            if (fabs(c) < tiny) c = tiny;
            d = 1.0 / d;
            change = c * d;
            h *= change;
        }
        if (fabs(change - 1.0) < 1e-15) break;
    }
    return h;
}

/* I_x(a,b) */
static double beta_share(double a, double b, double x) {
    if (x <= 0.0) return 0.0;
    if (x >= 1.0) return 1.0;
    const double front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x));
    return x < (a + 1.0) / (a + b + 2.0) ? front * beta_fraction(a, b, x) / a
                                         : 1.0 - front * beta_fraction(b, a, 1.0 - x) / b;
}

double mhla_student_p(double t, double freedom) {
    if (isnan(t) || !(freedom > 0.0)) return NAN;
    if (isinf(t)) return 0.0;
    return beta_share(0.5 * freedom, 0.5, freedom / (freedom + t * t));
}

/* ---- Samples and their difference ---- */

mhla_seeds mhla_seeds_of(const double *values, const double *errors, int count) {
    mhla_seeds s = {.count = count, .mean = NAN, .deviation = NAN, .error = NAN};
    double sum = 0.0, squares = 0.0;
    if (count < 1) return s;
    for (int i = 0; i < count; i++) sum += values[i];
    s.mean = sum / count;
    s.error = 0.0;
    for (int i = 0; i < count; i++) {
        squares += (values[i] - s.mean) * (values[i] - s.mean);
        if (!isnan(s.error) && !(errors[i] <= s.error)) s.error = errors[i]; /* the largest; unknown stays so */
    }
    if (count > 1) s.deviation = sqrt(squares / (count - 1));
    return s;
}

/* The squared error of a sample's mean, where one seed stands for itself. */
static double variance_of(const mhla_seeds *s) {
    const double single = isnan(s->error) ? 0.0 : s->error * s->error;
    if (s->count < 2) return single;
    const double between = s->deviation * s->deviation;
    return (between > single ? between : single) / s->count;
}

mhla_difference mhla_difference_of(const mhla_seeds *a, const mhla_seeds *b, double value) {
    mhla_difference d = {.mean = NAN, .t = NAN, .p = NAN};
    if (a->count < 1 || (b && b->count < 1)) return d;
    d.mean = a->mean - (b ? b->mean : value);
    const double va = variance_of(a), vb = b ? variance_of(b) : 0.0, error = sqrt(va + vb);
    const int alone = a->count < 2 || (b && b->count < 2);
    if (alone && (isnan(a->error) || (b && isnan(b->error)))) return d; /* nothing to hold it against */
    d.t = error > 0.0 ? d.mean / error : d.mean == 0.0 ? 0.0 : copysign(INFINITY, d.mean);
    if (alone) {
        d.p = erfc(fabs(d.t) / sqrt(2.0));
        return d;
    }
    /* Welch and Satterthwaite; of equal numbers without any deviation, what equal deviations would give */
    const double parts = va * va / (a->count - 1) + (b ? vb * vb / (b->count - 1) : 0.0);
    d.freedom = parts > 0.0 ? (va + vb) * (va + vb) / parts : a->count - 1 + (b ? b->count - 1 : 0);
    d.p = mhla_student_p(d.t, d.freedom);
    return d;
}

/* ---- Power ---- */

double mhla_student_t(double p, double freedom) {
    double low = 0.0, high = 1.0;
    if (!(p > 0.0) || p > 0.5 || !(freedom > 0.0)) return NAN;
    while (0.5 * mhla_student_p(high, freedom) > p && high < 1e12) high *= 2.0;
    for (int i = 0; i < 200 && high - low > 1e-14 * high; i++) {
        const double middle = 0.5 * (low + high);
        *(0.5 * mhla_student_p(middle, freedom) > p ? &low : &high) = middle;
    }
    return 0.5 * (low + high);
}

/* P(T > t) of the noncentral t distribution: the mean of P(Z > t s - shift) over s = sqrt(chi squared / freedom), by Simpson's rule. */
static double noncentral_above(double t, double freedom, double shift) {
    enum { PARTS = 4000 };
    const double most = 1.0 + 10.0 / sqrt(freedom), step = most / PARTS, half = 0.5 * freedom;
    double sum = 0.0;
    for (int i = 1; i <= PARTS; i++) {
        const double s = i * step;
        const double density = 2.0 * exp(half * log(half) - lgamma(half) + (freedom - 1.0) * log(s) - half * s * s);
        sum += (i == PARTS ? 1.0 : i % 2 ? 4.0 : 2.0) * density * 0.5 * erfc((t * s - shift) / sqrt(2.0));
    }
    if (freedom == 1.0) sum += 2.0 * exp(half * log(half) - lgamma(half)) * 0.5 * erfc(-shift / sqrt(2.0));
    return sum * step / 3.0;
}

/* The true difference, in standard errors, that a two-sided test of this level finds with probability POWER. */
static double detectable(double level, double freedom) {
    const double t = mhla_student_t(0.5 * level, freedom);
    double low = 0.0, high = 2.0 * t + 10.0;
    while (noncentral_above(t, freedom, high) < POWER && high < 1e12) high *= 2.0;
    for (int i = 0; i < 100; i++) {
        const double middle = 0.5 * (low + high);
        *(noncentral_above(t, freedom, middle) < POWER ? &low : &high) = middle;
    }
    return 0.5 * (low + high);
}

double mhla_power_of(const mhla_seeds *a, const mhla_seeds *b, double level) {
    const double other = b ? b->count : 0.0;
    if (a->count < 2 || (b && b->count < 2) || isnan(level)) return NAN;
    const double freedom = a->count - 1 + (b ? other - 1 : 0.0);
    const double pooled =
        ((a->count - 1) * variance_of(a) * a->count + (b ? (other - 1) * variance_of(b) * other : 0.0)) / freedom;
    const double error = sqrt(pooled * (1.0 / a->count + (b ? 1.0 / other : 0.0)));
    return detectable(level, freedom) * error;
}

/* ---- Claims ---- */

static mhla_seeds sample_of(const mhla_lab *lab, const char *arm, const char *measure) {
    double values[MHLA_LAB_SEEDS], errors[MHLA_LAB_SEEDS];
    const int i = mhla_experiment_arm(lab->experiment, arm);
    return mhla_seeds_of(values, errors, i < 0 ? 0 : mhla_results_take(lab, i, measure, values, errors));
}

/* Has the arm learned anything at all? What is compared of one that has not is no property of a trained model. */
static int is_trained(const mhla_lab *lab, const char *arm) {
    const mhla_experiment *e = lab->experiment;
    if (e->gate == NULL || arm == NULL) return 1;
    const mhla_seeds s = sample_of(lab, arm, e->gate);
    return s.count > 0 && s.mean > e->gate_least;
}

static void look(const mhla_lab *lab, const mhla_lab_claim *c, mhla_judgement *j) {
    const mhla_seeds a = sample_of(lab, c->a, c->measure);
    const mhla_seeds b = c->b ? sample_of(lab, c->b, c->measure) : (mhla_seeds){0};
    *j = (mhla_judgement){
        .difference = mhla_difference_of(&a, c->b ? &b : NULL, c->value), .level = NAN, .power = NAN, .why = ""};
    if (isnan(j->difference.mean))
        j->why = "not measured";
    else if (isnan(j->difference.p))
        j->why = "one seed, and no error of measurement is known";
    else if (!is_trained(lab, c->a) || !is_trained(lab, c->b)) {
        j->why = "nothing was learned";
        j->difference.p = NAN;
    }
}

static double power_of(const mhla_lab *lab, const mhla_lab_claim *c, double level) {
    const mhla_seeds a = sample_of(lab, c->a, c->measure);
    const mhla_seeds b = c->b ? sample_of(lab, c->b, c->measure) : (mhla_seeds){0};
    return mhla_power_of(&a, c->b ? &b : NULL, level);
}

static void decide(const mhla_lab_claim *c, mhla_judgement *j) {
    const double difference = j->difference.mean;
    if (difference == 0.0) return;
    j->verdict = (difference < 0.0) == (c->less != 0) ? MHLA_VERDICT_HOLDS : MHLA_VERDICT_FAILS;
}

int mhla_judge(const mhla_lab *lab, mhla_judgement judgements[MHLA_LAB_CLAIMS], mhla_verdict *all) {
    const mhla_lab_claim *claims = lab->experiment->claims;
    int n = 0, order[MHLA_LAB_CLAIMS], tested = 0, holds = 0, fails = 0;
    for (; n < MHLA_LAB_CLAIMS && claims[n].text; n++) {
        look(lab, &claims[n], &judgements[n]);
        if (isnan(judgements[n].difference.p)) continue;
        if (judgements[n].difference.freedom == 0.0) { /* one seed */
            judgements[n].level = erfc(SINGLE / sqrt(2.0));
            if (judgements[n].difference.p < judgements[n].level) decide(&claims[n], &judgements[n]);
            continue;
        }
        int at = tested++;
        for (; at > 0 && judgements[order[at - 1]].difference.p > judgements[n].difference.p; at--)
            order[at] = order[at - 1];
        order[at] = n;
    }
    int open = 1; /* Holm: from the smallest p on, until one is too large */
    for (int i = 0; i < tested; i++) {
        mhla_judgement *j = &judgements[order[i]];
        j->level = LEVEL / (tested - i);
        open = open && j->difference.p < j->level;
        if (open) decide(&claims[order[i]], j);
    }
    for (int i = 0; i < n; i++) {
        judgements[i].power = power_of(lab, &claims[i], judgements[i].level);
        holds += judgements[i].verdict == MHLA_VERDICT_HOLDS;
        fails += judgements[i].verdict == MHLA_VERDICT_FAILS;
    }
    *all = fails ? MHLA_VERDICT_FAILS : n > 0 && holds == n ? MHLA_VERDICT_HOLDS : MHLA_VERDICT_UNDECIDED;
    return n;
}

const char *mhla_verdict_text(mhla_verdict verdict) {
    static const char *const texts[] = {"undecided at this size", "holds", "does not hold"};
    return texts[verdict];
}
