/* Options as data: one row per option feeds the parser and the help text, so that the two cannot disagree. */
#include <errno.h>
#include <math.h>
#include <mhla/nn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"

/* "mhla VERB: ", with the rank where it is not the first of several. */
static void print_place(const char *verb) {
    if (mhla_rank() > 0)
        fprintf(stderr, "mhla %s: rank %d: ", verb, mhla_rank());
    else
        fprintf(stderr, "mhla %s: ", verb);
}

int cli_wrong(const char *verb, const char *format, ...) {
    va_list args;
    if (!mhla_rank_tells()) return CLI_USAGE;
    va_start(args, format);
    print_place(verb);
    text_vprint(stderr, format, &args);
    fprintf(stderr, "; mhla %s --help lists what it takes\n", verb);
    va_end(args);
    return CLI_USAGE;
}

int cli_failed(const char *verb, mhla_status status) {
    const char *message = mhla_message();
    if (!mhla_rank_tells()) return CLI_FAILED;
    print_place(verb);
    fprintf(stderr, "%s%s%s\n", mhla_status_text(status), *message ? ": " : "", message);
    return CLI_FAILED;
}

/* A row's name is "model" or "model,m". */
static char letter_of(const cli_option *o) {
    const char *comma = strchr(o->name, ',');
    return comma ? comma[1] : '\0';
}
#define NAME(o) (int)strcspn((o)->name, ","), (o)->name /* for %.*s */

static void print_usage(const cli_usage *usage) {
    printf("usage: mhla %s%s%s%s\n\n", usage->verb, usage->options->name ? " [OPTIONS]" : "",
           *usage->arguments ? " " : "", usage->arguments);
    fputs(usage->text, stdout);
    if (usage->options->name) printf("\nOptions:\n");
    for (const cli_option *o = usage->options; o->name; o++) {
        if (o->help == NULL) continue; /* an older name of the option before it */
        char left[64];
        char letter[8] = "";
        if (letter_of(o)) snprintf(letter, sizeof letter, "-%c, ", letter_of(o));
        snprintf(left, sizeof left, "%s--%.*s%s%s", letter, NAME(o), o->argument ? " " : "",
                 o->argument ? o->argument : "");
        printf("  %-22s ", left);
        puts(o->help); /* may have several lines */
    }
}

static int parse_grid(cli_grid *grid, const char *text) {
    cli_grid g = {0};
    for (const char *at = text;; at++) {
        char *end;
        errno = 0;
        const long n = strtol(at, &end, 10);
        if (end == at || errno || n < 1 || n > 1 << 30 || g.axes == 3) return 0;
        g.size[g.axes++] = (int)n;
        at = end;
        if (*at == '\0') break;
        if (*at != 'x') return 0;
    }
    *grid = g;
    return 1;
}

/* Returns what was expected, NULL if text is it. */
static const char *parse_value(const cli_option *option, const char *text) {
    char *end = NULL;
    errno = 0;
    switch (option->kind) {
    case CLI_FLAG: break;
    case CLI_TEXT: *(const char **)option->value = text; return NULL;
    case CLI_TEXTS: {
        cli_texts *list = option->value;
        if (list->count == (int)(sizeof list->text / sizeof *list->text)) return "no more than 64 of them";
        list->text[list->count++] = text;
        return NULL;
    }
    case CLI_INT:
    case CLI_COUNT: {
        const int least = option->kind == CLI_INT;
        const long long n = strtoll(text, &end, 10);
        if (end == text || *end || errno || n < least)
            return least ? "a whole number, 1 or more" : "a whole number, 0 or more";
        *(int64_t *)option->value = n;
        return NULL;
    }
    case CLI_BYTES: {
        const double x = strtod(text, &end);
        static const char units[] = "KMGT";
        const char *unit = *end ? strchr(units, *end) : NULL;
        const double bytes = unit ? ldexp(x, 10 * (int)(unit - units + 1)) : x;
        if (end == text || (*end && (unit == NULL || end[1])) || errno || !(bytes >= 1.0 && bytes < 1e18))
            return "a number of bytes such as 800M or 2G";
        *(int64_t *)option->value = (int64_t)bytes;
        return NULL;
    }
    case CLI_SIGNED: {
        const double x = strtod(text, &end);
        if (end == text || *end || errno || !(x > -1e6 && x < 1e6)) return "a number";
        *(double *)option->value = x;
        return NULL;
    }
    case CLI_REAL:
    case CLI_AMOUNT: {
        const int zero = option->kind == CLI_AMOUNT;
        const double x = strtod(text, &end);
        if (end == text || *end || errno || !((x > 0.0 || (zero && x == 0.0)) && x < 1e6))
            return zero ? "a number, 0 or more" : "a number more than 0";
        *(double *)option->value = x;
        return NULL;
    }
    case CLI_GRID: return parse_grid(option->value, text) ? NULL : "one to three sizes such as 16x16";
    }
    return "nothing";
}

/* Row of the option "--name", "--name=value" or "-n"; NULL if there is none. */
static const cli_option *find(const cli_usage *usage, const char *argument) {
    if (argument[1] != '-') {
        for (const cli_option *o = usage->options; o->name; o++)
            if (letter_of(o) && letter_of(o) == argument[1] && argument[2] == '\0') return o;
        return NULL;
    }
    const size_t n = strcspn(argument + 2, "=");
    for (const cli_option *o = usage->options; o->name; o++)
        if (strcspn(o->name, ",") == n && strncmp(o->name, argument + 2, n) == 0) return o;
    return NULL;
}

int cli_parse(const cli_usage *usage, int argc, char **argv, int *positional) {
    int kept = 0;
    for (int i = 0; i < argc; i++) {
        char *argument = argv[i];
        if (strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0) {
            print_usage(usage);
            return CLI_OK;
        }
        if (argument[0] != '-') {
            if (positional == NULL) return cli_wrong(usage->verb, "\"%s\" is not expected", argument);
            argv[kept++] = argument;
            continue;
        }
        const cli_option *o = find(usage, argument);
        if (o == NULL) return cli_wrong(usage->verb, "\"%s\" is not an option", argument);
        const char *value = argument[1] == '-' ? strchr(argument, '=') : NULL;
        if (o->kind == CLI_FLAG) {
            if (value) return cli_wrong(usage->verb, "--%.*s takes no value", NAME(o));
            *(int *)o->value = 1;
            continue;
        }
        if (value)
            value++;
        else if (i + 1 < argc)
            value = argv[++i];
        else
            return cli_wrong(usage->verb, "--%.*s lacks its value", NAME(o));
        const char *expected = parse_value(o, value);
        if (expected) return cli_wrong(usage->verb, "--%.*s is \"%s\": expected %s", NAME(o), value, expected);
    }
    if (positional) *positional = kept;
    return -1;
}

const char *cli_grid_text(char *text, size_t size, int axes, const int *sizes) {
    size_t used = 0;
    text[0] = '\0';
    for (int a = 0; a < axes && used < size; a++)
        used += (size_t)snprintf(text + used, size - used, "%s%d", a ? "x" : "", sizes[a]);
    return text;
}

/* A device like /dev/zero has no end: it would be read until there is no memory. Terminals and /dev/null have one. */
static int is_finite(int fd) {
    struct stat info, null;
    if (fstat(fd, &info) != 0) return 0;
    const int terminal = S_ISCHR(info.st_mode) && isatty(fd);
    const int is_null = S_ISCHR(info.st_mode) && stat("/dev/null", &null) == 0 && info.st_rdev == null.st_rdev;
    errno = EINVAL;
    return terminal || is_null || (!S_ISCHR(info.st_mode) && !S_ISBLK(info.st_mode));
}

char *cli_read_all(const char *verb, const char *path, size_t *size) {
    const int standard = strcmp(path, "-") == 0;
    FILE *f = standard ? stdin : fopen(path, "rbe"); /* a FIFO is as good: this reads a stream */
    size_t capacity = 0;
    char *bytes = NULL;
    int failed = f == NULL || !is_finite(fileno(f));
    *size = 0;
    while (!failed && !feof(f)) {
        if (*size == capacity) {
            char *larger = realloc(bytes, capacity = 2 * capacity + 65536);
            failed = larger == NULL;
            if (failed) break;
            bytes = larger;
        }
        *size += fread(bytes + *size, 1, capacity - *size, f);
        failed = ferror(f);
    }
    if (failed) {
        fprintf(stderr, "mhla %s: %s: %s\n", verb, standard ? "standard input" : path,
                errno == EINVAL ? "a device, not a file or a stream" : strerror(errno));
        free(bytes);
        bytes = NULL;
    }
    if (f && !standard) fclose(f);
    return bytes;
}

int cli_writable(const char *path) {
    struct stat info;
    errno = 0;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) errno = EISDIR;
    if (errno == EISDIR || errno == ENAMETOOLONG) return 0;
    const char *slash = strrchr(path, '/');
    char folder[4096] = ".";
    if (slash) snprintf(folder, sizeof folder, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    return access(folder, W_OK | X_OK) == 0;
}

int cli_is_preset(const char *name) {
    struct stat file;
    char preset[64];
    if (stat(name, &file) == 0) return 0;
    for (int i = 0; mhla_model_preset(i, preset) == MHLA_OK; i++) {
        const size_t family = strcspn(preset, "_") + 1;
        if (strncmp(name, preset, family) == 0) return 1;
    }
    return 0;
}
