/* Files under attack: ones that become shorter while they are mapped, names that are taken or are links, what killed writers leave
 * behind, what is no file at all. */
#include "file/file.h"

#include <errno.h>
#include <fcntl.h>
#include <mhla/nn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "file/json.h"
#include "files.h"

enum { LARGE = 3 << 20, LOST = 42 };

static void write_zeros(const char *path, off_t size) {
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, size), 0);
    close(fd);
}

/* ---- Reading ---- */

static char lost_name[300];
static int lost_pipe;

static void tell_lost(const char *path) {
    const ssize_t n = write(lost_pipe, path, strlen(path));
    _exit(n > 0 ? LOST : 1);
}

/* A thread of its own, as OpenMP's are. */
static void *read_all(void *map) {
    const mhla_file *file = map;
    volatile unsigned sum = 0;
    for (size_t i = 0; i < file->size; i += 4096) sum += file->data[i];
    return NULL;
}

/* In a child: maps `path`, shortens it, reads it in another thread. Its code, or minus the signal that ended it. */
static int read_shortened(const char *path, int watch) {
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        mhla_file file;
        pthread_t thread;
        signal(SIGBUS, SIG_DFL); /* cmocka has a handler of its own */
        lost_pipe = ends[1];
        if (watch) mhla_files_watch(tell_lost);
        if (mhla_file_map(&file, path) != MHLA_OK || truncate(path, 4096) != 0) _exit(1);
        pthread_create(&thread, NULL, read_all, &file);
        pthread_join(thread, NULL);
        mhla_file_unmap(&file);
        _exit(0);
    }
    close(ends[1]);
    const ssize_t n = read(ends[0], lost_name, sizeof lost_name - 1);
    lost_name[n > 0 ? n : 0] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static void shortened(void **state) {
    (void)state;
    const char *path = in_folder("a\033[31m\nb");
    write_zeros(path, LARGE);
    assert_int_equal(read_shortened(path, 1), LOST);
    assert_non_null(strstr(lost_name, "/a?[31m?b")); /* nothing of a name reaches a terminal as it is */
    write_zeros(path, LARGE);
    assert_int_equal(read_shortened(path, 0), -SIGBUS); /* the library installs nothing by itself */
    write_zeros(path, MHLA_FILE_SMALL);                 /* is read: whoever shortens it does no harm */
    assert_int_equal(read_shortened(path, 0), 0);
}

/* Guarded, a file that becomes shorter is an error of whoever reads it, and the process lives on. */
static void guarded(void **state) {
    (void)state;
    const char *path = in_folder("guarded");
    struct sigaction before, after;
    sigaction(SIGBUS, NULL, &before);
    for (int i = 0; i < 3; i++) {
        mhla_file file;
        pthread_t thread;
        write_zeros(path, LARGE);
        const int64_t outer = mhla_files_guard(), guard = mhla_files_guard();
        assert_int_equal(mhla_file_map(&file, path), MHLA_OK);
        if (i) assert_int_equal(truncate(path, i == 1 ? 4096 : 0), 0);
        pthread_create(&thread, NULL, read_all, &file);
        pthread_join(thread, NULL);
        read_all(&file);
        assert_int_equal(file.data[file.size - 1], 0);
        mhla_file_unmap(&file);
        assert_int_equal(mhla_files_release(guard), i ? MHLA_EIO : MHLA_OK);
        if (i) assert_non_null(strstr(mhla_message(), "/guarded: became shorter while it was read"));
        assert_int_equal(mhla_files_release(outer), i ? MHLA_EIO : MHLA_OK);
    }
    const int64_t guard = mhla_files_guard(); /* what was lost before is over */
    assert_int_equal(mhla_files_release(guard), MHLA_OK);
    sigaction(SIGBUS, NULL, &after);
    assert_true(before.sa_handler == after.sa_handler);
}

/* What is none of our files is as it was before. */
static void other_bus_errors(void **state) {
    (void)state;
    for (int sent = 0; sent < 2; sent++) {
        int status;
        const pid_t child = fork();
        if (child == 0) {
            signal(SIGBUS, SIG_DFL);
            mhla_files_watch(tell_lost);
            if (sent) raise(SIGBUS);
            const char *path = in_folder("foreign");
            write_zeros(path, LARGE);
            const int fd = open(path, O_RDONLY);
            volatile const char *map = mmap(NULL, LARGE, PROT_READ, MAP_PRIVATE, fd, 0);
            if (truncate(path, 0) == 0) (void)map[8192];
            _exit(0);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    }
}

/* The kernel reads out of a mapping: no signal, but an error, which names what is being written. */
static void written_from_shortened(void **state) {
    (void)state;
    mhla_file file;
    const char *path = in_folder("source"), *to = in_folder("copy");
    write_zeros(path, LARGE);
    assert_int_equal(mhla_file_map(&file, path), MHLA_OK);
    assert_int_equal(truncate(path, 4096), 0);
    ASSERT_FAILS(mhla_file_write(to, file.data, file.size), MHLA_EIO,
                 "copy: not written: a file that it is made of became");
    mhla_file_unmap(&file);
    assert_int_equal(access(to, F_OK), -1);
}

static void many_mappings(void **state) {
    (void)state;
    mhla_file files[40];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 40; i++) {
            const char *path = in_folder("one");
            write_zeros(path, LARGE);
            assert_int_equal(mhla_file_map(&files[i], path), MHLA_OK);
            assert_int_equal(files[i].size, LARGE);
        }
        for (int i = 0; i < 40; i++) mhla_file_unmap(&files[i]);
    }
}

static void no_files(void **state) {
    (void)state;
    mhla_file file;
    mhla_jsonl log;
    int fd = 0;
    const char *fifo = in_folder("fifo");
    assert_int_equal(mkfifo(fifo, 0666), 0);
    ASSERT_FAILS(mhla_file_map(&file, fifo), MHLA_EIO, "fifo: not a regular file");
    ASSERT_FAILS(mhla_file_map(&file, folder), MHLA_EIO, "Is a directory");
    ASSERT_FAILS(mhla_file_map(&file, "/dev/zero"), MHLA_EIO, "/dev/zero: not a regular file");
    ASSERT_FAILS(mhla_file_open(&fd, NULL, in_folder("no")), MHLA_EIO, "no: No such file");
    assert_int_equal(fd, -1);
    const char *loop = in_folder("loop");
    assert_int_equal(symlink("loop", loop), 0);
    ASSERT_FAILS(mhla_file_map(&file, loop), MHLA_EIO, "Too many levels");
    ASSERT_FAILS(mhla_jsonl_open(&log, fifo), MHLA_EIO, "fifo: not a regular file");
    /* a log that is a link would be written through it */
    const char *target = in_folder("target"), *link = in_folder("link");
    write_file(target, "one\ntorn", 8);
    assert_int_equal(symlink("target", link), 0);
    ASSERT_FAILS(mhla_jsonl_open(&log, link), MHLA_EIO, "link: a symbolic link");
    struct stat info;
    assert_int_equal(stat(target, &info), 0);
    assert_int_equal(info.st_size, 8);
}

/* ---- Writing ---- */

static void modes(void **state) {
    (void)state;
    struct stat info;
    mhla_new_folder made;
    const mode_t old = umask(027);
    assert_int_equal(mhla_file_write(in_folder("mode"), "x", 1), MHLA_OK);
    assert_int_equal(mhla_new_folder_open(&made, in_folder("made/")), MHLA_OK);
    assert_int_equal(mhla_new_folder_commit(&made), MHLA_OK);
    umask(old);
    assert_int_equal(stat(in_folder("mode"), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0640);
    assert_int_equal(stat(in_folder("made"), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0750);
    assert_int_equal(rmdir(in_folder("made")), 0);
}

/* A name as long as a file system takes has a temporary one, too. */
static void long_name(void **state) {
    (void)state;
    char name[256];
    memset(name, 'n', 255), name[255] = '\0';
    char path[400];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(mhla_file_write(path, "x", 1), MHLA_OK);
    assert_int_equal(unlink(path), 0);
}

/* The old name was PATH.PID.tmp: a link there, made beforehand, was written through. */
static void foreseen_name(void **state) {
    (void)state;
    char path[300];
    struct stat info;
    const char *victim = in_folder("victim");
    write_file(victim, "precious", 8);
    snprintf(path, sizeof path, "%s.%ld.tmp", in_folder("out"), (long)getpid());
    assert_int_equal(symlink("victim", path), 0);
    assert_int_equal(mhla_file_write(in_folder("out"), "x", 1), MHLA_OK);
    assert_int_equal(stat(victim, &info), 0);
    assert_int_equal(info.st_size, 8);
}

/* The library's random numbers, here, so that a name can be known before it is made. */
static uint64_t next_numbers[2];
static int numbers_left;
ssize_t getrandom(void *to, size_t size, unsigned flags) {
    if (numbers_left == 0 || size != sizeof *next_numbers) return syscall(SYS_getrandom, to, size, flags);
    memcpy(to, &next_numbers[2 - numbers_left--], size);
    return (ssize_t)size;
}

/* Who guesses the number and makes a link there gains nothing: another name is taken. And no name is there twice. */
static void guessed_name(void **state) {
    (void)state;
    struct stat info;
    mhla_writer a, b;
    const char *victim = in_folder("victim");
    write_file(victim, "precious", 8);
    assert_int_equal(symlink("victim", in_folder(".guessed.0000000000000007.mhla-tmp")), 0);
    next_numbers[0] = 7, next_numbers[1] = 8, numbers_left = 2;
    assert_int_equal(mhla_writer_open(&a, in_folder("guessed")), MHLA_OK);
    assert_non_null(strstr(a.temporary, "0008.mhla-tmp"));
    fputs("x", a.stream);
    assert_int_equal(mhla_writer_open(&b, in_folder("guessed")), MHLA_OK);
    assert_string_not_equal(a.temporary, b.temporary);
    fputs("xy", b.stream);
    assert_int_equal(mhla_writer_commit(&a), MHLA_OK);
    assert_int_equal(mhla_writer_commit(&b), MHLA_OK);
    assert_int_equal(stat(victim, &info), 0);
    assert_int_equal(info.st_size, 8);
    assert_int_equal(lstat(in_folder("guessed"), &info), 0);
    assert_true(S_ISREG(info.st_mode) && info.st_size == 2);
}

/* In a child: a file and a folder in the making, then it waits to be killed, holding its locks. */
static pid_t begin_and_hang(const char *path, const char *folder_path) {
    int ends[2];
    char byte;
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        mhla_writer w;
        mhla_new_folder f;
        if (mhla_writer_open(&w, path) != MHLA_OK || mhla_new_folder_open(&f, folder_path) != MHLA_OK) _exit(1);
        char inner[4096];
        snprintf(inner, sizeof inner, "%s/inner", f.temporary);
        if (mhla_file_write(inner, "x", 1) != MHLA_OK || write(ends[1], "x", 1) != 1) _exit(1);
        for (;;) pause();
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    return child;
}

static void leftovers(void **state) {
    (void)state;
    char place[300], path[400], made[400], file[400], other[400], elsewhere[300];
    snprintf(place, sizeof place, "%s", in_folder("place"));
    snprintf(elsewhere, sizeof elsewhere, "%s", in_folder("elsewhere"));
    assert_int_equal(mkdir(place, 0777), 0);
    assert_int_equal(mkdir(elsewhere, 0777), 0);
    snprintf(path, sizeof path, "%s/metrics.jsonl", place);
    snprintf(made, sizeof made, "%s/model", place);
    const pid_t dead = begin_and_hang(path, made);
    assert_int_equal(entries(place), 2);
    assert_int_equal(kill(dead, SIGKILL), 0);
    assert_int_equal(waitpid(dead, NULL, 0), dead);
    const pid_t alive = begin_and_hang(path, made); /* has removed those of the dead one */
    assert_int_equal(entries(place), 2);
    /* what only looks like ours stays: links, other names; what is written elsewhere is not looked for */
    snprintf(file, sizeof file, "%s/.x.0123456789abcdef.mhla-tmp", place);
    write_file(in_folder("victim"), "precious", 8);
    assert_int_equal(symlink("../victim", file), 0);
    snprintf(other, sizeof other, "%s/x.0123456789abcdeg.mhla-tmp", place);
    write_file(other, "x", 1);
    snprintf(other, sizeof other, "%s/.x.0123456789abcdef.mhla-tmp", elsewhere);
    write_file(other, "x", 1);
    snprintf(other, sizeof other, "%s/.x.fedcba9876543210.mhla-tmp", place);
    write_file(other, "x", 1); /* ours, and nobody's */
    assert_int_equal(entries(place), 5);
    snprintf(other, sizeof other, "%s/other", place);
    assert_int_equal(mhla_file_write(other, "x", 1), MHLA_OK);
    assert_int_equal(entries(place), 5); /* two of the living one, a link, another name, "other" */
    assert_int_equal(entries(elsewhere), 1);
    assert_int_equal(access(in_folder("victim"), F_OK), 0);
    assert_int_equal(kill(alive, SIGKILL), 0);
    assert_int_equal(waitpid(alive, NULL, 0), alive);
}

/* A folder is removed, never what a link in its place points to. */
static void removed_link(void **state) {
    (void)state;
    char keep[300], link[300];
    snprintf(keep, sizeof keep, "%s", in_folder("keep"));
    snprintf(link, sizeof link, "%s", in_folder("linked"));
    assert_int_equal(mkdir(keep, 0777), 0);
    write_file(in_folder("keep/file"), "x", 1);
    assert_int_equal(symlink("keep", link), 0);
    mhla_folder_remove(link);
    assert_int_equal(access(link, F_OK), -1);
    assert_int_equal(entries(keep), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(shortened),
                                       cmocka_unit_test(guarded),
                                       cmocka_unit_test(other_bus_errors),
                                       cmocka_unit_test(written_from_shortened),
                                       cmocka_unit_test(many_mappings),
                                       cmocka_unit_test(no_files),
                                       cmocka_unit_test(modes),
                                       cmocka_unit_test(long_name),
                                       cmocka_unit_test(foreseen_name),
                                       cmocka_unit_test(guessed_name),
                                       cmocka_unit_test(leftovers),
                                       cmocka_unit_test(removed_link)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
