#include "io/tokenizer_copy.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/status.h"
#include "io/file.h"
#include "io/gguf.h"

enum { PATH = 4096 };

static int join(char *to, const char *folder, const char *name) {
    return snprintf(to, PATH, "%s/%s", folder, name) < PATH;
}

static int is_file(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

static mhla_status copy_file(const char *folder, const char *name, const char *path) {
    char to[PATH];
    mhla_file file;
    mhla_writer w;
    if (!join(to, folder, name)) return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", folder);
    MHLA_TRY(mhla_file_map(&file, path));
    mhla_status status = mhla_writer_open(&w, to);
    if (status == MHLA_OK) {
        fwrite(file.data, 1, file.size, w.stream); /* commit asks for errors */
        status = mhla_writer_commit(&w);
    }
    mhla_file_unmap(&file);
    return status;
}

/* The metadata that belongs to a tokenizer, without any tensor. */
static mhla_status copy_vocabulary(const char *folder, const char *path) {
    char to[PATH];
    mhla_gguf *file = NULL;
    if (!join(to, folder, "tokenizer.gguf")) return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", folder);
    MHLA_TRY(mhla_gguf_open(&file, path));
    const int64_t all = mhla_gguf_value_count(file);
    mhla_gguf_pair *pairs = calloc((size_t)all + 1, sizeof *pairs);
    mhla_status status = pairs ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "%s: no memory for its vocabulary", path);
    int64_t n = 0;
    for (int64_t i = 0; i < all && status == MHLA_OK; i++) {
        const mhla_gguf_value *v = mhla_gguf_value_at(file, i);
        if (strncmp(v->key, "tokenizer.", 10) == 0 || strcmp(v->key, "general.architecture") == 0)
            pairs[n++] = (mhla_gguf_pair){v->key, v->kind, v->array, v->count, v->data, v->strings};
    }
    if (status == MHLA_OK) status = mhla_gguf_write(to, pairs, n, NULL, 0);
    free(pairs);
    mhla_gguf_close(file);
    return status;
}

mhla_status mhla_tokenizer_copy(const char *folder, const char *path) {
    static const char *const names[] = {"tokenizer.json", "tokenizer.model", "tokenizer.gguf"};
    static const char *const beside[] = {"tokenizer_config.json", "chat_template.jinja"};
    char file[PATH], parent[PATH];
    struct stat info;
    if (snprintf(file, sizeof file, "%s", path) >= PATH || stat(path, &info) != 0)
        return mhla_fail(MHLA_EIO, "%.200s: no tokenizer is there", path);
    for (int i = 0; i < 3 && S_ISDIR(info.st_mode); i++)
        if (join(file, path, names[i]) && is_file(file)) break;
    mhla_file bytes;
    MHLA_TRY(mhla_file_map(&bytes, file));
    const int gguf = mhla_gguf_is(bytes.data, bytes.size);
    size_t at = 0;
    while (at < bytes.size && bytes.data[at] <= ' ') at++;
    const int json = at < bytes.size && bytes.data[at] == '{';
    mhla_file_unmap(&bytes);
    if (gguf) return copy_vocabulary(folder, file);
    MHLA_TRY(copy_file(folder, names[!json], file));
    snprintf(parent, sizeof parent, "%s", file);
    char *slash = strrchr(parent, '/');
    if (slash)
        *slash = '\0';
    else
        strcpy(parent, ".");
    for (int i = 0; i < 2; i++)
        if (join(file, parent, beside[i]) && is_file(file)) MHLA_TRY(copy_file(folder, beside[i], file));
    return MHLA_OK;
}
