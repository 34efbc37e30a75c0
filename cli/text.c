/* Numbers as people read them, and the operation counts that every verb shares. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

const char *text_time(char *text, size_t size, double seconds) {
    static const struct {
        double unit;
        const char *name;
    } units[] = {{1.0, "s"}, {1e-3, "ms"}, {1e-6, "us"}, {1e-9, "ns"}};
    int i = 0;
    while (i < 3 && seconds < 0.9995 * units[i].unit) i++;
    const double x = seconds / units[i].unit;
    snprintf(text, size, "%.*f %s", x < 9.995 ? 2 : x < 99.95 ? 1 : 0, x, units[i].name);
    return text;
}

const char *text_bytes(char *text, size_t size, double bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int i = 0;
    while (i < 4 && bytes >= 1023.5) {
        bytes /= 1024.0;
        i++;
    }
    snprintf(text, size, "%.*f %s", i == 0 || bytes >= 99.95 ? 0 : 1, bytes, units[i]);
    return text;
}

const char *text_count(char *text, size_t size, int64_t count) {
    char plain[32];
    const int n = snprintf(plain, sizeof plain, "%lld", (long long)count);
    size_t used = 0;
    for (int i = 0; i < n && used + 2 < size; i++) {
        if (i > 0 && (n - i) % 3 == 0) text[used++] = ',';
        text[used++] = plain[i];
    }
    text[used] = '\0';
    return text;
}

const char *text_left(char *text, size_t size, double left) {
    if (!isfinite(left))
        snprintf(text, size, "-");
    else if (left < 5999.0)
        snprintf(text, size, "%d:%02d", (int)left / 60, (int)left % 60);
    else
        snprintf(text, size, "%.1f h", left / 3600.0);
    return text;
}

/* Summaries and outputs, then the mixture of M summaries of K x V for each of M blocks. */
double flops_mhla(double T, double K, double V, double M) { return 4.0 * T * K * V + 2.0 * M * M * K * V; }
double flops_linear(double T, double K, double V) { return 4.0 * T * K * V; }
double flops_softmax(double T, double K, double V) { return 2.0 * T * T * (K + V); }

/* Only what is needed: triangles count half. N chunks. */
double flops_causal_mhla(double T, double K, double V, double C) {
    const double N = (double)(int64_t)((T + C - 1.0) / C);
    return 4.0 * T * K * V + N * (N - 1.0) * K * V + T * (C + 1.0) * (K + V);
}

double flops_causal_linear(double T, double K, double V, double C) { return 4.0 * T * K * V + T * (C + 1.0) * (K + V); }

count_line count_begin(const char *things) {
    const double now = now_seconds();
    return (count_line){things, now, now, -1};
}

void count_show(void *line, int64_t done, int64_t all) {
    count_line *l = line;
    const double now = now_seconds();
    const int terminal = isatty(STDERR_FILENO);
    char left[32];
    if (l->before < 0) l->before = done - 1; /* what was there already took no time */
    if (now - l->shown < (terminal ? 0.2 : 10.0) && done < all) return;
    l->shown = now;
    text_left(left, sizeof left, (now - l->begin) / (double)(done - l->before) * (double)(all - done));
    fprintf(stderr, terminal ? "\r%lld of %lld %s, %s left\033[K" : "%lld of %lld %s, %s left\n", (long long)done,
            (long long)all, l->things, left);
    if (terminal && done == all) fprintf(stderr, "\r\033[K");
}
