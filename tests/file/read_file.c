/* read_file: what our readers make of a file, for tests/conformance/conformance.py.
 *
 *   read_file json FILE    the value, as JSON
 *   read_file toml FILE    the value, as the JSON with types of toml-test
 *   read_file image FILE   "width height channels" and a newline, then the bytes of the pixels
 *
 * Exit code 0 if the file was read, 1 with the message if it was refused. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "file/file.h"
#include "file/json.h"
#include "file/toml.h"
#include "image/image.h"

static json_t *typed(const mhla_toml_node *n) {
    static const char *const types[] = {"",     "",         "string",         "integer",    "float",
                                        "bool", "datetime", "datetime-local", "date-local", "time-local"};
    char text[64];
    json_t *all = n->type == MHLA_TOML_TABLE ? json_object() : json_array();
    if (n->type == MHLA_TOML_TABLE || n->type == MHLA_TOML_ARRAY) {
        for (n = n->first; n; n = n->next)
            if (n->key)
                json_object_setn_new(all, n->key, n->key_size, typed(n));
            else
                json_array_append_new(all, typed(n));
        return all;
    }
    json_decref(all);
    if (n->text) return json_pack("{s:s, s:o}", "type", types[n->type], "value", json_stringn(n->text, n->size));
    if (n->type == MHLA_TOML_INTEGER) snprintf(text, sizeof text, "%lld", (long long)n->integer);
    if (n->type == MHLA_TOML_BOOL) snprintf(text, sizeof text, "%s", n->integer ? "true" : "false");
    if (n->type == MHLA_TOML_FLOAT) snprintf(text, sizeof text, "%.17g", n->real);
    return json_pack("{s:s, s:s}", "type", types[n->type], "value", text);
}

static void print(json_t *value) {
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    if (text) puts(text);
    free(text);
    json_decref(value);
}

static mhla_status read_json(const char *path) {
    json_t *value;
    MHLA_TRY(mhla_json_load(&value, path));
    print(value);
    return MHLA_OK;
}

static mhla_status read_toml(const char *path) {
    mhla_file file;
    mhla_toml *document;
    MHLA_TRY(mhla_file_map(&file, path));
    const mhla_status status = mhla_toml_parse(&document, (const char *)file.data, file.size, path);
    if (status == MHLA_OK) print(typed(mhla_toml_root(document)));
    if (status == MHLA_OK) mhla_toml_free(document);
    mhla_file_unmap(&file);
    return status;
}

static mhla_status read_image(const char *path) {
    mhla_image image = {0};
    const mhla_status status = mhla_image_read(&image, path, 0);
    if (status == MHLA_OK) {
        printf("%d %d %d\n", image.width, image.height, image.channels);
        fwrite(image.data, 1, (size_t)image.width * (size_t)image.height * (size_t)image.channels, stdout);
    }
    mhla_image_free(&image);
    return status;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        mhla_status (*read)(const char *path);
    } kinds[] = {{"json", read_json}, {"toml", read_toml}, {"image", read_image}};
    for (size_t i = 0; argc == 3 && i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(argv[1], kinds[i].name) != 0) continue;
        if (kinds[i].read(argv[2]) == MHLA_OK) return 0;
        puts(mhla_message());
        return 1;
    }
    fputs("usage: read_file json|toml|image FILE\n", stderr);
    return 2;
}
