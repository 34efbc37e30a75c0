/* Where the program finds what it ships by name: recipes (recipes/NAME.toml) and models (models/NAME), in the current folder or
 * among the installed files. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"

static const char here[] = "recipes";

/* Installed files, relative to the program: PREFIX/bin/mhla has PREFIX/share/mhla/recipes and /models. */
static int installed(char folder[4096], const char *what) {
    char program[4096];
    const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n <= 0) return 0;
    program[n] = '\0';
    char *slash = strrchr(program, '/');
    if (slash == NULL) return 0;
    *slash = '\0';
    slash = strrchr(program, '/'); /* without "..": the folder shows up in messages */
    if (slash == NULL) return 0;
    *slash = '\0';
    return snprintf(folder, 4096, "%s/share/mhla/%s", program, what) < 4096;
}

/* Anything but a folder: a FIFO or an unreadable file is for the library to refuse, with its reason. */
static int is_file(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && !S_ISDIR(info.st_mode);
}

static int in_folder(char path[4096], const char *folder, const char *name) {
    static const char *const endings[] = {".toml", ".json", ""};
    for (int i = 0; i < 3; i++)
        if (snprintf(path, 4096, "%s/%s%s", folder, name, endings[i]) < 4096 && is_file(path)) return 1;
    return 0;
}

typedef struct names {
    char name[64][64];
    int count;
} names;

static int compare(const void *a, const void *b) { return strcmp(a, b); }

static void list_folder(names *list, const char *folder) {
    DIR *d = opendir(folder);
    for (const struct dirent *e; d && (e = readdir(d)) != NULL;) {
        const char *dot = strrchr(e->d_name, '.');
        if (dot == NULL || (strcmp(dot, ".toml") != 0 && strcmp(dot, ".json") != 0)) continue;
        const size_t n = (size_t)(dot - e->d_name);
        if (n == 0 || n >= sizeof list->name[0] || list->count == 64) continue;
        char name[sizeof list->name[0]];
        memcpy(name, e->d_name, n);
        name[n] = '\0';
        int known = 0;
        for (int i = 0; i < list->count; i++) known = known || strcmp(list->name[i], name) == 0;
        if (!known) strcpy(list->name[list->count++], name);
    }
    if (d) closedir(d);
    qsort(list->name, (size_t)list->count, sizeof list->name[0], compare);
}

int recipe_find(const char *verb, char path[4096], const char *name) {
    char folder[4096] = "";
    if (snprintf(path, 4096, "%s", name) >= 4096) return cli_wrong(verb, "the name of the recipe is too long");
    if (is_file(name) || strchr(name, '/') != NULL || *name == '\0') return -1;
    if (in_folder(path, here, name)) return -1;
    if (installed(folder, here) && in_folder(path, folder, name)) return -1;
    names known = {.count = 0};
    list_folder(&known, here);
    if (*folder) list_folder(&known, folder);
    if (!mhla_rank_tells()) return CLI_FAILED;
    fprintf(stderr, "mhla %s: no recipe \"%s\": no such file, and none of that name in recipes/ or in %s\n", verb, name,
            *folder ? folder : "share/mhla/recipes");
    if (known.count) {
        fprintf(stderr, "known recipes:");
        for (int i = 0; i < known.count; i++) fprintf(stderr, " %s", known.name[i]);
        fprintf(stderr, "\n");
    }
    return CLI_FAILED;
}

/* FOLDER/NAME: its NAME.gguf where it has one, else the folder. */
static int model_in(char path[4096], const char *folder, const char *name) {
    struct stat info;
    if (snprintf(path, 4096, "%s/%s/%s.gguf", folder, name, name) < 4096 && is_file(path)) return 1;
    return snprintf(path, 4096, "%s/%s", folder, name) < 4096 && stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

const char *model_path(const char *name) {
    static char path[4096];
    char folder[4096];
    if (*name == '\0' || strchr(name, '/') != NULL || access(name, F_OK) == 0) return name;
    if (model_in(path, "models", name)) return path;
    if (installed(folder, "models") && model_in(path, folder, name)) return path;
    return name;
}
