/* What makes the arms of an experiment comparable, as a section of its page: parameters, learning rates and the cost of their search,
 * the data they see, and what the experiment could have found. All of it is read from the results. */
#include <math.h>
#include <string.h>

#include "lab/lab.h"

/* An arm's measure in its first row; NaN: it has none. */
static double first_of(const mhla_lab *lab, int arm, const char *measure) {
    double values[MHLA_LAB_SEEDS], errors[MHLA_LAB_SEEDS];
    return mhla_results_take(lab, arm, measure, values, errors) ? values[0] : NAN;
}

/* Is it a number of parameters, "parameters" or "parameters_1024"? */
static int counts(const char *measure) {
    return strcmp(measure, "parameters") == 0 || strncmp(measure, "parameters_", 11) == 0;
}

/* "parameters" of `measure`, arm by arm, and how far apart they are. */
static void put_parameters(FILE *out, const mhla_lab *lab, const char *measure) {
    const mhla_experiment *e = lab->experiment;
    double least = INFINITY, most = 0.0;
    int n = 0;
    const char *at = strchr(measure, '_');
    fputs("* parameters", out);
    if (at) fprintf(out, at[1] >= '0' && at[1] <= '9' ? " at %s tokens" : ", %s", at + 1);
    for (int arm = 0; arm < MHLA_LAB_ARMS && e->arms[arm].name; arm++) {
        const double count = first_of(lab, arm, measure);
        if (isnan(count)) continue;
        fprintf(out, "%s %s %.0f", n++ ? "," : ":", e->arms[arm].title, count);
        if (count < least) least = count;
        if (count > most) most = count;
    }
    if (most == least)
        fputs("; equal\n", out);
    else
        fprintf(out, "; the largest number is %.2f %% above the smallest\n", 100.0 * (most / least - 1.0));
}

/* Each measure that counts parameters once, in the order of the first row that has it. */
static void put_sizes(FILE *out, const mhla_lab *lab) {
    for (int i = 0; i < lab->count; i++) {
        const char *name;
        json_t *value;
        json_object_foreach(lab->rows[i].measures, name, value) {
            int seen = !counts(name);
            for (int k = 0; k < i && !seen; k++) seen = json_object_get(lab->rows[k].measures, name) != NULL;
            if (!seen) put_parameters(out, lab, name);
        }
    }
}

/* The measure with `prefix` in front, in the arm's first row. */
static double first_with(const mhla_lab *lab, int arm, const char *prefix, const char *measure) {
    char name[64];
    snprintf(name, sizeof name, "%s%s", prefix, measure);
    return first_of(lab, arm, name);
}

/* What mhla_search_rate has put with `prefix`; how many arms have it. */
static int put_search(FILE *out, const mhla_lab *lab, const char *prefix, const char *of) {
    const mhla_experiment *e = lab->experiment;
    double runs = 0.0, seconds = 0.0;
    int n = 0, ends = 0;
    for (int arm = 0; arm < MHLA_LAB_ARMS && e->arms[arm].name; arm++) {
        const double rate = first_with(lab, arm, prefix, "rate");
        if (isnan(rate)) continue;
        if (n++)
            fputs(",", out);
        else
            fprintf(out, "* learning rates%s, found by the same search for each arm:", of);
        fprintf(out, " %s %g", e->arms[arm].title, rate);
        if (first_with(lab, arm, prefix, "search_end") > 0.0) ends++, fputs(" (the end of the list)", out);
        runs += first_with(lab, arm, prefix, "search_runs");
        seconds += first_with(lab, arm, prefix, "search_seconds");
    }
    if (n == 0) return 0;
    fprintf(out,
            ". The search took %.0f short trainings and %.1f minutes in all, with a seed that no result uses. It chose "
            "the rate with the lowest training loss over the last %s, without the test set.%s\n",
            runs, seconds / 60.0, *prefix ? "100 updates" : "quarter of the updates",
            ends ? " If the end of the list was best, a rate beyond it may be better." : "");
    return n;
}

static void put_rates(FILE *out, const mhla_lab *lab) {
    if (put_search(out, lab, "", "") + put_search(out, lab, "recall_", " of recall") == 0 && lab->experiment->info.data)
        fputs("* learning rates: the same for all arms, in the settings below; none was searched\n", out);
}

void mhla_fair_markdown(FILE *out, const mhla_lab *lab) {
    const mhla_experiment *e = lab->experiment;
    fputs("\n## What is equal, and what could be detected\n\n", out);
    put_sizes(out, lab);
    put_rates(out, lab);
    if (e->info.data)
        fputs("* data: all arms of a seed see the same examples in the same order, with the same augmentation; all use "
              "the same test set\n",
              out);
    fputs("* power: *detectable* in the table of claims is the smallest true difference that these seeds would have "
          "found in four of five repetitions of the experiment. It is computed from the pooled deviation between seeds "
          "and the level of the claim. Smaller differences are likely to be missed: undecided does not mean equal.\n",
          out);
}
